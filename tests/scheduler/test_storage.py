"""Storage of drives: where it is, how many drives are used as one, and what no drive may bear."""

from __future__ import annotations

import math
import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.model.decision import Decision, DeviceView, PendingJob, Snapshot, StorageShare
from farbus.model.device import Device, DeviceKind, PoolReach, Route
from farbus.model.job import DevicePlacement, Miss, StorageRequest
from farbus.model.node import STORAGE_ATTACH_S
from farbus.scheduler.composition.rules import (
    DisaggregationAware,
    Load,
    MaximizeComposition,
    MinimizeFragmentation,
)
from farbus.scheduler.costs.baselines import BestFitPolicy, FirstFitPolicy, RandomPolicy
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.policy import ATTACH_SECOND, SCALE, Policy
from farbus.scheduler.costs.workload_aware import WorkloadAwarePolicy
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.phases.jobs import Forms
from farbus.scheduler.round import PHASES, decide, decide_on
from tests.scheduler.worlds import due, gpu, group, job, node, pending_jobs, snapshots, world

GB = 10**9
POLICY = DefaultPolicy()
AWARE = WorkloadAwarePolicy()


class Maximizing(DefaultPolicy):
    name = "maximizing"
    composition = MaximizeComposition()


class Minimizing(DefaultPolicy):
    name = "minimizing"
    composition = MinimizeFragmentation()


def drive(
    name: str,
    on: str,
    *,
    gb: int = 1000,
    mb_per_s: int = 2000,
    free: bool = True,
    pool: str = "",
    destination: str = "",
    shares: tuple[StorageShare, ...] = (),
) -> DeviceView:
    device = Device(
        id=name,
        kind=DeviceKind.NVME,
        model="drive",
        memory_bytes=gb * GB,
        bandwidth_bytes_per_s=mb_per_s * 10**6,
        pool=pool,
    )
    return DeviceView(device=device, node=on, free=free, destination=destination, shares=shares)


def share(gb: int = 10, mb_per_s: int = 100, **more: object) -> StorageShare:
    return StorageShare(size_bytes=gb * GB, bandwidth_bytes_per_s=mb_per_s * 10**6, **more)  # type: ignore[arg-type]


def want(name: str = "scratch", *, gb: int = 100, mb_per_s: int = 0, **more: object) -> StorageRequest:
    return StorageRequest(
        name=name,
        size_bytes=gb * GB,
        bandwidth_bytes_per_s=mb_per_s * 10**6,
        **more,  # type: ignore[arg-type]
    )


def run(snapshot: Snapshot, *pending: PendingJob, policy: Policy = POLICY) -> Decision:
    decision = decide(snapshot, pending, policy=policy)
    check_storage(snapshot, list(pending), decision)
    return decision


def given_to(decision: Decision, name: str) -> list[DevicePlacement]:
    return [
        device
        for placement in decision.placements
        if placement.job == name
        for task in placement.tasks
        for device in task.devices
        if device.storage
    ]


def misses(decision: Decision) -> list[Miss]:
    return [part for miss in decision.misses for part in miss.misses]


