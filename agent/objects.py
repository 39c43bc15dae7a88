"""The objects of the node's machine: sides of leases and tasks, their states and their stories."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from farbus.agent.actions import Action
from farbus.agent.events import ActionDone, PreparedLease, TaskRun
from farbus.agent.names import ROOM
from farbus.model.job import TaskStatus
from farbus.model.lease import Lease
from farbus.model.states import StateTable, tell

STORY_LENGTH = 32
"""Steps kept of an object's story."""

LONGEST_CYCLE = 3
"""Steps of one attempt to give up what can't be given up: under way, its error, wedged."""

MAX_OBJECTS = 10_000
"""Leases, clients and tasks that one node holds, each: far above what a node's memory allows to run."""


class SideState(enum.StrEnum):
    """Where one side of a lease is on this node."""

    ABSENT = "absent"
    PREPARING = "preparing"
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"
    WEDGED = "wedged"
    """Work on it has failed to give it up, or does not end: still held, until somebody asks again or the work ends."""


class RunState(enum.StrEnum):
    """Where a task's program is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    WEDGED = "wedged"
    """It can't be started in time, or not be stopped."""
    EXITED = "exited"


SIDE_STATES: StateTable[SideState] = StateTable(
    "lease side",
    {
        # Prepared at once: as the journal of an earlier agent has it.
        SideState.ABSENT: (SideState.PREPARING, SideState.PREPARED),
        # A failed preparation is compensated like a good one.
        SideState.PREPARING: (SideState.PREPARED, SideState.UNPREPARING, SideState.WEDGED),
        SideState.PREPARED: (SideState.UNPREPARING,),
        SideState.UNPREPARING: (SideState.ABSENT, SideState.WEDGED),
        SideState.WEDGED: (SideState.UNPREPARING,),
    },
)

RUN_STATES: StateTable[RunState] = StateTable(
    "task",
    {
        # A program may be gone before its start has been recorded.
        RunState.STARTING: (RunState.RUNNING, RunState.EXITED, RunState.WEDGED),
        RunState.RUNNING: (RunState.STOPPING, RunState.EXITED),
        RunState.STOPPING: (RunState.EXITED, RunState.WEDGED),
        RunState.WEDGED: (RunState.STOPPING, RunState.EXITED),
        RunState.EXITED: (),
    },
)

Key = tuple[str, str]
Actions = Iterator[Action]


@dataclass
class Thing:
    """What every object of the machine has: a name, and a story for errors about it."""

    name: str
    serial: int = 0
    """The piece of work that is under way for it."""
    story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))

    def note(self, line: str) -> None:
        """Add to the story; what is tried again and again stands there twice."""
        self.story.append(line)
        lines = list(self.story)
        for length in range(1, LONGEST_CYCLE + 1):
            last = lines[-length:]
            if lines[-3 * length : -length] == last * 2:
                for _ in last:
                    self.story.pop()
                return

    def told(self, error: str) -> str:
        """Return an error about this object with its story."""
        return f"{error} ({self.name}, {tell(line for line in self.story if error not in line)})"


@dataclass
class Side(Thing):
    """One side of one or more leases: prepared or not, wanted or not."""

    wanted: bool = True
    state: SideState = SideState.ABSENT
    error: str = ""
    ended: str = ""
    """Why this node ends it by itself; empty when the scheduler asked."""
    preparers: list[str] = field(default_factory=list)
    unpreparers: list[str] = field(default_factory=list)
    retry: bool = False
    """Wedged, and to be tried again as soon as nothing is in the way."""

    def go(self, state: SideState) -> None:
        """Change the state; raise with the story where there is no arrow."""
        SIDE_STATES.check(self.name, self.state, state, self.story)
        self.state = state
        self.retry = False
        self.note(state)

    @property
    def is_busy(self) -> bool:
        """Say whether work is under way for it."""
        return self.state in (SideState.PREPARING, SideState.UNPREPARING)


@dataclass
class DeviceSide(Side):
    """The side of the node that has the devices."""

    lease: Lease = field(kw_only=True)
    endpoint: str = ""
    expires_at: float = 0.0


