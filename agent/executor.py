"""Does what the machine wants, as sequences of journalled steps, and tells the machine how each has ended.

The machine asks for at most one piece of work per object at a time, so pieces
that run side by side concern different objects.  Here are the agent's own
steps, one for each side of a lease of devices that are given whole; leases of
storage have sequences of their own (:class:`StorageHost`).  A task may have
both: its client side is then the one with the others behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import msgspec
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
from farbus.agent.events import (
    ActionDone,
    NodeRestored,
    PreparedLease,
    TaskRun,
    WedgeEnded,
)
from farbus.agent.journal import Journal
from farbus.agent.objects import without_secrets
from farbus.agent.reconcile import (
    Forward,
    Remembered,
    for_others,
    reconcile,
    restored_clients,
    restored_devices,
    restored_tasks,
    results_of,
)
from farbus.agent.steps import Result, Step, StepRunner, Steps, WedgedError
from farbus.errors import ExitCode, FarbusError, InvalidInput, NotFound, NotPermitted, TimedOut, Unavailable
from farbus.linux.clock import Clock
from farbus.linux.side_by_side import side_by_side
from farbus.model.lease import Lease
from farbus.model.value import to_json

_log = structlog.get_logger()

SERVE_DEADLINE_S = 60.0
"""Longest for a lease's devices to be served or given up: three times what a supervisor's start may take."""

ADOPTED_AT_ONCE = 16
"""Leases of storage that are looked for side by side: each by processes of its own, which a drive that does not answer
keeps for a minute.  One after the other they would have an agent not ready before its unit's TimeoutStartSec."""

TOLD_OBJECTS = 1000
"""Objects whose last failure is remembered, so as not to log it again."""

CLIENT_DEADLINE_S = 20.0
"""Longest for a program's session file: a name to resolve and a file to write."""

START_DEADLINE_S = 110.0
"""Longest for a program's exec: less than the scheduler waits for it, more than the process door does."""

STOP_MARGIN_S = 15.0
"""What a program may take to be gone after SIGKILL, on top of its grace; in state D it takes longer."""


class DeviceHost(Protocol):
    """Serves leased devices, and gives programs access to them.  Everything may be repeated."""

    async def prepare_devices(self, lease: Lease) -> str:
        """Serve a lease's devices; return ``ADDRESS:PORT``, or an empty string for a local route."""
        ...

    async def unprepare_devices(self, lease_id: str) -> None:
        """Return once nothing serves the lease any more."""
        ...

    async def adopt_devices(self, lease: Lease, endpoint: str) -> bool:
        """Take hold of what serves a lease since before this agent; False where nothing does.

        The lease is without its secret.
        """
        ...

    async def prepare_client(
        self, *, job: str, task: str, user: str, leases: tuple[PreparedLease, ...]
    ) -> dict[str, str]:
        """Return the environment that gives a program its devices, with the files that it names in place."""
        ...

    async def unprepare_client(self, *, job: str, task: str) -> None:
        """Remove those files."""
        ...

    async def adopt_client(
        self, *, job: str, task: str, user: str, leases: tuple[PreparedLease, ...], environment: dict[str, str]
    ) -> bool:
        """Say whether those files are in place since before this agent."""
        ...

    async def end_strangers(self, recorded: Collection[str] = ()) -> tuple[str, ...]:
        """End, remove and name what is there since before this agent, and was not adopted.

        What can't be ended is left to :meth:`unprepare_devices` for the leases
        that are ``recorded``, by their names.
        """
        ...


