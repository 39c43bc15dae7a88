"""The network of nodes as a resource: what a task asks for of its node's link, and what remote devices take at both."""

from __future__ import annotations

import functools
import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.model.decision import DeviceView, JobPlacement, NodeView, PendingJob, Snapshot
from farbus.model.device import Route
from farbus.model.job import DevicePlacement, Job, Requests, TaskPlacement
from farbus.model.node import Node, Resources
from farbus.scheduler import events
from farbus.scheduler.costs.baselines import BestFitPolicy, FirstFitPolicy, RandomPolicy
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.drmaestro import DRMaestroPolicy
from farbus.scheduler.costs.fgd import FGDPolicy
from farbus.scheduler.costs.firmament import FirmamentPolicy
from farbus.scheduler.costs.hire import HirePolicy
from farbus.scheduler.costs.kubecomp import KubeCompPolicy
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.openings import holding_of, without
from farbus.scheduler.phases.cluster import UNCOUNTED, Columns, from_snapshot
from farbus.scheduler.room_planner import _is_enough
from farbus.scheduler.round import decide, decide_on
from tests.scheduler import scripted
from tests.scheduler.worlds import (
    after,
    check_decision,
    gpu,
    group,
    job,
    node,
    node_of,
    pending_jobs,
    snapshots,
    world,
)

POLICY = DefaultPolicy()
POLICIES: tuple[Policy, ...] = (
    POLICY,
    FirstFitPolicy(),
    BestFitPolicy(),
    RandomPolicy(seed=1),
    FirmamentPolicy(),
    KubeCompPolicy(),
    DRMaestroPolicy(),
    HirePolicy(),
    FGDPolicy(),
)
REMOTE = (Route.REMOTE,)


def lender(name: str, gpus: int, *, network: int, **more: int) -> tuple[NodeView | DeviceView, ...]:
    """Return a node that has GPUs and no processors to spare."""
    devices = (gpu(f"{name}-{number}", name) for number in range(gpus))
    return node(name, cpus=1, free_cpus=0, network=network, **more), *devices


def placed(snapshot: Snapshot, jobs: list[PendingJob], policy: Policy = POLICY) -> list[str]:
    decision = decide(snapshot, jobs, policy=policy)
    check_decision(snapshot, jobs, decision)
    return sorted(placement.job for placement in decision.placements)


def message_of(snapshot: Snapshot, jobs: list[PendingJob]) -> tuple[str, str, bool]:
    """Return resource and words of the first miss of the one job that waits, and whether it is for good."""
    (missed,) = decide(snapshot, jobs, policy=POLICY).misses
    return missed.misses[0].resource, missed.misses[0].message, missed.misses[0].permanent


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_task_goes_where_the_link_has_room(policy: Policy) -> None:
    snapshot = world(node("a", network=10_000, free_network=500), node("b", network=10_000))
    decision = decide(snapshot, [job("j", network=1000)], policy=policy)
    assert node_of(decision, "j") == ["b"]


def test_a_job_waits_while_the_link_is_full_and_is_told_so() -> None:
    full = world(node("a", network=10_000, free_network=500))
    assert placed(full, [job("j", network=1000)]) == []
    assert message_of(full, [job("j", network=1000)]) == (
        "network_mbit_s",
        "a task of group main needs 1 Gbit/s of network; the closest node, a, has 500 Mbit/s free: 500 Mbit/s short",
        False,
    )
    assert placed(world(node("a", network=10_000)), [job("j", network=1000)]) == ["j"]


def test_more_than_any_link_has_is_refused_for_good() -> None:
    resource, message, permanent = message_of(world(node("a", network=1000)), [job("j", network=2000)])
    assert (resource, permanent) == ("network_mbit_s", True)
    assert message.endswith("needs 2 Gbit/s of network; the closest node, a, has 1 Gbit/s in all")


def test_a_link_whose_speed_nobody_knows_is_not_counted() -> None:
    snapshot = world(node("a", cpus=8, network=0))
    assert from_snapshot(snapshot).free[0, 2] == UNCOUNTED
    assert len(placed(snapshot, [job(f"j{number}", network=10**6) for number in range(8)])) == 8


