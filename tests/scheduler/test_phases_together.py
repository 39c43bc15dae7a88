"""GPUs, storage, fabrics and alternatives in one round, and one round after the other on what was kept."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.model.decision import Decision, DeviceView, NodeView, PendingJob, Snapshot, StorageShare
from farbus.model.device import Route
from farbus.model.job import Alternative, GroupVariant, TaskGroup, add_room, room_of
from farbus.model.node import Resources
from farbus.scheduler.costs.baselines import BestFitPolicy, FirstFitPolicy, RandomPolicy
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.costs.workload_aware import WorkloadAwarePolicy
from farbus.scheduler.phases.cluster import Columns
from farbus.scheduler.phases.jobs import Forms
from farbus.scheduler.round import PHASES, decide, decide_on
from tests.scheduler.test_flavours import as_chosen
from tests.scheduler.test_recomposition import check_moves
from tests.scheduler.test_storage import REQUESTS, ROUTES, check_storage, drive, stored_queues, stored_worlds, want
from tests.scheduler.worlds import gpu, group, job, node, node_of, world

POLICIES = (DefaultPolicy(), WorkloadAwarePolicy())


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """Draw a cluster with drives and GPUs, of which some are in the pool."""
    base = draw(stored_worlds())
    devices = [
        msgspec.structs.replace(
            view, device=msgspec.structs.replace(view.device, pool=draw(st.sampled_from(("", "p"))))
        )
        if view.node
        else view
        for view in base.devices
    ]
    return Snapshot(nodes=base.nodes, devices=tuple(devices))


@st.composite
def queues(draw: st.DrawFn) -> list[PendingJob]:
    """Draw jobs with storage by all routes, some of which could also be run in another way."""
    jobs = []
    for entry in draw(stored_queues()):
        groups = tuple(msgspec.structs.replace(part, routes=draw(st.sampled_from(ROUTES))) for part in entry.job.groups)
        alternatives = [
            Alternative(
                name=f"alt{number}",
                cost=draw(st.sampled_from((0, 700))),
                groups=tuple(
                    GroupVariant(
                        name=part.name,
                        requests=msgspec.structs.replace(part.requests, gpus=draw(st.integers(0, 2))),
                        routes=draw(st.sampled_from(ROUTES)),
                        storage=tuple(draw(st.lists(REQUESTS, max_size=1))),
                    )
                    for part in groups[: draw(st.integers(1, 2))]
                ),
            )
            for number in range(draw(st.sampled_from((0, 0, 1, 2))))
        ]
        made = msgspec.structs.replace(entry.job, groups=groups, alternatives=tuple(alternatives))
        jobs.append(PendingJob(job=made, rounds_waited=entry.rounds_waited, left_s=entry.left_s))
    return jobs


def only(decision: Decision, *, storage: bool) -> Decision:
    """Return the decision with the drives of storage alone, or with all other devices alone."""
    placements = [
        msgspec.structs.replace(
            placement,
            tasks=tuple(
                msgspec.structs.replace(
                    task, devices=tuple(each for each in task.devices if bool(each.storage) == storage)
                )
                for task in placement.tasks
            ),
        )
        for placement in decision.placements
    ]
    return msgspec.structs.replace(decision, placements=tuple(placements))


def check(snapshot: Snapshot, pending: list[PendingJob], decision: Decision) -> None:
    jobs = as_chosen(pending, decision)
    check_storage(snapshot, jobs, only(decision, storage=True))
    check_moves(snapshot, jobs, only(decision, storage=False))


def after(snapshot: Snapshot, pending: list[PendingJob], decision: Decision) -> Snapshot:
    """Return the cluster with what was decided in use: rooms, whole devices, shares of drives, devices on their way."""
    requests = {
        (entry.job.id, part.name): part.requests for entry in as_chosen(pending, decision) for part in entry.job.groups
    }
    used: dict[str, Resources] = {}
    shares: defaultdict[str, list[StorageShare]] = defaultdict(list)
    whole: set[str] = set()
    moving: dict[str, str] = {}
    for placement in decision.placements:
        for task in placement.tasks:
            wanted = requests[placement.job, task.task.rsplit(".", 1)[0]]
            add_room(used, room_of(wanted, task))
            for device in task.devices:
                if device.route is Route.RECOMPOSED:
                    moving[device.device] = task.node
                if device.storage:
                    amount = (device.size_bytes, device.bandwidth_bytes_per_s)
                    shares[device.device].append(StorageShare(size_bytes=amount[0], bandwidth_bytes_per_s=amount[1]))
                else:
                    whole.add(device.device)

    def node(view: NodeView) -> NodeView:
        if view.name not in used:
            return view
        return msgspec.structs.replace(view, free=view.free - used[view.name])

    def device(view: DeviceView) -> DeviceView:
        name = view.device.id
        if name not in whole and name not in shares:
            return view
        return msgspec.structs.replace(
            view,
            free=view.free and name not in whole,
            shares=(*view.shares, *shares[name]),
            destination=moving.get(name, view.destination),
        )

    return Snapshot(nodes=tuple(map(node, snapshot.nodes)), devices=tuple(map(device, snapshot.devices)))


@given(worlds(), queues(), st.sampled_from(POLICIES))
@settings(max_examples=60)
def test_every_promise_is_kept_in_every_round(snapshot: Snapshot, pending: list[PendingJob], policy: Policy) -> None:
    """Three rounds on columns that are kept: each keeps the promises, and decides what a fresh look would."""
    columns, forms = Columns(), Forms(PHASES)
    for _ in range(3):
        decision = decide_on(columns.of(snapshot), pending, policy=policy, forms=forms)
        check(snapshot, pending, decision)
        fresh = decide(snapshot, pending, policy=policy)
        assert decision.placements == fresh.placements
        assert decision.misses == fresh.misses
        snapshot = after(snapshot, pending, decision)
        left = {miss.job for miss in decision.misses}
        pending = [entry for entry in pending if entry.job.id in left]


@given(worlds(), queues())
@settings(max_examples=25)
def test_arcs_that_are_left_out_of_networks_were_not_needed(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    pruned, whole = (
        decide_on(Columns().of(snapshot), pending, policy=POLICIES[0], prune=prune) for prune in (True, False)
    )
    assert len(pruned.placements) == len(whole.placements)


# --- units of different shapes at one place ------------------------------------------------


def local(model: str) -> TaskGroup:
    return group(model, cpus=0.5, gpus=1, gpu_model=model, routes=(Route.LOCAL,))


def test_a_job_may_have_different_devices_of_one_node() -> None:
    snapshot = world(node("n0"), gpu("g0", "n0", model="A100"), gpu("g1", "n0", model="H100"))
    decision = decide(snapshot, [job("j", local("A100"), local("H100"))], policy=DefaultPolicy())
    assert node_of(decision, "j") == ["n0", "n0"]


def test_a_job_may_have_different_devices_lent_by_one_node() -> None:
    snapshot = world(node("n0", cpus=1), node("n1"), gpu("g0", "n0", model="A100"), gpu("g1", "n0", model="H100"))
    groups = [group(model, cpus=2, gpus=1, gpu_model=model) for model in ("A100", "H100")]
    assert node_of(decide(snapshot, [job("j", *groups)], policy=DefaultPolicy()), "j") == ["n1", "n1"]


def test_each_of_many_different_devices_of_a_node_is_given_out() -> None:
    models = [f"M{number:02}" for number in range(40)]
    snapshot = world(node("n0", cpus=40, memory_gib=40), *(gpu(model, "n0", model=model) for model in models))
    decision = decide(snapshot, [job(model, local(model)) for model in models], policy=DefaultPolicy())
    assert len(decision.placements) == len(models)


def test_a_node_that_is_full_now_would_hold_tasks_that_want_different_things_when_it_is_idle() -> None:
    groups = group("a", cpus=8, memory_gib=1), group("b", cpus=1, memory_gib=8)
    busy = decide(world(node("n0", cpus=9, memory_gib=9, free_cpus=8)), [job("j", *groups)], policy=DefaultPolicy())
    assert [miss.feasible_alone for miss in busy.misses] == [True]
    idle = decide(world(node("n0", cpus=9, memory_gib=9)), [job("j", *groups)], policy=DefaultPolicy())
    assert node_of(idle, "j") == ["n0", "n0"]


BASELINES = (FirstFitPolicy(), BestFitPolicy(), RandomPolicy(seed=0))


@pytest.mark.parametrize("policy", BASELINES, ids=lambda each: each.name)
def test_a_baseline_passes_over_a_node_whose_drive_others_of_the_job_have_in_mind(policy: Policy) -> None:
    storage = want(gb=90)
    snapshot = world(node("n0"), drive("d0", "n0", gb=100), node("n1"), drive("d1", "n1", gb=100))
    two = job("two", group(count=2, storage=(storage,), routes=(Route.LOCAL,)))
    assert sorted(node_of(decide(snapshot, [two], policy=policy), "two")) == ["n0", "n1"]
    three = job("three", group(count=3, storage=(storage,), routes=(Route.LOCAL,)))
    assert not decide(snapshot, [three], policy=policy).placements
