"""``farbus bench scheduler``: how long a decision takes, beside simpler ways and in the same run.

A seeded cluster, half in use, with four GPUs on every fourth node; jobs of
eight shapes, half of them with GPUs.  ``decision_ms`` is the time from columns
and waiting jobs to a plan that can be committed: node and devices of each task,
and for each job that waits what it misses, in a round that follows others on the
same nodes, with jobs that have all waited one round more.  ``cold_decision_ms``
is the same after all objects of the process were looked at (a collection of
garbage), which leaves little of a round in the processor's caches: what a round
after a pause takes.  What comes after the plan is measured apart: ``bound_ms`` is score and bound of the round,
``commit_ms`` makes the plan's columns into placements, ``words_ms`` finds for all
tasks why they went where they did and what was next best, and says so.
``first_decision_ms`` is that of a round that knows neither nodes nor jobs;
``columns_ms`` what laying a snapshot out costs, ``take_up_ms`` what it costs
where the last one is kept.  ``full_solve_ms`` is phase 1 alone, for all the
tasks of a cluster at once, in groups.  ``gap`` says how much of the
round's score the best plan could save at most, ``overload_...`` the same where
there is too much to do.  References in the same run: first fit,
the same decision with no arc left out, and for the solver alone networkx on
the same network.  ``cpu_p50`` and ``cpu_p99`` are processor time, which is
what to go by on a machine that others use.  ``life_ms`` is explained in
:mod:`farbus.scheduler.life_bench`, ``restart_s`` in :mod:`farbus.scheduler.restart_bench`.
"""

from __future__ import annotations

import gc
import itertools
import random
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from farbus.model.decision import Decision, DeviceView, NodeView, PendingJob, Snapshot
from farbus.model.device import Device, DeviceKind
from farbus.model.job import Job, Requests, TaskGroup
from farbus.model.node import Node, Resources
from farbus.scheduler import life_bench, restart_bench
from farbus.scheduler.cluster import ClusterState
from farbus.scheduler.collector import collector_paused
from farbus.scheduler.costs.baselines import FirstFitPolicy
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.phases.compute import ComputePhase
from farbus.scheduler.phases.jobs import Forms
from farbus.scheduler.phases.market import Tally, serve
from farbus.scheduler.round import PHASES, Outcome, decide_on, plan_on
from farbus.scheduler.solver import Network, certify, solve
from farbus.scheduler.views import fresh_snapshot

GIB = 2**30
SEED = 20240501
"""Seed of all that is drawn here."""

SHAPES = ((1, 4, 0), (2, 8, 0), (4, 16, 0), (8, 32, 0), (2, 8, 1), (4, 16, 2), (8, 32, 4), (1, 2, 1))
"""Processors, GiB of memory and GPUs of the jobs."""

QUICK_SIZES = ((128, 10), (128, 100), (1000, 100))
FULL_SIZES = (*QUICK_SIZES, *((nodes, pending) for nodes in (12_500, 100_000) for pending in (100, 1_000, 10_000)))
"""Nodes and pending jobs."""

FULL_SOLVE = (12_500, 1_500, 100)
QUICK_FULL_SOLVE = (500, 60, 100)
"""Nodes, jobs and tasks of each."""

OVERLOAD = (128, 1_000)
QUICK_OVERLOAD = (32, 250)
"""Nodes and pending jobs of a round that leaves many over."""

UNPRUNED_LIMIT = 15_000_000
"""Nodes times jobs up to which the decision with all arcs is made too: beyond, it takes many seconds."""

QUICK_RESTART_JOBS = 10_000
"""Live jobs of the ledger that a quick run restarts with: making that of a full run takes half a minute."""

FIRST_FIT_LIMIT = 2_000_000
"""First fit looks at nodes times jobs places, in Python; above this product it is left out."""

AGES = 4
"""Rounds that jobs have waited, in turn, from 0 on: fewer than what has room kept for them."""

REPEATS = 20
"""Decisions per row; the 99th percentile of so few is the slowest of them."""

FEW_REPEATS = 5
"""The same where one takes long."""


