"""The scheduler's store of contents that travel with jobs: one file for each, named by user and SHA-256.

A content belongs to who sent it: to know its digest gives nobody else a right
to it.  It has its name only when it is whole; what was being received when a
process died is removed at the next start.  Contents are not waited for on the
disk: the manifest says what they must be, and whoever reads one checks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import shutil
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import BinaryIO

from farbus.errors import FarbusError, InvalidInput, NotFound, Unavailable
from farbus.model.quantity import format_bytes
from farbus.model.staging import CHUNK_BYTES, MAX_FILE_BYTES, check_digest

UNUSED_KEPT_S = 3_600.0
"""How long a content is kept that no job names: between its upload and the job's, or for the next try."""

Key = tuple[str, str]
"""Directory of a user, and digest."""


class Contents:
    """All contents below ``base``, no more than ``limit_bytes`` together and ``user_limit_bytes`` of one user."""

    def __init__(
        self, base: Path, *, limit_bytes: int, user_limit_bytes: int, wall: Callable[[], float] = time.time
    ) -> None:
        self._base = base
        self._parts = base / "parts"
        self._limit_bytes = limit_bytes
        self._user_limit_bytes = user_limit_bytes
        self._wall = wall
        self._numbers = itertools.count()
        self._sizes: dict[Key, int] = {}
        self._asked: dict[Key, float] = {}
        """When each was asked for last, by this process."""
        self._used: defaultdict[str, int] = defaultdict(int)
        shutil.rmtree(self._parts, ignore_errors=True)
        try:
            self._parts.mkdir(mode=0o700, parents=True)
            for user in (base / "users").iterdir() if (base / "users").exists() else ():
                for path in user.iterdir():
                    self._count((user.name, path.name), path.stat().st_size)
        except OSError as error:
            raise FarbusError(f"can't use {base}: {error.strerror}", hint="see that it can be written") from error

    @property
    def used_bytes(self) -> int:
        """Bytes that are kept or being received."""
        return sum(self._used.values())

    def _count(self, key: Key, size: int) -> None:
        self._sizes[key] = size
        self._used[key[0]] += size

    def _path(self, key: Key) -> Path:
        return self._base / "users" / key[0] / key[1]

    def size(self, user: str, digest: str) -> int | None:
        """Return the size of a content that is there, None for one that is not; it is not removed for a while."""
        key = (user_directory(user), check_digest(digest))
        if key not in self._sizes:
            return None
        if not self._path(key).exists():
            # Removed by hand: it is sent again.
            self._used[key[0]] -= self._sizes.pop(key)
            return None
        self._asked[key] = self._wall()
        return self._sizes[key]

    def receive(self, user: str, size: int, digest: str = "") -> Receiver:
        """Begin to receive a content of ``size`` bytes; its digest may be told at the end.

        Raises :class:`InvalidInput` or :class:`Unavailable` where it has no room.
        """
        if not 0 <= size <= MAX_FILE_BYTES:
            raise InvalidInput(f"a file of {size} bytes is larger than {MAX_FILE_BYTES}")
        owner = user_directory(user)
        if self._used[owner] + size > self._user_limit_bytes:
            raise InvalidInput(
                f"user {user} has {format_bytes(self._used[owner])} of files here: {format_bytes(size)} more are over "
                f"the limit of {format_bytes(self._user_limit_bytes)}",
                hint="fetch what jobs have put out, and wait until jobs that end have let go of theirs",
            )
        if self.used_bytes + size > self._limit_bytes:
            raise Unavailable(
                f"the scheduler has room for {format_bytes(self._limit_bytes)} of files, and is full",
                hint="try later, or ask its operator for more (staging_bytes)",
            )
        # Counted from the beginning, so that many at once fit together.
        self._used[owner] += size
        return Receiver(self, owner, size, digest, self._parts / str(next(self._numbers)))

    def keep(self, receiver: Receiver, digest: str) -> None:
        """Give a content that is whole its name."""
        key = (receiver.owner, digest)
        target = self._path(key)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.replace(receiver.part, target)
        os.utime(target, (self._wall(), self._wall()))
        if key in self._sizes:
            self._used[key[0]] -= receiver.size
        else:
            self._sizes[key] = receiver.size

    def release(self, receiver: Receiver) -> None:
        """Give back the room of a content that did not become whole."""
        self._used[receiver.owner] -= receiver.size

    async def read(self, user: str, digest: str) -> AsyncIterator[bytes]:
        """Yield a content in pieces, at least one; raise :class:`NotFound`."""
        path = self._path((user_directory(user), check_digest(digest)))
        try:
            file = await asyncio.to_thread(open, path, "rb")
        except FileNotFoundError as error:
            raise NotFound(f"content {digest}: it is not here any more", hint="submit the job again") from error
        with file:
            first = True
            while (data := await asyncio.to_thread(file.read, CHUNK_BYTES)) or first:
                first = False
                yield data

    async def read_whole(self, user: str, digest: str, *, most_bytes: int) -> bytes:
        """Return a small content."""
        if (size := self.size(user, digest)) is None or size > most_bytes:
            raise NotFound(f"content {digest}: it is not here, or too large", hint="submit the job again")
        return b"".join([data async for data in self.read(user, digest)])

    def sweep(self, used: Collection[Key]) -> int:
        """Remove what nobody uses and nobody has asked for in a while; return how many."""
        removed = 0
        for key in [key for key in self._sizes if key not in used]:
            path = self._path(key)
            with contextlib.suppress(FileNotFoundError):
                if max(path.stat().st_mtime, self._asked.get(key, 0.0)) > self._wall() - UNUSED_KEPT_S:
                    continue
                path.unlink()
            self._asked.pop(key, None)
            self._used[key[0]] -= self._sizes.pop(key)
            removed += 1
        return removed


