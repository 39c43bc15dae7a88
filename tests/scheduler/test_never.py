"""A job is told that the cluster will never hold it where that is so, and nowhere else: beside trying everything."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from farbus.model.decision import Decision, PendingJob, Snapshot
from farbus.model.device import Route
from farbus.model.job import Alternative, GroupVariant, Job, TaskGroup
from farbus.scheduler.costs.baselines import FirstFitPolicy
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.phases.base import Phase
from farbus.scheduler.phases.cluster import Cluster, Columns
from farbus.scheduler.phases.gpu import GpuPhase
from farbus.scheduler.phases.jobs import Forms
from farbus.scheduler.phases.tables import Integers
from farbus.scheduler.round import HOLD_ROUNDS, PHASES, decide, decide_on
from tests.scheduler.worlds import ROUTES, check_decision, gpu, group, job, node, world

LOCAL, REMOTE = (Route.LOCAL,), (Route.REMOTE,)


class RackGpuPhase(GpuPhase):
    """GPUs that are lent within a rack alone."""

    def zones(self, cluster: Cluster) -> Integers:
        """Let the nodes of one rack lend to each other."""
        return cluster.rack


RACKS: tuple[Phase, ...] = tuple(RackGpuPhase() if isinstance(phase, GpuPhase) else phase for phase in PHASES)


def idle(snapshot: Snapshot) -> Snapshot:
    """Return the cluster as if nothing ran there."""
    return Snapshot(
        nodes=tuple(replace(view, free=view.capacity) for view in snapshot.nodes),
        devices=tuple(replace(view, free=True) for view in snapshot.devices),
    )


def holds(snapshot: Snapshot, job: Job, *, by_rack: bool) -> bool:
    """Say whether the idle cluster has room for all tasks that some flavour of ``job`` needs: tries everything."""
    flavours = [job, *(job.in_flavour(each.name) for each in job.alternatives)]
    return any(
        _holds(snapshot, [tasks for tasks in each.groups for _ in range(tasks.least)], by_rack=by_rack)
        for each in flavours
    )


def _holds(snapshot: Snapshot, tasks: list[TaskGroup], *, by_rack: bool) -> bool:
    nodes = {view.name: view for view in snapshot.nodes}
    left = {name: [view.capacity.cpu_milli, view.capacity.memory_bytes] for name, view in nodes.items()}
    free = {view.device.id: view for view in snapshot.devices}

    def bundles(wanted: TaskGroup, at: str) -> Iterator[tuple[str, ...]]:
        """Return all devices that a task at a node could have, those alone that differ from what was returned."""
        seen = set()
        for lender in sorted({view.node for view in free.values()}):
            if (Route.LOCAL if lender == at else Route.REMOTE) not in wanted.routes:
                continue
            if lender != at and by_rack and nodes[lender].rack != nodes[at].rack:
                continue
            suits = [
                view
                for view in free.values()
                if view.node == lender
                and wanted.requests.gpu_model.lower() in view.device.model.lower()
                and view.device.memory_bytes >= wanted.requests.gpu_memory_bytes
            ]
            for chosen in itertools.combinations(suits, wanted.requests.gpus):
                kinds = (lender, tuple(sorted((view.device.model, view.device.memory_bytes) for view in chosen)))
                if kinds not in seen:
                    seen.add(kinds)
                    yield tuple(view.device.id for view in chosen)

    def fits(number: int) -> bool:
        if number == len(tasks):
            return True
        wanted = tasks[number]
        cpu, memory = wanted.requests.cpu_milli, wanted.requests.memory_bytes
        for name, view in nodes.items():
            if wanted.node not in ("", name) or any(
                view.labels.get(key) != value for key, value in wanted.labels.items()
            ):
                continue
            if left[name][0] < cpu or left[name][1] < memory:
                continue
            left[name][0] -= cpu
            left[name][1] -= memory
            for chosen in bundles(wanted, name) if wanted.requests.gpus else ((),):
                taken = {device: free.pop(device) for device in chosen}
                found = fits(number + 1)
                free.update(taken)
                if found:
                    left[name][0] += cpu
                    left[name][1] += memory
                    return True
            left[name][0] += cpu
            left[name][1] += memory
        return False

    return fits(0)


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    """Draw up to four nodes in racks, with labels and GPUs, partly in use."""
    parts = []
    for number in range(draw(st.integers(1, 4))):
        cpus = draw(st.integers(1, 4))
        parts.append(
            node(
                f"n{number}",
                cpus=cpus,
                memory_gib=draw(st.integers(1, 4)),
                free_cpus=draw(st.integers(0, cpus)),
                free_memory_gib=0,
                rack=draw(st.sampled_from(("r1", "r1", "r2"))),
                labels=draw(st.sampled_from(({}, {}, {"disk": "ssd"}))),
            )
        )
    devices = []
    for number in range(len(parts)):
        for index in range(draw(st.integers(0, 2))):
            size, model = draw(st.sampled_from(((16, "A100"), (80, "A100"), (80, "H100"))))
            free = draw(st.booleans())
            devices.append(gpu(f"g{number}-{index}", f"n{number}", memory_gib=size, model=model, free=free))
    return world(*parts, *devices)


@st.composite
def gangs(draw: st.DrawFn) -> PendingJob:
    """Draw a job of up to five tasks in up to three groups, by all routes, with alternatives."""
    groups = []
    for number in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 3 if number == 0 else 1))
        groups.append(
            group(
                f"part{number}",
                count=count,
                min_count=draw(st.sampled_from((0, 0, 0, 1))),
                cpus=draw(st.integers(0, 3)),
                memory_gib=draw(st.integers(0, 3)),
                gpus=draw(st.sampled_from((0, 1, 1, 1, 2))),
                gpu_model=draw(st.sampled_from(("", "", "", "h100"))),
                gpu_memory_gib=draw(st.sampled_from((0, 0, 40))),
                routes=draw(st.sampled_from((*ROUTES, REMOTE))),
                node=draw(st.sampled_from(("", "", "", "n1"))),
                labels=draw(st.sampled_from(({}, {}, {}, {"disk": "ssd"}))),
            )
        )
    entry = job("j", *groups)
    if draw(st.integers(0, 3)):
        return entry
    variant = GroupVariant(
        name=groups[0].name,
        requests=replace(groups[0].requests, cpu_milli=draw(st.integers(0, 2)) * 1000, gpus=draw(st.integers(0, 1))),
        routes=draw(st.sampled_from(ROUTES)),
    )
    return replace(entry, job=replace(entry.job, alternatives=(Alternative(name="other", groups=(variant,)),)))


def told_never(decision: Decision) -> bool:
    return any(miss.permanent for missed in decision.misses for miss in missed.misses)


POLICIES = (DefaultPolicy(), FirstFitPolicy())


@given(clusters(), gangs(), st.sampled_from(POLICIES), st.booleans())
@settings(max_examples=150, deadline=None)
def test_never_is_what_trying_everything_says(
    snapshot: Snapshot, entry: PendingJob, policy: Policy, by_rack: bool
) -> None:
    phases = RACKS if by_rack else PHASES
    possible = holds(snapshot, entry.job, by_rack=by_rack)
    decision = decide(snapshot, [entry], policy=policy, phases=phases)
    for missed in decision.misses:
        assert missed.feasible_alone == possible
        assert told_never(decision) == (not possible)
    alone = decide(idle(snapshot), [entry], policy=policy, phases=phases)
    chosen = [replace(entry, job=entry.job.in_flavour(placed.alternative)) for placed in alone.placements]
    check_decision(idle(snapshot), chosen or [entry], alone)
    assert bool(alone.placements) == possible, "the idle cluster takes what it can hold"


def ring(nodes: int, *, free: bool = True, network: int = 0, remote: int = 0) -> tuple[Snapshot, PendingJob]:
    """Return nodes with one GPU each, and a job of as many tasks that each want one of another node."""
    names = [f"{number:02}" for number in range(nodes)]
    hosts = [node(f"n{name}", cpus=99, network=network) for name in names]
    devices = [gpu(f"g{name}", f"n{name}", free=free) for name in names]
    return world(*hosts, *devices), job("j", group(count=nodes, gpus=1, remote=remote, routes=REMOTE))


@pytest.mark.parametrize("nodes", [2, 3, 40])
def test_tasks_that_must_each_be_beside_the_lender_of_another_are_placed(nodes: int) -> None:
    snapshot, entry = ring(nodes)
    decision = decide(snapshot, [entry], policy=DefaultPolicy())
    check_decision(snapshot, [entry], decision)
    assert len(decision.placements) == 1


def test_tasks_that_must_each_be_beside_the_lender_of_another_wait_while_these_are_held() -> None:
    snapshot, entry = ring(3, free=False)
    (missed,) = decide(snapshot, [entry], policy=DefaultPolicy()).misses
    assert missed.feasible_alone
    assert not any(miss.permanent for miss in missed.misses)


def test_room_is_kept_for_a_job_that_the_phases_alone_can_not_place() -> None:
    snapshot, entry = ring(2)
    first, *devices = snapshot.devices
    snapshot = Snapshot(nodes=snapshot.nodes, devices=(replace(first, free=False), *devices))
    small = job("small", group(gpus=1), at=1)
    decision = decide(snapshot, [replace(entry, rounds_waited=HOLD_ROUNDS), small], policy=DefaultPolicy())
    assert not decision.placements


def test_where_nobody_knows_nothing_is_said_of_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farbus.scheduler.phases.exact.MAX_UNITS", 1)
    snapshot, entry = ring(3)
    (missed,) = decide(snapshot, [entry], policy=DefaultPolicy()).misses
    assert not missed.feasible_alone
    assert [(miss.permanent, "not known" in miss.message) for miss in missed.misses] == [(False, True)]


def test_what_was_found_of_a_job_is_kept_for_as_long_as_nodes_and_devices_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot, entry = ring(3, free=False)
    columns, forms = Columns(), Forms(PHASES)
    decide_on(columns.of(snapshot), [entry], policy=DefaultPolicy(), forms=forms)
    monkeypatch.setattr("farbus.scheduler.phases.exact.MAX_UNITS", 0)
    (missed,) = decide_on(columns.of(snapshot), [entry], policy=DefaultPolicy(), forms=forms).misses
    assert missed.feasible_alone


def test_who_uses_its_own_devices_takes_no_network_for_them() -> None:
    ring_of_two, entry = ring(2)
    snapshot = world(*ring_of_two.nodes, *ring_of_two.devices, node("own", cpus=99, network=50), gpu("g", "own"))
    beside = group("beside", gpus=1, remote=100, node="own", routes=(Route.LOCAL, Route.REMOTE))
    entry = job("j", *entry.job.groups, beside)
    decision = decide(snapshot, [entry], policy=DefaultPolicy())
    check_decision(snapshot, [entry], decision)
    assert len(decision.placements) == 1


@pytest.mark.parametrize(("network", "placed"), [(199, 0), (200, 1)])
def test_each_link_carries_what_its_node_is_lent_and_what_it_lends(network: int, placed: int) -> None:
    snapshot, entry = ring(2, network=network, remote=100)
    decision = decide(snapshot, [entry], policy=DefaultPolicy())
    check_decision(snapshot, [entry], decision)
    assert len(decision.placements) == placed
    assert told_never(decision) == (not placed)


@pytest.mark.parametrize(("network", "placed"), [(399, 1), (400, 2)])
def test_what_was_placed_as_a_whole_has_taken_its_network(network: int, placed: int) -> None:
    snapshot, _ = ring(2, network=network)
    more = [gpu(f"h{view.device.id}", view.node, model="H100") for view in snapshot.devices]
    snapshot = world(*snapshot.nodes, *snapshot.devices, *more)
    pending = [
        job(model, group(count=2, gpus=1, gpu_model=model, remote=100, routes=REMOTE)) for model in ("a100", "h100")
    ]
    decision = decide(snapshot, pending, policy=DefaultPolicy())
    check_decision(snapshot, pending, decision)
    assert len(decision.placements) == placed


def test_what_a_job_would_have_on_the_idle_cluster_is_free_there_for_the_next_question() -> None:
    snapshot, entry = ring(2)
    first, *devices = snapshot.devices
    snapshot = Snapshot(nodes=snapshot.nodes, devices=(replace(first, free=False), *devices))
    # Its two parts fit the node one by one: so the idle cluster is asked about it before room is kept for the next.
    halves = job("halves", *(group(name, cpus=60, node="n00") for name in ("one", "two")), priority=9)
    decision = decide(snapshot, [halves, replace(entry, rounds_waited=HOLD_ROUNDS)], policy=DefaultPolicy())
    assert {missed.job: missed.feasible_alone for missed in decision.misses} == {"halves": False, "j": True}
