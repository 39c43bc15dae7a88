"""The node's machine: events in, actions out.

Pure and total: no I/O, no clock, no asyncio; every event is legal in every
state.  Each lease's device side, each task's client side and each task is one
object with a table of states; at most one piece of work is under way for an
object (StopTask alone may come again, with less grace).

An object carries what is wanted of it.  When work ends, or what is wanted
changes, the machine compares the two and asks for the next piece of work; a
command is answered when its object has got to where the command wanted it, or
can't.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from farbus.agent.actions import (
    Action,
    Answer,
    ForgetTask,
    PrepareClient,
    PrepareDevices,
    RecordExit,
    ReportLeaseEnded,
    ReportTask,
    StartTask,
    StopTask,
    UnprepareClient,
    UnprepareDevices,
)
from farbus.agent.events import (
    ActionDone,
    ClientReleased,
    ClientRequested,
    DevicesReleased,
    DevicesRequested,
    Event,
    LeasesRenewed,
    LeasesVoided,
    PreparedLease,
    SessionOpened,
    StartRequested,
    StopRequested,
    SupervisorDied,
    TaskExited,
    TaskRun,
    TimePassed,
)
from farbus.model.device import Route
from farbus.model.job import TaskState, TaskStatus
from farbus.model.lease import Lease
from farbus.model.states import StateTable

STORY_LENGTH = 32
"""Steps kept of an object's story."""

MAX_OBJECTS = 10_000
"""Leases, clients and tasks that one node holds, each: far above what a node's memory allows to run."""


class SideState(enum.StrEnum):
    """Where one side of a lease is on this node."""

    ABSENT = "absent"
    PREPARING = "preparing"
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"
    WEDGED = "wedged"
    """Unpreparing has failed: still held, until the scheduler asks again."""


