"""Whole rounds: where jobs go, what may never happen, and what must not matter."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.errors import InvalidInput
from farbus.model.decision import Decision, NodeView, PendingJob, Snapshot
from farbus.model.device import Route
from farbus.model.node import Resources
from farbus.scheduler.collector import collector_paused
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.decision_maker import CERTIFY_EVERY, decision_maker
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.phases.compute import MAX_KEPT_SHAPES
from farbus.scheduler.round import HOLD_ROUNDS, decide, decide_on
from tests.scheduler.worlds import after, check_decision, gpu, group, job, node, node_of, pending_jobs, snapshots

POLICY = DefaultPolicy()
THOROUGH = settings(max_examples=200)


def run(snapshot: Snapshot, *pending: PendingJob) -> Decision:
    decision = decide(snapshot, pending, policy=POLICY)
    check_decision(snapshot, pending, decision)
    return decision


def cluster(*parts: object) -> Snapshot:
    return Snapshot(
        nodes=tuple(part for part in parts if isinstance(part, NodeView)),
        devices=tuple(part for part in parts if not isinstance(part, NodeView)),  # type: ignore[misc]
    )


DEMO = cluster(node("a"), node("b"), node("c"), gpu("g0", "a"), gpu("g1", "a"), gpu("g2", "b"))


def routes_of(decision: Decision, name: str) -> list[Route]:
    return [
        device.route
        for placement in decision.placements
        if placement.job == name
        for task in placement.tasks
        for device in task.devices
    ]


# Where jobs go.


def test_an_empty_round_decides_nothing() -> None:
    decision = run(DEMO)
    assert decision.placements == ()
    assert decision.report.solves == 0


def test_a_job_with_gpus_goes_where_they_are() -> None:
    decision = run(DEMO, job("j", gpus=2))
    assert node_of(decision, "j") == ["a"]
    assert routes_of(decision, "j") == [Route.LOCAL, Route.LOCAL]


def test_the_smaller_set_of_gpus_is_used_up_first() -> None:
    assert node_of(run(DEMO, job("j", gpus=1)), "j") == ["b"]


def test_a_job_bound_to_a_node_without_gpus_is_lent_them() -> None:
    decision = run(DEMO, job("j", gpus=1, node="c"))
    assert node_of(decision, "j") == ["c"]
    assert routes_of(decision, "j") == [Route.REMOTE]


def test_a_bundle_is_lent_by_one_node_where_one_has_it() -> None:
    decision = run(DEMO, job("j", gpus=2, node="c"))
    assert {device.node for task in decision.placements[0].tasks for device in task.devices} == {"a"}


def test_gpus_of_one_task_come_from_one_node() -> None:
    decision = run(DEMO, job("j", gpus=3))
    assert decision.placements == ()
    (miss,) = decision.misses[0].misses
    assert miss.permanent
    assert (
        miss.message == "3 GPUs on one node wanted; a comes closest with 2; gpu_span (--gpu-span) takes them of several"
    )


def test_remote_alone_keeps_off_the_own_devices() -> None:
    decision = run(cluster(node("a"), gpu("g0", "a"), gpu("g1", "a")), job("j", gpus=1, routes=(Route.REMOTE,)))
    assert decision.placements == ()
    decision = run(DEMO, job("j", gpus=1, node="a", routes=(Route.REMOTE,)))
    assert routes_of(decision, "j") == [Route.REMOTE]


def test_local_alone_waits_for_the_own_devices() -> None:
    decision = run(DEMO, job("j", gpus=1, node="c", routes=(Route.LOCAL,)))
    assert decision.placements == ()
    assert decision.misses[0].misses[0].permanent


def test_jobs_without_gpus_keep_off_the_nodes_with_gpus() -> None:
    assert node_of(run(DEMO, job("j")), "j") == ["c"]


def test_tasks_spread_to_local_gpus_before_any_is_remote() -> None:
    decision = run(DEMO, job("j", gpus=1, count=3))
    assert sorted(node_of(decision, "j")) == ["a", "a", "b"]
    assert set(routes_of(decision, "j")) == {Route.LOCAL}


def test_gpus_of_a_full_node_are_lent() -> None:
    full = cluster(node("a", free_cpus=0), node("c"), gpu("g0", "a"))
    decision = run(full, job("j", gpus=1))
    assert node_of(decision, "j") == ["c"]
    assert routes_of(decision, "j") == [Route.REMOTE]


def test_the_least_gpu_that_will_do_is_given() -> None:
    mixed = cluster(node("a"), gpu("big", "a", memory_gib=80), gpu("small", "a", memory_gib=16))
    decision = run(mixed, job("j", gpus=1))
    assert decision.placements[0].tasks[0].devices[0].device == "small"


def test_a_lender_in_the_same_rack_is_preferred() -> None:
    racks = cluster(node("a", rack="r1"), node("b", rack="r2"), node("c", rack="r2"), gpu("g0", "a"), gpu("g1", "b"))
    decision = run(racks, job("j", gpus=1, node="c"))
    assert decision.placements[0].tasks[0].devices[0].node == "b"


# Whole jobs and refills.


def test_two_gangs_that_do_not_fit_together_leave_one_whole() -> None:
    decision = run(cluster(node("a", cpus=3)), job("x", count=2, at=1), job("y", count=2, at=2))
    assert [placement.job for placement in decision.placements] == ["x"]
    assert [miss.job for miss in decision.misses] == ["y"]


def test_what_a_gpu_job_gives_back_serves_another_in_the_same_round() -> None:
    # Both GPU jobs get processors in phase 1; only one gets the GPU; the third needs what the loser held.
    tight = cluster(node("a", cpus=2), gpu("g0", "a"))
    decision = run(tight, job("x", gpus=1, priority=2), job("y", gpus=1, priority=1), job("z"))
    assert sorted(placement.job for placement in decision.placements) == ["x", "z"]


def test_a_job_of_two_groups_is_whole_over_both_phases() -> None:
    wide = job("x", group("cpu", count=2), group("gpu", gpus=2, count=2))
    decision = run(DEMO, wide)
    assert decision.placements == ()
    assert not decision.misses[0].feasible_alone


def test_higher_priority_wins_the_last_place() -> None:
    one = cluster(node("a", cpus=1))
    decision = run(one, job("low", at=0), job("high", priority=1, at=9))
    assert node_of(decision, "high") == ["a"]


def test_the_longer_wait_wins_the_last_place_though_it_is_dearer() -> None:
    world = cluster(node("c"), node("a"), gpu("g0", "a"))
    decision = run(world, job("remote", gpus=1, node="c", waited=1), job("local", gpus=1, node="a"))
    assert [placement.job for placement in decision.placements] == ["remote"]


def test_waiting_overtakes_priority_in_the_end() -> None:
    one = cluster(node("a", cpus=1))
    decision = run(one, job("old", waited=201), job("new", priority=2))
    assert node_of(decision, "old") == ["a"]


def stream(gang: PendingJob, *, rounds: int, small: Callable[[int], PendingJob], world: Snapshot) -> int | None:
    """Feed one small job a round, each running for two, and ``gang`` after the first; return when it is placed."""
    queue: dict[str, PendingJob] = {}
    running: list[tuple[int, PendingJob, Decision]] = []
    for now in range(rounds):
        queue[f"s{now}"] = small(now)
        if now == 1:
            queue[gang.job.id] = gang
        running = [entry for entry in running if entry[0] > now]
        free = world
        for _, entry, decision in running:
            free = after(free, [entry], decision)
        pending = list(queue.values())
        decision = decide(free, pending, policy=POLICY)
        check_decision(free, pending, decision)
        for placement in decision.placements:
            if placement.job == gang.job.id:
                return now
            entry = queue.pop(placement.job)
            alone = Decision(placements=(placement,), misses=(), report=decision.report)
            running.append((now + 2, entry, alone))
        for miss in decision.misses:
            if miss.feasible_alone:
                entry = queue[miss.job]
                queue[miss.job] = PendingJob(job=entry.job, rounds_waited=entry.rounds_waited + 1)
    return None


def test_a_stream_of_small_jobs_does_not_starve_a_gang() -> None:
    world = cluster(node("a", cpus=1), node("b", cpus=1))
    placed = stream(
        job("gang", count=2), rounds=HOLD_ROUNDS + 10, small=lambda now: job(f"s{now}", at=now + 1), world=world
    )
    assert placed is not None
    assert placed >= HOLD_ROUNDS


def test_a_stream_of_small_jobs_does_not_starve_a_large_bundle() -> None:
    world = cluster(node("a", cpus=8), gpu("g0", "a"), gpu("g1", "a"))
    placed = stream(
        job("wide", gpus=2), rounds=HOLD_ROUNDS + 10, small=lambda now: job(f"s{now}", gpus=1, at=now + 1), world=world
    )
    assert placed is not None
    assert placed >= HOLD_ROUNDS


def test_room_that_is_kept_is_told() -> None:
    world = cluster(node("a", cpus=4, free_cpus=3))
    decision = run(world, job("big", cpus=4, waited=HOLD_ROUNDS), job("small"))
    assert decision.placements == ()
    told = {miss.job: [part.message for part in miss.misses] for miss in decision.misses}
    assert told["big"][-1] == f"after {HOLD_ROUNDS} rounds of waiting, room on a is kept for this job"
    assert told["small"] == ["what is free is kept for big, which waited longer"]


def test_room_is_not_kept_from_a_job_of_higher_priority() -> None:
    world = cluster(node("a", cpus=4, free_cpus=3))
    decision = run(world, job("big", cpus=4, waited=HOLD_ROUNDS), job("high", priority=1))
    assert node_of(decision, "high") == ["a"]


# Poison.


@pytest.mark.parametrize(
    "poison",
    [
        job("p", group(count=0)),
        job("p", group(count=2**40)),
        job("p", group(cpus=-1)),
        job("p", group(gpus=-1)),
        job("p", group("x"), group("x")),
        job("p", group(gpus=1, routes=())),
        job("ok"),
    ],
)
def test_a_poisoned_job_stops_no_other(poison: PendingJob) -> None:
    decision = decide(DEMO, [job("ok"), poison], policy=POLICY)
    assert [placement.job for placement in decision.placements] == ["ok"]
    assert decision.misses[0].misses[0].permanent


def test_a_node_with_less_than_nothing_free_is_full() -> None:
    odd = NodeView(
        name="a", capacity=Resources(cpu_milli=1000, memory_bytes=2**30), free=Resources(cpu_milli=-5, memory_bytes=-5)
    )
    assert run(cluster(odd), job("j")).placements == ()


def test_a_device_that_two_nodes_claim_is_given_to_nobody() -> None:
    assert run(cluster(node("a"), node("b"), gpu("g", "a"), gpu("g", "b")), job("j", gpus=1)).placements == ()


def test_two_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="called a"):
        decide(cluster(node("a"), node("a")), [], policy=POLICY)


def test_devices_of_a_node_that_takes_no_tasks_are_lent() -> None:
    decision = run(cluster(node("c"), gpu("g", "elsewhere")), job("j", gpus=1))
    assert node_of(decision, "j") == ["c"]


# What must hold of any round.


@given(snapshots(), pending_jobs())
@THOROUGH
def test_every_decision_keeps_every_promise(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    decision = decide(snapshot, pending, policy=POLICY)
    check_decision(snapshot, pending, decision)


@given(snapshots(), pending_jobs(), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_order_of_input_does_not_matter(snapshot: Snapshot, pending: list[PendingJob], rng: random.Random) -> None:
    nodes, devices, jobs = list(snapshot.nodes), list(snapshot.devices), list(pending)
    for part in (nodes, devices, jobs):
        rng.shuffle(part)
    shuffled = decide(Snapshot(nodes=tuple(nodes), devices=tuple(devices)), jobs, policy=POLICY)
    assert shuffled == decide(snapshot, pending, policy=POLICY)


@given(snapshots(), pending_jobs())
@settings(max_examples=60)
def test_pruning_places_as_many_for_as_much(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    world = columns.from_snapshot(snapshot)
    pruned = decide_on(world, pending, policy=POLICY)
    full = decide_on(world, pending, policy=POLICY, prune=False)
    assert pruned.report.placed == full.report.placed


@given(snapshots(), pending_jobs(most=1))
@settings(max_examples=150)
def test_a_job_that_fits_alone_is_placed_on_an_idle_cluster(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    decision = decide(snapshot, pending, policy=POLICY)
    idle = Snapshot(
        nodes=tuple(
            NodeView(name=view.name, capacity=view.capacity, free=view.capacity, labels=view.labels, rack=view.rack)
            for view in snapshot.nodes
        ),
        devices=tuple(type(view)(device=view.device, node=view.node, free=True) for view in snapshot.devices),
    )
    again = decide(idle, pending, policy=POLICY)
    if decision.placements:
        assert again.placements, "more room never hurts a job alone"
    for miss in decision.misses:
        assert miss.feasible_alone == bool(again.placements)
        assert miss.feasible_alone != any(part.permanent for part in miss.misses)


def single_tasks() -> st.SearchStrategy[list[PendingJob]]:
    one = st.tuples(st.sampled_from((1, 2, 3)), st.integers(1, 4))
    return st.lists(one, min_size=1, max_size=5).map(
        lambda sizes: [job(f"j{n}", cpus=cpus, memory_gib=memory) for n, (cpus, memory) in enumerate(sizes)]
    )


@given(snapshots(most_nodes=3), single_tasks())
@settings(max_examples=60)
def test_no_job_waits_while_it_fits(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    decision = decide(snapshot, pending, policy=POLICY)
    left = after(snapshot, pending, decision)
    waiting = {miss.job for miss in decision.misses}
    for entry in pending:
        if entry.job.id in waiting:
            wanted = entry.job.groups[0].requests
            assert not any(
                view.free.cpu_milli >= wanted.cpu_milli and view.free.memory_bytes >= wanted.memory_bytes
                for view in left.nodes
            )


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=3), st.integers(1, 4))
@settings(max_examples=60)
def test_equal_tasks_cost_what_brute_force_finds(rooms: list[tuple[int, int]], tasks: int) -> None:
    """With one shape the flow is exact: compare with all ways to distribute the tasks."""
    world = cluster(*(node(f"n{n}", cpus=8, free_cpus=free, memory_gib=mem) for n, (free, mem) in enumerate(rooms)))
    pending = [job(f"j{n}") for n in range(tasks)]
    decision = decide(world, pending, policy=POLICY)
    table = columns.from_snapshot(world)
    cost = POLICY.node_cost(table, np.arange(table.size), table.free, (1000, 2**30), 0 * table.rack, None).tolist()
    room = [min(free, mem) for free, mem in rooms]
    best = min(
        (
            (tasks - sum(counts), sum(count * each for count, each in zip(counts, cost, strict=True)))
            for counts in itertools.product(*(range(have + 1) for have in room))
            if sum(counts) <= tasks
        ),
    )
    spent = sum(task.cost for placement in decision.placements for task in placement.tasks)
    assert (len(decision.misses), spent) == best


@given(snapshots(), st.integers(1, 6))
@settings(max_examples=60)
def test_one_node_more_never_places_less_or_costs_more(snapshot: Snapshot, tasks: int) -> None:
    pending = [job(f"j{number}") for number in range(tasks)]
    before = decide(snapshot, pending, policy=POLICY)
    more = Snapshot(nodes=(*snapshot.nodes, node("zz")), devices=snapshot.devices)
    now = decide(more, pending, policy=POLICY)
    assert now.report.placed >= before.report.placed
    if now.report.placed == before.report.placed:
        cost = [sum(t.cost for p in d.placements for t in p.tasks) for d in (before, now)]
        assert cost[1] <= cost[0]


@given(snapshots(), pending_jobs())
@settings(max_examples=60)
def test_names_do_not_matter(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    """New names in the same order of names: the same plan under the new names."""

    def named(name: str) -> str:
        return f"x{name}" if name else ""

    renamed = Snapshot(
        nodes=tuple(
            NodeView(name=named(v.name), capacity=v.capacity, free=v.free, labels=v.labels, rack=v.rack)
            for v in snapshot.nodes
        ),
        devices=tuple(type(v)(device=v.device, node=named(v.node), free=v.free) for v in snapshot.devices),
    )
    jobs = [
        job(
            f"y{entry.job.id}",
            *(
                group(
                    part.name,
                    count=part.count,
                    min_count=part.min_count,
                    cpus=part.requests.cpu_milli / 1000,
                    memory_gib=part.requests.memory_bytes // 2**30,
                    gpus=part.requests.gpus,
                    gpu_model=part.requests.gpu_model,
                    gpu_memory_gib=part.requests.gpu_memory_bytes // 2**30,
                    network=part.requests.network_mbit_s,
                    remote=part.requests.remote_network_mbit_s,
                    routes=part.routes,
                    node=named(part.node),
                    labels=part.labels,
                )
                for part in entry.job.groups
            ),
            priority=entry.job.priority,
            waited=entry.rounds_waited,
            at=entry.job.submitted_at,
        )
        for entry in pending
    ]
    old = decide(snapshot, pending, policy=POLICY)
    new = decide(renamed, jobs, policy=POLICY)
    assert [(p.job, [named(t.node) for t in p.tasks], [t.cost for t in p.tasks]) for p in old.placements] == [
        (p.job.removeprefix("y"), [t.node for t in p.tasks], [t.cost for t in p.tasks]) for p in new.placements
    ]


@given(pending_jobs(most=6))
@settings(max_examples=40)
def test_every_feasible_job_is_placed_in_the_end(pending: list[PendingJob]) -> None:
    """Each round's jobs end before the next; the queue drains but for what can never run."""
    waiting = {entry.job.id: entry for entry in pending}
    for _ in range(len(pending) + 1):
        decision = decide(DEMO, list(waiting.values()), policy=POLICY)
        for placement in decision.placements:
            del waiting[placement.job]
        waiting = {
            miss.job: PendingJob(job=waiting[miss.job].job, rounds_waited=waiting[miss.job].rounds_waited + 1)
            for miss in decision.misses
            if miss.feasible_alone
        }
    assert not waiting


