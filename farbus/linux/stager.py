"""Reads and writes a task's files, as the task's user.  Standard library only: ``python -I -S stager.py ...``.

The agent may be root; what it does with a user's files must not be.  So it
starts this program, which becomes the user before it looks at any file (not
at exec: the interpreter may lie where only root gets), and speaks with it
over its standard streams.  Each name is opened relative to the directory
before it, never through a symbolic link (openat(2), O_NOFOLLOW), and only
regular files are read: not a pipe, which would hang, nor a device.

    stager.py IDENTITY put DIRECTORY        files from standard input, until end of file
    stager.py IDENTITY get DIRECTORY        files to standard output: those that standard input asks for
    stager.py IDENTITY clear DIRECTORY      remove everything in it
    stager.py - clear DIRECTORY OWNERS      the same with root's rights, in directories of these users alone

IDENTITY is ``-`` to stay who it is, or ``UID:GID:GROUP,GROUP,...``; OWNERS are
user ids and ranges of them (``1000,100000-165535``).  What ``get`` is asked for
is one document of JSON, with ``paths`` and the most ``files`` and ``bytes``; a
path that is a directory stands for all below it.

A file is a line of JSON with ``path``, ``size``, ``sha256`` (``put``) and
``executable``, and its bytes.  ``get`` ends with ``{"end": true}``; each ends
with ``{"error": ...}`` and exit code 1 when something is wrong.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

PIECE_BYTES = 2**20
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_LINE_BYTES = 16_384
MAX_REQUEST_BYTES = 4 * 2**20
"""What ``get`` is asked for: 256 paths of 1,024 bytes, each of which JSON may write with six."""

MAX_DEPTH = 32
"""Names in a path of output, as farbus.model.staging has it: what lies deeper would be refused there."""

BATCH = 10_000
"""Names of a directory that are held at a time while it is emptied: some of them have millions."""

_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


class StagingError(Exception):
    """What a person reads."""


def become(identity: str) -> None:
    """Give up every right but that user's; setresuid(2) takes all capabilities from who was root."""
    if identity != "-":
        uid, gid, groups = identity.split(":")
        os.setgroups([int(each) for each in groups.split(",") if each])
        os.setresgid(*[int(gid)] * 3)
        os.setresuid(*[int(uid)] * 3)


def say(**message: Any) -> None:
    """Write one line."""
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")


def opened(parent: int, name: str, *, make: bool) -> int:
    """Open a directory in another; make it if it may be made."""
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
    return os.open(name, DIRECTORY, dir_fd=parent)


@contextlib.contextmanager
def parent_of(root: int, path: str, *, make: bool) -> Iterator[tuple[int, str]]:
    """Yield the directory of ``path`` and its name there."""
    *parents, name = path.split("/")
    if any(each in ("", ".", "..") for each in (*parents, name)):
        raise StagingError(f"{path}: leads elsewhere")
    current = os.dup(root)
    try:
        for each in parents:
            following = opened(current, each, make=make)
            os.close(current)
            current = following
        yield current, name
    finally:
        os.close(current)


