"""What the cluster machine is told, and what it answers.

Events are in the past tense, commands and effects in the imperative.  The
fields of a command are those of its message in ``session.proto``, so that the
service converts them by name.
"""

from __future__ import annotations

import enum

from farbus.model.decision import Decision, JobPlacement
from farbus.model.fabric import ChassisView, StepHistory
from farbus.model.job import Job, JobStatus, Requests, TaskStatus
from farbus.model.lease import Lease, LeasedDevice
from farbus.model.move import MoveStatus, NodeMove
from farbus.model.node import Node
from farbus.model.operation import Cordon, CordonKind
from farbus.model.profile import ApplicationProfile, ObservedRun
from farbus.model.rules import Rules
from farbus.model.states import JobState, LeaseState
from farbus.model.telemetry import Telemetry
from farbus.model.value import Value
from farbus.model.volume import VolumePart, VolumeStatus
from farbus.scheduler.move_records import StoredMove
from farbus.scheduler.records import StoredProgress
from farbus.scheduler.volume_records import StoredVolume

# --- what nodes and people told ---------------------------------------------------------


class HeldLease(Value, frozen=True, kw_only=True):
    """A lease that an agent says it holds."""

    lease_id: str
    device_side: bool = False
    endpoint: str = ""
    devices: tuple[LeasedDevice, ...] = ()
    trouble: str = ""
    """Why it can't be given up; empty when nothing is wrong."""


class HeldTask(Value, frozen=True, kw_only=True):
    """A task that an agent says it has."""

    job_id: str
    status: TaskStatus


class HeldMove(Value, frozen=True, kw_only=True):
    """A move of a device that an agent has under way, or that is stuck there: then with the ``trouble``."""

    move_id: str
    device: str
    attach: bool = False
    trouble: str = ""


class NodeJoined(Value, frozen=True, kw_only=True):
    """An agent opened a session; ``session`` numbers it."""

    node: Node
    session: int
    held: tuple[HeldLease, ...] = ()
    tasks: tuple[HeldTask, ...] = ()
    instance: str = ""
    """New for each boot of the node."""
    clients: frozenset[tuple[str, str]] | None = None
    """(job, task) of every client side that the agent holds; None from an agent that does not tell."""
    moves: tuple[HeldMove, ...] = ()
    chassis: tuple[str, ...] = ()
    """Chassis that the agent has the credentials for."""


class NodeLost(Value, frozen=True, kw_only=True):
    """A session ended."""

    node: str
    session: int
    reason: str = ""


class NodeLeaving(Value, frozen=True, kw_only=True):
    """An agent stops, and what it holds goes on until another agent takes it up."""

    node: str
    session: int


class InventoryChanged(Value, frozen=True, kw_only=True):
    """A node has other devices or resources than before."""

    node: Node
    session: int


class HeartbeatArrived(Value, frozen=True, kw_only=True):
    """A node is alive and wants these leases renewed."""

    node: str
    session: int
    lease_ids: tuple[str, ...] = ()
    telemetry: Telemetry | None = None


class OutcomeArrived(Value, frozen=True, kw_only=True):
    """A node answered a command."""

    node: str
    session: int
    command_id: str
    ok: bool
    error: str = ""
    endpoint: str = ""
    environment: dict[str, str] = {}
    move: NodeMove | None = None
    """Of a detach or attach: what the node says of it."""


class MoveProgressed(Value, frozen=True, kw_only=True):
    """A node is at a step of its part of a move: ``step`` counts from 0, of ``steps``."""

    node: str
    session: int
    move_id: str
    step: int
    steps: int
    says: str
    expected_s: float


class ChassisReported(Value, frozen=True, kw_only=True):
    """The agent that serves a chassis in ``term`` has read it."""

    node: str
    session: int
    term: int
    view: ChassisView
    history: StepHistory | None = None
    """How long its steps took; None where the agent did not tell."""
    parallel: int = 1
    """Requests that the chassis takes at once."""
    trouble: str = ""
    """Why it can't be read now; ``view`` is what was read last."""


class TaskReported(Value, frozen=True, kw_only=True):
    """A node says where a task is."""

    node: str
    session: int
    job_id: str
    status: TaskStatus


class LeaseEndedByNode(Value, frozen=True, kw_only=True):
    """A node ended a lease by itself; ``job_id`` and ``task`` name a client side that has none."""

    node: str
    session: int
    lease_id: str
    device_side: bool
    reason: str
    job_id: str = ""
    task: str = ""