def test_a_job_starts_with_as_many_tasks_as_it_needs() -> None:
    world = cluster(node("a", cpus=3))
    decision = run(world, job("j", count=5, min_count=2))
    assert [task.task for task in decision.placements[0].tasks] == ["main.0", "main.1", "main.2"]


def test_a_job_waits_for_fewer_tasks_than_it_needs() -> None:
    decision = run(cluster(node("a", cpus=3)), job("j", count=5, min_count=4))
    assert not decision.placements
    assert decision.misses[0].misses[0].short_by == 1


def test_what_jobs_need_comes_before_what_others_would_have_beyond_that() -> None:
    decision = run(cluster(node("a", cpus=4)), job("first", count=4, min_count=1, at=0), job("second", count=2, at=1))
    assert {placement.job: len(placement.tasks) for placement in decision.placements} == {"first": 2, "second": 2}


def test_tasks_beyond_what_a_job_needs_are_left_out_where_their_devices_are_missing() -> None:
    world = cluster(node("a"), gpu("g0", "a"), gpu("g1", "a"))
    decision = run(world, job("j", count=4, min_count=1, gpus=1))
    assert [(task.task, len(task.devices)) for task in decision.placements[0].tasks] == [("main.0", 1), ("main.1", 1)]


def test_each_group_has_the_tasks_it_needs() -> None:
    world = cluster(node("a", cpus=4))
    decision = run(world, job("j", group("x", count=3, min_count=1), group("y", count=2)))
    assert sorted(task.task for task in decision.placements[0].tasks) == ["x.0", "x.1", "y.0", "y.1"]


