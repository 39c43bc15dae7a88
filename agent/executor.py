"""Does what the machine wants: records the start, does it, records the end, tells the machine.

The machine asks for at most one piece of work per object at a time, so pieces
that run side by side concern different objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from farbus.agent.actions import (
    PrepareClient,
    PrepareDevices,
    StartTask,
    StopTask,
    UnprepareClient,
    UnprepareDevices,
    Work,
)
from farbus.agent.events import ActionDone, PreparedLease, TaskRun
from farbus.agent.journal import Journal
from farbus.errors import ExitCode, FarbusError, InvalidInput, NotFound, NotPermitted
from farbus.linux.clock import Clock
from farbus.model.lease import Lease
from farbus.model.value import to_json

_log = structlog.get_logger()


class DeviceHost(Protocol):
    """Serves leased devices, and gives programs access to them.  Everything may be repeated."""

    async def prepare_devices(self, lease: Lease) -> str:
        """Serve a lease's devices; return ``ADDRESS:PORT``, or an empty string for a local route."""
        ...

    async def unprepare_devices(self, lease_id: str) -> None:
        """Return once nothing serves the lease any more."""
        ...

    async def prepare_client(
        self, *, job: str, task: str, user: str, leases: tuple[PreparedLease, ...]
    ) -> dict[str, str]:
        """Return the environment that gives a program its devices, with the files that it names in place."""
        ...

    async def unprepare_client(self, *, job: str, task: str) -> None:
        """Remove those files."""
        ...

    async def adopt_devices(self, lease: Lease, endpoint: str) -> bool:
        """Go on serving a lease as an earlier agent did; False if it is not served any more."""
        ...

    async def adopt_client(
        self, *, job: str, task: str, user: str, leases: tuple[PreparedLease, ...], environment: dict[str, str]
    ) -> bool:
        """Keep what an earlier agent made for a program; False if it is not all there."""
        ...

    async def end_strangers(self) -> tuple[str, ...]:
        """End and name what an earlier agent left and nobody adopted."""
        ...


class TaskHost(Protocol):
    """Runs tasks.  Everything may be repeated."""

    async def start(self, run: TaskRun, environment: dict[str, str]) -> None:
        """Return once the program has been exec'd; raise what a person can read when it can't be."""
        ...

    async def stop(self, *, job: str, task: str, grace_s: float, reason: str) -> None:
        """Return once the program is gone."""
        ...

    async def adopt(self, run: TaskRun) -> bool:
        """Go on with a program of an earlier agent; True if it runs or has ended with its status waiting."""
        ...

    def forget(self, *, job: str, task: str) -> None:
        """Drop what is kept of a task that has ended: its status is in the journal."""
        ...

    async def end_strangers(self) -> tuple[str, ...]:
        """End and name what an earlier agent left and nobody adopted."""
        ...


def object_of(work: Work) -> str:
    """Name what a piece of work is done to."""
    match work:
        case PrepareDevices():
            return f"lease {work.lease.id}"
        case UnprepareDevices():
            return f"lease {work.lease_id}"
        case PrepareClient() | UnprepareClient():
            return f"client {work.job}/{work.task}"
        case StartTask():
            return f"task {work.run.job}/{work.run.task}"
        case StopTask():
            return f"task {work.job}/{work.task}"


def body_of(work: Work) -> str:
    """Return the work as JSON for the journal, without lease secrets and without the task's environment."""
    match work:
        case PrepareDevices():
            work = PrepareDevices(serial=work.serial, lease=work.lease.without_secret())
        case PrepareClient():
            leases = tuple(
                PreparedLease(lease=prepared.lease.without_secret(), endpoint=prepared.endpoint)
                for prepared in work.leases
            )
            work = PrepareClient(serial=work.serial, job=work.job, task=work.task, user=work.user, leases=leases)
        case StartTask():
            # A user's environment may hold secrets of theirs.
            run = TaskRun(
                job=work.run.job,
                task=work.run.task,
                user=work.run.user,
                command=work.run.command,
                stage_in=work.run.stage_in,
                stage_out=work.run.stage_out,
            )
            work = StartTask(serial=work.serial, run=run)
    return to_json(work).decode()


class Executor:
    """Runs work in named tasks of ``group`` and reports each by ``done``."""

    def __init__(
        self,
        *,
        journal: Journal,
        devices: DeviceHost,
        tasks: TaskHost,
        clock: Clock,
        group: asyncio.TaskGroup,
        done: Callable[[ActionDone], None],
    ) -> None:
        self._journal = journal
        self._devices = devices
        self._tasks = tasks
        self._clock = clock
        self._group = group
        self._done = done

    def start(self, work: Work) -> None:
        """Start a piece of work; its end is reported, whatever becomes of it."""
        self._group.create_task(self._run(work), name=f"{type(work).__name__} {object_of(work)}")

    def forget(self, *, job: str, task: str) -> None:
        """Let go of a task whose status is in the journal."""
        self._tasks.forget(job=job, task=task)

    async def _run(self, work: Work) -> None:
        name, kind = object_of(work), type(work).__name__
        number = 0
        try:
            number = await self._record_start(work)
            outcome = await self._do(work)
        except FarbusError as error:
            outcome = ActionDone(
                serial=work.serial,
                ok=False,
                error=str(error),
                exit_code=error.exit_code,
                blame_job=isinstance(error, InvalidInput | NotPermitted | NotFound),
            )
        except OSError as error:
            outcome = ActionDone(
                serial=work.serial, ok=False, error=f"{kind} {name}: {error}", exit_code=ExitCode.FAILED
            )
        except Exception as error:
            # A defect in one mechanism must not end everybody else's tasks.
            _log.exception("defect", action=kind, object=name)
            outcome = ActionDone(
                serial=work.serial, ok=False, error=f"{kind} {name}: a defect: {error!r}", exit_code=ExitCode.FAILED
            )
        if not outcome.ok:
            _log.warning("action failed", action=kind, object=name, error=outcome.error)
        if number:
            try:
                await self._journal.completed(number, error=outcome.error, at=self._clock.wall())
            except FarbusError as error:
                # It stays "started": a restart cleans up after it, as after a crash.
                _log.error("journal not written", action=kind, object=name, error=str(error))
        self._done(outcome)

    async def _record_start(self, work: Work) -> int:
        """Return the record's number; 0 for one that could not be written and does not hold the work up."""
        name, kind = object_of(work), type(work).__name__
        try:
            return await self._journal.started(object=name, action=kind, body=body_of(work), at=self._clock.wall())
        except FarbusError as error:
            if not isinstance(work, UnprepareDevices | UnprepareClient | StopTask):
                raise
            # Giving up must work on a full disk too: what is not recorded is cleaned up once more.
            _log.error("journal not written", action=kind, object=name, error=str(error))
            return 0

    async def _do(self, work: Work) -> ActionDone:
        endpoint = ""
        environment: dict[str, str] = {}
        match work:
            case PrepareDevices():
                endpoint = await self._devices.prepare_devices(work.lease)
            case UnprepareDevices():
                await self._devices.unprepare_devices(work.lease_id)
            case PrepareClient():
                environment = await self._devices.prepare_client(
                    job=work.job, task=work.task, user=work.user, leases=work.leases
                )
            case UnprepareClient():
                await self._devices.unprepare_client(job=work.job, task=work.task)
            case StartTask():
                await self._tasks.start(work.run, work.environment)
            case StopTask():
                await self._tasks.stop(job=work.job, task=work.task, grace_s=work.grace_s, reason=work.reason)
        return ActionDone(serial=work.serial, ok=True, endpoint=endpoint, environment=environment)
