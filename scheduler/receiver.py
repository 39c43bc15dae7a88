"""One content on its way into the scheduler's store."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from farbus.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from hashlib import _Hash


class Receiver:
    """A content that comes piece by piece into the file ``part``; ``keep`` gives it its name when it is whole."""

    def __init__(
        self, owner: str, size: int, digest: str, part: Path, *, keep: Callable[[Receiver, str], Awaitable[None]]
    ) -> None:
        self.owner = owner
        self.size = size
        self.part = part
        self.received = 0
        self.found = hashlib.sha256()
        self.kept = False
        self.spoiled = False
        """Whether what came is not what was announced, and no use to go on with."""
        self._keep = keep
        self._digest = digest
        self._file: BinaryIO | None = None
        self._pending: asyncio.Future[None] | None = None
        """What is being done with the file, also where who waited for it was cancelled."""

    async def begin(self) -> None:
        """Open an empty part."""
        await self._do(asyncio.to_thread(self._open, "wb"))

    async def go_on(self, offset: int, found: _Hash) -> None:
        """Open a part behind ``offset`` bytes, with their hash."""
        await self._do(asyncio.to_thread(self._open, "r+b", offset))
        self.received, self.found = offset, found

    def _open(self, mode: str, offset: int = 0) -> None:
        self._file = cast("BinaryIO", open(self.part, mode))  # noqa: SIM115 - closed by close()
        self._file.truncate(offset)
        self._file.seek(offset)

    async def close(self) -> None:
        """Wait for what is under way, and close the part."""
        if self._pending is not None:
            await asyncio.wait((self._pending,))
        if self._file is not None and not self._file.closed:
            try:
                await asyncio.to_thread(self._file.close)
            except OSError:
                self.spoiled = True

    def seal(self) -> None:
        """Close the part, which is whole; blocks."""
        assert self._file is not None
        self._file.close()

    async def _do(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something to its end, also where who waits for it is cancelled: what is counted has been written."""
        self._pending = asyncio.ensure_future(work)
        # Heard here, where nobody may be left to hear it.
        self._pending.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._pending)

    @property
    def is_whole(self) -> bool:
        """Say whether all bytes have come."""
        return self.received == self.size

    async def write(self, data: bytes) -> None:
        """Take the next piece."""
        if self.received + len(data) > self.size:
            self.spoiled = True
            raise InvalidInput("a file is longer than was said at first", hint="did it grow meanwhile? try again")
        await self._do(asyncio.to_thread(self._write, data))

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError as error:
            self.spoiled = True
            raise full(error) from error
        self.found.update(data)
        self.received += len(data)

    async def finish(self, digest: str = "") -> str:
        """Keep the content and return its digest.

        Raises :class:`InvalidInput` where it is not whole or not what was announced.
        """
        found, wanted = self.found.hexdigest(), digest or self._digest
        if not self.is_whole or found != wanted:
            self.spoiled = True
            raise InvalidInput("a file did not arrive as it was sent", hint="did it change meanwhile? try again")
        await self._do(self._finish(found))
        return found

    async def _finish(self, digest: str) -> None:
        try:
            await self._keep(self, digest)
        except OSError as error:
            self.spoiled = True
            raise full(error) from error


def full(error: OSError) -> Unavailable:
    """Return what is told where the disk takes no more."""
    return Unavailable(f"the scheduler can't keep a file: {error.strerror}", hint="ask its operator for room")
