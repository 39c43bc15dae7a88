"""Watching a job: its output as it comes, and what its end means for the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import stat
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from farbus.cli.listing import printable
from farbus.cli.tables import format_placement, is_ended, never_began
from farbus.errors import ExitCode, FarbusError, NotFound, Unavailable, first_error
from farbus.model.job import STOPPED, JobStatus, TaskState, TaskStatus
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
    """Tell the person at the terminal something about the job, beside the job's own output.

    What others wrote (names, reasons) stays text: it moves no cursor and sets no colour.
    """
    if not quiet:
        print(f"farbus: {' '.join(printable(message).split())}", file=sys.stderr, flush=True)  # noqa: T201


@contextlib.asynccontextmanager
async def closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close a stream of the client's however the block ends: that is what ends its call."""
    try:
        yield stream
    finally:
        await cast(AsyncGenerator[T, None], stream).aclose()


@contextlib.asynccontextmanager
async def while_read() -> AsyncIterator[None]:
    """End the block by BrokenPipeError once nobody reads standard output any more.

    A write would tell, and the next one may be hours away: ``farbus logs -f j7 | grep -m1 ready``.
    """
    try:
        descriptor = sys.stdout.fileno()
        is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except (OSError, ValueError):
        is_pipe = False
    if not is_pipe:
        yield
        return
    loop, task, is_gone = asyncio.get_running_loop(), asyncio.current_task(), False
    assert task is not None

    def end() -> None:
        nonlocal is_gone
        is_gone = True
        loop.remove_reader(descriptor)
        task.cancel()

    # There is nothing to be read at this end: only that the other one is closed is heard of.
    loop.add_reader(descriptor, end)
    try:
        yield
    except asyncio.CancelledError as cancelled:
        if is_gone and not task.uncancel():
            raise BrokenPipeError from cancelled
        raise
    finally:
        loop.remove_reader(descriptor)


async def resumed(
    begin: Callable[[], AsyncIterator[T]],
    *,
    is_over: Callable[[], bool],
    patience_s: float = PATIENCE_S,
    answered: bool = False,
) -> AsyncGenerator[T, None]:
    """Yield from a stream that is begun again when it breaks: an agent or scheduler may be restarted.

    Unless that ``is_over``, as one of a ``farbus up`` that was stopped.
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
        except Unavailable as error:
            if is_over():
                told = "farbus up was stopped, with all that ran in it"
                raise Unavailable(told, hint="start another with farbus up") from error
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
    """Return what ``submit --wait`` ends with: the code of the first task that failed by itself.

    A job that failed or was cancelled without a task of its own that did
    ends with 125 (:attr:`ExitCode.RUN_FAILED`).
    """
    if status.state is JobState.SUCCEEDED:
        return int(ExitCode.OK)
    failed = _first_failed(status)
    return exit_code_of(failed) if failed is not None else int(ExitCode.RUN_FAILED)


def _first_failed(status: JobStatus) -> TaskStatus | None:
    """Return the first task that failed, before those that were ended with the job."""
    failed = [task for task in status.tasks if exit_code_of(task)]
    return min(failed, key=lambda task: task.reason == STOPPED, default=None)


LONGEST_LINE_BYTES = 64 * 2**10
"""Of several tasks' output: what has no end by then, as of a progress bar, is written as a line of its own."""


class Printer:
    """Writes tasks' output to where the tasks wrote it; where they are ``several`` each line begins with whose it is.

    What they wrote to standard output goes to standard error where it is to stand ``aside`` of something else.
    """

    def __init__(self, *, several: bool, aside: bool = False) -> None:
        self._several = several
        self._aside = aside
        self._begun: dict[tuple[str, int], bytes] = {}
        """Lines that have no end yet: those of different tasks must not run into each other."""

    def write(self, task: str, chunk: LogChunk) -> None:
        """Write some output of ``task``."""
        if not self._several:
            self._put(chunk.data, chunk.stream)
            return
        whole, newline, begun = (self._begun.pop((task, chunk.stream), b"") + chunk.data).rpartition(b"\n")
        if len(begun) >= LONGEST_LINE_BYTES:
            whole, newline, begun = whole + newline + begun, b"\n", b""
        if begun:
            self._begun[task, chunk.stream] = begun
        self._put_lines(task, chunk.stream, whole + newline)

    def end(self, tasks: Iterable[str]) -> None:
        """Write what is left of tasks whose output has ended."""
        for task in tasks:
            for stream in (1, 2):
                if begun := self._begun.pop((task, stream), b""):
                    self._put_lines(task, stream, begun + b"\n")

    def _put_lines(self, task: str, stream: int, data: bytes) -> None:
        label = f"[{task}] ".encode()
        self._put(b"".join(label + line for line in data.splitlines(keepends=True)), stream)

    def _put(self, data: bytes, stream: int) -> None:
        if data:
            out = sys.stderr.buffer if stream == 2 or self._aside else sys.stdout.buffer
            out.write(data)
            out.flush()