@dataclass
class ClientSide(Side):
    """The side of the task that uses them."""

    job: str = field(kw_only=True)
    task: str = field(kw_only=True)
    user: str = field(kw_only=True)
    leases: tuple[PreparedLease, ...] = field(kw_only=True)
    interactive: bool = False
    attachment: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    expires_at: dict[str, float] = field(default_factory=dict)
    unclaimed_until: float | None = None
    """Until when its holder may come back, after a restart of the agent; None while somebody holds it."""

    @property
    def key(self) -> Key:
        """Whose side it is."""
        return self.job, self.task


@dataclass
class Task(Thing):
    """A task's program."""

    job: str = field(kw_only=True)
    task: str = field(kw_only=True)
    run: TaskRun | None = field(kw_only=True)
    state: RunState = RunState.STARTING
    arriving: bool = False
    """Its program waits for its files."""
    status: TaskStatus | None = None
    stop_grace_s: float | None = None
    """Grace of the stop that is wanted or under way; none when it is not to be stopped."""
    stop_reason: str = ""
    released: bool = False
    """The scheduler wants it gone: it is forgotten once it has ended and its client side is gone."""
    starters: list[str] = field(default_factory=list)
    stoppers: list[str] = field(default_factory=list)

    def go(self, state: RunState) -> None:
        """Change the state; raise with the story where there is no arrow."""
        RUN_STATES.check(f"{self.job}/{self.task}", self.state, state, self.story)
        self.state = state
        self.note(state)

    @property
    def key(self) -> Key:
        """Its job and its name."""
        return self.job, self.task

    @property
    def is_alive(self) -> bool:
        """Say whether its program may exist."""
        return self.state is not RunState.EXITED


@dataclass(frozen=True)
class LeaseSide:
    """One side of a lease on this node, as far as its time goes; ``wanted`` until it is being given up."""

    lease: Lease
    device_side: bool
    wanted: bool
    expires_at: float


@dataclass(frozen=True, kw_only=True)
class Held:
    """One lease that this node holds, for the hello; ``trouble`` says why it can't be given up, if it can't."""

    lease: Lease
    device_side: bool
    endpoint: str
    trouble: str = ""


class Desk:
    """Numbers pieces of work, and knows what is to be done when each has ended."""

    def __init__(self) -> None:
        self._last_serial = 0
        self._work: dict[int, Callable[[ActionDone], Actions]] = {}

    def ask(self, done: Callable[[ActionDone], Actions]) -> int:
        """Return the number of a new piece of work; ``done`` is called with its end."""
        self._last_serial += 1
        self._work[self._last_serial] = done
        return self._last_serial

    def settle(self, event: ActionDone) -> Actions:
        """Go on after a piece of work; nothing happens for one that is not known."""
        work = self._work.pop(event.serial, None)
        return work(event) if work else iter(())

    def __contains__(self, serial: int) -> bool:
        """Say whether the work is under way."""
        return serial in self._work


def claims(lease: Lease) -> dict[str, int]:
    """Return what a lease has to itself on the node that has its devices, each with its epoch.

    Those are its devices; of room that is made for it on drives, on which others have theirs, the room alone.
    """
    if lease.storage is not None and not lease.storage.volume:
        return {f"{ROOM}{lease.id}": max((leased.epoch for leased in lease.devices), default=0)}
    return {leased.device: leased.epoch for leased in lease.devices}


def same_lease(known: Lease, asked: Lease) -> bool:
    """Compare two views of a lease; a secret that is not known, as after a restart, equals any."""
    if not known.secret or not asked.secret:
        return known.without_secret() == asked.without_secret()
    return known == asked


def same_leases(known: tuple[PreparedLease, ...], asked: tuple[PreparedLease, ...]) -> bool:
    """Compare what two requests for a client side ask for."""
    return len(known) == len(asked) and all(
        mine.endpoint == theirs.endpoint and same_lease(mine.lease, theirs.lease)
        for mine, theirs in zip(known, asked, strict=True)
    )


def without_secrets(leases: tuple[PreparedLease, ...]) -> tuple[PreparedLease, ...]:
    """Return leases as they may be written down."""
    return tuple(msgspec.structs.replace(prepared, lease=prepared.lease.without_secret()) for prepared in leases)
