"""Jobs: what people ask for, and what became of it."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping

import msgspec

from farbus.model import flavour
from farbus.model.device import GpuFilter, Route
from farbus.model.node import Resources
from farbus.model.states import JobState
from farbus.model.value import Value
from farbus.model.volume import FileSystem, StorageUse, volume_of

MAX_GROUPS = 64
"""Task groups of a job; each is a row of arcs in a phase's network."""

MAX_ALTERNATIVES = 8
"""Other ways to run a job; a round prices each."""

MAX_ALTERNATIVE_COST = 10**6
"""Dearest preference, in thousandths: a thousand times what finishing exactly at the goal costs."""

MAX_STORAGE = 16
"""Storage requests of a group; each is a row of a phase's network for each node of its tasks."""

MAX_COMPOSITES = 16
"""Composites of a job; each is expanded into groups and decisions."""

MAX_RESOURCES = 16
"""Kinds of resources that an in-network device has, or a service takes of it."""

MAX_RESOURCE = 2**40
"""Most of one such resource: a tebibyte of memory in bytes."""
MAX_IMPORTANCE = 10.0
"""Importances are below it: at it a missed goal would count for nothing (eq. 6 of DRMaestro with z = 10)."""

MAX_DRIVES = 64
"""Drives that may be used as one."""

MAX_JOB_BYTES = 2 * 2**20
"""A job as it travels, with all its commands: the scheduler keeps each in memory and in its ledger."""


class Requests(Value, frozen=True, kw_only=True):
    """What one task needs, all of it at once."""

    cpu_milli: int = 1000
    memory_bytes: int = 256 * 2**20
    network_mbit_s: int = 0
    """Of the link of the task's own node, beside what remote devices take."""
    gpus: int = 0
    gpu_memory_bytes: int = 0
    """Least memory of each GPU."""
    gpu_model: str = ""
    """Part of the model's name that each GPU must have, in any case; empty for any."""
    gpu_share_milli: int = 0
    """Least part of a GPU that others have too, in thousandths; 0 for whole GPUs that nobody shares."""
    gpu_span: bool = False
    """Whether the GPUs may be of several nodes, where no node has so many."""
    remote_network_mbit_s: int | None = None
    """What each GPU that is remote takes of the links at both ends; None for what the cluster's rules say."""

    @property
    def resources(self) -> Resources:
        """Return what a task takes of its own node, without what remote devices do."""
        return Resources(cpu_milli=self.cpu_milli, memory_bytes=self.memory_bytes, network_mbit_s=self.network_mbit_s)

    @property
    def gpu_filter(self) -> GpuFilter:
        """Which GPUs will do."""
        return GpuFilter(self.gpu_model.lower(), self.gpu_memory_bytes, self.gpu_share_milli)


class StorageRequest(Value, frozen=True, kw_only=True):
    """Storage of NVMe drives for each task of a group: its own for as long as it runs, or a ``volume`` that is there.

    ``devices`` drives are used as one, striped; 0 leaves their number to the
    scheduler's policy, which may know from ``profile`` how the program behaves.
    """

    name: str
    size_bytes: int = 0
    bandwidth_bytes_per_s: int = 0
    """Bytes read or written in a second that are set aside for it."""
    devices: int = 0
    profile: str = ""
    routes: tuple[Route, ...] = ()
    """How drives may be given to the tasks; empty for the routes of the group."""
    volume: str = ""
    """The volume that it is; its size and drives are the volume's then, and ``devices`` is set by the scheduler to the
    number of its parts.  Empty for room of the task's own."""
    use: StorageUse = StorageUse.MOUNT
    file_system: FileSystem = FileSystem.EXT4
    path: str = ""
    """Where it is mounted; empty for a directory that the task's environment names."""
    read_only: bool = False


class ServiceRequest(Value, frozen=True, kw_only=True):
    """An instance of an in-network service, on a programmable switch or network card, for each task of a group.

    What it takes of the device is by the names of the device's own resources
    (``stages``, ``sram_bytes``).  HIRE's non-linear resources: ``shared`` is
    taken once for all instances of the service on a device, ``own`` by each.
    """

    name: str
    """The service, as devices call it."""
    own: dict[str, int] = {}
    shared: dict[str, int] = {}


