"""Phase 3: storage of NVMe drives, local, over the network (NVMe over Fabrics) or moved by a fabric.

A unit is the storage of one task: some drives of one place as one, each bearing
its part of the bytes and of the bandwidth.  How many drives is the *flavour*,
an arc of its own with its own price (:mod:`farbus.scheduler.composition.rules`).
Bytes and bandwidth of a drive are shared, so arcs are optimistic and the
vector is checked when units are handed out.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from farbus.model.decision import PendingJob
from farbus.model.device import Route
from farbus.model.job import Miss, StorageRequest, TaskGroup
from farbus.model.quantity import format_bytes
from farbus.scheduler.costs.policy import FORBIDDEN, Policy
from farbus.scheduler.phases.base import (
    FAR,
    NEXT_BEST,
    NO_ARC,
    NONE_KNOWN,
    ONLY_ONE,
    WERE_FULL,
    Alternatives,
    Desk,
    Later,
    Offer,
    Outlook,
    Phase,
)
from farbus.scheduler.phases.cluster import Changes, Cluster
from farbus.scheduler.phases.drives import Drives, Options, StorageShape
from farbus.scheduler.phases.jobs import Jobs
from farbus.scheduler.phases.reasons import Reasons, literal, told
from farbus.scheduler.phases.stock import ANY_SITE
from farbus.scheduler.phases.storage_outlook import StorageOutlook
from farbus.scheduler.phases.tables import ARC, WANT, Integers, Table, wants_by_node

STORAGE_ROUTES = (Route.LOCAL, Route.REMOTE)
"""How volumes are given; a fabric moves drives, and not what is stored on some of them."""

NO_DRIVE = -1
"""Fills up the drives of a unit to as many as its shape may have."""


class StoragePhase(Phase):
    """NVMe drives, as a plug-in of the round."""

    name = "storage"

    def asks(self, pending: PendingJob, group: TaskGroup) -> Hashable:
        """Return the group's storage; where a profile says what is fast enough, the deadline matters too."""
        if not any(request.profile for request in group.storage):
            return group.storage
        return group.storage, pending.job.due_at

    def open(self, cluster: Cluster, policy: Policy, later: Sequence[Desk]) -> Desk:
        """Return the desk of the last round, brought up to date, or a new one."""
        del later
        kept = cluster.kept.desks.get(self.name)
        if isinstance(kept, StorageDesk) and kept.policy is policy and len(kept.shapes) <= MAX_KEPT_SHAPES:
            kept.renew(cluster)
            return kept
        cluster.kept.desks[self.name] = desk = StorageDesk(cluster, policy)
        return desk


MAX_KEPT_SHAPES = 1_024
"""Shapes that a desk is kept with; those of jobs that ended are forgotten with it."""


_ROUTES = ("local", "remote from {0}", "recomposed from {0}")
_ENDS = {
    NONE_KNOWN: "",
    ONLY_ONE: "",
    NEXT_BEST: " (remote: next best {2} at {3})",
    WERE_FULL: " (remote: cheaper ones such as {2} at {3} were full)",
}


def _left_s(pending: PendingJob, storage: Sequence[StorageRequest]) -> float:
    return pending.left_s if any(request.profile for request in storage) else float("inf")


