"""What a phase is: the interface between a round and one kind of resource.

A phase is opened once per round and gives a *desk*, which holds what is free
of its resource.  The desk says which units of its resource jobs want, which
places could serve them at which cost (:class:`Offer` for all alike, a table of
arcs for preferences), and hands units out, checked
against the whole vector of its resource.  The networks are built, solved and
decoded outside (:mod:`farbus.scheduler.phases.market`): a phase knows its
resource and no flow.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from farbus.model.decision import PendingJob
from farbus.model.job import GroupVariant, Miss, TaskGroup
from farbus.scheduler import kernels
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.phases.cluster import MAX_UNITS, Cluster
from farbus.scheduler.phases.jobs import Jobs
from farbus.scheduler.phases.reasons import Reasons
from farbus.scheduler.phases.tables import Integers, Table

Flags = npt.NDArray[np.bool_]

NEAR, MIXED, FAR = 0, 1, 2
"""Tiers of an offer: all, some or nothing of what later phases bring is at hand on the node itself."""

ANYWHERE = -1
"""The site of a source that is bound to no node."""

NOWHERE = -2
"""The site of a source that is bound to a node which does not exist."""


NO_ARC = 2**62
"""In the costs of an offer: no arc leads there.  Dearer than any cost."""


class Offer:
    """Arcs of an aggregator to ``place`` (rows, ascending), each for ``capacity`` units at ``cost``, or no arc.

    The capacities of all tiers of one place sum to no more than the units that
    the place could take if it took nothing else.  An offer may be kept and
    written to row by row.
    """

    def __init__(self, tier: int, place: Integers) -> None:
        self.tier = tier
        self.place = place
        self.capacity = np.zeros(len(place), np.int64)
        self.cost = np.full(len(place), NO_ARC, np.int64)
        self.least: Integers | None = np.full(-(-len(place) // kernels.BLOCK), NO_ARC, np.int64)
        """Of each block of rows the least cost; None where columns are written to by others."""
        self.bound = NO_ARC - 1
        """What no arc that was of use last time cost more than: where the search for cheap ones begins."""

    def write(self, at: Integers, capacity: Integers, cost: Integers) -> None:
        """Replace the arcs to ``place[at]``; there is none where ``capacity`` is 0."""
        kernels.write_arcs((self.capacity, self.cost, self.least), at, capacity, cost, no_arc=NO_ARC)

    def arcs(self) -> Integers:
        """Return the rows of the offer that have an arc."""
        return np.flatnonzero(self.cost < NO_ARC)


@dataclass(frozen=True, slots=True)
class Later:
    """An offer that is not worth making where others do: no arc of it is cheaper than ``floor``."""

    tier: int
    floor: int
    make: Callable[[], Offer]


NONE_KNOWN, ONLY_ONE, NEXT_BEST, WERE_FULL = range(4)
"""What there was beside the arc of an award: nobody knows, nothing, a dearer one, cheaper ones that were full."""


class Alternatives:
    """The arcs that an aggregator had at first, cheapest first: what an award is explained against."""

    def __init__(self, place: Integers, cost: Integers) -> None:
        self._arcs: tuple[Integers, Integers] = place, cost

    @functools.cached_property
    def _sorted(self) -> tuple[Integers, Integers]:
        """Return costs and places; most aggregators are never asked."""
        place, cost = self._arcs
        span = int(place.max(initial=0)) + 1
        costs, places = np.divmod(np.sort(cost * span + place), span)
        return costs, places

    def beside(self, places: Integers, costs: Integers, without: Integers) -> tuple[Integers, Integers, Integers]:
        """Return what there was beside each of ``places`` at ``costs``: one of the words above, a place and its cost.

        The next dearer place, else the cheapest one, which was full; ``without`` are places that do not count, each
        for one award.
        """
        known, where = self._sorted
        first = np.searchsorted(known, costs)
        dearer = self._passed(first, len(known), places, without)
        cheaper = self._passed(np.zeros_like(first), first, places, without)
        row = np.where(dearer < len(known), dearer, cheaper)
        what = np.where(dearer < len(known), NEXT_BEST, np.where(cheaper < first, WERE_FULL, ONLY_ONE))
        found = np.flatnonzero(what != ONLY_ONE)
        other, cost = np.full(len(row), -1, np.int64), np.zeros(len(row), np.int64)
        other[found], cost[found] = where[row[found]], known[row[found]]
        return what, other, cost

    def _passed(self, row: Integers, end: Integers | int, places: Integers, without: Integers) -> Integers:
        """Return the first rows from ``row`` on that lead neither to ``places`` nor ``without``; ``end``: none."""
        where = self._sorted[1]
        row = row.copy()
        # Each of the two has an arc for each tier at most.
        for _ in range(2 * (FAR + 1)):
            inside = np.flatnonzero(row < end)
            at = where[row[inside]]
            inside = inside[(at == places[inside]) | (at == without[inside])]
            if not len(inside):
                break
            row[inside] += 1
        return row


@dataclass(frozen=True, slots=True)
class Ways:
    """All ways in which tasks can be served with devices, as of now: ``times`` bundles of ``size`` of one node each.

    ``free`` (D,) are the devices that may be in them, those that the filter ``wanted`` accepts; ``own`` (M,) says which
    nodes may use their own; ``lends`` (A, M) who may lend to clients of each area, and ``area`` (M,) in which one a
    node is, negative where nobody lends to it.  Nobody lends to itself.  A bundle that is lent takes ``network`` Mbit/s
    of the links of both nodes.
    """

    wanted: Hashable
    size: int
    times: int
    free: Flags
    own: Flags
    area: Integers
    lends: Flags
    network: int = 0


class Outlook(abc.ABC):
    """What a later phase expects for one task of a group on each node, as far as it can tell now.

    ``near`` (int64, shape (M,)) counts tasks that could be served by the node
    itself, each at ``near_cost``.  ``total`` bounds the tasks that the whole
    cluster could serve, ``floor`` from below what any that is served from
    elsewhere costs.  Of a change that no row of ``Kept.changes`` tells, only
    what :meth:`far` answers may depend.
    """

    near: Integers
    near_cost: Integers
    total: int
    floor: int
    network: int = 0
    """Mbit/s of the task's own node that a task takes which is served from elsewhere, whatever way that is done."""
    size: int = 0
    """Devices of one task, all of which come out of what :meth:`Desk.spare` counts; 0 where that can't be said."""

    @abc.abstractmethod
    def far(self, nodes: Integers) -> tuple[Flags, Integers]:
        """Say for each of ``nodes`` whether a task could be served from elsewhere, and at which cost."""