class RunState(enum.StrEnum):
    """Where a task's program is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"


SIDE_STATES: StateTable[SideState] = StateTable(
    "lease side",
    {
        SideState.ABSENT: (SideState.PREPARING,),
        # A failed preparation is compensated like a good one.
        SideState.PREPARING: (SideState.PREPARED, SideState.UNPREPARING),
        SideState.PREPARED: (SideState.UNPREPARING,),
        SideState.UNPREPARING: (SideState.ABSENT, SideState.WEDGED),
        SideState.WEDGED: (SideState.UNPREPARING,),
    },
)

RUN_STATES: StateTable[RunState] = StateTable(
    "task",
    {
        # A program may be gone before its start has been recorded.
        RunState.STARTING: (RunState.RUNNING, RunState.EXITED),
        RunState.RUNNING: (RunState.STOPPING, RunState.EXITED),
        RunState.STOPPING: (RunState.EXITED,),
        RunState.EXITED: (),
    },
)


@dataclass
class _Side:
    """One side of one or more leases: prepared or not, wanted or not."""

    name: str
    wanted: bool = True
    state: SideState = SideState.ABSENT
    serial: int = 0
    error: str = ""
    ended: str = ""
    """Why this node ends it by itself; empty when the scheduler asked."""
    preparers: list[str] = field(default_factory=list)
    unpreparers: list[str] = field(default_factory=list)
    story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))

    def go(self, state: SideState) -> None:
        SIDE_STATES.check(self.name, self.state, state, self.story)
        self.state = state
        self.story.append(state)


@dataclass
class _DeviceSide(_Side):
    lease: Lease = field(kw_only=True)
    endpoint: str = ""
    expires_at: float = 0.0


@dataclass
class _ClientSide(_Side):
    job: str = field(kw_only=True)
    task: str = field(kw_only=True)
    user: str = field(kw_only=True)
    leases: tuple[PreparedLease, ...] = field(kw_only=True)
    environment: dict[str, str] = field(default_factory=dict)
    expires_at: dict[str, float] = field(default_factory=dict)


@dataclass
class _Task:
    job: str
    task: str
    run: TaskRun | None
    state: RunState = RunState.STARTING
    status: TaskStatus | None = None
    serial: int = 0
    stop_grace_s: float | None = None
    """Grace of the stop that is wanted or under way; none when it is not to be stopped."""
    stop_reason: str = ""
    released: bool = False
    """The scheduler wants it gone: it is forgotten once it has ended and its client side is gone."""
    starters: list[str] = field(default_factory=list)
    stoppers: list[str] = field(default_factory=list)
    story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))

    def go(self, state: RunState) -> None:
        RUN_STATES.check(f"{self.job}/{self.task}", self.state, state, self.story)
        self.state = state
        self.story.append(state)


@dataclass(frozen=True)
class LeaseSide:
    """One side of a lease on this node, as far as its time goes; ``wanted`` until it is being given up."""

    lease: Lease
    device_side: bool
    wanted: bool
    expires_at: float


@dataclass(frozen=True)
class Held:
    """One lease that this node holds, for the hello."""

    lease: Lease
    device_side: bool
    endpoint: str


Key = tuple[str, str]
Actions = Iterator[Action]


class NodeMachine:
    """What this node holds and runs, and what it does next."""

    def __init__(self, *, node: str, ended_tasks: Iterable[tuple[str, TaskStatus]] = ()) -> None:
        self.node = node
        self.lease_ttl_s = 0.0
        """How long a lease lasts from its last renewal."""
        self._last_serial = 0
        self._epochs: dict[str, int] = {}
        """Highest epoch seen of each device: an older grant of it is none any more."""
        self._devices: dict[str, _DeviceSide] = {}
        self._clients: dict[Key, _ClientSide] = {}
        self._tasks: dict[Key, _Task] = {}
        self._work: dict[int, Callable[[ActionDone], Actions]] = {}
        for job, status in ended_tasks:
            self._tasks[job, status.task] = _Task(
                job=job, task=status.task, run=None, state=RunState.EXITED, status=status
            )

    # What others may ask.

    def held(self) -> tuple[Held, ...]:
        """Return every lease of which this node holds a side, also one that it is giving up."""
        devices = [Held(lease=side.lease, device_side=True, endpoint=side.endpoint) for side in self._devices.values()]
        clients = [
            Held(lease=prepared.lease, device_side=False, endpoint=prepared.endpoint)
            for side in self._clients.values()
            for prepared in side.leases
        ]
        return (*devices, *clients)

    def lease_sides(self) -> Iterator[LeaseSide]:
        """Yield both kinds of side of every lease that this node holds, with its time."""
        for device in self._devices.values():
            yield LeaseSide(device.lease, True, device.wanted, device.expires_at)
        for client in self._clients.values():
            for prepared in client.leases:
                yield LeaseSide(prepared.lease, False, client.wanted, client.expires_at[prepared.lease.id])

    def task_statuses(self) -> tuple[tuple[str, TaskStatus], ...]:
        """Return (job, status) of every task that the scheduler has not yet let go."""
        return tuple((task.job, self._status_of(task)) for task in self._tasks.values())

    def running(self) -> tuple[Key, ...]:
        """Return (job, task) of every task whose program has not ended."""
        return tuple(key for key, task in self._tasks.items() if task.state is not RunState.EXITED)

    def client_environment(self, job: str, task: str) -> dict[str, str] | None:
        """Return what a prepared client's program needs; None when it is not prepared."""
        side = self._clients.get((job, task))
        return dict(side.environment) if side and side.state is SideState.PREPARED and side.wanted else None

    def next_expiry(self) -> float | None:
        """Return the monotonic time at which a lease expires first; None when none is held."""
        times = [side.expires_at for side in self._devices.values() if side.wanted]
        times += [at for side in self._clients.values() if side.wanted for at in side.expires_at.values()]
        return min(times, default=None)

    def validate(self) -> None:
        """Assert what must hold between events; tests call it after each."""
        for side in (*self._devices.values(), *self._clients.values()):
            assert side.state is not SideState.ABSENT, f"{side.name}: kept though absent"
            busy = side.state in (SideState.PREPARING, SideState.UNPREPARING)
            assert (side.serial in self._work) == busy, f"{side.name}: {side.state} without its work"
            assert side.wanted or busy or side.state is SideState.WEDGED or self._task_blocks(side), side.name
            assert not (side.preparers and side.state is SideState.PREPARED and side.wanted), f"{side.name}: unanswered"
        for task in self._tasks.values():
            assert (task.status is not None) == (task.state is RunState.EXITED), f"{task.job}/{task.task}: status"
            assert not (task.stoppers and task.state is RunState.EXITED), f"{task.job}/{task.task}: unanswered"

    # The one door.

    def handle(self, event: Event) -> list[Action]:
        """Take in what has happened; return what to do about it, in order."""
        match event:
            case SessionOpened():
                actions = self._session_opened(event)
            case DevicesRequested():
                actions = self._devices_requested(event)
            case DevicesReleased():
                actions = self._devices_released(event)
            case ClientRequested():
                actions = self._client_requested(event)
            case ClientReleased():
                actions = self._client_released(event)
            case StartRequested():
                actions = self._start_requested(event)
            case StopRequested():
                actions = self._stop_requested(event)
            case ActionDone():
                # Unknown: of an object that a repeated start has replaced; none at present.
                work = self._work.pop(event.serial, None)
                actions = work(event) if work else iter(())
            case TaskExited():
                actions = self._task_exited(event)
            case SupervisorDied():
                actions = self._supervisor_died(event)
            case LeasesRenewed():
                actions = self._renewed(event)
            case LeasesVoided():
                actions = self._voided(event.lease_ids, event.reason)
            case TimePassed():
                actions = self._time_passed(event)
        return list(actions)

    def _serial(self, work: Callable[[ActionDone], Actions]) -> int:
        self._last_serial += 1
        self._work[self._last_serial] = work
        return self._last_serial

    # Leases: the device side.

    def _session_opened(self, event: SessionOpened) -> Actions:
        self.lease_ttl_s = event.lease_ttl_s
        return iter(())

    def _devices_requested(self, event: DevicesRequested) -> Actions:
        lease = event.lease
        side = self._devices.get(lease.id)
        if side is None:
            if len(self._devices) >= MAX_OBJECTS:
                yield Answer(command=event.command, ok=False, error=f"node {self.node} holds {MAX_OBJECTS} leases")
                return
            if error := self._fence(lease):
                yield Answer(command=event.command, ok=False, error=error)
                return
            side = _DeviceSide(name=f"lease {lease.id}", lease=lease)
            side.expires_at = event.now + self.lease_ttl_s
            side.preparers.append(event.command)
            self._devices[lease.id] = side
            yield from self._prepare_devices(side)
        elif side.lease != lease:
            yield Answer(
                command=event.command, ok=False, error=f"lease {lease.id} is held with other devices or another secret"
            )
        elif not side.wanted:
            yield Answer(command=event.command, ok=False, error=f"lease {lease.id} is being given up on {self.node}")
        elif side.state is SideState.PREPARED:
            side.expires_at = event.now + self.lease_ttl_s
            yield Answer(command=event.command, ok=True, endpoint=side.endpoint)
        else:
            side.preparers.append(event.command)

    def _fence(self, lease: Lease) -> str:
        """Note the epochs of a new grant; say why it is none when a newer one of a device was seen."""
        for leased in lease.devices:
            seen = self._epochs.get(leased.device, 0)
            if leased.epoch < seen:
                return f"lease {lease.id} is of epoch {leased.epoch} of {leased.device}, whose epoch {seen} was seen"
        self._epochs.update({leased.device: leased.epoch for leased in lease.devices})
        return ""

    def _prepare_devices(self, side: _DeviceSide) -> Actions:
        def done(event: ActionDone) -> Actions:
            side.endpoint = event.endpoint
            yield from self._prepared(side, event, self._advance_devices)

        side.go(SideState.PREPARING)
        side.serial = self._serial(done)
        yield PrepareDevices(serial=side.serial, lease=side.lease)

    def _devices_released(self, event: DevicesReleased) -> Actions:
        side = self._devices.get(event.lease_id)
        if side is None:
            yield Answer(command=event.command, ok=True)
            return
        side.wanted = False
        side.unpreparers.append(event.command)
        yield from self._advance_devices(side, again=True)

    def _advance_devices(self, side: _DeviceSide, *, again: bool = False) -> Actions:
        """Take the next step towards what is wanted; ``again`` retries a wedged one."""
        if side.wanted:
            if side.state is SideState.PREPARED:
                yield from self._answer(side.preparers, ok=True, endpoint=side.endpoint)
            return
        if side.state is SideState.PREPARING and side.serial in self._work:
            return
        if side.state is SideState.UNPREPARING or (side.state is SideState.WEDGED and not again):
            return
        # A local route ends only with the program that uses the device by it.
        if self._task_blocks(side):
            reason = side.ended or "its lease was released"
            yield from self._stop(self._tasks[side.lease.job, side.lease.task], grace_s=0.0, reason=reason)
            return

        def done(event: ActionDone) -> Actions:
            yield from self._unprepared(side, event, lambda: self._devices.pop(side.lease.id, None))

        side.go(SideState.UNPREPARING)
        side.serial = self._serial(done)
        yield UnprepareDevices(serial=side.serial, lease_id=side.lease.id)

    def _task_blocks(self, side: _Side) -> bool:
        if isinstance(side, _DeviceSide):
            if side.lease.route is not Route.LOCAL or side.state is SideState.PREPARING:
                return False
            task = self._tasks.get((side.lease.job, side.lease.task))
        else:
            assert isinstance(side, _ClientSide)
            task = self._tasks.get((side.job, side.task))
        return task is not None and task.state is not RunState.EXITED

    def _supervisor_died(self, event: SupervisorDied) -> Actions:
        side = self._devices.get(event.lease_id)
        # Also while its preparation is still being recorded.
        if side is not None and side.wanted:
            side.wanted, side.ended = False, event.reason
            yield from self._advance_devices(side)

    # Leases: the client side.

    def _client_requested(self, event: ClientRequested) -> Actions:
        key = (event.job, event.task)
        side = self._clients.get(key)
        if side is None:
            task = self._tasks.get(key)
            if task is not None and task.state is not RunState.EXITED:
                yield Answer(command=event.command, ok=False, error=f"task {event.job}/{event.task} runs already")
                return
            if len(self._clients) >= MAX_OBJECTS:
                yield Answer(command=event.command, ok=False, error=f"node {self.node} has {MAX_OBJECTS} clients")
                return
            side = _ClientSide(
                name=f"client {event.job}/{event.task}",
                job=event.job,
                task=event.task,
                user=event.user,
                leases=event.leases,
                expires_at={prepared.lease.id: event.now + self.lease_ttl_s for prepared in event.leases},
            )
            side.preparers.append(event.command)
            self._clients[key] = side
            yield from self._prepare_client(side)
        elif side.leases != event.leases or side.user != event.user:
            yield Answer(command=event.command, ok=False, error=f"{side.name} is held with other leases")
        elif not side.wanted:
            yield Answer(command=event.command, ok=False, error=f"{side.name} is being given up on {self.node}")
        elif side.state is SideState.PREPARED:
            yield Answer(command=event.command, ok=True, environment=side.environment)
        else:
            side.preparers.append(event.command)

    def _prepare_client(self, side: _ClientSide) -> Actions:
        def done(event: ActionDone) -> Actions:
            side.environment = event.environment
            yield from self._prepared(side, event, self._advance_client)

        side.go(SideState.PREPARING)
        side.serial = self._serial(done)
        yield PrepareClient(serial=side.serial, job=side.job, task=side.task, user=side.user, leases=side.leases)

    def _client_released(self, event: ClientReleased) -> Actions:
        key = (event.job, event.task)
        side = self._clients.get(key)
        task = self._tasks.get(key)
        if task is not None:
            task.released = True
        if side is not None:
            side.wanted = False
            side.unpreparers.append(event.command)
            yield from self._advance_client(side, again=True)
        elif task is None:
            yield Answer(command=event.command, ok=True)
        elif task.state is RunState.EXITED:
            yield from self._forget_released(task)
            yield Answer(command=event.command, ok=True)
        else:
            # A task without devices has no client side; releasing it ends the task all the same.
            task.stoppers.append(event.command)
            yield from self._stop(task, grace_s=0.0, reason="the scheduler has released it")

    def _advance_client(self, side: _ClientSide, *, again: bool = False) -> Actions:
        if side.wanted:
            if side.state is SideState.PREPARED:
                yield from self._answer(side.preparers, ok=True, environment=side.environment)
            return
        if side.state is SideState.PREPARING and side.serial in self._work:
            return
        if side.state is SideState.UNPREPARING or (side.state is SideState.WEDGED and not again):
            return
        task = self._tasks.get((side.job, side.task))
        if task is not None and task.state is not RunState.EXITED:
            yield from self._stop(task, grace_s=0.0, reason=side.ended or "the scheduler has released it")
            return

        def done(event: ActionDone) -> Actions:
            yield from self._unprepared(side, event, lambda: self._clients.pop((side.job, side.task), None))
            task = self._tasks.get((side.job, side.task))
            if task is not None:
                yield from self._forget_released(task)

        side.go(SideState.UNPREPARING)
        side.serial = self._serial(done)
        yield UnprepareClient(serial=side.serial, job=side.job, task=side.task)

    # Both sides.

    def _prepared(self, side: _Side, event: ActionDone, advance: Callable[..., Actions]) -> Actions:
        if event.ok:
            side.go(SideState.PREPARED)
        else:
            side.wanted = False
            side.error = event.error
            side.story.append(event.error)
        yield from advance(side)

    def _unprepared(self, side: _Side, event: ActionDone, forget: Callable[[], object]) -> Actions:
        if not event.ok:
            side.go(SideState.WEDGED)
            side.story.append(event.error)
            yield from self._answer(side.preparers, ok=False, error=side.error or event.error)
            yield from self._answer(side.unpreparers, ok=False, error=event.error)
            return
        side.go(SideState.ABSENT)
        forget()
        if side.ended:
            if isinstance(side, _DeviceSide):
                yield ReportLeaseEnded(lease=side.lease.without_secret(), device_side=True, reason=side.ended)
            elif isinstance(side, _ClientSide):
                for prepared in side.leases:
                    lease = prepared.lease.without_secret()
                    yield ReportLeaseEnded(lease=lease, device_side=False, reason=side.ended)
        error = side.error or side.ended or f"{side.name} was released while it was being prepared"
        yield from self._answer(side.preparers, ok=False, error=error)
        yield from self._answer(side.unpreparers, ok=True)

    def _answer(
        self,
        commands: list[str],
        *,
        ok: bool,
        error: str = "",
        endpoint: str = "",
        environment: dict[str, str] | None = None,
    ) -> Actions:
        waiting, commands[:] = list(commands), []
        for command in waiting:
            yield Answer(command=command, ok=ok, error=error, endpoint=endpoint, environment=environment or {})

    # Renewal and expiry.

    def _renewed(self, event: LeasesRenewed) -> Actions:
        until = event.now + self.lease_ttl_s
        renewed = set(event.lease_ids)
        # What had expired when it was asked for stays so: its time must be over on this
        # node whatever arrives first, the answer or the tick of the clock.
        for device_side in self._devices.values():
            if device_side.lease.id in renewed and device_side.expires_at > event.now:
                device_side.expires_at = max(device_side.expires_at, until)
        for client_side in self._clients.values():
            for lease_id in client_side.expires_at.keys() & renewed:
                if client_side.expires_at[lease_id] > event.now:
                    client_side.expires_at[lease_id] = max(client_side.expires_at[lease_id], until)
        return iter(())

    def _time_passed(self, event: TimePassed) -> Actions:
        expired = {side.lease.id for side in self._devices.values() if side.expires_at <= event.now}
        for client_side in self._clients.values():
            expired |= {lease_id for lease_id, at in client_side.expires_at.items() if at <= event.now}
        yield from self._voided(sorted(expired), f"it was not renewed for {self.lease_ttl_s:g} s")

    def _voided(self, lease_ids: Iterable[str], reason: str) -> Actions:
        for lease_id in lease_ids:
            why = f"lease {lease_id} has ended: {reason}"
            for client in list(self._clients.values()):
                if client.wanted and lease_id in client.expires_at:
                    client.wanted, client.ended = False, why
                    yield from self._advance_client(client)
            device = self._devices.get(lease_id)
            if device is not None and device.wanted:
                device.wanted, device.ended = False, why
                yield from self._advance_devices(device)

    # Tasks.

    def _start_requested(self, event: StartRequested) -> Actions:
        run = event.run
        key = (run.job, run.task)
        task = self._tasks.get(key)
        if task is not None:
            if task.state is RunState.STARTING:
                task.starters.append(event.command)
            else:
                # Started before, by the same command in an earlier session: tell again.
                yield Answer(command=event.command, ok=True)
                yield ReportTask(job=task.job, status=self._status_of(task))
            return
        client = self._clients.get(key)
        if client is not None and (client.state is not SideState.PREPARED or not client.wanted):
            yield Answer(command=event.command, ok=False, error=f"{client.name} is {client.state}, not prepared")
            return
        if len(self._tasks) >= MAX_OBJECTS:
            yield Answer(command=event.command, ok=False, error=f"node {self.node} has {MAX_OBJECTS} tasks")
            return
        task = _Task(job=run.job, task=run.task, run=run)
        task.story.append(task.state)
        task.starters.append(event.command)
        self._tasks[key] = task
        task.serial = self._serial(lambda done: self._started(task, done))
        yield StartTask(serial=task.serial, run=run, environment=dict(client.environment) if client else {})

    def _started(self, task: _Task, event: ActionDone) -> Actions:
        if task.state is RunState.EXITED:
            yield from self._answer(task.starters, ok=True)
        elif event.ok:
            task.go(RunState.RUNNING)
            yield from self._answer(task.starters, ok=True)
            yield ReportTask(job=task.job, status=self._status_of(task))
            if task.stop_grace_s is not None:
                yield from self._send_stop(task)
        elif event.blame_job:
            # Another node would do no better: the task has ended, as a shell would end it.
            yield from self._answer(task.starters, ok=True)
            yield from self._exited(task, event.exit_code, event.error)
        else:
            del self._tasks[task.job, task.task]
            yield from self._answer(task.starters, ok=False, error=event.error)
            yield from self._answer(task.stoppers, ok=True)
            yield from self._after_exit(task)

    def _stop_requested(self, event: StopRequested) -> Actions:
        task = self._tasks.get((event.job, event.task))
        if task is None or task.state is RunState.EXITED:
            yield Answer(command=event.command, ok=True)
            return
        task.stoppers.append(event.command)
        yield from self._stop(task, grace_s=event.grace_s, reason="")

    def _stop(self, task: _Task, *, grace_s: float, reason: str) -> Actions:
        if task.stop_grace_s is not None and task.stop_grace_s <= grace_s:
            return
        task.stop_grace_s = grace_s
        task.stop_reason = task.stop_reason or reason
        if task.state is not RunState.STARTING:
            yield from self._send_stop(task)

    def _send_stop(self, task: _Task) -> Actions:
        assert task.stop_grace_s is not None
        if task.state is RunState.RUNNING:
            task.go(RunState.STOPPING)
        serial = self._serial(lambda done: self._stop_done(task, done))
        yield StopTask(serial=serial, job=task.job, task=task.task, grace_s=task.stop_grace_s, reason=task.stop_reason)

    def _stop_done(self, task: _Task, event: ActionDone) -> Actions:
        # Its exit is an event of its own.  A stop that failed leaves the task stopping:
        # the next one tries again, and whoever waits is told.
        if not event.ok and task.state is RunState.STOPPING:
            task.stop_grace_s = None
            task.story.append(event.error)
            yield from self._answer(task.stoppers, ok=False, error=event.error)

    def _task_exited(self, event: TaskExited) -> Actions:
        task = self._tasks.get((event.job, event.task))
        if task is not None and task.state is not RunState.EXITED:
            yield from self._exited(task, event.exit_code, event.reason)

    def _exited(self, task: _Task, exit_code: int, reason: str) -> Actions:
        task.go(RunState.EXITED)
        task.status = TaskStatus(
            task=task.task, state=TaskState.EXITED, node=self.node, exit_code=exit_code, reason=reason
        )
        yield RecordExit(job=task.job, status=task.status)
        yield ReportTask(job=task.job, status=task.status)
        yield from self._answer(task.stoppers, ok=True)
        yield from self._after_exit(task)

    def _after_exit(self, task: _Task) -> Actions:
        """Go on with what waited for the task to end."""
        client = self._clients.get((task.job, task.task))
        if client is not None and not client.wanted:
            yield from self._advance_client(client)
        for device in list(self._devices.values()):
            if not device.wanted and (device.lease.job, device.lease.task) == (task.job, task.task):
                yield from self._advance_devices(device)
        yield from self._forget_released(task)

    def _forget_released(self, task: _Task) -> Actions:
        key = (task.job, task.task)
        if task.released and task.state is RunState.EXITED and key in self._tasks and key not in self._clients:
            del self._tasks[key]
            yield ForgetTask(job=task.job, task=task.task)

    def _status_of(self, task: _Task) -> TaskStatus:
        if task.status is not None:
            return task.status
        state = TaskState.PENDING if task.state is RunState.STARTING else TaskState.RUNNING
        return TaskStatus(task=task.task, state=state, node=self.node)
