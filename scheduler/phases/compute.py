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
from dataclasses import dataclass, field

import msgspec
import numpy as np

from farbus.model.decision import PendingJob
from farbus.model.job import Miss, TaskGroup
from farbus.scheduler.costs.policy import FORBIDDEN, Policy
from farbus.scheduler.explain import compute_miss
from farbus.scheduler.phases.base import (
    ANYWHERE,
    FAR,
    MIXED,
    NEAR,
    NOWHERE,
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
from farbus.scheduler.phases.cluster import CPU, MAX_UNITS, MEMORY, Cluster, fitting


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
        return ComputeDesk(cluster=cluster, policy=policy, later=later)


@dataclass(slots=True)
class ComputeDesk(Desk):
    """Free processors and memory during one round."""

    cluster: Cluster
    policy: Policy
    later: Sequence[Desk]
    free: Integers = field(init=False)
    phase: str = field(default="compute", init=False)
    first: dict[int, Alternatives] = field(default_factory=dict, init=False)
    _holds: list[tuple[int, Integers]] = field(default_factory=list, init=False)
    _sources: dict[tuple[TaskShape, str], Source] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.free = self.cluster.free.copy()

    def wants(self, work: Work) -> list[Want]:
        """Return one want per group of tasks."""
        pending = work.pending
        return [
            Want(work, number, self.source(pending, group), group.count)
            for number, group in enumerate(pending.job.groups)
        ]

    def source(self, pending: PendingJob, group: TaskGroup) -> Source:
        """Return where the flow of ``group`` begins."""
        requests = group.requests
        keys = []
        for number, desk in enumerate(self.later):
            key = desk.outlook_key(pending, group)
            if key is not None:
                keys.append((number, key))
        labels = tuple(sorted(group.labels.items())) if group.labels else ()
        subject = self.policy.subject(pending, group)
        shape = TaskShape(requests.cpu_milli, requests.memory_bytes, labels, tuple(keys), subject)
        known = self._sources.get((shape, group.node))
        if known is None:
            if group.node:
                known = Source(shape, self.cluster.index.get(group.node, NOWHERE))
            else:
                known = Source(shape, ANYWHERE, len(self._sources))
            self._sources[shape, group.node] = known
        return known

    def offers(self, source: Source) -> Sequence[Offer]:
        """Return a near and a far arc to every node where a task fits."""
        shape = source.shape
        assert isinstance(shape, TaskShape)
        return self._offers(shape)

    def arcs(self, source: Source) -> Sequence[Arc]:
        """Return the arcs of a group that is bound to one node."""
        if source.site < 0:
            return ()
        return [
            Arc(source.site, offer.tier, int(offer.capacity[source.site]), int(offer.cost[source.site]))
            for offer in self.offers(source)
            if offer.capacity[source.site] > 0
        ]

    def limit(self, source: Source) -> int:
        """Return the number of tasks that the scarcest later phase could serve."""
        return min((look.total for look in self._outlooks(source.shape)), default=MAX_UNITS)

    def take(self, source: Source, place: int, tier: int, count: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """Reserve processors and memory; near units also pencil the node's devices in."""
        shape = source.shape
        assert isinstance(shape, TaskShape)
        room = self.free[place]
        if shape.cpu_milli:
            count = min(count, int(room[CPU]) // shape.cpu_milli)
        if shape.memory_bytes:
            count = min(count, int(room[MEMORY]) // shape.memory_bytes)
        if tier != FAR and count:
            count = self._pencil_in(shape, place, tier, count)
        room[CPU] -= count * shape.cpu_milli
        room[MEMORY] -= count * shape.memory_bytes
        return count, ()

    def _pencil_in(self, shape: TaskShape, place: int, tier: int, count: int) -> int:
        """Keep the node's devices in mind for the tasks that count on them; return how many tasks can."""
        rooms = [self.later[number].near_room(key, place) for number, key in shape.keys]
        needed = [
            room
            for room, look in zip(rooms, self._outlooks(shape) if tier == MIXED else (None,) * len(rooms), strict=True)
            if look is None or not look.far[place]
        ]
        count = min(count, *needed) if needed else count
        for room, (number, key) in zip(rooms, shape.keys, strict=True):
            if room >= count:
                self.later[number].pencil(key, place, count)
        return count

    def give_back(self, award: Award) -> None:
        """Free processors and memory again."""
        shape = award.source.shape
        assert isinstance(shape, TaskShape)
        self.free[award.place, CPU] += award.count * shape.cpu_milli
        self.free[award.place, MEMORY] += award.count * shape.memory_bytes
        if award.tier != FAR:
            for number, key in shape.keys:
                self.later[number].pencil(key, award.place, -award.count)

    def hold(self, award: Award) -> bool:
        """Take as much of the processors and memory as is free."""
        shape = award.source.shape
        assert isinstance(shape, TaskShape)
        demand = award.count * np.array((shape.cpu_milli, shape.memory_bytes), np.int64)
        kept = np.minimum(self.free[award.place], demand)
        self.free[award.place] -= kept
        self._holds.append((award.place, kept))
        return bool((kept == demand).all())

    def end_holds(self, *, release: bool) -> None:
        """Free what was held, or leave it taken."""
        for place, kept in self._holds if release else ():
            self.free[place] += kept
        self._holds.clear()

    def alternatives(self, award: Award) -> str:
        """Name the next best node."""
        name = self.cluster.names[award.place]
        if award.source.site >= 0:
            return f"{name} because the job names it"
        if award.source.pool is None:
            return f"{name}, where room was kept for the job because it had waited long"
        text = f"{name} at cost {award.cost / 1000:g}"
        first = self.first.get(award.source.pool)
        if first is None:
            return text
        return f"{text} ({first.beside(award, self.cluster.names) or 'the only node with room'})"

    def misses(self, pending: PendingJob) -> list[Miss]:
        """Return why the groups of a job find no node."""
        found = []
        for group in pending.job.groups:
            miss = compute_miss(self.cluster, self.free, group)
            if miss is not None:
                found.append(miss)
        return found

    def _outlooks(self, shape: Hashable) -> list[Outlook]:
        assert isinstance(shape, TaskShape)
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
