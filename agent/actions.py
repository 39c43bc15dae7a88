"""What the node's machine wants done: actions in the imperative.

Work (:data:`Work`) takes time, and ends in an
:class:`farbus.agent.events.ActionDone` with its serial number.  Each kind is a
sequence of journalled steps (:mod:`farbus.agent.steps`) in one direction::

    PrepareDevices -> ... <- UnprepareDevices
    PrepareClient  -> ... <- UnprepareClient
    StartTask      -> ... <- StopTask

Records (:data:`Record`) are written before the actions that follow them.
Reports (:data:`Report`) only tell the scheduler.
"""

from __future__ import annotations

from farbus.agent.events import PreparedLease, TaskRun
from farbus.model.job import TaskStatus
from farbus.model.lease import Lease
from farbus.model.value import Value


class PrepareDevices(Value, frozen=True, kw_only=True):
    """Serve the devices of a lease."""

    serial: int
    lease: Lease


class UnprepareDevices(Value, frozen=True, kw_only=True):
    """End serving a lease: afterwards nobody uses its devices by it."""

    serial: int
    lease: Lease


class PrepareClient(Value, frozen=True, kw_only=True):
    """Make what a task's program needs to reach its devices."""

    serial: int
    job: str
    task: str
    user: str
    leases: tuple[PreparedLease, ...]
    interactive: bool = False
    attachment: bool = False


class UnprepareClient(Value, frozen=True, kw_only=True):
    """Remove what :class:`PrepareClient` made; with ``force`` also what is still held, as far as the kernel lets."""

    serial: int
    job: str
    task: str
    user: str
    leases: tuple[PreparedLease, ...]
    attachment: bool = False
    force: bool = False


class StartTask(Value, frozen=True, kw_only=True):
    """Start a task's program; ``environment`` is what its devices need of it."""

    serial: int
    run: TaskRun
    environment: dict[str, str] = {}


class StopTask(Value, frozen=True, kw_only=True):
    """End a task's program: SIGTERM to its group, after ``grace_s`` SIGKILL to all of it.

    ``reason`` goes to its status.
    """

    serial: int
    job: str
    task: str
    grace_s: float
    reason: str = ""


Work = PrepareDevices | UnprepareDevices | PrepareClient | UnprepareClient | StartTask | StopTask


class RecordExit(Value, frozen=True, kw_only=True):
    """Keep a task's status, before anybody is told of it."""

    job: str
    status: TaskStatus


class ForgetTask(Value, frozen=True, kw_only=True):
    """Drop a task's kept status: the scheduler has it."""

    job: str
    task: str


class RecordFence(Value, frozen=True, kw_only=True):
    """Keep the least epoch of each device that is not stale yet."""

    epochs: dict[str, int]


class Answer(Value, frozen=True, kw_only=True):
    """Answer a command."""

    command: str
    ok: bool
    error: str = ""
    endpoint: str = ""
    environment: dict[str, str] = {}


class ReportTask(Value, frozen=True, kw_only=True):
    """Tell what became of a task."""

    job: str
    status: TaskStatus


class ReportLeaseEnded(Value, frozen=True, kw_only=True):
    """Tell that this node has ended its side of a lease by itself; ``lease`` is without its secret."""

    lease: Lease
    device_side: bool
    reason: str

    @property
    def lease_id(self) -> str:
        """The lease's id."""
        return self.lease.id


class ReportClientEnded(Value, frozen=True, kw_only=True):
    """Tell that this node has ended a task's client side by itself, whatever leases it had."""

    job: str
    task: str
    reason: str


Record = RecordExit | ForgetTask | RecordFence
Report = Answer | ReportTask | ReportLeaseEnded | ReportClientEnded
Action = Work | Record | Report
