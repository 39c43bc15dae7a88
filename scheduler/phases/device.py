"""Phases of devices: bundles of whole devices, from the task's own node or lent by another.

The node of each task is decided (phase 1); this phase decides its devices.
All devices of one task are one *bundle*: it goes to one node as a unit, never
split by the flow, because a flow of sizes would split it (unsplittable flow
is NP-hard; the facts, pitfalls).  Tasks of one node and request share a
source with parallel routes: a preference arc to their own node (local) and an
aggregator to all lenders (remote).  A bundle larger than any one node has is
served device by device, and may then come from several lenders.

A new kind of device is a subclass of :class:`DevicePhase`; see
docs/scheduling.md for one written out.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from farbus.model.decision import PendingJob
from farbus.model.device import DeviceKind, Route
from farbus.model.job import DevicePlacement, Miss, TaskGroup
from farbus.scheduler.costs.policy import FORBIDDEN, Policy
from farbus.scheduler.explain import DeviceNeed, device_miss
from farbus.scheduler.phases.base import (
    FAR,
    NEAR,
    Alternatives,
    Arc,
    Award,
    Desk,
    Flags,
    Integers,
    Offer,
    Outlook,
    Phase,
    Source,
    Want,
    Work,
)
from farbus.scheduler.phases.cluster import MAX_UNITS, Cluster


class DeviceRequest(msgspec.Struct, frozen=True):
    """What one task wants: ``count`` devices for which ``filter`` holds, by one of ``routes``."""

    count: int
    filter: Hashable
    routes: frozenset[Route]


class _Key(msgspec.Struct, frozen=True):
    """What tells groups apart at the desk."""

    request: DeviceRequest
    subject: Hashable


class _Bundle(msgspec.Struct, frozen=True):
    """What one unit of flow is: ``size`` devices."""

    key: _Key
    size: int


class _Pool(msgspec.Struct, frozen=True):
    """An aggregator: all lenders of a zone for clients of one site; ``without`` is a node that may not lend."""

    bundle: _Bundle
    site: int
    zone: int
    without: int


class DevicePhase(Phase):
    """One kind of device as a plug-in of the round: what a group wants, and which devices will do."""

    kind: DeviceKind
    noun: str
    """What a person calls the device: ``GPU``."""
    may_span: bool = True
    """Whether a task can use devices of several nodes at once, where no node has enough."""

    @abc.abstractmethod
    def request(self, pending: PendingJob, group: TaskGroup) -> DeviceRequest | None:
        """Return what each task of ``group`` wants; None for nothing."""

    @abc.abstractmethod
    def matches(self, cluster: Cluster, wanted: Hashable) -> Flags:
        """Return, shape (D,), which devices of the cluster satisfy the filter ``wanted``, free or not."""

    def explain_filter(self, cluster: Cluster, wanted: Hashable) -> Miss | None:
        """Say why no device of the cluster satisfies ``wanted``."""
        del cluster
        return Miss(
            phase=self.name,
            resource=self.noun,
            message=f"no {self.noun} of the cluster is what the job wants ({wanted})",
            permanent=True,
        )

    def zones(self, cluster: Cluster) -> Integers:
        """Return, shape (M,), which nodes can lend to each other: those of one zone; a negative zone lends nothing."""
        return np.zeros(cluster.size, np.int64)

    def open(self, cluster: Cluster, policy: Policy, later: Sequence[Desk]) -> Desk:
        """Return the desk for one round."""
        del later
        return DeviceDesk(kind=self, cluster=cluster, policy=policy)


@dataclass(slots=True)
class _Stock:
    """Devices that one filter accepts: which, how many of them each node has, and how many are free there."""

    accepted: Flags
    total: Integers
    free: Integers


@dataclass(slots=True)
class DeviceDesk(Desk):
    """Free devices of one kind during one round."""

    kind: DevicePhase
    cluster: Cluster
    policy: Policy
    phase: str = field(init=False)
    first: dict[int, Alternatives] = field(default_factory=dict, init=False)
    _free: Flags = field(init=False)
    _zones: Integers = field(init=False)
    _sites: Integers = field(init=False)
    _areas: list[tuple[int, int, Integers]] = field(init=False)
    _pencilled: Integers = field(init=False)
    _all: _Stock = field(init=False)
    _stocks: dict[Hashable, _Stock] = field(default_factory=dict, init=False)
    _holds: list[int] = field(default_factory=list, init=False)
    _sources: dict[tuple[_Bundle, int], Source] = field(default_factory=dict, init=False)
    _pools: list[_Pool] = field(default_factory=list, init=False)
    _numbers: dict[_Pool, int] = field(default_factory=dict, init=False)
    _looks: dict[_Key, tuple[int, Outlook]] = field(default_factory=dict, init=False)
    _changes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.phase = self.kind.name
        self._free = self.cluster.device_free.copy()
        self._zones = self.kind.zones(self.cluster)
        self._sites = self.policy.sites(self.cluster)
        self._areas = [
            (int(zone), int(site), np.flatnonzero((self._zones == zone) & (self._sites == site)))
            for zone in np.unique(self._zones)
            for site in np.unique(self._sites[self._zones == zone])
            if zone >= 0
        ]
        self._pencilled = np.zeros(self.cluster.size, np.int64)
        of_kind = self.cluster.memo.get(self.phase)
        if of_kind is None:
            of_kind = np.array([device.kind == self.kind.kind for device in self.cluster.devices], bool)
            self.cluster.memo[self.phase] = of_kind
        self._all = self._count(of_kind)

    # What is there.

    def _count(self, accepted: Flags) -> _Stock:
        nodes, size = self.cluster.device_node, self.cluster.size
        return _Stock(
            accepted,
            np.bincount(nodes[accepted], minlength=size).astype(np.int64),
            np.bincount(nodes[accepted & self._free], minlength=size).astype(np.int64),
        )

    def stock(self, wanted: Hashable) -> _Stock:
        """Return the devices that the filter ``wanted`` accepts."""
        found = self._stocks.get(wanted)
        if found is None:
            memo = (self.phase, wanted)
            suits = self.cluster.memo.get(memo)
            if suits is None:
                suits = self.cluster.memo[memo] = self.kind.matches(self.cluster, wanted)
            accepted = self._all.accepted & suits
            found = self._stocks[wanted] = self._count(accepted)
        return found

    def spare(self) -> Integers:
        """Return how many devices are free and not pencilled in on each node."""
        return self._all.free - self._pencilled

    def spans(self, request: DeviceRequest) -> bool:
        """Say whether a bundle must come from several nodes: when none has so many devices, free or not."""
        if not self.kind.may_span or Route.REMOTE not in request.routes:
            return False
        return int(self.stock(request.filter).total.max(initial=0)) < request.count

    # The phase before asks what to expect.

    def outlook_key(self, pending: PendingJob, group: TaskGroup) -> Hashable | None:
        """Return request and subject of the group."""
        request = self.kind.request(pending, group)
        return None if request is None else _Key(request, self.policy.subject(pending, group))

    def outlook(self, key: Hashable) -> Outlook:
        """Return for each node whether its own devices would do, or others' could be lent to it."""
        assert isinstance(key, _Key)
        changes, look = self._looks.get(key, (-1, None))
        if look is None or changes != self._changes:
            look = self._look(key)
            self._looks[key] = (self._changes, look)
        return look

    def _look(self, key: _Key) -> Outlook:
        request, stock = key.request, self.stock(key.request.filter)
        wanted = request.count
        near = np.zeros(self.cluster.size, np.int64)
        spans = self.spans(request)
        if Route.LOCAL in request.routes and not spans:
            near = np.minimum(stock.free, self.spare()).clip(min=0) // wanted
        near_cost = self.policy.near_cost(wanted, stock.free, key.subject)
        near = np.where(near_cost == FORBIDDEN, 0, near)
        far = np.zeros(self.cluster.size, bool)
        far_cost = np.zeros(self.cluster.size, np.int64)
        if Route.REMOTE in request.routes:
            self._look_far(key, spans, far, far_cost)
            far_cost += self.policy.shortfall_cost(wanted, stock.free, key.subject)
        total = int(stock.free.sum()) // wanted if spans else int((stock.free // wanted).sum())
        return Outlook(near, near_cost, far, far_cost, total)

    def _look_far(self, key: _Key, spans: bool, far: Flags, far_cost: Integers) -> None:
        """Fill in for each client node whether the others of its zone can lend, and the least that costs."""
        request, free = key.request, self.stock(key.request.filter).free
        bundle = _Bundle(key, 1 if spans else request.count)
        for zone, site, rows in self._areas:
            lenders, cost = self._lenders(bundle, zone, site)
            if not len(lenders):
                continue
            # Nobody lends to itself: what counts for a client is what the others have.
            bundles = np.zeros(self.cluster.size, np.int64)
            bundles[lenders] = free[lenders] // bundle.size
            others = int(bundles.sum()) - bundles[rows]
            far[rows] = others >= (request.count if spans else 1)
            far_cost[rows] = int(cost.min()) * (request.count if spans else 1)

    def _lenders(self, bundle: _Bundle, zone: int, site: int) -> tuple[Integers, Integers]:
        """Return the nodes of ``zone`` that could lend a bundle to ``site`` now, by row, and what each would cost."""
        free = self.stock(bundle.key.request.filter).free
        rows = np.flatnonzero(free >= bundle.size)
        rows = rows[self._zones[rows] == zone]
        cost = self.policy.far_cost(self.cluster, rows, bundle.size, free[rows], site, bundle.key.subject)
        allowed = cost != FORBIDDEN
        return rows[allowed], cost[allowed]

    def near_room(self, key: Hashable, place: int) -> int:
        """Return how many tasks the devices of ``place`` could still serve."""
        assert isinstance(key, _Key)
        free = min(int(self.stock(key.request.filter).free[place]), int(self._all.free[place] - self._pencilled[place]))
        return max(free, 0) // key.request.count

    def pencil(self, key: Hashable, place: int, count: int) -> None:
        """Keep devices in mind for tasks that phase 1 put beside them."""
        assert isinstance(key, _Key)
        self._changes += 1
        self._pencilled[place] = max(0, int(self._pencilled[place]) + count * key.request.count)

    def clear_pencil(self) -> None:
        """Forget what was kept in mind: the real bundles come now."""
        if self._pencilled.any():
            self._changes += 1
            self._pencilled[:] = 0

    # The market asks for the network.

    def wants(self, work: Work) -> list[Want]:
        """Return one want per group and node that phase 1 chose."""
        found: dict[tuple[int, int], Want] = {}
        for award in work.awarded("compute"):
            group = work.pending.job.groups[award.group]
            key = self.outlook_key(work.pending, group)
            if key is None:
                continue
            assert isinstance(key, _Key)
            spans = self.spans(key.request)
            units = award.count * key.request.count if spans else award.count
            want = found.get((award.group, award.place))
            if want is None:
                source = self._source(key, award.place, spans)
                found[award.group, award.place] = Want(work, award.group, source, units)
            else:
                want.count += units
        return list(found.values())

    def _source(self, key: _Key, site: int, spans: bool) -> Source:
        bundle = _Bundle(key, 1 if spans else key.request.count)
        known = self._sources.get((bundle, site))
        if known is None:
            pool = self._pool(bundle, site, spans)
            known = self._sources[bundle, site] = Source(bundle, site, pool)
        return known

    def _pool(self, bundle: _Bundle, site: int, spans: bool) -> int | None:
        """Return the number of the aggregator that lends to ``site``, None if nobody may."""
        request = bundle.key.request
        if Route.REMOTE not in request.routes or self._zones[site] < 0:
            return None
        # Where the own node's devices may be used directly, no optimal flow leads back to it through the
        # aggregator; where they may not, it must be kept out of it.
        direct = Route.LOCAL in request.routes and not spans
        has = int(self.stock(request.filter).total[site]) > 0
        pool = _Pool(bundle, int(self._sites[site]), int(self._zones[site]), site if has and not direct else -1)
        number = self._numbers.setdefault(pool, len(self._pools))
        if number == len(self._pools):
            self._pools.append(pool)
        return number

    def arcs(self, source: Source) -> Sequence[Arc]:
        """Return the local route: the task's own node."""
        bundle, site = source.shape, source.site
        assert isinstance(bundle, _Bundle)
        request = bundle.key.request
        if Route.LOCAL not in request.routes or bundle.size != request.count:
            return ()
        free = self.stock(request.filter).free[site : site + 1]
        cost = int(self.policy.near_cost(request.count, free, bundle.key.subject)[0])
        capacity = int(free[0]) // bundle.size
        return () if cost == FORBIDDEN or not capacity else (Arc(site, NEAR, capacity, cost),)

    def offers(self, source: Source) -> Sequence[Offer]:
        """Return the remote route: all lenders of the zone."""
        assert source.pool is not None
        pool = self._pools[source.pool]
        bundle = pool.bundle
        free = self.stock(bundle.key.request.filter).free
        rows, lent = self._lenders(bundle, pool.zone, pool.site)
        cost = np.zeros(self.cluster.size, np.int64)
        cost[rows] = lent
        capacity = np.zeros(self.cluster.size, np.int64)
        capacity[rows] = free[rows] // bundle.size
        if pool.without >= 0:
            capacity[pool.without] = 0
        return (Offer(FAR, np.minimum(capacity, MAX_UNITS), cost),)

    def take(self, source: Source, place: int, tier: int, count: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """Reserve whole bundles: the least devices of ``place`` that will do."""
        del tier
        bundle = source.shape
        assert isinstance(bundle, _Bundle)
        start, end = int(self.cluster.device_start[place]), int(self.cluster.device_start[place + 1])
        accepted = self.stock(bundle.key.request.filter).accepted[start:end] & self._free[start:end]
        rows = (np.flatnonzero(accepted) + start).tolist()
        count = min(count, len(rows) // bundle.size)
        grants = tuple(tuple(rows[n * bundle.size : (n + 1) * bundle.size]) for n in range(count))
        self._mark(rows[: count * bundle.size], False)
        return count, grants

    def give_back(self, award: Award) -> None:
        """Free the devices again."""
        self._mark([row for grant in award.grants for row in grant], True)

    def hold(self, award: Award) -> bool:
        """Take those of the devices that are free."""
        wanted = [row for grant in award.grants for row in grant]
        kept = [row for row in wanted if self._free[row]]
        self._mark(kept, False)
        self._holds += kept
        return len(kept) == len(wanted)

    def end_holds(self, *, release: bool) -> None:
        """Free what was held, or leave it taken."""
        if release:
            self._mark(self._holds, True)
        self._holds.clear()

    def _mark(self, rows: Sequence[int], free: bool) -> None:
        self._changes += 1
        step = 1 if free else -1
        for row in rows:
            assert self._free[row] != free, f"device {self.cluster.devices[row].id} is given out twice"
            self._free[row] = free
            place = self.cluster.device_node[row]
            for stock in (self._all, *self._stocks.values()):
                if stock.accepted[row]:
                    stock.free[place] += step

    # People ask.

    def device_placements(self, award: Award) -> list[tuple[DevicePlacement, ...]]:
        """Return devices, their node and route for each bundle."""
        route = Route.LOCAL if award.place == award.source.site else Route.REMOTE
        node = self.cluster.names[award.place]
        return [
            tuple(DevicePlacement(device=self.cluster.devices[row].id, node=node, route=route) for row in grant)
            for grant in award.grants
        ]

    def alternatives(self, award: Award) -> str:
        """Name the route, and what the next best one would have cost."""
        bundle = award.source.shape
        assert isinstance(bundle, _Bundle)
        noun = f"{bundle.size} {self.kind.noun}{'s' if bundle.size != 1 else ''}"
        local = award.place == award.source.site
        lender = "" if local else f" from {self.cluster.names[award.place]}"
        text = f"{noun} {'local' if local else 'remote'}{lender} at cost {award.cost / 1000:g}"
        if Route.REMOTE not in bundle.key.request.routes:
            return f"{text} (the job allows no other route)"
        if award.source.pool is None:
            return text
        first = self.first.get(award.source.pool)
        if first is None:
            return text
        other = first.beside(award, self.cluster.names, award.source.site)
        return f"{text} ({f'remote: {other}' if other else 'no other node could lend'})"

    def misses(self, pending: PendingJob) -> list[Miss]:
        """Return why the groups of a job find no devices."""
        found = []
        for group in pending.job.groups:
            request = self.kind.request(pending, group)
            if request is None:
                continue
            stock = self.stock(request.filter)
            if not stock.total.any():
                miss = self.kind.explain_filter(self.cluster, request.filter)
            else:
                need = DeviceNeed(
                    phase=self.phase,
                    noun=self.kind.noun,
                    count=request.count,
                    tasks=group.count,
                    site=self.cluster.index.get(group.node, -1),
                    local=Route.LOCAL in request.routes,
                    remote=Route.REMOTE in request.routes,
                    may_span=self.kind.may_span,
                )
                miss = device_miss(self.cluster, need, stock.total, stock.free) or self._held_back(
                    pending, group, need.site
                )
            if miss is not None:
                found.append(miss)
        return found

    def _held_back(self, pending: PendingJob, group: TaskGroup, site: int) -> Miss | None:
        """Say when there are free devices, but no arc leads to any of them."""
        look = self.outlook(self.outlook_key(pending, group))
        served = (look.near > 0) | look.far
        if served[site] if site >= 0 else served.any():
            return None
        return Miss(
            phase=self.phase,
            resource="route",
            message=(
                f"{self.kind.noun}s that suit are free, but on no node from which group {group.name} may use them now "
                f"(routes {', '.join(group.routes)}; policy {self.policy.name})"
            ),
        )
