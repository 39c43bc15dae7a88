"""Devices that a fabric moves: where they come from, what is reserved, and what may never happen."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.model.decision import Decision, DeviceView, PendingJob, Snapshot
from farbus.model.device import PoolReach, Route
from farbus.model.job import Miss
from farbus.scheduler.costs.baselines import BestFitPolicy, FirstFitPolicy, RandomPolicy
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.kubecomp import KubeCompPolicy
from farbus.scheduler.costs.policy import ATTACH_SECOND, RECOMPOSED, SCALE, Policy
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.phases.gpu import GpuFilter, GpuPhase
from farbus.scheduler.phases.moving import Movable
from farbus.scheduler.round import decide
from tests.scheduler.worlds import gpu, job, node, pending_jobs, snapshots, world

POLICY = DefaultPolicy()
ALL = (Route.LOCAL, Route.REMOTE, Route.RECOMPOSED)
MOVED = (Route.LOCAL, Route.RECOMPOSED)


def reach(*pools: str, attach_s: float = 5.0) -> tuple[PoolReach, ...]:
    return tuple(PoolReach(pool=pool, attach_s=attach_s) for pool in pools)


def pooled(name: str, on: str, pool: str = "p", *, free: bool = True, destination: str = "") -> DeviceView:
    view = gpu(name, on, free=free)
    device = msgspec.structs.replace(view.device, pool=pool)
    return msgspec.structs.replace(view, device=device, destination=destination)


def run(snapshot: Snapshot, *pending: PendingJob, policy: Policy = POLICY) -> Decision:
    decision = decide(snapshot, pending, policy=policy)
    check_moves(snapshot, list(pending), decision)
    return decision


def given_to(decision: Decision, name: str) -> list[tuple[str, str, Route]]:
    return [
        (device.device, device.node, device.route)
        for placement in decision.placements
        if placement.job == name
        for task in placement.tasks
        for device in task.devices
    ]


def misses(decision: Decision) -> list[Miss]:
    return [part for miss in decision.misses for part in miss.misses]


def check_moves(snapshot: Snapshot, pending: list[PendingJob], decision: Decision) -> None:
    """Assert by sums of its own that no device is given twice, and none is moved where no pool takes it."""
    jobs = {entry.job.id: entry.job for entry in pending}
    devices = {view.device.id: view for view in snapshot.devices}
    reaches = {view.name: {reach.pool for reach in view.pools} for view in snapshot.nodes}
    placed = Counter(
        device.device for placement in decision.placements for task in placement.tasks for device in task.devices
    )
    assert all(count == 1 for count in placed.values()), "a device is under two placements"
    for placement in decision.placements:
        groups = {tasks.name: tasks for tasks in jobs[placement.job].groups}
        for task in placement.tasks:
            tasks = groups[task.task.rsplit(".", 1)[0]]
            assert len(task.devices) == tasks.requests.gpus
            routes = {device.route for device in task.devices}
            assert Route.REMOTE not in routes or len(routes) == 1, "a program speaks to one server"
            assert len({device.node for device in task.devices if device.route == Route.REMOTE}) <= 1
            for device in task.devices:
                view = devices[device.device]
                assert view.free
                assert not view.destination, "a device on its way is nobody's"
                assert device.node == view.node
                assert device.route in tasks.routes
                assert (device.route == Route.LOCAL) == (device.node == task.node)
                if device.route == Route.RECOMPOSED:
                    assert view.device.pool in reaches[task.node]
                if device.route == Route.REMOTE:
                    assert view.node, "what no node has can't be lent"
    assert decision.report.certified or not decision.report.solves


def after(snapshot: Snapshot, decision: Decision) -> Snapshot:
    """Return the cluster with the decided devices in use, those that are moved on their way."""
    moving = {
        device.device: task.node if device.route == Route.RECOMPOSED else ""
        for placement in decision.placements
        for task in placement.tasks
        for device in task.devices
    }
    devices = [
        msgspec.structs.replace(view, free=False, destination=moving[view.device.id])
        if view.device.id in moving
        else view
        for view in snapshot.devices
    ]
    return Snapshot(nodes=snapshot.nodes, devices=tuple(devices))


FOUR = (node("a", pools=reach("p")), node("b", pools=reach("p")), node("c", pools=reach("p")), node("d"))


def test_a_node_without_gpus_has_one_moved_to_it() -> None:
    decision = run(world(*FOUR, pooled("g0", "a")), job("j", gpus=1, node="c", routes=MOVED))
    assert given_to(decision, "j") == [("g0", "a", Route.RECOMPOSED)]
    assert "recomposed from pool p" in decision.placements[0].tasks[0].why


def test_what_no_node_has_is_moved_before_anything_is_taken_away() -> None:
    snapshot = world(*FOUR, pooled("g0", "a"), pooled("g9", ""))
    assert given_to(run(snapshot, job("j", gpus=1, node="c", routes=MOVED)), "j") == [("g9", "", Route.RECOMPOSED)]


def test_what_no_node_has_is_neither_lent_nor_local() -> None:
    decision = run(world(*FOUR, pooled("g9", "")), job("j", gpus=1, node="c"))
    assert not decision.placements
    assert misses(decision)[0].permanent


def test_the_node_with_the_fewest_free_devices_gives_first() -> None:
    # KubeComp, figure 5: of two nodes with one and two free GPUs, the one with one gives.
    snapshot = world(*FOUR, pooled("g0", "a"), pooled("g1", "a"), pooled("g2", "b"))
    for policy in (POLICY, KubeCompPolicy()):
        decision = run(snapshot, job("j", gpus=1, node="c", routes=MOVED), policy=policy)
        assert given_to(decision, "j") == [("g2", "b", Route.RECOMPOSED)]


def test_what_the_node_has_is_kept_and_the_rest_is_moved() -> None:
    # KubeComp, section IV-C: four wanted on a node with two free: "demand: 2".
    snapshot = world(*FOUR, *(pooled(f"g{n}", "a" if n < 2 else "b") for n in range(5)))
    decision = run(snapshot, job("j", gpus=4, node="a", routes=MOVED))
    routes = Counter(route for _, _, route in given_to(decision, "j"))
    assert routes == {Route.LOCAL: 2, Route.RECOMPOSED: 2}


def test_what_the_node_has_is_moved_around_where_the_job_allows_no_local_device() -> None:
    snapshot = world(*FOUR, pooled("g0", "a"), pooled("g1", "b"))
    decision = run(snapshot, job("j", gpus=1, node="a", routes=(Route.RECOMPOSED,)))
    assert given_to(decision, "j") == [("g1", "b", Route.RECOMPOSED)]


def test_least_demand_chooses_the_node_that_lacks_fewest() -> None:
    # KubeComp, equation 1: where no node has enough, the one that lacks least.
    snapshot = world(*FOUR, *(pooled(f"g{n}", on) for n, on in enumerate(("a", "b", "b", "c", "c", "c"))))
    decision = run(snapshot, job("j", gpus=4, routes=MOVED), policy=KubeCompPolicy())
    assert decision.placements[0].tasks[0].node == "c"


def test_a_pool_gives_to_its_own_nodes_alone() -> None:
    assert not run(world(*FOUR, pooled("g0", "a")), job("j", gpus=1, node="d", routes=MOVED)).placements
    decision = run(world(*FOUR, pooled("g0", "a")), job("j", gpus=1, node="d", routes=(Route.RECOMPOSED,)))
    assert not decision.placements
    assert [(miss.resource, miss.permanent) for miss in misses(decision)] == [("fabric pool", True)]


def test_a_bundle_comes_from_one_of_several_pools() -> None:
    nodes = (node("a", pools=reach("p")), node("b", pools=reach("q")), node("c", pools=reach("p", "q")))
    snapshot = world(*nodes, pooled("g0", "a"), pooled("g1", "b", "q"), pooled("g2", "b", "q"))
    decision = run(snapshot, job("j", gpus=2, node="c", routes=MOVED))
    assert {name for name, _, _ in given_to(decision, "j")} == {"g1", "g2"}


def test_the_pool_that_attaches_faster_is_preferred() -> None:
    nodes = (node("a", pools=reach("p")), node("b", pools=reach("q")))
    client = node("c", pools=(PoolReach(pool="p", attach_s=9.0), PoolReach(pool="q", attach_s=4.0)))
    snapshot = world(*nodes, client, pooled("g0", "a"), pooled("g1", "b", "q"))
    decision = run(snapshot, job("j", gpus=1, node="c", routes=MOVED))
    assert given_to(decision, "j") == [("g1", "b", Route.RECOMPOSED)]


def test_the_cost_of_moving_is_the_measured_time() -> None:
    snapshot = world(node("a"), node("c", pools=reach("p", attach_s=7.5)), pooled("g9", ""))
    first = run(snapshot, job("j", gpus=1, node="c", routes=MOVED)).placements[0].tasks[0].cost
    slower = world(node("a"), node("c", pools=reach("p", attach_s=8.5)), pooled("g9", ""))
    second = run(slower, job("j", gpus=1, node="c", routes=MOVED)).placements[0].tasks[0].cost
    # Once where phase 1 looks ahead, once for the arc itself.
    assert second - first == 2 * round(ATTACH_SECOND * SCALE)
    assert first >= round((RECOMPOSED + 7.5 * ATTACH_SECOND) * SCALE)


def test_under_kubecomp_pools_reservations_and_measured_times_count_too() -> None:
    policy = KubeCompPolicy()
    # V-C: a pool gives to its own nodes alone, and a node whose pool has too few is left out.
    nodes = (node("a", pools=reach("p")), node("b", pools=reach("q")))
    spare = (pooled("p0", ""), pooled("q0", "", "q"), pooled("q1", "", "q"))
    decision = run(world(*nodes, *spare), job("j", gpus=2, routes=MOVED), policy=policy)
    assert sorted(given_to(decision, "j")) == [("q0", "", Route.RECOMPOSED), ("q1", "", Route.RECOMPOSED)]
    assert decision.placements[0].tasks[0].node == "b"
    # What is on its way to another node is reserved: it is neither there nor here.
    moving = (pooled("q0", "", "q", destination="a"), pooled("q1", "", "q"))
    assert not run(world(*nodes, *moving), job("j", gpus=2, routes=MOVED), policy=policy).placements
    # The time of moving, as it was measured, is a cost; of two pools the faster one gives.
    both = node("c", pools=(PoolReach(pool="p", attach_s=9.0), PoolReach(pool="q", attach_s=4.0)))
    decision = run(world(both, *spare), job("j", gpus=1, routes=MOVED), policy=policy)
    assert [given[0] for given in given_to(decision, "j")] == ["q0"]


def test_a_slow_fabric_loses_to_the_network() -> None:
    for attach_s, route in ((5.0, Route.RECOMPOSED), (60.0, Route.REMOTE)):
        snapshot = world(node("a"), node("c", pools=reach("p", attach_s=attach_s)), pooled("g0", "a"))
        decision = run(snapshot, job("j", gpus=1, node="c", routes=ALL))
        assert [given[2] for given in given_to(decision, "j")] == [route]


def test_a_job_that_does_not_allow_it_is_never_moved_to() -> None:
    decision = run(world(*FOUR, pooled("g0", "a")), job("j", gpus=1, node="c"))
    assert given_to(decision, "j") == [("g0", "a", Route.REMOTE)]


def test_the_better_rank_has_the_last_device_of_a_pool() -> None:
    snapshot = world(*FOUR, pooled("g9", ""))
    pending = (job("low", gpus=1, node="a", routes=MOVED), job("high", gpus=1, node="c", routes=MOVED, priority=1))
    assert [placement.job for placement in run(snapshot, *pending).placements] == ["high"]


def test_a_device_on_its_way_is_nobodys() -> None:
    for free in (False, True):
        snapshot = world(*FOUR, pooled("g0", "a", destination="c", free=free))
        for on in ("a", "b", "c"):
            decision = run(snapshot, job("j", gpus=1, node=on, routes=ALL))
            assert not decision.placements
            assert decision.misses[0].feasible_alone, "it will be free again"


def test_kept_columns_know_a_device_that_sets_out_and_arrives() -> None:
    kept = columns.Columns()
    here = world(*FOUR, pooled("g0", "a"))
    away = world(*FOUR, pooled("g0", "a", destination="c"))
    there = world(*FOUR, pooled("g0", "c"))
    for snapshot, on, free in ((here, "a", True), (away, "c", False), (there, "c", True)):
        cluster = kept.of(snapshot)
        assert (cluster.names[cluster.device_node[0]], bool(cluster.device_free[0])) == (on, free)


def test_nonsense_of_a_node_about_its_fabric_is_not_believed() -> None:
    for attach_s in (-1.0, float("inf"), float("nan")):
        snapshot = world(node("c", pools=reach("p", attach_s=attach_s)), pooled("g9", ""))
        assert given_to(run(snapshot, job("j", gpus=1, routes=MOVED)), "j")


def test_a_job_that_could_be_served_later_waits_for_the_pool() -> None:
    decision = run(world(*FOUR, pooled("g0", "a", free=False)), job("j", gpus=1, node="c", routes=MOVED))
    (miss,) = misses(decision)
    assert not miss.permanent
    assert miss.short_by == 1
    assert decision.misses[0].feasible_alone


def test_baselines_move_devices_too() -> None:
    snapshot = world(*FOUR, pooled("g9", ""))
    for policy in (FirstFitPolicy(), BestFitPolicy(), RandomPolicy(seed=1)):
        assert given_to(run(snapshot, job("j", gpus=1, routes=MOVED), policy=policy), "j")


@st.composite
def pooled_worlds(draw: st.DrawFn) -> Snapshot:
    """Draw a cluster of which some devices are in pools, attached or not, some on their way."""
    base = draw(snapshots())
    pools = ("p", "q")
    nodes = [
        msgspec.structs.replace(
            view,
            pools=tuple(
                PoolReach(pool=pool, attach_s=draw(st.sampled_from((1.0, 5.0, 60.0))))
                for pool in draw(st.sets(st.sampled_from(pools)).map(sorted))
            ),
        )
        for view in base.nodes
    ]
    views = [*base.devices, *(gpu(f"u{n}", "") for n in range(draw(st.integers(0, 4))))]
    devices = []
    for view in views:
        pool = draw(st.sampled_from(pools if not view.node else ("", *pools)))
        destination = draw(st.sampled_from(("", "", "", "n0"))) if pool and view.node and nodes else ""
        device = msgspec.structs.replace(view.device, pool=pool)
        devices.append(msgspec.structs.replace(view, device=device, destination=destination))
    return Snapshot(nodes=tuple(nodes), devices=tuple(devices))


ROUTES = [tuple(route for n, route in enumerate(ALL) if mask >> n & 1) for mask in range(1, 8)]


@st.composite
def queues(draw: st.DrawFn) -> list[PendingJob]:
    jobs = []
    for entry in draw(pending_jobs()):
        groups = tuple(msgspec.structs.replace(part, routes=draw(st.sampled_from(ROUTES))) for part in entry.job.groups)
        jobs.append(
            PendingJob(job=msgspec.structs.replace(entry.job, groups=groups), rounds_waited=entry.rounds_waited)
        )
    return jobs


@given(pooled_worlds(), queues(), st.sampled_from((POLICY, KubeCompPolicy())))
@settings(max_examples=100)
def test_every_promise_is_kept_over_two_rounds(snapshot: Snapshot, pending: list[PendingJob], policy: Policy) -> None:
    decision = run(snapshot, *pending, policy=policy)
    left = [entry for entry in pending if entry.job.id in {miss.job for miss in decision.misses}]
    # What the first round has sent on its way is reserved in the second.
    run(after(snapshot, decision), *left, policy=policy)


@given(pooled_worlds(), queues(), st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_the_order_of_the_input_changes_nothing(
    snapshot: Snapshot, pending: list[PendingJob], draw: random.Random
) -> None:
    devices, jobs = list(snapshot.devices), list(pending)
    draw.shuffle(devices)
    draw.shuffle(jobs)
    shuffled = Snapshot(nodes=snapshot.nodes[::-1], devices=tuple(devices))
    first, second = decide(snapshot, pending, policy=POLICY), decide(shuffled, jobs, policy=POLICY)
    assert {each.job: each for each in first.placements} == {each.job: each for each in second.placements}


@given(pooled_worlds())
def test_what_is_said_of_moving_is_a_lower_bound(snapshot: Snapshot) -> None:
    cluster = columns.from_snapshot(snapshot)
    accepted = GpuPhase().matches(cluster, GpuFilter("", 0))
    held = np.bincount(cluster.device_node[accepted & cluster.device_free], minlength=cluster.size)
    movable = Movable(cluster, accepted, cluster.device_free, held.astype(np.int64))
    start, sums = movable.donations(cluster.device_free, POLICY, None)
    for pair in range(len(cluster.fabric.node)):
        pool = int(cluster.fabric.pool[pair])
        rows, cost = movable.donors(pool, int(cluster.fabric.node[pair]), cluster.device_free, POLICY, None)
        assert len(rows) == movable.free[pool] - movable.own[pair]
        told = sums[start[pool] : start[pool] + len(rows) + 1] - sums[start[pool]]
        assert (told <= np.append(0, np.cumsum(cost))).all()