class Receiver:
    """A content that comes piece by piece; use as a context manager, which drops what was not finished."""

    def __init__(self, contents: Contents, owner: str, size: int, digest: str, part: Path) -> None:
        self.owner = owner
        self.size = size
        self.part = part
        self._contents = contents
        self._digest = digest
        self._left = size
        self._found = hashlib.sha256()
        self._file: BinaryIO | None = None
        self._kept = False

    @property
    def is_whole(self) -> bool:
        """Say whether all bytes have come."""
        return self._left == 0

    def __enter__(self) -> Receiver:
        try:
            self._file = open(self.part, "xb")
        except OSError as error:
            self._contents.release(self)
            raise _full(error) from error
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        with contextlib.suppress(OSError):
            self._file.close()
        if not self._kept:
            self.part.unlink(missing_ok=True)
            self._contents.release(self)

    def write(self, data: bytes) -> None:
        """Take the next piece."""
        assert self._file is not None
        if len(data) > self._left:
            raise InvalidInput("a file is longer than was said at first", hint="did it grow meanwhile? try again")
        self._left -= len(data)
        self._found.update(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise _full(error) from error

    def finish(self, digest: str = "") -> str:
        """Keep the content and return its digest.

        Raises :class:`InvalidInput` where it is not whole or not what was announced.
        """
        assert self._file is not None
        found, wanted = self._found.hexdigest(), digest or self._digest
        if self._left or found != wanted:
            raise InvalidInput("a file did not arrive as it was sent", hint="did it change meanwhile? try again")
        try:
            self._file.close()
            self._contents.keep(self, found)
        except OSError as error:
            raise _full(error) from error
        self._kept = True
        return found


def user_directory(user: str) -> str:
    """Return the name of a user's directory: whatever the name is, it is one."""
    return hashlib.sha256(user.encode()).hexdigest()[:32]


def _full(error: OSError) -> Unavailable:
    return Unavailable(f"the scheduler can't keep a file: {error.strerror}", hint="ask its operator for room")
