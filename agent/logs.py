"""The output of tasks: written by their keepers, kept within limits, read from the start, followed to the end.

A task's log is a directory in the form of
:class:`farbus.linux.keeper.OutputLog`.  While the task runs its child tells
when there is more; afterwards the files are all there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import structlog

from farbus.agent.names import file_name
from farbus.api.merging import merged
from farbus.errors import NotFound, Unavailable
from farbus.linux.keeper import NOTICE_STREAM, OutputLog
from farbus.linux.output import START, Piece, Position, read_pieces
from farbus.linux.processes import Child
from farbus.model.cluster import LogChunk

_log = structlog.get_logger()

_SEGMENT = re.compile(r"\d{8}\.log")

POSITION_BITS = 40
"""Of a position as one number: bytes within a segment, 1 TiB; the segment's number is above."""


MAX_LOGS = 10_000
"""Logs kept of tasks that have ended, empty ones too: each costs the disk an inode and the agent some hundred bytes."""

REMOVED_AT_ONCE = 256
"""Logs removed in one go: the event loop waits for it, some 30 ms.  What is too much beyond goes with the next log."""


class LogStore:
    """All tasks' logs under one directory.

    Those of tasks that have ended are kept within ``limit_bytes`` together;
    that of the task that ended first goes first.  An agent that starts calls
    :meth:`look` when it knows which tasks run.
    """

    def __init__(self, directory: Path, *, limit_bytes_per_task: int, limit_bytes: int) -> None:
        self._directory = directory
        self.limit_bytes_per_task = limit_bytes_per_task
        self._limit_bytes = limit_bytes
        self._live: dict[Path, Child | None] = {}
        self._kept: dict[Path, int] = {}
        """Logs of tasks that have ended, in that order, with their bytes."""
        self._kept_bytes = 0
        # Set when a log that was made has its program, or will have none.
        self._begun: dict[Path, asyncio.Event] = {}

    def _path(self, job: str, task: str) -> Path:
        return self._directory / file_name(job, what="job") / file_name(task, what="task")

    def create(self, job: str, task: str) -> Path:
        """Make room for a log and return its directory; an older one of the same name goes."""
        directory = self._path(job, task)
        try:
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise Unavailable(f"make the log of {job}/{task}: {error.strerror}", hint=f"see {directory}") from error
        self._begin(directory)
        self._leave_out(directory)
        self._live[directory] = None
        self._begun[directory] = asyncio.Event()
        self._prune()
        return directory

    def attach(self, job: str, task: str, child: Child) -> None:
        """Let readers follow a program's output."""
        directory = self._path(job, task)
        self._leave_out(directory)
        self._live[directory] = child
        self._begin(directory)

    def ended(self, job: str, task: str) -> None:
        """Take note that a log is complete."""
        directory = self._path(job, task)
        self._live.pop(directory, None)
        self._begin(directory)
        if (size := _size_of(directory)) is not None:
            self._keep(directory, size)
            self._prune()

    async def look(self) -> None:
        """Find the logs that earlier agents have kept, and remove what is too much."""
        found = await asyncio.to_thread(_find, self._directory)
        since, self._kept, self._kept_bytes = self._kept, {}, 0
        for directory, size in (*found, *since.items()):
            if directory not in self._live:
                self._keep(directory, size)
        for _ in iter(self._prune, False):
            await asyncio.sleep(0)

    def _keep(self, directory: Path, size: int) -> None:
        self._leave_out(directory)
        self._kept[directory] = size
        self._kept_bytes += size

    def _leave_out(self, directory: Path) -> None:
        self._kept_bytes -= self._kept.pop(directory, 0)

    def _begin(self, directory: Path) -> None:
        if begun := self._begun.pop(directory, None):
            begun.set()

    def note(self, job: str, task: str, text: str) -> None:
        """Add a line of Farbus's own to a log that no program writes to, or not yet."""
        directory = self._path(job, task)
        try:
            log = OutputLog(str(directory), limit_bytes=self.limit_bytes_per_task)
        except OSError as error:
            _log.error("note lost", directory=str(directory), error=error.strerror)
            return
        log.append(NOTICE_STREAM, text.encode())
        log.close()

    def _prune(self) -> bool:
        """Remove some of the logs that ended first while all together are too large or too many; say if any was."""
        removed = 0
        while (self._kept_bytes > self._limit_bytes or len(self._kept) > MAX_LOGS) and removed < REMOVED_AT_ONCE:
            directory = next(iter(self._kept))
            self._leave_out(directory)
            shutil.rmtree(directory, ignore_errors=True)
            with contextlib.suppress(OSError):
                directory.parent.rmdir()
            removed += 1
        return removed > 0

    async def read(
        self, job: str, task: str, *, follow: bool, position: int = 0, turn: asyncio.Lock | None = None
    ) -> AsyncGenerator[LogChunk, None]:
        """Yield a task's output from ``position``, or the oldest that is kept; with ``follow`` until it has ended.

        ``position`` is that of the last chunk that a reader already has;
        ``turn`` is as of :meth:`farbus.linux.processes.Child.output`.
        Raises :class:`NotFound` when there is no such log.
        """
        directory = self._path(job, task)
        if not directory.is_dir():
            raise NotFound(
                f"task {job}/{task}: no output is kept on this node", hint=f"farbus jobs {job} says what became of it"
            )
        if follow and (begun := self._begun.get(directory)):
            # Its files are still on their way.
            await begun.wait()
        at = Position(position >> POSITION_BITS, position & ((1 << POSITION_BITS) - 1)) if position > 0 else START
        child = self._live.get(directory)
        pieces = _files(directory, at, turn) if child is None else child.output(position=at, follow=follow, turn=turn)
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                number = piece.position.segment << POSITION_BITS | piece.position.offset
                yield LogChunk(data=piece.data, stream=piece.stream, position=number, task=task)

    async def read_several(
        self, job: str, positions: Mapping[str, int], *, follow: bool
    ) -> AsyncGenerator[LogChunk, None]:
        """Yield several tasks' output as it comes, of each as :meth:`read` does, some of one of them in memory.

        Of a task without a log here there is nothing: it never began, or is kept no more.
        """
        turn = asyncio.Lock()

        async def there_is(task: str, position: int) -> AsyncGenerator[LogChunk, None]:
            chunks = self.read(job, task, follow=follow, position=position, turn=turn)
            with contextlib.suppress(NotFound):
                async with contextlib.aclosing(chunks):
                    async for chunk in chunks:
                        yield chunk

        chunks = merged(there_is(task, position) for task, position in positions.items())
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                yield chunk


async def _files(directory: Path, position: Position, turn: asyncio.Lock | None) -> AsyncGenerator[Piece, None]:
    while True:
        before = position
        async with turn or contextlib.nullcontext():
            for piece in read_pieces(directory, position):
                yield piece
                position = piece.position
        if position == before:
            return


def _size_of(directory: Path) -> int | None:
    """Return the bytes of a log; None where there is none."""
    try:
        with os.scandir(directory) as entries:
            return sum(entry.stat().st_size for entry in entries)
    except OSError:
        return None


def _find(base: Path) -> list[tuple[Path, int]]:
    """Return the logs below a directory with their bytes, the one that was written to first at the beginning.

    Of directories with anything else in them none is a log of ours, to be removed some day.
    """
    found = []
    for directory in base.glob("*/*"):
        with contextlib.suppress(OSError):
            entries = list(directory.iterdir())
            if not all(_SEGMENT.fullmatch(entry.name) for entry in entries):
                continue
            written = max((entry.stat().st_mtime for entry in entries), default=directory.stat().st_mtime)
            found.append((written, directory, _size_of(directory) or 0))
    return [(directory, size) for _, directory, size in sorted(found)]