class Composite(Value, frozen=True, kw_only=True):
    """A function of a job that several implementations could serve (HIRE, section 4.2): one of them is chosen.

    The scheduler expands it by a template of its store into groups of tasks
    with flavour vectors; ``servers`` names the groups of the job itself that
    are the implementation on servers.
    """

    name: str
    template: str
    size: int = 1
    """Tasks that use it: what the number of its instances goes by."""
    command: tuple[str, ...] = ()
    """What a task beside an instance runs; the template's own where it is empty."""
    implementations: tuple[str, ...] = ()
    """Which of the template's may be chosen; empty for all."""
    own: dict[str, int] = {}
    """What each instance takes of its device, where the template leaves a range; the least of the range otherwise."""
    servers: tuple[str, ...] = ()


class TaskGroup(Value, frozen=True, kw_only=True):
    """``count`` equal tasks that run the same command."""

    name: str
    command: tuple[str, ...]
    count: int = 1
    min_count: int = 0
    """Tasks without which the job is not placed; 0 for all of them."""
    requests: Requests = Requests()
    node: str = ""
    """The node that must run these tasks; empty for any."""
    labels: dict[str, str] = {}
    """Labels that the node must have."""
    routes: tuple[Route, ...] = (Route.LOCAL, Route.REMOTE)
    """How devices may be given to the tasks."""
    storage: tuple[StorageRequest, ...] = ()
    flavour: str = ""
    """Its flavour vector (:mod:`farbus.model.flavour`); empty for a group that is in every flavour of the job."""
    service: ServiceRequest | None = None
    """What each task has of an in-network device of its own node."""

    @property
    def least(self) -> int:
        """Return how many of the tasks must be placed for the job to be."""
        return min(self.min_count, self.count) if self.min_count > 0 else self.count


class GroupVariant(Value, frozen=True, kw_only=True):
    """What a group asks for in place of what it says itself; its command, count and node stay as they are."""

    name: str
    requests: Requests
    labels: dict[str, str] = {}
    routes: tuple[Route, ...] = (Route.LOCAL, Route.REMOTE)
    storage: tuple[StorageRequest, ...] = ()


class Alternative(Value, frozen=True, kw_only=True):
    """Another way to run a job (HIRE's flavours): groups that it does not name ask for what they ask anyway.

    ``cost`` is what choosing it costs before anything else, in thousandths;
    the job as it stands costs nothing.
    """

    name: str
    cost: int = 0
    groups: tuple[GroupVariant, ...] = ()


class Goal(Value, frozen=True, kw_only=True):
    """What the owner of a job wishes for it: policies weigh it, and nothing is ended for it.

    A deadline is ``deadline_s`` seconds after the submission, or
    ``deadline_at``, seconds since the epoch by the scheduler's clock; 0 for none.
    """

    slo_s: float = 0.0
    """Within how many seconds from its start it is to be done (tau of DRMaestro, eq. 6); 0 for no word of its own."""
    importance: float = 0.0
    """How little a missed ``slo_s`` counts (z of eq. 6): from 1, in full, to below 10, hardly; 0 for 1."""
    deadline_s: float = 0.0
    deadline_at: float = 0.0


NO_GOAL = Goal()


