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
from farbus.scheduler.phases.base import Desk, Want, Work
from farbus.scheduler.phases.compute import ComputeDesk, ComputePhase
from farbus.scheduler.phases.device import DeviceDesk
from farbus.scheduler.phases.gpu import GpuPhase
from farbus.scheduler.phases.market import Tally, give_back, serve
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


def ranked(pending: list[PendingJob]) -> list[Work]:
    return [Work(entry, rank, tier) for rank, (entry, tier) in enumerate(POLICY.rank(pending))]


@given(snapshots(), pending_jobs())
@settings(max_examples=100)
def test_books_balance_when_all_is_given_back(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    compute, gpus = desks(snapshot)
    before = compute.free.copy(), gpus.spare().copy()
    works = ranked(pending)
    placed = serve(compute, works, Tally())
    compute_only = {work for work in works if work.awarded("compute")}
    assert compute_only <= set(placed), "a job that is not served holds nothing"
    gpus.clear_pencil()
    serve(gpus, placed, Tally())
    for work in works:
        give_back(gpus, work)
        give_back(compute, work)
    gpus.clear_pencil()
    assert np.array_equal(compute.free, before[0])
    assert np.array_equal(gpus.spare(), before[1])


@given(snapshots(), pending_jobs())
@settings(max_examples=100)
def test_holds_leave_no_trace(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    real, idle = desks(snapshot)[0], ComputePhase().open(columns.from_snapshot(snapshot).idle(), POLICY, ())
    before = real.free.copy()
    works = ranked(pending)
    serve(idle, works, Tally())
    for work in works:
        for award in work.awarded("compute"):
            real.hold(award)
    assert (real.free >= 0).all()
    real.end_holds(release=True)
    assert np.array_equal(real.free, before)


def wants_of(desk: Desk, works: list[Work]) -> list[Want]:
    return [want for work in works for want in desk.wants(work)]


@given(snapshots(most_nodes=8), pending_jobs(most=4))
@settings(max_examples=150)
def test_pruned_networks_cost_the_same(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    compute, _ = desks(snapshot)
    wants = wants_of(compute, ranked(pending))
    if not wants:
        return
    costs = [solve(market._Plan(compute, wants, prune=prune).network()).cost for prune in (True, False)]
    assert costs[0] == costs[1]


def test_pruning_leaves_most_places_of_a_large_cluster_out() -> None:
    world = Snapshot(nodes=tuple(node(f"n{number:03}") for number in range(500)), devices=())
    compute, _ = desks(world)
    wants = wants_of(compute, ranked([job("j", count=3)]))
    network = market._Plan(compute, wants, prune=True).network()
    assert len(network.tail) < 20
    assert len(market._Plan(compute, wants, prune=False).network().tail) > 1000


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
    works = ranked(pending)
    for work in works:
        for want in compute.wants(work):
            market._solve_rounds(compute, [want], Tally())
    works = [work for work in works if work.awarded("compute")]
    desk.clear_pencil()
    served = serve(desk, works, Tally())

    table = columns.from_snapshot(world)
    free = np.array(gpus_of, np.int64)
    near = POLICY.near_cost(1, free, None).tolist()

    def options(work: Work) -> list[tuple[int, int]]:
        group = work.pending.job.groups[0]
        site = names.index(group.node)
        far = POLICY.far_cost(table, np.arange(len(names)), 1, free, int(table.rack[site]), None).tolist()
        return [
            (place, near[place] if place == site else far[place])
            for place in range(len(names))
            if (Route.LOCAL if place == site else Route.REMOTE) in group.routes and gpus_of[place]
        ]

    best = (0, 0)
    for picks in itertools.product(*([None, *options(work)] for work in works)):
        chosen = [pick for pick in picks if pick is not None]
        if all(sum(place == pick[0] for pick in chosen) <= gpus_of[place] for place in range(len(names))):
            best = min(best, (-len(chosen), sum(cost for _, cost in chosen)))
    spent = sum(award.cost for work in works for award in work.awarded("gpu"))
    assert len(served) == -best[0]
    # Among equally many, rank decides before cost does; with all of them served only cost is left.
    if len(served) == len(works):
        assert spent == best[1]


def test_a_partial_gang_gives_way_to_whole_jobs_of_lower_rank() -> None:
    compute, _ = desks(Snapshot(nodes=(node("a", cpus=3),), devices=()))
    works = ranked([job("gang", count=4, at=0), job("one", at=1), job("two", at=2)])
    assert [work.pending.job.id for work in serve(compute, works, Tally())] == ["one", "two"]


def test_many_gangs_leave_no_one_in_part() -> None:
    compute, _ = desks(Snapshot(nodes=tuple(node(f"n{n}", cpus=7) for n in range(6)), devices=()))
    works = ranked([job(f"j{n:02}", count=2 + n % 5, cpus=1 + n % 3, at=n) for n in range(30)])
    served = serve(compute, works, Tally())
    for work in works:
        assert sum(award.count for award in work.awarded("compute")) in (0, work.pending.job.groups[0].count)
    assert served
    assert (compute.free >= 0).all()


def test_shapes_of_both_kinds_fill_a_node_and_no_more() -> None:
    # By processors the node takes four of the one, by memory four of the other, but not all eight.
    compute, _ = desks(Snapshot(nodes=(node("a", cpus=8, memory_gib=8),), devices=()))
    works = ranked(
        [job(f"c{n}", cpus=2, memory_gib=1) for n in range(4)] + [job(f"m{n}", cpus=1, memory_gib=2) for n in range(4)]
    )
    serve(compute, works, Tally())
    assert (compute.free >= 0).all()
    assert len([work for work in works if work.awarded("compute")]) >= 4


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
