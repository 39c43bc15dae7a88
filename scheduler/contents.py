"""The scheduler's store of contents that travel with jobs: one file for each, named by user and SHA-256.

A content belongs to who sent it: to know its digest gives nobody else a right
to it.  It has its name only when it is whole; what came of one that broke off
is a *part*, with which the next call goes on.  Contents are not waited for on
the disk: the manifest says what they must be, and whoever reads one checks it.

What counts against a user's limits is what is being received, what jobs and
outputs name, and what was sent or asked for in the last hour without having
been named.  What was named and is so no more has been *released*: it counts no
more, stays for the hour, and makes room before anybody is told that there is
none.

The books are kept in the event loop, and all that touches the disk is done in
threads: names are given and taken one batch at a time (``_disk``).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, Unavailable
from farbus.model.quantity import format_bytes
from farbus.model.staging import CHUNK_BYTES, MAX_FILE_BYTES, check_digest
from farbus.model.value import Value
from farbus.scheduler.receiver import Receiver, full

if TYPE_CHECKING:
    from hashlib import _Hash

UNUSED_KEPT_S = 3_600.0
"""How long a content is kept that no job names: between its upload and the job's, or for the next try."""

LEAST_PART_BYTES = CHUNK_BYTES
"""Smallest part that is kept: less is sent again as quickly as it is asked about."""

LOOKS_PER_TURN = 1_024
"""Files that are looked for, or removed, in one call of a thread: some milliseconds, after which others get it."""

KEYS_PER_TURN = 2_048
"""Contents that are gone through before others get their turn: a millisecond or two."""

SETTLE_S = 60.0
"""How long after a content was asked for nothing is made of it that no job names it: its job may be on its way."""

MAX_HASHING = 2
"""Parts that are read again at a time, to know what came of them before a restart: each takes a processor."""

Key = tuple[str, str]
"""Directory of a user, and digest."""

_PART = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{64})")


class Limits(Value, frozen=True, kw_only=True):
    """What the store holds, in bytes and in files: altogether, and of one user."""

    bytes: int
    files: int
    user_bytes: int
    user_files: int


@dataclass(slots=True)
class _Usage:
    bytes: int = 0
    files: int = 0

    def add(self, size: int, files: int = 1) -> None:
        self.bytes += size
        self.files += files


@dataclass(slots=True)
class _Content:
    size: int
    asked: float
    """When it came or was asked for last."""
    named: bool = False
    """Whether a job or an output has named it since."""
    released: bool = False


@dataclass(slots=True)
class _Part:
    received: int
    asked: float
    found: _Hash | None = None
    """Of what was received; none for what an earlier process left."""