def check_storage(snapshot: Snapshot, pending: list[PendingJob], decision: Decision) -> None:
    """Assert by sums of its own that no drive bears more than it can, and each task has all that it wants."""
    jobs = {entry.job.id: entry.job for entry in pending}
    devices = {view.device.id: view for view in snapshot.devices}
    reaches = {view.name: {reach.pool for reach in view.pools} for view in snapshot.nodes}
    used_bytes: Counter[str] = Counter()
    used_bytes_per_s: Counter[str] = Counter()
    moved: dict[str, int] = {}
    users: Counter[str] = Counter()
    for placement in decision.placements:
        groups = {tasks.name: tasks for tasks in jobs[placement.job].groups}
        for task in placement.tasks:
            tasks = groups[task.task.rsplit(".", 1)[0]]
            for request in tasks.storage:
                own = [device for device in task.devices if device.storage == request.name]
                assert own
                assert len({device.device for device in own}) == len(own), "a stripe is over different drives"
                assert not request.devices or len(own) == request.devices
                assert sum(device.size_bytes for device in own) >= request.size_bytes
                assert sum(device.bandwidth_bytes_per_s for device in own) >= request.bandwidth_bytes_per_s
                assert len({device.route for device in own}) == 1
                if own[0].route != Route.RECOMPOSED:
                    assert len({device.node for device in own}) == 1, "a stripe is of one node"
                for device in own:
                    view = devices[device.device]
                    assert view.free
                    assert not view.destination
                    assert view.device.kind is DeviceKind.NVME
                    assert device.node == view.node
                    assert device.route in (request.routes or tasks.routes)
                    assert (device.route == Route.LOCAL) == (device.node == task.node)
                    if device.route == Route.RECOMPOSED:
                        assert view.device.pool in reaches[task.node]
                        assert not view.shares, "what others use is not moved"
                        moved[device.device] = moved.get(device.device, 0) + 1
                    # A profile that nobody knows is as good as none.
                    is_known = request.profile == "smufin"
                    assert all((each.profile == "smufin") == is_known for each in view.shares), "kinds are not mixed"
                    used_bytes[device.device] += device.size_bytes
                    used_bytes_per_s[device.device] += device.bandwidth_bytes_per_s
                    users[device.device] += 1
            assert {device.storage for device in task.devices if device.storage} == {
                each.name for each in tasks.storage
            }
    for name, amount in used_bytes.items():
        view = devices[name]
        assert amount + sum(each.size_bytes for each in view.shares) <= view.device.memory_bytes
        taken = sum(each.bandwidth_bytes_per_s for each in view.shares)
        assert used_bytes_per_s[name] + taken <= view.device.bandwidth_bytes_per_s
    assert all(users[name] == 1 for name in moved), "a device on its way is under two placements"
    assert decision.report.certified or not decision.report.solves


# Where it is.


def test_storage_is_local_where_the_node_has_drives() -> None:
    decision = run(world(node("a"), node("b"), drive("d0", "b")), job("j", group(storage=(want(),))))
    (given,) = given_to(decision, "j")
    assert (given.device, given.route, given.size_bytes) == ("d0", Route.LOCAL, 100 * GB)
    assert "storage scratch of 93.1 GiB local" in decision.placements[0].tasks[0].why


def test_storage_comes_over_the_network_to_a_node_without_drives() -> None:
    decision = run(world(node("a"), node("b"), drive("d0", "b")), job("j", group(storage=(want(),), node="a")))
    assert [(given.node, given.route) for given in given_to(decision, "j")] == [("b", Route.REMOTE)]


def price(decision: Decision) -> int:
    return sum(task.cost for placement in decision.placements for task in placement.tasks)


def test_of_two_nodes_storage_goes_to_the_one_that_attaches_quicker() -> None:
    for slow, quick in (("a", "b"), ("b", "a")):
        snapshot = world(node(slow, storage_attach_s=4.0), node(quick), node("c", free_cpus=0), drive("d0", "c"))
        decision = run(snapshot, job("j", storage=(want(),)))
        assert decision.placements[0].tasks[0].node == quick


def test_each_second_of_attaching_beyond_a_typical_one_costs() -> None:
    prices = []
    for seconds in (STORAGE_ATTACH_S, 2.0, 4.0, 64.0):
        snapshot = world(node("a", storage_attach_s=seconds), node("c", free_cpus=0), drive("d0", "c"))
        prices.append(price(run(snapshot, job("j", storage=(want(),)))))
    # It counts where the node is chosen, and where the drives are.
    steps = [(later - prices[0]) / SCALE / ATTACH_SECOND for later in prices[1:]]
    assert steps == [2 * 1.0, 2 * 3.0, 2 * 63.0]


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.3, math.nan, math.inf])
def test_who_has_measured_nothing_or_nonsense_pays_what_is_typical(seconds: float) -> None:
    typical, told = (
        world(node("a", **more), node("c", free_cpus=0), drive("d0", "c"))
        for more in ({}, {"storage_attach_s": seconds})
    )
    entry = job("j", storage=(want(),))
    assert run(told, entry) == run(typical, entry)


def test_a_node_that_attaches_slowly_has_drives_moved_to_it() -> None:
    routes = tuple(Route)
    for seconds, route in ((1.0, Route.REMOTE), (256.0, Route.RECOMPOSED)):
        client = node("a", pools=(PoolReach(pool="p"),), storage_attach_s=seconds)
        snapshot = world(client, node("c", free_cpus=0), drive("d0", "c", pool="p"))
        (given,) = given_to(run(snapshot, job("j", storage=(want(),), routes=routes)), "j")
        assert given.route == route


