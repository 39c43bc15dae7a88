"""The desk of a phase of devices: what is free of one kind during a round, by which routes, and who was given it."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from farbus.model.decision import PendingJob
from farbus.model.device import Route
from farbus.model.job import Miss, TaskGroup
from farbus.scheduler.costs.policy import FORBIDDEN, Policy
from farbus.scheduler.phases.base import (
    FAR,
    MIXED,
    NEAR,
    NEXT_BEST,
    NO_ARC,
    NONE_KNOWN,
    ONLY_ONE,
    WERE_FULL,
    Alternatives,
    Desk,
    Flags,
    Later,
    Offer,
    Outlook,
    Ways,
)
from farbus.scheduler.phases.cluster import NEVER, Changes, Cluster
from farbus.scheduler.phases.device_outlook import DeviceOutlook
from farbus.scheduler.phases.jobs import Jobs, both
from farbus.scheduler.phases.misses import DeviceNeed, device_miss
from farbus.scheduler.phases.moving import MovingOutlook, moving_miss
from farbus.scheduler.phases.reasons import Reasons, literal, told
from farbus.scheduler.phases.remote_network import RemoteNetwork
from farbus.scheduler.phases.stock import Bundle, DeviceKey, DeviceRequest, Lenders, Stock
from farbus.scheduler.phases.tables import ARC, Integers, Table, distinct, ranges, table, wants_by_node

if TYPE_CHECKING:
    from farbus.scheduler.phases.device import DevicePhase

MAX_KEPT_BUNDLES = 256
"""Bundles and requests that a desk is kept with: what it knows of each is some arrays as long as the cluster."""


MAX_PRICED = 1_000_000
"""Pairs of lender and area that are priced at once, of some bytes each."""

_WHENCE = ("local", "remote from {0}", "recomposed from {0}")
_LOCAL_IS_CHEAP = 4
_ENDS = {
    NONE_KNOWN: "",
    ONLY_ONE: " (no other node could lend)",
    NEXT_BEST: " (remote: next best {2} at {3})",
    WERE_FULL: " (remote: cheaper ones such as {2} at {3} were full)",
    _LOCAL_IS_CHEAP: " (nothing remote is as cheap)",
}
"""What is said of the next best way, by what there was."""


class _Pool(msgspec.Struct, frozen=True):
    """An aggregator: all lenders to clients of one area; ``without`` is a node that may not lend."""

    bundle: Bundle
    area: int
    without: int


def _equal(ours: Integers, theirs: Integers) -> bool:
    return ours is theirs or np.array_equal(ours, theirs)


class DeviceDesk(Desk):
    """Free devices of one kind during one round."""

    def __init__(self, kind: DevicePhase, cluster: Cluster, policy: Policy) -> None:
        super().__init__(cluster)
        self.kind = kind
        self.policy = policy
        self.phase = kind.name
        self._stocks: dict[Hashable, Stock] = {}
        self._holds: list[int] = []
        self._pools: list[_Pool] = []
        self._pool_numbers: dict[tuple[int, int, int], int] = {}
        self._looks: dict[DeviceKey, DeviceOutlook] = {}
        self._lenders: dict[Bundle, Lenders] = {}
        self.marks = Changes(cluster.size)
        """The rows of nodes of which other devices are free; ``Kept.changes`` also tells of those pencilled in."""
        self._free = cluster.device_free.copy()
        self.network = RemoteNetwork(self)
        # What no node has, nobody can lend.
        self._zones = np.where(cluster.fabric.is_pool, -1, kind.zones(cluster))
        self._sites = policy.sites(cluster)
        self._pencilled = np.zeros(cluster.size, np.int64)
        self._pencils: list[Integers] = []
        """The nodes of which devices were pencilled in."""
        ends = np.stack((self._zones, self._sites), axis=1)
        distinct, area = np.unique(ends, axis=0, return_inverse=True)
        self._ends = distinct[distinct[:, 0] >= 0]
        self.areas = range(len(self._ends))
        """Numbers of the zones and sites of clients that differ in who lends to them, or at which cost."""
        self.area_of = area.reshape(-1) - (len(distinct) - len(self.areas))
        """The area of each node, shape (M,); negative for a node that is lent nothing."""
        of_kind = cluster.memo.get(self.phase)
        if of_kind is None:
            of_kind = np.array([device.kind == kind.kind for device in cluster.devices], bool)
            cluster.memo[self.phase] = of_kind
        self._all = Stock(cluster, of_kind, self._free)

    def serves(self, kind: DevicePhase, cluster: Cluster, policy: Policy) -> bool:
        """Say whether what is kept here is of use for ``kind`` and ``policy`` on ``cluster``."""
        return (
            kind is self.kind
            and policy is self.policy
            and len(self._lenders) + len(self._looks) <= MAX_KEPT_BUNDLES
            and _equal(self._sites, policy.sites(cluster))
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

    def stock(self, wanted: Hashable) -> Stock:
        """Return the devices that the filter ``wanted`` accepts."""
        found = self._stocks.get(wanted)
        if found is None:
            memo = (self.phase, wanted)
            suits = self.cluster.memo.get(memo)
            if suits is None:
                suits = self.cluster.memo[memo] = self.kind.matches(self.cluster, wanted)
            accepted = self._all.accepted & suits
            found = self._stocks[wanted] = Stock(self.cluster, accepted, self._free)
        return found

    def spare(self, nodes: Integers) -> Integers:
        """Return how many devices are free and not pencilled in on each of ``nodes``."""
        return self._all.free[nodes] - self._pencilled[nodes]

    def spare_total(self) -> int:
        """Return how many devices are free and not pencilled in on all nodes."""
        return self._all.free_total - (int(self._pencilled.sum()) if self._pencils else 0)

    def spans(self, request: DeviceRequest) -> bool:
        """Say whether a bundle must come from several nodes: when none has so many devices, free or not."""
        if not request.may_span or Route.REMOTE not in request.routes:
            return False
        stock = self.stock(request.filter)
        if Route.RECOMPOSED in request.routes and stock.movable is not None:
            # The whole of a bundle may be moved to one node.
            return max(stock.most, int(stock.movable.total.max(initial=0))) < request.count
        return stock.most < request.count

    def moves(self, request: DeviceRequest) -> bool:
        """Say whether bundles may be recomposed here."""
        return Route.RECOMPOSED in request.routes and bool(self.cluster.fabric.names) and not self.spans(request)

    def moving(self, key: DeviceKey) -> MovingOutlook | None:
        """Return what to expect of recomposition for ``key``, not yet up to date; None where it is no option."""
        movable = self.stock(key.request.filter).movable
        if movable is None or not self.moves(key.request):
            return None
        mixes = Route.LOCAL in key.request.routes
        return MovingOutlook(movable, key.request.count, mixes=mixes, policy=self.policy, subject=key.subject)

    def write_moving(self, outlook: MovingOutlook, wanted: Hashable) -> None:
        """Bring what ``outlook`` says of the filter ``wanted`` up to date."""
        outlook.write(self.marks.now, self.stock(wanted).free, self._free)

    # The phase before asks what to expect.

    def outlook_key(self, pending: PendingJob, group: TaskGroup) -> Hashable | None:
        """Return request and subject of the group."""
        request = self.kind.request(pending, group)
        return None if request is None else DeviceKey(request, self.policy.subject(pending, group))

    def outlook(self, key: Hashable) -> Outlook:
        """Return for each node whether its own devices would do, or others' could be lent to it."""
        assert isinstance(key, DeviceKey)
        look = self._looks.get(key)
        if look is None:
            if len(self._looks) >= MAX_KEPT_BUNDLES:
                self._looks.clear()
                self._lenders.clear()
            look = self._looks[key] = DeviceOutlook(self, key)
        changes = self.cluster.kept.changes
        if look.moment != changes.now:
            look.write(changes.since(look.moment))
            look.moment = changes.now
        return look

    def outlook_size(self, key: Hashable) -> int:
        """Return how many devices a task wants."""
        assert isinstance(key, DeviceKey)
        return key.request.count

    def outlook_network(self, key: Hashable) -> int:
        """Return what a task takes of its node's network where others lend to it, and nothing can be moved there."""
        assert isinstance(key, DeviceKey)
        wanted = key.request.count * key.request.network_mbit_s
        return 0 if not wanted or self.moves(key.request) else wanted

    def stocks(self, keys: Sequence[Hashable]) -> tuple[Integers, Flags]:
        """Return what is free for each filter of ``keys``, and of all devices of the kind."""
        filters: dict[Hashable, int] = {}
        row = []
        for key in keys:
            assert isinstance(key, DeviceKey)
            row.append(filters.setdefault(key.request.filter, len(filters)))
        stocks = [*(self.stock(wanted) for wanted in filters), self._all]
        within = np.ones((len(filters), len(stocks)), bool)
        for one, two in itertools.permutations(filters, 2):
            memo = (self.phase, one, two)
            if memo not in self.cluster.memo:
                outside = self.stock(one).accepted & ~self.stock(two).accepted
                self.cluster.memo[memo] = np.array(not outside.any())
            within[filters[one], filters[two]] = self.cluster.memo[memo]
        return np.array([stock.free_total for stock in stocks], np.int64), within[row]

    def ways(self, key: Hashable) -> Ways | None:
        """Return who may use its own devices, and who lends to whom; None where devices may be moved."""
        assert isinstance(key, DeviceKey)
        request, stock = key.request, self.stock(key.request.filter)
        if self.moves(request):
            return None
        spans = self.spans(request)
        size, times = (1, request.count) if spans else (request.count, 1)
        lends, bundle = np.zeros((len(self.areas), self.cluster.size), bool), Bundle(key, size)
        if Route.REMOTE in request.routes:
            lends[:, stock.nodes] = self.lenders(bundle).capacity > 0
        own = self.outlook(key).near > 0
        return Ways(request.filter, size, times, stock.accepted & self._free, own, self.area_of, lends, bundle.network)

    def lenders(self, bundle: Bundle) -> Lenders:
        """Return the bundles that nodes could lend to each area now, and what each would cost."""
        stock = self.stock(bundle.key.request.filter)
        lenders = self._lenders.get(bundle)
        if lenders is not None and (lenders.moment, lenders.linked) == self.moments(bundle):
            return lenders
        if lenders is None:
            lenders = self._lenders[bundle] = Lenders(stock, len(self.areas))
        rows = self.marks.since(lenders.moment)
        if bundle.network:
            rows = both(rows, self.network.room.links.since(lenders.linked))
        lenders.moment, lenders.linked = self.moments(bundle)
        rows = stock.row[rows]
        rows = rows[rows >= 0]
        step = max(1, MAX_PRICED // max(len(rows), 1))
        for first in range(0, len(self.areas) if len(rows) else 0, step):
            self._write_lenders(lenders, stock, bundle, rows, slice(first, first + step))
        lenders.sum_up()
        return lenders

    def moments(self, bundle: Bundle) -> tuple[int, int]:
        """Return the moments of what lenders of ``bundle`` depend on: free devices, and network where it counts."""
        return self.marks.now, self.network.room.links.now if bundle.network else NEVER

    def _write_lenders(self, lenders: Lenders, stock: Stock, bundle: Bundle, rows: Integers, areas: slice) -> None:
        """Bring lenders ``rows`` to some areas up to date, all of them in one question."""
        nodes = stock.nodes[rows]
        free = stock.free[nodes]
        zones, sites = self._ends[areas].T
        pairs = (len(zones), len(rows))
        bundles = free // bundle.size
        if bundle.network:
            bundles = np.minimum(bundles, self.network.room.network[nodes] // bundle.network)
        bundles = np.where(self._zones[nodes] == zones[:, None], bundles, 0)
        cost = self.policy.far_cost(
            self.cluster,
            np.broadcast_to(nodes, pairs).reshape(-1),
            bundle.size,
            np.broadcast_to(free, pairs).reshape(-1),
            np.repeat(sites, len(rows)),
            bundle.key.subject,
        ).reshape(pairs)
        bundles[cost == FORBIDDEN] = 0
        lenders.capacity[areas, rows] = bundles
        lenders.cost[areas, rows] = np.where(bundles > 0, cost, NO_ARC)

    def near_room(self, key: Hashable, places: Integers) -> Integers:
        """Return how many tasks the devices of ``places`` could still serve."""
        assert isinstance(key, DeviceKey)
        free = np.minimum(self.stock(key.request.filter).free[places], self.spare(places))
        return free.clip(min=0) // key.request.count

    def pencil(self, key: Hashable, places: Integers, counts: Integers) -> None:
        """Keep devices in mind for tasks that phase 1 put beside them."""
        assert isinstance(key, DeviceKey)
        np.add.at(self._pencilled, places, counts * key.request.count)
        self._pencilled[places] = self._pencilled[places].clip(min=0)
        self._pencils.append(places.copy())
        self.cluster.kept.changes.note(self._pencils[-1])

    def clear_pencil(self) -> None:
        """Forget what was kept in mind: the real bundles come now."""
        if not self._pencils:
            return
        rows = np.concatenate(self._pencils)
        self._pencils.clear()
        rows = rows[self._pencilled[rows] > 0]
        self._pencilled[rows] = 0
        self.cluster.kept.changes.note(rows)

    # The market asks for the network.

    def wants(self, jobs: Jobs, rows: Integers) -> Table:
        """Return one want per group and node that phase 1 chose."""
        wants, place = wants_by_node(jobs.awards("compute").of(rows))
        groups = int(wants["group"].max(initial=0)) + 1
        kind = jobs.form[wants["job"]] * groups + wants["group"]
        for number in distinct(kind).tolist():
            theirs = kind == number
            form = jobs.forms[number // groups]
            key = self.outlook_key(form.example, form.groups[number % groups])
            if key is None:
                wants["count"][theirs] = 0
                continue
            assert isinstance(key, DeviceKey)
            size = 1 if self.spans(key.request) else key.request.count
            wants["count"][theirs] *= key.request.count // size
            if self.moves(key.request):
                bundles = [self.number(Bundle(key, size, site)) for site in place[theirs].tolist()]
                wants["source"][theirs] = self.source(np.array(bundles, np.int64), place[theirs])
            else:
                wants["source"][theirs] = self.source(self.number(Bundle(key, size)), place[theirs])
        return wants[wants["count"] > 0]

    def reserve(self, jobs: Jobs, wants: Table) -> Table:
        """Set aside what wants may take of the network of their own nodes."""
        return self.network.reserve(jobs, wants)

    def awarded(self, awards: Table) -> Table:
        """Take what was set aside for those who have been lent devices."""
        return self.network.awarded(awards)

    def pools(self, sources: Integers) -> Integers:
        """Return the aggregators that lend to the sources' nodes, -1 where nobody may."""
        pools = np.full(len(sources), -1, np.int64)
        shapes, sites = self.split(sources)
        for number in distinct(shapes).tolist():
            bundle = self.bundle(number)
            request = bundle.key.request
            rows = np.flatnonzero((shapes == number) & (self._zones[sites] >= 0))
            if Route.REMOTE not in request.routes or bundle.lone or not len(rows):
                continue
            # Where the own node's devices may be used directly, no optimal flow leads back to it through the
            # aggregator; where they may not, it must be kept out of it.
            direct = Route.LOCAL in request.routes
            kept_out = (self.stock(request.filter).total[sites[rows]] > 0) & (not direct)
            without = np.where(kept_out, sites[rows], -1)
            # Bundles that differ only in where they might be recomposed are lent alike.
            lent = self.number(Bundle(bundle.key, bundle.size))
            span = self.cluster.size + 1
            ends, end = np.unique(self.area_of[sites[rows]] * span + without + 1, return_inverse=True)
            found = [self._pool(lent, *divmod(each, span)) for each in ends.tolist()]
            pools[rows] = np.array(found, np.int64)[end]
        return pools

    def _pool(self, shape: int, area: int, without: int) -> int:
        """Return the number of a pool; ``without`` is one more than the row of who may not lend, or 0."""
        number = self._pool_numbers.setdefault((shape, area, without), len(self._pools))
        if number == len(self._pools):
            self._pools.append(_Pool(self.bundle(shape), area, without - 1))
        return number

    def bundle(self, number: int) -> Bundle:
        """Return the shape with that number."""
        bundle = self.shapes[number]
        assert isinstance(bundle, Bundle)
        return bundle

    def size(self, shape: int) -> int:
        """Return the number of devices of a bundle."""
        return self.bundle(shape).size

    def arcs(self, sources: Integers) -> Table:
        """Return the local route, the tasks' own nodes, and the fabric pools from which devices can be moved there."""
        shapes, sites = self.split(sources)
        parts = [np.zeros(0, ARC)]
        for number in distinct(shapes).tolist():
            bundle = self.bundle(number)
            request = bundle.key.request
            if Route.LOCAL not in request.routes:
                continue
            rows = np.flatnonzero(shapes == number)
            free = self.stock(request.filter).free[sites[rows]]
            # Of a bundle from several nodes, the task's own may have a part.
            cost = self.policy.near_cost(bundle.size, free, bundle.key.subject)
            room = np.where(cost == FORBIDDEN, 0, free // bundle.size)
            arcs = table(ARC, len(rows), source=rows, place=sites[rows], tier=NEAR, capacity=room, cost=cost)
            parts.append(arcs[room > 0])
        for number in distinct(shapes).tolist():
            bundle = self.bundle(number)
            if bundle.site >= 0:
                arcs = self._moves_of(bundle)
                arcs["source"] = np.flatnonzero(shapes == number)[0]
                parts.append(arcs)
        arcs = np.concatenate(parts)
        return arcs[np.argsort(arcs["source"], kind="stable")]

    def _moves_of(self, bundle: Bundle) -> Table:
        """Return the recomposed route: for each pool an arc for each bundle that it could complete, dearer and dearer.

        The first takes what is at hand beyond whole bundles, the others are moved whole; the further ones come from
        the donors that are left.
        """
        fabric, request = self.cluster.fabric, bundle.key.request
        stock, site = self.stock(request.filter), bundle.site
        movable = stock.movable
        assert movable is not None
        at_hand = int(stock.free[site]) % bundle.size if Route.LOCAL in request.routes else 0
        parts = [np.zeros(0, ARC)]
        for pair in range(int(fabric.start[site]), int(fabric.start[site + 1])):
            pool = int(fabric.pool[pair])
            there = int(movable.free[pool] - movable.own[pair])
            bundles = (there + at_hand) // bundle.size
            if not bundles:
                continue
            _, cost = movable.donors(pool, site, self._free, self.policy, bundle.key.subject)
            ends = np.arange(1, bundles + 1) * bundle.size - at_hand
            moved = np.diff(ends, prepend=0)
            sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(cost)))[np.append(0, ends)]
            attach_s = np.full(bundles, fabric.attach_s[pair])
            price = self.policy.move_cost(bundle.size, moved, attach_s, bundle.key.subject) + np.diff(sums)
            prices, capacity = np.unique(price, return_counts=True)
            arcs = table(ARC, len(prices), place=fabric.row[pool], tier=MIXED, capacity=capacity, cost=prices)
            parts.append(arcs)
        return np.concatenate(parts)

    def offers(self, pool: int) -> Sequence[Offer | Later]:
        """Return the remote route: all lenders of the zone."""
        lending = self._pools[pool]
        offer = self.lenders(lending.bundle).offers[lending.area]
        row = self.stock(lending.bundle.key.request.filter).row[lending.without] if lending.without >= 0 else -1
        if row < 0 or not offer.capacity[row]:
            return (offer,)
        others = Offer(FAR, offer.place)
        others.capacity, others.cost, others.least = offer.capacity.copy(), offer.cost.copy(), None
        others.write(np.array([row]), np.zeros(1, np.int64), np.zeros(1, np.int64))
        return (others,)

    def floor(self, shape: int) -> int:
        """Return the least that any lender or pool would cost any node."""
        bundle = self.bundle(shape)
        look = self.outlook(bundle.key)
        return look.floor // (bundle.key.request.count // bundle.size)

    def capacity(self, pool: int, places: Integers) -> Integers | None:
        """Return how many bundles are free; None, the sum of the arcs, where devices of fabric pools are among them."""
        if self.cluster.fabric.is_pool[places].any():
            return None
        bundle = self._pools[pool].bundle
        free: Integers = self.stock(bundle.key.request.filter).free[places] // bundle.size
        return free

    def take(self, shape: int, places: Integers, tiers: Integers, counts: Integers) -> tuple[Integers, Integers]:
        """Reserve whole bundles: the least devices of each place that will do, and network of those that lend."""
        bundle = self.bundle(shape)
        counts = self.network.fit(shape, places, tiers, counts)
        moved = bundle.site >= 0 and self.cluster.fabric.is_pool[places].any()
        counts, devices = (self._take_moved if moved else self._take_whole)(bundle, places, counts)
        self.network.take(shape, places, tiers, counts)
        return counts, devices

    def _take_whole(self, bundle: Bundle, places: Integers, counts: Integers) -> tuple[Integers, Integers]:
        """Reserve bundles that are where they are used, or lent."""
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

    def _take_moved(self, bundle: Bundle, places: Integers, counts: Integers) -> tuple[Integers, Integers]:
        """Reserve bundles some of which are recomposed: first those that are not."""
        is_pool = self.cluster.fabric.is_pool[places]
        taken = np.zeros(len(places), np.int64)
        devices: list[Integers] = [np.zeros(0, np.int64)] * len(places)
        for row in np.argsort(is_pool, kind="stable").tolist():
            if not is_pool[row]:
                count, devices[row] = self._take_whole(bundle, places[row : row + 1], counts[row : row + 1])
                taken[row] = count[0]
                continue
            pool = int(np.searchsorted(self.cluster.fabric.row, places[row]))
            units: list[Integers] = []
            while len(units) < counts[row] and (unit := self._compose(bundle, pool)) is not None:
                units.append(unit)
            taken[row] = len(units)
            devices[row] = np.concatenate(units) if units else devices[row]
        return taken, np.concatenate(devices)

    def _compose(self, bundle: Bundle, pool: int) -> Integers | None:
        """Reserve one bundle: what is at hand beyond whole bundles, and the rest from ``pool``; None if it is short."""
        stock = self.stock(bundle.key.request.filter)
        assert stock.movable is not None
        at_hand = np.zeros(0, np.int64)
        if Route.LOCAL in bundle.key.request.routes:
            own = np.arange(*self.cluster.device_start[bundle.site : bundle.site + 2])
            own = own[stock.accepted[own] & self._free[own]]
            at_hand = own[: len(own) % bundle.size]
        moved, _ = stock.movable.donors(pool, bundle.site, self._free, self.policy, bundle.key.subject)
        missing = bundle.size - len(at_hand)
        if len(moved) < missing:
            return None
        unit = np.concatenate((at_hand, moved[:missing]))
        self._mark(unit, free=False)
        return unit

    def give_back(self, awards: Table, devices: Integers) -> None:
        """Free the devices again, and the network that they took."""
        self.network.give_back(awards)
        self._mark(devices, free=True)

    def hold(self, shape: Hashable, award: Table, devices: Integers) -> bool:
        """Take those of the devices that are free, and the network for them."""
        assert isinstance(shape, Bundle)
        reaches = self.network.hold(shape.network, award)
        kept = devices[self._free[devices]]
        self._mark(kept, free=False)
        self._holds += kept.tolist()
        return reaches and len(kept) == len(devices)

    def end_holds(self, *, release: bool) -> None:
        """Free what was held, or leave it taken."""
        self.network.end_holds(release=release)
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
            stock.change(rows, nodes, 1 if free else -1)

    # People ask.

    def reasons(self, awards: Table, first: Mapping[int, Alternatives]) -> Reasons:
        """Name the route, and what the next best one would have cost."""
        shapes, sites = self.split(awards["source"])
        place, cost, pool = awards["place"], awards["cost"], awards["pool"]
        local, is_pool = place == sites, self.cluster.fabric.is_pool[place]
        kind = np.where(local, _LOCAL_IS_CHEAP, NONE_KNOWN)
        kind[pool < 0] = NONE_KNOWN
        other, dearer = np.full(len(awards), -1, np.int64), np.zeros(len(awards), np.int64)
        for number in distinct(pool).tolist():
            if number in first:
                rows = np.flatnonzero(pool == number)
                found = first[number].beside(place[rows], cost[rows], sites[rows])
                kind[rows], other[rows], dearer[rows] = found
        whence = np.where(local, 0, np.where(is_pool, 2, 1))

        def text(number: int) -> str:
            number, kind = divmod(number, len(_ENDS))
            shape, whence = divmod(number, len(_WHENCE))
            bundle = self.bundle(shape)
            routes = bundle.key.request.routes
            noun = f"{bundle.size} {self.kind.noun}{'s' if bundle.size != 1 else ''}"
            end = _ENDS[kind] if Route.REMOTE in routes else " (the job allows no other route)" * (len(routes) == 1)
            return f"{literal(noun)} {_WHENCE[whence]} at cost {{1}}{end}"

        kinds = (shapes * len(_WHENCE) + whence) * len(_ENDS) + kind
        return told(kinds, text, place=place, cost=cost, other=other, other_cost=dearer)

    def apart(self, pending: PendingJob) -> str:
        """Say which zones there are, where the job would be lent something."""
        requests = [self.kind.request(pending, group) for group in pending.job.groups]
        if not any(request is not None and Route.REMOTE in request.routes for request in requests):
            return ""
        return self.kind.explain_zones(self.cluster)

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
                site = self.cluster.index.get(group.node, -1)
                apart = site >= 0 and bool((stock.total * ~self._reach(site)).any())
                need = DeviceNeed(
                    phase=self.phase,
                    noun=self.kind.noun,
                    count=request.count,
                    tasks=group.count,
                    site=site,
                    local=Route.LOCAL in request.routes,
                    remote=Route.REMOTE in request.routes,
                    may_span=request.may_span,
                    apart=apart,
                    why_apart=self.apart(pending) if apart else "",
                )
                miss = self._miss(request, need) or self._held_back(pending, group, request, need.site)
            if miss is not None:
                found.append(miss)
        return found

    def _miss(self, request: DeviceRequest, need: DeviceNeed) -> Miss | None:
        """Say why no route serves ``need``: of several routes, the one that may do so later."""
        stock, nodes = self.stock(request.filter), ~self.cluster.fabric.is_pool & self._reach(need.site)
        found = []
        if need.local or need.remote:
            found.append(device_miss(self.cluster, need, stock.total * nodes, stock.free * nodes))
        if Route.RECOMPOSED in request.routes:
            found.append(moving_miss(self.cluster, need, stock.total, stock.free, stock.movable))
        misses = [miss for miss in found if miss is not None]
        return min(misses, key=lambda miss: miss.permanent) if len(misses) == len(found) else None

    def _reach(self, site: int) -> Flags:
        """Return whose devices a task at ``site`` could be given at all, shape (M,): its own and those of its zone."""
        if site < 0:
            return np.ones(self.cluster.size, bool)
        reach: Flags = (self._zones == self._zones[site]) & (self._zones >= 0)
        reach[site] = True
        return reach

    def _held_back(self, pending: PendingJob, group: TaskGroup, request: DeviceRequest, site: int) -> Miss | None:
        """Say when there are free devices, but no arc leads to any of them."""
        look = self.outlook(self.outlook_key(pending, group))
        served = (look.near > 0) | look.far(np.arange(self.cluster.size))[0]
        miss = self.network.miss(request, group, served)
        if miss is not None or (served[site] if site >= 0 else served.any()):
            return miss
        message = (
            f"{self.kind.noun}s that suit are free, but on no node from which group {group.name} may use them now "
            f"(routes {', '.join(group.routes)}; policy {self.policy.name})"
        )
        if apart := self.apart(pending):
            message += f"; {apart}"
        return Miss(phase=self.phase, resource="route", message=message)
