"""Phase 1: processors, memory and network.  Decides the node, with an eye on what later phases can bring there.

A group of equal tasks is one want.  Its shape is its requests, labels and
what later phases look ahead to; groups of one shape share an aggregator whose
arcs lead to every node where a task fits.  A group bound to a node has
preference arcs to it alone.  Each node has up to three arcs per shape: *near*,
for as many tasks as its own free devices can serve, *far* for the rest, dearer
by what devices from elsewhere cost (convex, hence exact in a flow), and, where
several later phases serve the shape, *mixed* between the two.
This is DRMaestro's translation of preferences between phases, looking forward.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import msgspec
import numpy as np

from farbus.model.decision import PendingJob
from farbus.model.job import Miss, TaskGroup
from farbus.model.node import amounts_of
from farbus.scheduler.costs.policy import FORBIDDEN, Choice, Policy
from farbus.scheduler.phases.base import (
    ANYWHERE,
    FAR,
    MIXED,
    NEAR,
    NEXT_BEST,
    NO_ARC,
    NONE_KNOWN,
    NOWHERE,
    ONLY_ONE,
    WERE_FULL,
    Alternatives,
    Desk,
    Later,
    Offer,
    Outlook,
    Phase,
)
from farbus.scheduler.phases.cluster import MAX_UNITS, NETWORK, NEVER, Cluster, fitting
from farbus.scheduler.phases.jobs import Form, Jobs, both
from farbus.scheduler.phases.misses import compute_miss
from farbus.scheduler.phases.reasons import Reasons, told
from farbus.scheduler.phases.tables import ARC, WANT, Integers, Table, distinct, ranges, table


class TaskShape(msgspec.Struct, frozen=True):
    """What tells the tasks of phase 1 apart; ``keys`` are those of the later phases' outlooks, by their number."""

    demand: tuple[int, ...]
    """Of each of :data:`farbus.model.node.DIMENSIONS`."""
    labels: tuple[tuple[str, str], ...]
    keys: tuple[tuple[int, Hashable], ...]
    subject: Hashable


class ComputePhase(Phase):
    """Processors, memory and network, as a plug-in of the round."""

    name = "compute"

    def open(self, cluster: Cluster, policy: Policy, later: Sequence[Desk]) -> Desk:
        """Return the desk of the last round, brought up to date, or a new one."""
        kept = cluster.kept.desks.get(self.name)
        if isinstance(kept, ComputeDesk) and kept.serves(policy, later):
            kept.renew(cluster)
            return kept
        cluster.kept.desks[self.name] = desk = ComputeDesk(cluster, policy, later)
        return desk


MAX_KEPT_SHAPES = 64
"""Shapes whose arcs are kept, each some arrays as long as the cluster (5 MB for 100,000 nodes); more are found anew."""


class _Arcs:
    """What is kept of one shape: its arcs to all nodes, as of ``moment``.

    ``fit`` and ``cost`` have shape (M,): tasks that each node holds, and what
    each costs before devices.
    """

    def __init__(self, size: int) -> None:
        self.moment = NEVER
        self.fit = np.zeros(size, np.int64)
        self.cost = np.zeros(size, np.int64)
        self.near = Offer(NEAR, np.arange(size))


