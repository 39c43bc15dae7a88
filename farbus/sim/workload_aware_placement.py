"""The evaluation of "Workload-aware placement strategies to leverage disaggregated resources in the datacenter".

Five nodes with 25 processors, ten NVMe drives in a pool or attached to two of
the nodes, 1,500 workloads of three kinds in three mixes (tables I and II),
earliest deadline first.  :func:`simulate` makes one row of tables III to V.
"""

from __future__ import annotations

import bisect
import functools
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from farbus.errors import InvalidInput
from farbus.scheduler.composition.conventions import Conventions
from farbus.scheduler.composition.performance import Smufin
from farbus.scheduler.composition.policies import DisaggregationAware, FirstFit, PlacementPolicy
from farbus.scheduler.composition.pool import Cluster, Composition, Demand, Drive, Node, Run, Workload
from farbus.sim.engine import Engine

NODES, CORES = 5, 25
DRIVE = Drive(bandwidth=2000, capacity=600)
DRIVES = 10
ATTACHED = {0: 4, 2: 6}
"""Drives by node where they are attached: the authors' layout 7 (the text puts six on the first)."""

WORKLOADS = 1500
PERIOD_S = 3 * 24 * 3600
"""Within which the workloads arrive, at a time factor of 1."""

URGENT_SHARE, URGENT_FACTOR, RELAXED_FACTOR = 0.2, 1.2, 4
"""Share of urgent workloads, and deadlines in base times (equation 5)."""

SEED = 5
"""Of the authors' draws."""

CONSTANT_DRAW = 0.321233
"""-ln(1 - u) for the first draw u of glibc's rand() after srand(5): the authors seed it before each draw.

So all gaps are this part of the mean that was meant, and a Poisson process has the loads of the tables with that mean.
"""

MEASURED_LOAD = 0.7
"""Ideal load with which measuring begins."""

BANDWIDTH_BOUND = Demand(
    kind="bandwidth", execution_s=1600, cores=6, bandwidth=1800, capacity=43, peak_bandwidth=6000, model=Smufin()
)
CAPACITY_BOUND = Demand(kind="capacity", execution_s=800, cores=6, bandwidth=160, capacity=600, peak_bandwidth=160)
COMPUTE_BOUND = Demand(kind="compute", execution_s=900, cores=15)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A mix of workloads, by the thresholds of one uniform draw, and time factors by target load (table II)."""

    name: str
    bandwidth_below: float
    capacity_below: float
    time_factors: dict[float, float]
    """By target load of the processors: the authors' lambda."""


SCENARIOS = (
    Scenario("high-bandwidth", 0.7, 0.8, {0.9: 0.8, 0.8: 1.6, 0.7: 2.0, 0.6: 2.4, 0.5: 2.9}),
    Scenario("high-capacity", 0.1, 0.8, {0.9: 1.0, 0.8: 1.3, 0.7: 1.5, 0.6: 1.8, 0.5: 2.0}),
    Scenario("high-compute", 0.2, 0.3, {0.9: 1.8, 0.8: 2.1, 0.7: 2.5, 0.6: 3.0, 0.5: 3.4}),
)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One row of tables III to V; shares are fractions of 1."""

    processor_load: float
    bandwidth_load: float
    capacity_load: float
    missed: float
    missed_urgent: float
    drives_used: float
    waiting_s: int
    composition_size: float
    sharing: float


def simulate(
    scenario: Scenario, target_load: float, *, aware: bool, attached: bool, conventions: Conventions, seed: int = SEED
) -> Outcome:
    """Run one row: First Fit, or the disaggregation-aware policy if ``aware``; drives in a pool, or ``attached``."""
    workloads = make_workloads(scenario, scenario.time_factors[target_load], conventions=conventions, seed=seed)
    return Simulation(workloads, aware=aware, attached=attached, conventions=conventions).run()


def make_cluster(*, attached: bool) -> Cluster:
    """Return the paper's cluster, idle."""
    if attached:
        return Cluster(tuple(Node(CORES, (DRIVE,) * ATTACHED.get(number, 0)) for number in range(NODES)))
    return Cluster((*(Node(CORES) for _ in range(NODES)), Node(0, (DRIVE,) * DRIVES)))


def make_workloads(
    scenario: Scenario, time_factor: float, *, conventions: Conventions, seed: int = SEED
) -> list[Workload]:
    """Draw the workloads of a scenario: kinds, arrivals in whole seconds, who is urgent."""
    kinds, urgency = _Mersenne(seed), _Mersenne(seed)
    gaps = random.Random(seed)  # noqa: S311 - an experiment's dice
    gap_s = CONSTANT_DRAW * time_factor * PERIOD_S / WORKLOADS
    workloads, arrival = [], 0.0
    for number in range(WORKLOADS):
        draw = kinds.uniform()
        if draw < scenario.bandwidth_below:
            demand = BANDWIDTH_BOUND
        elif draw < scenario.capacity_below:
            demand = CAPACITY_BOUND
        else:
            demand = COMPUTE_BOUND
        if conventions.constant_gaps:
            arrival += math.floor(gap_s)
        else:
            arrival += gaps.expovariate(1 / gap_s)
        second = math.floor(arrival)
        urgent = urgency.uniform() <= URGENT_SHARE
        deadline = math.floor(demand.execution_s * (URGENT_FACTOR if urgent else RELAXED_FACTOR) + second)
        workloads.append(Workload(number=number, demand=demand, arrival=second, deadline=deadline, urgent=urgent))
    return workloads


