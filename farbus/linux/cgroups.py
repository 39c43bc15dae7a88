"""The cgroup door: one control group per task, where this process may make them.

Version 2 only (Documentation/admin-guide/cgroup-v2.rst), and only below a
group that is ours: one that the service manager has delegated (it says so in
the extended attribute ``trusted.delegate`` or ``user.delegate``), or the root
of a container.  Elsewhere :attr:`Cgroups.trouble` says why there are none,
and limits are kept by other means.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from farbus.errors import Conflict, NotFound, Unavailable
from farbus.model.nvmeof import IoLimit

DEFAULT_WEIGHT_CPU_MILLI = 1000
"""Processor share that gets the default weight of 100."""

_CONTROLLERS = frozenset({"memory", "cpu", "io"})
"""What is asked for, where it is there."""

_IO_KEYS = {
    "rbps": "read_bytes_s",
    "wbps": "write_bytes_s",
    "riops": "read_iops",
    "wiops": "write_iops",
}
"""Words of io.max, and what they limit (Documentation/admin-guide/cgroup-v2.rst, "IO Interface Files")."""


class Cgroups(Protocol):
    """Control groups of this agent."""

    @property
    def trouble(self) -> str:
        """Why there are no groups; empty when there are."""
        ...

    @property
    def controllers(self) -> frozenset[str]:
        """What groups can limit: of ``memory``, ``cpu``, ``io``."""
        ...

    def create(self, name: str, *, memory_bytes: int, cpu_milli: int) -> str:
        """Make a group and return its directory; an empty string where there are none.

        ``memory_bytes`` is a limit (0 for none), ``cpu_milli`` a share by weight.
        """
        ...

    def limit_io(self, name: str, device: str, limit: IoLimit) -> None:
        """Let a group's programs do no more than this with a block device, by its ``MAJOR:MINOR``.

        What is 0 is not limited.  Raises :class:`Unavailable` where groups can't limit it, :class:`NotFound` where
        there is no such group.
        """
        ...

    def io_limit(self, name: str, device: str) -> IoLimit:
        """Return what a group may do with a block device; all 0 where nothing limits it."""
        ...

    def remove(self, name: str) -> None:
        """Kill what is in a group and remove it; nothing happens when there is no such group.

        Raises :class:`Conflict` while a killed process has not ended yet.
        """
        ...

    def out_of_memory(self, name: str) -> bool:
        """Say whether the kernel has killed in this group for its memory limit."""
        ...

    def list(self) -> Sequence[str]:
        """Return the names of the groups there are."""
        ...

    def close(self) -> None:
        """Remove the agent's own group, when nothing is in it."""
        ...


