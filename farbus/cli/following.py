"""Watching a job: its output as it comes, and what its end means for the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, cast

from farbus.cli.tables import format_placement, is_ended, never_began
from farbus.errors import ExitCode, FarbusError, NotFound, Unavailable
from farbus.model.job import JobStatus, TaskState, TaskStatus
from farbus.model.states import JobState

if TYPE_CHECKING:
    from farbus.api.client import ClusterClient
    from farbus.model.cluster import LogChunk

T = TypeVar("T")

PATIENCE_S = 120.0
"""How long a stream that broke is begun again: longer than an agent needs for a restart on a slow or busy machine.

Half a minute was too short for a watch on a move whose agent was killed in
the lab, where an agent needs that long to start.
"""

AGAIN_S = 0.5
"""Between two attempts."""


def say(message: str, *, quiet: bool = False) -> None:
    """Tell the person at the terminal something about the job, beside the job's own output."""
    if not quiet:
        print(f"farbus: {' '.join(message.split())}", file=sys.stderr, flush=True)  # noqa: T201


@contextlib.asynccontextmanager
async def closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close a stream of the client's however the block ends: that is what ends its call."""
    try:
        yield stream
    finally:
        await cast(AsyncGenerator[T, None], stream).aclose()


async def resumed(
    begin: Callable[[], AsyncIterator[T]], *, patience_s: float = PATIENCE_S, answered: bool = False
) -> AsyncGenerator[T, None]:
    """Yield from a stream that is begun again when it breaks: an agent or scheduler may be restarted.

    One that has never given anything is not begun again, unless the other
    side has ``answered`` before: then it had nothing to give.  Raises what
    broke it once it has given nothing more for ``patience_s``.
    """
    give_up_at = math.inf if answered else 0.0
    while True:
        try:
            async with closing(begin()) as stream:
                async for item in stream:
                    # From now on: how long it goes on without a word is its own affair.
                    give_up_at = math.inf
                    yield item
            return
        except Unavailable:
            if time.monotonic() > give_up_at:
                raise
            if give_up_at == math.inf:
                give_up_at = time.monotonic() + patience_s
        await asyncio.sleep(AGAIN_S)


async def told_or_listed(
    begin: Callable[[], AsyncIterator[T]], look: Callable[[T], Awaitable[tuple[T | None, bool]]]
) -> AsyncGenerator[T, None]:
    """Yield from a stream that can't be begun again; where it breaks, go on with what a listing says.

    ``look`` is given what was known last, and returns what is listed now, None
    for nothing, and whether that is the end.  A stream that has given nothing
    is not looked for.  Raises what broke a look where none has succeeded for ``PATIENCE_S``.
    """
    last: T | None = None
    try:
        async with closing(begin()) as stream:
            async for last in stream:
                yield last
        return
    except Unavailable:
        if last is None:
            raise
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            found, is_end = await look(last)
        except Unavailable:
            if time.monotonic() > give_up_at:
                raise
        else:
            give_up_at = time.monotonic() + PATIENCE_S
            if found is not None:
                last = found
                yield found
            if is_end:
                return
        await asyncio.sleep(AGAIN_S)


def exit_code_of(task: TaskStatus) -> int:
    """Return a task's exit code as a shell would: 128 + n for signal n."""
    return 128 - task.exit_code if task.exit_code < 0 else task.exit_code


def exit_code_of_job(status: JobStatus) -> int:
    """Return what ``submit --wait`` ends with: the code of the first task that failed.

    A job that failed or was cancelled without a task of its own that did
    ends with 125 (:attr:`ExitCode.RUN_FAILED`).
    """
    failed = [code for code in map(exit_code_of, status.tasks) if code]
    if status.state is JobState.SUCCEEDED:
        return int(ExitCode.OK)
    return failed[0] if failed else int(ExitCode.RUN_FAILED)


def write_chunk(data: bytes, stream: int, prefix: bytes, *, aside: bool = False) -> None:
    """Write part of a task's output to where the task wrote it; with several tasks each line begins with its name.

    What it wrote to standard output goes to standard error where it is to stand ``aside`` of something else.
    """
    out = sys.stderr.buffer if stream == 2 or aside else sys.stdout.buffer
    if prefix:
        data = b"".join(prefix + line for line in data.splitlines(keepends=True))
    out.write(data)
    out.flush()


