"""Reads and writes a task's files, as the task's user.  Standard library only: ``python -I -S stager.py ...``.

The agent may be root; what it does with a user's files must not be.  So it
starts this program, which becomes the user before it looks at any file (not
at exec: the interpreter may lie where only root gets), and speaks with it
over its standard streams.  Each name is opened relative to the directory
before it, never through a symbolic link (openat(2), O_NOFOLLOW), and only
regular files are read: not a pipe, which would hang, nor a device.

    stager.py IDENTITY put DIRECTORY                      files from standard input, until end of file
    stager.py IDENTITY get DIRECTORY FILES BYTES PATH...  files to standard output, no more than FILES and BYTES
    stager.py IDENTITY clear DIRECTORY                    remove everything in it

IDENTITY is ``-`` to stay who it is, or ``UID:GID:GROUP,GROUP,...``.  A PATH
that is a directory stands for all below it.

A file is a line of JSON with ``path``, ``size``, ``sha256`` (``put``) and
``executable``, and its bytes.  ``get`` ends with ``{"end": true}``; each ends
with ``{"error": ...}`` and exit code 1 when something is wrong.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

PIECE_BYTES = 2**20
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_LINE_BYTES = 16_384


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


def get(root: int, paths: list[str], most_files: int, most_bytes: int) -> None:
    """Send files; those of a directory in the order of their names."""
    files, total = 0, 0
    for path in paths:
        for found, descriptor in walk(root, path):
            try:
                status = os.fstat(descriptor)
                files, total = files + 1, total + status.st_size
                if files > most_files:
                    raise StagingError(f"{path}: more than {most_files} files; pack them into an archive")
                if total > most_bytes:
                    raise StagingError(f"{found}: with it there are {total} bytes, more than {most_bytes}")
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


def walk(root: int, path: str) -> Iterator[tuple[str, int]]:
    """Yield the regular files at and below ``path``, open for reading."""
    try:
        with parent_of(root, path, make=False) as (parent, name):
            # Not to wait for the other end of a pipe; a regular file knows no waiting.
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StagingError(f"{path}: is a symbolic link; name what it leads to") from error
        if error.errno == errno.ENXIO:
            raise StagingError(f"{path}: is neither a file nor a directory") from error
        raise StagingError(f"{path}: {os.strerror(error.errno or 0).lower()}") from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        yield path, descriptor
        return
    try:
        if not stat.S_ISDIR(mode):
            raise StagingError(f"{path}: is neither a file nor a directory")
        for name in sorted(os.listdir(descriptor)):
            yield from walk(root, f"{path}/{name}")
    finally:
        os.close(descriptor)


def clear(root: int) -> None:
    """Remove everything in a directory, also in directories that their owner has closed to himself."""
    for name in os.listdir(root):
        status = os.stat(name, dir_fd=root, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=root)
            continue
        # By a path below an open directory: chmod(2) has no form that takes O_NOFOLLOW before Linux 6.6, and
        # nobody but this user writes here.
        with contextlib.suppress(OSError):
            os.chmod(name, 0o700, dir_fd=root)
        child = os.open(name, DIRECTORY, dir_fd=root)
        try:
            clear(child)
        finally:
            os.close(child)
        os.rmdir(name, dir_fd=root)


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
            get(root, rest[2:], int(rest[0]), int(rest[1]))
        else:
            clear(root)
            say(end=True)
        sys.stdout.buffer.flush()
    except StagingError as error:
        return fail(str(error))
    except OSError as error:
        return fail(f"{error.filename or directory}: {error.strerror}")
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