class StorageDesk(Desk):
    """Drives during one round."""

    phase = "storage"

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        super().__init__(cluster)
        self.policy = policy
        self.drives = Drives(cluster, policy.storage_profiles)
        self.marks = Changes(cluster.size)
        self._times, self._time_of = np.unique(cluster.storage_attach_s, return_inverse=True)
        """What attaching takes, and which of these times is each node's."""
        self.sites = self._sites(cluster)
        self._pools: dict[tuple[int, int, int], int] = {}
        self._pool_list: list[tuple[int, int, int]] = []
        self._options: dict[StorageShape, tuple[int, Options]] = {}
        self._looks: dict[Hashable, StorageOutlook] = {}
        self._pencilled = np.zeros((cluster.size, 2), np.int64)
        self._has_pencilled = False
        self._holds: list[tuple[Integers, StorageShape, bool]] = []
        self._whole: Drives | None = None

    def renew(self, cluster: Cluster) -> None:
        """Begin a round: take up what is free now."""
        super().renew(cluster)
        self.clear_pencil()
        self._pools.clear()
        self._pool_list.clear()
        self._holds.clear()
        self._options.clear()
        if len(self.drives):
            self.drives.load(cluster)
            self._note(np.arange(len(self.drives)))
        self.sites = self._sites(cluster)

    def _sites(self, cluster: Cluster) -> Integers:
        """Return what tells nodes apart as clients: the policy's sites, and what attaching takes."""
        return self.policy.sites(cluster) * len(self._times) + self._time_of

    def _note(self, numbers: Integers) -> None:
        nodes = self.drives.node[numbers]
        self.cluster.kept.changes.note(nodes)
        self.marks.note(nodes)

    # What is there.

    def options(self, shape: StorageShape) -> Options:
        """Return the flavours of ``shape`` for what is free now."""
        found = self._options.get(shape)
        if found is None or found[0] != self.marks.now:
            found = self._options[shape] = (self.marks.now, self.drives.options(shape, self.policy.composition))
        return found[1]

    def shapes_of(self, pending: PendingJob, group: TaskGroup) -> tuple[StorageShape, ...]:
        """Return what each task of the group wants, one shape for each request."""
        subject = self.policy.subject(pending, group) if group.storage else None
        left_s = _left_s(pending, group.storage)
        return tuple(
            StorageShape(
                name=request.name,
                size_bytes=request.size_bytes,
                bytes_per_s=request.bandwidth_bytes_per_s,
                devices=request.devices,
                profile=request.profile,
                left_s=left_s,
                routes=frozenset(request.routes or group.routes),
                subject=subject,
            )
            for request in group.storage
            if not request.volume
        )

    def network_cost(self, places: Integers, site: int, subject: Hashable) -> Integers:
        """Return the cost of the network from ``places`` to clients of one site; ``NO_ARC`` where there is none."""
        site, time = divmod(site, len(self._times))
        cost = self.policy.storage_cost(self.cluster, places, site, float(self._times[time]), subject)
        # What no node has, no node exports.
        return np.where((cost == FORBIDDEN) | self.cluster.fabric.is_pool[places], NO_ARC, cost)

    def moves(self, shape: StorageShape, pair: int) -> list[tuple[int, int, int]]:
        """Return number of drives, units and cost of the flavours that a pair of node and pool could be moved."""
        fabric = self.cluster.fabric
        found = []
        for number in shape.numbers:
            there = self._movable(shape, int(fabric.pool[pair]), int(fabric.node[pair]), number)
            if len(there) < number:
                continue
            composed = self.drives.price(shape, there[:number], self.policy.composition)
            if composed is not None:
                attach_s = fabric.attach_s[pair : pair + 1]
                move = self.policy.drives_move_cost(number, attach_s, shape.subject)
                found.append((number, len(there) // number, composed + int(move[0])))
        return found

    def _movable(self, shape: StorageShape, pool: int, site: int, number: int) -> Integers:
        """Return the unused drives of ``pool`` that are not on ``site``, in the order in which to take them."""
        drives = self.drives
        usable = (
            drives.eligible(shape, number)
            & (drives.sharers == 0)
            & ~drives.stores
            & (drives.pool == pool)
            & (drives.node != site)
        )
        own = np.flatnonzero(usable)
        unused = np.bincount(drives.node[drives.ok & (drives.sharers == 0)], minlength=self.cluster.size)
        held = np.where(self.cluster.fabric.is_pool, 0, unused)[drives.node[own]]
        return own[np.lexsort((own, drives.capacity[own], self.policy.donor_cost(held, shape.subject)))]

    # The phase before asks what to expect.

    def outlook_key(self, pending: PendingJob, group: TaskGroup) -> Hashable | None:
        """Return the shapes of the group's storage."""
        return self.shapes_of(pending, group) or None

    def outlook(self, key: Hashable) -> Outlook:
        """Return for each node whether its own drives would do, or others could serve it."""
        look = self._looks.get(key)
        if look is None:
            if len(self._looks) >= MAX_KEPT_SHAPES:
                self._looks.clear()
            assert isinstance(key, tuple)
            look = self._looks[key] = StorageOutlook(self, key)
        look.write()
        return look

    def near_room(self, key: Hashable, places: Integers) -> Integers:
        """Return how many tasks the drives of ``places`` could still serve beside those pencilled in."""
        near = self.outlook(key).near[places]
        assert isinstance(key, tuple)
        free = np.zeros((self.cluster.size, 2), np.int64)
        np.add.at(free[:, 0], self.drives.node, self.drives.free_bytes.clip(min=0))
        np.add.at(free[:, 1], self.drives.node, self.drives.free_bytes_per_s.clip(min=0))
        spare = (free[places] - self._pencilled[places]).clip(min=0)
        for column, part in enumerate(_whole(key)):
            if part:
                near = np.minimum(near, spare[:, column] // part)
        return near

    def pencil(self, key: Hashable, places: Integers, counts: Integers) -> None:
        """Keep bytes and bandwidth in mind for tasks that phase 1 put beside the drives."""
        assert isinstance(key, tuple)
        self._has_pencilled = True
        np.add.at(self._pencilled, places, counts[:, None] * np.array(_whole(key), np.int64))
        self._pencilled[places] = self._pencilled[places].clip(min=0)
        self.cluster.kept.changes.note(places.copy())

    def clear_pencil(self) -> None:
        """Forget what was kept in mind."""
        if not self._has_pencilled:
            return
        self._has_pencilled = False
        rows = np.flatnonzero(self._pencilled.any(axis=1))
        if len(rows):
            self._pencilled[rows] = 0
            self.cluster.kept.changes.note(rows)

    # The market asks for the network.

    def wants(self, jobs: Jobs, rows: Integers) -> Table:
        """Return one want for each storage request of a group, and node that phase 1 chose."""
        if not any(group.storage for form in jobs.forms for group in form.groups):
            return np.zeros(0, WANT)
        tasks, places = wants_by_node(jobs.awards("compute").of(rows))
        parts = [np.zeros(0, WANT)]
        groups = int(tasks["group"].max(initial=0)) + 1
        kind = jobs.form[tasks["job"]] * groups + tasks["group"]
        for number in np.unique(kind).tolist():
            form = jobs.forms[number // groups]
            shapes = self.shapes_of(form.example, form.groups[number % groups])
            theirs = np.flatnonzero(kind == number)
            sites = places[theirs].tolist()
            for shape in shapes:
                wants = tasks[theirs]
                wants["source"] = [self.source(self.number(self._at(shape, site)), site) for site in sites]
                parts.append(wants)
        wants = np.concatenate(parts)
        return wants[np.lexsort((wants["source"], wants["group"], wants["job"]))]

    def _at(self, shape: StorageShape, site: int) -> StorageShape:
        """Return the shape as it is at ``site``: another one where drives may be moved there."""
        fabric = self.cluster.fabric
        reached = int(fabric.start[site]) < int(fabric.start[site + 1])
        return _sited(shape, site) if Route.RECOMPOSED in shape.routes and reached else shape

    def pools(self, sources: Integers) -> Integers:
        """Return the aggregators that lead to the drives of other nodes, -1 where the network is no route."""
        pools = np.full(len(sources), -1, np.int64)
        shapes, sites = self.split(sources)
        for row, (number, site) in enumerate(zip(shapes.tolist(), sites.tolist(), strict=True)):
            shape = self._shape(number)
            if Route.REMOTE in shape.routes:
                without = -1 if Route.LOCAL in shape.routes else site
                key = (self.number(_sited(shape, ANY_SITE)), int(self.sites[site]), without)
                if key not in self._pools:
                    self._pools[key] = len(self._pool_list)
                    self._pool_list.append(key)
                pools[row] = self._pools[key]
        return pools

    def offers(self, pool: int) -> Sequence[Offer | Later]:
        """Return the flavours at all places, dearer by the network."""
        number, site, without = self._pool_list[pool]
        shape = self._shape(number)
        options = self.options(shape)
        network = self.network_cost(options.place, site, shape.subject)
        offers = []
        for tier in range(len(options.capacity)):
            offer = Offer(tier, options.place)
            possible = (options.capacity[tier] > 0) & (network < NO_ARC) & (options.place != without)
            cost = np.where(possible, options.cost[tier] + np.where(possible, network, 0), 0)
            offer.write(np.arange(len(options.place)), np.where(possible, options.capacity[tier], 0), cost)
            offers.append(offer)
        return offers

    def arcs(self, sources: Integers) -> Table:
        """Return the flavours of the tasks' own nodes, and those that can be moved there."""
        shapes, sites = self.split(sources)
        rows: list[tuple[int, int, int, int, int]] = []
        for source, (number, site) in enumerate(zip(shapes.tolist(), sites.tolist(), strict=True)):
            shape = self._shape(number)
            options = self.options(_sited(shape, ANY_SITE))
            row = int(np.searchsorted(options.place, site))
            if Route.LOCAL in shape.routes and row < len(options.place) and options.place[row] == site:
                for tier in np.flatnonzero(options.capacity[:, row]).tolist():
                    rows.append((source, site, tier, int(options.capacity[tier, row]), int(options.cost[tier, row])))
            if shape.site >= 0:
                rows += self._moving_arcs(source, shape)
        arcs = np.zeros(len(rows), ARC)
        for name, column in zip(ARC.names or (), zip(*rows, strict=True), strict=False):
            arcs[name] = column
        return arcs

    def _moving_arcs(self, source: int, shape: StorageShape) -> list[tuple[int, int, int, int, int]]:
        fabric = self.cluster.fabric
        rows = []
        for pair in range(int(fabric.start[shape.site]), int(fabric.start[shape.site + 1])):
            moves = self.moves(_sited(shape, ANY_SITE), pair)
            if moves:
                # The cheapest: where it is refused, what is left is offered next time.
                number, units, cost = min(moves, key=lambda move: (move[2], move[0]))
                rows.append((source, int(fabric.row[fabric.pool[pair]]), min(number, FAR), units, cost))
        return rows

    def take(self, shape: int, places: Integers, tiers: Integers, counts: Integers) -> tuple[Integers, Integers]:
        """Reserve units one by one, each with its part on each of its drives."""
        what = self._shape(shape)
        plain = _sited(what, ANY_SITE)
        taken = np.zeros(len(places), np.int64)
        units = []
        flavours = self._options[plain][1]
        for at, (place, tier, count) in enumerate(zip(places.tolist(), tiers.tolist(), counts.tolist(), strict=True)):
            moved = bool(self.cluster.fabric.is_pool[place])
            if not moved:
                row = int(np.searchsorted(flavours.place, place))
                number, is_new = int(flavours.drives[tier, row]), bool(flavours.is_new[tier, row])
            for _ in range(count):
                chosen = self._moved(what, place) if moved else self.drives.choose(plain, place, number, is_new)
                if not len(chosen):
                    break
                self._use(chosen, plain, moved=moved)
                taken[at] += 1
                unit = np.full(self.size(shape), NO_DRIVE, np.int64)
                unit[: len(chosen)] = self.drives.row[chosen]
                units.append(unit)
        return taken, np.concatenate(units) if units else np.zeros(0, np.int64)

    def _moved(self, shape: StorageShape, place: int) -> Integers:
        """Return the drives of the cheapest flavour that the pool at ``place`` can still give."""
        fabric = self.cluster.fabric
        pool = int(np.searchsorted(fabric.row, place))
        first, end = int(fabric.start[shape.site]), int(fabric.start[shape.site + 1])
        pair = first + int(np.flatnonzero(fabric.pool[first:end] == pool)[0])
        plain = _sited(shape, ANY_SITE)
        moves = self.moves(plain, pair)
        if not moves:
            return np.zeros(0, np.int64)
        number = min(moves, key=lambda move: (move[2], move[0]))[0]
        return self._movable(plain, pool, shape.site, number)[:number]

    def size(self, shape: int) -> int:
        """Return as how many drives a unit is kept: the most that it may have."""
        return max(self._shape(shape).numbers)

    def give_back(self, awards: Table, devices: Integers) -> None:
        """Free the parts again."""
        start = 0
        shapes, _ = self.split(awards["source"])
        for number, place, count, size in zip(
            shapes.tolist(), awards["place"].tolist(), awards["count"].tolist(), awards["size"].tolist(), strict=True
        ):
            shape = _sited(self._shape(number), ANY_SITE)
            for unit in np.split(devices[start : start + count * size], count):
                chosen = self._numbers_of(unit)
                self._free(chosen, shape, moved=bool(self.cluster.fabric.is_pool[place]))
            start += count * size

    def _numbers_of(self, unit: Integers) -> Integers:
        return np.array([self.drives.index[row] for row in unit[unit != NO_DRIVE].tolist()], np.int64)

    def hold(self, shape: Hashable, award: Table, devices: Integers) -> bool:
        """Take the units whose drives all have room for them."""
        assert isinstance(shape, StorageShape)
        shape = _sited(shape, ANY_SITE)
        complete = True
        for unit in np.split(devices, int(award["count"])):
            chosen = self._numbers_of(unit)
            if not self.drives.eligible(shape, len(chosen))[chosen].all():
                complete = False
                continue
            moved = bool(self.cluster.fabric.is_pool[award["place"]])
            self._use(chosen, shape, moved=moved)
            self._holds.append((chosen, shape, moved))
        return complete

    def end_holds(self, *, release: bool) -> None:
        """Free what was held, or leave it taken."""
        for chosen, shape, moved in self._holds if release else ():
            self._free(chosen, shape, moved=moved)
        self._holds.clear()

    def _use(self, chosen: Integers, shape: StorageShape, *, moved: bool) -> None:
        self.drives.add(chosen, shape, 1)
        if moved:
            # On its way it is nobody else's.
            self.drives.ok[chosen] = False
        self._note(chosen)

    def _free(self, chosen: Integers, shape: StorageShape, *, moved: bool) -> None:
        self.drives.add(chosen, shape, -1)
        if moved:
            self.drives.ok[chosen] = True
        self._note(chosen)

    # People ask.

    def part(self, shape: int, devices: int) -> tuple[str, int, int]:
        """Return the name of the storage, and the part of each of its drives."""
        what = self._shape(shape)
        return what.name, *what.part(devices)

    def reasons(self, awards: Table, first: Mapping[int, Alternatives]) -> Reasons:
        """Name storage, route and place, and the next best one over the network."""
        shapes, sites = self.split(awards["source"])
        place, cost, pool = awards["place"], awards["cost"], awards["pool"]
        kind = np.full(len(awards), NONE_KNOWN)
        other, dearer = np.full(len(awards), -1, np.int64), np.zeros(len(awards), np.int64)
        for number in np.unique(pool).tolist():
            if number in first:
                rows = np.flatnonzero(pool == number)
                found = first[number].beside(place[rows], cost[rows], sites[rows])
                kind[rows], other[rows], dearer[rows] = found
        moved, here = self.cluster.fabric.is_pool[place], place == sites
        route = np.where(moved, 2, np.where(here, 0, 1))

        def text(number: int) -> str:
            number, kind = divmod(number, len(_ENDS))
            shape, route = divmod(number, len(_ROUTES))
            what = self._shape(shape)
            name = literal(f"storage {what.name} of {format_bytes(what.size_bytes)}")
            return f"{name} {_ROUTES[route]} at cost {{1}}{_ENDS[kind]}"

        kinds = (shapes * len(_ROUTES) + route) * len(_ENDS) + kind
        return told(kinds, text, place=place, cost=cost, other=other, other_cost=dearer)

    def misses(self, pending: PendingJob) -> list[Miss]:
        """Return why storage of the job finds no drives."""
        found = []
        for group in pending.job.groups:
            for shape in self.shapes_of(pending, group):
                miss = self._miss(pending, group, shape)
                if miss is not None:
                    found.append(miss)
        return found

    def _miss(self, pending: PendingJob, group: TaskGroup, shape: StorageShape) -> Miss | None:
        def miss(message: str, *, permanent: bool, short_by: int = 0) -> Miss:
            return Miss(phase=self.phase, resource="storage", message=message, short_by=short_by, permanent=permanent)

        if not len(self.drives):
            return miss("no node offers NVMe storage", permanent=True)
        wanted = f"storage {shape.name} of group {group.name}: {format_bytes(shape.size_bytes)}"
        if shape.bytes_per_s:
            wanted += f" with {format_bytes(shape.bytes_per_s)}/s"
        if shape.devices:
            wanted += f" on {shape.devices} drives of one node"
        site = self.cluster.index.get(group.node, -1) if group.node else -1
        if self._whole is None:
            self._whole = Drives(self.cluster.idle(), self.policy.storage_profiles)
        for drives, permanent in ((self._whole, True), (self.drives, False)):
            options = drives.options(shape, self.policy.composition)
            units = options.units() * ~self.cluster.fabric.is_pool[options.place]
            if site >= 0 and Route.REMOTE not in shape.routes:
                units = units * (options.place == site)
            movable = Route.RECOMPOSED in shape.routes and bool(len(self.cluster.fabric.node))
            if movable and drives is not self.drives:
                continue
            if movable and self._can_move(shape, site):
                return None
            if not units.any() and not movable:
                tells = "no node has drives for that" if permanent else self._nearest(shape)
                return miss(f"{wanted}; {tells}", permanent=permanent)
            if not units.any() or (int(units.sum()) < group.count and not movable):
                return miss(
                    f"{wanted} for each of {group.count} tasks; there is room for {int(units.sum())}"
                    f"{'' if permanent else ' now'}",
                    permanent=permanent,
                    short_by=group.count - int(units.sum()),
                )
        look = self.outlook(self.outlook_key(pending, group))
        served = (look.near > 0) | look.far(np.arange(self.cluster.size))[0]
        if served[site] if site >= 0 else served.any():
            return None
        return miss(f"{wanted}; there are drives, but no node from which the group may use them now", permanent=False)

    def _nearest(self, shape: StorageShape) -> str:
        """Say what drives have free now that do not suffice: the one with most, or that none may be used at all."""
        drives = self.drives
        usable = np.flatnonzero(drives.ok)
        if not len(usable):
            return "no drive may be used now"
        tells = "no drives have so much free now"
        best = usable[np.lexsort((usable, -drives.free_bytes_per_s[usable], -drives.free_bytes[usable]))[0]]
        has = format_bytes(max(0, int(drives.free_bytes[best])))
        if shape.bytes_per_s:
            has += f" and {format_bytes(max(0, int(drives.free_bytes_per_s[best])))}/s"
        device = self.cluster.devices[int(drives.row[best])].id
        return f"{tells}: most has {device} of node {self.cluster.names[int(drives.node[best])]}, {has}"

    def _can_move(self, shape: StorageShape, site: int) -> bool:
        fabric = self.cluster.fabric
        pairs = range(len(fabric.node)) if site < 0 else range(int(fabric.start[site]), int(fabric.start[site + 1]))
        return any(self.moves(shape, pair) for pair in pairs)

    def _shape(self, number: int) -> StorageShape:
        shape = self.shapes[number]
        assert isinstance(shape, StorageShape)
        return shape


def _sited(shape: StorageShape, site: int) -> StorageShape:
    if shape.site == site:
        return shape
    return replace(shape, site=site)


def _whole(key: Sequence[StorageShape]) -> tuple[int, int]:
    """Return bytes and bandwidth of all storage of one task."""
    return sum(shape.size_bytes for shape in key), sum(shape.bytes_per_s for shape in key)
