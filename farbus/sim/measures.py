"""What is measured of a replay: waits, use, fragmentation, and what decisions cost.

Averages over time are taken in the *window*: from the moment by which one
percent of the jobs have come to the arrival of the last.  Before it nothing
goes on, after it a few long jobs run on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from farbus.model.device import DeviceKind
from farbus.model.node import DIMENSIONS, Resources
from farbus.scheduler.costs.fgd import Demand, demand_of
from farbus.scheduler.phases.cluster import counted
from farbus.sim.run import Run
from farbus.sim.traces import Submission, Trace

EARLY = 0.01
"""Part of the jobs that come before the window."""

SLOWED = 1.001
"""A job whose run takes so many times what it takes on local devices was slowed down."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the jobs under one policy; times in seconds, shares as fractions of 1."""

    placed: int
    never_placed: int
    """Jobs that no state of the cluster could serve under this policy, or that still waited at the end."""
    wait_mean_s: float
    wait_p50_s: float
    wait_p95_s: float
    wait_p99_s: float
    makespan_s: float
    """From the first arrival to the last end."""
    gpu_allocation: float
    """GPUs that were given to jobs, average over the window."""
    gpu_use: float
    """GPUs that jobs made use of in the trace, where they shared them; average over the window."""
    fragmentation: float
    """Free GPUs that a job drawn from the trace could not use from their own node, of all; average over the window."""
    remote: float
    """Part of the tasks with devices that had remote ones."""
    slowed: int
    """Jobs that ran longer than they would have with local devices and idle links."""
    goals_missed: int
    """Jobs that ended later after their submission than their goal, where they had one."""
    rounds: int
    offered_mean: float
    """Jobs that a round saw."""
    decision_cpu_p50_ms: float
    decision_cpu_p99_ms: float
    decision_cpu_total_s: float
    certified: int
    """Rounds of which every solve was proved to be of least cost."""


