"""What the scheduler keeps about jobs, leases, devices and nodes while they live.

The records are mutable and belong to :class:`farbus.scheduler.lifecycle.ClusterMachine`
alone; what leaves it are the frozen values of :mod:`farbus.model`.  The
``Stored*`` values are the ledger's form.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Mapping

import msgspec

from farbus.model.decision import JobPlacement, StorageShare
from farbus.model.device import Device
from farbus.model.job import GroupVariant, Job, JobStatus, Miss, TaskGroup, TaskState
from farbus.model.lease import Lease
from farbus.model.node import Node, Resources
from farbus.model.operation import Cordon
from farbus.model.states import JobState, LeaseState
from farbus.model.value import Value
from farbus.scheduler.figures import NodeFigures
from farbus.scheduler.runs import Runs, TaskRun

STORY_LINES = 64
"""Lines of a job's story that are kept; the middle of a longer one is left out."""

STORY_LOOK = 16
"""Lines of it in which one that comes again is looked for: some tasks may be tried again in turn."""


class StorageTrouble(enum.Enum):
    """What nodes tell of a lease of storage, again and again, for as long as it is so; jobs say it in this order."""

    PATHS = enum.auto()
    """Which paths to it do not work, by who uses it."""
    OVERUSE = enum.auto()
    """What it has of its drives beyond what it was granted, by who serves it."""

    def teller(self, lease: Lease) -> str:
        """Return the node that tells it of a lease."""
        return lease.client_node if self is StorageTrouble.PATHS else lease.device_node


class Verdict(Value, frozen=True, kw_only=True):
    """What a job that is being undone becomes, and why."""

    state: JobState
    reason: str
    moved: bool = False
    """It was ended to make room for another job: that is no failure of its own."""


class StoredProgress(msgspec.Struct, kw_only=True):
    """The part of a job's record that changes, as the ledger has it."""

    reason: str = ""
    holder: str = ""
    """Which process of the agent holds an interactive job; empty until that is known."""
    runs: list[TaskRun] = []
    """As they ended; those of a job that lives are in its record, and each in a row of its own."""
    verdict: Verdict | None = None
    attempt: int = 0
    failures: int = 0
    rounds_waited: int = 0
    """Rounds in which it alone would have fitted."""
    started_at: float = 0.0
    started_monotonic: float = 0.0
    """From when its time limit counts, by the monotonic clock of the scheduler's machine in ``started_boot``."""
    started_boot: str = ""
    """The boot of that machine: on another one its monotonic clock says nothing of this one."""
    ran_s: float = 0.0
    """How long an interactive job with a time limit had run when that was last written down."""
    ended_at: float = 0.0
    alternative: str = ""
    """The flavour of the present attempt; empty for the job as it stands."""
    leases: int = 0
    """Leases that the present attempt was granted so far, those of tasks that were taken back included."""
    late_failures: int = 0
    """Tasks that were placed while the job ran, in this attempt, and could not begin."""
    moved_at: float = 0.0
    """When it was moved last so that another job had room, in seconds since the epoch."""
    room: JobPlacement | None = None
    """Where room is made for it, until it is placed there or that is given up."""
    unreachable: list[str] = []
    """Its nodes that can't be reached, while it is kept."""
    story: list[str] = []