def make_cluster(nodes: int, *, seed: int = SEED) -> Snapshot:
    """Draw a cluster of ``nodes`` nodes with 64 processors and 256 GiB each, half of all that in use."""
    draw = random.Random(seed)  # noqa: S311 - a benchmark's dice
    capacity = Resources(cpu_milli=64_000, memory_bytes=256 * GIB)
    views, devices = [], []
    for number in range(nodes):
        name = f"n{number:06}"
        free = Resources(cpu_milli=1000 * draw.randint(0, 64), memory_bytes=GIB * draw.randint(0, 256))
        views.append(NodeView(name=name, capacity=capacity, free=free, rack=f"r{number // 40 % 8}"))
        if number % 4 == 0:
            for slot in range(4):
                gpu = Device(id=f"GPU-{number:06}-{slot}", kind=DeviceKind.GPU, model="A100", memory_bytes=80 * GIB)
                devices.append(DeviceView(device=gpu, node=name, free=draw.random() < 0.5))
    return Snapshot(nodes=tuple(views), devices=tuple(devices))


def make_jobs(count: int, *, seed: int = SEED) -> list[PendingJob]:
    """Draw ``count`` jobs of one task each."""
    draw = random.Random(seed + 1)  # noqa: S311 - a benchmark's dice
    jobs = []
    for number in range(count):
        cpus, memory, gpus = draw.choice(SHAPES)
        requests = Requests(cpu_milli=cpus * 1000, memory_bytes=memory * GIB, gpus=gpus)
        group = TaskGroup(name="main", command=("true",), requests=requests)
        name = f"job-{number:06}"
        jobs.append(PendingJob(job=Job(id=name, name=name, user="u", groups=(group,), submitted_at=float(number))))
    return jobs


def run(*, quick: bool) -> dict[str, Any]:
    """Measure, and return the benchmark's JSON form; ``quick`` keeps to a few seconds."""
    results: list[dict[str, Any]] = []
    for nodes, pending in QUICK_SIZES if quick else FULL_SIZES:
        results += _decisions(nodes, pending, repeats=3 if quick else FEW_REPEATS if pending > 1_000 else REPEATS)
    results += _overload(*(QUICK_OVERLOAD if quick else OVERLOAD))
    results.append(_full_solve(*(QUICK_FULL_SOLVE if quick else FULL_SOLVE), repeats=1 if quick else FEW_REPEATS))
    results.append(_solver(sources=64 if quick else 128, places=32 if quick else 128))
    results.append(_row("peak_memory_mib", _peak_mib(), "MiB", 0.0, reference_name="none"))
    results += life_bench.run(quick=quick)
    results += restart_bench.run(jobs=QUICK_RESTART_JOBS if quick else restart_bench.JOBS)
    return {"bench": "scheduler", "results": results}


def _decisions(nodes: int, pending: int, *, repeats: int) -> list[dict[str, Any]]:
    snapshot, jobs = make_cluster(nodes), make_jobs(pending)
    laid_out = _timed(lambda: columns.from_snapshot(snapshot), FEW_REPEATS)
    cluster, policy, forms = laid_out.answer, DefaultPolicy(), Forms(PHASES)
    labels = {"nodes": nodes, "pending": pending}
    queues = itertools.cycle([_aged(jobs, rounds) for rounds in range(AGES)])

    def decision(*, certify: bool = False, prune: bool = True) -> Outcome:
        with collector_paused():
            return plan_on(cluster, next(queues), policy=policy, certify=certify, prune=prune, forms=forms)

    first = _timed(decision, 1)
    flow = _timed(decision, repeats)
    cold = _timed(decision, repeats, before_each=gc.collect)
    plan = flow.answer
    few = min(repeats, FEW_REPEATS)
    with collector_paused():
        bound = _timed(plan.full_report, few)
        commit = _timed(lambda: list(plan.placed.placements(words=False)), few)
        words = _timed(lambda: plan.placed.find_reasons().words(plan.placed.names), few)
    decided = plan.decision()
    certified = _timed(lambda: decision(certify=True), few)
    unpruned = _timed(lambda: decision(prune=False), 1) if nodes * pending <= UNPRUNED_LIMIT else None
    greedy = None
    if nodes * pending <= FIRST_FIT_LIMIT:
        greedy = _timed(lambda: plan_on(cluster, jobs, policy=FirstFitPolicy(), certify=False), 1)
    placed = decided.report
    rows = [
        flow.row("decision_ms", greedy.median if greedy else 0.0, reference_name="first fit", **labels),
        cold.row("cold_decision_ms", flow.median, reference_name="decision", **labels),
        first.row("first_decision_ms", flow.median, reference_name="decision", **labels),
        bound.row("bound_ms", flow.median, reference_name="decision", **labels),
        commit.row("commit_ms", flow.median, reference_name="decision", **labels),
        words.row("words_ms", flow.median, reference_name="decision", **labels),
        certified.row("certified_decision_ms", flow.median, reference_name="without certificate", **labels),
        laid_out.row("columns_ms", flow.median, reference_name="decision", **labels),
        _kept(snapshot, repeats=FEW_REPEATS, **labels),
        _row(
            "placed",
            placed.placed,
            "jobs",
            greedy.answer.report.placed if greedy else 0,
            reference_name="first fit",
            solves=placed.solves,
            **labels,
        ),
    ]
    if placed.gap is not None:
        gap = placed.gap
        rows.append(
            _row(
                "gap",
                gap.relative,
                "of the score",
                0.0,
                reference_name="none",
                score=gap.score,
                bound=gap.bound,
                **labels,
            )
        )
    if unpruned:
        rows.append(unpruned.row("unpruned_decision_ms", flow.median, reference_name="decision", **labels))
    if greedy:
        mean = _mean_cost(decided), _mean_cost(greedy.answer.decision())
        rows.append(_row("mean_task_cost", mean[0], "thousandths", mean[1], reference_name="first fit", **labels))
    return rows


