"""HIRE's decisions against brute force, CP-SAT and each other: flavours, shared resources, metamorphic relations."""

from __future__ import annotations

import itertools
import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from farbus.model.decision import Decision, DeviceView, NodeView, PendingJob, Snapshot
from farbus.model.job import ServiceRequest, TaskGroup
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.hire import HirePolicy
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.phases.flavours import _Estimate, _Question, _solve, _Undecided
from farbus.scheduler.phases.market import Tally
from farbus.scheduler.round import decide, decide_on
from tests.scheduler.test_hire import flavoured, switch, waiting, with_service
from tests.scheduler.worlds import after, group, node, world

POLICY = HirePolicy()

# --- one decision: the flow against all assignments -------------------------------------------------

ESTIMATES = st.builds(_Estimate, st.integers(0, 40), st.integers(0, 3), st.sampled_from((None, "a", "b")))


@st.composite
def questions(draw: st.DrawFn) -> dict[_Undecided, _Question]:
    found = {}
    for form in range(draw(st.integers(1, 3))):
        estimates = draw(st.lists(ESTIMATES, min_size=1, max_size=3))
        rows = list(range(draw(st.integers(1, 2))))
        postpone = draw(st.one_of(st.none(), st.integers(0, 60)))
        options = tuple(None for _ in estimates)
        costs = [estimate.cost for estimate in estimates]
        found[_Undecided(form)] = _Question(rows, options, estimates, costs, postpone)  # type: ignore[arg-type]
    return found


@given(questions())
@settings(max_examples=150)
def test_a_decision_costs_what_the_best_assignment_does(asked: dict[_Undecided, _Question]) -> None:
    rooms: dict[str, int] = {}
    for question in asked.values():
        for each in question.estimates:
            if each.room and each.resource is not None:
                rooms[str(each.resource)] = max(rooms.get(str(each.resource), 0), each.room)
    never = 10_000

    def cost(chosen: dict[_Undecided, list[int]]) -> int | None:
        used: dict[str, int] = {}
        total = 0
        for at, question in asked.items():
            for number, count in enumerate(chosen[at]):
                estimate = question.estimates[number]
                if count > estimate.room:
                    return None
                total += count * question.costs[number]
                if estimate.resource is not None:
                    used[str(estimate.resource)] = used.get(str(estimate.resource), 0) + count
            none = len(question.rows) - sum(chosen[at])
            if none < 0:
                return None
            total += none * (never if question.postpone is None else question.postpone)
        return total if all(count <= rooms.get(name, 0) for name, count in used.items()) else None

    keys = [(at, number) for at in asked for number in range(len(asked[at].estimates))]
    best = never * 100
    for counts in itertools.product(*(range(len(asked[at].rows) + 1) for at, _ in keys)):
        chosen: dict[_Undecided, list[int]] = {at: [0] * len(asked[at].estimates) for at in asked}
        for (at, number), count in zip(keys, counts, strict=True):
            chosen[at][number] = count
        found = cost(chosen)
        best = best if found is None else min(best, found)
    tally = Tally(certify=True)
    assert cost(_solve(asked, tally)) == best
    assert tally.certified == tally.solves == 1


# --- shared resources: equations 3 to 5 ------------------------------------------------------------

SERVICES = ("a", "b", "c")


def demands(dice: random.Random) -> dict[str, ServiceRequest]:
    return {
        name: ServiceRequest(
            name=name,
            own={"stages": dice.randint(0, 3), "sram": dice.randint(1, 5)},
            shared={"stages": dice.randint(0, 6)},
        )
        for name in SERVICES
    }


def small(seed: int) -> tuple[Snapshot, list[PendingJob]]:
    """Return four switches and ten jobs of one or two instances each, with a server that has room for all."""
    dice = random.Random(seed)
    known = demands(dice)
    parts: list[NodeView | DeviceView] = [node("s", cpus=64)]
    for number in range(4):
        offers = tuple(sorted(dice.sample(SERVICES, dice.randint(1, 3))))
        parts += switch(f"m{number}", resources={"stages": 12, "sram": 10}, services=offers)
    jobs = [
        waiting(f"j{number}", with_service("net", known[dice.choice(SERVICES)], count=dice.randint(1, 2)))
        for number in range(10)
    ]
    return world(*parts), jobs


def check_services(snapshot: Snapshot, pending: list[PendingJob], decision: Decision) -> None:
    """Hold equation 4 against a decision, by sums of its own, and that a group's tasks are on different devices."""
    devices = {view.device.id: view for view in snapshot.devices}
    runs: dict[str, list[ServiceRequest]] = {name: list(view.instances) for name, view in devices.items()}
    jobs = {entry.job.id: entry.job for entry in pending}
    for placement in decision.placements:
        groups = {each.name: each for each in jobs[placement.job].in_flavour(placement.alternative).groups}
        used: dict[str, set[str]] = {}
        for task in placement.tasks:
            name = task.task.rpartition(".")[0]
            asked = groups[name].service
            assert len(task.devices) == (asked is not None)
            for given_device in task.devices:
                assert asked is not None
                assert given_device.node == task.node == devices[given_device.device].node
                offers = devices[given_device.device].device.services
                assert not offers or asked.name in offers
                assert given_device.device not in used.setdefault(name, set())
                used[name].add(given_device.device)
                runs[given_device.device].append(asked)
    for name, instances in runs.items():
        for resource, capacity in devices[name].device.resources.items():
            shared: dict[str, int] = {}
            for each in instances:
                shared[each.name] = max(shared.get(each.name, 0), each.shared.get(resource, 0))
            assert sum(each.own.get(resource, 0) for each in instances) + sum(shared.values()) <= capacity


