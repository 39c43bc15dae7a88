"""Tasks' logs on their way to the scheduler, each as far as its reader has given credit.

A reader that is slow holds up its own log alone: what it has not asked for
stays on the disk, where the oldest goes when there is too much of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from farbus.agent.logs import LogStore
from farbus.api.conversion import to_message
from farbus.api.v1 import cluster_pb2, session_pb2
from farbus.errors import FarbusError, NotFound

_log = structlog.get_logger()

MAX_LOG_STREAMS = 128
"""Logs that are read at the same time over one session: each holds a file open and a chunk of 64 KiB at most."""
MAX_LOG_STREAMS_PER_USER = 32
"""Those of them that one user reads: each is one task, or all that a job has here."""


class _Credit:
    """How much a reader takes; without limit where the scheduler does not know credit."""

    def __init__(self, first_bytes: int) -> None:
        self._left = first_bytes
        self._unlimited = first_bytes <= 0
        self._more = asyncio.Event()

    def give(self, size: int) -> None:
        self._left += size
        self._more.set()

    def spend(self, size: int) -> None:
        """Take what was sent; the last chunk may overdraw."""
        self._left -= size

    async def wait(self) -> None:
        """Return once something may be sent."""
        while not self._unlimited and self._left <= 0:
            self._more.clear()
            await self._more.wait()


@dataclass(frozen=True)
class _Stream:
    task: asyncio.Task[None]
    credit: _Credit
    user: str


class LogStreams:
    """The logs that one session reads."""

    def __init__(
        self,
        *,
        logs: LogStore,
        send: Callable[[session_pb2.NodeMessage], Awaitable[None]],
        refuse: Callable[[session_pb2.NodeMessage], None],
    ) -> None:
        self._logs = logs
        self._send = send
        self._refuse = refuse
        self._streams: dict[str, _Stream] = {}

    def start(self, request: session_pb2.LogRequest) -> None:
        """Send a log in a task of its own."""
        number, user = request.request_id, request.user
        if problem := self._problem(number, user):
            self._refuse(_end(number, error=problem))
            return
        credit = _Credit(request.credit_bytes)
        task = asyncio.create_task(self._run(request, credit), name=f"log {request.job_id}/{request.task}")
        self._streams[number] = _Stream(task=task, credit=credit, user=user)
        task.add_done_callback(lambda _: self._streams.pop(number, None))

    def _problem(self, number: str, user: str) -> str:
        """Say why one more can't be read; an empty string when it can."""
        if number in self._streams:
            return f"log request {number} is being served already; ask under another number"
        if len(self._streams) >= MAX_LOG_STREAMS:
            return f"{MAX_LOG_STREAMS} logs of this node are being read; try again later"
        # A scheduler that does not tell whose they are is held to the limit of all.
        if user and sum(stream.user == user for stream in self._streams.values()) >= MAX_LOG_STREAMS_PER_USER:
            return (
                f"user {user} reads {MAX_LOG_STREAMS_PER_USER} logs of this node already, the most that one user may;"
                " end one of them, or read one task at a time with --task"
            )
        return ""

    def give(self, more: session_pb2.LogCredit) -> None:
        """Take a reader's credit; of one that has gone meanwhile, nothing."""
        if more.request_id in self._streams and more.bytes > 0:
            self._streams[more.request_id].credit.give(more.bytes)

    def cancel(self, number: str) -> None:
        """End a log that nobody reads any more."""
        if number in self._streams:
            self._streams[number].task.cancel()

    def cancel_all(self) -> None:
        """End all: the session has ended."""
        for stream in self._streams.values():
            stream.task.cancel()

    async def _run(self, request: session_pb2.LogRequest, credit: _Credit) -> None:
        try:
            await self._send_log(request, credit)
        except FarbusError:
            # The session is at its end: its other tasks say why.
            return
        except Exception as defect:
            # A defect here must not end everybody else's session, and who reads must not wait for ever.
            _log.exception("defect", job=request.job_id, task=request.task)
            self._refuse(_end(request.request_id, error=f"{_whose(request)}: a defect: {defect!r}"))

    async def _send_log(self, request: session_pb2.LogRequest, credit: _Credit) -> None:
        number, error, missing = request.request_id, "", False
        try:
            chunks = (
                self._logs.read_several(request.job_id, dict(request.tasks), follow=request.follow)
                if request.tasks
                else self._logs.read(request.job_id, request.task, follow=request.follow, position=request.position)
            )
            async with contextlib.aclosing(chunks):
                # The next chunk is read from the disk only when it may be sent.
                await credit.wait()
                async for chunk in chunks:
                    data = session_pb2.LogData(request_id=number, chunk=to_message(chunk, cluster_pb2.LogChunk))
                    # Straight to the stream: a session that is slow holds up the task that reads for it.
                    await self._send(session_pb2.NodeMessage(log_data=data))
                    credit.spend(len(chunk.data))
                    await credit.wait()
        except FarbusError as problem:
            error, missing = str(problem), isinstance(problem, NotFound)
        except OSError as problem:
            # A disk that fails: who reads would wait for the rest for ever.
            error = f"{_whose(request)}: its output can't be read: {problem.strerror}"
        await self._send(_end(number, error=error, missing=missing))


def _whose(request: session_pb2.LogRequest) -> str:
    return f"task {request.job_id}/{request.task}" if request.task else f"job {request.job_id}"


def _end(number: str, *, error: str, missing: bool = False) -> session_pb2.NodeMessage:
    data = session_pb2.LogData(request_id=number, end=True, error=error, missing=missing)
    return session_pb2.NodeMessage(log_data=data)