class ComputeDesk(Desk):
    """Free processors, memory and network during one round."""

    phase = "compute"

    def __init__(self, cluster: Cluster, policy: Policy, later: Sequence[Desk]) -> None:
        super().__init__(cluster)
        self.policy = policy
        self.later = later
        self.room_of_nodes = cluster.room()
        self.room_of_nodes.renew(cluster.free)
        self.free = self.room_of_nodes.free
        self._sources: dict[Form, list[int]] = {}
        self._holds: list[tuple[int, Integers]] = []
        self._arcs: dict[int, _Arcs] = {}
        self._moments = cluster.moment, cluster.kept.changes.now

    def serves(self, policy: Policy, later: Sequence[Desk]) -> bool:
        """Say whether what is kept here is of use with ``policy`` and the desks ``later``."""
        same = len(later) == len(self.later) and all(a is b for a, b in zip(later, self.later, strict=True))
        return same and policy is self.policy and len(self.shapes) <= MAX_KEPT_SHAPES

    def renew(self, cluster: Cluster) -> None:
        """Begin a round: take up what is free now."""
        super().renew(cluster)
        self._sources.clear()
        self._holds.clear()
        # What the last round took, and what the snapshots since then, or before it, say.
        snapshot, change = self._moments
        kept = cluster.kept
        rows = both(kept.changes.since(change), kept.snapshots.since(min(snapshot, cluster.moment)))
        kept.changes.note(self.room_of_nodes.renew(cluster.free, rows))
        self._moments = cluster.moment, kept.changes.now

    def wants(self, jobs: Jobs, rows: Integers) -> Table:
        """Return one want per group of tasks."""
        form = jobs.form[rows]
        number = np.full(len(jobs.forms), -1, np.int64)
        number[form] = 0
        groups: list[tuple[int, int, int]] = []
        first, length = np.zeros((2, len(number)), np.int64)
        for each in np.flatnonzero(number == 0).tolist():
            kind = jobs.forms[each]
            first[each], length[each] = len(groups), len(kind.groups)
            sources = self._sources_of(kind)
            groups += [(row, source, kind.groups[row].count) for row, source in enumerate(sources)]
        many = length[form]
        row = ranges(first[form], many)
        group, source, count = np.array(groups, np.int64).reshape(-1, 3).T
        return table(WANT, len(row), job=np.repeat(rows, many), group=group[row], source=source[row], count=count[row])

    def _sources_of(self, form: Form) -> list[int]:
        found = self._sources.get(form)
        if found is None:
            found = self._sources[form] = [self._source(form.example, group) for group in form.groups]
        return found

    def _source(self, pending: PendingJob, group: TaskGroup) -> int:
        """Return where the flow of ``group`` begins."""
        keys = []
        for number, desk in enumerate(self.later):
            key = desk.outlook_key(pending, group)
            if key is not None:
                keys.append((number, key))
        labels, subject = tuple(sorted(group.labels.items())), self.policy.subject(pending, group)
        shape = self.number(TaskShape(amounts_of(group.requests), labels, tuple(keys), subject))
        site = self.cluster.index.get(group.node, NOWHERE) if group.node else ANYWHERE
        return int(self.source(shape, site))

    def pools(self, sources: Integers) -> Integers:
        """Return one aggregator per shape; a group that is bound to a node has none."""
        shape, site = self.split(sources)
        return np.where(site == ANYWHERE, shape, -1)

    def offers(self, pool: int) -> Sequence[Offer | Later]:
        """Return a near and a far arc to every node where a task fits."""
        shape = self._shape(pool)
        looks = self._outlooks(shape)
        kept = self._arcs.get(pool)
        if kept is None:
            if len(self._arcs) >= MAX_KEPT_SHAPES:
                self._arcs.clear()
            kept = self._arcs[pool] = _Arcs(self.cluster.size)
        changes = self.cluster.kept.changes
        rows = changes.since(kept.moment)
        if len(rows):
            self._write(kept, shape, looks, rows)
        kept.moment = changes.now
        if not looks:
            return (kept.near,)
        # Where several have no arc at all, their sum is beyond an int64.
        floor = min(NO_ARC, sum(look.floor for look in looks))
        far = Later(FAR, floor, lambda: self._far(kept, shape, looks))
        if len(looks) == 1:
            return (kept.near, far)
        return (kept.near, Later(MIXED, 0, lambda: self._mixed(kept, looks)), far)

    def capacity(self, pool: int, places: Integers) -> Integers | None:
        """Return how many tasks fit; :meth:`offers` has brought what is kept up to date."""
        if pool not in self._arcs:
            # The network has more shapes than are kept: those of the first are gone again.
            self.offers(pool)
        fit: Integers = self._arcs[pool].fit[places]
        return fit

    def arcs(self, sources: Integers) -> Table:
        """Return the arcs of groups that are bound to one node."""
        shape, site = self.split(sources)
        parts = [np.zeros(0, ARC)]
        bound = np.flatnonzero(site >= 0)
        if not len(bound):
            return parts[0]
        for number in distinct(shape[bound]).tolist():
            rows = bound[shape[bound] == number]
            for each in self.offers(number):
                offer = each.make() if isinstance(each, Later) else each
                room, cost = offer.capacity[site[rows]], offer.cost[site[rows]]
                arcs = table(ARC, len(rows), source=rows, place=site[rows], tier=offer.tier, capacity=room, cost=cost)
                parts.append(arcs[room > 0])
        arcs = np.concatenate(parts)
        return arcs[np.argsort(arcs["source"], kind="stable")]

    def elsewhere(self, shape: int) -> int:
        """Return the least that any of the later phases would bring from elsewhere for."""
        return min((look.floor for look in self._outlooks(self._shape(shape))), default=NO_ARC)

    def limit(self, pool: int) -> int:
        """Return the number of tasks that the scarcest later phase could serve."""
        return min((look.total for look in self._outlooks(self._shape(pool))), default=MAX_UNITS)

    def room(self, places: Integers) -> Integers:
        """Return processors, memory, network, and the devices of each later phase."""
        devices = [np.broadcast_to(desk.spare(places), len(places)) for desk in self.later]
        return np.concatenate((self.free[places], *(column[:, None] for column in devices)), axis=1)

    def need(self, shape: int, tier: int) -> Integers:
        """Return requests, the node's own devices where a near arc counts on them, and network where a far one does."""
        what = self._shape(shape)
        devices = self.share(shape) if tier == NEAR else np.zeros(len(self.later), np.int64)
        demand = _demand(what)
        demand[NETWORK] += self._far_network(what) if tier == FAR else 0
        return np.concatenate((demand, devices))

    def common(self) -> Integers:
        """Return the devices of each later phase on all nodes."""
        return np.array([desk.spare_total() for desk in self.later], np.int64)

    def share(self, shape: int) -> Integers:
        """Return the devices of each later phase that a task takes."""
        what = self._shape(shape)
        sizes = np.zeros(len(self.later), np.int64)
        for number, key in what.keys:
            sizes[number] = self.later[number].outlook_size(key)
        return sizes

    def take(self, shape: int, places: Integers, tiers: Integers, counts: Integers) -> tuple[Integers, Integers]:
        """Reserve what tasks ask for; near units also pencil the nodes' devices in, far ones the nodes' network."""
        what = self._shape(shape)
        counts = np.minimum(counts, fitting(self.free[places], what.demand))
        lent = self._far_network(what)
        far = np.flatnonzero(tiers == FAR) if lent else np.zeros(0, np.int64)
        if len(far):
            counts[far] = np.minimum(counts[far], self._far_fit(what, lent, places[far]))
        if what.keys:
            counts = self._pencil_in(what, places, tiers, counts)
        self.free[places] -= counts[:, None] * _demand(what)
        self.cluster.kept.changes.note(places)
        if what.demand[NETWORK]:
            self.room_of_nodes.links.note(places)
        if len(far):
            self.room_of_nodes.pencil(places[far], counts[far] * lent)
        return counts, np.zeros(0, np.int64)

    def _far_network(self, shape: TaskShape) -> int:
        """Return what a task with devices from elsewhere alone takes of its node's network for them."""
        return sum(self.later[number].outlook_network(key) for number, key in shape.keys)

    def _far_fit(self, shape: TaskShape, lent: int, nodes: Integers) -> Integers:
        """Return how many tasks with devices from elsewhere the network of each of ``nodes`` has room for."""
        fit: Integers = self.free[nodes, NETWORK] // (shape.demand[NETWORK] + lent)
        return fit

    def _pencil_in(self, shape: TaskShape, places: Integers, tiers: Integers, counts: Integers) -> Integers:
        """Keep the nodes' devices in mind for the tasks that count on them; return how many tasks can."""
        rooms = [self.later[number].near_room(key, places) for number, key in shape.keys]
        mixed = tiers == MIXED
        looks = self._outlooks(shape) if mixed.any() else []
        for number, room in enumerate(rooms):
            needed = tiers != FAR
            if looks:
                needed &= ~(mixed & looks[number].far(places)[0])
            counts = np.where(needed, np.minimum(counts, room), counts)
        for room, (number, key) in zip(rooms, shape.keys, strict=True):
            counted = np.flatnonzero((tiers != FAR) & (room >= counts) & (counts > 0))
            if len(counted):
                self.later[number].pencil(key, places[counted], counts[counted])
        return counts

    def give_back(self, awards: Table, devices: Integers) -> None:
        """Free what was taken again."""
        del devices
        self.cluster.kept.changes.note(awards["place"].copy())
        shapes, _ = self.split(awards["source"])
        for number in distinct(shapes).tolist():
            shape = self._shape(number)
            theirs = awards[shapes == number]
            np.add.at(self.free, theirs["place"], theirs["count"][:, None] * _demand(shape))
            if shape.demand[NETWORK]:
                self.room_of_nodes.links.note(theirs["place"].copy())
            lent = self._far_network(shape)
            far = theirs[theirs["tier"] == FAR] if lent else theirs[:0]
            if len(far):
                self.room_of_nodes.pencil(far["place"].copy(), -far["count"] * lent)
            near = theirs[theirs["tier"] != FAR]
            for desk, key in shape.keys if len(near) else ():
                self.later[desk].pencil(key, near["place"], -near["count"])

    def hold(self, shape: Hashable, award: Table, devices: Integers) -> bool:
        """Take as much of what the tasks ask for as is free."""
        del devices
        assert isinstance(shape, TaskShape)
        place, demand = int(award["place"]), int(award["count"]) * _demand(shape)
        kept = np.minimum(self.free[place], demand)
        self._change(place, -kept)
        self._holds.append((place, kept))
        return bool((kept == demand).all())

    def end_holds(self, *, release: bool) -> None:
        """Free what was held, or leave it taken."""
        for place, kept in self._holds if release else ():
            self._change(place, kept)
        self._holds.clear()

    def _change(self, place: int, by: Integers) -> None:
        self.free[place] += by
        rows = np.array([place])
        self.cluster.kept.changes.note(rows)
        self.room_of_nodes.links.note(rows)

    def clear_pencil(self) -> None:
        """Forget what was kept in mind of the nodes' network."""
        self.room_of_nodes.clear_pencil()

    def reasons(self, awards: Table, first: Mapping[int, Alternatives]) -> Reasons:
        """Name the next best node."""
        sites = self.split(awards["source"])[1]
        place, cost = awards["place"], awards["cost"]
        kind = np.where(sites >= 0, _NAMED, np.where(awards["pool"] < 0, _KEPT, NONE_KNOWN))
        other, dearer = np.full(len(awards), -1, np.int64), np.zeros(len(awards), np.int64)
        pool = np.where(kind == NONE_KNOWN, awards["pool"], -1)
        for number in distinct(pool).tolist():
            if number in first:
                rows = np.flatnonzero(pool == number)
                found = first[number].beside(place[rows], cost[rows], place[rows])
                kind[rows], other[rows], dearer[rows] = found
        if self.policy.choice in (Choice.FIRST, Choice.RANDOM):
            kind[kind == WERE_FULL] = _BLIND
        return told(kind, _REASONS.__getitem__, place=place, cost=cost, other=other, other_cost=dearer)

    def misses(self, pending: PendingJob) -> list[Miss]:
        """Return why the groups of a job find no node."""
        found = []
        for group in pending.job.groups:
            miss = compute_miss(self.cluster, self.free, group)
            if miss is not None:
                found.append(miss)
        return found

    def _shape(self, number: int) -> TaskShape:
        shape = self.shapes[number]
        assert isinstance(shape, TaskShape)
        return shape

    def _outlooks(self, shape: TaskShape) -> list[Outlook]:
        return [self.later[number].outlook(key) for number, key in shape.keys]

    def _write(self, kept: _Arcs, shape: TaskShape, looks: Sequence[Outlook], rows: Integers) -> None:
        """Bring the arcs of a shape to nodes ``rows`` up to date."""
        if shape.labels:
            # The others never had an arc; a job may be the only one to name its labels.
            rows = rows[self.cluster.labelled(shape.labels)[rows]]
            if not len(rows):
                return
        free = self.free[rows]
        used = {number for number, _ in shape.keys}
        spare = np.zeros(len(rows), np.int64)
        for number, desk in enumerate(self.later):
            if number not in used:
                spare += desk.spare(rows)
        demand = shape.demand
        cost = self.policy.node_cost(self.cluster, rows, free, demand, spare, shape.subject)
        fit = fitting(free, demand)
        fit[~self.cluster.labelled(shape.labels)[rows] | (cost == FORBIDDEN)] = 0
        near = cost
        if self.policy.prices_devices:
            devices = np.zeros(len(rows), np.int64)
            for desk in self.later:
                devices += desk.spare(rows)
            taken = sum(look.size for look in looks)
            near = cost + self.policy.devices_cost(self.cluster, rows, free, demand, devices, taken)
            cost = cost + self.policy.devices_cost(self.cluster, rows, free, demand, devices, 0)
        kept.fit[rows], kept.cost[rows] = fit, cost
        cost = near
        for look in looks:
            fit = np.minimum(fit, look.near[rows])
            cost = cost + look.near_cost[rows]
        kept.near.write(rows, fit, cost)

    def _far(self, kept: _Arcs, shape: TaskShape, looks: Sequence[Outlook]) -> Offer:
        """Offer nodes that are lent all that later phases bring."""
        rows = np.flatnonzero(kept.fit > kept.near.capacity)
        capacity, cost = kept.fit[rows] - kept.near.capacity[rows], kept.cost[rows]
        if len(looks) > 1:
            capacity -= self._mixed(kept, looks).capacity[rows]
        lent = sum(look.network for look in looks)
        if lent:
            capacity = np.minimum(capacity, self._far_fit(shape, lent, rows))
        for look in looks:
            far, far_cost = look.far(rows)
            capacity[~far] = 0
            cost += far_cost
        offer = Offer(FAR, np.arange(self.cluster.size))
        offer.write(rows, capacity, cost)
        return offer

    def _mixed(self, kept: _Arcs, looks: Sequence[Outlook]) -> Offer:
        """Offer nodes that have what some later phases bring at hand, and are lent the rest."""
        rows = np.arange(self.cluster.size)
        near, capacity, cost = kept.near.capacity, kept.fit, kept.cost
        possible = np.zeros(len(rows), bool)
        allowed = np.ones(len(rows), bool)
        for look in looks:
            far, far_cost = look.far(rows)
            # At hand where it is all that some phase has; else only where there is no other way.
            own = (look.near > 0) & ((near == 0) | ~far)
            possible |= own
            allowed &= own | far
            capacity = np.where(own, np.minimum(capacity, look.near), capacity)
            cost = cost + np.where(own, look.near_cost, far_cost)
        offer = Offer(MIXED, rows)
        offer.write(rows, np.where(possible & allowed, capacity - near, 0), cost)
        return offer


_NAMED, _KEPT, _BLIND = 4, 5, 6
_REASONS = {
    NONE_KNOWN: "{0} at cost {1}",
    ONLY_ONE: "{0} at cost {1} (the only node with room)",
    NEXT_BEST: "{0} at cost {1} (next best {2} at {3})",
    WERE_FULL: "{0} at cost {1} (cheaper ones such as {2} at {3} were full)",
    _NAMED: "{0} at cost {1} because the job names it",
    _BLIND: "{0} at cost {1} (cheaper ones such as {2} at {3} count for nothing: the policy does not go by cost)",
    _KEPT: "{0} at cost {1}, where room was kept for the job because it had waited long",
}


def _demand(shape: TaskShape) -> Integers:
    return np.array(shape.demand, np.int64)
