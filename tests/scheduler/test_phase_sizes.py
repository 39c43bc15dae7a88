"""Small jobs first: who goes with whom, and that it never makes a round worse."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from farbus.model.decision import PendingJob, Snapshot
from farbus.scheduler.bench import make_cluster, make_jobs
from farbus.scheduler.costs.baselines import FirstFitPolicy
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.phases.base import Desk
from farbus.scheduler.phases.jobs import Forms
from farbus.scheduler.phases.sizes import Sizes
from farbus.scheduler.round import PHASES, decide
from tests.scheduler.test_phase_bound import gap_of, overloaded
from tests.scheduler.worlds import check_decision, gpu, group, job, node, pending_jobs, snapshots

POLICY = DefaultPolicy()


def sizes_of(snapshot: Snapshot, pending: list[PendingJob]) -> tuple[Sizes, list[str]]:
    cluster = columns.from_snapshot(snapshot)
    jobs = Forms(PHASES).jobs(POLICY.rank(pending), POLICY)
    desks: list[Desk] = []
    for phase in reversed(PHASES):
        desks.insert(0, phase.open(cluster, POLICY, tuple(desks)))
    return Sizes(jobs, desks[0]), [entry.job.id for entry in jobs.pending]


def batches(snapshot: Snapshot, pending: list[PendingJob], *, most: int = 64) -> list[set[str]]:
    sizes, names = sizes_of(snapshot, pending)
    return [{names[row] for row in batch} for batch in sizes.batches(np.arange(len(names)), most=most)]


WORLD = Snapshot(nodes=(node("a", cpus=8), node("b", cpus=8)), devices=(gpu("g0", "a"), gpu("g1", "b")))


def test_the_most_urgent_go_first_and_of_these_the_smallest() -> None:
    many = [job("large", cpus=4), job("small", cpus=1), job("like", cpus=1), job("urgent", cpus=8, priority=1)]
    assert batches(WORLD, many) == [{"urgent"}, {"small", "like"}, {"large"}]


def test_a_gang_is_as_large_as_its_tasks_are_on_an_average() -> None:
    gang = job("gang", group(count=8, cpus=1))
    assert batches(WORLD, [gang, job("large", cpus=2)]) == [{"gang"}, {"large"}]


def test_what_is_scarce_counts_for_more() -> None:
    few_devices = [job("device", cpus=1, gpus=1), *(job(f"more{n}", cpus=1, gpus=1, at=n) for n in range(4))]
    assert batches(WORLD, [job("cpu", cpus=3), *few_devices])[0] == {"cpu"}


def test_too_many_kinds_go_several_together_in_the_same_order() -> None:
    many = [job(f"j{number}", cpus=1 + number / 8) for number in range(8)]
    found = batches(WORLD, many, most=3)
    assert len(found) == 3
    assert [sorted(batch) for batch in found] == [["j0"], ["j1", "j2", "j3", "j4", "j5", "j6"], ["j7"]]


def test_without_a_smaller_job_that_waits_there_is_nothing_to_gain() -> None:
    sizes, names = sizes_of(WORLD, [job("small", cpus=1), job("large", cpus=8)])
    assert not sizes.may_gain(np.array([names.index("large")]))
    assert sizes.may_gain(np.array([names.index("small")]))


@pytest.mark.parametrize(("nodes", "tasks"), [(8, 40), (16, 100), (16, 160), (64, 400), (128, 1_000), (128, 2_500)])
def test_no_round_of_too_much_to_do_is_worse_than_first_fit(nodes: int, tasks: int) -> None:
    snapshot, pending = overloaded(nodes, tasks, seed=1)
    decision = decide(snapshot, pending, policy=POLICY, certify=False)
    other = gap_of(decide(snapshot, pending, policy=FirstFitPolicy(), certify=False))
    assert gap_of(decision).score <= other.score


@pytest.mark.parametrize("tiers", [1, 4])
def test_no_round_of_too_few_devices_is_worse_than_first_fit(tiers: int) -> None:
    draw = random.Random(1)
    pending = [replace(entry, job=replace(entry.job, priority=draw.randrange(tiers))) for entry in make_jobs(400)]
    snapshot = make_cluster(64)
    ours = gap_of(decide(snapshot, pending, policy=POLICY, certify=False))
    other = gap_of(decide(snapshot, pending, policy=FirstFitPolicy(), certify=False))
    assert ours.score <= other.score


@given(snapshots(), pending_jobs())
@settings(max_examples=60, deadline=None)
def test_what_is_placed_with_small_jobs_first_keeps_all_rules(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("farbus.scheduler.round.PRICED_TASKS", 0)
        patch.setattr(Sizes, "may_gain", lambda *_: True)
        decision = decide(snapshot, pending, policy=POLICY)
    check_decision(snapshot, pending, decision)
    assert decision.report.gap is None or decision.report.gap.bound <= decision.report.gap.score


def test_a_small_job_of_lower_priority_takes_nothing_from_a_large_one() -> None:
    world = Snapshot(nodes=(node("a", cpus=8),), devices=())
    many = [job(f"small{n}", cpus=1, at=n) for n in range(8)]
    decision = decide(world, [*many, job("large", cpus=8, priority=1)], policy=POLICY)
    assert [placement.job for placement in decision.placements] == ["large"]
