"""What a scheduling round sees and what it answers: pure values on both sides."""

from __future__ import annotations

from farbus.model.cluster import LinkLoad
from farbus.model.device import Device
from farbus.model.job import Job, Miss, TaskPlacement
from farbus.model.node import Resources
from farbus.model.profile import ApplicationProfile
from farbus.model.value import Value


class NodeView(Value, frozen=True, kw_only=True):
    """A node that may be given tasks, with what is free on it now."""

    name: str
    capacity: Resources
    free: Resources
    labels: dict[str, str] = {}
    rack: str = ""


class DeviceView(Value, frozen=True, kw_only=True):
    """A device with its node; ``free`` when no lease holds it."""

    device: Device
    node: str
    free: bool


class Snapshot(Value, frozen=True, kw_only=True):
    """The cluster at one moment.  Phases of a round all work on the same one."""

    nodes: tuple[NodeView, ...]
    devices: tuple[DeviceView, ...]
    links: dict[str, tuple[LinkLoad, ...]] = {}
    """Loads of the links of nodes, by the nodes' names, as far as they were measured."""
    at: float = 0.0
    """Monotonic time, on the clock of the links' ``measured_at``."""


class PendingJob(Value, frozen=True, kw_only=True):
    """A job in the queue.  ``rounds_waited`` counts rounds in which it alone would have fitted."""

    job: Job
    rounds_waited: int = 0
    profile: ApplicationProfile | None = None
    """What is known of its application; None where it never ran."""


class JobPlacement(Value, frozen=True, kw_only=True):
    """A whole job placed."""

    job: str
    tasks: tuple[TaskPlacement, ...]


class JobMiss(Value, frozen=True, kw_only=True):
    """A job not placed in this round, and why."""

    job: str
    misses: tuple[Miss, ...]
    feasible_alone: bool
    """True when an otherwise idle cluster in its present shape could have placed it."""


class RoundReport(Value, frozen=True, kw_only=True):
    """How a round went, for metrics and ``farbus explain``."""

    pending: int
    placed: int
    decision_ms: float
    solves: int
    certified: bool


class Decision(Value, frozen=True, kw_only=True):
    """The answer of a round."""

    placements: tuple[JobPlacement, ...]
    misses: tuple[JobMiss, ...]
    report: RoundReport