class LeaseOverused(Value, frozen=True, kw_only=True):
    """A lease of storage has more of its drives than it was granted, in bytes a second; 0: not any more."""

    node: str
    session: int
    lease_id: str
    bytes_per_s: int
    granted_bytes_per_s: int


class LeasePaths(Value, frozen=True, kw_only=True):
    """Not all paths of a lease to storage of another node work, in words; empty: all work again."""

    node: str
    session: int
    lease_id: str
    trouble: str


class JobSubmitted(Value, frozen=True, kw_only=True):
    """A valid job with its id."""

    job: Job


class JobCancelled(Value, frozen=True, kw_only=True):
    """Somebody who may do so ended a job: cancelled it, or ``released`` an interactive one whose program ended.

    ``exit_code`` is that program's, negative for a signal; None where nobody knows it.
    """

    job_id: str
    reason: str
    released: bool = False
    exit_code: int | None = None


class Cordoned(Value, frozen=True, kw_only=True):
    """An operator cordoned a node or device that is known."""

    cordon: Cordon


class ProfileSet(Value, frozen=True, kw_only=True):
    """An operator said what an application is like; it has been checked."""

    profile: ApplicationProfile


class ProfileForgotten(Value, frozen=True, kw_only=True):
    """An operator wants an application forgotten: that of one user, or with None of all."""

    application: str
    user: str | None


class Uncordoned(Value, frozen=True, kw_only=True):
    """An operator took a cordon back."""

    kind: CordonKind
    name: str


class JobEvicted(Value, frozen=True, kw_only=True):
    """An operator drains a node that a job uses."""

    job_id: str
    node: str
    reason: str


class NodeForgotten(Value, frozen=True, kw_only=True):
    """An operator says that a node without a session is off for good."""

    node: str
    reason: str


class MoveAsked(Value, frozen=True, kw_only=True):
    """An operator wants a device moved; it has been checked, and gets its number now."""

    move: StoredMove


class MoveCancelled(Value, frozen=True, kw_only=True):
    """An operator has called a move off."""

    move_id: str
    by: str


class VolumeAsked(Value, frozen=True, kw_only=True):
    """Somebody wants a volume; it has been checked, and where it goes was decided on the cluster as it is now."""

    volume: StoredVolume


class VolumeResizeAsked(Value, frozen=True, kw_only=True):
    """A volume is to be larger; its drives have been seen to have room."""

    name: str
    size_bytes: int
    by: str


class VolumeDeletionAsked(Value, frozen=True, kw_only=True):
    """A volume that nobody uses is to go."""

    name: str
    by: str


class RoundDecided(Value, frozen=True, kw_only=True):
    """A round ended; ``decision`` is None when it failed, with the error."""

    decision: Decision | None
    generation: int
    error: str = ""


class RoomPlanned(Value, frozen=True, kw_only=True):
    """A plan was made to end the jobs ``moved`` so that another has room: carried out if it still holds."""

    placement: JobPlacement
    """Where that one goes."""
    moved: tuple[str, ...]
    reason: str
    """What the moved jobs are told."""
    again: tuple[JobPlacement, ...] = ()
    """Where moved jobs go, as far as that is planned."""
    preempts: bool = False
    """Whether all of them must have a lower priority than that one."""


class RulesChanged(Value, frozen=True, kw_only=True):
    """An operator's settings were read again."""

    rules: Rules


class ClockTicked(Value, frozen=True, kw_only=True):
    """Time passed."""


Event = (
    NodeJoined
    | NodeLost
    | NodeLeaving
    | InventoryChanged
    | HeartbeatArrived
    | OutcomeArrived
    | MoveProgressed
    | ChassisReported
    | TaskReported
    | LeaseEndedByNode
    | LeaseOverused
    | LeasePaths
    | JobSubmitted
    | JobCancelled
    | Cordoned
    | ProfileSet
    | ProfileForgotten
    | Uncordoned
    | JobEvicted
    | NodeForgotten
    | MoveAsked
    | MoveCancelled
    | VolumeAsked
    | VolumeResizeAsked
    | VolumeDeletionAsked
    | RoundDecided
    | RoomPlanned
    | RulesChanged
    | ClockTicked
)

# --- commands for nodes ------------------------------------------------------------------


