"""HIRE's cost model term by term, by hand; its own examples; the policy on small clusters."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from farbus.errors import InvalidInput
from farbus.model.decision import Decision, DeviceView, Neighbour, NodeView, PendingJob, Snapshot
from farbus.model.device import Device, DeviceKind
from farbus.model.flavour import MAX_FLAVOURS, Standing, choose, flavours, options, standing, undecided
from farbus.model.job import Composite, Job, ServiceRequest, TaskGroup
from farbus.scheduler.costs import hire
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.hire import HirePolicy
from farbus.scheduler.costs.named import policy_named
from farbus.scheduler.phases.cluster import from_snapshot
from farbus.scheduler.phases.services import ServiceDevices
from farbus.scheduler.phases.topology import Tree
from farbus.scheduler.round import decide
from farbus.scheduler.templates import MIB, SRAM, STAGES, TemplateStore
from tests.scheduler.worlds import group, job, node, world

SWITCH = {"stages": 48, "sram_bytes": 22 * MIB, "recirculation": 100}
NETCHAIN = ServiceRequest(name="netchain", own={"sram_bytes": 5 * MIB}, shared={"stages": 2})
"""Figure 4c, the task group for the implementation netchain."""


def switch(
    name: str, rack: str = "", *, resources: dict[str, int] = SWITCH, services: tuple[str, ...] = (),
    runs: tuple[ServiceRequest, ...] = (),
) -> tuple[NodeView, DeviceView]:  # fmt: skip
    device = Device(id=f"dev-{name}", kind=DeviceKind.NETWORK, model="switch", resources=resources, services=services)
    view = node(name, cpus=4, rack=rack, labels={"plane": "network"})
    return view, DeviceView(device=device, node=name, free=True, instances=runs)


def fabric(pods: int = 2, tors: int = 2, servers: int = 3, *, cpus: int = 16) -> Snapshot:
    parts: list[NodeView | DeviceView] = [*switch("core")]
    for pod in range(pods):
        parts += switch(f"agg{pod}", f"pod{pod}")
        for tor in range(tors):
            place = f"pod{pod}/r{tor}"
            parts += switch(f"tor{pod}{tor}", place)
            parts += [node(f"s{pod}{tor}{number}", cpus=cpus, rack=place) for number in range(servers)]
    return world(*parts)


def with_service(name: str, request: ServiceRequest, *, count: int = 1, flavour: str = "") -> TaskGroup:
    made = group(name, count=count, cpus=0.1)
    return msgspec.structs.replace(made, service=request, flavour=flavour)


def flavoured(vector: str, made: TaskGroup) -> TaskGroup:
    return msgspec.structs.replace(made, flavour=vector)


def waiting(name: str, *groups: TaskGroup, waited_s: float = 10.0, **more: object) -> PendingJob:
    """Return a job that waited longer than HIRE hesitates."""
    return msgspec.structs.replace(job(name, *groups), waited_s=waited_s, **more)


def places(decision: Decision, name: str, of: str = "") -> list[str]:
    return [
        task.node
        for placement in decision.placements
        if placement.job == name
        for task in placement.tasks
        if task.task.startswith(of)
    ]


# --- the paper's own examples ------------------------------------------------------------------

COORDINATOR = {"c4": "", "server": "xxxxxxx10", "netchain": "xxxxxxx01", "spine": "xxxx11xxx", "leaf": "xxxx11xxx"}
"""Figure 4c and section 4.3: flavour vectors of the web application."""


def test_the_vectors_of_figure_4_make_netchain_and_servers_exclude_each_other() -> None:
    start = undecided(COORDINATOR.values())
    assert start == "xxxxxxxxx"
    assert standing(COORDINATOR["c4"], start) is Standing.DECIDED
    assert standing(COORDINATOR["netchain"], start) is Standing.UNDECIDED
    decided = choose(COORDINATOR["netchain"], start)
    assert decided == "xxxxxxx01"
    assert standing(COORDINATOR["netchain"], decided) is Standing.DECIDED
    assert standing(COORDINATOR["server"], decided) is Standing.OUT
    # Spine and leaf go together, and are another decision.
    assert standing(COORDINATOR["spine"], decided) is Standing.UNDECIDED
    both = choose(COORDINATOR["spine"], decided)
    assert standing(COORDINATOR["leaf"], both) is Standing.DECIDED
    assert options(tuple(COORDINATOR.values()), both) == ()


def test_all_ends_of_the_vectors_of_figure_4() -> None:
    assert flavours(tuple(COORDINATOR.values())) == ("xxxx11x01", "xxxx11x10")


def web_application() -> Job:
    """List 1: composites c4 (12 servers) and c5, a coordinator by servers (6) or netchain."""
    made = job("web", group("c4", count=12, cpus=16), group("c5", count=6, cpus=16)).job
    composite = Composite(name="coordinator", template="coordinator", size=12, servers=("c5",), own={SRAM: 6 * MIB})
    return msgspec.structs.replace(made, composites=(composite,))


def test_the_coordinator_of_list_1_expands_as_figure_4_has_it() -> None:
    expanded = TemplateStore().expand(web_application())
    found = {each.name: each for each in expanded.groups}
    assert not expanded.composites
    assert (found["c4"].flavour, found["c4"].count) == ("", 12)
    assert (found["c5"].flavour, found["c5"].count) == ("10", 6)
    netchain = found["coordinator-netchain"]
    assert (netchain.flavour, netchain.count) == ("01", 3)
    # Table 3: eight stages once for each switch, and for each instance its memory.
    assert netchain.service == ServiceRequest(name="netchain", own={SRAM: 6 * MIB}, shared={STAGES: 8})
    assert [each.name for each in expanded.in_flavour("01").groups] == ["c4", "coordinator-netchain"]
    assert [each.name for each in expanded.in_flavour("10").groups] == ["c4", "c5"]


def test_a_composite_of_several_implementations_and_parts() -> None:
    made = msgspec.structs.replace(
        job("j", group("store", count=9)).job,
        composites=(Composite(name="c", template="cache", size=9, servers=("store",)),),
    )
    expanded = TemplateStore().expand(made)
    assert {each.name: each.flavour for each in expanded.groups} == {
        "store": "10000",
        "c-incbricks": "01000",
        "c-netcache": "00100",
        "c-distcache-leaf": "00011",
        "c-distcache-spine": "00011",
    }
    assert expanded.flavours == ("00011", "00100", "01000", "10000")
    # Table 3: max(3, ceil(log |G|)).
    assert {each.count for each in expanded.groups if each.service} == {4}


@pytest.mark.parametrize(
    ("composite", "told"),
    [
        (Composite(name="c", template="coffee"), r"composites\[0\].template: there is none called 'coffee'"),
        (Composite(name="c", template="cache", implementations=("x",)), r"composites\[0\].implementations: cache has"),
        (Composite(name="c", template="cache", servers=("x",)), r"composites\[0\].servers: the job has no group 'x'"),
        (
            Composite(name="c", template="coordinator", own={SRAM: 1}),
            r"composites\[0\].own.sram_bytes: 1 is not from 6291456 to 12582912",
        ),
    ],
)
def test_a_composite_that_no_template_serves_is_refused(composite: Composite, told: str) -> None:
    made = msgspec.structs.replace(job("j", group("main")).job, composites=(composite,))
    with pytest.raises(InvalidInput, match=told):
        TemplateStore().expand(made)


# Figure 5 and eq. 4: three resources; type 1 shares the second, type 2 the third.

TYPE_1 = ServiceRequest(name="z1", own={"r1": 2, "r3": 1}, shared={"r2": 3})
TYPE_2 = ServiceRequest(name="z2", own={"r1": 1, "r2": 2}, shared={"r3": 4})


def test_shared_resources_are_taken_once_and_own_ones_by_each() -> None:
    view, device = switch("m", resources={"r1": 10, "r2": 10, "r3": 10})
    device = msgspec.structs.replace(device, instances=(TYPE_1, TYPE_1, TYPE_2))
    devices = ServiceDevices(from_snapshot(world(view, device)))
    # r1: 2 + 2 + 1; r2: 3 once, and 2; r3: 1 + 1, and 4 once.
    assert (devices.capacity - devices.room).tolist() == [[5, 5, 6]]
    assert devices.takes(TYPE_1).tolist() == [[2, 0, 1]]  # type: ignore[union-attr]
    assert devices.takes(TYPE_2).tolist() == [[1, 2, 0]]  # type: ignore[union-attr]
    # Two more of the first type use up r1; of the second, r2 has room for two.
    assert (devices.fit(TYPE_1).tolist(), devices.fit(TYPE_2).tolist()) == ([2], [2])
    devices.remove(0, TYPE_1)
    assert (devices.capacity - devices.room).tolist() == [[3, 5, 5]]
    devices.remove(0, TYPE_1)
    # The shared part goes with the last instance.
    assert (devices.capacity - devices.room).tolist() == [[1, 2, 4]]


def test_the_first_instance_pays_for_what_is_shared() -> None:
    """Equation 4 in a round: with 48 stages and 18 shared, two types leave 12, of which each instance takes 6."""
    request = ServiceRequest(name="hovercraft", own={"stages": 6}, shared={"stages": 18})
    other = ServiceRequest(name="other", own={"stages": 6}, shared={"stages": 18})
    parts = [*switch("m"), node("s")]
    pending = [waiting(f"j{n}", with_service("g", request)) for n in range(9)]
    assert len(decide(world(*parts), pending, policy=HirePolicy()).placements) == 5
    mixed = [waiting("a", with_service("g", request)), waiting("b", with_service("g", other))]
    assert len(decide(world(*parts), [*mixed, waiting("c", with_service("g", other))], policy=HirePolicy()).misses) == 1


# --- algorithm 1 and equation 6 ------------------------------------------------------------------

RACKS = ("", "p0", "p0/r0", "p0/r1", "p1/r2")


def test_algorithm_1_by_hand() -> None:
    tree = Tree(RACKS)
    assert tree.paths == ["", "p0", "p1", "p0/r0", "p0/r1", "p1/r2"]
    gain = dict(zip(tree.paths, tree.gain([tree.index["p0/r0"]], 64, 4).tolist(), strict=True))
    assert gain == {"p0/r0": 64, "p0": 16, "": 4, "p0/r1": 4, "p1": 1, "p1/r2": 0}
    twice = tree.gain([tree.index["p0/r0"], tree.index["p0/r1"]], 64, 4)
    assert twice[tree.index["p0"]] == 32


def test_equation_6_by_hand() -> None:
    tree = Tree(RACKS)
    places = np.array([tree.index[rack] for rack in ("p0/r0", "p0/r0", "p0/r1", "p1/r2")])
    # Of four tasks two run on the first server, one on the third.
    absence = tree.absence(places, np.array([2, 0, 1, 0]), 4)
    found = dict(zip(tree.paths, absence.tolist(), strict=True))
    # (2/4 + 4/4) / 2; 3/4; their mean; 1; their mean.
    assert found == {"p0/r0": 0.75, "p0/r1": 0.75, "p0": 0.75, "p1/r2": 1.0, "p1": 1.0, "": 0.875}


def test_locality_is_the_mean_of_both_by_the_tasks_behind_them() -> None:
    tree = Tree(("a", "b"))
    absence, gain = np.array([0.75, 0.5, 1.0]), np.array([16, 64, 4])
    loc = hire.locality(tree, absence, 3, gain, 1)
    assert loc.tolist() == [(3 * 0.75 + 0.75) / 4, (3 * 0.5 + 0) / 4, (3 * 1.0 + 1 - 4 / 64) / 4]
    assert hire.locality(tree, absence, 0, gain, 0).tolist() == [1, 1, 1]


# --- tables 4 and 5 --------------------------------------------------------------------------------


def test_utilisation_and_balance() -> None:
    mean, spread = hire.utilisation(np.array([[1.0, 3.0], [0.0, 0.0]]), np.array([[4.0, 4.0], [0.0, 9.0]]))
    assert mean.tolist() == [0.5, 0.0]
    assert spread.tolist() == [0.25, 0.0]
    used = np.array([[0.2, 0.6]])
    assert hire.sink(used).tolist() == pytest.approx([(0.4 + (1 - 0.2)) / 2])
    assert hire.sink(used, np.array([0.5]), np.array([0.25])).tolist() == pytest.approx([(0.4 + 0.8 + 0.75) / 4])


def test_services_that_run_are_cheaper_and_busy_devices_too() -> None:
    runs, active, most = np.array([True, False, False]), np.array([2, 0, 3]), np.array([4, 4, 4])
    assert hire.new_service(runs, active, most).tolist() == [0.0, 1.0, 1 / 1.75]
    assert hire.active_services(active, most).tolist() == [0.5, 0.0, 0.75]


def test_priority_delay_wait_and_preference() -> None:
    assert [hire.priority(value) for value in (1000, 0, -1000)] == [0.0, 0.5, 1.0]
    assert hire.delay(2.0, 8.0, 0, 4) == pytest.approx(2 / (8 * math.e))
    assert hire.delay(8.0, 8.0, 4, 4) == pytest.approx(1.0)
    assert [hire.wait(seconds) for seconds in (0.0, 0.25, 0.5, 9.0)] == pytest.approx([0, 0.5, 1, 1])
    assert [hire.preference(seconds) for seconds in (0.0, 0.5, 2.0)] == [3.0, 3.0, 0.0]
    assert hire.preference(1.25) == pytest.approx(3 * math.tanh(1.5))


def test_the_estimate_is_a_part_of_the_dearest_flavour() -> None:
    assert hire.flavour(np.array([500, 2000])).tolist() == [0.25, 1.0]


def test_the_arcs_of_a_server_and_of_a_switch_are_those_of_table_4() -> None:
    cluster = from_snapshot(world(node("s", cpus=8, memory_gib=8, free_cpus=4, free_memory_gib=8), *switch("m")))
    policy = HirePolicy()
    entry = waiting("j", with_service("g", NETCHAIN))
    server = policy.subject(entry, group("g"))
    at = np.array([cluster.index["s"], cluster.index["m"]])
    cost = policy.node_cost(cluster, at, cluster.free[at], (1000, 2**30), np.zeros(2, np.int64), server)
    # d/r = 1/4, 1/8; loc 1; interference 1; priority 1/2; u = 1/2, 0.  No task without a service runs on a switch.
    expected = (0.1875 + 0.0625 + 1 + 1 + 0.5) / 5 + (0.25 + 0.75) / 2
    assert cost.tolist() == [round(1000 * expected), -1]
    devices = ServiceDevices(cluster)
    assert devices.resources == ["recirculation", "sram_bytes", "stages"]
    share = [0.0, 5 / 22, 2 / 48]
    # Nothing runs: new 1, u = 0; one hop of one; no service of one is active.
    expected = (np.mean(share) + np.std(share) + 1 + 0.5) / 5 + (0 + 1 + 1 + 0) / 4
    decision = decide(world(node("s"), *switch("m")), [entry], policy=policy)
    assert decision.placements[0].tasks[0].why.endswith(f"netchain on m at cost {expected:.3f}".rstrip("0"))


# --- rounds ----------------------------------------------------------------------------------------


def test_the_policy_is_known_by_its_name() -> None:
    assert isinstance(policy_named("hire"), HirePolicy)


def test_servers_and_switches_of_a_job_are_near_each_other() -> None:
    decision = decide(
        fabric(), [waiting("j", group("web", count=4, cpus=4), with_service("net", NETCHAIN))], policy=HirePolicy()
    )
    (tor,) = places(decision, "j", "net")
    assert tor.startswith("tor")
    assert {name[:3] for name in places(decision, "j", "web")} == {f"s{tor[3:]}"}


def test_tasks_of_a_group_are_on_different_switches() -> None:
    decision = decide(fabric(), [waiting("j", with_service("net", NETCHAIN, count=5))], policy=HirePolicy())
    assert len(set(places(decision, "j"))) == 5


def test_a_service_is_started_where_it_runs_already() -> None:
    parts = [*switch("a"), *switch("b", runs=(NETCHAIN,)), *switch("c"), node("s")]
    decision = decide(world(*parts), [waiting("j", with_service("net", NETCHAIN))], policy=HirePolicy())
    assert places(decision, "j") == ["b"]


def test_a_switch_runs_the_services_that_it_says() -> None:
    parts = [*switch("a", services=("sharp",)), *switch("b", services=("netchain", "sharp")), node("s")]
    decision = decide(world(*parts), [waiting("j", with_service("net", NETCHAIN))], policy=HirePolicy())
    assert places(decision, "j") == ["b"]
    (miss,) = decide(
        world(*switch("a", services=("sharp",)), node("s")),
        [waiting("j", with_service("net", NETCHAIN))],
        policy=HirePolicy(),
    ).misses
    assert not miss.feasible_alone
    assert "no node has an in-network device that runs netchain" in miss.misses[0].message


def test_a_job_beside_another_goes_where_that_one_runs() -> None:
    running = (Neighbour(node="s110", tasks=3), Neighbour(node="tor11", tasks=1, in_network=1))
    entry = waiting("j", group("more", count=3, cpus=4), neighbours=running)
    entry = msgspec.structs.replace(entry, job=msgspec.structs.replace(entry.job, beside="j0"))
    assert {name[:3] for name in places(decide(fabric(), [entry], policy=HirePolicy()), "j")} == {"s11"}


def test_of_two_decisions_each_is_made_by_its_own_room() -> None:
    """Netchain has room, the second service nowhere: the job takes the one and does the other on servers."""
    heavy = ServiceRequest(name="heavy", own={"stages": 49})
    entry = waiting(
        "j",
        group("web"),
        flavoured("10", group("a-servers", cpus=4)),
        with_service("a-net", NETCHAIN, flavour="01"),
        flavoured("xx10", group("b-servers", cpus=4)),
        with_service("b-net", heavy, flavour="xx01"),
    )
    (placement,) = decide(fabric(), [entry], policy=HirePolicy()).placements
    assert placement.alternative == "0110"
    assert {task.task for task in placement.tasks} == {"web.0", "a-net.0", "b-servers.0"}


def either(name: str, *, waited_s: float, at: float = 0.0) -> PendingJob:
    entry = waiting(
        name,
        flavoured("10", group("servers", count=2)),
        with_service("net", ServiceRequest(name="one", own={"stages": 48}), flavour="01"),
        waited_s=waited_s,
    )
    return msgspec.structs.replace(entry, job=msgspec.structs.replace(entry.job, submitted_at=at))


def test_the_flavour_in_the_network_goes_to_as_many_as_there_is_room_for() -> None:
    pending = [either(f"j{n}", waited_s=10.0, at=n) for n in range(4)]
    decision = decide(world(*switch("m"), *switch("n"), node("s", cpus=32)), pending, policy=HirePolicy())
    assert {each.job: each.alternative for each in decision.placements} == {
        "j0": "01",
        "j1": "01",
        "j2": "10",
        "j3": "10",
    }


def test_a_young_job_would_rather_wait_for_a_switch() -> None:
    full = world(node("s", cpus=32), *switch("m", runs=(ServiceRequest(name="one", own={"stages": 40}),)))
    young = decide(full, [either("j", waited_s=0.1)], policy=HirePolicy())
    assert not young.placements
    assert "flavour" in [miss.resource for miss in young.misses[0].misses]
    # A job without switches to hope for waits for nothing.
    for waited_s in (0.6, 1.0, 5.0):
        (placement,) = decide(full, [either("j", waited_s=waited_s)], policy=HirePolicy()).placements
        assert placement.alternative == "10"
    plain = waiting("p", flavoured("10", group("a")), flavoured("01", group("b", cpus=2)), waited_s=0.0)
    assert decide(full, [plain], policy=HirePolicy()).placements[0].alternative == "10"


def test_other_policies_place_jobs_with_vectors_too() -> None:
    decision = decide(fabric(), [either("j", waited_s=0.0)], policy=DefaultPolicy())
    assert decision.placements[0].alternative in ("01", "10")


def test_vectors_that_make_no_sense_stop_nobody_else() -> None:
    odd = waiting("odd", flavoured("2", group("a")))
    many = waiting("many", *(flavoured("xx" * n + way, group(f"g{n}{way}")) for n in range(7) for way in ("10", "01")))
    both = either("both", waited_s=9.0)
    both = msgspec.structs.replace(
        both, job=msgspec.structs.replace(both.job, id="both", composites=(Composite(name="c", template="t"),))
    )
    decision = decide(fabric(), [odd, many, both, waiting("fine", group("a"))], policy=HirePolicy())
    assert [placement.job for placement in decision.placements] == ["fine"]
    assert all(part.permanent for miss in decision.misses for part in miss.misses)
    assert len(many.job.flavours) > MAX_FLAVOURS


def test_two_groups_of_a_job_may_share_a_switch() -> None:
    cache = ServiceRequest(name="netcache", own={"sram_bytes": 12 * MIB}, shared={"stages": 8})
    chain = ServiceRequest(name="netchain", own={"sram_bytes": 10 * MIB}, shared={"stages": 8})
    pending = [waiting("j", with_service("a", cache), with_service("b", chain))]
    decision = decide(world(*switch("m"), node("s")), pending, policy=HirePolicy())
    assert places(decision, "j") == ["m", "m"]


def test_a_flavour_that_finds_no_room_gives_way_to_the_one_that_keeps_most_of_it() -> None:
    """Either service has room by itself, both have not: one of them is kept, and not all done on servers."""
    big = [ServiceRequest(name=name, own={"stages": 30}) for name in ("p", "q")]
    entry = waiting(
        "j",
        flavoured("10", group("p-servers", cpus=0.5)),
        with_service("p-net", big[0], flavour="01"),
        flavoured("xx10", group("q-servers", cpus=0.5)),
        with_service("q-net", big[1], flavour="xx01"),
        waited_s=0.0,
    )
    (placement,) = decide(world(*switch("m"), node("s")), [entry], policy=HirePolicy()).placements
    assert placement.alternative in ("0110", "1001")