class _Mersenne:
    """Uniform doubles as C++ makes them of mt19937: two draws of 32 bits, the lower half first."""

    def __init__(self, seed: int) -> None:
        state = [seed]
        for number in range(1, 624):
            state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + number) & 0xFFFFFFFF)
        self._random = random.Random()  # noqa: S311 - an experiment's dice
        self._random.setstate((3, (*state, 624), None))

    def uniform(self) -> float:
        """Return the next one, from 0 up to 1."""
        low = self._random.getrandbits(32)
        return (low + self._random.getrandbits(32) * 2.0**32) / 2.0**64


@dataclass(frozen=True, slots=True)
class Load:
    """Amounts of processors, bandwidth and capacity."""

    cores: int = 0
    bandwidth: int = 0
    capacity: int = 0

    def plus(self, demand: Demand, times: int = 1) -> Load:
        """Return the sum with ``times`` workloads of a kind."""
        return Load(
            self.cores + times * demand.cores,
            self.bandwidth + times * demand.bandwidth,
            self.capacity + times * demand.capacity,
        )

    def shares(self) -> tuple[float, float, float]:
        """Return what part of all that the cluster has this is."""
        return self.cores / ALL.cores, self.bandwidth / ALL.bandwidth, self.capacity / ALL.capacity

    def fits(self) -> bool:
        """Say whether the cluster as a whole has it."""
        return self.cores <= ALL.cores and self.bandwidth <= ALL.bandwidth and self.capacity <= ALL.capacity


ALL = Load(NODES * CORES, DRIVES * DRIVE.bandwidth, DRIVES * DRIVE.capacity)

IDEAL_ENDS, RUN_ENDS, ARRIVALS, LOOK_AGAIN = range(4)
"""Phases of an instant."""


class _Ideal:
    """The ideal scheduler of section IV.B: all resources in one node, first come first served, no sharing."""

    def __init__(self, engine: Engine, *, from_arrival: bool) -> None:
        self.load = Load()
        self.running = 0
        self._engine = engine
        self._from_arrival = from_arrival
        self._waiting: list[Workload] = []

    def arrive(self, workload: Workload) -> None:
        if not self._start(workload):
            self._waiting.append(workload)

    def settle(self) -> None:
        self._waiting = [workload for workload in self._waiting if not self._start(workload)]

    def _start(self, workload: Workload) -> bool:
        load = self.load.plus(workload.demand)
        if not load.fits():
            return False
        self.load = load
        self.running += 1
        now = self._engine.now
        start = workload.arrival if self._from_arrival else now
        ends_at = max(start + workload.demand.execution_s, now + 1)
        self._engine.at(ends_at, lambda: self._end(workload.demand), phase=IDEAL_ENDS)
        return True

    def _end(self, demand: Demand) -> None:
        self.load = self.load.plus(demand, -1)
        self.running -= 1


