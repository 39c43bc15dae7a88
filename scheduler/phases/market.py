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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from farbus.scheduler.phases.base import FAR, Alternatives, Arc, Award, Desk, Integers, Offer, Source, Want, Work
from farbus.scheduler.solver import COST_BUDGET, Network, certify, solve

MAX_SOLVES = 12
"""Most solves on one set of wants; two to four are usual.  Beyond it the rest waits for the next round."""

MAX_EVICTIONS = 12
"""Most times that partly served jobs are evicted one half at a time; then all that are left go at once."""


@dataclass(slots=True)
class Tally:
    """What solving cost in a round: solves, certified ones, and the exact total of their costs."""

    certify: bool = True
    prune: bool = True
    solves: int = 0
    certified: int = 0
    cost: int = 0


@dataclass(frozen=True, slots=True)
class _Unit:
    """Units handed out by a place, not yet given to a want."""

    place: int
    tier: int
    cost: int
    count: int
    grants: tuple[tuple[int, ...], ...]


def serve(desk: Desk, works: Sequence[Work], tally: Tally) -> list[Work]:
    """Let ``desk`` serve ``works`` (in rank order), each as a whole; return those that it served.

    A job that is served in part only is evicted, lowest rank first, and what
    it held goes to the others (DRMaestro's gangs; the facts' ordered prices
    leave at most one partial job per bottleneck).  A job that is not returned
    holds nothing at this desk.
    """
    wants = {work: desk.wants(work) for work in works}
    active = list(works)
    for eviction in range(MAX_EVICTIONS + 1):
        _solve_rounds(desk, [want for work in active for want in wants[work] if want.count], tally)
        partial = [work for work in active if work.awarded(desk.phase) and any(want.count for want in wants[work])]
        if not partial:
            break
        keep = len(partial) // 2 if eviction < MAX_EVICTIONS else 0
        evicted = set(partial[keep:])
        for work in partial[keep:]:
            give_back(desk, work)
        active = [work for work in active if work not in evicted]
    return [work for work in active if not any(want.count for want in wants[work])]


def give_back(desk: Desk, work: Work) -> None:
    """Return all that ``work`` holds at ``desk``."""
    for award in work.awards.pop(desk.phase, ()):
        desk.give_back(award)


def _solve_rounds(desk: Desk, wants: list[Want], tally: Tally) -> None:
    for _ in range(MAX_SOLVES):
        if not wants:
            return
        refused = _solve_once(desk, wants, tally)
        if not refused:
            return
        wants = [want for want in wants if want.count]


def _solve_once(desk: Desk, wants: list[Want], tally: Tally) -> bool:
    """Solve for ``wants`` once and award what fits; return whether the desk refused any unit of the flow."""
    plan = _Plan(desk, wants, prune=tally.prune)
    network = plan.network()
    flow = solve(network)
    tally.solves += 1
    tally.cost += flow.cost
    if tally.certify:
        certify(network, flow)
        tally.certified += 1
    return plan.award(flow.units)