def test_columns_that_are_kept_know_what_is_not_counted() -> None:
    columns = Columns()
    columns.of(world(node("a", network=0), node("b", network=1000)))
    kept = columns.of(world(node("a", network=0, free_cpus=1), node("b", network=1000, free_network=200)))
    assert kept.free[:, 2].tolist() == [UNCOUNTED, 200]


def test_a_lender_gives_no_more_than_its_link_carries() -> None:
    snapshot = world(node("client"), *lender("lender", 4, network=250))
    jobs = [job(f"j{number}", gpus=1, remote=100) for number in range(4)]
    assert len(placed(snapshot, jobs)) == 2
    resource, message, permanent = message_of(after(snapshot, jobs, decide(snapshot, jobs, policy=POLICY)), jobs[2:3])
    assert (resource, permanent) == ("network_mbit_s", False)
    assert message == (
        "a task of group main takes 100 Mbit/s of network at both ends of 1 remote GPU; "
        "of a lender the closest, lender, has 50 Mbit/s free: 50 Mbit/s short"
    )


def test_a_node_borrows_no_more_than_its_link_carries() -> None:
    snapshot = world(node("client", network=250), *lender("lender", 4, network=0))
    jobs = [job(f"j{number}", gpus=1, remote=100) for number in range(4)]
    assert len(placed(snapshot, jobs)) == 2
    rest = after(snapshot, jobs, decide(snapshot, jobs, policy=POLICY))
    assert "of the task's own node the closest, client, has 50 Mbit/s free" in message_of(rest, jobs[2:3])[1]


def test_what_a_task_asks_for_and_what_its_devices_take_add_up() -> None:
    snapshot = world(node("client", network=250), *lender("lender", 4, network=0))
    assert placed(snapshot, [job("j", gpus=1, remote=100, network=150)]) == ["j"]
    assert placed(snapshot, [job("j", gpus=1, remote=100, network=151)]) == []


def test_each_of_several_devices_takes_its_part() -> None:
    jobs = [job("j", gpus=3, remote=100)]
    assert placed(world(node("client"), *lender("lender", 4, network=300)), jobs) == ["j"]
    assert placed(world(node("client"), *lender("lender", 4, network=299)), jobs) == []


def test_local_devices_take_no_network() -> None:
    snapshot = world(node("a", network=10), gpu("g", "a"))
    assert placed(snapshot, [job("j", gpus=1, remote=100)]) == ["j"]


def test_a_task_runs_beside_its_devices_where_links_are_full() -> None:
    # The one that can go nowhere else has the network that there is.
    snapshot = world(
        node("client", network=100),
        node("own", network=1000, free_network=0),
        gpu("g", "own"),
        *lender("x", 1, network=0),
    )
    decision = decide(
        snapshot, [job("far", gpus=1, remote=100, node="client"), job("near", gpus=1, remote=100)], policy=POLICY
    )
    assert node_of(decision, "far") == ["client"]
    assert node_of(decision, "near") == ["own"]


def test_tasks_of_one_node_share_its_link_between_near_and_far_devices() -> None:
    # Two of three have the node's own GPUs, and its link carries one more.
    snapshot = world(node("a", network=100), gpu("a0", "a"), gpu("a1", "a"), *lender("b", 4, network=0))
    tasks = group(gpus=1, remote=100, count=3, node="a")
    assert placed(snapshot, [job("j", tasks)]) == ["j"]
    assert placed(snapshot, [job("j", group(gpus=1, remote=100, count=4, node="a"))]) == []


def test_tasks_of_several_shapes_share_the_link_of_their_node() -> None:
    snapshot = world(node("a", network=300), *lender("b", 8, network=0))
    jobs = [job("big", gpus=2, remote=100, node="a"), job("small", gpus=1, remote=100, node="a"), job("none", node="a")]
    assert placed(snapshot, jobs) == ["big", "none", "small"]
    assert len(placed(snapshot, [*jobs, job("more", gpus=1, remote=100, node="a")])) == 3


def test_a_node_lends_and_borrows_by_one_link() -> None:
    # Each wants the other's kind of GPU; one link carries one of the two.
    parts = (gpu("a0", "a", model="A100"), gpu("b0", "b", model="H100"))
    jobs = [
        job("wants-h", gpus=1, gpu_model="h100", remote=100, node="a"),
        job("wants-a", gpus=1, gpu_model="a100", remote=100, node="b"),
    ]
    assert len(placed(world(node("a", network=200), node("b", network=200), *parts), jobs)) == 2
    assert len(placed(world(node("a", network=199), node("b", network=200), *parts), jobs)) == 1