def put(root: int, source: BinaryIO) -> None:
    """Write the files that come, each under its name only when it is complete."""
    while line := source.readline(MAX_LINE_BYTES):
        file = json.loads(line)
        path, left = file["path"], file["size"]
        with parent_of(root, path, make=True) as (parent, name):
            partial = f".farbus-{os.getpid()}"
            mode = 0o755 if file["executable"] else 0o644
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(partial, flags, mode, dir_fd=parent)
            try:
                found = hashlib.sha256()
                while left:
                    piece = source.read(min(left, PIECE_BYTES))
                    if not piece:
                        raise StagingError(f"{path}: the rest did not come")
                    found.update(piece)
                    left -= len(piece)
                    write_all(descriptor, piece)
                if found.hexdigest() != file["sha256"]:
                    raise StagingError(f"{path}: arrived with another content than it was sent with")
                os.rename(partial, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(partial, dir_fd=parent)
                raise
            finally:
                os.close(descriptor)
    say(end=True)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def get(root: int, source: BinaryIO) -> None:
    """Send the files that are asked for; those of a directory in the order of their names."""
    asked = json.loads(source.read(MAX_REQUEST_BYTES))
    walk, total = Walk(root, asked["files"]), 0
    for path in asked["paths"]:
        for found, descriptor in walk.below(path):
            try:
                status = os.fstat(descriptor)
                total += status.st_size
                if total > asked["bytes"]:
                    raise StagingError(f"{found}: with it there are {total} bytes, more than {asked['bytes']}")
                send(found, descriptor, status)
            finally:
                os.close(descriptor)
    say(end=True)


def send(path: str, descriptor: int, status: os.stat_result) -> None:
    """Send one file of the size that it has now; one that is being cut short meanwhile is an error."""
    say(path=path, size=status.st_size, executable=bool(status.st_mode & 0o100))
    left = status.st_size
    while left:
        piece = os.read(descriptor, min(left, PIECE_BYTES))
        if not piece:
            raise StagingError(f"{path}: became shorter while it was read")
        left -= len(piece)
        sys.stdout.buffer.write(piece)


class Walk:
    """Looks for regular files below a directory: ``most`` of them, in as many directories."""

    def __init__(self, root: int, most: int) -> None:
        self._root = root
        self._most = most
        self._files = 0
        self._directories = 0

    def below(self, path: str) -> Iterator[tuple[str, int]]:
        """Yield the regular files at and below ``path``, open for reading."""
        if path.count("/") >= MAX_DEPTH:
            raise StagingError(f"{path[:200]}: deeper than {MAX_DEPTH} directories; pack them into an archive")
        descriptor = self._opened(path)
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            self._files += 1
            self._check_most(path, self._files)
            yield path, descriptor
            return
        try:
            if not stat.S_ISDIR(mode):
                raise StagingError(f"{path}: is neither a file nor a directory")
            self._directories += 1
            self._check_most(path, self._directories)
            # One more than there can be of files and directories: the walk tells which are too many.
            names = first_names(descriptor, 2 * self._most + 1)
        finally:
            os.close(descriptor)
        for name in sorted(names):
            yield from self.below(f"{path}/{name}")

    def _opened(self, path: str) -> int:
        try:
            with parent_of(self._root, path, make=False) as (parent, name):
                # Not to wait for the other end of a pipe; a regular file knows no waiting.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                return os.open(name, flags, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise StagingError(f"{path}: is a symbolic link; name what it leads to") from error
            if error.errno == errno.ENXIO:
                raise StagingError(f"{path}: is neither a file nor a directory") from error
            raise StagingError(f"{path}: {os.strerror(error.errno or 0).lower()}") from error

    def _check_most(self, path: str, count: int) -> None:
        if count > self._most:
            raise StagingError(f"{path}: with it there are more than {self._most} files; pack them into an archive")


def first_names(directory: int, most: int) -> list[str]:
    """Return names in a directory, no more than ``most``."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in itertools.islice(entries, most)]


class Clearing:
    """Empties a directory, however deep it is nested.

    A directory in another is moved up to ``root`` before it is emptied: two
    descriptors are enough for any depth, and no way leads through ``..``,
    which moves with a directory.  With ``owners``, directories of others and
    of other file systems are left: their users may have been moved there.
    """

    def __init__(self, root: int, owners: Owners | None) -> None:
        self._root = root
        self._owners = owners
        self._device = os.fstat(root).st_dev
        # Not to be guessed, so that nobody has a million of them ready.
        self._prefix = f".farbus-{os.urandom(8).hex()}-"
        self._numbers = itertools.count()

    def run(self) -> None:
        """Remove everything."""
        while names := first_names(self._root, BATCH):
            for name in names:
                if not self._unlinked(self._root, name):
                    self._remove_directory(name)

    def _unlinked(self, parent: int, name: str) -> bool:
        """Remove what is no directory; say whether it was none."""
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            return False
        os.unlink(name, dir_fd=parent)
        return True

    def _remove_directory(self, name: str) -> None:
        self._unlock(self._root, name)
        child = os.open(name, DIRECTORY, dir_fd=self._root)
        try:
            self._check(child, name)
            while names := first_names(child, BATCH):
                for each in names:
                    if not self._unlinked(child, each):
                        self._move_up(child, each)
        finally:
            os.close(child)
        os.rmdir(name, dir_fd=self._root)

    def _unlock(self, parent: int, name: str) -> None:
        """Open a directory that its owner has closed to himself; root needs no such thing."""
        if self._owners is None:
            # By a path below an open directory: chmod(2) has no form that takes O_NOFOLLOW before Linux 6.6, and
            # nobody but this user writes here.
            with contextlib.suppress(OSError):
                os.chmod(name, 0o700, dir_fd=parent)

    def _move_up(self, parent: int, name: str) -> None:
        # rename(2) writes the new parent into the directory that it moves.
        self._unlock(parent, name)
        while True:
            try:
                os.rename(name, f"{self._prefix}{next(self._numbers)}", src_dir_fd=parent, dst_dir_fd=self._root)
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
            else:
                return

    def _check(self, child: int, name: str) -> None:
        if self._owners is None:
            return
        status = os.fstat(child)
        if status.st_uid not in self._owners:
            raise StagingError(f"{name}: belongs to user id {status.st_uid}, not to the task; remove it by hand")
        if status.st_dev != self._device:
            raise StagingError(f"{name}: is mounted there; unmount it")


class Owners:
    """User ids and ranges of them."""

    def __init__(self, text: str) -> None:
        pairs = [each.partition("-") for each in text.split(",")]
        self._ranges = [range(int(first), int(last or first) + 1) for first, _, last in pairs]

    def __contains__(self, uid: int) -> bool:
        return any(uid in each for each in self._ranges)


def main(arguments: list[str]) -> int:
    """Do what the arguments say; return the exit code."""
    identity, command, directory, *rest = arguments
    os.umask(0o022)
    try:
        become(identity)
        root = os.open(directory, DIRECTORY)
        if command == "put":
            put(root, sys.stdin.buffer)
        elif command == "get":
            get(root, sys.stdin.buffer)
        else:
            Clearing(root, Owners(rest[0]) if rest else None).run()
            say(end=True)
        sys.stdout.buffer.flush()
    except StagingError as error:
        return fail(str(error))
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else directory
        return fail(f"{where}: {error.strerror}")
    except (ValueError, KeyError) as error:
        return fail(f"defect: {error!r}")
    return 0


def fail(reason: str) -> int:
    """Tell why, on the way by which the files go."""
    with contextlib.suppress(OSError):
        say(error=reason)
        sys.stdout.buffer.flush()
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
