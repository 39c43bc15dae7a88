"""Files of tasks at their node: fetched into a directory of the task's own, sent back when it has ended."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

import structlog

from farbus.agent.events import TaskRun
from farbus.agent.session import Backoff, heed_cancellation
from farbus.errors import FarbusError, TimedOut, Unavailable
from farbus.linux.clock import Clock
from farbus.linux.staging import TaskDirectories
from farbus.linux.users import Account
from farbus.model.staging import MAX_FILE_BYTES, MAX_FILES, Manifest, StagedFile

_log = structlog.get_logger()

PATIENCE_S = 300.0
"""How long transfers are tried again while the scheduler is away; the task's devices wait with it."""


MAX_REMOVALS = 4
"""Directories that are emptied at a time, no two of one user's: each takes a process, and the disk."""

REMOVE_AGAIN_S = 600.0
"""Pause before what could not be removed is tried again: a full or hanging disk mends in minutes or hours."""


class Transfers(Protocol):
    """The way to the scheduler: :class:`farbus.api.staging.NodeStaging`."""

    async def manifest(self, job_id: str, digest: str) -> Manifest:
        """Return the list of the files that a job takes along."""
        ...

    def contents(self, job_id: str, files: Sequence[StagedFile]) -> AsyncIterator[tuple[str, bytes]]:
        """Yield files in pieces, each with its path."""
        ...

    async def put_output(self, job_id: str, task: str, pieces: AsyncIterator[tuple[StagedFile, bytes]]) -> None:
        """Send a task's output."""
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

        Again from the beginning while the scheduler is away, for
        :data:`PATIENCE_S`.  Raises :class:`FarbusError`; nothing is left then.
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
                    contents = self._transfers.contents(run.job, manifest.files)
                    await self._directories.write(name, account, manifest, contents)
            except BaseException as error:
                await self.remove(name)
                if not self._is_passing(error, started):
                    raise
            else:
                return path
            await self._clock.sleep(backoff.next_s())

    async def stage_out(self, name: str, run: TaskRun, account: Account | None) -> None:
        """Send what a task has put out; tried again like :meth:`stage_in`.  Raises :class:`FarbusError`."""
        started, backoff = self._clock.monotonic(), Backoff()
        while run.stage_out:
            pieces = self._directories.read(
                name, account, run.stage_out, most_files=MAX_FILES, most_bytes=MAX_FILE_BYTES
            )
            try:
                await self._transfers.put_output(run.job, run.task, pieces)
            except FarbusError as error:
                if not self._is_passing(error, started):
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