def test_a_job_that_waited_long_has_network_kept_at_both_ends() -> None:
    snapshot = world(node("client", network=400, free_network=100), *lender("lender", 4, network=400, free_network=300))
    jobs = [job("large", gpus=4, remote=100, waited=40), *(job(f"s{n}", gpus=1, remote=100, at=n) for n in range(1, 4))]
    # All that is free of the client's link, and of the lender's, is kept for it.
    assert placed(snapshot, jobs) == []
    assert placed(snapshot, jobs[1:]) == ["s1"]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@given(snapshots(), pending_jobs())
@settings(max_examples=20, deadline=None)
def test_nothing_is_overcommitted(policy: Policy, snapshot: Snapshot, pending: list[PendingJob]) -> None:
    check_decision(snapshot, pending, decide(snapshot, pending, policy=policy))


@given(snapshots(), pending_jobs(), pending_jobs(most=4))
@settings(max_examples=30, deadline=None)
def test_decisions_on_kept_desks_are_those_of_new_ones(
    snapshot: Snapshot, first: list[PendingJob], second: list[PendingJob]
) -> None:
    columns = Columns()
    for pending in (first, second, first):
        kept = decide_on(columns.of(snapshot), pending, policy=POLICY)
        check_decision(snapshot, pending, kept)
        assert kept == decide(snapshot, pending, policy=POLICY)
        snapshot = after(snapshot, pending, kept)