class Job(Value, frozen=True, kw_only=True):
    """A job as it was submitted.  ``id`` is given by the scheduler.

    A job is placed whole: all tasks of all groups, or none; of a group with
    ``min_count`` at least as many, and what finds no room then is left out.  A job whose
    ``interactive`` is set has one task without a command: the program is the
    one that ``farbus run`` starts, and the job lasts as long as the connection.
    """

    id: str
    name: str
    user: str
    groups: tuple[TaskGroup, ...]
    cwd: str = "/"
    environment: dict[str, str] = {}
    priority: int = 0
    time_limit_s: float = 0.0
    """Longest time that the job may run; 0 for no limit."""
    interactive: bool = False
    submitted_at: float = 0.0
    """Seconds since the epoch, by the scheduler's clock."""
    stage_in: str = ""
    """Digest of the manifest of the files that are put into each task's directory; empty for none."""
    stage_out: tuple[str, ...] = ()
    """Paths below each task's directory that are kept when it has ended."""
    unreachable_limit_s: float = 0.0
    """How long it is kept while one of its nodes can't be reached; 0 for as long as the cluster has set."""
    moveable: bool = False
    """It may be ended while it runs and be queued again, to make room or to empty a node: its programs can begin anew
    at any time."""

    alternatives: tuple[Alternative, ...] = ()
    """Other ways to run it; one of them or the job as it stands is placed, never two."""
    composites: tuple[Composite, ...] = ()
    """Functions that were not expanded yet; empty in what the scheduler keeps."""
    beside: str = ""
    """A job whose running tasks this one is to be near (HIRE's incremental requests); empty for none."""
    attachment: bool = False
    """It keeps a volume attached to a node: one task without a program, which runs until somebody detaches it."""
    goal: Goal = NO_GOAL
    application: str = ""
    """What its runs are remembered under, beside its user; empty for its name (:mod:`farbus.model.profile`)."""

    @property
    def vectors(self) -> tuple[str, ...]:
        """Return the flavour vector of each group."""
        return tuple(group.flavour for group in self.groups)

    @property
    def is_polymorphic(self) -> bool:
        """Say whether its groups have flavour vectors, so that some of them are left out whenever it runs."""
        return any(group.flavour for group in self.groups)

    @property
    def flavours(self) -> tuple[str, ...]:
        """Return the names of all ways in which it may be placed; empty is the job as it stands."""
        if self.is_polymorphic:
            return flavour.flavours(self.vectors) or ("",)
        return ("", *(each.name for each in self.alternatives))

    @property
    def due_at(self) -> float:
        """Return its deadline in seconds since the epoch; infinite without one."""
        if self.goal.deadline_s:
            return self.submitted_at + self.goal.deadline_s
        return self.goal.deadline_at or math.inf

    def in_flavour(self, name: str) -> Job:
        """Return the job as its alternative of that name has it, without alternatives; empty for as it stands.

        Of a job with flavour vectors the name is what was decided, and the
        groups are those that are decided by it.  Raises KeyError for a name
        that no alternative has.
        """
        if self.is_polymorphic and name:
            kept = tuple(
                msgspec.structs.replace(group, flavour="")
                for group in self.groups
                if flavour.standing(group.flavour, name) is flavour.Standing.DECIDED
            )
            return msgspec.structs.replace(self, groups=kept)
        variants: dict[str, GroupVariant] = {}
        if name:
            chosen = {each.name: each for each in self.alternatives}[name]
            variants = {each.name: each for each in chosen.groups}
        groups = tuple(
            msgspec.structs.replace(
                group,
                requests=variants[group.name].requests,
                labels=variants[group.name].labels,
                routes=variants[group.name].routes,
                storage=variants[group.name].storage,
            )
            if group.name in variants
            else group
            for group in self.groups
        )
        return msgspec.structs.replace(self, groups=groups, alternatives=())

    @property
    def asks_for_gpus(self) -> bool:
        """Say whether a task of it asks for a GPU, in any of its flavours."""
        groups: list[TaskGroup | GroupVariant] = [*self.groups]
        for way in self.alternatives:
            groups += way.groups
        return any(group.requests.gpus for group in groups)

    @property
    def volumes(self) -> tuple[str, ...]:
        """Return the names of the volumes that its tasks use, in any of its flavours."""
        groups: list[TaskGroup | GroupVariant] = [*self.groups]
        for way in self.alternatives:
            groups += way.groups
        return tuple(dict.fromkeys(each.volume for group in groups for each in group.storage if each.volume))

    @property
    def is_staged(self) -> bool:
        """Say whether each task has a directory of its own, which ends with it."""
        return bool(self.stage_in or self.stage_out)


class TaskState(enum.StrEnum):
    """Where one task is."""

    PENDING = "pending"
    RUNNING = "running"
    EXITED = "exited"