def _aged(jobs: list[PendingJob], rounds: int) -> list[PendingJob]:
    """Return the jobs as they are after they have waited for some ``rounds``."""
    return [replace(entry, rounds_waited=rounds) for entry in jobs]


def _overload(nodes: int, pending: int) -> list[dict[str, Any]]:
    """Decide on more than there is room for: the score beside first fit's, and how far it is from the bound at most."""
    snapshot, jobs = make_cluster(nodes), make_jobs(pending)
    cluster = columns.from_snapshot(snapshot)
    flow = _timed(lambda: decide_on(cluster, jobs, policy=DefaultPolicy(), certify=False), 1)
    greedy = _timed(lambda: decide_on(cluster, jobs, policy=FirstFitPolicy(), certify=False), 1)
    gap, other = flow.answer.report.gap, greedy.answer.report.gap
    labels = {"nodes": nodes, "pending": pending, "priced": gap.priced}
    return [
        flow.row("overload_ms", greedy.median, reference_name="first fit", **labels),
        _row("overload_score", gap.score, "thousandths", other.score, reference_name="first fit", **labels),
        _row("overload_gap", gap.relative, "of the score", other.relative, reference_name="first fit", **labels),
    ]


def _full_solve(nodes: int, jobs: int, tasks: int, *, repeats: int) -> dict[str, Any]:
    """Time phase 1 for tasks enough to fill most of an idle cluster: network, solves, hand-out, books."""
    cluster = columns.from_snapshot(make_cluster(nodes)).idle()
    draw = random.Random(SEED)  # noqa: S311 - a benchmark's dice
    pending = []
    for number in range(jobs):
        cpus, memory, _ = draw.choice([shape for shape in SHAPES if not shape[2]])
        requests = Requests(cpu_milli=cpus * 1000, memory_bytes=memory * GIB)
        group = TaskGroup(name="main", command=("true",), count=tasks, requests=requests)
        name = f"job-{number:06}"
        pending.append(PendingJob(job=Job(id=name, name=name, user="u", groups=(group,), submitted_at=float(number))))
    policy, phase = DefaultPolicy(), ComputePhase()
    ranked = policy.rank(pending)
    forms = Forms((phase,))

    def solve_all(prune: bool) -> int:
        table = forms.jobs(ranked, policy)
        served = serve(phase.open(cluster, policy, ()), table, np.arange(jobs), Tally(certify=False, prune=prune))
        return len(served)

    pruned, whole = _timed(lambda: solve_all(True), repeats), _timed(lambda: solve_all(False), 1)
    return pruned.row(
        "full_solve_ms",
        whole.median,
        reference_name="all arcs kept",
        nodes=nodes,
        tasks=jobs * tasks,
        placed_tasks=pruned.answer * tasks,
    )


CHANGED_NODES = 100
"""Nodes on which tasks began or ended between two rounds."""


def _kept(snapshot: Snapshot, *, repeats: int, **labels: Any) -> dict[str, Any]:
    """Time what a round needs of the books after :data:`CHANGED_NODES` nodes changed, beside making all of it anew."""
    state = ClusterState()
    devices: defaultdict[str, list[Device]] = defaultdict(list)
    for held in snapshot.devices:
        devices[held.node].append(held.device)
    for number, view in enumerate(snapshot.nodes):
        node = Node(
            name=view.name,
            address="",
            boot_id="",
            agent_version="",
            capacity=view.capacity,
            labels={"rack": view.rack},
            devices=tuple(devices[view.name]),
        )
        record = state.node(view.name)
        record.node, record.session = node, number + 1
        state.take_inventory(node)
    kept = columns.Columns()
    kept.of(state.snapshot(0.0))
    names = [view.name for view in snapshot.nodes]
    used = Resources(cpu_milli=1, memory_bytes=1)
    draw = random.Random(SEED)  # noqa: S311 - a benchmark's dice

    def take_up() -> None:
        kept.of(state.snapshot(0.0))

    times = []
    for _ in range(repeats):
        for name in draw.sample(names, min(CHANGED_NODES, len(names))):
            state.occupy(name, used)
        times.append(_timed(take_up, 1))
    anew = _timed(lambda: columns.from_snapshot(fresh_snapshot(state, 0.0)), repeats)
    both = _Times([each.wall[0] for each in times], [each.cpu[0] for each in times], None)
    return both.row("take_up_ms", anew.median, reference_name="all of it anew", changed=CHANGED_NODES, **labels)


