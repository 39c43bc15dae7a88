"""farbus install: files below --root, as a package or an image would be made; tests/lab has the real systemd."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from farbus.agent.config import AgentConfig
from farbus.cli import application
from farbus.cli.installation import FILES, SOURCES, STORAGE_SOURCE, TLS_SOURCE, Role, check_command
from farbus.cli.manual import manual_page
from farbus.errors import InvalidInput, NotFound
from farbus.model.nvmeof import Stripe, SubsystemName
from farbus.model.storage import LogicalIdentity
from farbus.scheduler.config import SchedulerConfig

COMMAND = "/opt/farbus/bin/farbus"
UNIT = "usr/local/lib/systemd/system/farbus-agent.service"


def install(root: Path, *arguments: str, role: str = "agent") -> int:
    return application.run(["install", role, "--root", str(root), "--command", COMMAND, *arguments])


def files_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with both roles."""
    for role in Role:
        assert install(tmp_path, role=role) == 0
    return tmp_path


@pytest.mark.parametrize(
    ("role", "kind", "others"),
    [
        (
            # What services have set, what farbus up needs, and places that nobody has wanted elsewhere.
            "agent", AgentConfig,
            {"state", "socket", "softgpu_node", "softgpu_library", "remoting_sockets", "run_as_self", "end_on_stop",
             "orphan_limit_s", "program_units"},
        ),
        ("scheduler", SchedulerConfig, {"state", "return_s", "round_delay_s"}),
    ],
)  # fmt: skip
def test_settings_files_have_each_setting_that_an_operator_may_want(role: str, kind: type, others: set[str]) -> None:
    text = (SOURCES / "config" / f"{role}.toml").read_text()
    # Tables come behind all else, as TOML has it.
    told = re.findall(r"^(?:# )?\[?([a-z_]+)(?:\.\w+)?(?: = .*|\])$", text.partition("# rack =")[0], flags=re.MULTILINE)
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    assert {name for name in told if name not in known} == set()
    assert known - set(told) == others
    for line in re.findall(r"^# ([a-z_.]+ = .+)$", text, flags=re.MULTILINE):
        tomllib.loads(line)


def test_every_source_belongs_to_a_role() -> None:
    sources = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*") if path.is_file()}
    assert sources == {source for files in FILES.values() for source in files} | {STORAGE_SOURCE, TLS_SOURCE}


def test_unit_starts_the_command(root: Path) -> None:
    assert f"\nExecStart={COMMAND} agent --config /etc/farbus/agent.toml\n" in (root / UNIT).read_text()


def test_nothing_is_left_to_be_filled_in(root: Path) -> None:
    assert [name for name in files_below(root) if re.search("@[a-z]+@", (root / name).read_text())] == []


@pytest.mark.parametrize(("role", "kind"), [("agent", AgentConfig), ("scheduler", SchedulerConfig)])
def test_settings_are_known_to_the_daemon(root: Path, role: str, kind: type) -> None:
    text = (root / f"etc/farbus/{role}.toml").read_text()
    # Also those that are only shown: a comment's "# name = value".
    shown = re.sub(r"(?m)^# (?=\w+ = |\[)", "", text)
    assert set(tomllib.loads(shown)) <= set(kind.__struct_fields__)  # type: ignore[attr-defined]


def test_scheduler_is_written_into_new_settings(tmp_path: Path) -> None:
    install(tmp_path, "--scheduler", "control:7411")
    assert tomllib.loads((tmp_path / "etc/farbus/agent.toml").read_text())["scheduler"] == "control:7411"


def test_scheduler_is_refused_where_settings_are_there(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install(root, "--scheduler", "control:7411") == 7
    assert "set scheduler in it" in capsys.readouterr().err


def test_second_time_changes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {name: (root / name).stat().st_ino for name in files_below(root) if "installed.json" not in name}
    capsys.readouterr()
    install(root)
    assert {name: (root / name).stat().st_ino for name in before} == before
    assert {line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines()} == {"kept", "unchanged"}


def test_upgrade_replaces_what_nobody_has_changed(root: Path) -> None:
    application.run(["install", "agent", "--root", str(root), "--command", "/opt/newer/bin/farbus"])
    assert "ExecStart=/opt/newer/bin/farbus" in (root / UNIT).read_text()


def test_upgrade_puts_the_new_one_beside_a_changed_file(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / UNIT).write_text("changed")
    application.run(["install", "agent", "--root", str(root), "--command", "/opt/newer/bin/farbus"])
    assert (root / UNIT).read_text() == "changed"
    assert "/opt/newer/bin/farbus" in (root / f"{UNIT}.farbus-new").read_text()
    assert f"/{UNIT}: kept, since it was changed here; the new one: /{UNIT}.farbus-new" in capsys.readouterr().out


def test_file_of_somebody_else_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / UNIT).parent.mkdir(parents=True)
    (tmp_path / UNIT).write_text("theirs")
    install(tmp_path)
    install(tmp_path, "--uninstall")
    assert files_below(tmp_path) == {UNIT}


