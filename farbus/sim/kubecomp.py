"""The simulations of KubeComp's section VI: where pooled GPUs go, and what fixed ones cost.

The decisions are the paper's own procedure (:mod:`farbus.scheduler.costs.kubecomp`:
equation 1, Algorithm 1), one job after the other, first come first served.  The
paper gives the jobs (table I), five minutes each, the clusters, and for figure
13 the number of jobs and their mean intervals.  It leaves open, and is
assumed here:

* The processors of a simulated node: the 192 of the testbed.
* Intervals and numbers of jobs of figures 11 and 12: :data:`INTERVAL_S` and
  :data:`JOBS`.
* How nodes of equal score are told apart: by lot, as kube-scheduler does.
* How long a reallocation takes: :data:`ATTACH_S` for each GPU, from the
  authors' code, one after the other; the job begins when all have come.
* Figure 12's Helios trace: the five jobs of table I in equal parts stand in.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from farbus.scheduler.costs.kubecomp import choose_donors, choose_node
from farbus.scheduler.costs.policy import Integers
from farbus.sim.engine import Engine

CORES = 192
RUN_S = 300.0
ATTACH_S = 5.0
INTERVAL_S = 30.0
JOBS = 100

TABLE_I = {"A": (80, 1), "B": (40, 1), "C": (40, 2), "D": (40, 4), "E": (40, 8)}
"""Processors and GPUs of each job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which parts of the policy hold; ``pooled`` GPUs can be moved at all."""

    pooled: bool = True
    best_fit: bool = True
    least_demand: bool = True


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job: when it comes, in seconds, and what it wants."""

    at_s: float
    cores: int
    gpus: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the jobs: mean wait in seconds, GPUs that were moved, jobs that could never run."""

    wait_mean_s: float
    reallocated: int
    never: int


def draw(kinds: str, count: int, interval_s: float, *, seed: int) -> list[Arrival]:
    """Draw a Poisson process of ``count`` jobs, of each of ``kinds`` as many, in any order."""
    dice = random.Random(seed)  # noqa: S311 - an experiment's dice
    order = [kinds[number % len(kinds)] for number in range(count)]
    dice.shuffle(order)
    arrivals, now = [], 0.0
    for name in order:
        now += dice.expovariate(1 / interval_s)
        arrivals.append(Arrival(now, *TABLE_I[name]))
    return arrivals


def simulate(
    layout: Sequence[int],
    arrivals: Sequence[Arrival],
    rules: Rules,
    *,
    pools: Sequence[int] = (),
    attach_s: float = ATTACH_S,
    seed: int = 0,
) -> Result:
    """Run jobs on nodes that have ``layout[n]`` GPUs at first, at pool ``pools[n]``, all at one without it."""
    return _Simulation(layout, arrivals, rules, pools, attach_s, seed).run()


class _Simulation:
    def __init__(
        self,
        layout: Sequence[int],
        arrivals: Sequence[Arrival],
        rules: Rules,
        pools: Sequence[int],
        attach_s: float,
        seed: int,
    ) -> None:
        self.engine = Engine()
        self.free = np.array(layout, np.int64)
        """GPUs at each node that nobody uses."""
        self.has = self.free.copy()
        self.cores = np.full(len(layout), CORES, np.int64)
        self.pools = np.array(pools or [0] * len(layout), np.int64)
        self.rules = rules
        self.attach_s = attach_s
        self.waits: list[float] = []
        self.moved = 0
        self.never = 0
        self._dice = random.Random(seed)  # noqa: S311 - an experiment's dice
        self._queue: deque[Arrival] = deque()
        for arrival in arrivals:
            self.engine.at(arrival.at_s, functools.partial(self._queue.append, arrival), phase=1)

    def run(self) -> Result:
        self.engine.run(self._serve)
        assert not self._queue
        return Result(wait_mean_s=sum(self.waits) / max(len(self.waits), 1), reallocated=self.moved, never=self.never)

    def _serve(self) -> None:
        """Start jobs from the front of the queue for as long as there is room."""
        while self._queue:
            job = self._queue[0]
            if not self._possible(job):
                self.never += 1
            elif not self._start(job):
                return
            self._queue.popleft()

    def _possible(self, job: Arrival) -> bool:
        if not self.rules.pooled:
            return bool((self.has >= job.gpus).any())
        return bool(np.bincount(self.pools, weights=self.has).max() >= job.gpus)

    def _start(self, job: Arrival) -> bool:
        eligible = self.cores >= job.cores
        if not self.rules.pooled:
            eligible &= self.free >= job.gpus
        order: Integers = np.array(self._dice.sample(range(len(self.free)), len(self.free)), np.int64)
        node = choose_node(
            job.gpus,
            self.free,
            eligible,
            self.pools,
            best_fit=self.rules.best_fit,
            least_demand=self.rules.least_demand,
            order=order,
        )
        if node < 0:
            return False
        donors = choose_donors(node, job.gpus, self.free, self.pools)
        for donor in donors:
            for stock in (self.free, self.has):
                stock[donor] -= 1
                stock[node] += 1
        self.moved += len(donors)
        self.free[node] -= job.gpus
        self.cores[node] -= job.cores
        begins = self.engine.now + self.attach_s * len(donors)
        self.waits.append(begins - job.at_s)
        self.engine.at(begins + RUN_S, functools.partial(self._end, node, job))
        return True

    def _end(self, node: int, job: Arrival) -> None:
        self.free[node] += job.gpus
        self.cores[node] += job.cores


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of one figure, average over the seeds."""

    figure: str
    setting: str
    policy: str
    wait_mean_s: float
    reallocated: float
    never: float
    """Jobs that no node could ever run."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the experiment found."""

    experiment: str
    seeds: int
    attach_s: float
    rows: list[Row]


