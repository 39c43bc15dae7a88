"""What ``farbus doctor`` reads of a machine, from recorded ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farbus.cli.diagnosis import examine
from farbus.cli.findings import Verdict
from farbus.linux.diagnosis import KernelFactsReader


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


def test_everything_that_is_not_well_has_a_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    findings = list(examine())
    assert all(finding.cure for finding in findings if finding.verdict is not Verdict.OK)
    assert next(finding for finding in findings if finding.check == "cluster").verdict is Verdict.NOTE


def test_a_socket_that_was_named_and_is_not_there_is_broken(tmp_path: Path) -> None:
    findings = list(examine(socket=str(tmp_path / "none.sock")))
    assert findings[-1].verdict is Verdict.BROKEN
    assert "no agent listens there" in findings[-1].found
