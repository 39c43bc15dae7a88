"""One phase at a time: books that balance, exact pruning, least cost by brute force."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.model.decision import PendingJob, Snapshot
from farbus.model.device import Route
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.phases import market
from farbus.scheduler.phases.compute import ComputeDesk, ComputePhase
from farbus.scheduler.phases.device_desk import DeviceDesk
from farbus.scheduler.phases.gpu import GpuPhase
from farbus.scheduler.phases.jobs import Forms, Jobs
from farbus.scheduler.phases.market import Plan, Tally, give_back, serve
from farbus.scheduler.phases.tables import Integers
from farbus.scheduler.round import decide
from farbus.scheduler.solver import solve
from tests.scheduler.worlds import gpu, job, node, pending_jobs, snapshots

POLICY = DefaultPolicy()


def desks(snapshot: Snapshot) -> tuple[ComputeDesk, DeviceDesk]:
    cluster = columns.from_snapshot(snapshot)
    gpus = GpuPhase().open(cluster, POLICY, ())
    compute = ComputePhase().open(cluster, POLICY, (gpus,))
    assert isinstance(gpus, DeviceDesk)
    assert isinstance(compute, ComputeDesk)
    return compute, gpus


def ranked(pending: list[PendingJob]) -> tuple[Jobs, Integers]:
    jobs = Forms((ComputePhase(), GpuPhase())).jobs(POLICY.rank(pending), POLICY)
    return jobs, np.arange(len(pending))


def ids(jobs: Jobs, rows: Integers) -> list[str]:
    return [jobs.pending[row].job.id for row in rows.tolist()]


@given(snapshots(), pending_jobs())
@settings(max_examples=100)
def test_books_balance_when_all_is_given_back(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    compute, gpus = desks(snapshot)
    everywhere = np.arange(compute.cluster.size)
    before = compute.free.copy(), gpus.spare(everywhere)
    jobs, rows = ranked(pending)
    placed = serve(compute, jobs, rows, Tally())
    holding = jobs.awards("compute").table["job"].tolist()
    assert set(holding) <= set(placed.tolist()), "a job that is not served holds nothing"
    gpus.clear_pencil()
    serve(gpus, jobs, placed, Tally())
    give_back(gpus, jobs, rows)
    give_back(compute, jobs, rows)
    gpus.clear_pencil()
    assert np.array_equal(compute.free, before[0])
    assert np.array_equal(gpus.spare(everywhere), before[1])


@given(snapshots(), pending_jobs())
@settings(max_examples=100)
def test_holds_leave_no_trace(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    real, idle = desks(snapshot)[0], ComputePhase().open(columns.from_snapshot(snapshot).idle(), POLICY, ())
    before = real.free.copy()
    jobs, rows = ranked(pending)
    serve(idle, jobs, rows, Tally())
    for award in jobs.awards("compute").table:
        real.hold(idle.shapes[int(idle.split(award["source"])[0])], award, np.zeros(0, np.int64))
    assert (real.free >= 0).all()
    real.end_holds(release=True)
    assert np.array_equal(real.free, before)


@given(snapshots(most_nodes=8), pending_jobs(most=4))
@settings(max_examples=150)
def test_pruned_networks_cost_the_same(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    compute, _ = desks(snapshot)
    if not pending:
        return
    jobs, rows = ranked(pending)
    wants = compute.wants(jobs, rows)
    results = []
    for prune in (True, False):
        plan = Plan(compute, jobs, wants, prune=prune)
        network = plan.network()
        flow = solve(network)
        waiting = flow.units[-len(plan.claims) :]
        # The price of waiting is a step for each tier and one for each rank; the step depends on what was kept.
        job = wants["job"][plan.claims]
        ranks = np.unique(-job, return_inverse=True)[1]
        left = np.bincount(jobs.tier[job], weights=waiting).tolist()
        spent = int(flow.units[: plan.placing] @ network.cost[: plan.placing])
        results.append((left, spent + int(waiting @ ranks)))
    assert results[0] == results[1]


@given(snapshots(most_nodes=8), pending_jobs(most=4))
@settings(max_examples=60, deadline=None)
def test_pruning_is_exact_where_the_desk_knows_the_capacity_of_its_places(
    snapshot: Snapshot, pending: list[PendingJob]
) -> None:
    assert decide(snapshot, pending, policy=POLICY).report.exact


def test_the_report_says_when_pruning_may_not_be_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    # The one shape keeps the fullest nodes, into which the other does not fit.
    world = Snapshot(nodes=tuple(node(f"n{n:02}", free_cpus=1 + n % 4) for n in range(40)), devices=())
    pending = [job("a", cpus=1), job("b", cpus=2)]
    monkeypatch.setattr(ComputeDesk, "capacity", lambda *_: None)
    assert not decide(world, pending, policy=POLICY).report.exact
    assert decide(world, pending[:1], policy=POLICY).report.exact, "one shape sees all there is"


def test_local_devices_that_are_the_cheapest_need_no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Snapshot(
        nodes=(node("a", cpus=3), node("b", cpus=3)),
        devices=tuple(gpu(f"g{name}{number}", name) for name in "ab" for number in range(3)),
    )
    pending = [job(f"j{number}", gpus=1) for number in range(6)]
    solved = []
    monkeypatch.setattr(market, "solve", lambda network: solved.append(network) or solve(network))
    decision = decide(world, pending, policy=POLICY)
    assert len(decision.placements) == 6
    assert decision.report.certified
    assert len(solved) < decision.report.solves


def test_pruning_leaves_most_places_of_a_large_cluster_out() -> None:
    world = Snapshot(nodes=tuple(node(f"n{number:03}") for number in range(500)), devices=())
    compute, _ = desks(world)
    jobs, rows = ranked([job("j", count=3)])
    wants = compute.wants(jobs, rows)
    assert len(Plan(compute, jobs, wants, prune=True).network().tail) < 20
    assert len(Plan(compute, jobs, wants, prune=False).network().tail) > 1000


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=3),
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(((Route.LOCAL,), (Route.REMOTE,), (Route.LOCAL, Route.REMOTE)))),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=150)
def test_gpus_go_where_brute_force_sends_them(gpus_of: list[int], tasks: list[tuple[int, tuple[Route, ...]]]) -> None:
    """One GPU a task: as many served as possible, at the least sum of costs among the served sets of best rank."""
    names = [f"n{number}" for number in range(len(gpus_of))]
    world = Snapshot(
        nodes=tuple(node(name, rack=f"r{number % 2}") for number, name in enumerate(names)),
        devices=tuple(gpu(f"g{n}-{k}", names[n]) for n, count in enumerate(gpus_of) for k in range(count)),
    )
    pending = [
        job(f"j{number}", gpus=1, node=names[site % len(names)], routes=routes, at=number)
        for number, (site, routes) in enumerate(tasks)
    ]
    compute, desk = desks(world)
    jobs, rows = ranked(pending)
    works = np.concatenate([serve(compute, jobs, rows[row : row + 1], Tally()) for row in rows])
    desk.clear_pencil()
    served = serve(desk, jobs, works, Tally())

    table = columns.from_snapshot(world)
    free = np.array(gpus_of, np.int64)
    near = POLICY.near_cost(1, free, None).tolist()

    def options(work: int) -> list[tuple[int, int]]:
        group = jobs.pending[work].job.groups[0]
        site = names.index(group.node)
        far = POLICY.far_cost(table, np.arange(len(names)), 1, free, int(table.rack[site]), None).tolist()
        return [
            (place, near[place] if place == site else far[place])
            for place in range(len(names))
            if (Route.LOCAL if place == site else Route.REMOTE) in group.routes and gpus_of[place]
        ]

    best = (0, 0)
    for picks in itertools.product(*([None, *options(work)] for work in works.tolist())):
        chosen = [pick for pick in picks if pick is not None]
        if all(sum(place == pick[0] for pick in chosen) <= gpus_of[place] for place in range(len(names))):
            best = min(best, (-len(chosen), sum(cost for _, cost in chosen)))
    spent = int(jobs.awards("gpu").table["cost"].sum())
    assert len(served) == -best[0]
    # Among equally many, rank decides before cost does; with all of them served only cost is left.
    if len(served) == len(works):
        assert spent == best[1]


def test_a_partial_gang_gives_way_to_whole_jobs_of_lower_rank() -> None:
    compute, _ = desks(Snapshot(nodes=(node("a", cpus=3),), devices=()))
    jobs, rows = ranked([job("gang", count=4, at=0), job("one", at=1), job("two", at=2)])
    assert ids(jobs, serve(compute, jobs, rows, Tally())) == ["one", "two"]


def test_many_gangs_leave_no_one_in_part() -> None:
    compute, _ = desks(Snapshot(nodes=tuple(node(f"n{n}", cpus=7) for n in range(6)), devices=()))
    jobs, rows = ranked([job(f"j{n:02}", count=2 + n % 5, cpus=1 + n % 3, at=n) for n in range(30)])
    served = serve(compute, jobs, rows, Tally())
    awards = jobs.awards("compute").table
    for row, entry in enumerate(jobs.pending):
        assert awards["count"][awards["job"] == row].sum() in (0, entry.job.groups[0].count)
    assert len(served)
    assert (compute.free >= 0).all()


def test_shapes_of_both_kinds_fill_a_node_and_no_more() -> None:
    # By processors the node takes four of the one, by memory four of the other, but not all eight.
    compute, _ = desks(Snapshot(nodes=(node("a", cpus=8, memory_gib=8),), devices=()))
    jobs, rows = ranked(
        [job(f"c{n}", cpus=2, memory_gib=1) for n in range(4)] + [job(f"m{n}", cpus=1, memory_gib=2) for n in range(4)]
    )
    served = serve(compute, jobs, rows, Tally())
    assert (compute.free >= 0).all()
    assert len(served) >= 4


@pytest.mark.parametrize("package", ["phases", "costs"])
def test_phases_and_costs_know_no_clock_no_io_and_no_loop(package: str) -> None:
    banned = {"asyncio", "time", "datetime", "os", "io", "socket", "subprocess", "pathlib", "logging", "structlog"}
    root = Path(market.__file__).resolve().parents[1]
    for source in sorted((root / package).glob("*.py")):
        for part in ast.walk(ast.parse(source.read_text())):
            if isinstance(part, ast.Import):
                assert not banned & {alias.name.split(".")[0] for alias in part.names}, source.name
            elif isinstance(part, ast.ImportFrom):
                assert (part.module or "").split(".")[0] not in banned, source.name