class Verb(enum.StrEnum):
    """The commands' names, as they appear in command ids."""

    PREPARE_DEVICES = "prepare-devices"
    PREPARE_CLIENT = "prepare-client"
    START_TASK = "start-task"
    STOP_TASK = "stop-task"
    UNPREPARE_CLIENT = "unprepare-client"
    UNPREPARE_DEVICES = "unprepare-devices"
    DETACH_DEVICE = "detach-device"
    ATTACH_DEVICE = "attach-device"
    MAKE_VOLUME = "make-volume"
    RESIZE_VOLUME = "resize-volume"
    REMOVE_VOLUME = "remove-volume"
    GROW_CLIENT = "grow-client"


class PrepareDevices(Value, frozen=True, kw_only=True):
    """Make the lease's devices usable for its client node, whose agent serves others at ``peer_endpoint``."""

    command_id: str
    lease: Lease
    peer_endpoint: str = ""


class PreparedLease(Value, frozen=True, kw_only=True):
    """A lease whose device side is ready; the endpoint is empty for a local route.

    ``peer_endpoint`` is where the agent of the device's node serves others.
    """

    lease: Lease
    endpoint: str = ""
    peer_endpoint: str = ""


class PrepareClient(Value, frozen=True, kw_only=True):
    """Make the leases usable for the task, or for an ``interactive`` program, which outlives an agent of its node."""

    command_id: str
    job_id: str
    task: str
    user: str
    leases: tuple[PreparedLease, ...]
    interactive: bool = False
    attachment: bool = False
    """No program uses it: it is for the whole node, until it is unprepared."""


class StartTask(Value, frozen=True, kw_only=True):
    """Start the task's program, in the job's environment and what the node's client side adds to it."""

    command_id: str
    job_id: str
    task: str
    user: str
    command: tuple[str, ...]
    cwd: str
    environment: dict[str, str]
    requests: Requests
    time_limit_s: float
    stage_in: str = ""
    stage_out: tuple[str, ...] = ()


class StopTask(Value, frozen=True, kw_only=True):
    """End the task's program; answered when it has ended."""

    command_id: str
    job_id: str
    task: str
    grace_s: float


class UnprepareClient(Value, frozen=True, kw_only=True):
    """Undo PrepareClient."""

    command_id: str
    job_id: str
    task: str


class UnprepareDevices(Value, frozen=True, kw_only=True):
    """Undo PrepareDevices; the outcome confirms that nobody uses the devices."""

    command_id: str
    lease_id: str


class DetachDevice(Value, frozen=True, kw_only=True):
    """Have a device go from the node; with ``dry_run`` only say how."""

    command_id: str
    move_id: str
    device: str
    chassis: str = ""
    evict: bool = False
    drain_s: float = 0.0
    dry_run: bool = False


class AttachDevice(Value, frozen=True, kw_only=True):
    """Have a device come to the node; ``functions`` is JSON of a list of :class:`farbus.model.pci.Function`."""

    command_id: str
    move_id: str
    device: str
    chassis: str = ""
    port: str = ""
    functions: bytes = b""
    dry_run: bool = False


class CancelMove(Value, frozen=True, kw_only=True):
    """A move that a node was asked for, or is about to be, was called off.  The move's own outcome answers it."""

    move_id: str
    by: str


class MakeVolume(Value, frozen=True, kw_only=True):
    """Make room for a part of a volume, and offer it from then on."""

    command_id: str
    part: VolumePart


class ResizeVolume(Value, frozen=True, kw_only=True):
    """Make a part of a volume as large as it says."""

    command_id: str
    part: VolumePart


class RemoveVolume(Value, frozen=True, kw_only=True):
    """Wipe a part of a volume, and give its room back."""

    command_id: str
    part: VolumePart


class GrowClient(Value, frozen=True, kw_only=True):
    """Let a task that uses a volume have its new size; ``size_bytes`` is what its part has now."""

    command_id: str
    job_id: str
    task: str
    volume: str
    size_bytes: int


class ServeChassis(Value, frozen=True, kw_only=True):
    """Say who asks for a chassis from now on; ``address`` is empty where it is the node that is told."""

    chassis: str
    term: int
    node: str
    address: str = ""


class HeartbeatReply(Value, frozen=True, kw_only=True):
    """Which leases hold for another lease time, and which the ledger does not know.

    ``telemetry_lost`` asks for all of the telemetry: an update is missing.
    """

    renewed: tuple[str, ...] = ()
    void: tuple[str, ...] = ()
    telemetry_lost: bool = False


