"""Phase 1: processor and memory.  Decides the node, with an eye on what later phases can bring there.

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

from collections.abc import Hashable, Sequence

import msgspec
import numpy as np

from farbus.model.decision import PendingJob
from farbus.model.job import Miss, TaskGroup
from farbus.scheduler.costs.policy import FORBIDDEN, Policy
from farbus.scheduler.explain import compute_miss
from farbus.scheduler.phases.base import ANYWHERE, FAR, MIXED, NEAR, NOWHERE, Desk, Flags, Offer, Outlook, Phase
from farbus.scheduler.phases.cluster import MAX_UNITS, Cluster, fitting
from farbus.scheduler.phases.jobs import Form, Jobs
from farbus.scheduler.phases.tables import ARC, WANT, Integers, Table, table


class TaskShape(msgspec.Struct, frozen=True):
    """What tells the tasks of phase 1 apart; ``keys`` are those of the later phases' outlooks, by their number."""

    cpu_milli: int
    memory_bytes: int
    labels: tuple[tuple[str, str], ...]
    keys: tuple[tuple[int, Hashable], ...]
    subject: Hashable


class ComputePhase(Phase):
    """Processor and memory, as a plug-in of the round."""

    name = "compute"

    def open(self, cluster: Cluster, policy: Policy, later: Sequence[Desk]) -> Desk:
        """Return the desk for one round."""
        return ComputeDesk(cluster, policy, later)