def test_nodes_of_several_racks_and_times_are_told_apart() -> None:
    parts = [
        node(f"n{rack}{seconds:g}", rack=rack, storage_attach_s=seconds) for rack in ("", "r") for seconds in (1.0, 8.0)
    ]
    snapshot = world(*parts, node("c", free_cpus=0), drive("d0", "c"))
    costs = {}
    for part in parts:
        entry = job("j", storage=(want(),), node=part.name)
        costs[part.name] = price(run(snapshot, entry))
    assert costs["n1"] == costs["nr1"]
    assert costs["n8"] == costs["nr8"] == costs["n1"] + 2 * 7 * round(ATTACH_SECOND * SCALE)


def test_remote_alone_keeps_off_the_own_drives() -> None:
    snapshot = world(node("a"), node("b"), drive("d0", "a"), drive("d1", "b"))
    wanted = want(routes=(Route.REMOTE,))
    decision = run(snapshot, job("j", group(storage=(wanted,), node="a")))
    assert [given.device for given in given_to(decision, "j")] == ["d1"]


def test_drives_of_a_pool_are_moved_to_the_node() -> None:
    snapshot = world(node("a", pools=(PoolReach(pool="p"),)), node("b"), drive("d0", "", pool="p"))
    wanted = want(routes=(Route.LOCAL, Route.RECOMPOSED))
    decision = run(snapshot, job("j", group(storage=(wanted,))))
    assert decision.placements[0].tasks[0].node == "a"
    assert [(given.node, given.route) for given in given_to(decision, "j")] == [("", Route.RECOMPOSED)]
    refused = run(snapshot, job("j", group(storage=(wanted,), node="b")))
    assert not refused.placements


def test_drives_that_are_shared_are_not_moved() -> None:
    snapshot = world(node("a", pools=(PoolReach(pool="p"),)), node("b"), drive("d0", "b", pool="p", shares=(share(),)))
    wanted = want(routes=(Route.RECOMPOSED,))
    assert not run(snapshot, job("j", group(storage=(wanted,), node="a"))).placements


def test_a_job_may_have_gpus_and_several_storages() -> None:
    snapshot = world(node("a"), node("b"), gpu("g0", "a"), gpu("g1", "a"), drive("d0", "b"), drive("d1", "b"))
    wanted = (want("in", gb=900), want("out", gb=900))
    decision = run(snapshot, job("j", group(gpus=1, storage=wanted, node="a")))
    assert {given.storage for given in given_to(decision, "j")} == {"in", "out"}
    assert len({given.device for given in given_to(decision, "j")}) == 2


def test_each_of_several_tasks_has_one_of_each_storage() -> None:
    snapshot = world(node("a"), drive("d0", "a"))
    wanted = (want("in", gb=100), want("out", gb=200))
    decision = run(snapshot, job("j", group(count=3, storage=wanted)))
    assert len(given_to(decision, "j")) == 6


# How much a drive bears.


def test_leases_share_a_drive_up_to_its_capacity() -> None:
    snapshot = world(node("a", cpus=8), drive("d0", "a", gb=1000))
    decision = run(snapshot, *(job(f"j{n}", group(storage=(want(gb=300),)), at=n) for n in range(4)))
    assert [placement.job for placement in decision.placements] == ["j0", "j1", "j2"]
    assert not misses(decision)[0].permanent


def test_leases_share_a_drive_up_to_its_bandwidth() -> None:
    snapshot = world(node("a"), drive("d0", "a", mb_per_s=2000, shares=(share(mb_per_s=500),)))
    decision = run(snapshot, *(job(f"j{n}", group(storage=(want(mb_per_s=600),)), at=n) for n in range(3)))
    assert [placement.job for placement in decision.placements] == ["j0", "j1"]


def test_a_stripe_bears_what_no_single_drive_can() -> None:
    snapshot = world(node("a"), *(drive(f"d{n}", "a") for n in range(3)))
    decision = run(snapshot, job("j", group(storage=(want(mb_per_s=5000),))))
    assert [given.bandwidth_bytes_per_s for given in given_to(decision, "j")] == [1_666_666_667] * 3


