"""One phase's flow network: built from a desk, solved, decoded and served, job by whole job.

    source --preference--> place --> sink          (arcs of the desk)
    source --> pool --shared cost--> place --> sink (offers of the desk)
    source --unscheduled price of the job--> sink   (always: feasible by construction)

A source without preference arcs is the same as its pool, and is left out: its
supply and its unscheduled arcs sit on the pool itself.

Flow is scalar and resources are vectors, so a place's capacity is optimistic:
as many units as the most modest shape could put there.  Decoding hands units
out by cost, each checked against the vector; what is refused goes into another
solve on what is left.  The first unit at a place always fits, so this ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from farbus.scheduler import kernels
from farbus.scheduler.phases.base import NO_ARC, Alternatives, Desk, Flags, Later, Offer
from farbus.scheduler.phases.bound import Prices
from farbus.scheduler.phases.cluster import MAX_UNITS
from farbus.scheduler.phases.jobs import Jobs
from farbus.scheduler.phases.tables import (
    ARC,
    AWARD,
    Integers,
    Table,
    before,
    distinct,
    in_order,
    joined,
    limited,
    matched,
    ranges,
    table,
)
from farbus.scheduler.solver import COST_BUDGET, Flow, Network, certify, solve

MAX_SOLVES = 12
"""Most solves on one set of wants; two to four are usual.  Beyond it the rest waits for the next round."""

MAX_MIXTURES = 64
"""The same with those in which nothing was refused: each puts units of one more shape at places that have others."""

SPARE_ARCS = 3
"""Arcs of an aggregator that are kept beyond what pruning needs, so that the next best place can be told."""

LOW_CHAIN = 2
"""Arcs of a chain of moves that low prices of waiting exceed."""

MAX_EVICTIONS = 12
"""Most times that partly served jobs are evicted one half at a time; then all that are left go at once."""


@dataclass(slots=True)
class Tally:
    """What solving cost in a round: solves, certified ones, the seconds that took, and the exact total of costs."""

    certify: bool = True
    prune: bool = True
    clock: Callable[[], float] | None = None
    solves: int = 0
    certified: int = 0
    certify_s: float = 0.0
    cost: int = 0
    crowded: bool = False
    """Whether a flow has left somebody waiting: from then on prices of waiting are never low."""
    exact: bool = True
    """Whether pruning was exact in all of them."""


def serve(
    desk: Desk,
    jobs: Jobs,
    rows: Integers,
    tally: Tally,
    *,
    prices: Prices | None = None,
    plan: Plan | None = None,
) -> Integers:
    """Let ``desk`` serve jobs ``rows`` (ascending), each as a whole; return those that it served.

    With ``prices`` the first network charges what is scarce to those who use
    it.  ``plan`` is the first network where it is made already; it serves
    nobody else.

    A job that is served in part only is evicted, lowest rank first, and what
    it held goes to the others (DRMaestro's gangs; ordered prices
    leave at most one partial job per bottleneck).  A job that is not returned
    holds nothing at this desk.
    """
    wants = desk.reserve(jobs, desk.wants(jobs, rows)) if plan is None else plan.wants.copy()
    awards = jobs.awards(desk.phase)
    active = np.zeros(len(jobs.pending), bool)
    active[rows] = True
    for eviction in range(MAX_EVICTIONS + 1):
        _solve_rounds(desk, jobs, wants, active, tally, prices, plan)
        prices = plan = None
        unserved = np.zeros(len(active), bool)
        unserved[wants["job"][wants["count"] > 0]] = True
        held = np.zeros(len(active), bool)
        held[awards.table["job"]] = True
        partial = np.flatnonzero(active & unserved & held)
        if not len(partial):
            break
        keep = len(partial) // 2 if eviction < MAX_EVICTIONS else 0
        give_back(desk, jobs, partial[keep:])
        active[partial[keep:]] = False
    return np.flatnonzero(active & ~unserved)


def give_back(desk: Desk, jobs: Jobs, rows: Integers) -> None:
    """Return all that jobs ``rows`` hold at ``desk``."""
    awards = jobs.awards(desk.phase)
    removed = awards.remove(rows)
    if len(removed):
        desk.give_back(removed, awards.devices_of(removed))


def _solve_rounds(
    desk: Desk, jobs: Jobs, wants: Table, active: Flags, tally: Tally, prices: Prices | None, plan: Plan | None
) -> None:
    refusals = 0
    for _ in range(MAX_MIXTURES):
        rows = np.flatnonzero((wants["count"] > 0) & active[wants["job"]]) if plan is None else np.arange(len(wants))
        if not len(rows):
            return
        direct = _direct(desk, jobs, wants[rows]) if plan is None and prices is None else None
        if direct is not None:
            plan, network, flow = direct
        else:
            plan = plan or Plan(desk, jobs, wants[rows], prune=tally.prune and prices is None, prices=prices)
            network, flow = _solved(plan, tally)
        refused = _award(plan, network, flow, tally)
        wants["count"][rows] = plan.wants["count"]
        # Who found the prices too high has what is left without them.
        if refused or prices is not None:
            refusals += 1
        elif not plan.may_have_room(network, flow.units):
            return
        if refusals == MAX_SOLVES:
            return
        prices = plan = None


def _solved(plan: Plan, tally: Tally) -> tuple[Network, Flow]:
    """Return the network of ``plan`` and a flow of least cost.

    The solver takes the longer the greater the prices of waiting.  A flow
    that leaves nobody waiting at low ones is of least cost at the true ones
    too; only where one does are those needed.
    """
    if plan.prices is None and not tally.crowded:
        network = plan.network(low=True)
        flow = solve(network)
        tally.crowded = bool(flow.units[len(flow.units) - len(plan.claims) :].any())
        if not tally.crowded:
            return network, flow
    network = plan.network()
    return network, solve(network)


def _direct(desk: Desk, jobs: Jobs, wants: Table) -> tuple[Plan, Network, Flow] | None:
    """Return the flow in which every unit has the cheapest arc of all that there are for it, where that is one.

    It is of least cost then, and needs no solver: every source prefers a place
    to whatever its pool has, and no two of them are in each other's way.
    """
    sources = in_order(wants["source"])[0]
    if len(distinct(desk.arcs(sources)["source"])) < len(sources):
        return None
    plan = Plan(desk, jobs, wants, prune=True, direct=True)
    if not plan.nearest():
        return None
    network = plan.network()
    arcs = plan.arcs
    order = np.lexsort((arcs["place"], arcs["cost"], arcs["source"]))
    source = arcs["source"][order]
    best = order[np.flatnonzero(np.concatenate(([True], source[1:] != source[:-1])))]
    units = np.zeros(len(network.tail), np.int64)
    units[best] = network.supply[: len(plan.sources)][plan.node[arcs["source"][best]]]
    held = np.bincount(network.head[best], weights=units[best], minlength=len(network.supply))[plan.first_place : -1]
    units[plan.placing : plan.placing + len(plan.places)] = held
    if (units > network.capacity).any():
        return None
    return plan, network, Flow(units=units, cost=int(units @ network.cost))


def _award(plan: Plan, network: Network, flow: Flow, tally: Tally) -> bool:
    """Award what fits of a flow of least cost; return whether the desk refused any unit."""
    tally.solves += 1
    tally.cost += flow.cost
    tally.exact &= plan.exact
    if tally.certify:
        started = tally.clock() if tally.clock is not None else 0.0
        certify(network, flow)
        tally.certified += 1
        tally.certify_s += (tally.clock() if tally.clock is not None else 0.0) - started
    return plan.award(flow.units)


class Plan:
    """The network of one solve, with the way back from its flow to awards.

    Nodes are the preferring sources, the pools, the places and the sink.
    """

    def __init__(
        self,
        desk: Desk,
        jobs: Jobs,
        wants: Table,
        *,
        prune: bool,
        prices: Prices | None = None,
        direct: bool = False,
    ) -> None:
        self.desk, self.jobs, self.wants, self.prices = desk, jobs, wants, prices
        self.sources, source = in_order(wants["source"])
        self.want_source = source
        self.exact = True
        """Whether the network costs what it would with all arcs; known once it is laid out."""
        self.arcs = desk.arcs(self.sources)
        self._award_pool = self.pool_of = desk.pools(self.sources)
        if direct:
            # What sources prefer is all that is looked at.
            self.pool_of = np.full(len(self.sources), -1, np.int64)
        has_arc = np.bincount(self.arcs["source"], minlength=len(self.sources)) > 0
        preferring = (self.pool_of < 0) | has_arc
        self.preferring = np.flatnonzero(preferring)
        self.pools, pool_row = in_order(self.pool_of[self.pool_of >= 0])
        # Any source of a pool does: they are of one shape.
        example = np.empty(len(self.pools), np.int64)
        example[pool_row] = self.sources[self.pool_of >= 0]
        self.pool_shape = desk.split(example)[0]
        # The node at which the units of each source enter.
        self.pool_node = np.full(len(self.sources), -1, np.int64)
        self.pool_node[self.pool_of >= 0] = len(self.preferring) + pool_row
        self.node = np.where(preferring, np.cumsum(preferring) - 1, self.pool_node)
        self._claim(source, preferring)
        self.units = int(wants["count"][self.claims].sum())
        self._take_up_offers(desk, prune)

    def _take_up_offers(self, desk: Desk, prune: bool) -> None:
        """Take up the aggregators' arcs, and number the places that any arc leads to."""
        offers: list[Table] = []
        self._pool_beyond = np.full(len(self.pools), NO_ARC, np.int64)
        self._pool_floor = np.zeros(len(self.pools), np.int64)
        for number, pool in enumerate(self.pools.tolist()):
            offered = desk.offers(pool)
            arcs, self._pool_beyond[number] = _cheapest(offered, number, self.units if prune else None)
            self._pool_floor[number] = min((each.floor for each in offered if isinstance(each, Later)), default=0)
            offers.append(arcs)
            if pool not in desk.first:
                desk.first[pool] = Alternatives(arcs["place"], arcs["cost"])
        # All arcs to places: those of sources, then those of pools, whose source is the pool's number.
        self.offered = np.array([len(arcs) for arcs in offers], np.int64)
        self.table = joined([self.arcs, *offers])
        self.places, self.place = kernels.places(desk.cluster.size, self.table)
        self.first_place = len(self.preferring) + len(self.pools)
        self.sink = self.first_place + len(self.places)

    def _claim(self, source: Integers, preferring: Flags) -> None:
        """Choose the wants that get an arc to remain unscheduled, by the node at which they enter.

        Wants of one pool have equal arcs, so an optimal flow leaves those of
        lowest rank unscheduled: beyond the pool's limit they are left out.
        """
        wants, node = self.wants, self.node[source]
        direct = np.flatnonzero(preferring[source])
        direct = direct[np.argsort(node[direct], kind="stable")]
        pooled = np.flatnonzero(~preferring[source])
        _, queue = in_order(node[pooled])
        order = np.lexsort((wants["group"][pooled], wants["job"][pooled], queue))
        pooled, queue = pooled[order], queue[order]
        limits = np.array([self.desk.limit(pool) for pool in self.pools.tolist()], np.int64)
        self._pool_limits = limits
        if len(pooled):
            asked = before(queue, wants["count"][pooled])
            pooled = pooled[asked < limits[node[pooled] - len(self.preferring)]]
        self.claims = np.concatenate((direct, pooled))
        self.directs = len(direct)
        self.claim_source = source[self.claims]
        self.claim_node = node[self.claims]

    def serves_only(self, rows: Integers) -> bool:
        """Say whether nobody but jobs ``rows`` has units in the network."""
        return len(rows) == len(self.jobs.pending) or bool(np.isin(self.wants["job"][self.claims], rows).all())

    def nearest(self) -> bool:
        """Say whether each source has a preference that is no dearer than what its pool could offer."""
        arcs = self.arcs
        least = np.full(len(self.sources), NO_ARC, np.int64)
        np.minimum.at(least, arcs["source"], arcs["cost"])
        pooled = self._award_pool >= 0
        shapes = self.desk.split(self.sources)[0]
        floor = np.full(len(self.sources), NO_ARC - 1, np.int64)
        for shape in distinct(shapes[pooled]).tolist():
            floor[pooled & (shapes == shape)] = self.desk.floor(shape)
        return bool((least <= floor).all())

    # What the bound of a round is computed on.

    def opening_arcs(self) -> tuple[Table, Integers]:
        """Return all arcs of each source, also those that it has through its pool, and the rows of their places.

        ``source`` is the row of each one's source.
        """
        end = len(self.arcs) + np.cumsum(self.offered)
        pooled = np.flatnonzero(self.pool_of >= 0)
        number = self.pool_node[pooled] - len(self.preferring)
        length = self.offered[number]
        rows = np.concatenate((np.arange(len(self.arcs)), ranges((end - self.offered)[number], length)))
        arcs = self.table[rows]
        arcs["source"][len(self.arcs) :] = np.repeat(pooled, length)
        return arcs, self.place[rows]

    def by_source(self, of_pool: Integers, without: int) -> Integers:
        """Return for each source what is known of its pool; ``without`` where it has none."""
        found = np.full(len(self.sources), without, np.int64)
        pooled = np.flatnonzero(self.pool_of >= 0)
        found[pooled] = of_pool[self.pool_node[pooled] - len(self.preferring)]
        return found

    @property
    def beyond(self) -> Integers:
        """Return for each source what an arc that was left out costs at least; ``NO_ARC`` where none was."""
        return self.by_source(self._pool_beyond, NO_ARC)

    @property
    def floor(self) -> Integers:
        """Return for each source what arcs cost at least that are only made where others do not do."""
        return self.by_source(self._pool_floor, 0)

    @property
    def limits(self) -> Integers:
        """Return the most units of each source that can be served."""
        return self.by_source(self._pool_limits, MAX_UNITS)

    def network(self, *, low: bool = False) -> Network:
        """Lay out all arcs: preferences, aggregators, places to the sink, sources to pools, unscheduled.

        With ``low`` prices waiting is dearer than any arc, but not than any chain of moves.
        """
        room = np.zeros(len(self.places), np.int64)
        summed = np.zeros(len(self.pools), np.int64)
        for number, pool in enumerate(self.pools.tolist()):
            total = self.desk.capacity(pool, self.places)
            if total is not None:
                np.maximum(room, total, out=room)
                continue
            summed[number] = 1
            self.exact &= self._pool_beyond[number] == NO_ARC or len(self.places) == self.offered[number]
        self.placing = len(self.table)
        self.joining = self.preferring[self.pool_of[self.preferring] >= 0]
        self.join_start = self.placing + len(self.places)
        self.tail, self.head, capacity, self.cost, supply = kernels.lay_out(
            self.table,
            self.place,
            own=len(self.arcs),
            node=self.node,
            first_pool=len(self.preferring),
            summed=summed,
            room=room,
            joins=(self.joining, self.pool_node[self.joining]),
            claims=(self.claim_source, self.wants["count"][self.claims]),
            units=self.units,
        )
        # Unscheduled arcs: dearer than any placing, in strict order of rank, a whole step per tier of urgency.
        waiting = self.cost[len(self.cost) - len(self.claims) :]
        job = self.wants["job"][self.claims]
        if self.prices is None:
            chain = min(self._chain(), LOW_CHAIN) if low else self._chain()
            dearest = int(self.cost.max(initial=0))
            waiting[:] = _prices(job, self.jobs.tier[job], chain * dearest, self.sink + 1)
        else:
            ranks = np.unique(-job, return_inverse=True)[1].reshape(-1)
            waiting[:] = self.prices.waiting(self.jobs.tier)[job] + ranks
        return Network(tail=self.tail, head=self.head, capacity=capacity, cost=self._charged(), supply=supply)

    def _charged(self) -> Integers:
        """Return the costs of all arcs with what they use of scarce resources, for the solver alone."""
        if self.prices is None:
            return self.cost
        charged = self.cost.copy()
        tail, tiers = self.tail[: self.placing], self.table["tier"]
        places = self.table["place"]
        shapes = self._shapes_of(tail)
        for shape in distinct(shapes).tolist():
            rows = np.flatnonzero(shapes == shape)
            charged[rows] += self.prices.surcharge(self.desk, shape, places[rows], tiers[rows])
        return charged

    def _shapes_of(self, node: Integers) -> Integers:
        """Return the shape of what enters the network at each of ``node``."""
        pooled = node >= len(self.preferring)
        shape = np.empty(len(node), np.int64)
        shape[pooled] = self.pool_shape[node[pooled] - len(self.preferring)]
        shape[~pooled] = self.desk.split(self.sources[self.preferring[node[~pooled]]])[0]
        return shape

    def _chain(self) -> int:
        """Return the most arcs to places that a chain of moves can take, to place one more unit.

        No shortest chain comes to a source, a pool or a place twice, and it
        takes one such arc from each source or pool that it passes.  Where no
        source prefers two places, a source is left for its pool or was
        entered from it, so there are at most two sources to a pool.
        """
        sources, pools = len(self.preferring), len(self.pools)
        # Arcs are sorted by source.
        source, place = self.arcs["source"], self.arcs["place"]
        if not ((source[1:] == source[:-1]) & (place[1:] != place[:-1])).any():
            sources = min(sources, 2 * (pools + 1))
        return min(self.units, len(self.places), sources + pools)

    def award(self, flow: Integers) -> bool:
        """Hand out what ``flow`` says, as far as it fits; return whether the desk refused any unit."""
        stock, devices, refused = self._take(flow)
        wants = self.wants
        served = wants["count"][self.claims] - flow[len(flow) - len(self.claims) :]
        job, group = wants["job"][self.claims], wants["group"][self.claims]

        held = np.zeros(self.first_place, np.int64)
        np.add.at(held, stock["node"], stock["count"])
        queued, count = np.arange(self.directs, len(self.claims)), served[self.directs :]
        if self.directs:
            # First what sources were given at places that they prefer, node by node.
            direct = np.arange(self.directs)
            direct = direct[np.lexsort((group[direct], job[direct], self.claim_node[direct]))]
            node = self.claim_node[direct]
            got = limited(node, served[direct], held)
            own = np.flatnonzero(stock["node"] < len(self.preferring))
            own = own[np.lexsort((stock["tier"][own], stock["place"][own], stock["cost"][own], stock["node"][own]))]
            self._hand_out(direct, got, stock[own], devices)
            # What a preferred place refused must not crowd others out of the pool.
            through = np.zeros(len(self.preferring), np.int64)
            through[self.node[self.joining]] = flow[self.join_start : self.join_start + len(self.joining)]
            left = limited(node, served[direct] - got, through)
            rest = np.flatnonzero(left)
            queued, count = np.concatenate((queued, direct[rest])), np.concatenate((count, left[rest]))

        # Then the pools: claims of each are sorted but for those of sources that prefer others.
        pools, queue = in_order(self.pool_node[self.claim_source[queued]])
        if self.directs:
            order = np.lexsort((group[queued], job[queued], queue))
            queued, count, queue = queued[order], count[order], queue[order]
        pooled = np.flatnonzero(stock["node"] >= len(self.preferring))
        turn = np.zeros(self.first_place, np.int64)
        turn[pools] = np.arange(len(pools))
        pooled = pooled[
            np.lexsort(
                (stock["tier"][pooled], stock["place"][pooled], stock["cost"][pooled], turn[stock["node"][pooled]])
            )
        ]
        self._hand_out(queued, limited(queue, count, held[pools]), stock[pooled], devices)
        return refused

    def may_have_room(self, network: Network, flow: Integers) -> bool:
        """Say whether units wait for a place that the flow calls full, and that has units of another shape.

        What a place holds of its most modest shape is no bound for a mixture: of one that wants
        processors and one that wants memory, or of those that want different devices, it may hold both.
        """
        waiting = np.flatnonzero(flow[len(flow) - len(self.claims) :])
        if not len(waiting):
            return False
        placing, end = self.placing, self.placing + len(self.places)
        full = (flow[placing:end] > 0) & (flow[placing:end] == network.capacity[placing:end])
        enters = np.zeros(self.first_place, bool)
        enters[self.claim_node[waiting]] = True
        pool = self.pool_node[self.claim_source[waiting]]
        enters[pool[pool >= 0]] = True
        wanted = enters[self.tail[:placing]] & full[self.place]
        if not wanted.any():
            return False
        shape, used = self._shapes_of(self.tail[:placing]), np.flatnonzero(flow[:placing])
        least = np.full(len(self.places), NO_ARC, np.int64)
        most = np.full(len(self.places), -1, np.int64)
        np.minimum.at(least, self.place[used], shape[used])
        np.maximum.at(most, self.place[used], shape[used])
        return bool((wanted & ((least[self.place] != shape) | (most[self.place] != shape))).any())

    def _hand_out(self, claims: Integers, count: Integers, stock: Table, devices: Integers) -> None:
        """Give ``stock`` to ``claims``, both sorted by the node of the one and then by who comes first."""
        assert int(count.sum()) == int(stock["count"].sum()), "units were taken that nobody wants"
        if not len(stock):
            return
        claim, held, units, skipped = matched(count, stock["count"])
        claim = claims[claim]
        source = self.claim_source[claim]
        want = self.wants[self.claims[claim]]
        given = stock[held]
        first = given["first"] + skipped * given["size"]
        awards = table(
            AWARD,
            len(claim),
            job=want["job"],
            group=want["group"],
            source=want["source"],
            pool=self._award_pool[source],
            place=given["place"],
            tier=given["tier"],
            count=units,
            cost=given["cost"],
            size=given["size"],
        )
        length = units * given["size"]
        awards["first"] = np.cumsum(length) - length
        self.jobs.awards(self.desk.phase).add(self.desk.awarded(awards), devices[ranges(first, length)])
        np.subtract.at(self.wants["count"], self.claims[claim], units)

    def _take(self, flow: Integers) -> tuple[Table, Integers, bool]:
        """Reserve the flow's units at the desk, by place and cost.

        Returns what was taken as a table of ``_STOCK``, the devices of its
        units, and whether any was refused.  Places do not depend on one
        another: what comes n-th at each of them is taken together.
        """
        arcs = np.flatnonzero(flow[: self.placing])
        arcs = arcs[np.lexsort((self.cost[arcs], self.head[arcs]))]
        node = self.tail[arcs]
        shape = self._shapes_of(node)
        nth = before(self.head[arcs], np.ones(len(arcs), np.int64))
        turn = nth * (len(self.desk.shapes) + 1) + shape
        order = np.argsort(turn, kind="stable")
        arcs, node, shape, turn = arcs[order], node[order], shape[order], turn[order]
        place, tier, wanted = self.table["place"][arcs], self.table["tier"][arcs], flow[arcs]
        taken, size = np.zeros(len(arcs), np.int64), np.zeros(len(arcs), np.int64)
        devices = [np.zeros(0, np.int64)]
        ends = [*(np.flatnonzero(turn[1:] != turn[:-1]) + 1).tolist(), len(arcs)] if len(arcs) else []
        start = 0
        for end in ends:
            what, rows = int(shape[start]), slice(start, end)
            taken[rows], units = self.desk.take(what, place[rows], tier[rows], wanted[rows])
            size[rows] = self.desk.size(what)
            devices.append(units)
            start = end
        length = taken * size
        stock = table(
            _STOCK,
            len(arcs),
            node=node,
            place=place,
            tier=tier,
            count=taken,
            cost=self.cost[arcs],
            first=np.cumsum(length) - length,
            size=size,
        )
        return stock[taken > 0], np.concatenate(devices), bool((taken < wanted).any())