class ComputeDesk(Desk):
    """Free processors and memory during one round."""

    phase = "compute"

    def __init__(self, cluster: Cluster, policy: Policy, later: Sequence[Desk]) -> None:
        super().__init__(cluster)
        self.policy = policy
        self.later = later
        self.free = cluster.free.copy()
        self._sources: dict[Form, list[int]] = {}
        self._holds: list[tuple[int, Integers]] = []

    def wants(self, jobs: Jobs, rows: Integers) -> Table:
        """Return one want per group of tasks."""
        form = jobs.form[rows]
        parts = [np.zeros(0, WANT)]
        for number in np.unique(form).tolist():
            theirs = rows[form == number]
            kind = jobs.forms[number]
            for group, source in enumerate(self._sources_of(kind)):
                count = kind.groups[group].count
                parts.append(table(WANT, len(theirs), job=theirs, group=group, source=source, count=count))
        wants = np.concatenate(parts)
        return wants[np.lexsort((wants["group"], wants["job"]))]

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
        requests, labels = group.requests, tuple(sorted(group.labels.items()))
        subject = self.policy.subject(pending, group)
        shape = self.number(TaskShape(requests.cpu_milli, requests.memory_bytes, labels, tuple(keys), subject))
        site = self.cluster.index.get(group.node, NOWHERE) if group.node else ANYWHERE
        return int(self.source(shape, site))

    def pools(self, sources: Integers) -> Integers:
        """Return one aggregator per shape; a group that is bound to a node has none."""
        shape, site = self.split(sources)
        return np.where(site == ANYWHERE, shape, -1)

    def offers(self, pool: int) -> Sequence[Offer]:
        """Return a near and a far arc to every node where a task fits."""
        return self._offers(self._shape(pool))

    def arcs(self, sources: Integers) -> Table:
        """Return the arcs of groups that are bound to one node."""
        shape, site = self.split(sources)
        parts = [np.zeros(0, ARC)]
        bound = np.flatnonzero(site >= 0)
        for number in np.unique(shape[bound]).tolist():
            rows = bound[shape[bound] == number]
            for offer in self.offers(number):
                room, cost = offer.capacity[site[rows]], offer.cost[site[rows]]
                arcs = table(ARC, len(rows), source=rows, place=site[rows], tier=offer.tier, capacity=room, cost=cost)
                parts.append(arcs[room > 0])
        arcs = np.concatenate(parts)
        return arcs[np.argsort(arcs["source"], kind="stable")]

    def limit(self, pool: int) -> int:
        """Return the number of tasks that the scarcest later phase could serve."""
        return min((look.total for look in self._outlooks(self._shape(pool))), default=MAX_UNITS)

    def take(self, shape: int, places: Integers, tiers: Integers, counts: Integers) -> tuple[Integers, Integers]:
        """Reserve processors and memory; near units also pencil the nodes' devices in."""
        what = self._shape(shape)
        counts = np.minimum(counts, fitting(self.free[places], what.cpu_milli, what.memory_bytes))
        if what.keys:
            counts = self._pencil_in(what, places, tiers, counts)
        self.free[places] -= counts[:, None] * _demand(what)
        return counts, np.zeros(0, np.int64)

    def _pencil_in(self, shape: TaskShape, places: Integers, tiers: Integers, counts: Integers) -> Integers:
        """Keep the nodes' devices in mind for the tasks that count on them; return how many tasks can."""
        rooms = [self.later[number].near_room(key, places) for number, key in shape.keys]
        mixed = tiers == MIXED
        looks = self._outlooks(shape) if mixed.any() else []
        for number, room in enumerate(rooms):
            needed = tiers != FAR
            if looks:
                needed &= ~(mixed & looks[number].far[places])
            counts = np.where(needed, np.minimum(counts, room), counts)
        for room, (number, key) in zip(rooms, shape.keys, strict=True):
            counted = np.flatnonzero((tiers != FAR) & (room >= counts) & (counts > 0))
            if len(counted):
                self.later[number].pencil(key, places[counted], counts[counted])
        return counts

    def give_back(self, awards: Table, devices: Integers) -> None:
        """Free processors and memory again."""
        del devices
        shapes, _ = self.split(awards["source"])
        for number in np.unique(shapes).tolist():
            shape = self._shape(number)
            theirs = awards[shapes == number]
            np.add.at(self.free, theirs["place"], theirs["count"][:, None] * _demand(shape))
            near = theirs[theirs["tier"] != FAR]
            for desk, key in shape.keys if len(near) else ():
                self.later[desk].pencil(key, near["place"], -near["count"])

    def hold(self, shape: Hashable, award: Table, devices: Integers) -> bool:
        """Take as much of the processors and memory as is free."""
        del devices
        assert isinstance(shape, TaskShape)
        place, demand = int(award["place"]), int(award["count"]) * _demand(shape)
        kept = np.minimum(self.free[place], demand)
        self.free[place] -= kept
        self._holds.append((place, kept))
        return bool((kept == demand).all())

    def end_holds(self, *, release: bool) -> None:
        """Free what was held, or leave it taken."""
        for place, kept in self._holds if release else ():
            self.free[place] += kept
        self._holds.clear()

    def alternatives(self, pool: int, shape: int, site: int, place: int, cost: int) -> str:
        """Name the next best node."""
        del shape
        name = self.cluster.names[place]
        if site >= 0:
            return f"{name} because the job names it"
        if pool < 0:
            return f"{name}, where room was kept for the job because it had waited long"
        text = f"{name} at cost {cost / 1000:g}"
        first = self.first.get(pool)
        if first is None:
            return text
        return f"{text} ({first.beside(place, cost, self.cluster.names) or 'the only node with room'})"

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

    def _offers(self, shape: TaskShape) -> list[Offer]:
        fit = fitting(self.free, shape.cpu_milli, shape.memory_bytes)
        fit[~self.cluster.labelled(shape.labels)] = 0
        looks = self._outlooks(shape)
        used = {number for number, _ in shape.keys}
        spare = np.zeros(self.cluster.size, np.int64)
        for number, desk in enumerate(self.later):
            if number not in used:
                spare += desk.spare()
        demand = (shape.cpu_milli, shape.memory_bytes)
        cost = self.policy.node_cost(self.cluster, self.free, demand, spare, shape.subject)
        fit = np.where(cost == FORBIDDEN, 0, fit)
        near, near_cost = fit, cost
        for look in looks:
            near = np.minimum(near, look.near)
            near_cost = near_cost + look.near_cost
        offers = [Offer(NEAR, near, near_cost)]
        if len(looks) > 1:
            offers.append(self._mixed(fit, cost, near, looks))
        if looks:
            far: Flags = np.ones(self.cluster.size, bool)
            far_cost = cost
            for look in looks:
                far = far & look.far
                far_cost = far_cost + look.far_cost
            taken = sum(offer.capacity for offer in offers)
            offers.append(Offer(FAR, np.where(far, fit - taken, 0), far_cost))
        return offers

    def _mixed(self, fit: Integers, cost: Integers, near: Integers, looks: Sequence[Outlook]) -> Offer:
        """Offer nodes that have what some later phases bring at hand, and are lent the rest."""
        capacity = fit
        possible = np.zeros(self.cluster.size, bool)
        allowed = np.ones(self.cluster.size, bool)
        for look in looks:
            # At hand where it is all that some phase has; else only where there is no other way.
            own = (look.near > 0) & ((near == 0) | ~look.far)
            possible |= own
            allowed &= own | look.far
            capacity = np.where(own, np.minimum(capacity, look.near), capacity)
            cost = cost + np.where(own, look.near_cost, look.far_cost)
        return Offer(MIXED, np.where(possible & allowed, capacity - near, 0), cost)


def _demand(shape: TaskShape) -> Integers:
    return np.array((shape.cpu_milli, shape.memory_bytes), np.int64)
