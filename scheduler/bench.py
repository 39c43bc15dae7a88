"""``farbus bench scheduler``: how long a decision takes, beside simpler ways and in the same run.

A seeded cluster, half in use, with four GPUs on every fourth node; jobs of
eight shapes, half of them with GPUs.  ``decision_ms`` is the median time from
columns to decision, explanations included; ``columns_ms`` what laying a
snapshot out costs, ``take_up_ms`` what it costs where the last one is kept.
References: first fit on the same input, and for the solver alone networkx on
the same network.  ``restart_s`` is explained in
:mod:`farbus.scheduler.restart_bench`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from farbus.model.decision import Decision, DeviceView, NodeView, PendingJob, Snapshot
from farbus.model.device import Device, DeviceKind
from farbus.model.job import Job, Requests, TaskGroup
from farbus.model.node import Node, Resources
from farbus.scheduler import restart_bench
from farbus.scheduler.cluster import ClusterState
from farbus.scheduler.costs.baselines import FirstFitPolicy
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.round import decide_on
from farbus.scheduler.solver import Network, certify, solve
from farbus.scheduler.views import fresh_snapshot

GIB = 2**30
SEED = 20240501
"""Seed of all that is drawn here."""

SHAPES = ((1, 4, 0), (2, 8, 0), (4, 16, 0), (8, 32, 0), (2, 8, 1), (4, 16, 2), (8, 32, 4), (1, 2, 1))
"""Processors, GiB of memory and GPUs of the jobs."""

QUICK_SIZES = ((128, 10), (128, 100), (1000, 100))
FULL_SIZES = (*QUICK_SIZES, (12_500, 10), (12_500, 100), (12_500, 1_000), (12_500, 10_000), (100_000, 100))
"""Nodes and pending jobs."""

QUICK_RESTART_JOBS = 10_000
"""Live jobs of the ledger that a quick run restarts with: making that of a full run takes half a minute."""

FIRST_FIT_LIMIT = 2_000_000
"""First fit looks at nodes times jobs places, in Python; above this product it is left out."""

REPEATS = 5
"""Decisions per median."""


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
        results += _decisions(nodes, pending, repeats=3 if quick else REPEATS)
    results.append(_solver(sources=64 if quick else 128, places=32 if quick else 128))
    results += restart_bench.run(jobs=QUICK_RESTART_JOBS if quick else restart_bench.JOBS)
    return {"bench": "scheduler", "results": results}


def _decisions(nodes: int, pending: int, *, repeats: int) -> list[dict[str, Any]]:
    snapshot, jobs = make_cluster(nodes), make_jobs(pending)
    laid_out, cluster = _timed(lambda: columns.from_snapshot(snapshot), repeats)
    labels = {"nodes": nodes, "pending": pending}
    flow_ms, decision = _timed(lambda: _decide(cluster, jobs, DefaultPolicy(), certified=False), repeats)
    certified_ms, _ = _timed(lambda: _decide(cluster, jobs, DefaultPolicy(), certified=True), repeats)
    first_fit_ms, greedy = 0.0, None
    if nodes * pending <= FIRST_FIT_LIMIT:
        first_fit_ms, greedy = _timed(lambda: _decide(cluster, jobs, FirstFitPolicy(), certified=False), 1)
    rows = [
        _row("decision_ms", flow_ms, "ms", first_fit_ms, reference_name="first fit", **labels),
        _row("certified_decision_ms", certified_ms, "ms", flow_ms, reference_name="without certificate", **labels),
        _row("columns_ms", laid_out, "ms", flow_ms, reference_name="decision", **labels),
        _kept(snapshot, repeats=repeats, **labels),
        _row(
            "placed",
            decision.report.placed,
            "jobs",
            greedy.report.placed if greedy else 0,
            reference_name="first fit",
            solves=decision.report.solves,
            **labels,
        ),
    ]
    if greedy:
        mean = _mean_cost(decision), _mean_cost(greedy)
        rows.append(_row("mean_task_cost", mean[0], "thousandths", mean[1], reference_name="first fit", **labels))
    return rows


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
    used = Requests(cpu_milli=1, memory_bytes=1)
    draw = random.Random(SEED)  # noqa: S311 - a benchmark's dice

    def take_up() -> None:
        kept.of(state.snapshot(0.0))

    times = []
    for _ in range(repeats):
        for name in draw.sample(names, min(CHANGED_NODES, len(names))):
            state.occupy(name, used)
        times.append(_timed(take_up, 1)[0])
    anew, _ = _timed(lambda: columns.from_snapshot(fresh_snapshot(state, 0.0)), repeats)
    labels = {"changed": CHANGED_NODES, **labels}
    return _row("take_up_ms", statistics.median(times), "ms", anew, reference_name="all of it anew", **labels)


def _decide(cluster: columns.Cluster, jobs: list[PendingJob], policy: Policy, *, certified: bool) -> Decision:
    return decide_on(cluster, jobs, policy=policy, certify=certified)


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
    ours, flow = _timed(lambda: solve(network), REPEATS)
    certify(network, flow)
    try:
        import networkx  # noqa: PLC0415 - a development dependency, used here as the reference alone
    except ImportError:
        return _row("solve_ms", ours, "ms", 0.0, reference_name="networkx is not installed", arcs=len(network.tail))
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from((name, {"demand": -int(supply)}) for name, supply in enumerate(network.supply))
    graph.add_edges_from(
        (int(a), int(b), {"capacity": int(capacity), "weight": int(cost)})
        for a, b, capacity, cost in zip(network.tail, network.head, network.capacity, network.cost, strict=True)
    )
    theirs, answer = _timed(lambda: networkx.network_simplex(graph), 1)
    if answer[0] != flow.cost:
        raise AssertionError(f"networkx found cost {answer[0]}, the solver {flow.cost}")
    return _row("solve_ms", ours, "ms", theirs, reference_name="networkx", arcs=len(network.tail))


def _timed(action: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Return the median milliseconds of ``action``, and its last answer."""
    times = []
    answer = None
    for _ in range(repeats):
        started = time.perf_counter()
        answer = action()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times), answer


def _row(name: str, value: float, unit: str, reference: float, **labels: Any) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "reference": round(reference, 3) if reference else None,
        "ratio": round(value / reference, 4) if reference else None,
        **labels,
    }
