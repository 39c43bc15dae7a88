"""The door to what the kernel says of the node as a whole: processors, memory, pressure, links, boot."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from farbus.errors import Unavailable
from farbus.linux.links import LinkTable, NetworkLink

PRESSURE_RESOURCES = ("cpu", "memory", "io")

CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""The columns of the first line of /proc/stat (proc(5)); guest and guest_nice, which follow, are in user and nice."""

PROC_FILE_BYTES = 8192
"""More than is needed of any file below: /proc/meminfo has 1,500, and of /proc/stat the first line is read."""


class ProcessUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has used: processor seconds since it started, bytes and descriptors now."""

    cpu_s: float
    resident_bytes: int
    open_files: int


class NodeFacts(Protocol):
    """What the node is and how busy it is."""

    def boot_id(self) -> str:
        """Return the kernel's random identity of this boot."""
        ...

    def cpu_count(self) -> int:
        """Return how many processors this process may run on."""
        ...

    def memory_bytes(self) -> int:
        """Return how much memory programs can have."""
        ...

    def cpu_times(self) -> Mapping[str, float]:
        """Return processor seconds since boot over all processors, by what they were spent on (proc(5), /proc/stat)."""
        ...

    def load1(self) -> float:
        """Return how many processes ran or waited to run, averaged over a minute."""
        ...

    def pressure(self) -> Mapping[tuple[str, str], float]:
        """Return seconds since boot in which some ("waiting") or all ("stalled") tasks waited for a resource.

        Keys are (resource, kind); empty where the kernel has no pressure stall
        information (Documentation/accounting/psi.rst).
        """
        ...

    def own_use(self) -> ProcessUse:
        """Return what this process uses."""
        ...

    def memory_used_bytes(self) -> int:
        """Return the memory that could not be given to a program now."""
        ...

    def links(self) -> tuple[NetworkLink, ...]:
        """Return the links that lead out of the node: no loopback, no virtual bridges."""
        ...

    def link_speed(self, addresses: Iterable[str]) -> int:
        """Return the speed in Mbit/s of the link that has one of the IP ``addresses``; 0 where nobody knows it."""
        ...


