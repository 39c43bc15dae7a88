"""What the node's machine hears: events in the past tense.

``now`` is monotonic time in seconds, put in by who saw the event: the machine
itself reads no clock.  ``term`` is that of the scheduler who said it.
"""

from __future__ import annotations

from farbus.model.job import Requests, TaskStatus
from farbus.model.lease import Lease
from farbus.model.value import Value


class PreparedLease(Value, frozen=True, kw_only=True):
    """A lease whose device side is ready; ``endpoint`` is empty for a local route."""

    lease: Lease
    endpoint: str = ""


class TaskRun(Value, frozen=True, kw_only=True):
    """What to run for a task."""

    job: str
    task: str
    user: str
    command: tuple[str, ...]
    cwd: str = "/"
    environment: dict[str, str] = {}
    requests: Requests = Requests()
    time_limit_s: float = 0.0
    stage_in: str = ""
    stage_out: tuple[str, ...] = ()

    @property
    def is_staged(self) -> bool:
        """Say whether the task has a directory of its own."""
        return bool(self.stage_in or self.stage_out)


class SessionOpened(Value, frozen=True, kw_only=True):
    """The scheduler has welcomed this node; a lease lasts ``lease_ttl_s`` from its last renewal."""

    lease_ttl_s: float
    now: float
    term: int = 0


class DevicesRequested(Value, frozen=True, kw_only=True):
    """The scheduler wants the devices of a lease served."""

    command: str
    lease: Lease
    now: float
    term: int = 0


class DevicesReleased(Value, frozen=True, kw_only=True):
    """The scheduler wants a lease's devices back."""

    command: str
    lease_id: str
    term: int = 0


class ClientRequested(Value, frozen=True, kw_only=True):
    """The scheduler wants a task's side of its leases prepared."""

    command: str
    job: str
    task: str
    user: str
    leases: tuple[PreparedLease, ...]
    interactive: bool = False
    """A program in somebody's terminal uses it, and its connection to the agent holds it."""
    attachment: bool = False
    """No program uses it: an operator, whom the node need not know, has the storage there for the whole node."""
    now: float
    term: int = 0


class ClientReleased(Value, frozen=True, kw_only=True):
    """The scheduler wants a task's side gone: the task first, if it still runs."""

    command: str
    job: str
    task: str
    term: int = 0


class StartRequested(Value, frozen=True, kw_only=True):
    """The scheduler wants a task started."""

    command: str
    run: TaskRun
    term: int = 0


class StopRequested(Value, frozen=True, kw_only=True):
    """The scheduler wants a task stopped, killed after ``grace_s`` seconds."""

    command: str
    job: str
    task: str
    grace_s: float
    term: int = 0


class ActionDone(Value, frozen=True, kw_only=True):
    """An action has ended.

    ``exit_code`` is that of the error (:class:`farbus.errors.ExitCode`), and
    ``blame_job`` tells errors of the job itself from trouble of this node.
    """

    serial: int
    ok: bool
    error: str = ""
    exit_code: int = 0
    blame_job: bool = False
    wedged: bool = False
    """It has not ended, but nobody waits for it any more: :class:`WedgeEnded` tells when it has."""
    endpoint: str = ""
    environment: dict[str, str] = {}


class TaskLaunched(Value, frozen=True, kw_only=True):
    """The files of a task have arrived, and its program runs."""

    job: str
    task: str


class TaskExited(Value, frozen=True, kw_only=True):
    """A task's program has ended; ``exit_code`` is negative for a signal.

    ``unstarted`` says that it never began, through no fault of the job's.
    """

    job: str
    task: str
    exit_code: int
    reason: str = ""
    unstarted: bool = False


class SupervisorDied(Value, frozen=True, kw_only=True):
    """What served a lease's devices has ended by itself."""

    lease_id: str
    reason: str


class LeasesRenewed(Value, frozen=True, kw_only=True):
    """The scheduler has renewed leases, counted from ``now``."""

    lease_ids: tuple[str, ...]
    now: float
    term: int = 0


class LeasesVoided(Value, frozen=True, kw_only=True):
    """These leases are to be given up: by default, because the ledger does not know them any more."""

    lease_ids: tuple[str, ...]
    reason: str = "the scheduler's ledger does not know it any more"
    term: int = 0


class WedgeEnded(Value, frozen=True, kw_only=True):
    """Work that was overdue has ended after all; ``object`` is the name of what it was done to."""

    object: str


class DevicesVanished(Value, frozen=True, kw_only=True):
    """Devices are not on this node any more: pulled out, or fallen off the bus."""

    devices: tuple[str, ...]


class HoldClaimed(Value, frozen=True, kw_only=True):
    """Somebody holds the client side of an interactive job again, after this agent was restarted."""

    job: str
    task: str


class RestoredDevices(Value, frozen=True, kw_only=True):
    """A lease whose device side was held, by the journal; ``lost`` says why it is not any more."""

    lease: Lease
    endpoint: str = ""
    lost: str = ""


class RestoredClient(Value, frozen=True, kw_only=True):
    """A client side that was held, by the journal; ``lost`` says why it is not any more."""

    job: str
    task: str
    user: str
    leases: tuple[PreparedLease, ...] = ()
    environment: dict[str, str] = {}
    interactive: bool = False
    attachment: bool = False
    lost: str = ""


class RestoredTask(Value, frozen=True, kw_only=True):
    """A task that ran, by the journal; ``lost`` says why it does not any more.

    ``unstarted`` says of one that is lost that its program had not begun.
    """

    run: TaskRun
    lost: str = ""
    unstarted: bool = False


class NodeRestored(Value, frozen=True, kw_only=True):
    """What an earlier agent left on this node, and what of it was observed: always the first event."""

    now: float
    lease_ttl_s: float = 0.0
    term: int = 0
    fences: dict[str, int] = {}
    devices: tuple[RestoredDevices, ...] = ()
    clients: tuple[RestoredClient, ...] = ()
    tasks: tuple[RestoredTask, ...] = ()
    ended_tasks: tuple[tuple[str, TaskStatus], ...] = ()
    closed: dict[str, str] = {}
    """Devices that are being moved, or are gone from here, with why."""


class DeviceClosed(Value, frozen=True, kw_only=True):
    """Nobody may be given a device any more: it is being moved, for the ``reason``.  Who has it keeps it."""

    device: str
    reason: str


class DeviceOpened(Value, frozen=True, kw_only=True):
    """It may be given again."""

    device: str


class TimePassed(Value, frozen=True, kw_only=True):
    """It is later."""

    now: float


Event = (
    NodeRestored
    | SessionOpened
    | DevicesRequested
    | DevicesReleased
    | ClientRequested
    | ClientReleased
    | StartRequested
    | StopRequested
    | ActionDone
    | TaskLaunched
    | TaskExited
    | SupervisorDied
    | LeasesRenewed
    | LeasesVoided
    | WedgeEnded
    | DevicesVanished
    | HoldClaimed
    | DeviceClosed
    | DeviceOpened
    | TimePassed
)