def test_a_stripe_has_as_many_drives_as_the_job_says() -> None:
    snapshot = world(node("a"), *(drive(f"d{n}", "a") for n in range(5)))
    assert len(given_to(run(snapshot, job("j", group(storage=(want(devices=5),)))), "j")) == 5
    decision = run(snapshot, job("j", group(storage=(want(devices=6),))))
    assert misses(decision)[0].permanent
    assert "6 drives of one node; no node has drives for that" in misses(decision)[0].message


def test_a_cluster_without_drives_says_so_for_good() -> None:
    unmeasured = drive("d0", "a", mb_per_s=0)
    for snapshot in (world(node("a")), world(node("a"), unmeasured)):
        (miss,) = misses(run(snapshot, job("j", group(storage=(want(),)))))
        assert (miss.message, miss.permanent) == ("no node offers NVMe storage", True)


def test_what_is_too_large_for_every_drive_is_said_for_good() -> None:
    (miss,) = misses(run(world(node("a"), drive("d0", "a")), job("j", group(storage=(want(gb=4000),)))))
    assert miss.permanent


def test_a_job_waits_for_drives_that_others_use() -> None:
    decision = run(world(node("a"), drive("d0", "a", shares=(share(gb=950),))), job("j", group(storage=(want(),))))
    assert not misses(decision)[0].permanent
    assert decision.misses[0].feasible_alone


def test_what_storage_lacks_is_given_back_by_the_phases_before() -> None:
    snapshot = world(node("a", cpus=1), drive("d0", "a", gb=50))
    decision = run(snapshot, job("x", group(storage=(want(),)), priority=1), job("y"))
    assert [placement.job for placement in decision.placements] == ["y"]


def test_a_drive_that_is_cordoned_or_on_its_way_is_nobodys() -> None:
    for view in (drive("d0", "a", free=False), drive("d0", "a", destination="b", pool="p")):
        assert not run(world(node("a"), node("b"), view), job("j", group(storage=(want(),)))).placements


# How many drives: the rules of the workload-aware placement paper.

SMUFIN = want(gb=43, mb_per_s=1800, profile="smufin")


def test_composition_goes_on_for_as_long_as_it_runs_faster() -> None:
    # Figure 3: 1,489 s on one drive, 1,455 s on two, 1,478 s on three.
    snapshot = world(node("a"), *(drive(f"d{n}", "a", mb_per_s=2000) for n in range(3)))
    assert len(given_to(run(snapshot, job("j", group(storage=(SMUFIN,))), policy=Maximizing()), "j")) == 2
    assert len(given_to(run(snapshot, job("j", group(storage=(SMUFIN,))), policy=Minimizing()), "j")) == 1


def test_a_composition_in_use_is_shared_before_another_is_made() -> None:
    used = drive("d1", "a", shares=(share(profile="smufin", drives=1),))
    snapshot = world(node("a"), drive("d0", "a"), used)
    for policy in (Maximizing(), Minimizing()):
        decision = run(snapshot, job("j", group(storage=(SMUFIN,))), policy=policy)
        assert [given.device for given in given_to(decision, "j")] == ["d1"]


def test_kinds_are_not_mixed() -> None:
    used = drive("d1", "a", shares=(share(profile=""),))
    decision = run(world(node("a"), drive("d0", "a"), used), job("j", group(storage=(SMUFIN,))), policy=Minimizing())
    assert [given.device for given in given_to(decision, "j")] == ["d0"]


def test_sharing_keeps_the_deadlines_of_those_who_are_there() -> None:
    # One has run 489 s of 1,489, and needs 1,000 alone; beside another it would take 1,000 * 1601 / 1489 = 1,075 s.
    for started_at, due_at, device in (
        (11.0, 1_600.0, "d1"),
        (11.0, 1_550.0, "d0"),
        # It began later, and has more to do.
        (411.0, 1_600.0, "d0"),
        # Nothing can be saved, or nothing is known.
        (11.0, 400.0, "d1"),
        (11.0, None, "d1"),
        (None, 1_550.0, "d1"),
    ):
        used = drive("d1", "a", shares=(share(profile="smufin", started_at=started_at, due_at=due_at),))
        snapshot = msgspec.structs.replace(world(node("a"), drive("d0", "a"), used), at=500.0)
        decision = run(snapshot, job("j", group(storage=(SMUFIN,))), policy=Minimizing())
        assert [given.device for given in given_to(decision, "j")] == [device]