class _Plan:
    """The network of one solve, with the way back from its flow to awards."""

    def __init__(self, desk: Desk, wants: Sequence[Want], *, prune: bool) -> None:
        self.desk = desk
        by_source: dict[Source, list[Want]] = {}
        for want in wants:
            by_source.setdefault(want.source, []).append(want)
        self.preferring: list[tuple[Source, list[Want], Sequence[Arc]]] = []
        self.contracted: dict[int, list[Want]] = {}
        self.pools: dict[int, Source] = {}
        for source, claims in by_source.items():
            arcs = desk.arcs(source)
            if source.pool is not None:
                self.pools.setdefault(source.pool, source)
            if source.pool is None or arcs:
                self.preferring.append((source, claims, arcs))
            else:
                self.contracted.setdefault(source.pool, []).extend(claims)
        for pool, claims in self.contracted.items():
            claims.sort(key=_by_rank)
            self.contracted[pool] = _first(claims, desk.limit(self.pools[pool]))
        self.units = sum(want.count for want in wants)
        self.offers: dict[int, list[_Tier]] = {}
        self.dearest = max((arc.cost for _, _, arcs in self.preferring for arc in arcs), default=0)
        # Counted before pruning, so that pruning changes no price.
        reachable = len({arc.place for _, _, arcs in self.preferring for arc in arcs})
        for pool, source in self.pools.items():
            offers = desk.offers(source)
            for offer in offers:
                self.dearest = max(self.dearest, int(offer.cost.max(where=offer.capacity > 0, initial=0)))
                reachable += int(np.count_nonzero(offer.capacity))
            self.offers[pool] = _prune(offers, self.units, prune)
        self.reach = min(self.units, reachable)
        self.most_nodes = len(self.preferring) + len(self.pools) + reachable + 1
        for pool, tiers in self.offers.items():
            if pool not in desk.first:
                desk.first[pool] = _alternatives(tiers)
        self._number()

    def _number(self) -> None:
        """Number nodes (preferring sources, pools, places, sink) and lay arcs out in canonical order."""
        self.pool_node = {pool: len(self.preferring) + number for number, pool in enumerate(self.pools)}
        first_place = len(self.preferring) + len(self.pools)
        named = [np.array([arc.place for arc in arcs], np.int64) for _, _, arcs in self.preferring]
        named += [tier.place for tiers in self.offers.values() for tier in tiers]
        self.places = np.unique(np.concatenate(named)) if named else np.zeros(0, np.int64)
        self.first_place = first_place
        self.sink = first_place + len(self.places)

    def network(self) -> Network:
        """Lay out all arcs."""
        tails: list[Integers] = []
        heads: list[Integers] = []
        capacities: list[Integers] = []
        costs: list[Integers] = []
        room = np.zeros(len(self.places), np.int64)

        # Preference arcs.
        flat = [
            (node, arc.place, min(arc.capacity, self.units), arc.cost)
            for node, (_, _, arcs) in enumerate(self.preferring)
            for arc in arcs
        ]
        table = np.array(flat, np.int64).reshape(-1, 4)
        rows = np.searchsorted(self.places, table[:, 1])
        tails.append(table[:, 0])
        heads.append(self.first_place + rows)
        capacities.append(table[:, 2])
        costs.append(table[:, 3])
        # One source may have arcs of several tiers to one place: their sum counts.
        if len(table):
            pair = table[:, 0] * (len(self.places) + 1) + rows
            _, first, group = np.unique(pair, return_index=True, return_inverse=True)
            sums = np.zeros(len(first), np.int64)
            np.add.at(sums, group, table[:, 2])
            np.maximum.at(room, rows[first], sums)
        self.preference_arcs = len(table)

        # Aggregator arcs.
        pool_arcs = 0
        for pool, tiers in self.offers.items():
            total = np.zeros(len(self.places), np.int64)
            for tier in tiers:
                rows = np.searchsorted(self.places, tier.place)
                tails.append(np.full(len(rows), self.pool_node[pool], np.int64))
                heads.append(self.first_place + rows)
                capacities.append(np.minimum(tier.capacity, self.units))
                costs.append(tier.cost)
                total[rows] += tier.capacity
                pool_arcs += len(rows)
            np.maximum(room, total, out=room)
        self.pool_arcs = pool_arcs

        # Places to the sink.
        tails.append(self.first_place + np.arange(len(self.places), dtype=np.int64))
        heads.append(np.full(len(self.places), self.sink, np.int64))
        capacities.append(np.minimum(room, self.units))
        costs.append(np.zeros(len(self.places), np.int64))

        # Sources to their pools.
        joins = [
            (node, self.pool_node[source.pool], sum(want.count for want in claims), 0)
            for node, (source, claims, _) in enumerate(self.preferring)
            if source.pool is not None
        ]
        self.join_start = sum(len(part) for part in tails)
        joined = np.array(joins, np.int64).reshape(-1, 4)
        tails.append(joined[:, 0])
        heads.append(joined[:, 1])
        capacities.append(joined[:, 2])
        costs.append(joined[:, 3])

        # Unscheduled arcs: dearer than any placing, in strict order of rank, a whole step per tier of urgency.
        self.unscheduled = [(node, want) for node, (_, claims, _) in enumerate(self.preferring) for want in claims]
        self.unscheduled += [
            (self.pool_node[pool], want) for pool, claims in self.contracted.items() for want in claims
        ]
        tails.append(np.array([node for node, _ in self.unscheduled], np.int64))
        heads.append(np.full(len(self.unscheduled), self.sink, np.int64))
        counts = np.array([want.count for _, want in self.unscheduled], np.int64)
        capacities.append(counts)
        costs.append(_prices([want for _, want in self.unscheduled], self.dearest, self.reach, self.most_nodes))

        supply = np.zeros(self.sink + 1, np.int64)
        np.add.at(supply, tails[-1], counts)
        supply[self.sink] = -int(counts.sum())
        self.arc_tail = np.concatenate(tails)
        self.arc_head = np.concatenate(heads)
        self.arc_cost = np.concatenate(costs)
        return Network(
            tail=self.arc_tail,
            head=self.arc_head,
            capacity=np.concatenate(capacities),
            cost=self.arc_cost,
            supply=supply,
        )

    def award(self, flow: Integers) -> bool:
        """Hand out what ``flow`` says, as far as it fits; return whether the desk refused any unit."""
        direct, pooled, refused = self._take(flow)
        served: dict[int, int] = {}
        start = len(flow) - len(self.unscheduled)
        for offset, (_, want) in enumerate(self.unscheduled):
            served[id(want)] = want.count - int(flow[start + offset])
        queues: dict[int, list[tuple[Want, int]]] = {
            pool: [(want, served[id(want)]) for want in claims if served[id(want)]]
            for pool, claims in self.contracted.items()
        }
        join = self.join_start
        for node, (source, claims, _) in enumerate(self.preferring):
            through = 0
            if source.pool is not None:
                through, join = int(flow[join]), join + 1
            stock = direct.get(node, [])
            for want in sorted(claims, key=_by_rank):
                left = served[id(want)] - _hand_out(self.desk, want, served[id(want)], stock)
                # What a preferred place refused must not crowd others out of the pool.
                left = min(left, through)
                if left and source.pool is not None:
                    through -= left
                    queues.setdefault(source.pool, []).append((want, left))
        for pool, queue in queues.items():
            queue.sort(key=lambda entry: _by_rank(entry[0]))
            stock = pooled.get(pool, [])
            for want, count in queue:
                _hand_out(self.desk, want, count, stock)
        for leftover in (*direct.values(), *pooled.values()):
            assert not leftover, "units were taken that nobody wants"
        return refused

    def _take(self, flow: Integers) -> tuple[dict[int, list[_Unit]], dict[int, list[_Unit]], bool]:
        """Reserve the flow's units at the desk, by place and cost.

        Returns them by source and by pool, the cheapest last, and whether any was refused.
        """
        pool_of = {node: pool for pool, node in self.pool_node.items()}
        placing = np.flatnonzero(flow[: self.preference_arcs + self.pool_arcs])
        order = placing[np.lexsort((placing, self.arc_cost[placing], self.arc_head[placing]))]
        direct: dict[int, list[_Unit]] = {}
        pooled: dict[int, list[_Unit]] = {}
        tiers = self._tiers()
        refused = False
        for arc in order.tolist():
            node = int(self.arc_tail[arc])
            place = int(self.places[self.arc_head[arc] - self.first_place])
            count, tier, cost = int(flow[arc]), tiers[arc], int(self.arc_cost[arc])
            if node in pool_of:
                pool = pool_of[node]
                source, stock = self.pools[pool], pooled.setdefault(pool, [])
            else:
                source, stock = self.preferring[node][0], direct.setdefault(node, [])
            taken, grants = self.desk.take(source, place, tier, count)
            refused |= taken < count
            if taken:
                stock.append(_Unit(place, tier, cost, taken, grants))
        # _hand_out takes from the end.
        for stock in (*direct.values(), *pooled.values()):
            stock.sort(key=lambda unit: (-unit.cost, -unit.place, -unit.tier))
        return direct, pooled, refused

    def _tiers(self) -> list[int]:
        tiers = [arc.tier for _, _, arcs in self.preferring for arc in arcs]
        for offered in self.offers.values():
            for tier in offered:
                tiers += [tier.tier] * len(tier.place)
        return tiers