class KernelCgroups:
    """Groups named ``farbus-AGENT`` / ``NAME`` below the agent's own."""

    def __init__(self, *, agent: str, mounts: str = "/proc/self/mounts", membership: str = "/proc/self/cgroup") -> None:
        self._trouble = ""
        self._controllers: frozenset[str] = frozenset()
        self._base = Path("/nonexistent")
        try:
            root, path = _own_group(Path(mounts), Path(membership))
            own = root / path
            delegated = _delegated(own)
            # "/" is the root of the hierarchy, or of a container's namespace.
            if not delegated and not (path == "" and os.access(own, os.W_OK)):
                raise Unavailable(f"{own} is not delegated to this process", hint="set Delegate=yes in its unit")
            self._base = own / f"farbus-{agent}"
            self._controllers = _enable(own, may_move=delegated)
        except Unavailable as error:
            self._trouble = str(error)
        except OSError as error:
            self._trouble = f"{error.filename}: {error.strerror}"

    @property
    def trouble(self) -> str:
        """Why there are no groups."""
        return self._trouble

    @property
    def controllers(self) -> frozenset[str]:
        """Controllers that work in the groups."""
        return self._controllers

    def create(self, name: str, *, memory_bytes: int, cpu_milli: int) -> str:
        """Make a group with its limits."""
        if self._trouble:
            return ""
        group = self._base / name
        try:
            if not self._base.is_dir():
                self._base.mkdir(exist_ok=True)
                for controller in self._controllers:
                    _write(self._base / "cgroup.subtree_control", f"+{controller}")
            group.mkdir(exist_ok=True)
            if "memory" in self._controllers and memory_bytes:
                _write(group / "memory.max", str(memory_bytes))
                # Killing one process of many would leave a program that half works.
                _write(group / "memory.oom.group", "1")
            if "cpu" in self._controllers and cpu_milli:
                weight = min(10_000, max(1, cpu_milli * 100 // DEFAULT_WEIGHT_CPU_MILLI))
                _write(group / "cpu.weight", str(weight))
        except OSError as error:
            raise Unavailable(f"make cgroup {group}: {error.strerror}") from error
        return str(group)

    def limit_io(self, name: str, device: str, limit: IoLimit) -> None:
        """Write io.max."""
        if self._trouble:
            raise Unavailable(f"limit of device {device}: {self._trouble}")
        words = [f"{key}={getattr(limit, field) or 'max'}" for key, field in _IO_KEYS.items()]
        try:
            _write(self._base / name / "io.max", " ".join([device, *words]))
        except FileNotFoundError as error:
            if not (self._base / name).is_dir():
                raise NotFound(f"cgroup {name}: there is none") from error
            raise Unavailable(
                f"limit of device {device}: cgroup {name} has no io.max", hint="the io controller is not enabled"
            ) from error
        except OSError as error:
            raise Unavailable(f"limit of device {device} for cgroup {name}: {error.strerror}") from error

    def io_limit(self, name: str, device: str) -> IoLimit:
        """Read io.max."""
        with contextlib.suppress(OSError):
            for line in (self._base / name / "io.max").read_text(encoding="ascii").splitlines():
                number, *words = line.split()
                if number == device:
                    told = dict(word.split("=", 1) for word in words)
                    return IoLimit(
                        **{field: int(told[key]) for key, field in _IO_KEYS.items() if told.get(key, "max") != "max"}
                    )
        return IoLimit()

    def remove(self, name: str) -> None:
        """Kill and remove a group."""
        group = self._base / name
        if self._trouble or not group.is_dir():
            return
        try:
            _write(group / "cgroup.kill", "1")
        except FileNotFoundError:
            # Before Linux 5.14; the task's guard has killed all that it could see.
            pass
        except OSError as error:
            raise Unavailable(f"kill cgroup {group}: {error.strerror}") from error
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            raise Conflict(f"remove cgroup {group}: {error.strerror}", hint="is a process of it in state D?") from error
        # With the last task goes the agent's own: it may be killed before it can clean up.
        self.close()

    def out_of_memory(self, name: str) -> bool:
        """Read memory.events."""
        with contextlib.suppress(OSError):
            events = (self._base / name / "memory.events").read_text(encoding="ascii").splitlines()
            return any(line.startswith("oom_kill ") and not line.endswith(" 0") for line in events)
        return False

    def list(self) -> Sequence[str]:
        """List the groups."""
        if self._trouble:
            return ()
        with contextlib.suppress(FileNotFoundError):
            return sorted(entry.name for entry in self._base.iterdir() if entry.is_dir())
        return ()

    def close(self) -> None:
        """Remove the agent's own group, when it is empty."""
        with contextlib.suppress(OSError):
            self._base.rmdir()


def _own_group(mounts: Path, membership: Path) -> tuple[Path, str]:
    """Return where the hierarchy is mounted, and this process's group in it."""
    root = ""
    for line in mounts.read_text(encoding="utf-8").splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            root = where
            break
    if not root:
        raise Unavailable("cgroup version 2 is not mounted")
    for line in membership.read_text(encoding="utf-8").splitlines():
        hierarchy, _, path = line.split(":", 2)
        if hierarchy == "0":
            return Path(root), path.lstrip("/")
    raise Unavailable("this process is in no cgroup of version 2")


def _delegated(group: Path) -> bool:
    for attribute in ("trusted.delegate", "user.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(group, attribute) == b"1":
                return os.access(group, os.W_OK)
    return False


def _enable(own: Path, *, may_move: bool) -> frozenset[str]:
    """Turn on the controllers for groups below ``own``; return those that work."""
    available = set((own / "cgroup.controllers").read_text(encoding="ascii").split()) & _CONTROLLERS
    if available and may_move:
        # A group with controllers for its children holds no processes itself (the "no
        # internal process" rule), so the agent's unit moves into a leaf of its own.
        leaf = own / "farbus-agent"
        leaf.mkdir(exist_ok=True)
        for pid in (own / "cgroup.procs").read_text(encoding="ascii").split():
            with contextlib.suppress(ProcessLookupError):
                _write(leaf / "cgroup.procs", pid)
    enabled = set()
    for controller in sorted(available):
        with contextlib.suppress(OSError):
            _write(own / "cgroup.subtree_control", f"+{controller}")
            enabled.add(controller)
    return frozenset(enabled)


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(text)


class FakeCgroups:
    """Groups in memory.  ``busy`` groups can't be removed; ``killed`` ones ran out of memory."""

    def __init__(self, *, controllers: frozenset[str] = frozenset({"memory", "cpu"}), trouble: str = "") -> None:
        self.trouble = trouble
        self.controllers = frozenset() if trouble else controllers
        self.groups: dict[str, tuple[int, int]] = {}
        self.io_limits: dict[tuple[str, str], IoLimit] = {}
        self.busy: set[str] = set()
        self.killed: set[str] = set()

    def create(self, name: str, *, memory_bytes: int, cpu_milli: int) -> str:
        """Make a group."""
        if self.trouble:
            return ""
        self.groups[name] = (memory_bytes, cpu_milli)
        return f"/fake/{name}"

    def limit_io(self, name: str, device: str, limit: IoLimit) -> None:
        """Keep a limit."""
        if name not in self.groups:
            raise NotFound(f"cgroup {name}: there is none")
        self.io_limits[name, device] = limit

    def io_limit(self, name: str, device: str) -> IoLimit:
        """Return a limit."""
        return self.io_limits.get((name, device), IoLimit())

    def remove(self, name: str) -> None:
        """Remove a group."""
        if name in self.busy:
            raise Conflict(f"remove cgroup /fake/{name}: Device or resource busy")
        self.groups.pop(name, None)

    def out_of_memory(self, name: str) -> bool:
        """Say whether it is among the killed."""
        return name in self.killed

    def list(self) -> Sequence[str]:
        """List the groups."""
        return sorted(self.groups)

    def close(self) -> None:
        """There is nothing to remove."""
