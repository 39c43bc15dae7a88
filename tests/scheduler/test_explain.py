"""What people are told: why a task is where it is, and why a job waits."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from farbus.model.decision import Decision, DeviceView, NodeView, PendingJob, Snapshot
from farbus.model.device import Route
from farbus.model.job import Miss
from farbus.scheduler.costs.baselines import FirstFitPolicy
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.firmament import FirmamentPolicy
from farbus.scheduler.round import HOLD_ROUNDS, decide
from tests.scheduler.test_never import ring
from tests.scheduler.worlds import GIB, gpu, group, job, node, node_of, world

DEMO = Snapshot(
    nodes=(node("alpha"), node("beta", cpus=4, free_cpus=1), node("gamma", labels={"disk": "ssd"})),
    devices=(gpu("g0", "alpha"), gpu("g1", "alpha", free=False), gpu("g2", "beta", memory_gib=16, model="T4")),
)


def misses(pending: PendingJob, snapshot: Snapshot = DEMO) -> tuple[Miss, ...]:
    decision = decide(snapshot, [pending], policy=DefaultPolicy())
    assert not decision.placements
    return decision.misses[0].misses


def miss(pending: PendingJob, snapshot: Snapshot = DEMO) -> Miss:
    found = misses(pending, snapshot)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("pending", "message", "short_by", "permanent"),
    [
        (job("j", node="alhpa"), "there is no node called alhpa (is it alpha?)", 0, True),
        (job("j", labels={"disk": "tape"}), "no node has the labels disk=tape", 0, True),
        (
            job("j", labels={"disk": "ssd"}, node="beta"),
            "node beta does not have the labels disk=ssd",
            0,
            True,
        ),
        (
            job("j", cpus=9.5),
            "a task of group main needs 9.5 CPUs; the closest node, alpha, has 8 in all",
            1500,
            True,
        ),
        (
            job("j", memory_gib=40),
            "a task of group main needs 40 GiB of memory; the closest node, alpha, has 32 GiB in all",
            8 * GIB,
            True,
        ),
        (
            job("j", cpus=4, node="beta"),
            "a task of group main needs 4 CPUs; node beta has 1 free: 3 short",
            3000,
            False,
        ),
        (
            job("j", count=3, cpus=8),
            "group main has 3 tasks; the cluster holds 2 of them when nothing else runs",
            1,
            True,
        ),
        (job("j", count=5, cpus=4), "there is room for 4 of the 5 tasks of group main now", 1, False),
        (job("j", gpus=9), "9 GPUs wanted; the cluster has 3: 6 short", 6, True),
        (
            job("j", gpus=1, gpu_model="H100"),
            "no GPU of the cluster has 'h100' in its model; there are 2 Software A100, 1 T4",
            0,
            True,
        ),
        (job("j", gpus=1, gpu_memory_gib=100), "no GPU has 100 GiB of memory; the largest has 80 GiB", 20 * GIB, True),
        (
            job("j", gpus=1, gpu_model="t4", gpu_memory_gib=40),
            "no GPU with 't4' in its model has 40 GiB of memory; the largest has 16 GiB",
            24 * GIB,
            True,
        ),
        (job("j", gpus=1, node="gamma", routes=(Route.LOCAL,)), "1 GPU wanted; node gamma has 0: 1 short", 1, True),
        (
            job("j", gpus=2, gpu_model="a100"),
            "2 GPUs wanted; the cluster has 1 that suits and is free: 1 short",
            1,
            False,
        ),
        (
            job("j", gpus=2),
            "2 GPUs on one node wanted; alpha comes closest with 1 free",
            1,
            False,
        ),
    ],
)
def test_the_nearest_miss_is_told(pending: PendingJob, message: str, short_by: int, permanent: bool) -> None:
    found = miss(pending)
    assert found.message == message
    assert found.short_by == short_by
    assert found.permanent == permanent


def test_a_cluster_without_nodes_says_so() -> None:
    assert miss(job("j"), Snapshot(nodes=(), devices=())).message == "the cluster has no node that takes tasks"


def test_a_cluster_without_gpus_says_so() -> None:
    world = Snapshot(nodes=(node("a"),), devices=())
    assert miss(job("j", gpus=1), world).message == "the cluster has no GPU"


def test_every_phase_tells_its_own_miss() -> None:
    found = misses(job("j", cpus=4, node="beta", gpus=9))
    assert [part.phase for part in found] == ["compute", "gpu"]


def test_parts_that_fit_only_one_by_one_are_told_as_such() -> None:
    world = Snapshot(nodes=(node("a", cpus=2),), devices=())
    found = miss(job("j", group("x", cpus=2), group("y", cpus=1)), world)
    assert found.permanent
    assert "not all of them together" in found.message


def test_a_placed_task_tells_route_and_next_best() -> None:
    decision = decide(DEMO, [job("j", gpus=1, gpu_model="a100")], policy=DefaultPolicy())
    why = decision.placements[0].tasks[0].why
    assert why.startswith("alpha at cost ")
    assert "1 GPU local at cost 0" in why


def test_a_lent_device_tells_its_lender() -> None:
    world = Snapshot(
        nodes=(node("far", rack="r2"), node("near", rack="r1"), node("here", rack="r1")),
        devices=(gpu("g0", "far"), gpu("g1", "near")),
    )
    decision = decide(world, [job("j", gpus=1, node="here")], policy=DefaultPolicy())
    why = decision.placements[0].tasks[0].why
    assert re.fullmatch(
        r"here at cost 2\.\d+ because the job names it; "
        r"1 GPU remote from near at cost 2 \(remote: next best far at 2\.2\)",
        why,
    )


@pytest.mark.parametrize("node_named", ["", "gamma"])
def test_what_is_told_of_each_phase_adds_up_to_what_it_costs_in_all(node_named: str) -> None:
    decision = decide(DEMO, [job("j", gpus=1, node=node_named)], policy=DefaultPolicy())
    assert_costs_add_up(decision, phases=2)


def test_the_cost_of_a_node_is_told_where_room_was_kept_for_the_job() -> None:
    snapshot, entry = ring(3)
    decision = decide(snapshot, [replace(entry, rounds_waited=HOLD_ROUNDS)], policy=DefaultPolicy())
    assert "where room was kept" in decision.placements[0].tasks[0].why
    assert_costs_add_up(decision, phases=2)


def assert_costs_add_up(decision: Decision, *, phases: int) -> None:
    for task in decision.placements[0].tasks:
        told = [float(cost) for cost in re.findall(r" at cost (\d+(?:\.\d+)?)", task.why)]
        assert len(told) == phases, task.why
        assert round(1000 * sum(told)) == task.cost > 0, task.why


def test_how_many_nodes_are_short_and_which_is_closest_is_told() -> None:
    short = miss(job("j", count=5, cpus=4))
    assert (short.nodes, short.nodes_short, short.closest, short.closest_short_by) == (3, 1, "beta", 3000)
    gpus = miss(job("j", gpus=2))
    assert (gpus.nodes, gpus.nodes_short, gpus.closest, gpus.closest_short_by) == (2, 2, "alpha", 1)


def test_a_policy_that_does_not_go_by_cost_calls_no_cheaper_node_full() -> None:
    world = Snapshot(nodes=(node("a"), node("b", free_cpus=4)), devices=())
    (placement,) = decide(world, [job("j", group())], policy=FirstFitPolicy()).placements
    assert placement.tasks[0].node == "a"
    assert "cheaper ones such as b" in placement.tasks[0].why
    assert "the policy does not go by cost" in placement.tasks[0].why


def test_what_a_policy_never_does_is_told_with_its_name() -> None:
    # It lends no devices.
    world = Snapshot(nodes=(node("a"), node("b")), devices=(gpu("g", "b"),))
    (found,) = decide(world, [job("j", group(gpus=1, node="a"))], policy=FirmamentPolicy()).misses
    assert found.misses[-1].message.endswith("not all of them together under policy firmament")


def apart(*parts: NodeView | DeviceView) -> Snapshot:
    """Nodes a and b that encrypt, and c, which does not and is larger; only a has a GPU."""
    nodes = [node(name, remoting_tls="on") for name in ("a", "b")]
    return world(*nodes, node("c", cpus=16, remoting_tls="off"), gpu("g", "a"), *parts)


DIFFER = "remoting_tls is off at c, and on at a, b: programs of the ones can't use GPUs of the others"


def test_a_job_does_not_go_where_the_gpu_would_refuse_its_session() -> None:
    decision = decide(apart(), [job("j", cpus=2, gpus=1, routes=(Route.REMOTE,))], policy=DefaultPolicy())
    assert node_of(decision, "j") == ["b"]


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize(
    ("routes", "who"),
    [
        ((Route.LOCAL, Route.REMOTE), "what may lend to node c with that node"),
        ((Route.REMOTE,), "what may lend to node c"),
    ],
)
def test_a_job_that_must_run_where_no_gpu_takes_its_session_is_told_why(
    free: bool, routes: tuple[Route, ...], who: str
) -> None:
    snapshot = replace(apart(), devices=(gpu("g", "a", free=free),))
    found = miss(job("j", gpus=1, node="c", routes=routes), snapshot)
    assert found.message == f"1 GPU wanted; {who} has 0: 1 short; {DIFFER}"
    assert found.permanent


def test_a_job_that_needs_a_node_whose_sessions_the_gpu_refuses_is_told_why() -> None:
    found = miss(job("j", cpus=12, gpus=1), apart())
    assert found.permanent
    assert found.message.endswith(f"; {DIFFER}")
    assert DIFFER not in miss(job("j", cpus=12, gpus=1, routes=(Route.LOCAL,)), apart()).message


def test_a_job_whose_gpus_may_come_later_waits_for_those_that_take_its_session() -> None:
    snapshot = apart(gpu("h", "c", free=False))
    found = miss(job("j", gpus=1, node="c"), snapshot)
    told = f"what may lend to node c with that node has 0 that suit and are free: 1 short; {DIFFER}"
    assert (found.message, found.permanent) == (f"1 GPU wanted; {told}", False)
    # Whoever is put at c by another job's GPU is told of the free one, and why it is none for him.
    (found,) = misses(job("j", group(cpus=12, gpus=1)), snapshot)
    assert found.message.endswith(DIFFER)


@pytest.mark.parametrize("others", ["on", "off", ""])
def test_an_older_agent_that_does_not_tell_whether_it_encrypts_is_taken_for_one_of_the_others(others: str) -> None:
    snapshot = world(node("a", remoting_tls=others), node("old"), gpu("g", "a"))
    decision = decide(snapshot, [job("j", gpus=1, node="old")], policy=DefaultPolicy())
    assert decision.placements


@pytest.mark.parametrize(("lender", "placed"), [("on", True), ("off", False)])
def test_where_the_others_differ_an_older_agent_is_taken_to_encrypt(lender: str, placed: bool) -> None:
    other = "off" if lender == "on" else "on"
    snapshot = world(node("a", remoting_tls=lender), node("b", remoting_tls=other), node("old"), gpu("g", "a"))
    decision = decide(snapshot, [job("j", gpus=1, node="old")], policy=DefaultPolicy())
    assert bool(decision.placements) is placed