class StorageHost(Protocol):
    """Serves and uses leases of storage: the steps of both sides.

    What a step gives under a name with a ``/`` in it is for those that come
    after it; the rest is the side's endpoint, or the program's environment.
    """

    def device_steps(self, lease: Lease) -> tuple[Step, ...]:
        """Return the sequence of a lease's device side."""
        ...

    def client_steps(
        self, *, user: str, leases: tuple[PreparedLease, ...], attachment: bool, force: bool
    ) -> tuple[Step, ...]:
        """Return the sequence of a task's side of its leases of storage.

        An ``attachment`` is an operator's, whom the node need not know.  With ``force``
        what is still held is taken back as far as the kernel lets.
        """
        ...

    def remember(self, lease: Lease, told: Result) -> None:
        """Take in what a lease's first step gave an earlier agent, before its steps are asked for."""
        ...

    def forget(self, lease: Lease) -> None:
        """Drop what is kept of a lease whose device side is gone."""
        ...

    async def end_strangers(self, device_sides: Collection[str], client_sides: Collection[str]) -> tuple[str, ...]:
        """End, remove and name what is there of leases that are not among those, by their ids."""
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
        """Take hold of a program that runs since before this agent, or has ended with its status waiting.

        Its exit is told as ever.  The run is without its environment.
        """
        ...

    def forget(self, *, job: str, task: str) -> None:
        """Drop what is kept of a program's end, which is on record; nothing happens where nothing is kept."""
        ...

    async def end_strangers(self) -> tuple[str, ...]:
        """End and name what runs since before this agent, and was not adopted."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServeDevices:
    """The device side of a lease."""

    host: DeviceHost
    lease: Lease
    kind: str = "PrepareDevices"
    deadline_s: float = SERVE_DEADLINE_S
    lasting: bool = False

    @property
    def identity(self) -> str:
        """The lease."""
        return f"lease {self.lease.id}"

    @property
    def devices(self) -> tuple[str, ...]:
        """The leased devices."""
        return tuple(leased.device for leased in self.lease.devices)

    async def observe(self, known: Result | None) -> Result | None:
        """Take hold of what serves the lease, if the record says where."""
        if known is not None and await self.host.adopt_devices(self.lease, known["endpoint"]):
            return known
        return None

    async def do(self) -> Result:
        """Serve it."""
        return {"endpoint": await self.host.prepare_devices(self.lease)}

    async def compensate(self) -> None:
        """Serve it no longer."""
        await self.host.unprepare_devices(self.lease.id)


@dataclass(frozen=True, kw_only=True)
class GiveDevices:
    """The client side of a task's leases."""

    host: DeviceHost
    job: str
    task: str
    user: str
    leases: tuple[PreparedLease, ...]
    kind: str = "PrepareClient"
    devices: tuple[str, ...] = ()
    deadline_s: float = CLIENT_DEADLINE_S
    lasting: bool = False

    @property
    def identity(self) -> str:
        """The task."""
        return f"client {self.job}/{self.task}"

    async def observe(self, known: Result | None) -> Result | None:
        """Look for the files, if the record says where."""
        if known is not None and await self.host.adopt_client(
            job=self.job, task=self.task, user=self.user, leases=self.leases, environment=known
        ):
            return known
        return None

    async def do(self) -> Result:
        """Write them."""
        return await self.host.prepare_client(job=self.job, task=self.task, user=self.user, leases=self.leases)

    async def compensate(self) -> None:
        """Remove them."""
        await self.host.unprepare_client(job=self.job, task=self.task)


@dataclass(frozen=True, kw_only=True)
class RunProgram:
    """A task's program."""

    host: TaskHost
    run: TaskRun
    environment: dict[str, str]
    grace_s: float = 0.0
    reason: str = ""
    kind: str = "StartTask"
    devices: tuple[str, ...] = ()
    deadline_s: float = START_DEADLINE_S
    lasting: bool = False

    @property
    def identity(self) -> str:
        """The task."""
        return f"task {self.run.job}/{self.run.task}"

    async def observe(self, known: Result | None) -> Result | None:
        """Take hold of the program, if an earlier agent may have started it."""
        return known if known is not None and await self.host.adopt(self.run) else None

    async def do(self) -> Result:
        """Start it."""
        await self.host.start(self.run, self.environment)
        return {}

    async def compensate(self) -> None:
        """Stop it."""
        await self.host.stop(job=self.run.job, task=self.run.task, grace_s=self.grace_s, reason=self.reason)


def object_of(work: Work) -> str:
    """Return what a piece of work is done to, as the journal names it."""
    match work:
        case PrepareDevices() | UnprepareDevices():
            return f"lease {work.lease.id}"
        case PrepareClient() | UnprepareClient():
            return f"client {work.job}/{work.task}"
        case StartTask():
            return f"task {work.run.job}/{work.run.task}"
        case StopTask():
            return f"task {work.job}/{work.task}"


