"""What a phase is: the interface between a round and one kind of resource.

A phase is opened once per round and gives a *desk*, which holds what is free
of its resource.  The desk says which units of its resource a job wants
(:class:`Want`), which places could serve them at which cost (:class:`Offer`
for all alike, :class:`Arc` for a preference), and hands units out, checked
against the whole vector of its resource.  The networks are built, solved and
decoded outside (:mod:`farbus.scheduler.phases.market`): a phase knows its
resource and no flow.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from farbus.model.decision import PendingJob
from farbus.model.job import DevicePlacement, Miss, TaskGroup
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.phases.cluster import MAX_UNITS, Cluster

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NEAR, MIXED, FAR = 0, 1, 2
"""Tiers of an offer: all, some or nothing of what later phases bring is at hand on the node itself."""

ANYWHERE = -1
"""The site of a source that is bound to no node."""

NOWHERE = -2
"""The site of a source that is bound to a node which does not exist."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Where flow begins: all wants of one source have the same arcs.

    ``shape`` says what one unit is, ``site`` the node that the wants are bound
    to, ``pool`` the number of the aggregator through which they reach places
    at a cost shared by all (None: by preference arcs alone).  A desk makes one
    object per source, so that sources compare by identity.
    """

    shape: Hashable
    site: int = ANYWHERE
    pool: int | None = None


@dataclass(frozen=True, slots=True)
class Arc:
    """A preference: one place, up to ``capacity`` units, ``cost`` each."""

    place: int
    tier: int
    capacity: int
    cost: int


@dataclass(frozen=True, slots=True)
class Offer:
    """Arcs of an aggregator: int64 of shape (M,), capacity 0 where there is no arc.

    The capacities of all tiers of one place sum to no more than the units that
    the place could take if it took nothing else.
    """

    tier: int
    capacity: Integers
    cost: Integers


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The arcs that an aggregator had at first, cheapest first: what an award is explained against."""

    place: Integers
    cost: Integers

    def beside(self, award: Award, names: Sequence[str], without: int = -1) -> str:
        """Name the next dearer place than that of ``award``, else a cheaper one that was full; empty if there is none.

        ``without`` is a place that does not count.
        """
        first = int(np.searchsorted(self.cost, award.cost))
        for row in range(first, len(self.place)):
            if self.place[row] not in (award.place, without):
                return f"next best {names[self.place[row]]} at {int(self.cost[row]) / 1000:g}"
        for row in range(first):
            if self.place[row] not in (award.place, without):
                return f"cheaper ones such as {names[self.place[row]]} at {int(self.cost[row]) / 1000:g} were full"
        return ""


@dataclass(slots=True)
class Want:
    """``count`` equal units for group ``group`` of a job; ``count`` falls as they are served."""

    work: Work
    group: int
    source: Source
    count: int


@dataclass(frozen=True, slots=True)
class Award:
    """``count`` units of a want served at ``place``, each at ``cost``.

    ``grants`` names what each unit was given, where units differ (devices by
    their row); it is empty where they do not (processor and memory).
    """

    group: int
    source: Source
    place: int
    tier: int
    count: int
    cost: int
    grants: tuple[tuple[int, ...], ...] = ()


