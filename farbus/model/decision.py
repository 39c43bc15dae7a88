"""What a scheduling round sees and what it answers: pure values on both sides."""

from __future__ import annotations

import math

from farbus.model.cluster import LinkLoad
from farbus.model.device import Device, PoolReach
from farbus.model.job import Job, Miss, ServiceRequest, TaskPlacement
from farbus.model.node import STORAGE_ATTACH_S, Resources
from farbus.model.profile import ApplicationProfile
from farbus.model.value import Value


class NodeView(Value, frozen=True, kw_only=True):
    """A node that may be given tasks, with what is free on it now."""

    name: str
    capacity: Resources
    free: Resources
    labels: dict[str, str] = {}
    rack: str = ""
    pools: tuple[PoolReach, ...] = ()
    """The fabric pools that devices can be moved from to this node."""
    storage_attach_s: float = STORAGE_ATTACH_S
    """Seconds in which storage of other nodes is attached to it over the network."""
    remoting_tls: str = ""
    """As :attr:`farbus.model.node.Node.remoting_tls`."""


class StorageShare(Value, frozen=True, kw_only=True):
    """What one lease, or a part of a volume, has of a drive: bytes, and bytes a second.

    ``profile`` names how its program behaves, ``drives`` is how many it uses
    as one.  ``started_at`` is when its program began, or had its storage, and
    ``due_at`` when it is to have ended, both on the clock of
    :attr:`Snapshot.at`; None where nobody knows, or there is no deadline.
    """

    size_bytes: int
    bandwidth_bytes_per_s: int = 0
    profile: str = ""
    drives: int = 1
    started_at: float | None = None
    due_at: float | None = None
    is_volume: bool = False
    """It is a part of a volume: room that is taken, and no program that would mind who else is there."""


class DeviceView(Value, frozen=True, kw_only=True):
    """A device with its node; ``free`` when no lease holds it.

    ``node`` is empty for a device of a fabric pool that no node has.  A device
    with a ``destination`` is on its way to that node: from the decision until
    the move is confirmed nobody is given it, neither where it was nor where it
    will be.
    """

    device: Device
    node: str
    free: bool
    destination: str = ""
    shares: tuple[StorageShare, ...] = ()
    """What leases have of a drive that is shared; it is ``free`` for as long as more may share it."""
    instances: tuple[ServiceRequest, ...] = ()
    """What runs on an in-network device; it is ``free`` for as long as more may."""


class Snapshot(Value, frozen=True, kw_only=True):
    """The cluster at one moment.  Phases of a round all work on the same one."""

    nodes: tuple[NodeView, ...]
    devices: tuple[DeviceView, ...]
    links: dict[str, tuple[LinkLoad, ...]] = {}
    """Loads of the links of nodes, by the nodes' names, as far as they were measured."""
    at: float = 0.0
    """Monotonic time, on the clock of the links' ``measured_at``."""


class Neighbour(Value, frozen=True, kw_only=True):
    """A node with tasks that a job is to be near: how many, and how many of those use an in-network device."""

    node: str
    tasks: int
    in_network: int = 0


class PendingJob(Value, frozen=True, kw_only=True):
    """A job in the queue.  ``rounds_waited`` counts rounds in which it alone would have fitted."""

    job: Job
    rounds_waited: int = 0
    left_s: float = math.inf
    """Seconds until its deadline, negative when it is over; infinite without one."""
    profile: ApplicationProfile | None = None
    """What is known of its application; None where it never ran."""
    waited_s: float = 0.0
    """Seconds since a round first put off the choice of its flavour; 0 where none did."""
    neighbours: tuple[Neighbour, ...] = ()
    """Where the tasks run that it is to be near (``Job.beside``)."""
    near: str = ""
    """The rack around which a policy would gather its tasks; empty for none."""


class JobPlacement(Value, frozen=True, kw_only=True):
    """A whole job placed; ``alternative`` names the one that was chosen, and is empty for the job as it stands."""

    job: str
    tasks: tuple[TaskPlacement, ...]
    alternative: str = ""


class JobMiss(Value, frozen=True, kw_only=True):
    """A job not placed in this round, and why."""

    job: str
    misses: tuple[Miss, ...]
    feasible_alone: bool
    """True when an otherwise idle cluster in its present shape could have placed it."""


class RoundGap(Value, frozen=True, kw_only=True):
    """How far a round's plan can be from the best one: no plan scores less than ``bound``.

    ``score`` adds up what placed tasks cost by the prices at which the round
    began and what it costs to let the others wait, in thousandths.
    """

    score: int
    bound: int
    priced: bool = False
    """Whether the plan is the one that was made with prices on what is scarce."""

    @property
    def relative(self) -> float:
        """Return the gap as a part of the score, from 0 to 1."""
        return (self.score - self.bound) / self.score if self.score > 0 else 0.0


class RoundReport(Value, frozen=True, kw_only=True):
    """How a round went, for metrics and ``farbus explain``."""

    pending: int
    placed: int
    decision_ms: float
    solves: int
    certified: bool
    """Whether all solves were certified."""
    gap: RoundGap | None = None
    """None where no job could be read."""
    certified_solves: int = 0
    certify_ms: float = 0.0
    """Part of ``decision_ms`` that certificates took."""
    exact: bool = True
    """Whether pruning left the cost of every solve what it is with all arcs."""


class Decision(Value, frozen=True, kw_only=True):
    """The answer of a round."""

    placements: tuple[JobPlacement, ...]
    misses: tuple[JobMiss, ...]
    report: RoundReport
