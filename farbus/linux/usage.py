"""The door to what one process uses, seen from outside: processor time, memory, threads, descriptors."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec
import psutil

from farbus.errors import NotFound


class ThreadUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One thread: its name, and the seconds that it ran on a processor."""

    name: str
    cpu_s: float


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One process: processor seconds since its start, bytes of memory, and what it has open.

    ``rss_bytes`` counts pages that it shares with others (libraries) in full,
    ``private_bytes`` only what would be free if it ended.
    """

    pid: int
    name: str
    cpu_s: float
    rss_bytes: int
    private_bytes: int
    descriptors: int
    ended_children_cpu_s: float
    """Of the children that it has waited for, and of theirs; in hundredths of a second."""
    threads: tuple[ThreadUsage, ...]


def usage_of(pid: int) -> ProcessUsage:
    """Return what a process uses now; raise :class:`NotFound` for one that has ended."""
    try:
        process = psutil.Process(pid)
        memory = process.memory_full_info()
        times = process.cpu_times()
        return ProcessUsage(
            pid=pid,
            name=process.name(),
            cpu_s=cpu_seconds(pid),
            rss_bytes=memory.rss,
            private_bytes=memory.uss,
            descriptors=process.num_fds(),
            ended_children_cpu_s=times.children_user + times.children_system,
            threads=_threads(pid),
        )
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError) as error:
        # The latter two of the list of its threads.
        raise NotFound(f"process {pid}: it has ended") from error


def usage_of_children(pid: int) -> tuple[ProcessUsage, ...]:
    """Return what the processes that a process started use, and those that they started, oldest first."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(NotFound):
                found.append(usage_of(child.pid))
    return tuple(found)


def resident_bytes_below(pid: int) -> int:
    """Return the resident memory of all descendants of a process; what they share counts for each.

    Never waits: /proc/PID/statm takes no lock.
    """
    total = 0
    for process in _descendants(pid):
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def memory_bytes_below(pid: int) -> int:
    """Return the proportional set size of all descendants of a process, resident memory where that can't be read.

    Waits for whoever has changed the memory of one of them to end: that may hang in the kernel.
    """
    total = 0
    for process in _descendants(pid):
        with contextlib.suppress(psutil.Error):
            try:
                total += process.memory_full_info().pss
            except psutil.AccessDenied:
                total += process.memory_info().rss
    return total


def _descendants(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds of a process, of threads that have ended too, to the nanosecond.

    By its clock (clock_getcpuclockid(3)): /proc/PID/stat counts in hundredths of a second,
    a third of what an idle daemon uses in ten.
    """
    # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the kernel's include/linux/posix-timers.h.
    clock = (~pid << 3) | 2
    try:
        return time.clock_gettime(clock)
    except OSError as error:
        raise NotFound(f"process {pid}: it has ended") from error


def own_usage() -> ProcessUsage:
    """Return what this process uses."""
    return usage_of(os.getpid())


def _threads(pid: int) -> tuple[ThreadUsage, ...]:
    found = []
    for entry in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda entry: int(entry.name)):
        # A thread may end between the listing and now.
        with contextlib.suppress(OSError):
            name = (entry / "comm").read_text(errors="replace").strip()
            # The first field: nanoseconds on a processor (Documentation/scheduler/sched-stats.rst).
            ran_ns = int((entry / "schedstat").read_text().split()[0])
            found.append(ThreadUsage(name=name, cpu_s=ran_ns / 1e9))
    return tuple(found)