def most_jobs(snapshot: Snapshot, pending: list[PendingJob]) -> int:
    """Return the most jobs that the switches could serve: equations 3 to 5 as CP-SAT has them."""
    model = cp_model.CpModel()
    devices = snapshot.devices
    placed, here = [], {}
    for number, entry in enumerate(pending):
        (asked,) = entry.job.groups
        assert asked.service is not None
        done = model.new_bool_var("")
        for at, view in enumerate(devices):
            here[number, at] = model.new_bool_var("")
            if asked.service.name not in view.device.services:
                model.add(here[number, at] == 0)
        model.add(sum(here[number, at] for at in range(len(devices))) == asked.count * done)
        placed.append(done)
    for at, view in enumerate(devices):
        active = {name: model.new_bool_var("") for name in SERVICES}
        shares: dict[str, ServiceRequest] = {}
        for number, entry in enumerate(pending):
            request = entry.job.groups[0].service
            assert request is not None
            shares[request.name] = request
            model.add_implication(here[number, at], active[request.name])
        for resource, capacity in view.device.resources.items():
            own = sum(
                here[number, at] * entry.job.groups[0].service.own.get(resource, 0)  # type: ignore[union-attr]
                for number, entry in enumerate(pending)
            )
            once = sum(active[name] * request.shared.get(resource, 0) for name, request in shares.items())
            model.add(own + once <= capacity)
    model.maximize(sum(placed))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return round(solver.objective_value)


def test_what_is_placed_keeps_equation_4_and_is_close_to_the_most() -> None:
    served = most = 0
    for seed in range(12):
        snapshot, pending = small(seed)
        decision = decide(snapshot, pending, policy=POLICY)
        check_services(snapshot, pending, decision)
        best = most_jobs(snapshot, pending)
        assert len(decision.placements) <= best
        served, most = served + len(decision.placements), most + best
        # Nobody is left who would still fit.
        left = [entry for entry in pending if entry.job.id in {miss.job for miss in decision.misses}]
        assert not decide(running(snapshot, pending, decision), left, policy=POLICY).placements
    # Placing as many as possible is no aim of a flow by costs: it is within a fifth of what could be.
    assert served >= 0.8 * most


def running(snapshot: Snapshot, pending: list[PendingJob], decision: Decision) -> Snapshot:
    """Return the cluster with what was placed, instances too; devices stay free for more."""
    jobs = {entry.job.id: entry.job for entry in pending}
    more: dict[str, list[ServiceRequest]] = {}
    for placement in decision.placements:
        groups = {each.name: each for each in jobs[placement.job].in_flavour(placement.alternative).groups}
        for task in placement.tasks:
            for each in task.devices:
                request = groups[task.task.rpartition(".")[0]].service
                assert request is not None
                more.setdefault(each.device, []).append(request)
    whole = after(snapshot, pending, decision)
    devices = tuple(
        msgspec.structs.replace(view, instances=(*view.instances, *more.get(view.device.id, ())))
        for view in snapshot.devices
    )
    return Snapshot(nodes=whole.nodes, devices=devices)


# --- metamorphic -----------------------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn) -> list[tuple[NodeView | DeviceView, ...]]:
    """Draw servers in racks, and switches of the racks, some of them running services."""
    dice = random.Random(draw(st.integers(0, 10**6)))
    known = list(demands(random.Random(7)).values())
    found: list[tuple[NodeView | DeviceView, ...]] = []
    for number in range(draw(st.integers(1, 5))):
        rack = dice.choice(("", "p0", "p0/r0", "p0/r1", "p1/r2"))
        if dice.random() < 0.5:
            cpus = dice.randint(1, 8)
            found.append((node(f"n{number}", cpus=cpus, free_cpus=dice.randint(0, cpus), rack=rack),))
        else:
            offers = tuple(sorted(dice.sample(SERVICES, dice.randint(0, 3))))
            runs = tuple(each for each in known if (not offers or each.name in offers) and dice.random() < 0.3)[:1]
            found.append(switch(f"m{number}", rack, resources={"stages": 20, "sram": 12}, services=offers, runs=runs))
    return found