def test_no_job_needs_more_tasks_than_it_has() -> None:
    decision = run(cluster(node("a")), job("j", count=2, min_count=3))
    assert "groups[0].min_count: 3 is more than 2" in decision.misses[0].misses[0].message


def test_the_clock_is_only_read_for_the_report() -> None:
    ticks = iter((10.0, 10.25))
    decision = decide(DEMO, [job("j")], policy=POLICY, certify=False, clock=lambda: next(ticks))
    assert decision.report.decision_ms == 250.0


def test_the_service_certifies_one_round_in_some() -> None:
    maker = decision_maker("")
    certified = [maker(DEMO, (job(f"j{n}"),)).report.certified for n in range(2 * CERTIFY_EVERY)]
    assert [row for row, each in enumerate(certified) if each] == [0, CERTIFY_EVERY]


def test_certificates_are_counted_and_timed() -> None:
    ticks = itertools.count()
    report = decide(DEMO, [job("j")], policy=POLICY, clock=lambda: next(ticks)).report
    assert report.certified_solves == report.solves == 1
    assert report.certify_ms == 1000.0
    assert decide(DEMO, [job("j")], policy=POLICY, certify=False).report.certified_solves == 0


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_rests_for_a_round_and_is_what_it_was_afterwards(before: bool) -> None:
    def fail() -> None:
        with collector_paused():
            resting.append(not gc.isenabled())
            raise ZeroDivisionError

    resting: list[bool] = []
    usual = gc.isenabled()
    try:
        (gc.enable if before else gc.disable)()
        with pytest.raises(ZeroDivisionError):
            fail()
        assert gc.isenabled() == before
    finally:
        (gc.enable if usual else gc.disable)()
    assert resting == [True]


def test_a_round_may_have_more_shapes_than_are_kept() -> None:
    world = Snapshot(nodes=(node("a", cpus=1000, memory_gib=200),), devices=())
    waiting = [job(f"j{number:03}", cpus=1 + number / 1000) for number in range(MAX_KEPT_SHAPES + 6)]
    decision = decide(world, waiting, policy=POLICY)
    check_decision(world, waiting, decision)
    assert len(decision.placements) == len(waiting)
