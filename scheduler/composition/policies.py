"""The paper's placement policies: First Fit, algorithms 1 and 2, and the switch between them (equation 4).

Each looks at a cluster and one workload, and places it or does not.  Time is
an argument: the code is the same under a real clock and a virtual one.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farbus.scheduler.composition.conventions import Conventions
from farbus.scheduler.composition.performance import DRIVE_BANDWIDTH
from farbus.scheduler.composition.pool import Cluster, Composition, Demand, Node, Run, Workload

MAX_SHARERS = 7
"""Workloads with a model that share a composition, at most; the model was measured for six."""

LOW_LOAD, HIGH_LOAD = 0.5, 0.7
"""The thresholds of equation 4."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A composition that has room for one more, and when that one would end if it began now."""

    composition: Composition
    estimate_s: float


class PlacementPolicy(abc.ABC):
    """Where workloads go."""

    name: str
    is_aware: bool
    """Whether it knows models: then what it answers may change while nothing happens."""

    def __init__(self, conventions: Conventions) -> None:
        self.conventions = conventions

    @abc.abstractmethod
    def place(self, cluster: Cluster, workload: Workload, *, now: int, deadline: int | None) -> Run | None:
        """Place a workload and return its run; None, with nothing changed, where it finds no room.

        ``deadline`` is None for a workload that has missed it already.
        """

    def next_chance(self, cluster: Cluster, pending: Sequence[Workload], *, now: int, until: int) -> int:
        """Return the first second before ``until`` at which one of ``pending`` may be placed though nothing happens.

        It is ``until`` where there is none; all of ``pending`` have found no room ``now``.
        """
        del cluster, pending, now
        return until

    def _settle(
        self,
        cluster: Cluster,
        workload: Workload,
        cores_on: Node,
        now: int,
        composition: Composition | None,
        reserved: int,
    ) -> Run:
        """Begin a run, alone or as one more of ``composition``, with ``reserved`` of its bandwidth."""
        demand = workload.demand
        execution_s: float = demand.execution_s
        if composition is not None and demand.model is not None and self.is_aware:
            execution_s = demand.model.execution_s(composition.bandwidth, len(composition.runs) + 1)
        run = Run(workload, cores_on, now, execution_s, now + execution_s, composition, reserved)
        if composition is not None:
            composition.free_capacity -= demand.capacity
        cluster.start(run)
        if composition is not None and not self.conventions.frozen_runs:
            composition.retime(now)
        return run


class FirstFit(PlacementPolicy):
    """The baseline of section IV.C: the first room there is, with no idea of composing or sharing."""

    name = "first fit"
    is_aware = False

    def place(self, cluster: Cluster, workload: Workload, *, now: int, deadline: int | None) -> Run | None:
        """Take the first composition with room, else the first drives that are free."""
        del deadline
        demand = workload.demand
        if not demand.needs_drives:
            cores_on = cluster.first_with_cores(demand.cores)
            return None if cores_on is None else self._settle(cluster, workload, cores_on, now, None, 0)
        composition = next(_with_room(cluster, demand), None) or self._compose(cluster, demand)
        if composition is None:
            return None
        composition.free_bandwidth -= demand.bandwidth
        return self._settle(cluster, workload, composition.cores_on, now, composition, demand.bandwidth)

    def _compose(self, cluster: Cluster, demand: Demand) -> Composition | None:
        for node in cluster.nodes:
            chosen = node.select(demand.bandwidth, demand.capacity) if node.has_cores(demand.cores) else ()
            if chosen:
                cores_on = node if node.cores else cluster.first_with_cores(demand.cores)
                return cluster.compose(node, chosen, cores_on) if cores_on is not None else None
        return None


def _within_reach(cluster: Cluster, demand: Demand) -> Iterator[Composition]:
    """Yield the compositions whose node has the processors."""
    for one in cluster.compositions:
        if one.place.has_cores(demand.cores) and one.cores_on.free_cores >= demand.cores:
            yield one


