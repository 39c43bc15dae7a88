"""What is known of programs whose keepers are gone, and the end of what those have left.

Each program has a directory (:mod:`farbus.linux.keeper` lists its files).
Where its keeper was killed, what the keeper had started is found by the
program's control group and by the mark in its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from farbus.linux.children import process_exists, processes_naming_each
from farbus.linux.keeper import MARK, VERSION, started_at
from farbus.linux.processes import Exit

T = TypeVar("T")

KILL_WITHIN_S = 10.0
"""How long what a dead keeper left is killed again and again at most, before anybody is told."""

KILL_INTERVAL_S = 0.02

REBOOTED = Exit(-signal.SIGKILL, "the node was rebooted while it ran")


class Plan(msgspec.Struct):
    """``program.json``: what the agent knows before there is a keeper."""

    version: int
    what: str
    mark: str
    boot_id: str
    output: str


class _Keeper(msgspec.Struct):
    """``keeper.json``."""

    keeper: int
    started_at: int
    cgroup: str = ""
    pid: int = 0
    pid_started_at: int = 0
    mark: str = ""


class _Saved(msgspec.Struct):
    """``exit.json``."""

    code: int
    reason: str = ""


def end_programs(directory: Path) -> list[str]:
    """End all programs of an agent that is not there, with all that is kept of them; return their names.

    ``directory`` is that agent's directory of programs.  Waits for each, at
    most :data:`KILL_WITHIN_S` for its keeper and as long for what that leaves;
    what can't be killed keeps its directory, for the next agent.
    """
    names = sorted(entry.name for entry in directory.iterdir() if entry.is_dir()) if directory.is_dir() else []
    for name in names:
        plan = read_struct(directory / name / "program.json", Plan)
        ask_to_end(directory / name)
        if (directory / name / "exit.json").exists() or kill_left(directory / name, plan.mark if plan else ""):
            shutil.rmtree(directory / name, ignore_errors=True)
    return names


def ask_to_end(directory: Path) -> None:
    """Have a keeper kill its program: it finds also what has no mark; return when it has, or does not answer."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(KILL_WITHIN_S)
        with short_path(directory) as path:
            connection.connect(f"{path}/control")
        lines = ({"version": VERSION}, {"do": "kill", "reason": "its agent is gone"})
        connection.sendall(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        # A keeper closes the connection when the status is on the disk.
        while connection.recv(4096):
            pass


def was_started(directory: Path) -> bool:
    """Say whether a keeper has been at work in a directory."""
    return any(os.path.lexists(directory / name) for name in ("control", "keeper.json", "exit.json"))


def may_have_begun(directory: Path) -> bool:
    """Say whether there may have been a program: its keeper writes down who it is before (only a boot loses that)."""
    return any(os.path.lexists(directory / name) for name in ("keeper.json", "exit.json"))


def boot_id() -> str:
    """Return what names this boot of the kernel (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@contextlib.contextmanager
def short_path(directory: Path) -> Iterator[str]:
    """Yield a path of a directory that always fits into a socket's address (108 bytes, unix(7))."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def read_struct(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def saved_exit(directory: Path, plan: Plan) -> Exit | None:
    """Return how a program ended whose keeper is gone; None where it was killed and may have left something."""
    saved = read_struct(directory / "exit.json", _Saved)
    if saved is not None:
        return Exit(saved.code, saved.reason)
    return None if plan.boot_id == boot_id() else REBOOTED


def kill_left(directory: Path, mark: str) -> bool:
    """Kill what a keeper has left, and wait for the end of it for some time; say whether nothing is left."""
    deadline = time.monotonic() + KILL_WITHIN_S
    while kill_once(str(directory), mark):
        if time.monotonic() >= deadline:
            return False
        time.sleep(KILL_INTERVAL_S)
    return True


def kill_once(directory: str, mark: str) -> list[int]:
    """Kill a keeper that does not answer and all that it had started; return the processes that were there."""
    return kill_each_once([(directory, mark)])[0]


def kill_each_once(programs: Sequence[tuple[str, str]]) -> list[list[int]]:
    """Kill what the dead keepers of several programs, each a directory and a mark, have left; return what was there.

    May hang: to look for a mark is to read the memory of every process, and one that waits in the kernel may have
    its memory locked.  So what is known by its number goes first.
    """
    known = [read_struct(Path(directory) / "keeper.json", _Keeper) for directory, _ in programs]
    left = [_kill_known(one) if one is not None else set[int]() for one in known]
    marks = [mark or (one.mark if one else "") for (_, mark), one in zip(programs, known, strict=True)]
    marked = processes_naming_each([f"{MARK}={mark}" for mark in marks])
    for mark, there, more in zip(marks, left, marked, strict=True):
        if mark:
            _kill(more)
            there.update(more)
    return [sorted(there) for there in left]


def _kill_known(known: _Keeper) -> set[int]:
    left = set(_members(known.cgroup))
    for pid, since in ((known.keeper, known.started_at), (known.pid, known.pid_started_at)):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if pid and started_at(pid) == since and process_exists(pid):
                left.add(pid)
    with contextlib.suppress(OSError):
        if known.cgroup:
            (Path(known.cgroup) / "cgroup.kill").write_text("1", encoding="ascii")
    _kill(left)
    return left


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        # In a control group 0 stands for a process of another pid namespace; here it would mean this process's group.
        if pid > 0:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _members(cgroup: str) -> list[int]:
    found = []
    if cgroup:
        for procs in Path(cgroup).rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found += [int(word) for word in procs.read_text(encoding="ascii").split()]
    return found
