"""What ``farbus doctor`` says of storage, and which drives ``farbus storage`` takes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from farbus.cli import storage_diagnosis
from farbus.cli.commands import storage
from farbus.cli.findings import Verdict
from farbus.cli.installation import (
    RULES,
    SOURCES,
    STORAGE_DROP_IN,
    STORAGE_RULES,
    STORAGE_SOURCE,
    TLS_DROP_IN,
    TLS_SOURCE,
    UNITS,
    storage_rules,
)
from farbus.cli.node_settings import NodeSettings, node_settings
from farbus.cli.storage_diagnosis import examine_storage
from farbus.errors import Conflict, InvalidInput, NotFound
from farbus.linux.fake_filesystems import FakeFileSystems
from farbus.linux.fake_lvm import FakeLvm, TreeBlockDevices
from farbus.linux.fake_nvme import FakeNvme
from farbus.linux.lvm import local_drives


def told(
    lvm: FakeLvm, *, programs: bool = True, modules: bool = True, root: bool = True, **settings: object
) -> list[tuple[Verdict, str]]:
    found = examine_storage(
        msgspec.convert(settings, NodeSettings), lvm=lvm, has_module=lambda _: modules, is_root=root,
        which=lambda name: name if programs or name == "lvm" else None, root=str(lvm.directory),
    )  # fmt: skip
    return [(finding.verdict, f"{finding.found}; {finding.cure}") for finding in found]


def test_doctor_names_packages_and_modules_that_are_missing(tmp_path: Path) -> None:
    found = told(FakeLvm(tmp_path), programs=False, modules=False, root=False)
    assert [verdict for verdict, _ in found] == [Verdict.NOTE] * 3
    assert "package nvme-cli" in found[0][1]
    assert "kernel module nvme-tcp" in found[0][1]
    assert "kernel module nvmet-tcp" in found[1][1]
    assert "only root" in found[2][1]


def test_doctor_finds_programs_that_an_ordinary_user_has_not_in_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in {**storage_diagnosis.USING, **storage_diagnosis.STORING}:
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(storage_diagnosis, "TOOLS", str(tmp_path))
    found = examine_storage(NodeSettings(), has_module=bool, is_root=False, root=str(tmp_path))
    assert not [finding.found for finding in found if "package" in finding.found]


def test_doctor_asks_for_rdma_where_the_target_is_to_listen_by_it(tmp_path: Path) -> None:
    lvm = FakeLvm(tmp_path)
    assert not any("nvmet-rdma" in line for _, line in told(lvm, modules=False))
    found = told(lvm, modules=False, nvmeof_spare_addresses=["rdma://10.0.0.7"])
    assert [verdict for verdict, line in found if "kernel module nvmet-rdma" in line] == [Verdict.NOTE]


def of_tls(tmp_path: Path, nvme: FakeNvme, *, modules: bool = True) -> list[tuple[Verdict, str, str]]:
    found = examine_storage(
        NodeSettings(nvmeof_tls="on"), lvm=FakeLvm(tmp_path), which=lambda name: name, has_module=lambda _: modules,
        is_root=False, root=str(tmp_path), nvme=nvme, proc=str(nvme.directory / "proc"),
    )  # fmt: skip
    words = ("nvmeof_tls is on", "encrypt")
    return [(one.verdict, one.found, one.cure) for one in found if any(word in one.found for word in words)]


def test_doctor_says_what_tls_lacks_where_it_is_set(tmp_path: Path) -> None:
    assert not any("nvmeof_tls" in line for _, line in told(FakeLvm(tmp_path)))
    ((verdict, words, cure),) = of_tls(tmp_path, FakeNvme(tmp_path))
    assert (verdict, "tlshd may start before there is a keyring" in words) == (Verdict.WARNING, True)
    assert "farbus install agent" in cure
    drop_in = tmp_path / TLS_DROP_IN.lstrip("/")
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text((SOURCES / TLS_SOURCE).read_text())
    ((verdict, _, _),) = of_tls(tmp_path, FakeNvme(tmp_path))
    assert verdict is Verdict.OK
    old = FakeNvme(tmp_path, version="2.3")
    old.tls_keys.stop_daemon()
    found = of_tls(tmp_path, old, modules=False)
    assert [verdict for verdict, _, _ in found] == [Verdict.WARNING] * 3
    assert [words.removeprefix("nvmeof_tls is on, and ") for _, words, _ in found] == [
        "kernel module nvme-keyring, tls", "nvme-cli 2.3 knows no TLS", "tlshd does not run",
    ]  # fmt: skip
    assert all(cure for _, _, cure in found)


def test_doctor_tells_of_the_group_and_of_drives_that_are_missing(tmp_path: Path) -> None:
    lvm = FakeLvm(tmp_path)
    assert "farbus storage init" in told(lvm)[-1][1]
    drives = [lvm.plug(serial, 1 << 30) for serial in ("S1", "S2")]
    for drive in drives:
        asyncio.run(lvm.add_drive(drive))
    assert told(lvm)[-1][0] is Verdict.OK
    assert all(drive in told(lvm)[-1][1] for drive in drives)
    lvm.pull(drives[1])
    assert told(lvm)[-1][0] is Verdict.WARNING
    assert f"drive {drives[1]} is missing; on it: nothing" in told(lvm)[-1][1]


def test_doctor_says_where_settings_and_unit_differ(tmp_path: Path) -> None:
    lvm = FakeLvm(tmp_path)
    unit, drop_in = (tmp_path / path.lstrip("/") for path in (f"{UNITS}/farbus-agent.service", STORAGE_DROP_IN))

    def of_the_unit(**settings: object) -> list[tuple[Verdict, str]]:
        return [each for each in told(lvm, **settings) if "the agent's unit" in each[1]]

    assert of_the_unit(storage=True) == []
    unit.parent.mkdir(parents=True)
    unit.touch()
    assert of_the_unit() == []
    for setting in ("storage", "use_storage"):
        ((verdict, words),) = of_the_unit(**{setting: True})
        assert verdict is Verdict.WARNING
        assert f"agent.toml says {setting} = true" in words
        assert "farbus install agent" in words
    drop_in.parent.mkdir()
    drop_in.write_text((SOURCES / STORAGE_SOURCE).read_text())
    assert of_the_unit(storage=True) == []
    ((verdict, words),) = of_the_unit()
    assert (verdict, "says neither" in words) == (Verdict.NOTE, True)


def test_doctor_says_where_udev_looks_at_what_users_write(tmp_path: Path) -> None:
    lvm = FakeLvm(tmp_path)

    def of_udev(**settings: object) -> list[str]:
        return [words for verdict, words in told(lvm, **settings) if verdict is Verdict.WARNING and "rules" in words]

    assert of_udev() == []
    (words,) = of_udev(use_storage=True)
    assert "there is no 12-farbus-storage.rules" in words
    assert "farbus install agent" in words
    rules = tmp_path / RULES.lstrip("/") / STORAGE_RULES
    rules.parent.mkdir(parents=True)
    rules.write_bytes(storage_rules("farbus"))
    assert of_udev(use_storage=True) == []
    (words,) = of_udev(storage=True, volume_group="fast")
    assert f"{rules} is not what this version puts there for volume group fast" in words
    # The operator's own goes before.
    own = tmp_path / "etc/udev/rules.d" / STORAGE_RULES
    own.parent.mkdir(parents=True)
    own.touch()
    (words,) = of_udev(storage=True)
    assert str(own) in words


def test_settings_are_read_as_far_as_they_concern_storage(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    assert node_settings(str(file)) == NodeSettings()
    file.write_text('scheduler = "control:7411"\nuse_storage = true\nvolume_group = "fast"\n')
    assert node_settings(str(file)) == NodeSettings(use_storage=True, volume_group="fast")
    file.write_text('volume_group = "a b"\n')
    with pytest.raises(InvalidInput, match=r"agent\.toml: volume_group: 'a b' can't name a group"):
        node_settings(str(file))
    file.write_text('storage = "yes"\n')
    with pytest.raises(InvalidInput, match="storage"):
        node_settings(str(file))


class FreeDevices(TreeBlockDevices):
    """Nobody has any."""

    async def prove_free(self, path: str) -> None:
        pass


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLvm:
    lvm, blocks = FakeLvm(tmp_path), FreeDevices(tmp_path)
    monkeypatch.setattr(storage, "KernelLvm", lambda group: FakeLvm(tmp_path, group=group))
    monkeypatch.setattr(storage, "node_settings", lambda: node_settings(str(tmp_path / "agent.toml")))
    monkeypatch.setattr(storage, "KernelBlockDevices", lambda: blocks)
    monkeypatch.setattr(storage, "KernelFileSystems", lambda: FakeFileSystems(tmp_path))
    monkeypatch.setattr(storage, "local_drives", lambda: local_drives(sys=tmp_path / "sys"))
    return lvm


def test_init_says_what_comes_next_where_the_agent_does_not_store(
    machine: FakeLvm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drive = machine.plug("S1", 1 << 30)
    storage.init([drive])
    assert "\nnext: storage = true in /etc/farbus/agent.toml, then farbus install agent" in capsys.readouterr().out
    (tmp_path / "agent.toml").write_text("storage = true\n")
    storage.init([drive])
    assert "next:" not in capsys.readouterr().out


def test_a_name_that_no_group_can_have_is_refused_before_a_drive_is_touched(machine: FakeLvm) -> None:
    drive = machine.plug("S1", 1 << 30)
    with pytest.raises(InvalidInput, match="--group: 'a b' can't name a group"):
        storage.init([drive], group="a b")
    assert asyncio.run(machine.drives()) == ()


def test_a_drive_is_given_and_taken_back(machine: FakeLvm, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drive = machine.plug("S1", 1 << 30)
    link = tmp_path / "by-id"
    link.symlink_to("/dev/nvme0n1")
    for name in ("/dev/nvme0n1", str(link), drive):
        storage.init([name])
        assert f"{drive} (/dev/nvme0n1) is in volume group farbus" in capsys.readouterr().out
    storage.remove([drive])
    assert "no more" in capsys.readouterr().out
    assert asyncio.run(machine.drives()) == ()


def test_the_group_is_that_of_the_settings(
    machine: FakeLvm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drive = machine.plug("S1", 1 << 30)
    (machine.directory / "agent.toml").write_text('volume_group = "fast"\n')
    storage.init([drive])
    storage.list_drives()
    assert f"{drive} (/dev/nvme0n1) is in volume group fast\n" in (printed := capsys.readouterr().out)
    assert drive in printed.splitlines()[-1]
    storage.list_drives(group="other")
    assert "volume group other: no drives" in capsys.readouterr().err
    monkeypatch.setattr(storage_diagnosis, "KernelLvm", lambda group: FakeLvm(machine.directory, group=group))
    settings = node_settings(str(machine.directory / "agent.toml"))
    *_, last = examine_storage(settings, which=str, has_module=bool, is_root=True)
    assert last.found.startswith("volume group fast: 1020 MiB")
    storage.remove([drive])
    assert "is in volume group fast no more" in capsys.readouterr().out


def test_a_drive_that_holds_something_is_refused(machine: FakeLvm) -> None:
    machine.plug("S1", 1 << 30, holds="ext4")
    with pytest.raises(Conflict, match="signature"):
        storage.init(["/dev/nvme0n1"])
    with pytest.raises(NotFound, match="it has NVME-S1-Fake_drive"):
        storage.init(["/dev/sda"])
    assert asyncio.run(machine.drives()) == ()


@pytest.mark.parametrize(
    ("kind", "told"), [("data", "data that no known file system has written"), ("dos", "dos"), ("ext4", "ext4")]
)
def test_a_drive_that_holds_anything_is_refused_before_another_is_touched(
    kind: str, told: str, machine: FakeLvm, tmp_path: Path
) -> None:
    first, second = machine.plug("S1", 1 << 30), machine.plug("S2", 1 << 30)
    FakeFileSystems(tmp_path).put("/dev/nvme1n1", kind)
    with pytest.raises(Conflict, match=f"drive {second}: it holds {told}; nothing was changed"):
        storage.init([first, second])
    assert asyncio.run(machine.drives()) == ()


def test_a_drive_whose_giving_was_cut_off_is_given(machine: FakeLvm, tmp_path: Path) -> None:
    drive = machine.plug("S1", 1 << 30)
    FakeFileSystems(tmp_path).put("/dev/nvme0n1", "LVM2_member")
    storage.init([drive])
    assert [one.id for one in asyncio.run(machine.drives())] == [drive]


def test_a_drive_that_somebody_has_is_refused_before_another_is_touched(
    machine: FakeLvm, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = machine.plug("S1", 1 << 30), machine.plug("S2", 1 << 30)

    async def held(self: object, path: str) -> None:
        if path == "/dev/nvme1n1":
            raise Conflict(f"{path}: in use by md0", hint="lsblk shows what is mounted or stands on it")

    monkeypatch.setattr(FreeDevices, "prove_free", held)
    with pytest.raises(Conflict, match="in use by md0"):
        storage.init([first, second])
    assert asyncio.run(machine.drives()) == ()
