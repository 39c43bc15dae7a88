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

import msgspec
import numpy as np

from farbus.model.decision import PendingJob
from farbus.model.device import DeviceKind, Route
from farbus.model.job import DevicePlacement, Miss, TaskGroup
from farbus.scheduler.costs.policy import FORBIDDEN, Policy
from farbus.scheduler.explain import DeviceNeed, device_miss
from farbus.scheduler.phases.base import FAR, NEAR, NO_ARC, Desk, Flags, Later, Offer, Outlook, Phase
from farbus.scheduler.phases.cluster import NEVER, Changes, Cluster
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
        """Return the desk of the last round, brought up to date, or a new one."""
        del later
        kept = cluster.kept.desks.get(self.name)
        if isinstance(kept, DeviceDesk) and kept.serves(self, cluster, policy):
            kept.renew(cluster)
            return kept
        cluster.kept.desks[self.name] = desk = DeviceDesk(self, cluster, policy)
        return desk


MAX_KEPT_BUNDLES = 256
"""Bundles and requests that a desk is kept with: what it knows of each is some arrays as long as the cluster."""


class _Stock:
    """Devices that one filter accepts: which, how many of them each node has, and how many are free there.

    ``nodes`` are the rows of the nodes that have any, ``row`` the place of each node among them.
    """

    def __init__(self, cluster: Cluster, accepted: Flags, free: Flags) -> None:
        self.accepted = accepted
        self.total = np.bincount(cluster.device_node[accepted], minlength=cluster.size).astype(np.int64)
        self.free = np.bincount(cluster.device_node[accepted & free], minlength=cluster.size).astype(np.int64)
        self.nodes = np.flatnonzero(self.total)
        self.row = np.full(cluster.size, -1, np.int64)
        self.row[self.nodes] = np.arange(len(self.nodes))
        self.most = int(self.total.max(initial=0))


class _Lenders:
    """What the nodes of a zone can lend to clients of one site: bundles, and the cost of one, as of ``moment``."""

    def __init__(self, stock: _Stock) -> None:
        self.moment = NEVER
        self.offer = Offer(FAR, stock.nodes)


