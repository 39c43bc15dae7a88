"""The door to memory that another process shares by a descriptor: figures that it counts while it works."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from farbus.errors import NotFound

MAX_DESCRIPTORS = 4096
"""Descriptors of a process that are looked through for its memory file."""

MAX_KNOWN = 1024
"""Processes whose descriptor is remembered; beyond that all are looked for again."""


class SharedMemory(Protocol):
    """Reads what others share."""

    def read(self, pid: int, name: str, *, limit_bytes: int) -> bytes:
        """Return at most ``limit_bytes`` of the memory file ``name`` (memfd_create(2)) that process ``pid`` has open.

        Raises :class:`NotFound` when it has none, or may not be looked at.
        """
        ...


class KernelSharedMemory:
    """Opens the file through /proc/PID/fd, which asks for the rights of a debugger (ptrace(2))."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], str] = {}

    def read(self, pid: int, name: str, *, limit_bytes: int) -> bytes:
        """Find the descriptor, and read without mapping: a file that shrinks meanwhile kills nobody."""
        path = self._find(pid, name)
        try:
            # Not to wait, whatever hides behind the name.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise NotFound(f"shared memory {name} of process {pid}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NotFound(f"shared memory {name} of process {pid}: it is not a file")
            return os.pread(descriptor, limit_bytes, 0)
        finally:
            os.close(descriptor)

    def _find(self, pid: int, name: str) -> str:
        wanted = f"/memfd:{name} (deleted)"
        known = self._known.get((pid, name))
        try:
            if known is not None and os.readlink(known) == wanted:
                return known
        except OSError:
            # Another process may have the number by now, or the same one other descriptors.
            del self._known[pid, name]
        directory = Path(f"/proc/{pid}/fd")
        try:
            entries = os.listdir(directory)[:MAX_DESCRIPTORS]
        except OSError as error:
            raise NotFound(f"shared memory {name} of process {pid}: {error.strerror}") from error
        for entry in entries:
            path = str(directory / entry)
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(path) == wanted:
                    if len(self._known) >= MAX_KNOWN:
                        self._known.clear()
                    self._known[pid, name] = path
                    return path
        raise NotFound(f"shared memory {name} of process {pid}: it has none")


class FakeSharedMemory:
    """Memory that a test sets."""

    def __init__(self, files: Mapping[tuple[int, str], bytes] | None = None) -> None:
        self.files = dict(files or {})

    def read(self, pid: int, name: str, *, limit_bytes: int) -> bytes:
        """Return the set bytes."""
        if (pid, name) not in self.files:
            raise NotFound(f"shared memory {name} of process {pid}: it has none")
        return self.files[pid, name][:limit_bytes]
