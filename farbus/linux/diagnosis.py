"""What ``farbus doctor`` wants to know of this machine: facts, without judgement."""

from __future__ import annotations

import enum
import os
import stat
from pathlib import Path

from farbus.model.value import Value

CAP_SYS_PTRACE = 19
"""linux/capability.h"""


class FaultServing(enum.StrEnum):
    """May a program of this user serve its own page faults (userfaultfd(2)), those of system calls among them?"""

    SERVED = "served"
    NOT_PERMITTED = "not permitted"
    NOT_THERE = "not there"
    """The kernel is built without it."""


def closed_directory(path: str) -> str | None:
    """Return the first directory on the way to ``path`` that other users may not pass, None where there is none.

    Looks along the path as it is written and along what it really is, as of a virtual environment's interpreter.
    Access control lists are not read: who has entries there knows what he did.
    """
    for way in (os.path.abspath(path), os.path.realpath(path)):
        for directory in (*reversed(Path(way).parents), Path(way)):
            try:
                mode = directory.stat().st_mode
            except OSError:
                return None
            if stat.S_ISDIR(mode) and not mode & stat.S_IXOTH:
                return str(directory)
    return None


class KernelFacts(Value, frozen=True, kw_only=True):
    """What the kernel offers."""

    release: str
    cgroup_version: int
    """2 where /sys/fs/cgroup is the unified hierarchy, 1 for the old one, 0 for none."""
    cgroup_writable: bool
    nvidia_driver: str
    """Version of NVIDIA's driver, empty for none."""
    shared_memory_bytes: int
    """Free space of /dev/shm; 0 where it can't be written."""
    faults: FaultServing
    faults_by: str
    """What permits that: a capability, a sysctl or a file; empty where nothing does."""


class KernelFactsReader:
    """Reads :class:`KernelFacts`.  ``root`` is prepended to every path, for recorded machines."""

    def __init__(self, *, root: str = "") -> None:
        self._root = root

    def _path(self, path: str) -> Path:
        return Path(self._root + path)

    def read(self) -> KernelFacts:
        """Return the facts; what can't be read counts as not there."""
        faults, faults_by = self._faults()
        return KernelFacts(
            release=os.uname().release,
            cgroup_version=self._cgroup_version(),
            cgroup_writable=os.access(self._path("/sys/fs/cgroup/cgroup.procs"), os.W_OK),
            nvidia_driver=self._nvidia_driver(),
            shared_memory_bytes=self._shared_memory(),
            faults=faults,
            faults_by=faults_by,
        )

    def has_module(self, name: str) -> bool:
        """Say whether the kernel has a module: loaded, built in, or to be loaded."""
        name = name.replace("-", "_")
        if self._path(f"/sys/module/{name}").exists():
            return True
        base = self._path(f"/lib/modules/{os.uname().release}")
        for table in ("modules.builtin", "modules.dep"):
            try:
                with open(base / table, encoding="utf-8", errors="replace") as file:
                    # Lines begin with the module's path; file names mix '-' and '_' as they please.
                    for line in file:
                        path = line.partition(":")[0].strip()
                        if Path(path).name.partition(".ko")[0].replace("-", "_") == name:
                            return True
            except OSError:
                continue
        return False

    def _cgroup_version(self) -> int:
        base = self._path("/sys/fs/cgroup")
        if (base / "cgroup.controllers").exists():
            return 2
        return 1 if base.is_dir() and any(base.iterdir()) else 0

    def _nvidia_driver(self) -> str:
        try:
            text = self._path("/proc/driver/nvidia/version").read_text()
        except OSError:
            return ""
        words = text.partition("\n")[0].split()
        # Its first line names the module, and then the version, before the date of the build.
        return next((word for word in words if word[0].isdigit() and "." in word), "unknown")

    def _shared_memory(self) -> int:
        try:
            facts = os.statvfs(self._path("/dev/shm"))  # noqa: S108
        except OSError:
            return 0
        if not os.access(self._path("/dev/shm"), os.W_OK):  # noqa: S108
            return 0
        return facts.f_bavail * facts.f_frsize

    def _faults(self) -> tuple[FaultServing, str]:
        # Documentation/admin-guide/mm/userfaultfd.rst: the system call wants the capability or the sysctl.
        allowed = self._path("/proc/sys/vm/unprivileged_userfaultfd")
        device = self._path("/dev/userfaultfd")
        if self._has_capability(CAP_SYS_PTRACE):
            # The sysctl is there where the kernel has the system call, since Linux 5.2.
            by = "CAP_SYS_PTRACE" if allowed.exists() else ""
        elif self._text(allowed).strip() == "1":
            by = "vm.unprivileged_userfaultfd=1"
        elif os.access(device, os.R_OK | os.W_OK):
            by = "/dev/userfaultfd"
        else:
            by = ""
        if by:
            return FaultServing.SERVED, by
        there = allowed.exists() or device.exists()
        return FaultServing.NOT_PERMITTED if there else FaultServing.NOT_THERE, ""

    def _has_capability(self, number: int) -> bool:
        for line in self._text(self._path("/proc/self/status")).splitlines():
            name, _, value = line.partition(":")
            if name == "CapEff":
                return bool(int(value, 16) >> number & 1)
        return False

    def _text(self, path: Path) -> str:
        try:
            return path.read_text()
        except OSError:
            return ""