class DevicePlacement(Value, frozen=True, kw_only=True):
    """One device for one task."""

    device: str
    node: str
    """The node that has the device when this is decided; empty for one of a fabric pool that no node has."""
    route: Route
    storage: str = ""
    """The storage request that it serves; empty for a device that the task has for itself."""
    size_bytes: int = 0
    bandwidth_bytes_per_s: int = 0

    @property
    def is_storage(self) -> bool:
        """Whether it is a part of the task's storage: a drive that is shared, or a part of a volume."""
        return bool(self.storage) or bool(volume_of(self.device))


class TaskPlacement(Value, frozen=True, kw_only=True):
    """Where a task goes, with the reason in words."""

    task: str
    """``GROUP.INDEX``, for example ``main.0``."""
    node: str
    devices: tuple[DevicePlacement, ...] = ()
    cost: int = 0
    """Sum of the costs of the chosen arcs, in thousandths."""
    why: str = ""


def room_of(requests: Requests, task: TaskPlacement) -> dict[str, Resources]:
    """Return what a task takes of each node: what it asks for of its own, and of the network at both ends of GPUs.

    Storage over the network is not counted: what it is given of that is its
    own limit (``bandwidth_bytes_per_s``).
    """
    room = {task.node: requests.resources}
    if requests.remote_network_mbit_s:
        each = Resources(network_mbit_s=requests.remote_network_mbit_s)
        for place in task.devices:
            if place.route is Route.REMOTE and not place.is_storage:
                room[task.node] += each
                room[place.node] = room.get(place.node, Resources()) + each
    return room


def add_room(rooms: dict[str, Resources], more: Mapping[str, Resources]) -> None:
    """Add what somebody takes of nodes to ``rooms``, by the nodes' names."""
    for node, room in more.items():
        rooms[node] = rooms[node] + room if node in rooms else room


STOPPED = "it was stopped"
"""Reason of a task that was ended with its job, by somebody or since another task had failed."""


class TaskStatus(Value, frozen=True, kw_only=True):
    """What became of a task.  ``exit_code`` is negative for a signal."""

    task: str
    state: TaskState
    node: str = ""
    exit_code: int = 0
    reason: str = ""
    unstarted: bool = False
    """It has ended before its program began, through no fault of the job's: another attempt may do better."""
    exit_unknown: bool = False
    """Nobody knows how its program ended, as of one that was lost with its node: ``exit_code`` says nothing."""


GPU_SHARE = "gpu share"
"""The resource of a miss where GPUs are offered otherwise than asked for: its message says what to ask for."""


class Miss(Value, frozen=True, kw_only=True):
    """Why a job waits: one phase's nearest miss."""

    phase: str
    resource: str
    message: str
    short_by: int = 0
    permanent: bool = False
    """True when no state of the present cluster could serve it."""
    nodes: int = 0
    """Nodes that are meant by their kind: they have the labels, or devices that suit."""
    nodes_short: int = 0
    """How many of them have too little for one task."""
    closest: str = ""
    """The one of those that is closest to enough."""
    closest_short_by: int = 0
    """By how much: thousandths of a processor, bytes or devices, whichever it lacks most of."""


class FlavourCheck(Value, frozen=True, kw_only=True):
    """What one way to run a job would need, all of its tasks together, and what would become of it now."""

    alternative: str = ""
    """Its name; empty for the job as it stands."""
    cpu_milli: int = 0
    memory_bytes: int = 0
    network_mbit_s: int = 0
    gpus: int = 0
    placements: tuple[TaskPlacement, ...] = ()
    misses: tuple[Miss, ...] = ()


class JobStatus(Value, frozen=True, kw_only=True):
    """A job with what became of it."""

    job: Job
    state: JobState
    reason: str = ""
    placements: tuple[TaskPlacement, ...] = ()
    tasks: tuple[TaskStatus, ...] = ()
    misses: tuple[Miss, ...] = ()
    """Why it waits, or why the tasks do that it runs without."""
    rounds_waited: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    story: tuple[str, ...] = ()
    alternative: str = ""
    """The alternative as which it was placed last; empty for the job as it stands."""
    tasks_waiting: int = 0
    """Tasks that it runs without, and that begin once there is room (``min_count``)."""
    flavours: tuple[FlavourCheck, ...] = ()
    """Of a job with alternatives that is only checked: each way to run it, as if there were no other."""