RULES_13 = {
    "none": Rules(best_fit=False, least_demand=False),
    "best-fit": Rules(least_demand=False),
    "least-demand": Rules(best_fit=False),
    "both": Rules(),
}
LAYOUTS_11 = {"pooled": (6, 6, 6, 6), "6 each": (6, 6, 6, 6), "4 each": (4, 4, 4, 4), "8 on three": (8, 8, 8, 0)}
MIXES_11 = {"A": "A", "AAAE": "AAAE", "AE": "AE", "AEEE": "AEEE", "E": "E"}
FIXED = (4, 4, 8, 8)
SEEDS = 50
"""Draws of which each figure is the average."""

Tell = Callable[[int, int], None]


def run(*, seeds: int = SEEDS, seed: int = 0, attach_s: float = ATTACH_S, tell: Tell | None = None) -> Report:
    """Run figures 11 to 13, each setting with ``seeds`` seeds from ``seed`` on."""
    rows: list[Row] = []
    settings = [
        *(_figure_13(interval, name) for interval in (30, 60, 120) for name in RULES_13),
        *(_figure_11(mix, name) for mix in MIXES_11 for name in LAYOUTS_11),
        *(_figure_12(pools, pooled) for pools in (1, 2, 4) for pooled in (False, True)),
    ]
    for number, (figure, setting, policy, simulation) in enumerate(settings):
        if tell is not None:
            tell(number, len(settings))
        results = [simulation(each, attach_s) for each in range(seed, seed + seeds)]
        rows.append(
            Row(
                figure=figure,
                setting=setting,
                policy=policy,
                wait_mean_s=sum(result.wait_mean_s for result in results) / seeds,
                reallocated=sum(result.reallocated for result in results) / seeds,
                never=sum(result.never for result in results) / seeds,
            )
        )
    return Report(experiment="kubecomp", seeds=seeds, attach_s=attach_s, rows=rows)


_Simulate = Callable[[int, float], Result]


def _figure_13(interval_s: float, name: str) -> tuple[str, str, str, _Simulate]:
    def simulation(seed: int, attach_s: float) -> Result:
        arrivals = draw("ABCDE", 50, interval_s, seed=seed)
        return simulate((6,) * 5, arrivals, RULES_13[name], attach_s=attach_s, seed=seed)

    return "13", f"mean interval {interval_s:g} s", name, simulation


def _figure_11(mix: str, name: str) -> tuple[str, str, str, _Simulate]:
    def simulation(seed: int, attach_s: float) -> Result:
        arrivals = draw(MIXES_11[mix], JOBS, INTERVAL_S, seed=seed)
        rules = Rules(pooled=name == "pooled")
        return simulate(LAYOUTS_11[name], arrivals, rules, attach_s=attach_s, seed=seed)

    return "11", f"jobs {mix}", name, simulation


def _figure_12(count: int, pooled: bool) -> tuple[str, str, str, _Simulate]:
    def simulation(seed: int, attach_s: float) -> Result:
        arrivals = draw("ABCDE", JOBS * count, INTERVAL_S / count, seed=seed)
        layout = (6,) * 4 if pooled else FIXED
        pools = [number for number in range(count) for _ in layout]
        return simulate(layout * count, arrivals, Rules(pooled=pooled), pools=pools, attach_s=attach_s, seed=seed)

    return "12", f"{count} pools of 24 GPUs", "pooled" if pooled else "fixed 4+4+8+8", simulation
