"""The bound of a round: no plan beats it, no decision claims to; prices help where there is too much to do."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from farbus.model.decision import Decision, NodeView, PendingJob, RoundGap, Snapshot
from farbus.model.device import Route
from farbus.model.node import Resources, amounts_of
from farbus.scheduler.costs.baselines import BestFitPolicy, FirstFitPolicy, RandomPolicy
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.named import POLICIES
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.phases.bound import WAITING
from farbus.scheduler.round import decide
from tests.scheduler.worlds import GIB, check_decision, gpu, group, job, node, pending_jobs, snapshots, world

POLICY = DefaultPolicy()


def gap_of(decision: Decision) -> RoundGap:
    assert decision.report.gap is not None
    return decision.report.gap


def costs_of(snapshot: Snapshot, pending: list[PendingJob]) -> list[list[int | None]]:
    """Return what each job of one task without devices costs on each node as it is now, by name; None: no room."""
    table = columns.from_snapshot(snapshot)
    spare = np.bincount(table.device_node[table.device_free], minlength=table.size)
    rows = []
    for entry in pending:
        wanted = entry.job.groups[0].requests
        demand = amounts_of(wanted)
        cost = POLICY.node_cost(table, np.arange(table.size), table.free, demand, spare, None).tolist()
        fits = (table.free >= np.array(demand)).all(axis=1).tolist()
        rows.append([each if room else None for each, room in zip(cost, fits, strict=True)])
    return rows


def brute_force(snapshot: Snapshot, pending: list[PendingJob]) -> int:
    """Return the least score of all plans."""
    costs = costs_of(snapshot, pending)
    views = sorted(snapshot.nodes, key=lambda view: view.name)
    best = WAITING * len(pending)
    for plan in itertools.product(range(-1, len(views)), repeat=len(pending)):
        total = 0
        left = [[view.free.cpu_milli, view.free.memory_bytes] for view in views]
        for entry, place, row in zip(pending, plan, costs, strict=True):
            cost = row[place] if place >= 0 else WAITING
            if cost is None:
                break
            total += cost
            if place >= 0:
                left[place][0] -= entry.job.groups[0].requests.cpu_milli
                left[place][1] -= entry.job.groups[0].requests.memory_bytes
        else:
            if min(itertools.chain(*left), default=0) >= 0:
                best = min(best, total)
    return best


def solved(snapshot: Snapshot, pending: list[PendingJob], seconds: float) -> tuple[int, int]:
    """Return the score of the best plan that CP-SAT finds, and its bound."""
    model = cp_model.CpModel()
    costs = costs_of(snapshot, pending)
    views = sorted(snapshot.nodes, key=lambda view: view.name)
    uses: list[list[tuple[PendingJob, cp_model.IntVar]]] = [[] for _ in views]
    terms = []
    for entry, row in zip(pending, costs, strict=True):
        waits = model.new_bool_var("")
        choices = [waits]
        terms.append(WAITING * waits)
        for place, cost in enumerate(row):
            if cost is not None:
                chosen = model.new_bool_var("")
                choices.append(chosen)
                uses[place].append((entry, chosen))
                terms.append(cost * chosen)
        model.add_exactly_one(choices)
    for view, used in zip(views, uses, strict=True):
        requests = [(entry.job.groups[0].requests, chosen) for entry, chosen in used]
        model.add(sum(wanted.cpu_milli * chosen for wanted, chosen in requests) <= view.free.cpu_milli)
        model.add(
            sum(wanted.memory_bytes // GIB * chosen for wanted, chosen in requests) <= view.free.memory_bytes // GIB
        )
    model.minimize(sum(terms))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = seconds
    solver.solve(model)
    return round(solver.objective_value), round(solver.best_objective_bound)


def overloaded(nodes: int, tasks: int, seed: int) -> tuple[Snapshot, list[PendingJob]]:
    """Draw nodes half in use and tasks of eight shapes."""
    draw = random.Random(seed)
    views = tuple(
        NodeView(
            name=f"n{number:03}",
            capacity=Resources(cpu_milli=64_000, memory_bytes=256 * GIB),
            free=Resources(cpu_milli=1000 * draw.randint(0, 64), memory_bytes=GIB * draw.randint(0, 256)),
        )
        for number in range(nodes)
    )
    shapes = [(draw.randint(1, 16), draw.randint(1, 64)) for _ in range(8)]
    pending = []
    for number in range(tasks):
        cpus, memory = draw.choice(shapes)
        pending.append(job(f"j{number:04}", cpus=cpus, memory_gib=memory, at=number))
    return Snapshot(nodes=views, devices=()), pending


small_jobs = st.lists(st.tuples(st.sampled_from((0.5, 1, 2, 3, 5)), st.integers(1, 6)), min_size=1, max_size=6).map(
    lambda sizes: [job(f"j{n}", cpus=cpus, memory_gib=memory) for n, (cpus, memory) in enumerate(sizes)]
)


@given(snapshots(most_nodes=3), small_jobs)
@settings(max_examples=80, deadline=None)
def test_bound_is_no_more_than_the_best_plan_and_that_no_more_than_the_score(
    snapshot: Snapshot, pending: list[PendingJob]
) -> None:
    gap = gap_of(decide(snapshot, pending, policy=POLICY))
    assert gap.bound <= brute_force(snapshot, pending) <= gap.score


@given(snapshots(), pending_jobs())
@settings(max_examples=120, deadline=None)
def test_no_score_is_below_its_bound(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    decision = decide(snapshot, pending, policy=POLICY)
    check_decision(snapshot, pending, decision)
    if decision.report.gap is not None:
        assert decision.report.gap.bound <= decision.report.gap.score
        assert 0 <= decision.report.gap.relative <= 1


@given(snapshots(), pending_jobs(most=4))
@settings(max_examples=60, deadline=None)
def test_no_policy_beats_the_bound(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    report = decide(snapshot, pending, policy=FirstFitPolicy()).report
    assert report.gap is None or report.gap.bound <= report.gap.score


def test_score_is_what_the_plan_costs_by_the_prices_at_which_the_round_began() -> None:
    snapshot, pending = overloaded(8, 60, seed=3)
    decision = decide(snapshot, pending, policy=POLICY)
    costs = costs_of(snapshot, pending)
    rows = {entry.job.id: row for row, entry in enumerate(pending)}
    names = sorted(view.name for view in snapshot.nodes)
    score = WAITING * len(decision.misses)
    for placement in decision.placements:
        cost = costs[rows[placement.job]][names.index(placement.tasks[0].node)]
        assert cost is not None
        score += cost
    assert gap_of(decision).score == score


def test_a_round_with_room_for_all_is_proved_to_be_the_best() -> None:
    world = Snapshot(nodes=(node("a", free_cpus=4), node("b", free_cpus=4)), devices=(gpu("g", "b"),))
    gap = gap_of(decide(world, [job("x", cpus=2), job("y", gpus=1)], policy=POLICY))
    assert gap.score - gap.bound <= 1


def test_tasks_beyond_the_devices_of_the_cluster_are_known_to_wait() -> None:
    world = Snapshot(nodes=(node("a"), node("b")), devices=(gpu("g0", "a"), gpu("g1", "b")))
    gap = gap_of(decide(world, [job(f"j{n}", gpus=1) for n in range(4)], policy=POLICY))
    assert 2 * WAITING <= gap.bound <= gap.score


@pytest.mark.parametrize(("nodes", "tasks", "seed"), [(8, 40, 1), (16, 100, 1), (16, 160, 1), (16, 160, 2)])
def test_bound_beside_cp_sat(nodes: int, tasks: int, seed: int) -> None:
    snapshot, pending = overloaded(nodes, tasks, seed)
    gap = gap_of(decide(snapshot, pending, policy=POLICY))
    best, bound = solved(snapshot, pending, seconds=0.3)
    assert gap.bound <= best
    assert bound <= gap.score


def test_prices_help_where_there_is_too_much_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, pending = overloaded(16, 160, seed=1)
    monkeypatch.setattr("farbus.scheduler.round.ORDERED_ARCS", -1)
    priced = gap_of(decide(snapshot, pending, policy=POLICY))
    monkeypatch.setattr("farbus.scheduler.round.PRICED_TASKS", 0)
    plain = gap_of(decide(snapshot, pending, policy=POLICY))
    assert priced.priced
    assert not plain.priced
    assert priced.score < plain.score
    assert priced.bound >= plain.bound


@given(snapshots(), pending_jobs())
@settings(max_examples=60, deadline=None)
def test_prices_never_make_a_round_worse(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    priced = decide(snapshot, pending, policy=POLICY).report.gap
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("farbus.scheduler.round.PRICED_TASKS", 0)
        plain = decide(snapshot, pending, policy=POLICY).report.gap
    if priced is not None and plain is not None:
        assert priced.score <= plain.score or priced.priced == plain.priced


def test_a_dear_job_of_higher_priority_is_not_left_for_cheap_ones() -> None:
    world = Snapshot(nodes=(node("a", cpus=8),), devices=())
    many = [job(f"small{n}", cpus=1, at=n) for n in range(8)]
    large = job("large", group(cpus=8), priority=1)
    decision = decide(world, [*many, large], policy=POLICY)
    assert [placement.job for placement in decision.placements] == ["large"]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_who_leaves_the_devices_of_its_node_to_another_is_within_the_bound(policy: str) -> None:
    """Both fit one node with one GPU: one of them has its GPU from elsewhere, which no arc of the opening says."""
    snapshot = world(node("n0", cpus=9), node("n1", cpus=1), gpu("g0", "n0"), gpu("g1", "n1"))
    pending = [job("y", group(gpus=1, routes=(Route.LOCAL,), node="n0")), job("x", group(cpus=8, gpus=1), at=1)]
    gap = decide(snapshot, pending, policy=POLICIES[policy]()).report.gap
    assert gap is not None
    assert gap.bound <= gap.score


@given(snapshots(), pending_jobs(), st.integers(0, 9))
@settings(max_examples=100)
def test_no_plan_by_the_same_costs_scores_less_than_a_bound(
    snapshot: Snapshot, pending: list[PendingJob], seed: int
) -> None:
    policies = (DefaultPolicy(), FirstFitPolicy(), BestFitPolicy(), RandomPolicy(seed=seed))
    gaps = [decide(snapshot, pending, policy=policy).report.gap for policy in policies]
    known = [gap for gap in gaps if gap is not None]
    assert max((gap.bound for gap in known), default=0) <= min((gap.score for gap in known), default=0)