@dataclass(eq=False, slots=True)
class Work:
    """A pending job on its way through a round; ``rank`` 0 comes first, ``tier`` grows with urgency."""

    pending: PendingJob
    rank: int
    tier: int
    awards: dict[str, list[Award]] = field(default_factory=dict)
    """What each phase gave, by the phase's name."""

    def awarded(self, phase: str) -> list[Award]:
        """Return what ``phase`` gave so far."""
        return self.awards.get(phase, [])


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a later phase expects for one task of a group on each node, as far as it can tell now.

    All arrays have shape (M,).  ``near`` counts tasks that could be served by
    the node itself, each at ``near_cost``; ``far`` says where a task could be
    served from elsewhere, at ``far_cost``.  ``total`` bounds the tasks that
    the whole cluster could serve.
    """

    near: Integers
    near_cost: Integers
    far: Flags
    far_cost: Integers
    total: int


class Desk(abc.ABC):
    """What is free of one resource during one round, and who was given it.  Places are nodes, by row."""

    phase: str
    """Name of the phase."""

    first: dict[int, Alternatives]
    """By the number of the pool, the arcs that its first network of the round had; kept by the market."""

    @abc.abstractmethod
    def wants(self, work: Work) -> list[Want]:
        """Return what ``work`` still needs of this resource, given what earlier phases awarded."""

    @abc.abstractmethod
    def offers(self, source: Source) -> Sequence[Offer]:
        """Return the arcs of the aggregator ``source.pool`` for what is free now."""

    @abc.abstractmethod
    def arcs(self, source: Source) -> Sequence[Arc]:
        """Return the preference arcs of ``source`` for what is free now."""

    @abc.abstractmethod
    def take(self, source: Source, place: int, tier: int, count: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """Reserve up to ``count`` units at ``place``; return how many fitted, and their grants.

        Checks the whole vector of the resource: what does not fit is not taken.
        The first unit at a place fits if :meth:`offers` or :meth:`arcs` had
        room for it, which is why rounds of solving end.
        """

    @abc.abstractmethod
    def give_back(self, award: Award) -> None:
        """Undo what :meth:`take` reserved for ``award``."""

    @abc.abstractmethod
    def hold(self, award: Award) -> bool:
        """Keep what ``award`` names away from others, as far as it is free; return whether all of it is.

        ``award`` comes from the desk of an idle cluster of the same columns.
        """

    @abc.abstractmethod
    def end_holds(self, *, release: bool) -> None:
        """Forget all holds: ``release`` what they kept, or leave it taken."""

    def limit(self, source: Source) -> int:
        """Return an upper bound of the units that ``source.pool`` can serve in all; the rest is not even asked."""
        del source
        return MAX_UNITS

    def outlook_key(self, pending: PendingJob, group: TaskGroup) -> Hashable | None:
        """Return what tells groups apart at this desk; None when ``group`` needs nothing of this resource."""
        del pending, group
        return None

    def outlook(self, key: Hashable) -> Outlook:
        """Tell earlier phases what to expect for a task of a group with this ``outlook_key``."""
        raise NotImplementedError(f"phase {self.phase} has keys but no outlook for {key}")

    def near_room(self, key: Hashable, place: int) -> int:
        """Return ``outlook(key).near[place]``, for what is free and not pencilled in now."""
        return int(self.outlook(key).near[place])

    def spare(self) -> Integers | int:
        """Return how many devices of this resource are free on each node."""
        return 0

    def pencil(self, key: Hashable, place: int, count: int) -> None:
        """Note that an earlier phase counts on ``count`` (negative: no longer) near units of outlook ``key``."""
        del key, place, count

    def clear_pencil(self) -> None:
        """Forget all notes: this phase begins, and its own books count from here."""
        return

    def device_placements(self, award: Award) -> list[tuple[DevicePlacement, ...]]:
        """Return the devices of each unit of ``award``; empty where units are not devices."""
        del award
        return []

    @abc.abstractmethod
    def alternatives(self, award: Award) -> str:
        """Say in a few words why ``award`` was chosen, and the next best alternative with its cost."""

    @abc.abstractmethod
    def misses(self, pending: PendingJob) -> list[Miss]:
        """Return why the job, or a part of it, finds no room in what is free now; empty if this phase has room."""


class Phase(abc.ABC):
    """One kind of resource, as a plug-in of the round."""

    name: str

    @abc.abstractmethod
    def open(self, cluster: Cluster, policy: Policy, later: Sequence[Desk]) -> Desk:
        """Return the desk for one round; ``later`` are the desks of the phases that follow."""