class Measures:
    """The books of a replay.  Times must not go backwards."""

    def __init__(self, trace: Trace) -> None:
        arrivals = [each.at_s for each in trace.submissions]
        self.window = arrivals[int(len(arrivals) * EARLY)], arrivals[-1]
        self._first_arrival = arrivals[0]
        self._now = 0.0
        self._gpus_total = sum(view.device.kind == DeviceKind.GPU for view in trace.devices)
        rows = {view.name: row for row, view in enumerate(trace.nodes)}
        held = Counter(view.node for view in trace.devices)
        self._free_gpus = np.array([held[name] for name in rows], np.int64)
        self._capacity = [view.capacity for view in trace.nodes]
        self._room = np.zeros((len(rows), len(DIMENSIONS)), np.int64)
        for row, view in enumerate(trace.nodes):
            self._room[row] = counted(view.capacity, view.free)
        kinds: Counter[Demand] = Counter()
        for each in trace.submissions:
            for group in each.job.groups:
                wanted = group.requests
                if wanted.gpus:
                    kinds[demand_of(wanted)] += group.count
        self._kinds = np.array(list(kinds) or [(*[0] * len(DIMENSIONS), 1)], np.int64)
        weight = np.array(list(kinds.values()) or [1], np.float64)
        self._weight = weight / weight.sum()
        self._fragments = np.zeros(len(rows))
        self._stale = set(range(len(rows)))
        self._taken = 0
        self._used = 0.0
        self._sums = np.zeros(3)
        self._decisions: list[float] = []
        self._offered = 0
        self._certified = 0
        self._tasks = [0, 0]

    def advance(self, now: float) -> None:
        """Count what has held until ``now``."""
        start, end = max(self._now, self.window[0]), min(now, self.window[1])
        self._now = now
        if end > start:
            self._refresh()
            self._sums += (end - start) * np.array((self._taken, self._used, self._fragments.sum()))

    def room(self, row: int, free: Resources) -> None:
        """Note what is free of a node."""
        self._room[row] = counted(self._capacity[row], free)
        self._stale.add(row)

    def gpus(self, row: int, count: int) -> None:
        """Note that ``count`` more GPUs of a node are free."""
        self._free_gpus[row] += count
        self._taken -= count
        self._stale.add(row)

    def used(self, sign: int, submission: Submission) -> None:
        """Note that a job begins (-1) or ends (1) to make use of its GPUs."""
        self._used -= sign * submission.gpus_used

    def started(self, run: Run) -> None:
        """Note how a job was placed."""
        for task in run.placement.tasks:
            if task.devices:
                self._tasks[0] += 1
                self._tasks[1] += any(device.node != task.node for device in task.devices)

    def decided(self, cpu_ms: float, offered: int, *, certified: bool) -> None:
        """Note what a round cost."""
        self._decisions.append(cpu_ms)
        self._offered += offered
        self._certified += certified

    def outcome(self, ended: Sequence[tuple[Run, float]], *, never: int) -> Outcome:
        """Sum up."""
        waits = np.array([run.started - run.submission.at_s for run, _ in ended] or [0.0])
        span = max(self.window[1] - self.window[0], 1e-9) * max(self._gpus_total, 1)
        taken, used, fragments = (self._sums / span).tolist()
        decisions = np.array(self._decisions or [0.0])
        goals = [(run.submission.profile, end - run.submission.at_s) for run, end in ended]
        return Outcome(
            placed=len(ended),
            never_placed=never,
            wait_mean_s=float(waits.mean()),
            wait_p50_s=_percentile(waits, 50),
            wait_p95_s=_percentile(waits, 95),
            wait_p99_s=_percentile(waits, 99),
            makespan_s=max((end for _, end in ended), default=self._first_arrival) - self._first_arrival,
            gpu_allocation=taken,
            gpu_use=used,
            fragmentation=fragments,
            remote=self._tasks[1] / max(self._tasks[0], 1),
            slowed=sum(end - run.started > SLOWED * run.submission.runs_s + 1e-6 for run, end in ended),
            goals_missed=sum(profile is not None and took > profile.goal_s for profile, took in goals),
            rounds=len(self._decisions),
            offered_mean=self._offered / max(len(self._decisions), 1),
            decision_cpu_p50_ms=_percentile(decisions, 50),
            decision_cpu_p99_ms=_percentile(decisions, 99),
            decision_cpu_total_s=float(decisions.sum() / 1000),
            certified=self._certified,
        )

    def _refresh(self) -> None:
        """Find the fragments of the nodes that changed: FGD (ATC 2023), its measure F, for whole GPUs.

        A free GPU is a fragment in the measure in which jobs, drawn as the
        trace has them, would not fit its node.  Jobs without GPUs, for which FGD
        counts all GPUs as fragments, are left out: they add a constant.
        """
        if not self._stale:
            return
        rows = np.fromiter(self._stale, np.int64, len(self._stale))
        self._stale.clear()
        has = np.column_stack((self._room[rows], self._free_gpus[rows]))
        fits = (self._kinds[None, :, :] <= has[:, None, :]).all(axis=2)
        self._fragments[rows] = has[:, -1] * (1 - fits @ self._weight)


def offered_load(trace: Trace) -> float:
    """Return the GPUs that the jobs would hold on average in the window, each from its arrival on, of all there are."""
    arrivals = [each.at_s for each in trace.submissions]
    start, end = arrivals[int(len(arrivals) * EARLY)], arrivals[-1]
    held = sum(
        each.gpus * max(0.0, min(each.at_s + each.runs_s, end) - max(each.at_s, start)) for each in trace.submissions
    )
    return held / max((end - start) * len(trace.devices), 1e-9)


def _percentile(values: np.ndarray[tuple[int], np.dtype[np.float64]], percent: float) -> float:
    return float(np.percentile(values, percent, method="nearest"))
