"""Plans in columns: what travels, and what is found only when somebody asks."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings

from farbus.model.decision import PendingJob, Snapshot
from farbus.model.device import Route
from farbus.scheduler import bench
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.named import POLICIES
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.phases.jobs import Forms
from farbus.scheduler.phases.reasons import Reasons
from farbus.scheduler.placed import PackedPlaced, Placed
from farbus.scheduler.round import PHASES, plan_on
from tests.scheduler.test_phases_together import queues, worlds
from tests.scheduler.worlds import gpu, group, job, node, world

POLICY = DefaultPolicy()


@given(worlds(), queues())
@settings(max_examples=40)
def test_what_travels_arrives_whole(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    placed = plan_on(columns.from_snapshot(snapshot), pending, policy=POLICY).placed
    sent = msgspec.msgpack.encode(placed.packed())
    there = Placed.unpacked(msgspec.msgpack.decode(sent, type=PackedPlaced))
    assert list(there.placements()) == list(placed.placements())


def test_only_names_that_occur_travel() -> None:
    snapshot, jobs = bench.make_cluster(500), bench.make_jobs(5)
    packed = plan_on(columns.from_snapshot(snapshot), jobs, policy=POLICY).placed.packed()
    assert len(packed.names) <= 4 * len(jobs)


def test_nobody_looks_for_reasons_until_they_are_asked_for() -> None:
    placed = plan_on(columns.from_snapshot(world(node("a"))), [job("j")], policy=POLICY).placed

    def reasons() -> Reasons:
        raise AssertionError("nobody asked")

    found, placed.find_reasons = placed.find_reasons, reasons
    (plain,) = placed.placements(words=False)
    assert not plain.tasks[0].why
    placed.find_reasons = found
    (told,) = placed.placements()
    assert told.tasks[0].why == "a at cost 0.922 (the only node with room)"


def test_reasons_are_those_of_their_own_round() -> None:
    snapshot, jobs = bench.make_cluster(64), bench.make_jobs(30)
    for policy in (POLICIES[name]() for name in ("default", "kubecomp", "first-fit")):
        cluster, forms = columns.from_snapshot(snapshot), Forms(PHASES)
        at_once = list(plan_on(cluster, jobs, policy=policy, forms=forms).placed.placements())
        plan = plan_on(cluster, jobs, policy=policy, forms=forms)
        plan_on(cluster, bench.make_jobs(60, seed=7), policy=policy, forms=forms)
        assert list(plan.placed.placements()) == at_once


def test_the_bound_of_a_round_can_be_found_after_the_next() -> None:
    cluster, jobs = columns.from_snapshot(bench.make_cluster(64)), bench.make_jobs(30)
    at_once = plan_on(cluster, jobs, policy=POLICY).full_report().gap
    plan = plan_on(cluster, jobs, policy=POLICY)
    assert plan.report.gap is None
    plan_on(cluster, bench.make_jobs(60, seed=7), policy=POLICY)
    assert plan.full_report().gap == at_once


def test_tasks_of_a_group_on_one_node_share_what_they_were_granted() -> None:
    snapshot = world(node("a", cpus=2), node("b", cpus=8), *(gpu(f"g{number}", "b") for number in range(6)))
    wanted = group(count=3, gpus=2, cpus=1, routes=(Route.LOCAL,))
    (placed,) = plan_on(columns.from_snapshot(snapshot), [job("j", wanted)], policy=POLICY).placed.placements()
    held = [[device.device for device in task.devices] for task in placed.tasks]
    assert [len(each) for each in held] == [2, 2, 2]
    assert sorted(device for each in held for device in each) == [f"g{number}" for number in range(6)]