_STOCK = np.dtype([(name, np.int64) for name in ("node", "place", "tier", "count", "cost", "first", "size")])
"""Units that a place handed out to a source or a pool, not yet given to a want."""


def _cheapest(offers: Sequence[Offer | Later], source: int, units: int | None) -> tuple[Table, int]:
    """Return the cheapest arcs of an aggregator that hold ``units``, those of the whole network; None: all arcs.

    Beside them what an arc that was left out costs at least, ``NO_ARC`` where there is none.

    Exact: if an optimal flow used an arc that was left out, the other units,
    one less than ``units``, could not fill what was kept, because a unit at a
    place fills no more than one of the place's capacity; moving the unit
    there costs no more.  Cost first, then tier and place: one total order, so
    that the same input keeps the same arcs.
    """
    made: list[Offer] = []
    arcs, dearest = np.zeros(0, ARC), None
    for each in sorted(offers, key=_floor) if len(offers) > 1 else offers:
        if dearest is not None and _floor(each) > dearest:
            break
        made.append(each.make() if isinstance(each, Later) else each)
        arcs, dearest = kernels.choose(
            sorted(made, key=lambda offer: offer.tier),
            source=source,
            units=NO_ARC if units is None else units,
            spare=SPARE_ARCS,
            no_arc=NO_ARC,
            kind=ARC,
        )
    return arcs, NO_ARC if dearest is None else dearest[0]


