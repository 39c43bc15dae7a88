"""The node's machine: events in, actions out.

Pure and total: no I/O, no clock, no asyncio; every event is legal in every
state.  Each lease's device side, each task's client side and each task is one
object with a table of states (:mod:`farbus.agent.objects`); at most one piece
of work is under way for an object (StopTask alone may come again, with less
grace).

An object carries what is wanted of it.  When work ends, or what is wanted
changes, the machine compares the two and asks for the next piece of work; a
command is answered when its object has got to where the command wanted it, or
can't.

What leases do stands in :mod:`farbus.agent.leases`, what tasks do in
:mod:`farbus.agent.tasks`; here is the one door to both.
"""

from __future__ import annotations

from collections.abc import Iterator

from farbus.agent.actions import Action, Answer
from farbus.agent.events import (
    ActionDone,
    ClientReleased,
    ClientRequested,
    DeviceClosed,
    DeviceOpened,
    DevicesReleased,
    DevicesRequested,
    DevicesVanished,
    Event,
    HoldClaimed,
    LeasesRenewed,
    LeasesVoided,
    NodeRestored,
    PreparedLease,
    SessionOpened,
    StartRequested,
    StopRequested,
    SupervisorDied,
    TaskExited,
    TaskLaunched,
    TimePassed,
    WedgeEnded,
)
from farbus.agent.leases import Leases
from farbus.agent.objects import Actions, Desk, Held, Key, LeaseSide, SideState
from farbus.agent.tasks import Tasks
from farbus.model.job import TaskStatus

__all__ = ["Held", "LeaseSide", "NodeMachine"]

Command = DevicesRequested | DevicesReleased | ClientRequested | ClientReleased | StartRequested | StopRequested


class NodeMachine:
    """What this node holds and runs, and what it does next."""

    def __init__(self, *, node: str) -> None:
        self.node = node
        self.term = 0
        """The highest term of a scheduler that was heard of."""
        self._desk = Desk()
        self._tasks = Tasks(node=node, desk=self._desk)
        self._leases = Leases(node=node, desk=self._desk, tasks=self._tasks)
        self._tasks.after_exit = self._leases.after_exit

    # What others may ask.

    def held(self) -> tuple[Held, ...]:
        """Return every lease of which this node holds a side, also one that it is giving up."""
        return self._leases.held()

    def lease_sides(self) -> Iterator[LeaseSide]:
        """Yield both kinds of side of every lease that this node holds, with its time."""
        return self._leases.sides()

    @property
    def lease_ttl_s(self) -> float:
        """How long a lease lasts from its last renewal."""
        return self._leases.ttl_s

    def clients(self) -> tuple[Key, ...]:
        """Return (job, task) of every client side that this node holds, also one without leases."""
        return self._leases.clients()

    def task_statuses(self) -> tuple[tuple[str, TaskStatus], ...]:
        """Return (job, status) of every task that the scheduler has not yet let go."""
        return tuple((task.job, self._tasks.status_of(task)) for task in self._tasks.all())

    def running(self) -> tuple[Key, ...]:
        """Return (job, task) of every task whose program has not ended."""
        return tuple(task.key for task in self._tasks.all() if task.is_alive)

    def client_environment(self, job: str, task: str) -> dict[str, str] | None:
        """Return what a prepared client's program needs; None when it is not prepared."""
        side = self._leases.client((job, task))
        return dict(side.environment) if side and side.state is SideState.PREPARED and side.wanted else None

    def holder(self, job: str, task: str) -> str | None:
        """Return the user for whose program in a terminal a client side is there; None for any other."""
        side = self._leases.client((job, task))
        return side.user if side and side.interactive and side.wanted else None

    def client_leases(self, job: str, task: str) -> tuple[PreparedLease, ...]:
        """Return the leases of a task's client side; none where there is none."""
        side = self._leases.client((job, task))
        return side.leases if side is not None else ()

    def is_closed(self, device: str) -> bool:
        """Say whether no new lease may have a device."""
        return self._leases.is_closed(device)

    def next_expiry(self) -> float | None:
        """Return the monotonic time at which a lease or a hold expires first; None when none is held."""
        return self._leases.next_expiry()

    def is_giving_up(self) -> bool:
        """Say whether this node is giving up a side of a lease, and will have done so or failed to."""
        return self._leases.is_giving_up()

    def validate(self) -> None:
        """Assert what must hold between events; tests call it after each."""
        self._leases.validate()
        self._tasks.validate()

    # The one door.

    def handle(self, event: Event) -> list[Action]:
        """Take in what has happened; return what to do about it, in order."""
        return list(self._handle(event))

    def _handle(self, event: Event) -> Actions:
        match event:
            case ActionDone():
                # Unknown: of an object that a repeated start has replaced; none at present.
                return self._desk.settle(event)
            case TaskLaunched():
                return self._tasks.launched(event)
            case TaskExited():
                return self._tasks.exited(event)
            case SupervisorDied():
                return self._leases.supervisor_died(event)
            case TimePassed():
                return self._leases.time_passed(event.now)
            case WedgeEnded():
                return self._wedge_ended(event.object)
            case DevicesVanished():
                return self._leases.devices_vanished(event)
            case DeviceClosed():
                return self._leases.close(event.device, event.reason)
            case DeviceOpened():
                return self._leases.open(event.device)
            case HoldClaimed():
                return self._leases.hold_claimed((event.job, event.task))
            case NodeRestored():
                return self._restore(event)
            case SessionOpened():
                return self._session_opened(event)
            case LeasesRenewed():
                return iter(()) if self._is_stale(event.term) else self._leases.renewed(event)
            case LeasesVoided():
                return iter(()) if self._is_stale(event.term) else self._leases.end(event.lease_ids, event.reason)
            case command:
                return self._refuse_stale(command) if self._is_stale(command.term) else self._obey(command)

    def _obey(self, command: Command) -> Actions:
        match command:
            case DevicesRequested():
                return self._leases.devices_requested(command)
            case DevicesReleased():
                return self._leases.devices_released(command)
            case ClientRequested():
                return self._leases.client_requested(command)
            case ClientReleased():
                return self._leases.client_released(command)
            case StartRequested():
                client = self._leases.client((command.run.job, command.run.task))
                return self._tasks.start_requested(command, client)
            case StopRequested():
                return self._tasks.stop_requested(command)

    # Schedulers, and agents before this one.

    def _is_stale(self, term: int) -> bool:
        # Zero: this node itself says so.
        return 0 < term < self.term

    def _refuse_stale(self, command: Command) -> Actions:
        error = f"the scheduler of term {command.term} was replaced by that of term {self.term}"
        yield Answer(command=command.command, ok=False, error=error)

    def _session_opened(self, event: SessionOpened) -> Actions:
        if not self._is_stale(event.term):
            self.term, self._leases.ttl_s = event.term, event.lease_ttl_s
        return iter(())

    def _restore(self, event: NodeRestored) -> Actions:
        self.term = event.term
        for job, status in event.ended_tasks:
            self._tasks.restore_ended(job, status)
        for restored in event.tasks:
            yield from self._tasks.restore(restored)
        yield from self._leases.restore(event)

    def _wedge_ended(self, name: str) -> Actions:
        yield from self._tasks.wedge_ended(name)
        yield from self._leases.wedge_ended(name)