class JobRecord(msgspec.Struct, eq=False):
    """A job that has not ended."""

    job: Job
    state: JobState = JobState.QUEUED
    progress: StoredProgress = msgspec.field(default_factory=StoredProgress)
    runs: Runs = msgspec.field(default_factory=Runs)
    left: dict[str, None] = {}
    """Tasks of which there is something to undo, while it finishes."""
    misses: tuple[Miss, ...] = ()
    not_before: float = 0.0
    """Monotonic time before which no round considers the job (after a failed attempt, or a decision that failed)."""
    undecided_since: float = 0.0
    """Monotonic time at which a round first put off the choice of its flavour; 0 before."""
    faults: int = 0
    """Decisions that failed because of it."""
    limit_at: float = 0.0
    """Monotonic time at which the time limit ends the job; 0 while nothing is counted."""
    running_since: float = 0.0
    """Monotonic time since which this scheduler knows that it runs, in its present attempt."""
    ran_before_s: float = 0.0
    """How long it had run when this scheduler took it over, by the wall clock."""
    late_after: float = 0.0
    """Monotonic time before which no more of its tasks are placed."""
    storage_troubles: dict[StorageTrouble, dict[str, str]] = {}
    """Those of its leases, by their ids, in words."""

    _shapes: frozenset[int] = frozenset()
    _volumes: tuple[str, ...] | None = None

    @property
    def shapes(self) -> frozenset[int]:
        """A number for each shape of its tasks, also in its alternatives, which tasks that ask for the same share."""
        if not self._shapes:
            groups: list[TaskGroup | GroupVariant] = [*self.job.groups]
            for way in self.job.alternatives:
                groups += way.groups
            self._shapes = frozenset(map(_shape, groups))
        return self._shapes

    @property
    def volumes(self) -> tuple[str, ...]:
        """The volumes that its tasks name, found once: rounds ask it of every job."""
        if self._volumes is None:
            self._volumes = self.job.volumes
        return self._volumes

    def tell(self, line: str) -> None:
        """Add a line to the story."""
        story = self.progress.story
        story.append(line)
        if len(story) > STORY_LINES:
            half = STORY_LINES // 2
            self.progress.story = [*story[:half], "...", *story[len(story) - half + 2 :]]

    def has_told(self, line: str) -> bool:
        """Say whether the story has a line lately: what is tried again fails the same way again."""
        return any(told.partition(" ")[2] == line for told in self.progress.story[-STORY_LOOK:])

    @property
    def asked(self) -> Job:
        """The job in the flavour of its present attempt."""
        return self.job.in_flavour(self.progress.alternative)

    @property
    def lacks(self) -> dict[int, int]:
        """How many tasks a job which runs does without, by the number of their group."""
        if self.state is not JobState.RUNNING or self.job.interactive or self.job.attachment:
            return {}
        if self.job.is_polymorphic:
            # Its groups are instead of each other, and each of them whole.
            return {}
        left = {number: group.count - self.runs.of_group(number) for number, group in enumerate(self.job.groups)}
        return {number: count for number, count in left.items() if count}

    def lacking(self, number: int, most: int) -> list[str]:
        """Return the first ``most`` tasks of a group that it does without."""
        group = self.job.groups[number]
        names = (f"{group.name}.{index}" for index in range(group.count))
        return list(itertools.islice((name for name in names if self.run(name) is None), most))

    def run(self, task: str) -> TaskRun | None:
        """Return the run of ``task`` in the present attempt."""
        return self.runs.get(task)

    def group(self, run: TaskRun) -> TaskGroup:
        """Return the group of ``run``."""
        return self.job.groups[run.group]

    def status(self) -> JobStatus:
        """Return the job as people see it."""
        waiting = sum(self.lacks.values())
        status = job_status(self.job, self.state, self.progress, self.runs, misses=self.misses, waiting=waiting)
        told = [text for trouble in StorageTrouble for text in self.storage_troubles.get(trouble, {}).values()]
        if told and self.state is JobState.RUNNING and not status.reason:
            status = msgspec.structs.replace(status, reason="; ".join(told))
        return status


def job_status(
    job: Job,
    state: JobState,
    progress: StoredProgress,
    runs: Iterable[TaskRun],
    *,
    misses: tuple[Miss, ...] = (),
    waiting: int = 0,
) -> JobStatus:
    """Put a job's parts together as people see it; it does without ``waiting`` tasks."""
    runs = tuple(runs)
    tasks = tuple(run.status() for run in runs)
    if job.interactive or job.attachment:
        # Its program belongs to the terminal, not to an agent that would report it: it runs while the job does, and
        # how it has ended is known if farbus run could tell.  An attachment has none.
        if state is JobState.RUNNING:
            tasks = tuple(msgspec.structs.replace(task, state=TaskState.RUNNING) for task in tasks)
        else:
            tasks = tuple(task for task in tasks if task.state is TaskState.EXITED)
    return JobStatus(
        job=job,
        state=state,
        reason=progress.reason,
        placements=tuple(run.placement for run in runs),
        tasks=tasks,
        misses=misses,
        alternative=progress.alternative,
        tasks_waiting=waiting,
        rounds_waited=progress.rounds_waited,
        started_at=progress.started_at,
        ended_at=progress.ended_at,
        story=tuple(progress.story),
    )