class _ProcFile:
    """A file of the kernel's that is looked at again and again: to open it takes longer than to read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def read(self) -> str:
        """Return its beginning; raise OSError where it can't be read."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(self._descriptor, PROC_FILE_BYTES, 0).decode("ascii", "replace")
        except OSError:
            # A file of a mount that has gone (lxcfs in containers): the next look finds the one that is there then.
            self.close()
            raise

    def close(self) -> None:
        """Let go of it until it is read again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


class KernelNodeFacts:
    """Facts from /proc, /sys and netlink.

    What is asked for again and again (``cpu_times``, ``memory_used_bytes``,
    ``pressure``) is asked for by one thread at a time.
    """

    def __init__(self, *, proc: str = "/proc") -> None:
        self._proc = Path(proc)
        self._stat = _ProcFile(self._proc / "stat")
        self._meminfo = _ProcFile(self._proc / "meminfo")
        self._pressure = {resource: _ProcFile(self._proc / "pressure" / resource) for resource in PRESSURE_RESOURCES}
        # One for each thread that asks: the kernel may keep one of them waiting.
        self._links = threading.local()

    def boot_id(self) -> str:
        """Read /proc/sys/kernel/random/boot_id (random(4))."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError as error:
            raise Unavailable(f"read the boot id: {error.strerror}", hint="is /proc mounted?") from error

    def cpu_count(self) -> int:
        """Count the processors of this process's affinity mask."""
        return len(os.sched_getaffinity(0))

    def memory_bytes(self) -> int:
        """Return the pages of memory there are: MemTotal of /proc/meminfo."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def cpu_times(self) -> Mapping[str, float]:
        """Return the fields of /proc/stat's first line."""
        name, *ticks = self._stat.read().partition("\n")[0].split()
        if name != "cpu":
            raise Unavailable(f"{self._proc}/stat: its first line is not of all processors")
        a_second = os.sysconf("SC_CLK_TCK")
        # A kernel that is older has fewer columns.
        return {mode: int(spent) / a_second for mode, spent in zip(CPU_MODES, ticks, strict=False)}

    def load1(self) -> float:
        """Return the first of getloadavg(3)."""
        return os.getloadavg()[0]

    def pressure(self) -> Mapping[tuple[str, str], float]:
        """Read /proc/pressure."""
        found = {}
        for resource in PRESSURE_RESOURCES:
            try:
                lines = self._pressure[resource].read().splitlines()
            except OSError:
                # Not built in, or switched off (psi=0): reading then fails with EOPNOTSUPP.
                continue
            for line in lines:
                words = line.split()
                total = words[-1].removeprefix("total=") if words else ""
                kind = {"some": "waiting", "full": "stalled"}.get(words[0]) if words else None
                if kind is not None and total.isdigit():
                    found[resource, kind] = int(total) / 1e6
        return found

    def own_use(self) -> ProcessUse:
        """Ask for this process's times, /proc/self/statm and /proc/self/fd."""
        times = os.times()
        resident = int((self._proc / "self/statm").read_text(encoding="ascii").split()[1])
        return ProcessUse(
            cpu_s=times.user + times.system,
            resident_bytes=resident * os.sysconf("SC_PAGE_SIZE"),
            open_files=len(os.listdir(self._proc / "self/fd")),
        )

    def memory_used_bytes(self) -> int:
        """Return MemTotal - MemAvailable."""
        text = self._meminfo.read()
        return _kibibytes(text, "MemTotal:") - _kibibytes(text, "MemAvailable:")

    def links(self) -> tuple[NetworkLink, ...]:
        """Ask the kernel by netlink."""
        return self._link_table().read()

    def link_speed(self, addresses: Iterable[str]) -> int:
        """Ask the kernel by netlink which link it is, and for its speed by sysfs."""
        return self._link_table().speed_of(addresses)

    def _link_table(self) -> LinkTable:
        table: LinkTable | None = getattr(self._links, "table", None)
        if table is None:
            table = self._links.table = LinkTable()
        return table


def _kibibytes(text: str, name: str) -> int:
    """Return a line of /proc/meminfo (proc(5)) in bytes."""
    _, found, rest = text.partition(name)
    if not found:
        raise Unavailable(f"/proc/meminfo: there is no {name.rstrip(':')}")
    return int(rest.split(maxsplit=1)[0]) * 1024


class FakeNodeFacts:
    """Facts that a test sets."""

    def __init__(self) -> None:
        self.boot = "8093f254-0000-4000-8000-000000000001"
        self.cpus = 4
        self.memory = 8 * 2**30
        self.times: dict[str, float] = {"user": 0.0, "idle": 0.0}
        self.load = 0.0
        self.pressures: dict[tuple[str, str], float] = {("cpu", "waiting"): 0.0}
        self.own = ProcessUse(cpu_s=0.0, resident_bytes=2**20, open_files=3)
        self.used = 2**30
        self.link_list: tuple[NetworkLink, ...] = ()
        self.speeds: dict[str, int] = {}
        """Speeds of links in Mbit/s, by their addresses."""

    def boot_id(self) -> str:
        """Return the set boot id."""
        return self.boot

    def cpu_count(self) -> int:
        """Return the set count."""
        return self.cpus

    def memory_bytes(self) -> int:
        """Return the set size."""
        return self.memory

    def cpu_times(self) -> Mapping[str, float]:
        """Return the set times."""
        return dict(self.times)

    def load1(self) -> float:
        """Return the set load."""
        return self.load

    def pressure(self) -> Mapping[tuple[str, str], float]:
        """Return the set pressures."""
        return dict(self.pressures)

    def own_use(self) -> ProcessUse:
        """Return the set use."""
        return self.own

    def memory_used_bytes(self) -> int:
        """Return the set use."""
        return self.used

    def links(self) -> tuple[NetworkLink, ...]:
        """Return the set links."""
        return self.link_list

    def link_speed(self, addresses: Iterable[str]) -> int:
        """Return the set speed of the first that has one."""
        return next((self.speeds[address] for address in addresses if address in self.speeds), 0)