class Contents:
    """All contents below ``base``, within ``limits``; times are seconds since the epoch."""

    def __init__(self, base: Path, limits: Limits, *, wall: Callable[[], float] = time.time) -> None:
        self._base = base
        self._directory = base / "parts"
        self._limits = limits
        self._wall = wall
        self._numbers = itertools.count()
        self._contents: dict[Key, _Content] = {}
        self._parts: dict[Key, _Part] = {}
        """Those that nobody is sending; by user and the name of the part."""
        self._receiving: set[Key] = set()
        self._closing: set[Key] = set()
        self._all = _Usage()
        self._counted: defaultdict[str, _Usage] = defaultdict(_Usage)
        self._released: dict[Key, None] = {}
        """In the order of their release."""
        self._senders: defaultdict[str, list[float]] = defaultdict(list)
        """When the calls began by which users send just now."""
        self._disk = asyncio.Lock()
        self._hashing = asyncio.Semaphore(MAX_HASHING)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._load()
        except OSError as error:
            raise FarbusError(f"can't use {base}: {error.strerror}", hint="see that it can be written") from error

    def _load(self) -> None:
        for user in (self._base / "users").iterdir() if (self._base / "users").exists() else ():
            with os.scandir(user) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    self._contents[user.name, entry.name] = _Content(status.st_size, status.st_mtime)
                    self._count(user.name, status.st_size)
        for path in self._directory.iterdir():
            known = _PART.fullmatch(path.name)
            if known is None:
                path.unlink()
                continue
            status = path.stat()
            self._parts[known[1], known[2]] = _Part(status.st_size, status.st_mtime)
            self._count(known[1], status.st_size)

    # --- what there is -------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Bytes that are kept or being received, of all users."""
        return self._all.bytes

    def counted(self, user: str) -> tuple[int, int]:
        """Return the bytes and files that count against a user's limits."""
        usage = self._counted[user_directory(user)]
        return usage.bytes, usage.files

    def _count(self, owner: str, size: int, files: int = 1) -> None:
        self._all.add(size, files)
        self._counted[owner].add(size, files)

    def _path(self, key: Key) -> Path:
        return self._base / "users" / key[0] / key[1]

    def _part_path(self, key: Key) -> Path:
        return self._directory / f"{key[0]}.{key[1]}"

    async def sizes(self, user: str, digests: Sequence[str]) -> list[int | None]:
        """Return the sizes of contents, None for what is not there; they are not removed for a while."""
        owner = user_directory(user)
        keys = [(owner, check_digest(digest)) for digest in digests]
        sizes: list[int | None] = []
        for start in range(0, len(keys), LOOKS_PER_TURN):
            batch = keys[start : start + LOOKS_PER_TURN]
            here = await asyncio.to_thread(self._exist, [key for key in batch if key in self._contents])
            sizes += [self._ask(key, is_here=key in here) for key in batch]
        return sizes

    def _exist(self, keys: Sequence[Key]) -> set[Key]:
        return {key for key in keys if self._path(key).exists()}

    def _ask(self, key: Key, *, is_here: bool) -> int | None:
        content = self._contents.get(key)
        if content is None:
            return None
        if not is_here and not self._path(key).exists():
            # Removed by hand: it is sent again.  (One that came in this moment is here.)
            self._forget(key)
            return None
        if content.released:
            # It counts again, where it may; else its user is told when he sends it.
            if self._excess(key[0], content.size):
                return None
            self._revive(key, content)
            content.named = False
        content.asked = self._wall()
        return content.size

    def _revive(self, key: Key, content: _Content) -> None:
        content.released = False
        del self._released[key]
        self._counted[key[0]].add(content.size)

    def _forget(self, key: Key) -> None:
        content = self._contents.pop(key)
        self._all.add(-content.size, -1)
        if content.released:
            del self._released[key]
        else:
            self._counted[key[0]].add(-content.size, -1)

    def name(self, user: str, digests: Collection[str]) -> None:
        """Note that a job or an output names contents: when none does any more, they are released."""
        owner = user_directory(user)
        for digest in digests:
            if (content := self._contents.get((owner, digest))) is not None:
                content.named = True

    # --- in ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def sending(self, user: str) -> Iterator[None]:
        """Keep everything of a user's, however long he takes to send the rest."""
        owner, began = user_directory(user), self._wall()
        self._senders[owner].append(began)
        try:
            yield
        finally:
            self._senders[owner].remove(began)
            if not self._senders[owner]:
                del self._senders[owner]

    def has_room(self, user: str, size: int) -> bool:
        """Say whether a file of ``size`` bytes can be received now."""
        return not self._excess(user_directory(user), size) and (bool(self._released) or self._fits(size))

    def received(self, user: str, part: str) -> int:
        """Return how many bytes there are of a part with which a call can go on; 0 for none."""
        key = (user_directory(user), part)
        return self._parts[key].received if key in self._parts else 0

    async def received_digest(self, user: str, part: str) -> str:
        """Return the SHA-256 of what there is of a part; nothing where it is gone."""
        idle = self._parts.get((user_directory(user), part))
        if idle is None:
            return ""
        if idle.found is None:
            try:
                idle.found = await self._hashed(self._part_path((user_directory(user), part)), idle.received)
            except FileNotFoundError:
                return ""
        return idle.found.hexdigest()

    async def _hashed(self, path: Path, size: int) -> _Hash:
        """Return the hash of the first ``size`` bytes of a file."""
        found = hashlib.sha256()
        async with self._hashing:
            with await asyncio.to_thread(open, path, "rb") as file:
                while size and (data := await asyncio.to_thread(file.read, min(size, 16 * CHUNK_BYTES))):
                    await asyncio.to_thread(found.update, data)
                    size -= len(data)
        return found

    @contextlib.asynccontextmanager
    async def receive(
        self, user: str, size: int, digest: str = "", *, part: str = "", offset: int = 0
    ) -> AsyncIterator[Receiver]:
        """Receive a content of ``size`` bytes; its digest may be told at the end.

        What breaks off is kept under the name ``part`` (64 hexadecimal
        digits), where one is given; ``offset`` bytes of it are gone on with.
        Raises :class:`InvalidInput` or :class:`Unavailable` where it has no
        room, :class:`Conflict` where there is less of that part.
        """
        if not 0 <= size <= MAX_FILE_BYTES:
            raise InvalidInput(f"a file of {size} bytes is larger than {MAX_FILE_BYTES}")
        owner = user_directory(user)
        key = (owner, part) if part and (owner, part) not in self._receiving else None
        idle = self._parts.get(key) if key else None
        if not 0 <= offset <= (min(idle.received, size) if idle else 0):
            raise Conflict("there is less of a file here than was said", hint="try again: it is sent as a whole")
        if key:
            self._receiving.add(key)
        try:
            if idle is not None and key is not None:
                # It counts as what is to come of it, from here on.
                del self._parts[key]
                self._count(owner, -idle.received, -1)
            try:
                await self._reserve(user, size)
            except BaseException:
                if idle is not None and key is not None:
                    self._parts[key] = idle
                    self._count(owner, idle.received)
                raise
            path = self._part_path(key) if key else self._directory / str(next(self._numbers))
            receiver = Receiver(owner, size, digest, path, keep=self._keep)
            try:
                await self._open(receiver, idle, offset)
                yield receiver
            finally:
                await asyncio.shield(self._close(receiver, key))
        finally:
            # Where the receiver is still being closed, that is its end.
            if key and key not in self._closing:
                self._receiving.discard(key)

    def _excess(self, owner: str, size: int) -> str:
        """Return by what ``size`` more bytes, in a file, are over a user's limits."""
        usage = self._counted[owner]
        if usage.bytes + size > self._limits.user_bytes:
            return (
                f"{format_bytes(usage.bytes)} of files here: {format_bytes(size)} more are over the limit of "
                f"{format_bytes(self._limits.user_bytes)}"
            )
        if usage.files + 1 > self._limits.user_files:
            return f"{usage.files} files here: one more is over the limit of {self._limits.user_files}"
        return ""

    async def _reserve(self, user: str, size: int) -> None:
        """Count a file from the beginning, so that many at once fit together."""
        owner = user_directory(user)
        while True:
            if excess := self._excess(owner, size):
                raise InvalidInput(
                    f"user {user} has {excess}",
                    hint="wait until jobs have ended; what they have put out is kept for a week",
                )
            if self._fits(size):
                self._count(owner, size)
                return
            if not self._released:
                raise Unavailable(
                    f"the scheduler has room for {format_bytes(self._limits.bytes)} of files, {self._limits.files} in "
                    "number, and is full",
                    hint="try later, or ask its operator for more (staging_bytes, staging_files)",
                )
            await self._remove(list(itertools.islice(self._released, LOOKS_PER_TURN)), enough=size)

    async def _open(self, receiver: Receiver, idle: _Part | None, offset: int) -> None:
        try:
            if offset and idle is not None:
                whole = idle.found is not None and idle.received == offset
                found = idle.found if whole and idle.found else await self._hashed(receiver.part, offset)
                await receiver.go_on(offset, found)
            else:
                await receiver.begin()
        except OSError as error:
            raise full(error) from error

    async def _close(self, receiver: Receiver, key: Key | None) -> None:
        """Account for what has become of a file, also where its call is cancelled a second time meanwhile."""
        if key is not None:
            self._closing.add(key)
        try:
            await receiver.close()
            if receiver.kept:
                return
            self._count(receiver.owner, -receiver.size, -1)
            if key is None or receiver.spoiled or receiver.received < LEAST_PART_BYTES:
                await asyncio.to_thread(receiver.part.unlink, missing_ok=True)
                return
            self._parts[key] = _Part(receiver.received, self._wall(), receiver.found)
            self._count(key[0], receiver.received)
        finally:
            if key is not None:
                self._closing.discard(key)
                self._receiving.discard(key)

    async def _keep(self, receiver: Receiver, digest: str) -> None:
        """Give a content that is whole its name."""
        key = (receiver.owner, digest)
        async with self._disk:
            await asyncio.to_thread(self._give_name, receiver, self._path(key))
            receiver.kept = True
            if key in self._contents:
                self._forget(key)
            self._contents[key] = _Content(receiver.size, self._wall())

    def _give_name(self, receiver: Receiver, target: Path) -> None:
        receiver.seal()
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.replace(receiver.part, target)
        os.utime(target, (self._wall(), self._wall()))

    # --- out -----------------------------------------------------------------------------

    async def read(self, user: str, digest: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        """Yield a content from ``offset`` in pieces, at least one; raise :class:`NotFound`."""
        path = self._path((user_directory(user), check_digest(digest)))
        try:
            file = await asyncio.to_thread(open, path, "rb")
        except FileNotFoundError as error:
            raise NotFound(f"content {digest}: it is not here any more", hint="submit the job again") from error
        with file:
            file.seek(offset)
            first = True
            while (data := await asyncio.to_thread(file.read, CHUNK_BYTES)) or first:
                first = False
                yield data

    async def read_whole(self, user: str, digest: str, *, most_bytes: int) -> bytes:
        """Return a small content."""
        (size,) = await self.sizes(user, [digest])
        if size is None or size > most_bytes:
            raise NotFound(f"content {digest}: it is not here, or too large", hint="submit the job again")
        return b"".join([data async for data in self.read(user, digest)])

    # --- what nobody needs any more ------------------------------------------------------

    async def sweep(self, used: Collection[Key], *, started: float) -> int:
        """Release what ``used``, which was gathered from ``started`` on, names no more, and remove what is old.

        Returns how many were removed.
        """
        removed = 0
        keys = list(self._contents)
        for start in range(0, len(keys), KEYS_PER_TURN):
            old = [key for key in keys[start : start + KEYS_PER_TURN] if self._look(key, key in used, started)]
            for each in range(0, len(old), LOOKS_PER_TURN):
                removed += await self._remove(old[each : each + LOOKS_PER_TURN])
            await asyncio.sleep(0)
        for key in [key for key, part in self._parts.items() if self._is_old(key[0], part.asked)]:
            if key in self._parts and key not in self._receiving:
                part = self._parts.pop(key)
                self._count(key[0], -part.received, -1)
                self._receiving.add(key)
                try:
                    await asyncio.to_thread(self._part_path(key).unlink, missing_ok=True)
                finally:
                    self._receiving.discard(key)
        return removed

    def _is_old(self, owner: str, asked: float) -> bool:
        return asked <= self._wall() - UNUSED_KEPT_S and owner not in self._senders

    def _look(self, key: Key, is_used: bool, started: float) -> bool:
        """Note whether a content is named; say whether it is to be removed."""
        content = self._contents.get(key)
        if content is None:
            return False
        if is_used:
            content.named = True
            if content.released:
                self._revive(key, content)
            return False
        if self._is_old(key[0], content.asked):
            return True
        since = min(self._senders.get(key[0], ()), default=started)
        if content.named and not content.released and content.asked < min(started, since) - SETTLE_S:
            content.released = True
            self._released[key] = None
            self._counted[key[0]].add(-content.size, -1)
        return False

    async def _remove(self, keys: Sequence[Key], *, enough: int | None = None) -> int:
        """Remove contents that are old; or released ones, no more of them than make room for ``enough`` bytes."""
        async with self._disk:
            going = []
            for key in keys:
                # Looked at again: it may have been asked for, or come anew, since it was chosen.
                if (content := self._contents.get(key)) is None:
                    continue
                if enough is None:
                    goes = self._is_old(key[0], content.asked)
                else:
                    goes = content.released and not self._fits(enough)
                if goes:
                    self._forget(key)
                    going.append(self._path(key))
            await asyncio.to_thread(_unlink, going)
        return len(going)

    def _fits(self, size: int) -> bool:
        return self._all.bytes + size <= self._limits.bytes and self._all.files + 1 <= self._limits.files


def _unlink(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def user_directory(user: str) -> str:
    """Return the name of a user's directory: whatever the name is, it is one."""
    return hashlib.sha256(user.encode()).hexdigest()[:32]
