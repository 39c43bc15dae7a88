"""What ``farbus doctor`` reads of a machine, from recorded ones."""

from __future__ import annotations

import itertools
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from farbus.cli import diagnosis
from farbus.cli.diagnosis import _managed_memory, _nvidia_driver, examine, reachable_by_others
from farbus.cli.findings import Verdict
from farbus.cli.node_settings import NodeSettings
from farbus.cli.settings_diagnosis import examine_settings
from farbus.errors import InvalidInput, NotFound
from farbus.linux.diagnosis import FaultServing, KernelFacts, KernelFactsReader, closed_directory
from farbus.model.node import Node, Resources


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that all users may enter; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def interpreter_in(home: Path) -> Path:
    """A private home with an interpreter deep in it."""
    python = home / "versions" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.write_text("")
    home.chmod(0o700)
    return python


def test_an_interpreter_in_a_private_home_is_found_out(place: Path) -> None:
    python = interpreter_in(place / "home")
    finding = reachable_by_others({"farbus": str(place), "interpreter": str(python)})
    assert finding.verdict is Verdict.WARNING
    assert finding.found.startswith(f"they may not enter {place / 'home'}, where the interpreter is ({python}): ")
    assert "/opt/farbus" in finding.cure


def test_so_is_one_that_a_public_environment_links_to(place: Path) -> None:
    python = interpreter_in(place / "home")
    link = place / "python3"
    link.symlink_to(python)
    assert closed_directory(str(link)) == str(place / "home")


def test_what_all_may_enter_is_right(place: Path) -> None:
    python = interpreter_in(place / "home")
    (place / "home").chmod(0o711)  # it can be passed, not listed
    assert reachable_by_others({"interpreter": str(python)}).verdict is Verdict.OK


def test_only_root_is_told_of_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    for user, told in ((0, True), (1000, False)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        checks = {finding.check for finding in itertools.islice(examine(), 2)}
        assert ("other users" in checks) is told


@pytest.fixture
def machine(tmp_path: Path) -> KernelFactsReader:
    """A machine of which nothing was recorded yet; its files go below ``tmp_path``."""
    return KernelFactsReader(root=str(tmp_path))


def record(root: Path, path: str, text: str = "") -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_machine_without_anything_is_described_without_an_error(machine: KernelFactsReader) -> None:
    facts = machine.read()
    assert (facts.cgroup_version, facts.cgroup_writable) == (0, False)
    assert (facts.nvidia_driver, facts.shared_memory_bytes) == ("", 0)
    assert not machine.has_module("nvme-tcp")


@pytest.mark.parametrize(("file", "version"), [("cgroup.controllers", 2), ("memory/tasks", 1)])
def test_the_two_versions_of_cgroups_are_told_apart(
    machine: KernelFactsReader, tmp_path: Path, file: str, version: int
) -> None:
    record(tmp_path, f"/sys/fs/cgroup/{file}")
    assert machine.read().cgroup_version == version


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:09:35 UTC 2025\n", "580.65.06"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build\n", "575.57.08"),
        ("something else\n", "unknown"),
    ],
)
def test_the_drivers_version_is_read(machine: KernelFactsReader, tmp_path: Path, line: str, version: str) -> None:
    record(tmp_path, "/proc/driver/nvidia/version", line + "GCC version:  gcc version 12.2.0\n")
    assert machine.read().nvidia_driver == version


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/sys/module/nvme_tcp/version", ""),
        (f"/lib/modules/{os.uname().release}/modules.builtin", "kernel/drivers/nvme/host/nvme-tcp.ko\n"),
        (
            f"/lib/modules/{os.uname().release}/modules.dep",
            "kernel/drivers/nvme/host/nvme-tcp.ko.xz: kernel/drivers/nvme/host/nvme-fabrics.ko.xz\n",
        ),
    ],
)
def test_a_module_is_found_loaded_built_in_or_to_be_loaded(
    machine: KernelFactsReader, tmp_path: Path, path: str, text: str
) -> None:
    record(tmp_path, path, text)
    assert machine.has_module("nvme-tcp")
    assert not machine.has_module("nvme-fabrics")