class Desk(abc.ABC):
    """What is free of one resource during one round, and who was given it.  Places are nodes, by row.

    What one unit of a want is, is its *shape*.  All wants of one shape that
    are bound to the same node, or to none, have the same arcs: they are one
    source.  Methods take and return many rows at once; see
    :mod:`farbus.scheduler.phases.tables` for the tables.
    """

    phase: str
    """Name of the phase."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.shapes: list[Hashable] = []
        self.first: dict[int, Alternatives] = {}
        """By the number of the pool, the arcs that its first network of the round had; kept by the market."""
        self._numbers: dict[Hashable, int] = {}

    def renew(self, cluster: Cluster) -> None:
        """Begin a round on ``cluster``: the same nodes and devices, of which other ones may be free."""
        self.cluster = cluster
        # What was placed is explained by the arcs of its own round.
        self.first = {}

    def number(self, shape: Hashable) -> int:
        """Return the number of ``shape`` at this desk."""
        found = self._numbers.get(shape)
        if found is None:
            found = self._numbers[shape] = len(self.shapes)
            self.shapes.append(shape)
        return found

    def source(self, shape: int | Integers, site: int | Integers = ANYWHERE) -> Any:
        """Return the source of wants of a shape, by its number, that are bound to ``site``: one, or one for each."""
        return shape * (self.cluster.size + 2) + site + 2

    def split(self, source: Any) -> tuple[Any, Any]:
        """Return the numbers of the shapes of one source or many, and the nodes that they are bound to."""
        shape, site = np.divmod(source, self.cluster.size + 2)
        return shape, site - 2

    @abc.abstractmethod
    def wants(self, jobs: Jobs, rows: Integers) -> Table:
        """Return what jobs ``rows`` (ascending) still need of this resource, given what earlier phases awarded.

        The answer is a table of ``WANT`` in the order of jobs.
        """

    def reserve(self, jobs: Jobs, wants: Table) -> Table:
        """Set aside what ``wants`` may need besides units of this resource, until notes are cleared.

        Returns them as they may be served: what could not be set aside is of another source.
        """
        del jobs
        return wants

    @abc.abstractmethod
    def pools(self, sources: Integers) -> Integers:
        """Return the number of the aggregator through which each source reaches places at a cost shared by all.

        It is -1 for a source that has preference arcs alone.
        """

    @abc.abstractmethod
    def offers(self, pool: int) -> Sequence[Offer | Later]:
        """Return the arcs of an aggregator for what is free now, valid until the next call."""

    def capacity(self, pool: int, places: Integers) -> Integers | None:
        """Return how many units of ``pool`` each of ``places`` could take if it took nothing else, by all tiers.

        With it pruning is exact.  None where that is not known: then the arcs
        that are kept are all that is counted, and a round whose networks are
        pruned says that it is not exact.
        """
        del pool, places
        return None

    def floor(self, shape: int) -> int:
        """Return what no arc of an aggregator for units of ``shape`` costs less than."""
        del shape
        return 0

    def elsewhere(self, shape: int) -> int:
        """Return what a unit of ``shape`` costs at least that has from elsewhere what its place could bring itself.

        Arcs tell of that only beyond what the place brings, though others may come to have that. ``NO_ARC`` where it
        can't be.
        """
        del shape
        return NO_ARC

    @abc.abstractmethod
    def arcs(self, sources: Integers) -> Table:
        """Return the preference arcs of ``sources`` for what is free now: a table of ``ARC``, source by source."""

    @abc.abstractmethod
    def take(self, shape: int, places: Integers, tiers: Integers, counts: Integers) -> tuple[Integers, Integers]:
        """Reserve up to ``counts`` units of a shape at each of ``places``, no two of which are the same.

        Returns how many fitted at each, and the devices of all those units.
        Checks the whole vector of the resource: what does not fit is not
        taken.  The first unit at a place fits if :meth:`offers` or
        :meth:`arcs` had room for it, which is why rounds of solving end.
        """

    def awarded(self, awards: Table) -> Table:
        """Take note of whose the units are that were taken: what was set aside for them is used.

        Returns them with the sources that the wants had at first.
        """
        return awards

    def size(self, shape: int) -> int:
        """Return the number of devices of one unit."""
        del shape
        return 0

    @abc.abstractmethod
    def give_back(self, awards: Table, devices: Integers) -> None:
        """Undo what :meth:`take` reserved for ``awards``, whose units have ``devices``."""

    @abc.abstractmethod
    def hold(self, shape: Hashable, award: Table, devices: Integers) -> bool:
        """Keep what an award of ``shape`` names away from others, as far as it is free; return whether all of it is.

        The award is one row, of the desk of an idle cluster with the same columns.
        """

    @abc.abstractmethod
    def end_holds(self, *, release: bool) -> None:
        """Forget all holds: ``release`` what they kept, or leave it taken."""

    def apart(self, pending: PendingJob) -> str:
        """Say what keeps nodes from each other of which one could have what the job wants from the other, if anything.

        Where a job finds no place though all its parts do, it may be what it misses.
        """
        del pending
        return ""

    # What is scarce, for the bound of a round (:mod:`farbus.scheduler.phases.bound`).

    def room(self, places: Integers) -> Integers:
        """Return what ``places`` have of each resource that tasks there share, shape (K, R)."""
        return np.zeros((len(places), 0), np.int64)

    def need(self, shape: int, tier: int) -> Integers:
        """Return what a unit of ``shape`` uses of its place by an arc of ``tier``, shape (R,)."""
        del shape, tier
        return np.zeros(0, np.int64)

    def common(self) -> Integers:
        """Return what the whole cluster has of resources that may come from anywhere, shape (T,)."""
        return np.zeros(0, np.int64)

    def share(self, shape: int) -> Integers:
        """Return what a unit of ``shape`` uses of :meth:`common`, shape (T,)."""
        del shape
        return np.zeros(0, np.int64)

    def limit(self, pool: int) -> int:
        """Return an upper bound of the units that ``pool`` can serve in all; the rest is not even asked."""
        del pool
        return MAX_UNITS

    def outlook_key(self, pending: PendingJob, group: TaskGroup) -> Hashable | None:
        """Return what tells groups apart at this desk; None when ``group`` needs nothing of this resource."""
        del pending, group
        return None

    def outlook(self, key: Hashable) -> Outlook:
        """Tell earlier phases what to expect for a task of a group with this ``outlook_key``."""
        raise NotImplementedError(f"phase {self.phase} has keys but no outlook for {key}")

    def outlook_size(self, key: Hashable) -> int:
        """Return ``outlook(key).size``, which does not depend on what is free."""
        del key
        return 0

    def outlook_network(self, key: Hashable) -> int:
        """Return ``outlook(key).network``, which does not depend on what is free."""
        del key
        return 0

    def stocks(self, keys: Sequence[Hashable]) -> tuple[Integers, Flags] | None:
        """Return what devices are free for tasks of outlooks ``keys``; None where devices are not what is counted.

        First how many there are in each of S stocks, shape (S,); then, shape (K, S), whether all devices that
        suit a key are in the stock.
        """
        del keys
        return None

    def ways(self, key: Hashable) -> Ways | None:
        """Return all ways to serve tasks of ``key``; None where what is handed out is chosen by more than its node."""
        del key
        return None

    def near_room(self, key: Hashable, places: Integers) -> Integers:
        """Return ``outlook(key).near[places]``, for what is free and not pencilled in now."""
        return self.outlook(key).near[places]

    def spare(self, nodes: Integers) -> Integers | int:
        """Return how many devices of this resource are free on each of ``nodes``."""
        del nodes
        return 0

    def spare_total(self) -> int:
        """Return the sum of :meth:`spare` over all nodes."""
        spare = self.spare(np.arange(self.cluster.size))
        return spare * self.cluster.size if isinstance(spare, int) else int(spare.sum())

    def pencil(self, key: Hashable, places: Integers, counts: Integers) -> None:
        """Note that an earlier phase counts on ``counts`` (negative: no longer) near units of outlook ``key``.

        A place may occur several times.
        """
        del key, places, counts

    def clear_pencil(self) -> None:
        """Forget all notes: this phase begins, and its own books count from here."""
        return

    def part(self, shape: int, devices: int) -> tuple[str, int, int]:
        """Return what a unit of the shape with that number has of each of its ``devices``.

        The name of the storage that they serve, bytes, and bytes a second; empty where it has them for itself.
        """
        del shape, devices
        return "", 0, 0

    @abc.abstractmethod
    def reasons(self, awards: Table, first: Mapping[int, Alternatives]) -> Reasons:
        """Return why awards went where they did, and the next best; ``first`` is :attr:`first` of their round."""

    @abc.abstractmethod
    def misses(self, pending: PendingJob) -> list[Miss]:
        """Return why the job, or a part of it, finds no room in what is free now; empty if this phase has room."""


class Phase(abc.ABC):
    """One kind of resource, as a plug-in of the round."""

    name: str

    def asks(self, pending: PendingJob, group: TaskGroup) -> Hashable:
        """Return what ``group`` asks of this resource beyond its requests, labels, node and routes.

        It may depend on nothing but the job: the answer is kept for as long as the job waits.
        """
        del pending, group
        return None

    def concerns(self, group: TaskGroup | GroupVariant) -> bool:
        """Say whether the phase could have anything to do with ``group``, as it stands or in an alternative.

        One that concerns no job is left out.

        A phase that phase 1 must always know of, for what is spare, concerns all.
        """
        del group
        return True

    @abc.abstractmethod
    def open(self, cluster: Cluster, policy: Policy, later: Sequence[Desk]) -> Desk:
        """Return the desk for one round; ``later`` are the desks of the phases that follow."""