def test_a_flavour_that_misses_the_deadline_is_no_option() -> None:
    snapshot = world(node("a"), *(drive(f"d{n}", "a") for n in range(3)))
    entry = due(job("j", group(storage=(SMUFIN,))), 1_460.0)
    assert len(given_to(run(snapshot, entry, policy=Minimizing()), "j")) == 2, "one drive takes 1,489 s"
    over = due(entry, -1.0)
    assert len(given_to(run(snapshot, over, policy=Minimizing()), "j")) == 1, "nothing can be saved any more"


@pytest.mark.parametrize(
    ("bandwidth", "capacity", "maximizes"),
    [
        (0.5, 0.5, True),
        (0.51, 0.5, False),
        (0.5, 0.51, False),
        (0.7, 0.7, True),
        (0.69, 0.6, False),
        (0.9, 0.71, False),
    ],
)
def test_the_switch_is_equation_4(bandwidth: float, capacity: float, maximizes: bool) -> None:
    rule = DisaggregationAware().choose(Load(bandwidth, capacity))
    assert isinstance(rule, MaximizeComposition) == maximizes


def test_the_switch_looks_at_what_leases_have() -> None:
    half = tuple(share(gb=1, mb_per_s=1200) for _ in range(1))
    spare = [drive(f"d{n}", "a") for n in range(2)]
    busy = [drive(f"x{n}", "b", shares=half) for n in range(20)]
    idle = run(world(node("a"), node("b"), *spare), job("j", group(storage=(SMUFIN,), node="a")), policy=AWARE)
    assert len(given_to(idle, "j")) == 2
    loaded = run(world(node("a"), node("b"), *spare, *busy), job("j", group(storage=(SMUFIN,), node="a")), policy=AWARE)
    assert len(given_to(loaded, "j")) == 1


def test_the_earliest_deadline_comes_first() -> None:
    snapshot = world(node("a"), drive("d0", "a"))
    late, soon, over, none = (
        due(job(name, group(storage=(want(gb=900),)), at=at), left_s)
        for at, (name, left_s) in enumerate((("late", 900.0), ("soon", 300.0), ("over", -1.0), ("none", math.inf)))
    )
    for pending, first in (((late, soon, over, none), "soon"), ((over, none), "none"), ((late, none), "late")):
        assert [placement.job for placement in run(snapshot, *pending, policy=AWARE).placements] == [first]


# What may never happen.


PROFILES = st.sampled_from(("", "smufin"))


@st.composite
def stored_worlds(draw: st.DrawFn) -> Snapshot:
    """Draw a cluster with drives, some shared, some in a pool, some on no node."""
    base = draw(snapshots(most_nodes=4))
    nodes = [
        msgspec.structs.replace(view, pools=draw(st.sampled_from(((), (PoolReach(pool="p"),))))) for view in base.nodes
    ]
    drives = []
    for place in [*(view.name for view in nodes), ""]:
        for number in range(draw(st.integers(0, 3))):
            shares = tuple(
                share(draw(st.integers(0, 60)), draw(st.integers(0, 900)), profile=draw(PROFILES))
                for _ in range(draw(st.integers(0, 2)))
            )
            drives.append(
                drive(
                    f"d{place}-{number}",
                    place,
                    gb=draw(st.sampled_from((0, 100, 200))),
                    mb_per_s=draw(st.sampled_from((0, 1000, 2000))),
                    free=draw(st.sampled_from((True, True, True, False))),
                    pool=draw(st.sampled_from(("", "p"))) if place else "p",
                    shares=shares if place else (),
                )
            )
    return Snapshot(nodes=tuple(nodes), devices=(*base.devices, *drives))