def _with_room(cluster: Cluster, demand: Demand) -> Iterator[Composition]:
    """Yield those that have bandwidth and capacity left."""
    for one in _within_reach(cluster, demand):
        if one.free_bandwidth >= demand.bandwidth and one.free_capacity >= demand.capacity:
            yield one


@dataclass(frozen=True, slots=True)
class _Option:
    """Free drives of one place, and how good they are."""

    fitness: float
    in_use: bool
    place: Node
    chosen: tuple[int, ...]


class AwarePolicy(PlacementPolicy):
    """What algorithms 1 and 2 share: first a composition that is in use, then a new one."""

    is_aware = True

    def __init__(self, conventions: Conventions) -> None:
        super().__init__(conventions)
        self._openings: dict[str, list[Opening]] = {}
        self._found_at = (-1, -1)

    def place(self, cluster: Cluster, workload: Workload, *, now: int, deadline: int | None) -> Run | None:
        """Join the best composition that keeps all deadlines, else make one."""
        demand = workload.demand
        if not demand.needs_drives:
            cores_on = self._cores(cluster, demand.cores)
            return None if cores_on is None else self._settle(cluster, workload, cores_on, now, None, 0)
        openings = [
            opening
            for opening in self._open(cluster, demand, now)
            if deadline is None or now + opening.estimate_s <= deadline
        ]
        if openings:
            composition = self._best(openings, demand, now).composition
            reserved = demand.bandwidth
            if demand.model is None:
                composition.free_bandwidth -= reserved
            elif not self.conventions.credit_unreserved:
                # Sharers with a model contend for the bandwidth; none of it is set aside for them.
                reserved = 0
            return self._settle(cluster, workload, composition.cores_on, now, composition, reserved)
        option = self._option(cluster, demand, now, deadline)
        cores_on = self._cores(cluster, demand.cores)
        if option is None or cores_on is None:
            return None
        composition = cluster.compose(option.place, option.chosen, option.place if option.place.cores else cores_on)
        reserved = self._reserve(demand, composition)
        composition.free_bandwidth -= reserved
        return self._settle(cluster, workload, composition.cores_on, now, composition, reserved)

    def next_chance(self, cluster: Cluster, pending: Sequence[Workload], *, now: int, until: int) -> int:
        """Return when a deadline passes, which then counts no more, or sharing would no longer break one."""
        for workload in pending:
            if workload.deadline >= now:
                for turn in self._turns(workload.demand):
                    second = math.floor(workload.deadline - turn) + 1
                    if now < second < until:
                        until = second
        for demand in {workload.demand.kind: workload.demand for workload in pending}.values():
            seconds = np.arange(now + 1, until, dtype=np.int64)
            if demand.model is None or not len(seconds):
                continue
            for one in _within_reach(cluster, demand):
                if one.model == demand.model and len(one.runs) < MAX_SHARERS and not self._may_share(one, demand, now):
                    kept = self._keeps_deadlines(one, seconds)
                    if kept.any():
                        until = min(until, int(seconds[kept.argmax()]))
        return until

    def _turns(self, demand: Demand) -> tuple[float, ...]:
        """Return how long before its deadline what a workload is offered changes."""
        return (0,)

    def _open(self, cluster: Cluster, demand: Demand, now: int) -> list[Opening]:
        """Return the compositions that workloads of this kind may join, in order; the same until something changes."""
        if self._found_at != (cluster.changes, now):
            self._found_at = cluster.changes, now
            self._openings.clear()
        found = self._openings.get(demand.kind)
        if found is None:
            if demand.model is None:
                joinable: Iterable[Composition] = _with_room(cluster, demand)
            else:
                joinable = (one for one in _within_reach(cluster, demand) if len(one.runs) < MAX_SHARERS)
            found = self._openings[demand.kind] = [
                Opening(one, self._estimate(one, demand)) for one in joinable if self._may_share(one, demand, now)
            ]
        return found

    def _may_share(self, one: Composition, demand: Demand, now: int) -> bool:
        """Say whether kinds go together, and all keep their deadlines."""
        if one.model is None or demand.model is None:
            return one.model is demand.model
        return bool(self._keeps_deadlines(one, np.array([now], np.int64))[0])

    def _keeps_deadlines(self, one: Composition, seconds: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Say for each second whether one more would leave all who are there their deadlines."""
        model = one.model
        assert model is not None
        execution_s = model.execution_s(one.bandwidth, len(one.runs) + 1)
        kept = np.ones(len(seconds), bool)
        for run in one.runs:
            left = run.ends_at - seconds
            stretched = left / run.execution_s * execution_s
            if self.conventions.whole_numbers:
                # The authors' arithmetic: single precision, then whole seconds.
                share = left.astype(np.float32) / np.float32(run.execution_s)
                stretched = np.trunc(share * np.float32(execution_s)).astype(np.float64)
            kept &= seconds + stretched <= run.workload.deadline
        return kept

    def _estimate(self, one: Composition, demand: Demand) -> float:
        """Return how long a newcomer would run."""
        if demand.model is None:
            return demand.execution_s
        sharers = len(one.runs) + (0 if self.conventions.estimate_alone else 1)
        return demand.model.execution_s(one.bandwidth, sharers)

    def _cores(self, cluster: Cluster, cores: int) -> Node | None:
        """Return the node whose processors a workload gets, where it is free to choose."""
        return cluster.first_with_cores(cores)

    def _reserve(self, demand: Demand, composition: Composition) -> int:
        """Return what the first workload of a composition reserves of its bandwidth."""
        del composition
        return demand.bandwidth

    @abc.abstractmethod
    def _best(self, openings: list[Opening], demand: Demand, now: int) -> Opening:
        """Choose among compositions that are in use."""

    @abc.abstractmethod
    def _option(self, cluster: Cluster, demand: Demand, now: int, deadline: int | None) -> _Option | None:
        """Choose free drives for a new composition."""


class MaximizeComposition(AwarePolicy):
    """Algorithm 1: more drives than asked for, as long as the workload runs faster on them."""

    name = "maximize composition"

    def _best(self, openings: list[Opening], demand: Demand, now: int) -> Opening:
        """Prefer what lengthens the composition's life least; then the tightest fit (equation 1); then the last."""

        def key(entry: tuple[int, Opening]) -> tuple[float, int, int]:
            number, opening = entry
            one = opening.composition
            fitness = (one.free_bandwidth - demand.bandwidth) + (one.free_capacity - demand.capacity)
            return now + opening.estimate_s - one.ends_at, fitness, -number

        return min(enumerate(openings), key=key)[1]

    def _option(self, cluster: Cluster, demand: Demand, now: int, deadline: int | None) -> _Option | None:
        most = max(sum(node.free_drives) for node in cluster.nodes)
        bandwidth = self._fastest(demand, most, now, deadline)
        best: list[_Option] = []
        for node in cluster.nodes:
            if not node.has_cores(demand.cores):
                continue
            chosen = node.select(bandwidth, demand.capacity)
            if not chosen and not self.conventions.one_selection:
                chosen = node.select(demand.bandwidth, demand.capacity)
            if chosen:
                composed = sum(node.drives[number].bandwidth for number in chosen)
                time = demand.model.execution_s(composed, 1) if demand.model else demand.execution_s
                option = _Option(time, not all(node.free_drives), node, chosen)
                # The authors' order: among equals the later place comes first.
                at = next(
                    (
                        number
                        for number, other in enumerate(best)
                        if (option.in_use and not other.in_use) or other.fitness >= option.fitness
                    ),
                    len(best),
                )
                best.insert(at, option)
        return best[0] if best else None

    def _fastest(self, demand: Demand, most: int, now: int, deadline: int | None) -> int:
        """Return the bandwidth up to which each further drive makes it faster (CalculateRequestForMinimalTime).

        One that would miss its deadline on a single drive, or has missed it, gets no more than it asks for.
        """
        best, time = demand.bandwidth, None
        if demand.model is None or deadline is None:
            return best
        for drives in range(1, most + 1):
            bandwidth = drives * DRIVE_BANDWIDTH
            candidate = demand.model.execution_s(bandwidth, 1)
            if bandwidth > demand.peak_bandwidth or now + candidate > deadline:
                break
            if time is not None and candidate >= time:
                break
            best, time = bandwidth, candidate
        return best

    def _turns(self, demand: Demand) -> tuple[float, ...]:
        if demand.model is None:
            return (0,)
        most = demand.peak_bandwidth // DRIVE_BANDWIDTH
        return (0, *(demand.model.execution_s(drives * DRIVE_BANDWIDTH, 1) for drives in range(1, most + 1)))

    def _reserve(self, demand: Demand, composition: Composition) -> int:
        return min(composition.bandwidth, demand.peak_bandwidth)


class MinimizeFragmentation(AwarePolicy):
    """Algorithm 2: leave as little as possible unused beside what is used."""

    name = "minimize fragmentation"

    def _estimate(self, one: Composition, demand: Demand) -> float:
        return demand.execution_s if self.conventions.base_time else super()._estimate(one, demand)

    def _best(self, openings: list[Opening], demand: Demand, now: int) -> Opening:
        return min(openings, key=lambda opening: self._fragmentation(opening.composition, demand))

    def _fragmentation(self, one: Composition, demand: Demand) -> float:
        """Return alpha of equation 2."""
        free = one.cores_on.free_cores
        if self.conventions.whole_numbers:
            if demand.cores >= free:
                return 0
            used = demand.bandwidth // one.bandwidth + demand.capacity // one.capacity
            return 100 - 100 * used // (100 * demand.cores // free)
        used_share = _share(demand.bandwidth, one.free_bandwidth) + _share(demand.capacity, one.free_capacity)
        return (1 - used_share) / (demand.cores / free)

    def _option(self, cluster: Cluster, demand: Demand, now: int, deadline: int | None) -> _Option | None:
        """Take the first place in use with drives that suffice, else the first."""
        options = [
            _Option(0.0, not all(node.free_drives), node, chosen)
            for node in cluster.nodes
            if node.has_cores(demand.cores) and (chosen := node.select(demand.bandwidth, demand.capacity))
        ]
        return next((option for option in options if option.in_use), options[0] if options else None)

    def _cores(self, cluster: Cluster, cores: int) -> Node | None:
        """Return the least used node that has enough: least beta of equation 3."""
        fitting = [node for node in cluster.nodes if node.cores and node.free_cores >= cores]

        def beta(node: Node) -> float:
            free = node.free_cores / node.cores
            # In whole percent, by whole numbers, a node is free or it is not.
            return 1 - (float(free == 1) if self.conventions.whole_numbers else free)

        return min(fitting, key=beta, default=None)


def _share(wanted: int, free: int) -> float:
    """Return the share of what is free that is wanted; all of it where less is free."""
    return wanted / free if free > wanted else float(wanted > 0)


class DisaggregationAware:
    """Equation 4: one of the two policies, by the present load of drives."""

    name = "disaggregation-aware"

    def __init__(self, conventions: Conventions) -> None:
        self._maximize = MaximizeComposition(conventions)
        self._minimize = MinimizeFragmentation(conventions)
        self._conventions = conventions

    def choose(self, bandwidth_load: float, capacity_load: float) -> PlacementPolicy:
        """Return the policy for loads between 0 and more than 1: what running workloads asked for, of all there is."""
        if bandwidth_load <= LOW_LOAD and capacity_load <= LOW_LOAD:
            return self._maximize
        if self._conventions.switch_at_half:
            high = bandwidth_load >= LOW_LOAD and capacity_load < LOW_LOAD
        else:
            high = bandwidth_load >= HIGH_LOAD and capacity_load <= HIGH_LOAD
        return self._maximize if high else self._minimize
