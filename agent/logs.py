"""The output of tasks: kept within limits, read from the start, followed to the end.

A task's log is a directory of segments, ``00000001.log`` and so on, each a
sequence of records: one byte for the stream (1 output, 2 error), four for the
length (big endian), then the data.  So the two streams stay in the order in
which they were written, and the oldest segment can go when there are too many.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import struct
from collections.abc import AsyncGenerator
from pathlib import Path

import structlog

from farbus.agent.names import file_name
from farbus.errors import NotFound, Unavailable
from farbus.model.cluster import LogChunk

_log = structlog.get_logger()

_HEADER = struct.Struct(">BI")

SEGMENTS = 8
"""Segments per log: the limit is kept to within one of them."""

CHUNK_BYTES = 64 * 1024
"""Most data in one chunk to a reader."""

NOTICE_STREAM = 2
"""What Farbus itself has to say goes between the lines of standard error."""


class LogWriter:
    """Writes one task's log; made by :meth:`LogStore.create`."""

    def __init__(self, store: LogStore, directory: Path, *, limit_bytes: int) -> None:
        self._store = store
        self._directory = directory
        self._segment_bytes = max(1, limit_bytes // SEGMENTS)
        self._number = 0
        self._file: int | None = None
        self._size = 0
        self._lost_bytes = 0
        self.changed = asyncio.Event()

    def append(self, stream: int, data: bytes) -> None:
        """Add output.  A full disk loses output, never the task."""
        try:
            self._write(stream, data)
        except OSError as error:
            if not self._lost_bytes:
                _log.error("output lost", directory=str(self._directory), error=error.strerror)
            self._lost_bytes += len(data)
        self._wake()

    def close(self) -> None:
        """End the log: readers that follow it end too."""
        if self._lost_bytes:
            with contextlib.suppress(OSError):
                self._write(NOTICE_STREAM, b"[farbus: %d bytes of output lost: disk]\n" % self._lost_bytes)
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._store.ended(self._directory)
        self._wake()

    def _write(self, stream: int, data: bytes) -> None:
        if self._file is None or self._size >= self._segment_bytes:
            self._next_segment()
        assert self._file is not None
        record = _HEADER.pack(stream, len(data)) + data
        written = os.write(self._file, record)
        if written < len(record):
            # The disk has just become full: half a record would hide all that follow.
            os.ftruncate(self._file, self._size)
            raise OSError(28, os.strerror(28))
        self._size += len(record)

    def _next_segment(self) -> None:
        descriptor = os.open(
            self._directory / f"{self._number + 1:08d}.log",
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC,
            0o600,
        )
        if self._file is not None:
            os.close(self._file)
        self._number, self._file, self._size = self._number + 1, descriptor, 0
        with contextlib.suppress(FileNotFoundError):
            (self._directory / f"{self._number - SEGMENTS:08d}.log").unlink()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class LogStore:
    """All tasks' logs under one directory."""

    def __init__(self, directory: Path, *, limit_bytes_per_task: int, limit_bytes: int) -> None:
        self._directory = directory
        self._limit_bytes_per_task = limit_bytes_per_task
        self._limit_bytes = limit_bytes
        self._live: dict[Path, LogWriter] = {}

    def _path(self, job: str, task: str) -> Path:
        return self._directory / file_name(job, what="job") / file_name(task, what="task")

    def create(self, job: str, task: str) -> LogWriter:
        """Start a log; an older one of the same name goes."""
        directory = self._path(job, task)
        try:
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise Unavailable(f"make the log of {job}/{task}: {error.strerror}", hint=f"see {directory}") from error
        writer = LogWriter(self, directory, limit_bytes=self._limit_bytes_per_task)
        self._live[directory] = writer
        self._prune()
        return writer

    def ended(self, directory: Path) -> None:
        """Take note that a log has ended."""
        self._live.pop(directory, None)

    def _prune(self) -> None:
        """Remove the logs that ended first while all together are too large."""
        sized = []
        for directory in self._directory.glob("*/*"):
            with contextlib.suppress(OSError):
                entries = [entry.stat() for entry in directory.iterdir()]
                newest = max((entry.st_mtime for entry in entries), default=0.0)
                sized.append((newest, sum(entry.st_size for entry in entries), directory))
        total = sum(size for _, size, _ in sized)
        for _, size, directory in sorted(sized):
            if total <= self._limit_bytes:
                return
            if directory not in self._live:
                shutil.rmtree(directory, ignore_errors=True)
                with contextlib.suppress(OSError):
                    directory.parent.rmdir()
                total -= size

    async def read(self, job: str, task: str, *, follow: bool) -> AsyncGenerator[LogChunk, None]:
        """Yield a task's output from the oldest that is kept; with ``follow`` until it has ended.

        Raises :class:`NotFound` when there is no such log.
        """
        directory = self._path(job, task)
        if not directory.is_dir():
            raise NotFound(f"task {job}/{task}: no output is kept on this node")
        number = offset = 0
        while True:
            # Taken before the files are looked at: what is written later wakes us.
            writer = self._live.get(directory)
            changed = writer.changed if writer else None
            numbers = _segments(directory)
            if numbers and number < numbers[0]:
                if numbers[0] > 1:
                    yield LogChunk(data=b"[farbus: older output was dropped]\n", stream=NOTICE_STREAM)
                number, offset = numbers[0], 0
            if numbers:
                chunks, offset = _read_records(directory / f"{number:08d}.log", offset)
                for chunk in chunks:
                    yield chunk
                if chunks:
                    continue
                if number < numbers[-1]:
                    number, offset = number + 1, 0
                    continue
            if changed is None or not follow:
                return
            await changed.wait()


def _segments(directory: Path) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(int(entry.stem) for entry in directory.glob("*.log"))
    return []


def _read_records(path: Path, offset: int) -> tuple[list[LogChunk], int]:
    """Read some whole records; return them joined by stream, and where the next starts."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(CHUNK_BYTES)
            if len(data) >= _HEADER.size:
                stream, length = _HEADER.unpack_from(data)
                if len(data) < _HEADER.size + length:
                    data += file.read(_HEADER.size + length - len(data))
    except FileNotFoundError:
        # Dropped between the listing and now.
        return [], offset
    chunks: list[LogChunk] = []
    position = 0
    while len(data) - position >= _HEADER.size:
        stream, length = _HEADER.unpack_from(data, position)
        end = position + _HEADER.size + length
        if end > len(data):
            break
        piece = data[position + _HEADER.size : end]
        if chunks and chunks[-1].stream == stream:
            piece = chunks.pop().data + piece
        chunks.append(LogChunk(data=piece, stream=stream))
        position = end
    return chunks, offset + position