ROUTES = [
    tuple(route for n, route in enumerate((Route.LOCAL, Route.REMOTE, Route.RECOMPOSED)) if mask >> n & 1)
    for mask in range(1, 8)
]
REQUESTS = st.builds(
    want,
    gb=st.sampled_from((1, 40, 90, 250)),
    mb_per_s=st.sampled_from((0, 400, 1500, 2500)),
    devices=st.sampled_from((0, 0, 1, 2)),
    profile=st.sampled_from(("", "", "smufin", "unknown")),
    routes=st.sampled_from(((), *ROUTES)),
)


@st.composite
def stored_queues(draw: st.DrawFn) -> list[PendingJob]:
    jobs = []
    for entry in draw(pending_jobs(most=6)):
        groups = tuple(
            msgspec.structs.replace(
                part,
                storage=tuple(
                    msgspec.structs.replace(request, name=f"s{number}")
                    for number, request in enumerate(draw(st.lists(REQUESTS, max_size=2)))
                ),
            )
            for part in entry.job.groups
        )
        made = msgspec.structs.replace(entry.job, groups=groups)
        left_s = draw(st.sampled_from((math.inf, 1_470.0, -5.0)))
        jobs.append(due(PendingJob(job=made, rounds_waited=entry.rounds_waited), left_s))
    return jobs


EVERY = (POLICY, AWARE, Maximizing(), Minimizing(), FirstFitPolicy(), BestFitPolicy(), RandomPolicy(seed=3))


@given(stored_worlds(), stored_queues(), st.sampled_from(EVERY))
@settings(max_examples=100)
def test_no_drive_is_over_its_capacity_or_bandwidth(
    snapshot: Snapshot, pending: list[PendingJob], policy: Policy
) -> None:
    run(snapshot, *pending, policy=policy)


@given(stored_worlds(), stored_queues(), st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_the_order_of_the_input_changes_nothing(
    snapshot: Snapshot, pending: list[PendingJob], draw: random.Random
) -> None:
    devices, jobs = list(snapshot.devices), list(pending)
    draw.shuffle(devices)
    draw.shuffle(jobs)
    shuffled = Snapshot(nodes=snapshot.nodes[::-1], devices=tuple(devices))
    first, second = decide(snapshot, pending, policy=AWARE), decide(shuffled, jobs, policy=AWARE)
    assert {each.job: each for each in first.placements} == {each.job: each for each in second.placements}


@given(stored_worlds(), REQUESTS)
@settings(max_examples=100)
def test_one_task_that_waits_on_an_empty_cluster_waits_for_good(snapshot: Snapshot, request: StorageRequest) -> None:
    wide = tuple(msgspec.structs.replace(view, free=view.capacity, capacity=view.capacity) for view in snapshot.nodes)
    empty = Snapshot(
        nodes=wide,
        devices=tuple(msgspec.structs.replace(view, shares=(), free=True) for view in snapshot.devices),
    )
    decision = run(empty, job("j", group(cpus=0, memory_gib=0, storage=(request,))))
    assert bool(decision.placements) == (not decision.misses)
    if decision.misses:
        assert any(part.permanent for part in decision.misses[0].misses)


def test_jobs_of_one_storage_and_different_deadlines_are_judged_each_by_its_own() -> None:
    # Alike but for their deadlines: one drive would do for the late one, and be too slow for the other.
    snapshot = world(node("a"), *(drive(f"d{n}", "a") for n in range(3)))
    forms = Forms(PHASES)
    cluster = columns.from_snapshot(snapshot)
    late, soon = (
        due(job(name, group(storage=(SMUFIN,))), left_s) for name, left_s in (("late", 9e6), ("soon", 1_460.0))
    )
    for entry, drives in ((late, 1), (soon, 2)):
        decision = decide_on(cluster, [entry], policy=Minimizing(), forms=forms)
        assert len(given_to(decision, entry.job.id)) == drives


def test_a_deadline_that_comes_nearer_is_noticed_in_a_form_that_is_kept() -> None:
    snapshot = world(node("a"), *(drive(f"d{n}", "a") for n in range(3)))
    forms, entry = Forms(PHASES), due(job("j", group(storage=(SMUFIN,))), 9e6)
    cluster = columns.from_snapshot(snapshot)
    for left_s, drives in ((9e6, 1), (1_460.0, 2)):
        later = msgspec.structs.replace(entry, left_s=left_s)
        decision = decide_on(cluster, [later], policy=Minimizing(), forms=forms)
        assert len(given_to(decision, "j")) == drives
