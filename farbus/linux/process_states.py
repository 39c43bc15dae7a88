"""The door to what the kernel does with a process: whether somebody has stopped it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol


class ProcessStates(Protocol):
    """Looks at processes of this machine, whosever they are."""

    def is_stopped(self, pid: int) -> bool:
        """Say whether a signal (SIGSTOP) has stopped a process, which SIGCONT lets go on; of one that is gone: no."""
        ...


class KernelProcessStates:
    """Reads /proc/PID/stat, which takes no lock that a process may hold: a look never hangs."""

    def __init__(self, *, proc: str = "/proc") -> None:
        self._proc = Path(proc)

    def is_stopped(self, pid: int) -> bool:
        """Compare the state with ``T``; a ``t`` is a debugger's, which SIGCONT does not help (proc(5))."""
        with contextlib.suppress(OSError):
            # It follows the command in parentheses, which may hold any character.
            return (self._proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[:1] == [b"T"]
        return False


class FakeProcessStates:
    """States that a test sets."""

    def __init__(self, stopped: Iterable[int] = ()) -> None:
        self.stopped = set(stopped)

    def is_stopped(self, pid: int) -> bool:
        """Say whether the test has stopped it."""
        return pid in self.stopped