Command = (
    PrepareDevices
    | PrepareClient
    | StartTask
    | StopTask
    | UnprepareClient
    | UnprepareDevices
    | DetachDevice
    | AttachDevice
    | MakeVolume
    | ResizeVolume
    | RemoveVolume
    | GrowClient
    | ServeChassis
    | CancelMove
    | HeartbeatReply
)

# --- effects -----------------------------------------------------------------------------


class SendToNode(Value, frozen=True, kw_only=True):
    """Send a command in this session, if it is still the node's."""

    node: str
    session: int
    command: Command


class CloseSession(Value, frozen=True, kw_only=True):
    """End a session that is dead or was replaced."""

    node: str
    session: int
    reason: str


class PersistJob(Value, frozen=True, kw_only=True):
    """Write a job.  ``progress`` is its record's, which may change until it is written: the ledger has the latest.

    Of one that lives its tasks are not in it (:class:`PersistTasks`); of one that has ended it has them all.
    """

    job: Job
    state: JobState
    progress: StoredProgress
    new: bool


class PersistTasks(Value, frozen=True, kw_only=True):
    """Write tasks of a job that lives, by name: each a :class:`farbus.scheduler.runs.TaskRun` as JSON.

    Empty: it is no more.  Those that are not named stay as they are.
    """

    job_id: str
    tasks: tuple[tuple[str, bytes], ...]


class PersistLease(Value, frozen=True, kw_only=True):
    """Write a lease."""

    lease: Lease
    state: LeaseState
    endpoint: str
    prepared: bool


class PersistDevice(Value, frozen=True, kw_only=True):
    """Write a device's last known owner and its epoch."""

    id: str
    node: str
    epoch: int
    device: bytes
    """The :class:`farbus.model.device.Device` as JSON, empty when not known."""


class PersistNode(Value, frozen=True, kw_only=True):
    """Write a node as it announced itself."""

    node: Node
    seen_at: float


class ForgetNode(Value, frozen=True, kw_only=True):
    """Remove a node."""

    name: str


class PersistCordon(Value, frozen=True, kw_only=True):
    """Write a cordon, or with None its end."""

    kind: CordonKind
    name: str
    cordon: Cordon | None


class PersistMove(Value, frozen=True, kw_only=True):
    """Write a move."""

    move: StoredMove


class PersistVolume(Value, frozen=True, kw_only=True):
    """Write a volume."""

    volume: StoredVolume


class PersistChassis(Value, frozen=True, kw_only=True):
    """Write in which term somebody is named to serve a chassis."""

    name: str
    term: int


class PersistRun(Value, frozen=True, kw_only=True):
    """Write a run that tells of its application."""

    run: ObservedRun


class PersistProfile(Value, frozen=True, kw_only=True):
    """Write a profile that an operator has set."""

    profile: ApplicationProfile


class ForgetProfile(Value, frozen=True, kw_only=True):
    """Remove runs and profiles of an application: of one user, or with None of all."""

    application: str
    user: str | None


class PersistWaits(Value, frozen=True, kw_only=True):
    """Write how many rounds queued jobs have waited, by id."""

    rounds: tuple[tuple[str, int], ...]


class RunRound(Value, frozen=True, kw_only=True):
    """Ask the decision maker, soon."""


class JobChanged(Value, frozen=True, kw_only=True):
    """Wake who watches the job; ``ended`` is its last status once it has ended."""

    job_id: str
    ended: JobStatus | None = None


class MoveChanged(Value, frozen=True, kw_only=True):
    """Wake who watches the move; ``ended`` is its last status once it has ended."""

    move_id: str
    ended: MoveStatus | None = None


class VolumeChanged(Value, frozen=True, kw_only=True):
    """Wake who watches the volume of that id; ``ended`` is its last status once it is gone."""

    volume_id: str
    ended: VolumeStatus | None = None


class FaultFound(Value, frozen=True, kw_only=True):
    """Log what must not happen, and what it would have done to a job."""

    job_id: str
    told: str


Persist = (
    PersistJob
    | PersistTasks
    | PersistLease
    | PersistDevice
    | PersistNode
    | ForgetNode
    | PersistCordon
    | PersistWaits
    | PersistMove
    | PersistVolume
    | PersistChassis
    | PersistRun
    | PersistProfile
    | ForgetProfile
)
Effect = SendToNode | CloseSession | Persist | RunRound | JobChanged | MoveChanged | VolumeChanged | FaultFound