class _Look(Outlook):
    """What is kept of one request: how many tasks each node could serve itself, as of ``moment``."""

    def __init__(self, desk: DeviceDesk, key: _Key) -> None:
        size = desk.cluster.size
        self.moment = NEVER
        self._marked = NEVER
        self.near = np.zeros(size, np.int64)
        self.near_cost = np.zeros(size, np.int64)
        self.bundles = np.zeros(size, np.int64)
        self._desk = desk
        self._key = key
        request = key.request
        self.spans = desk.spans(request)
        self.size = request.count
        # What a task is lent at once, and how often.
        self._bundle = _Bundle(key, 1 if self.spans else request.count)
        self._times = request.count if self.spans else 1

    def write(self, rows: Integers) -> None:
        """Bring nodes ``rows`` up to date, and what is known of the whole cluster."""
        desk, request = self._desk, self._key.request
        stock = desk.stock(request.filter)
        free = stock.free[rows]
        self.bundles[rows] = free // request.count
        cost = desk.policy.near_cost(request.count, free, self._key.subject)
        self.near_cost[rows] = cost
        if Route.LOCAL in request.routes and not self.spans:
            near = np.minimum(free, desk.spare(rows)).clip(min=0) // request.count
            self.near[rows] = np.where(cost == FORBIDDEN, 0, near)
        if self._marked == desk.marks.now:
            return
        self._marked = desk.marks.now
        self.total = int(stock.free.sum()) // request.count if self.spans else int(self.bundles.sum())
        lent = [] if Route.REMOTE not in request.routes else [desk.lenders(self._bundle, *area) for area in desk.areas]
        least = [int(offer.cost.min(initial=NO_ARC)) for offer in lent]
        self.floor = min(least, default=NO_ARC) * self._times
        self._least = np.array([*least, NO_ARC], np.int64)
        self._lent = [int(offer.capacity.sum()) for offer in lent]
        self._offers = lent

    def far(self, nodes: Integers) -> tuple[Flags, Integers]:
        """Say which nodes others of the zone can lend to, and the least that costs."""
        desk, request = self._desk, self._key.request
        far = np.zeros(len(nodes), bool)
        if not self._offers:
            return far, np.zeros(len(nodes), np.int64)
        stock = desk.stock(request.filter)
        area = desk.area_of[nodes]
        for number, (offer, lent) in enumerate(zip(self._offers, self._lent, strict=True)):
            if not lent:
                continue
            # Nobody lends to itself: what counts for a client is what the others have.
            clients = np.flatnonzero(area == number)
            row = stock.row[nodes[clients]]
            own = np.where(row >= 0, offer.capacity[row], 0)
            far[clients] = lent - own >= self._times
        cost = np.where(far, self._least[area] * self._times, 0)
        return far, cost + desk.policy.shortfall_cost(request.count, stock.free[nodes], self._key.subject)


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
        self._looks: dict[_Key, _Look] = {}
        self._lenders: dict[tuple[_Bundle, int, int], _Lenders] = {}
        self.marks = Changes(cluster.size)
        """The rows of nodes of which other devices are free; ``Kept.changes`` also tells of those pencilled in."""
        self._free = cluster.device_free.copy()
        self._zones = kind.zones(cluster)
        self._sites = policy.sites(cluster)
        self._pencilled = np.zeros(cluster.size, np.int64)
        ends = np.stack((self._zones, self._sites), axis=1)
        distinct, area = np.unique(ends, axis=0, return_inverse=True)
        self.areas = [(zone, site) for zone, site in distinct.tolist() if zone >= 0]
        """Zones and sites of clients that differ in who lends to them, or at which cost."""
        self.area_of = area.reshape(-1) - (len(distinct) - len(self.areas))
        """The area of each node, shape (M,); negative for a node that is lent nothing."""
        of_kind = cluster.memo.get(self.phase)
        if of_kind is None:
            of_kind = np.array([device.kind == kind.kind for device in cluster.devices], bool)
            cluster.memo[self.phase] = of_kind
        self._all = _Stock(cluster, of_kind, self._free)

    def serves(self, kind: DevicePhase, cluster: Cluster, policy: Policy) -> bool:
        """Say whether what is kept here is of use for ``kind`` and ``policy`` on ``cluster``."""
        return (
            kind is self.kind
            and policy is self.policy
            and len(self._lenders) + len(self._looks) <= MAX_KEPT_BUNDLES
            and np.array_equal(self._sites, policy.sites(cluster))
        )

    def renew(self, cluster: Cluster) -> None:
        """Begin a round: take up what is free now."""
        super().renew(cluster)
        self.clear_pencil()
        self._holds.clear()
        self._pools.clear()
        self._pool_numbers.clear()
        changed = self._free != cluster.device_free
        self._mark(np.flatnonzero(changed & self._free), free=False)
        self._mark(np.flatnonzero(changed & cluster.device_free), free=True)

    # What is there.

    def stock(self, wanted: Hashable) -> _Stock:
        """Return the devices that the filter ``wanted`` accepts."""
        found = self._stocks.get(wanted)
        if found is None:
            memo = (self.phase, wanted)
            suits = self.cluster.memo.get(memo)
            if suits is None:
                suits = self.cluster.memo[memo] = self.kind.matches(self.cluster, wanted)
            accepted = self._all.accepted & suits
            found = self._stocks[wanted] = _Stock(self.cluster, accepted, self._free)
        return found

    def spare(self, nodes: Integers) -> Integers:
        """Return how many devices are free and not pencilled in on each of ``nodes``."""
        return self._all.free[nodes] - self._pencilled[nodes]

    def spans(self, request: DeviceRequest) -> bool:
        """Say whether a bundle must come from several nodes: when none has so many devices, free or not."""
        if not self.kind.may_span or Route.REMOTE not in request.routes:
            return False
        return self.stock(request.filter).most < request.count

    # The phase before asks what to expect.

    def outlook_key(self, pending: PendingJob, group: TaskGroup) -> Hashable | None:
        """Return request and subject of the group."""
        request = self.kind.request(pending, group)
        return None if request is None else _Key(request, self.policy.subject(pending, group))

    def outlook(self, key: Hashable) -> Outlook:
        """Return for each node whether its own devices would do, or others' could be lent to it."""
        assert isinstance(key, _Key)
        look = self._looks.get(key)
        if look is None:
            if len(self._looks) >= MAX_KEPT_BUNDLES:
                self._looks.clear()
                self._lenders.clear()
            look = self._looks[key] = _Look(self, key)
        changes = self.cluster.kept.changes
        if look.moment != changes.now:
            look.write(changes.since(look.moment))
            look.moment = changes.now
        return look

    def lenders(self, bundle: _Bundle, zone: int, site: int) -> Offer:
        """Return the bundles that the nodes of ``zone`` could lend to ``site`` now, and what each would cost."""
        stock = self.stock(bundle.key.request.filter)
        lenders = self._lenders.get((bundle, zone, site))
        if lenders is not None and lenders.moment == self.marks.now:
            return lenders.offer
        if lenders is None:
            lenders = self._lenders[bundle, zone, site] = _Lenders(stock)
        rows = self.marks.since(lenders.moment)
        lenders.moment = self.marks.now
        rows = stock.row[rows]
        rows = rows[rows >= 0]
        if len(rows):
            nodes = stock.nodes[rows]
            free = stock.free[nodes]
            count = np.where(self._zones[nodes] == zone, free // bundle.size, 0)
            cost = self.policy.far_cost(self.cluster, nodes, bundle.size, free, site, bundle.key.subject)
            lenders.offer.write(rows, np.where(cost == FORBIDDEN, 0, count), cost)
        return lenders.offer

    def near_room(self, key: Hashable, places: Integers) -> Integers:
        """Return how many tasks the devices of ``places`` could still serve."""
        assert isinstance(key, _Key)
        free = np.minimum(self.stock(key.request.filter).free[places], self.spare(places))
        return free.clip(min=0) // key.request.count

    def pencil(self, key: Hashable, places: Integers, counts: Integers) -> None:
        """Keep devices in mind for tasks that phase 1 put beside them."""
        assert isinstance(key, _Key)
        np.add.at(self._pencilled, places, counts * key.request.count)
        self._pencilled[places] = self._pencilled[places].clip(min=0)
        self.cluster.kept.changes.note(places.copy())

    def clear_pencil(self) -> None:
        """Forget what was kept in mind: the real bundles come now."""
        rows = np.flatnonzero(self._pencilled)
        if len(rows):
            self._pencilled[rows] = 0
            self.cluster.kept.changes.note(rows)

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

    def offers(self, pool: int) -> Sequence[Offer | Later]:
        """Return the remote route: all lenders of the zone."""
        lending = self._pools[pool]
        offer = self.lenders(lending.bundle, lending.zone, lending.site)
        row = self.stock(lending.bundle.key.request.filter).row[lending.without] if lending.without >= 0 else -1
        if row < 0 or not offer.capacity[row]:
            return (offer,)
        others = Offer(FAR, offer.place)
        others.capacity, others.cost = offer.capacity.copy(), offer.cost.copy()
        others.write(np.array([row]), np.zeros(1, np.int64), np.zeros(1, np.int64))
        return (others,)

    def floor(self, shape: int) -> int:
        """Return the least that any lender would cost any node."""
        bundle = self._bundle(shape)
        look = self.outlook(bundle.key)
        return look.floor // (bundle.key.request.count // bundle.size)

    def capacity(self, pool: int, places: Integers) -> Integers | None:
        """Return how many bundles are free."""
        bundle = self._pools[pool].bundle
        free: Integers = self.stock(bundle.key.request.filter).free[places] // bundle.size
        return free

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
        nodes = self.cluster.device_node[rows]
        self.cluster.kept.changes.note(nodes)
        self.marks.note(nodes)
        assert (self._free[rows] != free).all(), "a device is given out twice"
        self._free[rows] = free
        for stock in (self._all, *self._stocks.values()):
            np.add.at(stock.free, nodes[stock.accepted[rows]], 1 if free else -1)

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
            return f"{text} (nothing remote is as cheap)" if local and pool >= 0 else text
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
        served = (look.near > 0) | look.far(np.arange(self.cluster.size))[0]
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