def _shape(group: TaskGroup | GroupVariant) -> int:
    return hash((group.requests, tuple(sorted(group.labels.items())), group.routes, group.storage))


class LeaseRecord(msgspec.Struct, eq=False):
    """A lease that is not released."""

    lease: Lease
    state: LeaseState = LeaseState.GRANTED
    endpoint: str = ""
    prepared: bool = False
    """Whether the device's side ever confirmed it."""
    expires_at: float = 0.0
    """Monotonic time at which it ends unless the device's node renews it."""
    story: list[str] = []
    trouble: str = ""
    """Why its node could not release it, as the node told it last."""
    storage_troubles: dict[StorageTrouble, str] = {}
    """As the nodes told them last, in words; what is no more is not there."""


class DeviceRecord(msgspec.Struct, kw_only=True, eq=False):
    """A device that some node has or had.

    A new one, and one of which a field that rounds see is set, puts its id into ``noted``.
    """

    # A structure sets its fields at first without __setattr__: a restart makes a hundred thousand of these.
    noted: set[str]
    id: str
    node: str
    device: Device | None = None
    epoch: int = 0
    lease: str = ""
    """The lease that has it until the device's side confirmed the release."""
    cordon: Cordon | None = None
    present: bool = False
    """Whether its node's inventory has it now."""
    reserved: str = ""
    """The job for which it is kept: one that waits for room, or for devices that are still on their way."""
    shares: Mapping[str, StorageShare] = {}
    """What each lease has of a drive that is shared, by its id, and each part of a volume, by that of its device.
    Never changed in place: rounds hear of what is set here."""
    orphan_bytes: int = 0
    """What parts of volumes that the ledger does not know take of a drive, by its node's word: nobody is given that."""

    def __post_init__(self) -> None:
        self.noted.add(self.id)

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in _SEEN_OF_DEVICES:
            self.noted.add(self.id)


_SEEN_OF_DEVICES = frozenset({"node", "device", "lease", "present", "cordon", "reserved", "shares", "orphan_bytes"})


class NodeRecord(msgspec.Struct, kw_only=True, eq=False):
    """A node that has a session, or had one.

    A new one, and one of which a field that rounds see is set, puts its name into ``noted``.
    """

    noted: set[str]
    name: str
    node: Node | None = None
    session: int = 0
    """Number of its session; 0 when it has none."""
    instance: str = ""
    """Which process of the agent has, or had, the session."""
    seen: float = 0.0
    """Monotonic time at which it was last heard."""
    seen_at: float = 0.0
    """The same in seconds since the epoch, for the ledger."""
    back_by: float = 0.0
    """Monotonic time until which its agent may be away: it said that it comes back."""
    gone: bool = False
    """It had no session for the lease time: what ran there has ended or is fenced."""
    cordon: Cordon | None = None
    strays: frozenset[str] = frozenset()
    """Slots of commands that remove what the node holds without right."""
    used: Resources = Resources()
    """What tasks take of it, those that run here and those that it lends devices to."""
    reserved: Resources = Resources()
    """What is kept for waiting jobs."""
    figures: NodeFigures = msgspec.field(default_factory=NodeFigures)
    """What its telemetry says."""

    def __post_init__(self) -> None:
        self.noted.add(self.name)

    @property
    def connected(self) -> bool:
        """Whether commands can be sent to it."""
        return self.session != 0

    @property
    def usable(self) -> bool:
        """Whether it may be given new tasks and its devices leased."""
        return self.session != 0 and not self.strays and self.cordon is None and not self.trouble

    @property
    def trouble(self) -> str:
        """Why it takes nothing new by its own word; empty when it does."""
        return self.node.trouble if self.node is not None else ""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in _SEEN_OF_NODES:
            self.noted.add(self.name)


_SEEN_OF_NODES = frozenset(
    {
        "node",
        "session",
        "strays",
        "cordon",
        "used",
        "reserved",
    }
)