class Simulation:
    """One run of all workloads under one policy."""

    def __init__(self, workloads: Sequence[Workload], *, aware: bool, attached: bool, conventions: Conventions) -> None:
        self.conventions = conventions
        self.cluster = make_cluster(attached=attached)
        self.engine = Engine()
        self._switch = DisaggregationAware(conventions) if aware else None
        self._first_fit = FirstFit(conventions)
        self._ideal = _Ideal(self.engine, from_arrival=conventions.ideal_from_arrival)
        self._measure = _Measure(conventions)
        self._load = Load()
        self._pending: list[Workload] = []
        """By deadline, then by arrival: earliest deadline first."""
        self._running: set[Run] = set()
        self.ended: list[tuple[Run, int]] = []
        self._to_come = len(workloads)
        for workload in workloads:
            self.engine.at(workload.arrival, functools.partial(self._arrive, workload), phase=ARRIVALS)

    def run(self) -> Outcome:
        """Run to the end of the last workload."""
        self.engine.run(self._settle)
        assert not self._pending
        assert not self._running
        return self._measure.outcome(self.ended)

    def _arrive(self, workload: Workload) -> None:
        self._to_come -= 1
        bisect.insort(self._pending, workload, key=lambda one: (one.deadline, one.number))
        self._ideal.arrive(workload)

    def _await_end(self, run: Run) -> None:
        self.engine.at(math.ceil(run.ends_at), functools.partial(self._end, run), phase=RUN_ENDS)

    def _end(self, run: Run) -> None:
        now = int(self.engine.now)
        if run not in self._running or math.ceil(run.ends_at) != now:
            # Sharers came or went since: another end was announced then.
            return
        self._running.remove(run)
        self.ended.append((run, now))
        self._load = self._load.plus(run.workload.demand, -1)
        self.cluster.end(run)
        if run.composition is not None and not self.conventions.frozen_runs:
            run.composition.retime(now)
            self._sharers_changed(run.composition)

    def _sharers_changed(self, composition: Composition) -> None:
        for other in composition.runs:
            self._await_end(other)

    def _settle(self) -> None:
        now = int(self.engine.now)
        placed = self._schedule(now) if self._pending else 0
        if self._pending:
            self._look_again(now, placed)
        self._ideal.settle()
        going_on = self._to_come > 0 and self._ideal.running > 0
        self._measure.observe(now, self._ideal.load, self._load, self.cluster, going_on=going_on)

    def _policy(self) -> PlacementPolicy:
        _, bandwidth, capacity = self._load.shares()
        return self._first_fit if self._switch is None else self._switch.choose(bandwidth, capacity)

    def _schedule(self, now: int) -> int:
        """Offer every pending workload a place, earliest deadline first; return how many got one."""
        policy = self._policy()
        left: list[Workload] = []
        hopeless: set[tuple[str, int | None]] = set()
        placed = 0
        for workload in self._pending:
            deadline = workload.deadline if now <= workload.deadline else None
            # Two of a kind with one deadline differ in nothing.
            key = (workload.demand.kind, deadline if policy.is_aware and workload.demand.needs_drives else None)
            run = None if key in hopeless else policy.place(self.cluster, workload, now=now, deadline=deadline)
            if run is None:
                hopeless.add(key)
                left.append(workload)
                continue
            hopeless.clear()
            placed += 1
            self._running.add(run)
            self._load = self._load.plus(workload.demand)
            self._await_end(run)
            if run.composition is not None and not self.conventions.frozen_runs:
                self._sharers_changed(run.composition)
        self._pending = left
        return placed

    def _look_again(self, now: int, placed: int) -> None:
        """See to it that what waits is looked at when its chances may have changed by time alone."""
        following = self.engine.next_at
        until = now + PERIOD_S if following is None else int(following)
        if placed:
            until = min(until, now + 1)
        else:
            until = self._policy().next_chance(self.cluster, self._pending, now=now, until=until)
        if following is None or until < following:
            self.engine.at(until, _nothing, phase=LOOK_AGAIN)


def _nothing() -> None:
    """Let an instant come: what settles after it is what matters."""


class _Measure:
    """Averages over the window of section IV.B: from the first high load to the last arrival."""

    def __init__(self, conventions: Conventions) -> None:
        self._conventions = conventions
        self._start: int | None = None
        self._end: int | None = None
        self._since = 0
        self._now: tuple[float, ...] = ()
        self._sums = [0.0] * 6

    def observe(self, now: int, ideal: Load, load: Load, cluster: Cluster, *, going_on: bool) -> None:
        """Take in what holds from ``now`` on."""
        if self._start is None:
            loads = ideal.shares() if self._conventions.starts_at_any_load else ideal.shares()[:1]
            if max(loads) < MEASURED_LOAD:
                return
            self._start = self._since = now
        elif self._end is None:
            for number, value in enumerate(self._now):
                self._sums[number] += value * (now - self._since)
            self._since = now
        if self._end is None and not going_on:
            self._end = now
        self._now = (*load.shares(), *self._drives(cluster))

    def _drives(self, cluster: Cluster) -> tuple[float, float, float]:
        """Return the share of drives in use, drives by composition, workloads by composition."""
        there = list(cluster.compositions)
        drives, runs = sum(len(one.drives) for one in there), sum(len(one.runs) for one in there)
        used = drives / cluster.drives
        if not there:
            return used, 1.0, 0.0
        if self._conventions.whole_averages:
            return used, drives // len(there), runs // len(there)
        return used, drives / len(there), runs / len(there)

    def outcome(self, ended: Iterable[tuple[Run, int]]) -> Outcome:
        """Return the averages, and what became of the workloads that arrived since measuring began."""
        if self._start is None or self._end is None:
            raise InvalidInput(f"no load reached {MEASURED_LOAD}: there is nothing to measure")
        measured = [(run, end) for run, end in ended if run.workload.arrival >= self._start]
        missed = [run for run, end in measured if end > run.workload.deadline]
        seconds = self._end - self._start
        processors, bandwidth, capacity, used, size, sharing = (total / seconds for total in self._sums)
        return Outcome(
            processor_load=processors,
            bandwidth_load=bandwidth,
            capacity_load=capacity,
            missed=len(missed) / len(measured),
            missed_urgent=sum(run.workload.urgent for run in missed) / len(measured),
            drives_used=used,
            waiting_s=sum(run.started - run.workload.arrival for run, _ in measured) // len(measured),
            composition_size=size,
            sharing=sharing,
        )