@dataclass(frozen=True, slots=True)
class _Tier:
    """An offer's arcs that are kept."""

    tier: int
    place: Integers
    capacity: Integers
    cost: Integers


def _prune(offers: Sequence[Offer], units: int, prune: bool) -> list[_Tier]:
    """Keep the cheapest arcs of an aggregator until their capacity is twice the units of the whole network.

    Exact: if an optimal flow used an arc that was left out, the other units
    could not fill what was kept, and moving the unit there costs no more.
    """
    assert offers, "an aggregator offers at least one tier, even if it is empty"
    size = len(offers[0].capacity)
    place = np.concatenate([np.flatnonzero(offer.capacity > 0) for offer in offers])
    split = np.cumsum([0] + [int((offer.capacity > 0).sum()) for offer in offers])
    tier = np.concatenate([np.full(int((offer.capacity > 0).sum()), offer.tier, np.int64) for offer in offers])
    capacity = np.concatenate([offer.capacity[place[split[n] : split[n + 1]]] for n, offer in enumerate(offers)])
    cost = np.concatenate([offer.cost[place[split[n] : split[n + 1]]] for n, offer in enumerate(offers)])
    if prune and len(place):
        # Cost first, then the place: one total order, so that the same input keeps the same arcs.
        key = (cost * (FAR + 1) + tier) * size + place
        if len(key) > 2 * units:
            # Every arc kept holds a unit at least.
            cheapest = np.argpartition(key, 2 * units)[: 2 * units]
        else:
            cheapest = np.arange(len(key))
        cheapest = cheapest[np.argsort(key[cheapest], kind="stable")]
        enough = int(np.searchsorted(np.cumsum(np.minimum(capacity[cheapest], units)), 2 * units)) + 1
        kept = np.sort(cheapest[:enough])
        place, tier, capacity, cost = place[kept], tier[kept], capacity[kept], cost[kept]
    return [
        _Tier(number, place[tier == number], capacity[tier == number], cost[tier == number])
        for number in sorted({offer.tier for offer in offers})
    ]


