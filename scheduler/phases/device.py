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
from dataclasses import dataclass

import msgspec
import numpy as np

from farbus.model.decision import PendingJob
from farbus.model.device import DeviceKind, Route
from farbus.model.job import DevicePlacement, Miss, TaskGroup
from farbus.scheduler.costs.policy import FORBIDDEN, Policy
from farbus.scheduler.explain import DeviceNeed, device_miss
from farbus.scheduler.phases.base import FAR, NEAR, Desk, Flags, Offer, Outlook, Phase
from farbus.scheduler.phases.cluster import MAX_UNITS, Cluster
from farbus.scheduler.phases.jobs import Jobs
from farbus.scheduler.phases.tables import ARC, WANT, Integers, Table, in_order, ranges, table


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
        """Return what each task of ``group`` wants, judging by nothing but the job; None for nothing."""

    def asks(self, pending: PendingJob, group: TaskGroup) -> Hashable:
        """Return the request."""
        return self.request(pending, group)

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
        return DeviceDesk(self, cluster, policy)


@dataclass(slots=True)
class _Stock:
    """Devices that one filter accepts: which, how many of them each node has, and how many are free there."""

    accepted: Flags
    total: Integers
    free: Integers


class DeviceDesk(Desk):
    """Free devices of one kind during one round."""

    def __init__(self, kind: DevicePhase, cluster: Cluster, policy: Policy) -> None:
        super().__init__(cluster)
        self.kind = kind
        self.policy = policy
        self.phase = kind.name
        self._stocks: dict[Hashable, _Stock] = {}
        self._holds: list[int] = []
        self._pools: list[_Pool] = []
        self._pool_numbers: dict[tuple[int, int, int, int], int] = {}
        self._looks: dict[_Key, tuple[int, Outlook]] = {}
        self._changes = 0
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

    def near_room(self, key: Hashable, places: Integers) -> Integers:
        """Return how many tasks the devices of ``places`` could still serve."""
        assert isinstance(key, _Key)
        free = np.minimum(self.stock(key.request.filter).free[places], self.spare()[places])
        return free.clip(min=0) // key.request.count

    def pencil(self, key: Hashable, places: Integers, counts: Integers) -> None:
        """Keep devices in mind for tasks that phase 1 put beside them."""
        assert isinstance(key, _Key)
        self._changes += 1
        np.add.at(self._pencilled, places, counts * key.request.count)
        self._pencilled[places] = self._pencilled[places].clip(min=0)

    def clear_pencil(self) -> None:
        """Forget what was kept in mind: the real bundles come now."""
        if self._pencilled.any():
            self._changes += 1
            self._pencilled[:] = 0

    # The market asks for the network.

    def wants(self, jobs: Jobs, rows: Integers) -> Table:
        """Return one want per group and node that phase 1 chose."""
        awards = jobs.awards("compute").of(rows)
        # A group that has tasks of several tiers at a node wants for all of them at once.
        span = self.cluster.size
        groups = int(awards["group"].max(initial=0)) + 1
        _, row = in_order((awards["job"] * groups + awards["group"]) * span + awards["place"])
        _, first = np.unique(row, return_index=True)
        wants = table(WANT, len(first), job=awards["job"][first], group=awards["group"][first])
        np.add.at(wants["count"], row, awards["count"])
        place = awards["place"][first]
        kind = jobs.form[wants["job"]] * groups + wants["group"]
        for number in np.unique(kind).tolist():
            theirs = kind == number
            form = jobs.forms[number // groups]
            key = self.outlook_key(form.example, form.groups[number % groups])
            if key is None:
                wants["count"][theirs] = 0
                continue
            assert isinstance(key, _Key)
            size = 1 if self.spans(key.request) else key.request.count
            wants["count"][theirs] *= key.request.count // size
            wants["source"][theirs] = self.source(self.number(_Bundle(key, size)), place[theirs])
        return wants[wants["count"] > 0]

    def pools(self, sources: Integers) -> Integers:
        """Return the aggregators that lend to the sources' nodes, -1 where nobody may."""
        pools = np.full(len(sources), -1, np.int64)
        shapes, sites = self.split(sources)
        for number in np.unique(shapes).tolist():
            bundle = self._bundle(number)
            request = bundle.key.request
            rows = np.flatnonzero((shapes == number) & (self._zones[sites] >= 0))
            if Route.REMOTE not in request.routes or not len(rows):
                continue
            # Where the own node's devices may be used directly, no optimal flow leads back to it through the
            # aggregator; where they may not, it must be kept out of it.
            direct = Route.LOCAL in request.routes and bundle.size == request.count
            kept_out = (self.stock(request.filter).total[sites[rows]] > 0) & (not direct)
            without = np.where(kept_out, sites[rows], -1)
            ends = zip(
                self._sites[sites[rows]].tolist(), self._zones[sites[rows]].tolist(), without.tolist(), strict=True
            )
            pools[rows] = [self._pool(number, *end) for end in ends]
        return pools

    def _pool(self, shape: int, site: int, zone: int, without: int) -> int:
        number = self._pool_numbers.setdefault((shape, site, zone, without), len(self._pools))
        if number == len(self._pools):
            self._pools.append(_Pool(self._bundle(shape), site, zone, without))
        return number

    def _bundle(self, number: int) -> _Bundle:
        bundle = self.shapes[number]
        assert isinstance(bundle, _Bundle)
        return bundle

    def size(self, shape: int) -> int:
        """Return the number of devices of a bundle."""
        return self._bundle(shape).size

    def arcs(self, sources: Integers) -> Table:
        """Return the local route: the tasks' own nodes."""
        shapes, sites = self.split(sources)
        parts = [np.zeros(0, ARC)]
        for number in np.unique(shapes).tolist():
            bundle = self._bundle(number)
            request = bundle.key.request
            if Route.LOCAL not in request.routes or bundle.size != request.count:
                continue
            rows = np.flatnonzero(shapes == number)
            free = self.stock(request.filter).free[sites[rows]]
            cost = self.policy.near_cost(request.count, free, bundle.key.subject)
            room = np.where(cost == FORBIDDEN, 0, free // bundle.size)
            arcs = table(ARC, len(rows), source=rows, place=sites[rows], tier=NEAR, capacity=room, cost=cost)
            parts.append(arcs[room > 0])
        arcs = np.concatenate(parts)
        return arcs[np.argsort(arcs["source"], kind="stable")]

    def offers(self, pool: int) -> Sequence[Offer]:
        """Return the remote route: all lenders of the zone."""
        lending = self._pools[pool]
        bundle = lending.bundle
        free = self.stock(bundle.key.request.filter).free
        rows, lent = self._lenders(bundle, lending.zone, lending.site)
        cost = np.zeros(self.cluster.size, np.int64)
        cost[rows] = lent
        capacity = np.zeros(self.cluster.size, np.int64)
        capacity[rows] = free[rows] // bundle.size
        if lending.without >= 0:
            capacity[lending.without] = 0
        return (Offer(FAR, np.minimum(capacity, MAX_UNITS), cost),)

    def take(self, shape: int, places: Integers, tiers: Integers, counts: Integers) -> tuple[Integers, Integers]:
        """Reserve whole bundles: the least devices of each place that will do."""
        del tiers
        bundle = self._bundle(shape)
        start = self.cluster.device_start[places]
        length = self.cluster.device_start[places + 1] - start
        rows = ranges(start, length)
        owner = np.repeat(np.arange(len(places)), length)
        usable = self.stock(bundle.key.request.filter).accepted[rows] & self._free[rows]
        rows, owner = rows[usable], owner[usable]
        has = np.bincount(owner, minlength=len(places))
        counts = np.minimum(counts, has // bundle.size)
        nth = np.arange(len(rows)) - np.repeat(np.cumsum(has) - has, has)
        rows = rows[nth < (counts * bundle.size)[owner]]
        self._mark(rows, free=False)
        return counts, rows

    def give_back(self, awards: Table, devices: Integers) -> None:
        """Free the devices again."""
        del awards
        self._mark(devices, free=True)

    def hold(self, shape: Hashable, award: Table, devices: Integers) -> bool:
        """Take those of the devices that are free."""
        del shape, award
        kept = devices[self._free[devices]]
        self._mark(kept, free=False)
        self._holds += kept.tolist()
        return len(kept) == len(devices)

    def end_holds(self, *, release: bool) -> None:
        """Free what was held, or leave it taken."""
        if release:
            self._mark(np.array(self._holds, np.int64), free=True)
        self._holds.clear()

    def _mark(self, rows: Integers, *, free: bool) -> None:
        if not len(rows):
            return
        self._changes += 1
        assert (self._free[rows] != free).all(), "a device is given out twice"
        self._free[rows] = free
        for stock in (self._all, *self._stocks.values()):
            places = self.cluster.device_node[rows[stock.accepted[rows]]]
            np.add.at(stock.free, places, 1 if free else -1)

    # People ask.

    def device_placements(self, site: int, place: int, devices: Sequence[int]) -> tuple[DevicePlacement, ...]:
        """Return devices, their node and route for one bundle."""
        node, known = self.cluster.names[place], self.cluster.devices
        route = Route.LOCAL if place == site else Route.REMOTE
        return tuple([DevicePlacement(device=known[row].id, node=node, route=route) for row in devices])

    def alternatives(self, pool: int, shape: int, site: int, place: int, cost: int) -> str:
        """Name the route, and what the next best one would have cost."""
        bundle = self._bundle(shape)
        noun = f"{bundle.size} {self.kind.noun}{'s' if bundle.size != 1 else ''}"
        local = place == site
        lender = "" if local else f" from {self.cluster.names[place]}"
        text = f"{noun} {'local' if local else 'remote'}{lender} at cost {cost / 1000:g}"
        if Route.REMOTE not in bundle.key.request.routes:
            return f"{text} (the job allows no other route)"
        first = self.first.get(pool)
        if first is None:
            return text
        other = first.beside(place, cost, self.cluster.names, site)
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