@st.composite
def queues(draw: st.DrawFn) -> list[PendingJob]:
    """Draw jobs of plain groups, groups with services, and either one or the other."""
    known = demands(random.Random(7))
    jobs = []
    for number in range(draw(st.integers(1, 6))):
        name = draw(st.sampled_from(SERVICES))
        count = draw(st.integers(1, 3))
        servers: TaskGroup = group("servers", count=count, cpus=draw(st.sampled_from((0.5, 1, 3))))
        net = with_service("net", known[name], count=draw(st.integers(1, 2)))
        groups = draw(
            st.sampled_from(
                (
                    (servers,),
                    (net,),
                    (servers, net),
                    (flavoured("10", servers), flavoured("01", net)),
                    (group("web"), flavoured("10", servers), flavoured("01", net)),
                )
            )
        )
        jobs.append(waiting(f"j{number}", *groups, waited_s=draw(st.sampled_from((0.0, 1.0, 9.0)))))
    return jobs


def flat(parts: list[tuple[NodeView | DeviceView, ...]]) -> Snapshot:
    return world(*(part for some in parts for part in some))


@given(clusters(), queues(), st.sampled_from((POLICY, DefaultPolicy())))
@settings(max_examples=40, deadline=None)
def test_every_decision_keeps_the_rules(
    parts: list[tuple[NodeView | DeviceView, ...]], pending: list[PendingJob], policy: Policy
) -> None:
    snapshot = flat(parts)
    decision = decide(snapshot, pending, policy=policy)
    check_services(snapshot, pending, decision)
    assert decision.report.certified or not decision.report.solves
    assert {each.job for each in decision.placements} | {each.job for each in decision.misses} == {
        entry.job.id for entry in pending
    }


@given(clusters(), queues(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_order_of_what_is_there_has_no_influence(
    parts: list[tuple[NodeView | DeviceView, ...]], pending: list[PendingJob], dice: random.Random
) -> None:
    first = decide(flat(parts), pending, policy=POLICY)
    mixed_parts, mixed = list(parts), list(pending)
    dice.shuffle(mixed_parts)
    dice.shuffle(mixed)
    second = decide(flat(mixed_parts), mixed, policy=POLICY)
    assert sorted(first.placements, key=lambda each: each.job) == sorted(second.placements, key=lambda each: each.job)


@given(clusters(), queues())
@settings(max_examples=40, deadline=None)
def test_other_names_cost_the_same(parts: list[tuple[NodeView | DeviceView, ...]], pending: list[PendingJob]) -> None:
    """Of a lone job: with several, equal costs are told apart by name, and what is left differs."""

    def renamed(part: NodeView | DeviceView) -> NodeView | DeviceView:
        if isinstance(part, NodeView):
            return msgspec.structs.replace(part, name=f"x{9 - int(part.name[1:])}")
        device = msgspec.structs.replace(part.device, id=f"dev-x{9 - int(part.node[1:])}")
        return msgspec.structs.replace(part, node=f"x{9 - int(part.node[1:])}", device=device)

    other = [tuple(renamed(part) for part in some) for some in parts]
    for entry in pending[:2]:
        costs = [total(decide(flat(world_parts), [entry], policy=POLICY)) for world_parts in (parts, other)]
        assert costs[0] == costs[1]


def total(decision: Decision) -> int:
    return sum(task.cost for placement in decision.placements for task in placement.tasks)


@given(clusters(), queues())
@settings(max_examples=40, deadline=None)
def test_one_machine_more_never_costs_more(
    parts: list[tuple[NodeView | DeviceView, ...]], pending: list[PendingJob]
) -> None:
    """Of one task: several are anchored to a part of the topology, which a machine more may change."""
    for entry in pending[:3]:
        groups = tuple(
            msgspec.structs.replace(each, count=1, flavour="") for each in entry.job.groups if each.name != "web"
        )[:1]
        lone = msgspec.structs.replace(entry, job=msgspec.structs.replace(entry.job, groups=groups))
        before = decide(flat(parts), [lone], policy=POLICY)
        # A server in a rack that has one changes no distance between switches and servers.
        more = node("n9", cpus=8, rack=next((p[0].rack for p in parts if len(p) == 1), ""))  # type: ignore[union-attr]
        if not any(len(some) == 1 for some in parts):
            continue
        then = decide(flat([*parts, (more,)]), [lone], policy=POLICY)
        assert len(then.placements) >= len(before.placements)
        if before.placements:
            assert total(then) <= total(before)


@given(clusters(), queues())
@settings(max_examples=40, deadline=None)
def test_a_second_round_on_what_was_kept_decides_the_same(
    parts: list[tuple[NodeView | DeviceView, ...]], pending: list[PendingJob]
) -> None:
    kept = columns.Columns()
    first = decide_on(kept.of(flat(parts)), pending, policy=POLICY)
    second = decide_on(kept.of(flat(parts)), pending, policy=POLICY)
    assert (first.placements, first.misses) == (second.placements, second.misses)


@given(clusters(), queues())
@settings(max_examples=25, deadline=None)
def test_pruning_changes_no_cost(parts: list[tuple[NodeView | DeviceView, ...]], pending: list[PendingJob]) -> None:
    lone = pending[:1]
    cluster = columns.from_snapshot(flat(parts))
    whole = decide_on(cluster, lone, policy=POLICY, prune=False)
    assert total(decide_on(columns.from_snapshot(flat(parts)), lone, policy=POLICY)) == total(whole)