def _alternatives(tiers: Sequence[_Tier]) -> Alternatives:
    place = np.concatenate([tier.place for tier in tiers])
    cost = np.concatenate([tier.cost for tier in tiers])
    order = np.lexsort((place, cost))
    return Alternatives(place[order], cost[order])


def _prices(wants: Sequence[Want], dearest: int, reach: int, nodes: int) -> Integers:
    """Return the price of leaving one unit of each want unscheduled.

    To place one more unit, as many as ``reach`` others may have to move, each
    to an arc that costs up to ``dearest``: a price beyond that product never
    leaves a unit waiting that could be placed.  A better rank has a strictly
    higher price.  From one tier of urgency to the next it rises by the same
    product again, so that no saving on arcs puts a job of lower tier into the
    place of one of higher tier.  Where the product is beyond the solver's
    range of costs it is cut to what is in it.  (DRMaestro's eq. 8 as printed
    makes waiting as cheap as placing; this is what its text asks for.)
    """
    if not wants:
        return np.zeros(0, np.int64)
    ranks = np.array([want.work.rank for want in wants], np.int64)
    tiers = np.array([want.work.tier for want in wants], np.int64)
    distinct_tiers, tier = np.unique(tiers, return_inverse=True)
    distinct, order = np.unique(-ranks, return_inverse=True)
    most = COST_BUDGET // (2 * (nodes + 1) * (len(distinct_tiers) + 1))
    gap = max(dearest, len(distinct), min((dearest + 1) * (reach + 1), most)) + 1
    return gap * (1 + tier.astype(np.int64)) + order.astype(np.int64)


def _first(claims: list[Want], limit: int) -> list[Want]:
    """Return the claims of best rank whose units reach ``limit``.

    Claims of one pool have equal arcs, so an optimal flow leaves the others
    unscheduled: no more than ``limit`` units can be served in all.
    """
    total = 0
    for number, want in enumerate(claims):
        if total >= limit:
            return claims[:number]
        total += want.count
    return claims


def _by_rank(want: Want) -> tuple[int, int]:
    return want.work.rank, want.group


def _hand_out(desk: Desk, want: Want, count: int, stock: list[_Unit]) -> int:
    """Give ``want`` up to ``count`` units from the end of ``stock``; return how many it got."""
    given = 0
    while given < count and stock:
        unit = stock.pop()
        share = min(unit.count, count - given)
        if share < unit.count:
            stock.append(_Unit(unit.place, unit.tier, unit.cost, unit.count - share, unit.grants[share:]))
        want.work.awards.setdefault(desk.phase, []).append(
            Award(want.group, want.source, unit.place, unit.tier, share, unit.cost, unit.grants[:share])
        )
        given += share
    want.count -= given
    return given
