"""What the node's machine hears: events in the past tense.

``now`` is monotonic time in seconds, put in by who saw the event: the machine
itself reads no clock.
"""

from __future__ import annotations

from farbus.model.job import Requests
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


class DevicesRequested(Value, frozen=True, kw_only=True):
    """The scheduler wants the devices of a lease served."""

    command: str
    lease: Lease
    now: float


class DevicesReleased(Value, frozen=True, kw_only=True):
    """The scheduler wants a lease's devices back."""

    command: str
    lease_id: str


class ClientRequested(Value, frozen=True, kw_only=True):
    """The scheduler wants a task's side of its leases prepared."""

    command: str
    job: str
    task: str
    user: str
    leases: tuple[PreparedLease, ...]
    now: float


class ClientReleased(Value, frozen=True, kw_only=True):
    """The scheduler wants a task's side gone: the task first, if it still runs."""

    command: str
    job: str
    task: str


class StartRequested(Value, frozen=True, kw_only=True):
    """The scheduler wants a task started."""

    command: str
    run: TaskRun


class StopRequested(Value, frozen=True, kw_only=True):
    """The scheduler wants a task stopped, killed after ``grace_s`` seconds."""

    command: str
    job: str
    task: str
    grace_s: float


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
    endpoint: str = ""
    environment: dict[str, str] = {}


class TaskExited(Value, frozen=True, kw_only=True):
    """A task's program has ended; ``exit_code`` is negative for a signal."""

    job: str
    task: str
    exit_code: int
    reason: str = ""


class SupervisorDied(Value, frozen=True, kw_only=True):
    """What served a lease's devices has ended by itself."""

    lease_id: str
    reason: str


class LeasesRenewed(Value, frozen=True, kw_only=True):
    """The scheduler has renewed leases, counted from ``now``."""

    lease_ids: tuple[str, ...]
    now: float


class LeasesVoided(Value, frozen=True, kw_only=True):
    """These leases are to be given up: by default, because the ledger does not know them any more."""

    lease_ids: tuple[str, ...]
    reason: str = "the scheduler's ledger does not know it any more"


class TimePassed(Value, frozen=True, kw_only=True):
    """It is later."""

    now: float


Event = (
    SessionOpened
    | DevicesRequested
    | DevicesReleased
    | ClientRequested
    | ClientReleased
    | StartRequested
    | StopRequested
    | ActionDone
    | TaskExited
    | SupervisorDied
    | LeasesRenewed
    | LeasesVoided
    | TimePassed
)
