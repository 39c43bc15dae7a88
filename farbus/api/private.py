"""A directory beside a public socket, for sockets that nobody but this process reaches."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
from pathlib import Path

PREFIX = ".farbus."
_NAME = re.compile(re.escape(PREFIX) + r"[a-z0-9_]{8}")
"""As :func:`tempfile.mkdtemp` makes them."""


class PrivateDirectory:
    """Such a directory; one that a killed process has left goes when the next is made beside it.

    The kernel says which are left: whoever has one holds its lock, and no killed process holds a lock.
    """

    def __init__(self, parent: Path) -> None:
        # A directory that can't be listed is no reason not to start.
        with contextlib.suppress(PermissionError):
            for name in filter(_NAME.fullmatch, os.listdir(parent)):
                _remove_left(parent / name)
        while True:
            self._path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            self._held = _hold(self._path)
            if self._held is not None:
                break
            # Another process that starts just now took it for left behind, and removes it.

    def path(self, name: str) -> str:
        """Return a path of ``name`` in it, short enough for a socket wherever the directory is; for this process."""
        return f"/proc/self/fd/{self._held}/{name}"

    def remove(self) -> None:
        """Remove it with the sockets in it."""
        if self._held is not None:
            _empty(self._held)
            with contextlib.suppress(FileNotFoundError):
                self._path.rmdir()
            os.close(self._held)
            self._held = None


def _hold(path: Path) -> int | None:
    """Open the directory at ``path`` and take its lock; return None where somebody has it, or it has gone."""
    try:
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held), os.lstat(path)):
            return held
    except OSError:
        pass
    os.close(held)
    return None


def _remove_left(path: Path) -> None:
    """Remove the directory at ``path`` if it is this user's, nobody has it, and it holds nothing but sockets."""
    with contextlib.suppress(OSError):
        # That of another user is not even asked for its lock, which he may want just then.
        if path.lstat().st_uid != os.geteuid() or (held := _hold(path)) is None:
            return
        try:
            _empty(held)
            path.rmdir()
        finally:
            os.close(held)


def _empty(directory: int) -> None:
    for name in os.listdir(directory):
        if stat.S_ISSOCK(os.lstat(name, dir_fd=directory).st_mode):
            os.unlink(name, dir_fd=directory)
