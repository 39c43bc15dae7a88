"""How many jobs go through the phases together: those for which there are devices, in the order of rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.model.decision import PendingJob, Snapshot
from farbus.model.device import Route
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.phases.base import Desk
from farbus.scheduler.phases.budget import Budget
from farbus.scheduler.phases.jobs import Forms
from farbus.scheduler.round import PHASES, decide
from tests.scheduler.worlds import check_decision, gpu, group, job, node, node_of

LOCAL = frozenset({Route.LOCAL})
POLICY = DefaultPolicy()


def admitted(snapshot: Snapshot, pending: Sequence[PendingJob], *, uncounted: Sequence[str] = ()) -> list[str]:
    """Return the jobs of the first pass, best rank first."""
    cluster = columns.from_snapshot(snapshot)
    jobs = Forms(PHASES).jobs(POLICY.rank(pending), POLICY)
    desks: list[Desk] = []
    for phase in reversed(PHASES):
        desks.insert(0, phase.open(cluster, POLICY, tuple(desks)))
    names = [entry.job.id for entry in jobs.pending]
    budget = Budget(jobs, np.arange(len(names)), desks[1:])
    return [names[row] for row in budget.admitted(np.array([names.index(name) for name in uncounted], np.int64))]


def world(*models: str) -> Snapshot:
    """Return a node with one GPU of each of ``models``, and one without any."""
    devices = tuple(gpu(f"g{number}", "a", model=model) for number, model in enumerate(models))
    return Snapshot(nodes=(node("a"), node("b")), devices=devices)


def test_jobs_without_devices_are_not_counted() -> None:
    assert admitted(world(), [job("x"), job("y")]) == ["x", "y"]


def test_no_more_jobs_than_devices_go_together() -> None:
    jobs = [job(f"j{number}", gpus=1, at=number) for number in range(3)]
    assert admitted(world("A100", "A100"), jobs) == ["j0", "j1"]


def test_tasks_of_all_groups_count() -> None:
    both = job("both", group("one", gpus=1), group("two", gpus=1), at=0)
    assert admitted(world("A100", "A100"), [both, job("next", gpus=1, at=1)]) == ["both"]


def test_devices_that_do_for_one_job_are_counted_for_another_that_takes_any() -> None:
    jobs = [job("choosy", gpus=1, gpu_model="a100", at=0), *(job(f"any{n}", gpus=1, at=1 + n) for n in range(2))]
    assert admitted(world("A100", "T4"), jobs) == ["choosy", "any0"]


def test_what_only_some_devices_do_for_is_counted_apart() -> None:
    jobs = [job(f"choosy{n}", gpus=1, gpu_model="a100", at=n) for n in range(2)] + [job("any", gpus=1, at=2)]
    assert admitted(world("A100", "T4"), jobs) == ["choosy0", "any"]


def test_filters_within_each_other_share_what_the_wider_one_accepts() -> None:
    jobs = [job("narrow", gpus=1, gpu_model="a100-80", at=0), job("wide", gpus=1, gpu_model="a100", at=1)]
    assert admitted(world("A100-80", "T4", "T4"), jobs) == ["narrow"]


def test_a_job_that_is_too_large_for_what_is_left_lets_smaller_ones_of_its_tier_pass() -> None:
    jobs = [job("first", gpus=1, at=0), job("large", gpus=2, at=1), job("small", gpus=1, at=2)]
    assert admitted(world("A100", "A100"), jobs) == ["first", "small"]


def test_nobody_of_a_lower_tier_passes_a_job_that_may_come_next() -> None:
    jobs = [job("first", gpus=1, priority=2), job("large", gpus=2, priority=1), job("small", gpus=1), job("none")]
    assert admitted(world("A100", "A100"), jobs) == ["first"]


def test_a_job_for_which_there_are_no_devices_is_in_nobodys_way() -> None:
    jobs = [job("huge", gpus=3, priority=1), job("small", gpus=1), job("none")]
    assert sorted(admitted(world("A100", "A100"), jobs)) == ["none", "small"]


def test_who_has_tried_takes_nothing_of_the_budget() -> None:
    jobs = [job("tried", gpus=1, at=0), job("next", gpus=1, at=1), job("last", gpus=1, at=2)]
    assert admitted(world("A100"), jobs, uncounted=["tried"]) == ["tried", "next"]


@given(
    st.lists(st.sampled_from(("A100-40", "A100-80", "T4")), max_size=5),
    st.lists(st.tuples(st.sampled_from(("", "a100", "80", "t4")), st.integers(0, 2)), max_size=5),
)
@settings(max_examples=100, deadline=None)
def test_jobs_that_there_are_devices_for_go_together(models: list[str], wanted: list[tuple[str, int]]) -> None:
    free = list(models)
    served = []
    for number, (model, tier) in enumerate(wanted):
        found = next((each for each in free if model in each.lower()), None)
        if found is not None:
            free.remove(found)
            served.append(job(f"j{number}", gpus=1, gpu_model=model, waited=tier))
    assert sorted(admitted(world(*models), served)) == sorted(entry.job.id for entry in served)


def test_the_job_that_waited_longer_has_the_device_where_it_is() -> None:
    snapshot = Snapshot(nodes=(node("a"), node("b")), devices=(gpu("g", "a"),))
    decision = decide(snapshot, [job("old", cpus=1, gpus=1, waited=5), job("new", cpus=2, gpus=1)], policy=POLICY)
    assert node_of(decision, "old") == ["a"]
    assert decision.placements[0].tasks[0].devices[0].route == Route.LOCAL


def test_what_a_job_in_vain_would_have_had_is_for_the_next_tier() -> None:
    snapshot = Snapshot(nodes=(node("a", free_cpus=2), node("b")), devices=(gpu("g", "a"),))
    pending = [
        job("vain", cpus=3, gpus=1, routes=LOCAL, priority=3),
        job("next", cpus=2, gpus=1, routes=LOCAL, priority=2),
        job("last", cpus=1, gpus=1, routes=LOCAL, priority=1),
    ]
    decision = decide(snapshot, pending, policy=POLICY)
    assert [placement.job for placement in decision.placements] == ["next"]


def test_a_job_without_devices_does_not_take_the_place_of_one_of_a_higher_tier() -> None:
    snapshot = Snapshot(nodes=(node("a", free_cpus=2),), devices=(gpu("g", "a"),))
    pending = [
        job("vain", cpus=3, gpus=1, priority=3),
        job("next", cpus=2, gpus=1, priority=2),
        job("none", cpus=2, priority=1),
    ]
    decision = decide(snapshot, pending, policy=POLICY)
    assert [placement.job for placement in decision.placements] == ["next"]


def test_many_jobs_in_vain_keep_none_from_its_place() -> None:
    snapshot = Snapshot(nodes=(node("a", free_cpus=1), node("b")), devices=(gpu("g", "a"),))
    vain = [job(f"vain{n}", cpus=2 + n / 4, gpus=1, routes=LOCAL, priority=1 + n) for n in range(20)]
    pending = [*vain, job("last", cpus=1, gpus=1), job("none", cpus=4)]
    decision = decide(snapshot, pending, policy=POLICY)
    check_decision(snapshot, pending, decision)
    assert sorted(placement.job for placement in decision.placements) == ["last", "none"]