def _floor(offer: Offer | Later) -> tuple[int, int]:
    return offer.floor if isinstance(offer, Later) else 0, offer.tier


def _prices(rank: Integers, tier: Integers, chain: int, nodes: int) -> Integers:
    """Return the price of leaving one unit unscheduled, for wants of jobs by ``rank`` and ``tier``.

    To place one more unit others may have to move, at a cost of up to
    ``chain`` in all: a price beyond that never leaves a unit waiting that
    could be placed.  A better rank has a strictly higher price.  From one tier
    of urgency to the next it rises by as much again and by what ranks make of
    it, so that no saving on arcs puts a job of lower tier into the place of
    one of higher tier.  Where that is beyond the solver's range of costs it is
    cut to what is in it.  (DRMaestro's eq. 8 as printed makes waiting as cheap
    as placing; this is what its text asks for.)
    """
    if not len(rank):
        return np.zeros(0, np.int64)
    tiers, step = np.unique(tier, return_inverse=True)
    # Different ranks that are worse.
    worse = np.zeros(int(rank.max()) + 2, np.int64)
    worse[rank] = 1
    worse = np.cumsum(worse[::-1])[::-1]
    most = COST_BUDGET // (2 * (nodes + 1) * (len(tiers) + 1))
    gap = min(chain + int(worse[0]), most) + 1
    return gap * (1 + step.astype(np.int64)) + worse[rank + 1]