def _mean_cost(decision: Decision) -> float:
    costs = [task.cost for placement in decision.placements for task in placement.tasks]
    return statistics.fmean(costs) if costs else 0.0


def _solver(*, sources: int, places: int) -> dict[str, Any]:
    """Time one solve beside networkx, where that is installed, and check that both find the same cost."""
    rng = np.random.default_rng(SEED)
    tail = np.repeat(np.arange(sources), 8)
    head = sources + rng.integers(0, places, len(tail))
    sink = sources + places
    ends = np.arange(sources)
    rooms = np.arange(sources, sink)
    network = Network(
        tail=np.concatenate((tail, ends, rooms)).astype(np.int64),
        head=np.concatenate((head, np.full(sources, sink), np.full(places, sink))).astype(np.int64),
        capacity=np.concatenate((np.full(len(tail), 4), np.full(sources, 4), np.full(places, 3))).astype(np.int64),
        cost=np.concatenate((rng.integers(1, 1000, len(tail)), np.full(sources, 5000), np.zeros(places))).astype(
            np.int64
        ),
        supply=np.concatenate((np.full(sources, 4), np.zeros(places), [-4 * sources])).astype(np.int64),
    )
    ours = _timed(lambda: solve(network), FEW_REPEATS)
    flow = ours.answer
    certify(network, flow)
    try:
        import networkx  # noqa: PLC0415 - a development dependency, used here as the reference alone
    except ImportError:
        return ours.row("solve_ms", 0.0, reference_name="networkx is not installed", arcs=len(network.tail))
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from((name, {"demand": -int(supply)}) for name, supply in enumerate(network.supply))
    graph.add_edges_from(
        (int(a), int(b), {"capacity": int(capacity), "weight": int(cost)})
        for a, b, capacity, cost in zip(network.tail, network.head, network.capacity, network.cost, strict=True)
    )
    theirs = _timed(lambda: networkx.network_simplex(graph), 1)
    if theirs.answer[0] != flow.cost:
        raise AssertionError(f"networkx found cost {theirs.answer[0]}, the solver {flow.cost}")
    return ours.row("solve_ms", theirs.median, reference_name="networkx", arcs=len(network.tail))


@dataclass(frozen=True, slots=True)
class _Times:
    """Milliseconds of wall and processor time of each repetition, and the last answer."""

    wall: list[float]
    cpu: list[float]
    answer: Any

    @property
    def median(self) -> float:
        """Return the median of wall time."""
        return statistics.median(self.wall)

    def row(self, name: str, reference: float, **labels: Any) -> dict[str, Any]:
        """Return a row whose value is the median, with percentiles of wall and processor time beside it."""
        figures = {
            f"{kind}_{label}": round(float(np.percentile(times, percent, method="nearest")), 3)
            for kind, times in (("wall", self.wall), ("cpu", self.cpu))
            for label, percent in (("p50", 50), ("p99", 99))
        }
        return _row(name, self.median, "ms", reference, **figures, **labels)


def _peak_mib() -> float:
    """Return the most memory that this process had at once; getrusage(2) counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _timed(action: Callable[[], Any], repeats: int, *, before_each: Callable[[], Any] = lambda: None) -> _Times:
    """Do ``action`` over and over; what others left for the collector is none of its time."""
    wall, cpu = [], []
    answer = None
    gc.collect()
    for _ in range(repeats):
        answer = None
        before_each()
        started = time.perf_counter(), time.process_time()
        answer = action()
        wall.append((time.perf_counter() - started[0]) * 1000)
        cpu.append((time.process_time() - started[1]) * 1000)
    return _Times(wall, cpu, answer)


def _row(name: str, value: float, unit: str, reference: float, **labels: Any) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "reference": round(reference, 3) if reference else None,
        "ratio": round(value / reference, 4) if reference else None,
        **labels,
    }