def test_shared_memory_that_may_not_be_written_is_not_told_to_be_full(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = KernelFactsReader().read()
    for free, told in ((0, "none in /dev/shm that this user may write"), (2**20, "1 MiB in /dev/shm")):
        there = msgspec.structs.replace(facts, shared_memory_bytes=free)
        monkeypatch.setattr(KernelFactsReader, "read", lambda _, there=there: there)
        (found,) = [finding for finding in examine() if finding.check == "shared memory"]
        assert (found.verdict, found.found.partition(":")[0]) == (Verdict.WARNING, told)


def test_everything_that_is_not_well_has_a_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    findings = list(examine())
    assert all(finding.cure for finding in findings if finding.verdict is not Verdict.OK)
    assert next(finding for finding in findings if finding.check == "cluster").verdict is Verdict.NOTE


def test_the_agent_s_settings_may_lie_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('remoting_tls = "off"\n')
    (finding,) = (finding for finding in examine(config=str(file)) if finding.check == "encryption")
    assert finding.found.startswith("remoting_tls is off")


def test_the_agent_s_settings_are_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read: list[str] = []

    def settings() -> NodeSettings:
        read.append("once")
        return NodeSettings(remoting_tls="off")

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(diagnosis, "node_settings", settings)
    assert any(finding.found.startswith("remoting_tls is off") for finding in examine())
    assert read == ["once"]


def test_settings_that_can_t_be_read_are_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What any node may need is looked for all the same."""

    def settings() -> NodeSettings:
        raise InvalidInput("agent.toml: line 3", hint="correct it")

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(diagnosis, "node_settings", settings)
    findings = list(examine())
    assert [finding.cure for finding in findings if "agent.toml" in finding.found] == ["correct it"]
    checks = {finding.check for finding in findings}
    assert {"settings", "storage"} <= checks
    assert not checks & {"encryption", "rdma", "fabric"}


def told_by(name: str, remoting_tls: str) -> Node:
    return Node(
        name=name, address="", boot_id="", agent_version="", capacity=Resources(cpu_milli=1, memory_bytes=1),
        remoting_tls=remoting_tls,
    )  # fmt: skip


@pytest.mark.parametrize("settings", [(), ("on",), ("on", "on", ""), ("off", "off")])
def test_nodes_that_encrypt_alike_are_not_named(settings: tuple[str, ...]) -> None:
    assert not list(diagnosis.encrypted_alike(told_by(f"n{number}", each) for number, each in enumerate(settings)))


def test_nodes_that_differ_in_encryption_are_named() -> None:
    nodes = [told_by("gamma", "off"), told_by("beta", "on"), told_by("old", ""), told_by("alpha", "on")]
    (finding,) = diagnosis.encrypted_alike(nodes)
    assert finding.verdict is Verdict.WARNING
    assert finding.found.startswith("remoting_tls is off at gamma, and on at alpha, beta: ")
    assert "agent.toml of all nodes" in finding.cure


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpu_shares = 3", "gpu_shares: expected a table, got an integer"),
        ('remoting_grace = "1"', "remoting_grace: unknown field"),
        ('address = "10.0.0.7:7412"', "address: '10.0.0.7:7412' is neither an IP address nor a DNS name"),
        ('[labels]\nscheduler = "a:1"', "scheduler stands in the table [labels]"),
    ],
)
def test_settings_that_no_agent_starts_with_are_broken(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    (finding,) = (finding for finding in examine(config=str(file)) if finding.check == "settings")
    assert (finding.verdict, finding.found) == (Verdict.BROKEN, f"{file}: {told}")
    assert finding.cure


def test_a_state_that_holds_other_things_is_broken(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f'state = "{tmp_path}"\n')
    (finding,) = (finding for finding in examine(config=str(file)) if finding.check == "settings")
    told = f"{file}: {tmp_path} can't be the directory of an agent's state: it holds other things, "
    assert finding.verdict is Verdict.BROKEN
    assert finding.found.startswith(told)
    assert finding.cure == "name one that is empty or not there"


def test_settings_that_leave_something_to_options_are_right(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('remoting_tls = "off"\nmetrics_listen = "off"\ncredentials = "/nowhere"\n')
    (finding,) = (finding for finding in examine(config=str(file)) if finding.check == "settings")
    assert (finding.verdict, finding.found) == (Verdict.OK, str(file))


@pytest.mark.parametrize(("softgpu", "warned"), [("count=2,mem=1GiB", False), ("count=2,mem=lots", True)])
def test_software_gpus_that_an_agent_would_not_have_are_told(tmp_path: Path, softgpu: str, warned: bool) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f'softgpu = "{softgpu}"\n')
    findings = [finding for finding in examine(config=str(file)) if finding.check == "software gpus"]
    assert [finding.verdict for finding in findings] == [Verdict.WARNING] * warned
    assert all(f"{file}: softgpu: mem=lots is not a value" in finding.found for finding in findings)


@pytest.mark.parametrize(
    ("text", "as_root", "told"),
    [
        ("", True, (Verdict.WARNING, "sets no remoting_user")),
        ("", False, None),
        ('remoting_user = "root"\n', True, None),
        ('remoting_user = "nobody-of-that-name"\n', False, (Verdict.BROKEN, "nobody-of-that-name")),
    ],
)
def test_who_serves_gpus_to_others_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, as_root: bool, told: tuple[Verdict, str] | None
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    monkeypatch.setattr(os, "geteuid", lambda: 0 if as_root else 1000)
    findings = [finding for finding in examine_settings(str(file)) if finding.check == "remoting user"]
    assert [finding.verdict for finding in findings] == ([told[0]] if told else [])
    assert all(told and told[1] in finding.found and finding.cure for finding in findings)


def test_settings_that_were_named_and_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=re.escape(str(tmp_path / "none.toml"))):
        list(examine(config=str(tmp_path / "none.toml")))


def test_a_socket_that_was_named_and_is_not_there_is_broken(tmp_path: Path) -> None:
    findings = list(examine(socket=str(tmp_path / "none.sock")))
    assert findings[-1].verdict is Verdict.BROKEN
    assert "no agent listens there" in findings[-1].found


SYSCTL = "/proc/sys/vm/unprivileged_userfaultfd"
STATUS = "/proc/self/status"


@pytest.mark.parametrize(
    ("files", "serving", "by"),
    [
        ({}, FaultServing.NOT_THERE, ""),
        ({STATUS: "CapEff:\t0000000000080000\n"}, FaultServing.NOT_THERE, ""),
        ({SYSCTL: "0\n", STATUS: "CapEff:\t0000000000080000\n"}, FaultServing.SERVED, "CAP_SYS_PTRACE"),
        ({SYSCTL: "0\n", STATUS: "CapEff:\t000001ffff07ffff\n"}, FaultServing.NOT_PERMITTED, ""),
        ({SYSCTL: "1\n"}, FaultServing.SERVED, "vm.unprivileged_userfaultfd=1"),
        ({SYSCTL: "0\n", "/dev/userfaultfd": ""}, FaultServing.SERVED, "/dev/userfaultfd"),
    ],
)
def test_who_may_serve_page_faults_is_told(
    machine: KernelFactsReader, tmp_path: Path, files: dict[str, str], serving: FaultServing, by: str
) -> None:
    for path, text in files.items():
        record(tmp_path, path, text)
    facts = machine.read()
    assert (facts.faults, facts.faults_by) == (serving, by)


@pytest.mark.parametrize(
    ("version", "verdict", "cure"),
    [
        ("", Verdict.NOTE, "software GPUs need none"),
        ("535.183.01", Verdict.WARNING, "install branch 550 (CUDA 12.4) or newer"),
        ("550.54.14", Verdict.OK, ""),
        ("580.159.04", Verdict.OK, ""),
        ("unknown", Verdict.OK, ""),
    ],
)
def test_a_driver_that_is_too_old_to_serve_programs_of_other_nodes_is_told(
    version: str, verdict: Verdict, cure: str
) -> None:
    finding = _nvidia_driver(version)
    assert (finding.check, finding.verdict, finding.cure) == ("nvidia driver", verdict, cure)


@pytest.mark.parametrize(
    ("serving", "verdict", "mode", "cure"),
    [
        (FaultServing.SERVED, Verdict.OK, "paging", ""),
        (FaultServing.NOT_PERMITTED, Verdict.NOTE, "copies", "vm.unprivileged_userfaultfd=1"),
        (FaultServing.NOT_THERE, Verdict.NOTE, "copies", "CONFIG_USERFAULTFD"),
    ],
)
def test_how_managed_memory_will_come_is_told_with_its_cure(
    serving: FaultServing, verdict: Verdict, mode: str, cure: str
) -> None:
    finding = _managed_memory(
        KernelFacts(
            release="6.1", cgroup_version=2, cgroup_writable=True, nvidia_driver="", shared_memory_bytes=0,
            faults=serving, faults_by="",
        )
    )  # fmt: skip
    assert (finding.check, finding.verdict) == ("managed memory", verdict)
    assert finding.found.startswith(mode)
    assert cure in finding.cure