async def copy_logs(
    client: ClusterClient, job_id: str, *, task: str, follow: bool, prefix: str = "", aside: bool = False
) -> None:
    """Copy a task's output to this process's, until it ends or, without ``follow``, what there is.

    The job is known: what breaks before its first output is begun again too.
    """
    label = f"[{prefix}] ".encode() if prefix else b""
    rest: dict[int, bytes] = {}
    last: LogChunk | None = None

    def begin() -> AsyncIterator[LogChunk]:
        if last is not None and not last.position:
            raise FarbusError(
                f"job {job_id}: its output broke off here, and its agent can't go on from there",
                hint=f"farbus logs {job_id} shows it all",
            )
        return client.read_logs(job_id, task=task, follow=follow, position=last.position if last else 0)

    async for chunk in resumed(begin, answered=True) if follow else begin():
        last = chunk
        data = rest.pop(chunk.stream, b"") + chunk.data
        if label:
            # Whole lines only: those of different tasks must not run into each other.
            data, newline, tail = data.rpartition(b"\n")
            data += newline
            if tail:
                rest[chunk.stream] = tail
        if data:
            write_chunk(data, chunk.stream, label, aside=aside)
    for stream, data in rest.items():
        write_chunk(data + b"\n", stream, label, aside=aside)


async def follow_job(
    client: ClusterClient, job_id: str, *, output: bool, quiet: bool = False, aside: bool = False
) -> JobStatus:
    """Watch a job to its end, telling on stderr what becomes of it; with ``output`` copy its output too.

    All of it goes to stderr where it is to stand ``aside``.
    """
    told = ""
    copies: list[asyncio.Task[None]] = []
    last: JobStatus | None = None
    try:
        async with closing(resumed(lambda: client.watch_job(job_id))) as statuses:
            async for status in statuses:
                last = status
                line = news(status)
                # How it ended is told after its last output.
                if line and line != told and not is_ended(status):
                    say(line, quiet=quiet)
                    told = line
                started = {task.task for task in status.tasks if task.state is not TaskState.PENDING}
                if output and not copies and started:
                    copies = _start_copies(client, status, aside=aside)
        if last is None or not is_ended(last):
            raise Unavailable(
                f"the watch on job {job_id} ended before the job", hint=f"farbus jobs {job_id} shows how it is"
            )
        for copy in copies:
            try:
                await copy
            except NotFound:
                # It never began, and the job's end says why.
                continue
            except FarbusError as error:
                # The job has ended all the same: its exit code is not to be lost with its output.
                say(str(error))
        if line := news(last):
            say(line, quiet=quiet)
    finally:
        for copy in copies:
            copy.cancel()
    return last


def _start_copies(client: ClusterClient, status: JobStatus, *, aside: bool) -> list[asyncio.Task[None]]:
    names = [task.task for task in status.tasks]
    return [
        asyncio.create_task(
            copy_logs(
                client, status.job.id, task=name, follow=True, prefix=name if len(names) > 1 else "", aside=aside
            ),
            name=f"output of {name}",
        )
        for name in names
    ]


def news(status: JobStatus) -> str:
    """Say what has become of a job in one line; empty where there is nothing to say."""
    job_id = status.job.id
    match status.state:
        case JobState.QUEUED:
            why = "; ".join(miss.message for miss in status.misses) or status.reason
            return f"{job_id} waits: {why}" if why else ""
        case JobState.PREPARING:
            # Who forgot to ask for one reads it here, before the program finds none.
            bare = (
                ""
                if any(not device.is_storage for task in status.placements for device in task.devices)
                else ", without a GPU"
            )
            return f"{job_id} goes to " + ", ".join(format_placement(p) for p in status.placements) + bare
        case JobState.CANCELLED:
            return f"{job_id} was cancelled" + (f": {status.reason}" if status.reason else "")
        case JobState.FAILED:
            return f"{job_id} failed: {_failure(status)}"
        case JobState.SUCCEEDED if left_out := never_began(status):
            return f"{job_id} succeeded without {left_out} of its tasks: there was no room before the others had ended"
        case _:
            return ""


def _failure(status: JobStatus) -> str:
    if status.reason:
        return status.reason
    for task in status.tasks:
        if task.exit_code < 0:
            return f"task {task.task} was ended by signal {-task.exit_code}"
        if task.exit_code:
            return f"task {task.task} ended with exit code {task.exit_code}"
    return "no reason is known"


def job_error(error: FarbusError, job_id: str) -> FarbusError:
    """Add to an error met while watching that the job itself goes on."""
    error.hint = f"{error.hint}; " if error.hint else ""
    error.hint += f"job {job_id} goes on, farbus logs -f {job_id} follows it again"
    return error
