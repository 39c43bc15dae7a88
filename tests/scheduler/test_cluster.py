"""The books: what rounds see, what plans are refused, what people are shown."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from farbus.model.decision import Decision, JobMiss, JobPlacement, RoundReport
from farbus.model.device import Device, DeviceKind, PoolReach, Route
from farbus.model.job import Alternative, DevicePlacement, GroupVariant, Job, Miss, Requests, TaskPlacement
from farbus.model.node import Resources
from farbus.model.states import DeviceState, NodeState
from farbus.scheduler import events
from farbus.scheduler.deciding import FLAVOUR_LOOK_S
from farbus.scheduler.phases.cluster import Columns
from farbus.scheduler.situations import FLAVOUR
from farbus.scheduler.views import NODE_MEMORY_S, fresh_snapshot
from tests.scheduler.scripted import Cluster, job, node


@pytest.fixture
def cluster() -> Cluster:
    """Nodes a and b with a GPU each, c without; job j2 wants one GPU and waits."""
    cluster = Cluster(node("a", 1), node("b", 1), node("c"))
    cluster.join()
    cluster.submit(job("j2", gpus=1))
    return cluster


def placed(on: str, *devices: tuple[str, str, Route], task: str = "main.0") -> JobPlacement:
    places = tuple(DevicePlacement(device=device, node=owner, route=route) for device, owner, route in devices)
    return JobPlacement(job="j2", tasks=(TaskPlacement(task=task, node=on, devices=places),))


GOOD = ("GPU-a-0", "a", Route.REMOTE)


def test_a_plan_that_fits_has_no_problem(cluster: Cluster) -> None:
    assert cluster.machine.placement_problem(cluster.machine.jobs["j2"], placed("c", GOOD)) == ""


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (JobPlacement(job="j2", tasks=()), "not every task is placed exactly once"),
        (JobPlacement(job="j2", tasks=placed("c", GOOD).tasks * 2), "not every task is placed exactly once"),
        (placed("c", GOOD, task="main.1"), "not every task is placed exactly once"),
        (placed("nowhere", GOOD), "node nowhere can't be used now"),
        (placed("c"), "task main.0 has 0 devices of 1"),
        (placed("c", GOOD, ("GPU-b-0", "b", Route.REMOTE)), "task main.0 has 2 devices of 1"),
        (placed("c", ("GPU-x", "a", Route.REMOTE)), "device GPU-x is not free on node a"),
        (placed("c", ("GPU-a-0", "b", Route.REMOTE)), "device GPU-a-0 is not free on node b"),
        (placed("c", ("GPU-a-0", "a", Route.LOCAL)), "device GPU-a-0 can't reach task main.0 by route local"),
        (placed("a", ("GPU-a-0", "a", Route.REMOTE)), "device GPU-a-0 can't reach task main.0 by route remote"),
        (placed("c", ("GPU-a-0", "a", Route.RECOMPOSED)), "device GPU-a-0 can't reach task main.0 by route recomposed"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused(cluster: Cluster, plan: JobPlacement, problem: str) -> None:
    assert cluster.machine.placement_problem(cluster.machine.jobs["j2"], plan) == problem


def test_a_plan_with_the_tasks_that_a_job_needs_has_no_problem(cluster: Cluster) -> None:
    record = cluster.machine.jobs["j2"]
    (group,) = record.job.groups
    record.job = replace(record.job, groups=(replace(group, count=3, min_count=1),))
    assert cluster.machine.placement_problem(record, placed("c", GOOD)) == ""
    record.job = replace(record.job, groups=(replace(group, count=3, min_count=2),))
    problem = cluster.machine.placement_problem(record, placed("c", GOOD))
    assert problem == "1 of the 2 tasks that group main needs are placed"


def test_a_plan_for_a_device_that_is_leased_is_refused(cluster: Cluster) -> None:
    cluster.settle()
    (lease,) = cluster.machine.leases.values()
    taken = lease.lease.devices[0].device
    cluster.submit(job("j3", gpus=1))
    plan = placed("c", (taken, lease.lease.device_node, Route.REMOTE))
    assert "is not free" in cluster.machine.placement_problem(cluster.machine.jobs["j3"], plan)


@pytest.mark.parametrize(
    ("lender", "client", "problem"),
    [("on", "off", "nodes c and a differ in remoting_tls"), ("off", "off", ""), ("on", "", "")],
)
def test_a_plan_for_a_session_that_would_be_refused_is_refused(
    cluster: Cluster, lender: str, client: str, problem: str
) -> None:
    for told, setting in ((node("a", 1), lender), (node("c"), client)):
        announced = replace(told, remoting_tls=setting)
        cluster.tell(events.InventoryChanged(node=announced, session=cluster.agents[told.name].session))
    assert cluster.machine.placement_problem(cluster.machine.jobs["j2"], placed("c", GOOD)) == problem


def test_a_plan_that_overcommits_a_node_is_refused(cluster: Cluster) -> None:
    cluster.submit(job("j4", count=2, cpu_milli=3000))
    tasks = tuple(TaskPlacement(task=f"main.{number}", node="c") for number in (0, 1))
    plan = JobPlacement(job="j4", tasks=tasks)
    assert cluster.machine.placement_problem(cluster.machine.jobs["j4"], plan) == "node c has no room"


def test_a_plan_with_a_device_of_another_kind_is_refused(cluster: Cluster) -> None:
    drive = Device(id="NVME-1", kind=DeviceKind.NVME, model="drive")
    announced = msgspec.structs.replace(node("c"), devices=(drive,))
    cluster.tell(events.InventoryChanged(node=announced, session=cluster.agents["c"].session))
    plan = placed("a", ("NVME-1", "c", Route.REMOTE))
    assert cluster.machine.placement_problem(cluster.machine.jobs["j2"], plan) == "device NVME-1 is not a GPU"


def test_a_lost_node_is_seen_with_nothing_free(cluster: Cluster) -> None:
    cluster.lose("a")
    view = next(view for view in cluster.machine.snapshot(cluster.now).nodes if view.name == "a")
    assert (view.capacity.cpu_milli, view.free) == (4000, Resources())
    devices = {view.device.id: view.free for view in cluster.machine.snapshot(cluster.now).devices}
    assert devices == {"GPU-a-0": False, "GPU-b-0": True}


def test_a_node_that_stays_away_is_forgotten_by_rounds(cluster: Cluster) -> None:
    cluster.lose("a")
    later = cluster.now + NODE_MEMORY_S
    assert [view.name for view in cluster.machine.snapshot(later).nodes] == ["b", "c"]
    assert [view.device.id for view in cluster.machine.snapshot(later).devices] == ["GPU-b-0"]


def test_people_see_what_is_lost_leased_and_free(cluster: Cluster) -> None:
    cluster.settle()
    cluster.lose("b")
    states = {status.device.id: status.state for status in cluster.machine.device_statuses()}
    assert states == {"GPU-a-0": DeviceState.LEASED, "GPU-b-0": DeviceState.LOST}
    nodes = {status.node.name: status.state for status in cluster.machine.node_statuses(cluster.now)}
    assert nodes == {"a": NodeState.READY, "b": NodeState.LOST, "c": NodeState.READY}


def test_listings_carry_no_secret(cluster: Cluster) -> None:
    cluster.settle()
    assert [status.lease.secret for status in cluster.machine.lease_statuses(cluster.now)] == [""]


def test_a_device_that_a_node_no_longer_reports_is_not_given_away(cluster: Cluster) -> None:
    bare = msgspec.structs.replace(node("a", 1), devices=())
    cluster.tell(events.InventoryChanged(node=bare, session=cluster.agents["a"].session))
    assert [view.device.id for view in cluster.machine.snapshot(cluster.now).devices] == ["GPU-b-0"]
    cluster.settle()
    (lease,) = cluster.machine.leases.values()
    assert lease.lease.device_node == "b"


def test_a_device_moves_with_its_node_gone(cluster: Cluster) -> None:
    cluster.lose("b")
    moved = msgspec.structs.replace(node("c"), devices=node("b", 1).devices)
    cluster.tell(events.InventoryChanged(node=moved, session=cluster.agents["c"].session))
    assert cluster.machine.devices["GPU-b-0"].node == "c"
    assert cluster.machine.is_free(cluster.machine.devices["GPU-b-0"])


FLAVOURED = msgspec.structs.replace(
    job("j5", gpus=2),
    alternatives=(Alternative(name="cpu", groups=(GroupVariant(name="main", requests=Requests(cpu_milli=3000)),)),),
)


def decided(cluster: Cluster, *placements: JobPlacement) -> events.RoundDecided:
    _, _, generation = cluster.machine.round_input(cluster.now)
    report = RoundReport(pending=1, placed=1, decision_ms=0.0, solves=1, certified=True)
    decision = Decision(placements=placements, misses=(), report=report)
    return events.RoundDecided(decision=decision, generation=generation)


def test_a_job_runs_as_the_alternative_that_was_chosen(cluster: Cluster) -> None:
    cluster.settle()
    cluster.submit(FLAVOURED)
    plan = JobPlacement(job="j5", tasks=(TaskPlacement(task="main.0", node="c"),), alternative="cpu")
    cluster.tell(decided(cluster, plan))
    (run,) = cluster.machine.jobs["j5"].runs
    assert run.requests == Requests(cpu_milli=3000)
    assert cluster.machine.node("c").used.cpu_milli >= 3000
    assert any("alternative cpu" in line for line in cluster.machine.jobs["j5"].progress.story)
    cluster.machine.check_invariants(now=cluster.now)


def test_a_plan_is_checked_against_the_alternative_that_it_names(cluster: Cluster) -> None:
    cluster.submit(FLAVOURED)
    record = cluster.machine.jobs["j5"]
    tasks = (TaskPlacement(task="main.0", node="c"),)
    for name, problem in (
        ("cpu", ""),
        ("", "task main.0 has 0 devices of 2"),
        ("none", "the job has no alternative none"),
    ):
        plan = JobPlacement(job="j5", tasks=tasks, alternative=name)
        assert cluster.machine.placement_problem(record, plan) == problem


def polymorphic(job_id: str) -> Job:
    """Return a job of three groups, of which the second and the third are instead of each other."""
    one = job(job_id).groups[0]
    groups = (
        replace(one, name="web"),
        replace(one, name="small", flavour="10", command=("small",)),
        replace(one, name="large", flavour="01", command=("large",), count=2),
    )
    return replace(job(job_id), groups=groups)


def test_a_job_with_flavour_vectors_runs_the_groups_that_were_decided(cluster: Cluster) -> None:
    cluster.settle()
    cluster.submit(polymorphic("j5"))
    tasks = tuple(TaskPlacement(task=name, node="c") for name in ("web.0", "large.0", "large.1"))
    cluster.tell(decided(cluster, JobPlacement(job="j5", tasks=tasks, alternative="01")))
    record = cluster.machine.jobs["j5"]
    # What is kept of a run counts the groups as they were submitted.
    assert [record.group(run).command for run in record.runs] == [("program",), ("large",), ("large",)]
    cluster.machine.check_invariants(now=cluster.now)


def test_a_plan_is_checked_against_what_it_decides(cluster: Cluster) -> None:
    cluster.submit(polymorphic("j5"))
    record = cluster.machine.jobs["j5"]
    tasks = tuple(TaskPlacement(task=name, node="c") for name in ("web.0", "small.0"))
    for name, problem in (
        ("10", ""),
        ("01", "not every task is placed exactly once"),
        ("", "the job has no alternative "),
        ("1x", "the job has no alternative 1x"),
    ):
        assert (
            cluster.machine.placement_problem(record, JobPlacement(job="j5", tasks=tasks, alternative=name)) == problem
        )


def test_a_round_sees_where_the_job_runs_that_another_is_to_be_beside(cluster: Cluster) -> None:
    cluster.settle()
    runs = {run.node for run in cluster.machine.jobs["j2"].runs}
    cluster.submit(replace(job("j5", gpus=9), beside="j2"), replace(job("j6", gpus=9, user="eve"), beside="j2"))
    _, pending, _ = cluster.machine.round_input(cluster.now)
    seen = {entry.job.id: entry.neighbours for entry in pending}
    assert {each.node for each in seen["j5"]} == runs
    # Where others' jobs run is nobody's business.
    assert seen["j6"] == ()


def test_a_job_whose_flavour_is_put_off_is_looked_at_again_though_nothing_has_changed(cluster: Cluster) -> None:
    cluster.settle()
    cluster.submit(polymorphic("j5"))
    _, pending, generation = cluster.machine.round_input(cluster.now)
    assert pending[0].waited_s == 0
    miss = JobMiss(job="j5", misses=(Miss(phase="round", resource=FLAVOUR, message="dear"),), feasible_alone=True)
    report = RoundReport(pending=1, placed=0, decision_ms=0.0, solves=1, certified=True)
    cluster.tell(
        events.RoundDecided(decision=Decision(placements=(), misses=(miss,), report=report), generation=generation)
    )
    assert cluster.machine.round_input(cluster.now)[1] == ()
    (again,) = cluster.machine.round_input(cluster.now + FLAVOUR_LOOK_S)[1]
    assert again.job.id == "j5"


def test_rounds_see_the_fabric_pools_of_nodes(cluster: Cluster) -> None:
    pools = (PoolReach(pool="p", attach_s=4.5),)
    known = cluster.agents["c"].node
    cluster.agents["c"].node = msgspec.structs.replace(known, pools=pools)
    cluster.lose("c")
    cluster.join("c")
    views = {view.name: view for view in cluster.machine.snapshot(cluster.now).nodes}
    assert views["c"].pools == pools
    assert views["a"].pools == ()


@pytest.mark.parametrize(
    ("told", "seen"),
    [(0.0, 1.0), (0.2, 1.0), (1.4, 1.0), (1.5, 2.0), (2.5, 2.0), (3.0, 4.0), (60.0, 64.0), (3600.0, 4096.0)],
)
def test_rounds_see_in_steps_what_attaching_storage_takes_a_node(cluster: Cluster, told: float, seen: float) -> None:
    known = cluster.agents["c"]
    known.node = msgspec.structs.replace(known.node, storage_attach_s=told)
    cluster.tell(events.InventoryChanged(node=known.node, session=known.session))
    views = {view.name: view for view in cluster.machine.snapshot(cluster.now).nodes}
    assert (views["c"].storage_attach_s, views["a"].storage_attach_s) == (seen, 1.0)


def test_a_time_of_attaching_that_hardly_changes_lays_nothing_out_anew(cluster: Cluster) -> None:
    known = cluster.agents["c"]
    columns = Columns()
    laid_out = []
    for told in (0.0, 0.3, 3.0, 3.1, 9.0):
        known.node = msgspec.structs.replace(known.node, storage_attach_s=told)
        cluster.tell(events.InventoryChanged(node=known.node, session=known.session))
        laid_out.append(columns.of(cluster.machine.snapshot(cluster.now)).kept)
    assert laid_out[0] is laid_out[1]
    assert laid_out[1] is not laid_out[2]
    assert laid_out[2] is laid_out[3]
    assert laid_out[3] is not laid_out[4]


def test_rounds_see_where_a_device_under_a_recomposed_lease_goes(cluster: Cluster) -> None:
    cluster.settle()
    (record,) = cluster.machine.leases.values()
    record.lease = msgspec.structs.replace(record.lease, route=Route.RECOMPOSED, client_node="c")
    views = {view.device.id: view for view in fresh_snapshot(cluster.machine, cluster.now).devices}
    held = views.pop(record.lease.devices[0].device)
    assert (held.destination, held.free) == ("c", False)
    assert {view.destination for view in views.values()} == {""}
