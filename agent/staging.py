"""Files of tasks at their node: fetched into a directory of the task's own, sent back when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

import structlog

from farbus.agent.events import TaskRun
from farbus.agent.session import Backoff, heed_cancellation
from farbus.errors import Conflict, FarbusError, TimedOut, Unavailable
from farbus.linux.clock import Clock
from farbus.linux.staging import TaskDirectories
from farbus.linux.users import Account
from farbus.model.staging import MAX_FILE_BYTES, MAX_FILES, Manifest, ReceivedFile, StagedFile

_log = structlog.get_logger()

PATIENCE_S = 300.0
"""How long transfers that do not get on are tried again, the scheduler being away; the task's devices wait with it."""


MAX_REMOVALS = 4
"""Directories that are emptied at a time, no two of one user's: each takes a process, and the disk."""

REMOVE_AGAIN_S = 600.0
"""Pause before what could not be removed is tried again: a full or hanging disk mends in minutes or hours."""


class Transfers(Protocol):
    """The way to the scheduler: :class:`farbus.api.staging.NodeStaging`."""

    async def manifest(self, job_id: str, digest: str) -> Manifest:
        """Return the list of the files that a job takes along."""
        ...

    def contents(
        self, job_id: str, files: Sequence[StagedFile], *, offset: int
    ) -> AsyncGenerator[tuple[str, bytes], None]:
        """Yield files in pieces, each with its path; the first from ``offset`` on."""
        ...

    async def received(self, job_id: str, task: str) -> tuple[ReceivedFile, ...]:
        """Return what there is of a task's output whose sending broke off."""
        ...

    async def put_output(
        self,
        job_id: str,
        task: str,
        pieces: AsyncIterator[tuple[StagedFile, bytes]],
        received: Sequence[ReceivedFile],
    ) -> None:
        """Send a task's output but for what was received; raise :class:`Conflict` where that is not what is here."""
        ...


class Staging:
    """The directories of one node's tasks, and what goes in and out of them."""

    def __init__(
        self, *, directories: TaskDirectories, transfers: Transfers, clock: Clock, group: asyncio.TaskGroup
    ) -> None:
        self._directories = directories
        self._transfers = transfers
        self._clock = clock
        self._group = group
        self._removals = asyncio.Semaphore(MAX_REMOVALS)
        self._removing: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By user id; a node's users are few."""

    async def stage_in(self, name: str, run: TaskRun, account: Account | None) -> Path:
        """Make a task's directory with all its files, and return it.

        While the scheduler is away it is waited for, :data:`PATIENCE_S` long;
        then the files go on where they were.  Raises :class:`FarbusError`;
        nothing is left then.
        """
        started, backoff = self._clock.monotonic(), Backoff()
        while True:
            try:
                manifest = Manifest(files=())
                if run.stage_in:
                    manifest = await self._transfers.manifest(run.job, run.stage_in)
                await self.remove(name)
                path = self._directories.make(name, account)
                if manifest.files:
                    async with contextlib.aclosing(self._contents(run.job, manifest.files)) as contents:
                        await self._directories.write(name, account, manifest, contents)
            except BaseException as error:
                await self.remove(name)
                if not self._is_passing(error, started):
                    raise
            else:
                return path
            await self._clock.sleep(backoff.next_s())

    async def _contents(self, job: str, files: Sequence[StagedFile]) -> AsyncGenerator[tuple[str, bytes], None]:
        """Yield files in pieces; who takes them does not notice when the transfer breaks and goes on."""
        at, offset, begun = 0, 0, False
        since, backoff = self._clock.monotonic(), Backoff()
        while at < len(files):
            try:
                async with contextlib.aclosing(self._transfers.contents(job, files[at:], offset=offset)) as pieces:
                    async for path, data in pieces:
                        if path != files[at].path:
                            at, offset = at + 1, 0
                        begun, offset = True, offset + len(data)
                        yield path, data
                        since = self._clock.monotonic()
                        backoff.reset()
                return
            except FarbusError as error:
                if not self._is_passing(error, since):
                    raise
            if begun and offset == files[at].size:
                at, offset, begun = at + 1, 0, False
            await self._clock.sleep(backoff.next_s())

    async def stage_out(self, name: str, run: TaskRun, account: Account | None) -> None:
        """Send what a task has put out; like :meth:`stage_in` where the scheduler is away.

        Raises :class:`FarbusError`.
        """
        backoff = Backoff()
        failing_since: float | None = None
        most, afresh = 0, False
        while run.stage_out:
            try:
                received = () if afresh else await self._transfers.received(run.job, run.task)
                if (total := sum(file.received for file in received)) > most:
                    most, failing_since = total, None
                    backoff.reset()
                pieces = self._directories.read(
                    name, account, run.stage_out, most_files=MAX_FILES, most_bytes=MAX_FILE_BYTES
                )
                async with contextlib.aclosing(pieces):
                    await self._transfers.put_output(run.job, run.task, pieces, received)
            except Conflict:
                # A program that has escaped may have written since: what was sent is of no use.
                if afresh:
                    raise
                afresh = True
                continue
            except FarbusError as error:
                failing_since = self._clock.monotonic() if failing_since is None else failing_since
                if not self._is_passing(error, failing_since):
                    raise
            else:
                return
            await self._clock.sleep(backoff.next_s())

    def _is_passing(self, error: BaseException, started: float) -> bool:
        heed_cancellation()
        away = isinstance(error, Unavailable | TimedOut)
        return away and self._clock.monotonic() - started < PATIENCE_S

    async def remove(self, name: str) -> None:
        """Give a task's directory up; it is emptied beside everything else, however long that takes."""
        try:
            aside = self._directories.set_aside(name)
        except FarbusError as error:
            _log.error("task's directory not removed", reason=str(error))
        else:
            if aside:
                self._begin_to_clear(aside)

    async def remove_strangers(self, known: set[str]) -> None:
        """Remove the directories of tasks that are not known any more, and what an earlier agent had not removed."""
        for aside in self._directories.aside():
            self._begin_to_clear(aside)
        for name in self._directories.list():
            if name not in known:
                await self.remove(name)

    def _begin_to_clear(self, aside: str) -> None:
        self._group.create_task(self._clear(aside), name=f"remove {aside}")

    async def _clear(self, aside: str) -> None:
        owner, told = self._directories.owner(aside), ""
        while True:
            try:
                # His own first: who leaves a hundred large directories takes one turn of the few.
                async with self._removing[owner], self._removals:
                    await self._directories.clear(aside)
            except FarbusError as error:
                if str(error) != told:
                    told = str(error)
                    _log.error("task's directory not removed", reason=told, again_s=REMOVE_AGAIN_S)
            else:
                return
            await self._clock.sleep(REMOVE_AGAIN_S)
