"""The bound of rounds with flavours: no plan beats it, beside trying all plans and beside CP-SAT."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from ortools.sat.python import cp_model

from farbus.model.decision import PendingJob, RoundGap, Snapshot
from farbus.model.job import Alternative, GroupVariant, Requests, ServiceRequest, TaskGroup
from farbus.scheduler.costs.baselines import FirstFitPolicy
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.hire import HirePolicy
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.phases.base import NO_ARC, Later
from farbus.scheduler.phases.bound import WAITING
from farbus.scheduler.phases.compute import ComputePhase
from farbus.scheduler.phases.in_network import InNetworkPhase
from farbus.scheduler.phases.jobs import Forms
from farbus.scheduler.round import PHASES, decide
from tests.scheduler.test_hire import switch, with_service
from tests.scheduler.test_phase_bound import overloaded
from tests.scheduler.worlds import GIB, group, job, node, world

Costs = list[list[int | None]]
"""By group and node, in the order of names: what a task costs there as the round begins; None where there is no arc."""

POLICIES = (DefaultPolicy(), HirePolicy(), FirstFitPolicy())


def costs_of(snapshot: Snapshot, entry: PendingJob, policy: Policy) -> Costs:
    """Return what the tasks of each group cost on each node as the round begins."""
    cluster = columns.from_snapshot(snapshot)
    desk = ComputePhase().open(cluster, policy, (InNetworkPhase().open(cluster, policy, ()),))
    jobs = Forms(PHASES).jobs([(entry, 0)], policy)
    found: Costs = []
    for want in desk.wants(jobs, np.zeros(1, np.int64)):
        cost = np.full(cluster.size, NO_ARC, np.int64)
        for each in desk.offers(int(desk.pools(want["source"].reshape(1))[0])):
            offer = each.make() if isinstance(each, Later) else each
            np.minimum.at(cost, offer.place, offer.cost)
        found.append([value if value < NO_ARC else None for value in cost.tolist()])
    return found


def flavours_of(entry: PendingJob) -> list[PendingJob]:
    return [replace(entry, job=entry.job.in_flavour(name)) for name in entry.job.flavours]


def best_of_all(snapshot: Snapshot, pending: list[PendingJob], policy: Policy) -> int:
    """Return the least score of all plans."""
    views = sorted(snapshot.nodes, key=lambda view: view.name)
    at = {view.name: row for row, view in enumerate(views)}
    left = [[view.free.cpu_milli, view.free.memory_bytes, 0] for view in views]
    for device in snapshot.devices:
        left[at[device.node]][2] += device.device.resources.get("stages", 0)
    flavours = [
        [list(zip(each.job.groups, costs_of(snapshot, each, policy), strict=True)) for each in flavours_of(entry)]
        for entry in pending
    ]

    def least(number: int) -> int:
        if number == len(pending):
            return 0
        waits = WAITING * min(sum(tasks.count for tasks, _ in parts) for parts in flavours[number])
        return min(waits + least(number + 1), *(placed(number, parts, 0, 0) for parts in flavours[number]))

    def placed(number: int, parts: list[tuple[TaskGroup, list[int | None]]], first: int, done: int) -> int:
        """Return the least cost with ``parts`` placed, the next task of the first of them from node ``first`` on."""
        if not parts:
            return least(number + 1)
        tasks, costs = parts[0]
        if done == tasks.count:
            return placed(number, parts[1:], 0, 0)
        stages = tasks.service.own["stages"] if tasks.service is not None else 0
        demand = (tasks.requests.cpu_milli, tasks.requests.memory_bytes, stages)
        best = 10**9
        for row in range(first, len(views)):
            cost = costs[row]
            if cost is None or any(has < wants for has, wants in zip(left[row], demand, strict=True)):
                continue
            left[row] = [has - wants for has, wants in zip(left[row], demand, strict=True)]
            # Tasks of one group with a service are on different nodes.
            best = min(best, cost + placed(number, parts, row + bool(stages), done + 1))
            left[row] = [has + wants for has, wants in zip(left[row], demand, strict=True)]
        return best

    return least(0)


def gap_of(snapshot: Snapshot, pending: list[PendingJob], policy: Policy) -> RoundGap:
    gap = decide(snapshot, pending, policy=policy).report.gap
    assert gap is not None, "every round has a bound"
    return gap


@st.composite
def small_worlds(draw: st.DrawFn) -> Snapshot:
    parts = [
        node(f"n{number}", cpus=8, free_cpus=draw(st.integers(0, 8)), free_memory_gib=draw(st.integers(0, 8)))
        for number in range(draw(st.integers(1, 2)))
    ]
    switches = [switch(f"s{n}", resources={"stages": draw(st.integers(0, 5))}) for n in range(draw(st.integers(0, 2)))]
    return world(*parts, *itertools.chain(*switches))


@st.composite
def flavoured_jobs(draw: st.DrawFn) -> list[PendingJob]:
    """Draw jobs with flavour vectors, of one or two decisions, in-network services, alternatives, or none of these."""
    pending = []
    for number in range(draw(st.integers(1, 3))):

        def part(name: str, vector: str) -> TaskGroup:
            sizes = {"cpus": draw(st.integers(1, 4)), "memory_gib": draw(st.integers(0, 3))}
            return group(name, count=draw(st.integers(1, 2)), flavour=vector, **sizes)

        kind = draw(st.sampled_from(("plain", "vectors", "services", "nested", "alternatives")))
        groups = [part("main", "")]
        if kind in ("vectors", "nested"):
            groups += [part("a", "10"), part("b", "01")]
        if kind == "nested":
            groups += [part("c", "xx10"), part("d", "xx01")]
        if kind == "services":
            service = ServiceRequest(name="cache", own={"stages": draw(st.integers(1, 3))})
            groups += [with_service("a", service, count=draw(st.integers(1, 2)), flavour="10"), part("b", "01")]
        entry = job(f"j{number}", *groups, at=number)
        if kind == "alternatives":
            requests = Requests(cpu_milli=draw(st.integers(1, 4)) * 1000, memory_bytes=GIB)
            other = Alternative(name="other", groups=(GroupVariant(name="main", requests=requests),))
            entry = replace(entry, job=replace(entry.job, alternatives=(other,)))
        pending.append(entry)
    return pending


@given(small_worlds(), flavoured_jobs(), st.sampled_from(POLICIES))
@settings(max_examples=100, deadline=None)
def test_bound_is_no_more_than_the_best_plan_and_that_no_more_than_the_score(
    snapshot: Snapshot, pending: list[PendingJob], policy: Policy
) -> None:
    gap = gap_of(snapshot, pending, policy)
    assert gap.bound <= best_of_all(snapshot, pending, policy) <= gap.score


def crowded(nodes: int, jobs: int, seed: int) -> tuple[Snapshot, list[PendingJob]]:
    """Draw nodes half in use, and jobs of a task for all and one of two others."""
    draw = random.Random(seed)
    snapshot, _ = overloaded(nodes, 0, seed)
    sizes = [{"cpus": draw.randint(1, 12), "memory_gib": draw.randint(1, 48)} for _ in range(6)]
    vectors = {"main": "", "a": "10", "b": "01"}
    kinds = [[group(name, flavour=vector, **draw.choice(sizes)) for name, vector in vectors.items()] for _ in range(4)]
    return snapshot, [job(f"j{number:03}", *draw.choice(kinds), at=number) for number in range(jobs)]


def solved(snapshot: Snapshot, pending: list[PendingJob], seconds: float) -> tuple[int, int]:
    """Return the score of the best plan that CP-SAT finds, and its bound."""
    model = cp_model.CpModel()
    views = sorted(snapshot.nodes, key=lambda view: view.name)
    uses: list[list[tuple[Requests, cp_model.IntVar]]] = [[] for _ in views]
    terms = []
    for entry in pending:
        flavours = flavours_of(entry)
        waits = model.new_bool_var("")
        chosen = [model.new_bool_var("") for _ in flavours]
        model.add_exactly_one([waits, *chosen])
        terms.append(WAITING * min(len(each.job.groups) for each in flavours) * waits)
        for flag, each in zip(chosen, flavours, strict=True):
            for tasks, costs in zip(each.job.groups, costs_of(snapshot, each, DefaultPolicy()), strict=True):
                here = [(row, cost, model.new_bool_var("")) for row, cost in enumerate(costs) if cost is not None]
                model.add(sum(at for _, _, at in here) == flag)
                terms += [cost * at for _, cost, at in here]
                for row, _, at in here:
                    uses[row].append((tasks.requests, at))
    for view, used in zip(views, uses, strict=True):
        model.add(sum(wanted.cpu_milli * at for wanted, at in used) <= view.free.cpu_milli)
        model.add(sum(wanted.memory_bytes // GIB * at for wanted, at in used) <= view.free.memory_bytes // GIB)
    model.minimize(sum(terms))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = seconds
    solver.solve(model)
    return round(solver.objective_value), round(solver.best_objective_bound)


@pytest.mark.parametrize(("nodes", "jobs", "seed"), [(6, 12, 1), (8, 30, 2), (12, 60, 3)])
def test_bound_beside_cp_sat(nodes: int, jobs: int, seed: int) -> None:
    snapshot, pending = crowded(nodes, jobs, seed)
    gap = gap_of(snapshot, pending, DefaultPolicy())
    best, bound = solved(snapshot, pending, seconds=0.3)
    assert gap.bound <= best
    assert bound <= gap.score
    # More than nothing: what is scarce has its price also where every job has flavours.
    assert gap.bound > 0.3 * best


def test_a_round_with_room_for_all_flavours_is_proved_to_be_the_best() -> None:
    snapshot = world(node("a", cpus=64), node("b", cpus=64, free_cpus=8))
    parts = group("main"), group("a", cpus=1, flavour="10"), group("b", cpus=16, count=2, flavour="01")
    gap = gap_of(snapshot, [job("j", *parts)], DefaultPolicy())
    assert gap.score - gap.bound <= 1
