"""Directories that end with the process that made them: at once where it can, else when the next one makes its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


class Place:
    """A new directory below ``parent`` whose name begins with ``prefix``.

    It is locked (flock(2)) for as long as this process lives.  Whoever makes the next one of that prefix there removes
    those that nobody holds any more: what a killed process has left.  systemd-tmpfiles leaves locked ones alone, too.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        # Of two that begin at a time, neither finds the other's before it is locked.
        with _open(parent.resolve()) as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            _remove_abandoned(parent, prefix)
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._held = True

    def remove(self) -> None:
        """Remove it, unless it has been renamed, and let go of it; nothing the second time."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._held:
            # Once: by then the number may be somebody else's.
            self._held = False
            os.close(self._lock)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for path in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _open(path) as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _open(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
