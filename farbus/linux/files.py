"""The door to files that matter beyond their content: locks, owners, atomic replacement."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from farbus.errors import Conflict, Unavailable
from farbus.linux.users import Account


class Lock(Protocol):
    """Something held until released, or until this process ends."""

    def release(self) -> None:
        """Let go."""
        ...


_HOLDER_BYTES = 11
"""What says who holds a lock: a line of constant width, behind which stands what holders have noted."""
_MOST_NOTED = 64


class FileLock:
    """A lock on a file (flock(2)): held by one process, let go by the kernel when that process ends.

    Raises :class:`Conflict` naming ``what`` when another process has it, and
    :class:`Unavailable` where there can't be one.
    """

    def __init__(self, path: str | Path, *, what: str) -> None:
        self._descriptor = _open_lock(path)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, _HOLDER_BYTES, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            if not isinstance(error, BlockingIOError):
                # A network file system may know no locks.
                raise Unavailable(
                    f"lock {path}: {error.strerror}", hint="choose a directory of a local disk"
                ) from error
            raise Conflict(
                f"{what} is in use by {f'process {holder}' if holder else 'another process'}",
                hint="stop it or choose another",
            ) from error
        # Who holds it is a courtesy: a full disk takes the number away, not the lock.
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, f"{os.getpid():<{_HOLDER_BYTES - 1}}\n".encode(), 0)

    @property
    def noted(self) -> bytes:
        """What a holder has noted, this one or one before it."""
        return os.pread(self._descriptor, _MOST_NOTED, _HOLDER_BYTES)

    def note(self, word: bytes) -> None:
        """Keep a word for the holders after this one; a full disk leaves it out."""
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, word, _HOLDER_BYTES)

    def release(self) -> None:
        """Let go; the file stays, so that no two processes ever lock different files of one name."""
        os.close(self._descriptor)


def _open_lock(path: str | Path) -> int:
    """Open a file to be locked, made where it is not there; raise :class:`Unavailable` where it can't be.

    It is written to: a link in its place would have somebody else's file overwritten.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        reason, hint = error.strerror, "is its directory there and writable?"
        if os.path.islink(path):
            reason, hint = "it is a link, and no lock", "remove it"
        elif os.path.isdir(path):
            hint = "remove it"
        raise Unavailable(f"{path}: {reason}", hint=hint) from error


def write_owned(path: Path, data: bytes, *, account: Account | None, mode: int = 0o600, durable: bool = False) -> None:
    """Write a file whole or not at all, owned by ``account`` from the moment it has its name.

    ``durable`` returns only once content and name are on the disk.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if account is not None and account.uid != os.geteuid():
                os.fchown(file.fileno(), account.uid, account.gid)
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    if durable:
        # The new name is in the directory, which has its own way to the disk (fsync(2)).
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def make_owned_directory(path: Path, *, account: Account | None) -> None:
    """Make a directory that ``account`` alone may enter (None: this process's user), if it is not there.

    One that is there stays as it is, unless it is this process's still: who made it was killed before it changed hands.
    Raises OSError.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if account is not None and account.uid != os.geteuid() and path.lstat().st_uid == os.geteuid():
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def make_state_directory(path: Path, *, mode: int, marks: Collection[str], what: str) -> None:
    """Like :func:`make_directory`, for a directory to be ours alone, as :func:`check_state_directory` has it."""
    check_state_directory(path, marks=marks, what=what)
    make_directory(path, mode=mode)


def check_state_directory(path: Path, *, marks: Collection[str], what: str) -> None:
    """Look whether a directory may be ours alone, where what lies there is written and removed, and change nothing.

    Raises :class:`Conflict` in one line where something lies there and nothing of ``marks``: names, or paths below
    it, of which one is in each directory that ``what`` has used.
    """
    try:
        there = {name for name in os.listdir(path) if name != "lost+found"}
    except FileNotFoundError:
        return
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", hint=f"name a directory for {what}") from error
    if there and not any(os.path.lexists(path / mark) for mark in marks):
        raise Conflict(
            f"{path} can't be the directory of {what}: it holds other things, {min(there)!r} among them",
            hint="name one that is empty or not there",
        )


def make_directory(path: Path, *, mode: int) -> None:
    """Make a directory with ``mode`` (whatever the umask), or check that this process can write into the one there is.

    Raises :class:`Unavailable` in one line.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if path.stat().st_uid == os.geteuid():
            path.chmod(mode)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise Unavailable(
            f"{path}: {error.strerror}", hint="choose a directory that this user can write, on a disk with room"
        ) from error