@given(
    links=st.lists(st.integers(1, 6), min_size=2, max_size=3),
    wanted=st.lists(st.integers(1, 3), min_size=1, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_no_task_waits_while_both_ends_have_room(links: list[int], wanted: list[int]) -> None:
    client, *lenders = links
    snapshot = world(
        node("client", cpus=8, network=client),
        *itertools.chain(*(lender(f"l{row}", 2, network=network) for row, network in enumerate(lenders))),
    )
    jobs = [job(f"j{row}", gpus=1, remote=units) for row, units in enumerate(wanted)]
    decision = decide(snapshot, jobs, policy=POLICY)
    check_decision(snapshot, jobs, decision)
    left = after(snapshot, jobs, decision)
    network = {view.name: view.free.network_mbit_s for view in left.nodes}
    lending = {view.node for view in left.devices if view.free}
    for missed in decision.misses:
        (requests,) = [each.job.groups[0].requests for each in jobs if each.job.id == missed.job]
        units = requests.remote_network_mbit_s or 0
        assert network["client"] < units or all(network[name] < units for name in lending)


# What the ledger's books say.


def site(name: str, gpus: int = 0, *, network: int = 0) -> Node:
    plain = scripted.node(name, gpus)
    return msgspec.structs.replace(plain, capacity=msgspec.structs.replace(plain.capacity, network_mbit_s=network))


def wants(job_id: str, *, gpus: int = 0, remote: int | None = None, network: int = 0, on: str = "") -> Job:
    made = scripted.job(job_id, gpus=gpus, on=on)
    requests = Requests(gpus=gpus, remote_network_mbit_s=remote, network_mbit_s=network)
    return msgspec.structs.replace(made, groups=(msgspec.structs.replace(made.groups[0], requests=requests),))


@pytest.fixture
def deciding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rounds of scripted clusters decided by the real decision maker."""
    monkeypatch.setattr(scripted, "first_fit", functools.partial(decide, policy=POLICY))


def network_used(cluster: scripted.Cluster) -> dict[str, int]:
    cluster.machine.check_invariants(now=cluster.now)
    return {name: record.used.network_mbit_s for name, record in cluster.machine.nodes.items()}


@pytest.mark.usefixtures("deciding")
def test_a_job_starts_when_another_one_leaves_the_link() -> None:
    cluster = scripted.Cluster(site("a", network=1000))
    cluster.join()
    cluster.submit(wants("j1", network=600), wants("j2", network=600))
    cluster.settle()
    assert [cluster.state_of(each) for each in ("j1", "j2")] == ["running", "queued"]
    assert network_used(cluster) == {"a": 600}
    assert [miss.resource for miss in cluster.machine.jobs["j2"].misses] == ["network_mbit_s"]
    cluster.tell(cluster.agents["a"].exit("j1", "main.0"))
    cluster.settle()
    assert [cluster.state_of(each) for each in ("j1", "j2")] == ["succeeded", "running"]
    assert network_used(cluster) == {"a": 600}


@pytest.mark.usefixtures("deciding")
def test_remote_devices_are_counted_at_both_ends_until_their_job_ends() -> None:
    cluster = scripted.Cluster(site("lender", 4, network=250), site("client", network=1000))
    cluster.join()
    cluster.submit(*(wants(f"j{number}", gpus=1, remote=100, on="client") for number in range(1, 4)))
    cluster.settle()
    assert [cluster.state_of(f"j{number}") for number in range(1, 4)] == ["running", "running", "queued"]
    assert network_used(cluster) == {"lender": 200, "client": 200}
    assert [miss.resource for miss in cluster.machine.jobs["j3"].misses] == ["network_mbit_s"]
    # A restart of the scheduler counts the same.
    cluster.restart()
    cluster.join()
    assert network_used(cluster) == {"lender": 200, "client": 200}
    cluster.tell(cluster.agents["client"].exit("j1", "main.0"))
    cluster.settle()
    assert cluster.state_of("j3") == "running"
    assert network_used(cluster) == {"lender": 200, "client": 200}


@pytest.mark.parametrize(("lender_mbit_s", "client_mbit_s"), [(150, 1000), (1000, 150)])
def test_the_ledger_refuses_a_plan_that_overcommits_either_end(lender_mbit_s: int, client_mbit_s: int) -> None:
    cluster = scripted.Cluster(site("lender", 4, network=lender_mbit_s), site("client", network=client_mbit_s))
    cluster.join()
    cluster.submit(wants("j1", gpus=2, remote=100, on="client"))
    devices = tuple(
        DevicePlacement(device=f"GPU-lender-{number}", node="lender", route=Route.REMOTE) for number in range(2)
    )
    plan = JobPlacement(job="j1", tasks=(TaskPlacement(task="main.0", node="client", devices=devices),))
    full = "lender" if lender_mbit_s < 200 else "client"
    record = cluster.machine.jobs["j1"]
    assert cluster.machine.placement_problem(record, plan) == f"node {full} has no room"
    # Once something has ended there.
    more = {full: Resources(network_mbit_s=50)}
    assert cluster.machine.placement_problem(record, plan, also_free=more) == ""


def test_the_end_of_a_job_frees_both_ends_in_the_search_for_what_would_have_to_end() -> None:
    cluster = scripted.Cluster(site("lender", 2, network=100), site("client", network=100))
    cluster.join()
    lent = wants("j1", gpus=1, remote=100, on="client")
    cluster.submit(lent)
    decision = decide(cluster.machine.snapshot(cluster.now), [PendingJob(job=lent)], policy=POLICY)
    _, _, generation = cluster.machine.round_input(cluster.now)
    cluster.tell(events.RoundDecided(decision=decision, generation=generation))
    held = holding_of(cluster.machine, cluster.machine.jobs["j1"])
    assert {name: room.network_mbit_s for name, room in held.room.items()} == {"lender": 100, "client": 100}
    snapshot = cluster.machine.snapshot(cluster.now)
    assert [view.free.network_mbit_s for view in snapshot.nodes] == [0, 0]
    assert [view.free.network_mbit_s for view in without(snapshot, [held]).nodes] == [100, 100]


@pytest.mark.parametrize(("network", "enough"), [(1000, True), (1001, False)])
def test_moves_are_looked_for_only_where_all_links_together_have_room(network: int, enough: bool) -> None:
    snapshot = world(*(node(name, network=1000, free_network=500) for name in "ab"))
    assert _is_enough(snapshot, job("j", network=network).job) is enough
    # Where somebody's link is not counted, any job may have its room there.
    assert _is_enough(world(*snapshot.nodes, node("c")), job("j", network=network).job)


def test_what_flavours_leave_out_need_not_be_free() -> None:
    snapshot = world(node("a", cpus=4))
    either = job("j", group("small", cpus=3, flavour="0"), group("large", cpus=2, gpus=1, flavour="1")).job
    assert _is_enough(snapshot, either)
    neither = job("j", group("small", cpus=5, flavour="0"), group("large", cpus=2, gpus=1, flavour="1")).job
    assert not _is_enough(snapshot, neither)