async def copy_logs(client: ClusterClient, job_id: str, *, task: str, follow: bool, printer: Printer) -> None:
    """Copy a task's output to this process's, until it ends or, without ``follow``, what there is.

    The job is known: what breaks before its first output is begun again too.
    """
    last: LogChunk | None = None

    def begin() -> AsyncIterator[LogChunk]:
        if last is not None and not last.position:
            raise FarbusError(
                f"job {job_id}: its output broke off here, and its agent can't go on from there",
                hint=f"farbus logs {job_id} shows it all",
            )
        return client.read_logs(job_id, task=task, follow=follow, position=last.position if last else 0)

    async with closing(resumed(begin, is_over=client.is_over, answered=True) if follow else begin()) as chunks:
        async for chunk in chunks:
            last = chunk
            printer.write(task, chunk)
    printer.end((task,))


async def follow_several(client: ClusterClient, job_id: str, tasks: Sequence[str], printer: Printer) -> None:
    """Copy the output of tasks as it comes, until all of them have ended; begun again where it breaks."""
    positions = dict.fromkeys(tasks, 0)
    async with closing(
        resumed(lambda: client.read_several_logs(job_id, positions, follow=True), is_over=client.is_over, answered=True)
    ) as chunks:
        async for chunk in chunks:
            positions[chunk.task] = chunk.position
            printer.write(chunk.task, chunk)
    printer.end(tasks)


class FollowedOutput:
    """What a job's tasks print, copied as they begin: those of one node come over one stream.

    So one node that is away for a while holds up none of the others.
    """

    def __init__(self, client: ClusterClient, job_id: str, group: asyncio.TaskGroup, *, aside: bool = False) -> None:
        self._client = client
        self._job_id = job_id
        self._group = group
        self._aside = aside
        self._printer: Printer | None = None
        self._seen: set[str] = set()
        self.errors: list[FarbusError] = []
        """Why output could not be copied."""

    def look(self, status: JobStatus) -> None:
        """Begin with what has come since: once a task has begun with all of them, later with each that begins late."""
        begun = [task for task in status.tasks if task.state is not TaskState.PENDING]
        if not begun:
            return
        if self._printer is None:
            several = sum(group.count for group in status.job.groups) > 1
            self._printer = Printer(several=several, aside=self._aside)
        by_node: dict[str, list[str]] = {}
        for task in status.tasks if status.state is JobState.PREPARING else begun:
            if task.task not in self._seen:
                by_node.setdefault(task.node, []).append(task.task)
                self._seen.add(task.task)
        for node, tasks in by_node.items():
            self._group.create_task(self._copy(tasks, self._printer), name=f"output from {node}")

    async def _copy(self, tasks: Sequence[str], printer: Printer) -> None:
        try:
            if len(tasks) == 1:
                await copy_logs(self._client, self._job_id, task=tasks[0], follow=True, printer=printer)
            else:
                await follow_several(self._client, self._job_id, tasks, printer)
        except NotFound:
            # It never began, and the job's end says why.
            return
        except FarbusError as error:
            self.errors.append(error)


async def follow_output(client: ClusterClient, job_id: str) -> None:
    """Copy the output of all of a job's tasks to its end; raise the first error where some of it could not be had."""
    try:
        async with asyncio.TaskGroup() as group:
            output = FollowedOutput(client, job_id, group)
            async with closing(resumed(lambda: client.watch_job(job_id), is_over=client.is_over)) as statuses:
                async for status in statuses:
                    output.look(status)
    except ExceptionGroup as errors:
        raise first_error(errors) from errors
    raise_first(output.errors)


def raise_first(errors: Sequence[FarbusError]) -> None:
    """Raise the first of ``errors``, if there is any, having told the others."""
    for error in errors[1:]:
        say(str(error))
    if errors:
        raise errors[0]


async def follow_job(
    client: ClusterClient, job_id: str, *, output: bool, quiet: bool = False, aside: bool = False
) -> JobStatus:
    """Watch a job to its end, telling on stderr what becomes of it; with ``output`` copy its output too.

    All of it goes to stderr where it is to stand ``aside``.
    """
    told = ""
    last: JobStatus | None = None
    try:
        # Whoever reads the output may go away (head) while the job goes on: that ends the watching, too.
        async with while_read() if output and not aside else contextlib.nullcontext(), asyncio.TaskGroup() as group:
            copied = FollowedOutput(client, job_id, group, aside=aside)
            async with closing(resumed(lambda: client.watch_job(job_id), is_over=client.is_over)) as statuses:
                async for status in statuses:
                    last = status
                    line = news(status)
                    # How it ended is told after its last output.
                    if line and line != told and not is_ended(status):
                        say(line, quiet=quiet)
                        told = line
                    if output:
                        copied.look(status)
            if last is None or not is_ended(last):
                raise Unavailable(
                    f"the watch on job {job_id} ended before the job", hint=f"farbus jobs {job_id} shows how it is"
                )
    except ExceptionGroup as errors:
        raise first_error(errors) from errors
    assert last is not None
    for error in copied.errors:
        # The job has ended all the same: its exit code is not to be lost with its output.
        say(str(error))
    if line := news(last):
        say(line, quiet=quiet and not _has_failed_itself(last))
    return last


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


def _has_failed_itself(status: JobStatus) -> bool:
    """Say whether a job failed otherwise than by what its programs ended with, which the exit code tells."""
    failed = _first_failed(status)
    return status.state in (JobState.FAILED, JobState.CANCELLED) and (failed is None or bool(failed.reason))


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
