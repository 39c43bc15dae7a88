"""The door to what the kernel says of the node as a whole: processors, memory, load, boot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import msgspec
import psutil

from farbus.errors import Unavailable


class NetworkLink(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface: speed in Mbit/s (0 when unknown), counters in bytes since it came up."""

    name: str
    up: bool
    speed_mbit: int
    receive_bytes: int
    send_bytes: int


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

    def cpu_seconds(self) -> tuple[float, float]:
        """Return processor seconds since boot over all processors: (busy, all)."""
        ...

    def memory_used_bytes(self) -> int:
        """Return the memory that could not be given to a program now."""
        ...

    def links(self) -> tuple[NetworkLink, ...]:
        """Return the links that lead out of the node: no loopback, no virtual bridges."""
        ...


class KernelNodeFacts:
    """Facts from /proc and /sys through psutil."""

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
        """Return MemTotal of /proc/meminfo."""
        return int(psutil.virtual_memory().total)

    def cpu_seconds(self) -> tuple[float, float]:
        """Sum the fields of /proc/stat; waiting for I/O counts as idle."""
        times = psutil.cpu_times()
        # guest and guest_nice are already in user and nice (proc(5)).
        fields = {**times._asdict(), "guest": 0.0, "guest_nice": 0.0}
        every = sum(fields.values())
        return every - fields["idle"] - fields.get("iowait", 0.0), every

    def memory_used_bytes(self) -> int:
        """Return MemTotal - MemAvailable."""
        memory = psutil.virtual_memory()
        return int(memory.total - memory.available)

    def links(self) -> tuple[NetworkLink, ...]:
        """Return links that have hardware behind them; in a container, where none has, all but loopback."""
        counters = psutil.net_io_counters(pernic=True)
        states = psutil.net_if_stats()
        names = [name for name in counters if name in states and name != "lo"]
        physical = [name for name in names if Path(f"/sys/class/net/{name}/device").exists()]
        return tuple(
            NetworkLink(
                name=name,
                up=states[name].isup,
                speed_mbit=states[name].speed,
                receive_bytes=counters[name].bytes_recv,
                send_bytes=counters[name].bytes_sent,
            )
            for name in sorted(physical or names)
        )


class FakeNodeFacts:
    """Facts that a test sets."""

    def __init__(self) -> None:
        self.boot = "8093f254-0000-4000-8000-000000000001"
        self.cpus = 4
        self.memory = 8 * 2**30
        self.busy = (0.0, 0.0)
        self.used = 2**30
        self.link_list: tuple[NetworkLink, ...] = ()

    def boot_id(self) -> str:
        """Return the set boot id."""
        return self.boot

    def cpu_count(self) -> int:
        """Return the set count."""
        return self.cpus

    def memory_bytes(self) -> int:
        """Return the set size."""
        return self.memory

    def cpu_seconds(self) -> tuple[float, float]:
        """Return the set seconds."""
        return self.busy

    def memory_used_bytes(self) -> int:
        """Return the set use."""
        return self.used

    def links(self) -> tuple[NetworkLink, ...]:
        """Return the set links."""
        return self.link_list