def test_dry_run_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install(tmp_path, "--dry-run") == 0
    assert list(tmp_path.iterdir()) == []
    told = capsys.readouterr().out
    assert told.startswith("nothing is changed; this would be done:\n")
    assert f"/{UNIT}: made" in told


DROP_IN = f"{UNIT}.d/storage.conf"


def set_in(root: Path, line: str) -> None:
    settings = root / "etc/farbus/agent.toml"
    settings.write_text(f"{line}\n{settings.read_text()}")


@pytest.mark.parametrize("setting", ["storage", "use_storage"])
def test_storage_brings_what_the_unit_has_to_allow_and_takes_it_along(
    root: Path, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_below(root)
    assert DROP_IN not in before
    set_in(root, f"{setting} = true")
    assert install(root) == 0
    assert files_below(root) - before == {DROP_IN}
    assert (root / DROP_IN).read_text() == (SOURCES / STORAGE_SOURCE).read_text()
    capsys.readouterr()
    (root / "etc/farbus/agent.toml").write_text(f"{setting} = false\n")
    assert install(root) == 0
    assert f"/{DROP_IN}: removed\n" in capsys.readouterr().out
    assert (files_below(root), (root / DROP_IN).parent.exists()) == (before, False)
    assert install(root, role="scheduler") == 0
    assert files_below(root) == before


RULES = "usr/local/lib/udev/rules.d/12-farbus-storage.rules"


def test_udev_is_told_which_devices_are_users(root: Path) -> None:
    rules = (root / RULES).read_text()
    assert f'ATTRS{{subsysnqn}}=="{SubsystemName(lease="L", epoch=1).nqn.removesuffix("L:1")}*"' in rules
    stripe = Stripe(id="s", members=("/dev/a", "/dev/b"), member_bytes=1 << 20, chunk_bytes=1 << 17)
    assert f'ATTR{{dm/uuid}}=="{stripe.uuid.removesuffix("s")}*"' in rules
    volume, lease = LogicalIdentity(volume="v", part=0, parts=1).name, LogicalIdentity(lease="L").name
    stored = "|".join(f"farbus-{name.replace('-', '--')}*" for name in (volume[:-3], lease[:-1]))
    assert f'ATTR{{dm/name}}=="{stored}"' in rules
    # As device-mapper writes a group's name with a hyphen.
    set_in(root, 'volume_group = "fast-one"')
    install(root)
    assert '=="fast--one-vol--*|fast--one-lease--*"' in (root / RULES).read_text()


def test_encrypted_storage_brings_what_tlshd_needs_and_takes_it_along(root: Path) -> None:
    before = files_below(root)
    drop_in = f"{Path(UNIT).parent}/tlshd.service.d/farbus.conf"
    set_in(root, 'nvmeof_tls = "on"')
    install(root)
    assert files_below(root) - before == {drop_in}
    assert "ExecStartPre=-/sbin/modprobe nvme-keyring" in (root / drop_in).read_text()
    (root / "etc/farbus/agent.toml").write_text('nvmeof_tls = "off"\n')
    install(root)
    assert files_below(root) == before


def test_a_drop_in_that_was_changed_stays(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_in(root, "storage = true")
    install(root)
    (root / DROP_IN).write_text("[Service]\n# mine\n")
    (root / "etc/farbus/agent.toml").write_text("")
    install(root)
    assert f"/{DROP_IN}: kept\n" in capsys.readouterr().out
    assert "# mine" in (root / DROP_IN).read_text()


def test_a_rehearsal_of_storage_changes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_in(root, "storage = true")
    before = files_below(root)
    install(root, "--dry-run")
    assert (files_below(root), f"/{DROP_IN}: made\n" in capsys.readouterr().out) == (before, True)
    install(root)
    (root / "etc/farbus/agent.toml").write_text("")
    install(root, "--dry-run")
    assert DROP_IN in files_below(root)


def test_uninstall_takes_the_drop_in_too(root: Path) -> None:
    set_in(root, "storage = true")
    install(root)
    for role in Role:
        install(root, "--uninstall", "--purge", role=role)
    assert list(root.iterdir()) == []


def test_settings_that_can_not_be_read_are_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "etc/farbus/agent.toml").write_text("storage = maybe\n")
    assert install(root) == 2
    assert "agent.toml: not TOML" in capsys.readouterr().err


def test_dry_run_of_uninstall_changes_nothing(root: Path) -> None:
    before = files_below(root)
    install(root, "--uninstall", "--purge", "--dry-run")
    assert files_below(root) == before


@pytest.mark.parametrize(("text", "told"), [("", True), ('remoting_user = "farbus-remoting"\n', False)])
def test_settings_that_have_root_serve_gpus_are_told(
    root: Path, capsys: pytest.CaptureFixture[str], text: str, told: bool
) -> None:
    """As farbus join writes them, and they are kept."""
    (root / "etc/farbus/agent.toml").write_text(text)
    capsys.readouterr()
    assert install(root) == 0
    assert ("it sets no remoting_user: add remoting_user = " in capsys.readouterr().out) == told


def test_uninstall_leaves_nothing(root: Path) -> None:
    for role in Role:
        install(root, "--uninstall", role=role)
    assert list(root.iterdir()) == []


def test_uninstall_of_one_role_leaves_the_other_whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    alone = tmp_path_factory.mktemp("alone")
    install(alone, role="scheduler")
    install(root, "--uninstall")
    assert files_below(root) == files_below(alone)


def test_uninstall_keeps_changed_settings_and_purge_does_not(root: Path) -> None:
    settings = root / "etc/farbus/agent.toml"
    settings.write_text("# changed\n")
    install(root, "--uninstall")
    assert settings.exists()
    install(root, "--uninstall", "--purge")
    assert not settings.exists()


def test_purge_removes_state_and_certificate_but_no_authority(root: Path) -> None:
    # The second is where the scheduler's settings have it that answers those who join.
    kept = {"etc/farbus/ca/ca.key", "etc/farbus/scheduler/ca/ca.key", "etc/farbus/scheduler/ca/registry.db"}
    for path in (
        "var/lib/farbus/agent/journal.db",
        "var/lib/farbus/agent/tasks/j1/ca.key",
        "etc/farbus/node/node.key",
        "etc/farbus/scheduler/s.key",
        "etc/farbus/scheduler/old/s.key",
        *kept,
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("")
    for role in Role:
        install(root, "--uninstall", "--purge", role=role)
    assert files_below(root) == kept
    assert not (root / "var/lib/farbus").exists()
    assert not (root / "etc/farbus/scheduler/old").exists()


@pytest.mark.parametrize("rehearse", [(), ("--dry-run",)])
def test_purge_says_what_it_removes_and_that_it_keeps_an_authority(
    root: Path, rehearse: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "etc/farbus/scheduler/ca").mkdir(parents=True)
    (root / "etc/farbus/scheduler/ca/ca.key").write_text("")
    install(root, role="scheduler")
    capsys.readouterr()
    install(root, "--uninstall", "--purge", *rehearse, role="scheduler")
    told = capsys.readouterr().out.splitlines()
    assert "/etc/farbus/scheduler: removed" in told
    assert told[-1] == "/etc/farbus/scheduler/ca: kept, since it is an authority"


def test_interrupted_installation_can_be_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from farbus.cli import installation

    write = installation.write_owned

    def full(path: Path, data: bytes, **rest: object) -> None:
        if path.name == "farbus-programs.slice":
            raise OSError(28, "No space left on device")
        write(path, data, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(installation, "write_owned", full)
    assert install(tmp_path) == 6
    monkeypatch.undo()
    install(tmp_path, "--uninstall")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--purge"], 2, "no meaning without --uninstall"),
        (["--command", "bin/farbus"], 2, "not an absolute path"),
        (["--command", "/opt/far bus/farbus"], 2, "not an absolute path"),
    ],
)
def test_bad_input_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    assert application.run(["install", "agent", "--root", str(tmp_path), *arguments]) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_damaged_record_is_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "usr/local/lib/farbus/installed.json").write_text("{")
    assert install(root) == 2
    assert "installed.json: damaged" in capsys.readouterr().err


def test_command_that_is_not_there_is_refused() -> None:
    with pytest.raises(NotFound, match="no such program"):
        check_command("/opt/nowhere/farbus", root="")


def test_command_that_services_cannot_see_is_refused(tmp_path: Path) -> None:
    command = tmp_path / "farbus"
    command.write_text("#!/home/alice/venv/bin/python\n")
    command.chmod(0o755)
    with pytest.raises(InvalidInput, match="services can't look into"):
        check_command(str(command), root="")


def test_manual_page_names_every_command() -> None:
    page = manual_page()
    assert all(f".SS farbus {name}\n" in page for name in application.COMMANDS)


def test_no_line_of_the_manual_page_is_taken_for_a_request() -> None:
    known = (".TH ", ".SH ", ".SS ", ".TP", ".B ")
    assert [
        line for line in manual_page().splitlines() if line.startswith((".", "'")) and not line.startswith(known)
    ] == []