class Executor:
    """Runs work in named tasks of ``group`` and reports the end of each by ``done``."""

    def __init__(
        self,
        *,
        journal: Journal,
        devices: DeviceHost,
        tasks: TaskHost,
        clock: Clock,
        group: asyncio.TaskGroup,
        done: Callable[[ActionDone | WedgeEnded], None],
        storage: StorageHost | None = None,
    ) -> None:
        self._journal = journal
        self._storage = storage
        self._devices = devices
        self._tasks = tasks
        self._clock = clock
        self._group = group
        self._done = done
        self._never_begun: set[str] = set()
        """What was to be prepared, and has no steps: there is nothing of it to take back."""
        self._told: dict[tuple[str, str], str] = {}
        """The last error of each object's work that has failed and not succeeded since."""
        self._runner = StepRunner(
            journal=journal, clock=clock, group=group, wedge_ended=lambda name: done(WedgeEnded(object=name))
        )

    def steps_of(self, work: Work) -> Steps:
        """Return the sequence that a piece of work goes along, in whichever direction."""
        steps: tuple[Step, ...]
        match work:
            case PrepareDevices() | UnprepareDevices():
                body: Forward = PrepareDevices(serial=0, lease=work.lease.without_secret())
                if work.lease.storage is None:
                    steps = (ServeDevices(host=self._devices, lease=work.lease),)
                else:
                    steps = self._storage_host().device_steps(work.lease)
            case PrepareClient() | UnprepareClient():
                leases = without_secrets(work.leases)
                interactive = isinstance(work, PrepareClient) and work.interactive
                body = PrepareClient(
                    serial=0,
                    job=work.job,
                    task=work.task,
                    user=work.user,
                    leases=leases,
                    interactive=interactive,
                    attachment=work.attachment,
                )
                whole = tuple(prepared for prepared in work.leases if prepared.lease.storage is None)
                stored = tuple(prepared for prepared in work.leases if prepared.lease.storage is not None)
                steps = (GiveDevices(host=self._devices, job=work.job, task=work.task, user=work.user, leases=whole),)
                if stored:
                    force = isinstance(work, UnprepareClient) and work.force
                    steps += self._storage_host().client_steps(
                        user=work.user, leases=stored, attachment=work.attachment, force=force
                    )
            case StartTask():
                # A user's environment may hold secrets of theirs.
                body = StartTask(serial=0, run=msgspec.structs.replace(work.run, environment={}))
                steps = (RunProgram(host=self._tasks, run=work.run, environment=work.environment),)
            case StopTask():
                run = TaskRun(job=work.job, task=work.task, user="", command=())
                body = StartTask(serial=0, run=run)
                steps = (
                    RunProgram(
                        host=self._tasks,
                        run=run,
                        environment={},
                        grace_s=work.grace_s,
                        reason=work.reason,
                        deadline_s=work.grace_s + STOP_MARGIN_S,
                    ),
                )
        return Steps(object=object_of(work), body=to_json(body).decode(), steps=steps)

    def _storage_host(self) -> StorageHost:
        if self._storage is None:
            raise Unavailable(
                "this agent neither stores nor uses storage of others", hint="physical_devices is off in its settings"
            )
        return self._storage

    def start(self, work: Work) -> None:
        """Start a piece of work; its end is reported, whatever becomes of it."""
        self._group.create_task(self._run(work), name=f"{type(work).__name__} {object_of(work)}")

    def forget(self, *, job: str, task: str) -> None:
        """Drop what is kept of a program whose end is on record."""
        self._runner.forget(f"task {job}/{task}")
        self._tasks.forget(job=job, task=task)

    @contextlib.asynccontextmanager
    async def launching(self, run: TaskRun) -> AsyncIterator[None]:
        """Record the start of a task's program inside the block, now that its files have arrived.

        Without the first record the program must not begin.  Without the
        second, which the disk may refuse, the next agent finds the program.
        """
        number = await self._journal.task_launching(run.job, run.task, at=self._clock.wall())
        yield
        with contextlib.suppress(FarbusError):
            await self._journal.completed(number, error="", at=self._clock.wall())

    def _log_failure(self, kind: str, name: str, error: str) -> None:
        """Log why work has failed, once for what is tried again and again and fails in the same way."""
        if self._told.pop((kind, name), "") != error:
            _log.warning("action failed", action=kind, object=name, error=error)
        self._told[kind, name] = error
        if len(self._told) > TOLD_OBJECTS:
            del self._told[next(iter(self._told))]

    def _begun(self, work: Work, *, forward: bool) -> Steps | None:
        """Return the steps of work; None to take back what never had any.  Raises why there are none."""
        name = object_of(work)
        try:
            steps = self.steps_of(work)
        except FarbusError:
            if forward and not self._runner.knows(name):
                self._never_begun.add(name)
            elif name in self._never_begun:
                self._never_begun.discard(name)
                return None
            raise
        self._never_begun.discard(name)
        return steps

    async def _run(self, work: Work) -> None:
        kind, name = type(work).__name__, object_of(work)
        result: Result = {}
        failure: dict[str, object] = {}
        try:
            forward = isinstance(work, PrepareDevices | PrepareClient | StartTask)
            steps = self._begun(work, forward=forward)
            if forward and steps is not None:
                result = await self._runner.forward(steps)
            elif steps is not None:
                await self._runner.back(steps)
        except FarbusError as error:
            blame_job = isinstance(error, InvalidInput | NotPermitted | NotFound)
            wedged = isinstance(error, WedgedError)
            failure = {
                "error": str(error), "exit_code": error.exit_code, "blame_job": blame_job, "wedged": wedged
            }  # fmt: skip
        except OSError as error:
            failure = {"error": f"{kind} {name}: {error}", "exit_code": ExitCode.FAILED}
        except Exception as error:
            # A defect in one mechanism must not end everybody else's tasks.
            _log.exception("defect", action=kind, object=name)
            failure = {"error": f"{kind} {name}: a defect: {error!r}", "exit_code": ExitCode.FAILED}
        if failure:
            self._log_failure(kind, name, str(failure["error"]))
            self._done(msgspec.convert({"serial": work.serial, "ok": False, **failure}, ActionDone))
            return
        self._told.pop((kind, name), None)
        if isinstance(work, UnprepareDevices) and work.lease.storage is not None:
            self._storage_host().forget(work.lease)
        endpoint = result.get("endpoint", "") if isinstance(work, PrepareDevices) else ""
        environment = for_others(result) if isinstance(work, PrepareClient) else {}
        self._done(ActionDone(serial=work.serial, ok=True, endpoint=endpoint, environment=environment))

    # After a restart.

    async def recover(
        self, *, node: str, boot_id: str, now: float, term: int = 0, lease_ttl_s: float = 0.0
    ) -> NodeRestored:
        """Take hold of what an earlier agent left; end what nobody knows; return what the machine must know.

        What is not there any more is not given up yet: that is for the
        machine, since it may have to end other things first.
        """
        remembered, not_understood = reconcile(await self._journal.sequences(), boot_id=boot_id, node=node)
        for what in not_understood:
            _log.warning("record not understood", record=what)
        # Devices before the programs that use them, so that a program's end finds its lease.
        order = (PrepareDevices, PrepareClient, StartTask)
        stored = [one for one in remembered if _storage_lease(one)]
        rest = sorted(
            (one for one in remembered if not _storage_lease(one)), key=lambda one: order.index(type(one.work))
        )
        found = await side_by_side(self._adopt, stored, most=ADOPTED_AT_ONCE)
        found += [await self._adopt(one) for one in rest]
        leases = [one.work.lease.id for one in found if isinstance(one.work, PrepareDevices)]
        ended = (*await self._devices.end_strangers(leases), *await self._tasks.end_strangers())
        if self._storage is not None:
            # After the programs, which may have used it.
            used = [
                prepared.lease.id
                for one in found
                if isinstance(one.work, PrepareClient)
                for prepared in one.work.leases
            ]
            ended += await self._storage.end_strangers(leases, used)
        if found or ended:
            # What was found may have ended meanwhile: its status is told as ever.
            names = [one.records[0].object for one in found if not one.lost]
            gone = [one.records[0].object for one in found if one.lost]
            _log.info("found what an earlier agent left", found=names, gone=gone, ended=ended)
        return NodeRestored(
            now=now,
            lease_ttl_s=lease_ttl_s,
            term=term,
            fences=await self._journal.fences(),
            devices=restored_devices(found),
            clients=restored_clients(found),
            tasks=restored_tasks(found),
            ended_tasks=await self._journal.ended_tasks(),
        )

    async def _adopt(self, one: Remembered) -> Remembered:
        """Return it as it was found: with the reason where it is lost."""
        self._runner.continue_from(one.records)
        known = results_of(one.records)
        lease = _storage_lease(one)
        if lease is not None and self._storage is not None and 0 in known:
            self._storage.remember(lease, known[0])
        if one.lost:
            return one
        if isinstance(one.work, StartTask):
            # Also one whose start was not recorded to its end.
            known = {0: {}}
        why = one.absent
        try:
            if await self._runner.adopt(self.steps_of(one.work), known) is not None:
                return one
        except (FarbusError, OSError) as error:
            if lease is not None and isinstance(error, TimedOut):
                # One drive that does not answer hides all others too, which work: to give their leases up would take
                # them from who uses them.  In this boot it was there, and nobody has said that it is not any more.
                _log.error("held as recorded, not looked at", object=one.records[0].object, error=str(error))
                return one
            why = f"{why}: {error}"
        return msgspec.structs.replace(one, lost=why)


def _storage_lease(one: Remembered) -> Lease | None:
    """Return the lease of storage that it is the device side of; None where it is anything else."""
    if isinstance(one.work, PrepareDevices) and one.work.lease.storage is not None:
        return one.work.lease
    return None
