"""Carries tasks' output from the agents that keep it to those who read it.

A reader costs a bounded buffer: an agent sends as much as it has credit for,
and gets more as the reader takes it.  The sessions are shared by everything
that a node says, so a slow reader can't hold one up.  An agent that does not
know credit sends all that it has: when the buffer of one of its readers, or
all buffers together, are full, that reader is cut off and told so.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping

import msgspec

from farbus.errors import FarbusError, NotFound, Unavailable
from farbus.model.cluster import LogChunk

CREDIT_BYTES = 2**20
"""What an agent may send ahead of a reader: enough for a node a tenth of a second away at 10 MB/s."""
CREDIT_STEP_BYTES = CREDIT_BYTES // 4
"""What a reader has taken before the agent is told: a message for four chunks."""
MAX_READER_BYTES = 80 * 2**20
"""Buffer of one reader of an agent without credit: more than the log that an agent keeps of a task (64 MiB)."""
MAX_TOTAL_BYTES = 512 * 2**20
"""Buffers of all readers."""
MAX_READERS = 1_024
"""Readers at a time."""
MAX_READERS_PER_USER = 256
"""Those of them that one user has."""


class _Reader:
    def __init__(self, node: str, user: str) -> None:
        self.node = node
        self.user = user
        self.chunks: deque[LogChunk] = deque()
        self.size = 0
        self.taken = 0
        """Bytes that the reader took since the agent was told."""
        self.changed = asyncio.Event()
        self.ended = False
        self.error: FarbusError | None = None

    def end(self, error: FarbusError | None) -> None:
        self.ended = True
        self.error = self.error or error
        self.changed.set()


class LogRelay:
    """All readers; ``request``, ``credit`` and ``cancel`` send to a node, the first says whether it has a session."""

    def __init__(
        self,
        *,
        request: Callable[[str, str, str, Mapping[str, int], bool, str], bool],
        credit: Callable[[str, str, int], None],
        cancel: Callable[[str, str], None],
    ) -> None:
        self._request = request
        self._credit = credit
        self._cancel = cancel
        self._numbers = itertools.count(1)
        self._readers: dict[str, _Reader] = {}
        self._total = 0

    async def read(
        self, node: str, job_id: str, positions: Mapping[str, int], *, user: str, follow: bool
    ) -> AsyncGenerator[LogChunk, None]:
        """Yield the output of a job's tasks from ``node``, of each from behind its position, to ``user``.

        Raises :class:`Unavailable` when the node is away or lost on the way,
        or this reader was too slow; :class:`FarbusError` with what the node
        has to say against it.
        """
        if len(self._readers) >= MAX_READERS:
            raise Unavailable(f"{MAX_READERS} logs are being read already", hint="try again later")
        if sum(reader.user == user for reader in self._readers.values()) >= MAX_READERS_PER_USER:
            raise Unavailable(
                f"user {user} reads {MAX_READERS_PER_USER} logs already, the most that one user may",
                hint="end one of them",
            )
        number = f"log-{next(self._numbers)}"
        # Agents before this version do not say whose a chunk is, and are asked of one task alone.
        only = next(iter(positions)) if len(positions) == 1 else ""
        reader = self._readers[number] = _Reader(node, user)
        try:
            if not self._request(node, number, job_id, positions, follow, user):
                raise Unavailable(f"node {node}, which has the log, is not connected", hint="try again later")
            while True:
                while reader.chunks:
                    chunk = reader.chunks.popleft()
                    self._count(reader, -len(chunk.data))
                    yield msgspec.structs.replace(chunk, task=only) if only else chunk
                    # Here the reader wants the next one: this one is out of our hands.
                    self._give_credit(number, reader, len(chunk.data))
                if reader.ended:
                    if reader.error is not None:
                        raise reader.error
                    return
                reader.changed.clear()
                await reader.changed.wait()
        finally:
            del self._readers[number]
            self._count(reader, -reader.size)
            if not reader.ended:
                self._cancel(node, number)

    def take(
        self, node: str, number: str, chunk: LogChunk | None, *, end: bool, error: str, missing: bool = False
    ) -> None:
        """Take what a node sent; of requests that nobody waits for any more, nothing.

        ``missing`` says that the node has no such log: its ``error`` is :class:`NotFound`.
        """
        reader = self._readers.get(number)
        if reader is None or reader.node != node or reader.ended:
            return
        if chunk is not None and chunk.data:
            reader.chunks.append(chunk)
            self._count(reader, len(chunk.data))
            if reader.size > MAX_READER_BYTES or self._total > MAX_TOTAL_BYTES:
                reader.end(Unavailable("the log was cut off here: it was read too slowly", hint="read it again"))
                self._cancel(node, number)
                return
            reader.changed.set()
        if end:
            kind = NotFound if missing else FarbusError
            reader.end(kind(error) if error else None)

    def lose(self, node: str) -> None:
        """End what is read from a node whose session ended."""
        for reader in self._readers.values():
            if reader.node == node and not reader.ended:
                reader.end(Unavailable(f"node {node}, which has the log, was lost", hint="try again later"))

    def _give_credit(self, number: str, reader: _Reader, size: int) -> None:
        reader.taken += size
        if reader.taken >= CREDIT_STEP_BYTES and not reader.ended:
            self._credit(reader.node, number, reader.taken)
            reader.taken = 0

    def _count(self, reader: _Reader, size: int) -> None:
        reader.size += size
        self._total += size
