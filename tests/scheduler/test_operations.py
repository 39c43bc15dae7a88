"""Cordon, evict and forget, step by step."""

from __future__ import annotations

import msgspec
import pytest

from farbus.model.node import Resources
from farbus.model.operation import Cordon, CordonKind
from farbus.model.states import DeviceState, NodeState
from farbus.scheduler import events
from farbus.scheduler.deciding import WAITS_PERSIST_S
from tests.scheduler.scripted import TTL_S, Cluster, first_fit, job, node


def cordon(cluster: Cluster, name: str) -> None:
    kind = CordonKind.DEVICE if name.startswith("GPU") else CordonKind.NODE
    cluster.tell(events.Cordoned(cordon=Cordon(kind=kind, name=name, by="ann", at=0.0, reason="new driver")))


def uncordon(cluster: Cluster, name: str) -> None:
    kind = CordonKind.DEVICE if name.startswith("GPU") else CordonKind.NODE
    cluster.tell(events.Uncordoned(kind=kind, name=name))


def forget(cluster: Cluster, name: str) -> None:
    cluster.tell(events.NodeForgotten(node=name, reason=f"node {name} is off, says ann"))


def running_remote() -> Cluster:
    """A job running on node c with the GPU of node a."""
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c"))
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    return cluster


@pytest.mark.parametrize("name", ["a", "GPU-a-0"])
def test_what_is_cordoned_gets_nothing_new_until_it_is_uncordoned(name: str) -> None:
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cordon(cluster, name)
    cluster.submit(job(gpus=1, on="c"))
    cluster.settle()
    assert cluster.state_of("j1") == "queued"
    (device,) = cluster.machine.device_statuses()
    assert (device.state, device.cordon) == (DeviceState.CORDONED, "ann, 1970-01-01T00:00:00Z: new driver")
    uncordon(cluster, name)
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def change(cluster: Cluster, name: str, *, trouble: str) -> None:
    """Let a node say what is wrong with it."""
    there, session = cluster.machine.nodes[name].node, cluster.agents[name].session
    assert there is not None
    changed = msgspec.structs.replace(there, trouble=trouble)
    cluster.tell(events.InventoryChanged(session=session, node=changed))


def test_a_node_in_trouble_gets_nothing_new_until_it_is_well() -> None:
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    change(cluster, "a", trouble="journal: disk I/O error")
    cluster.submit(job(gpus=1, on="c"))
    cluster.settle()
    assert cluster.state_of("j1") == "queued"
    (device,) = cluster.machine.device_statuses()
    assert (device.state, device.cordon) == (DeviceState.CORDONED, "node a: journal: disk I/O error")
    told = {status.node.name: (status.state, status.cordon) for status in cluster.machine.node_statuses(cluster.now)}
    assert told == {"a": (NodeState.CORDONED, "node a: journal: disk I/O error"), "c": (NodeState.READY, "")}
    change(cluster, "a", trouble="")
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def test_what_runs_on_a_node_in_trouble_goes_on() -> None:
    cluster = running_remote()
    for name in ("a", "c"):
        change(cluster, name, trouble="journal: disk I/O error")
    cluster.pass_time(3 * TTL_S)
    assert cluster.state_of("j1") == "running"
    cluster.tell(cluster.agents["c"].exit("j1", "main.0"))
    cluster.settle()
    assert cluster.state_of("j1") == "succeeded"


def test_what_runs_on_a_cordoned_node_goes_on() -> None:
    cluster = running_remote()
    cordon(cluster, "a")
    cordon(cluster, "c")
    cluster.pass_time(3 * TTL_S)
    assert cluster.state_of("j1") == "running"
    assert {status.state for status in cluster.machine.node_statuses(cluster.now)} == {NodeState.CORDONED}
    cluster.tell(cluster.agents["c"].exit("j1", "main.0"))
    cluster.settle()
    assert cluster.state_of("j1") == "succeeded"


def test_a_placement_on_a_node_cordoned_meanwhile_is_refused() -> None:
    cluster = Cluster(node("a", 1))
    cluster.join()
    cluster.submit(job(gpus=1))
    snapshot, pending, generation = cluster.machine.round_input(cluster.now)
    cordon(cluster, "a")
    cluster.tell(events.RoundDecided(decision=first_fit(snapshot, pending), generation=generation))
    assert cluster.state_of("j1") == "queued"
    assert not cluster.machine.leases


@pytest.mark.parametrize("name", ["a", "GPU-a-0"])
def test_a_cordon_outlives_a_restart_of_scheduler_and_node(name: str) -> None:
    cluster = Cluster(node("a", 1))
    cluster.join()
    cordon(cluster, name)
    cluster.restart()
    cluster.join()
    cluster.submit(job(gpus=1))
    cluster.settle()
    assert cluster.state_of("j1") == "queued"
    uncordon(cluster, name)
    cluster.restart()
    cluster.join()
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def test_an_evicted_job_that_runs_is_cancelled_with_the_reason() -> None:
    cluster = running_remote()
    cordon(cluster, "a")
    cluster.tell(events.JobEvicted(job_id="j1", node="a", reason="evicted from node a by ann"))
    cluster.settle()
    assert (cluster.state_of("j1"), cluster.reason_of("j1")) == ("cancelled", "evicted from node a by ann")
    assert not cluster.machine.jobs_of_node["a"]
    assert not cluster.agents["a"].device_side


def test_an_evicted_job_that_may_begin_anew_does_so_elsewhere() -> None:
    cluster = Cluster(node("a", 1), node("b", 1))
    cluster.join()
    cluster.submit(msgspec.structs.replace(job(gpus=1), moveable=True))
    cluster.settle()
    first = cluster.machine.jobs["j1"].runs.first.node
    cordon(cluster, first)
    cluster.tell(events.JobEvicted(job_id="j1", node=first, reason=f"evicted from node {first} by ann"))
    cluster.settle()
    cluster.pass_time(10)
    cluster.settle()
    moved = cluster.machine.jobs["j1"]
    assert (cluster.state_of("j1"), moved.progress.failures) == ("running", 0)
    assert moved.runs.first.node != first


def test_an_evicted_job_that_does_not_run_yet_is_placed_elsewhere() -> None:
    cluster = Cluster(node("a", 1), node("b", 1))
    cluster.join()
    cluster.submit(job(gpus=1))
    cluster.decide()
    cordon(cluster, "a")
    cluster.tell(events.JobEvicted(job_id="j1", node="a", reason="evicted from node a by ann"))
    cluster.settle()
    cluster.pass_time(10)
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    assert cluster.machine.jobs["j1"].runs.first.node == "b"


def evict(cluster: Cluster, name: str) -> None:
    cordon(cluster, name)
    cluster.tell(events.JobEvicted(job_id="j1", node=name, reason=f"evicted from node {name} by ann"))
    cluster.settle()


def half_done(*, lost: str = "") -> Cluster:
    """A job of two tasks: that on node c, with the GPU of node a, has ended well; that on node b goes on."""
    cluster = Cluster(node("a", 1), node("b"), node("c"))
    cluster.join()
    (group,) = job().groups
    parts = [msgspec.structs.replace(group, name=f"on-{name}", node=name) for name in ("b", "c")]
    parts[1] = msgspec.structs.replace(parts[1], requests=job(gpus=1).groups[0].requests)
    cluster.submit(msgspec.structs.replace(job(), groups=tuple(parts)))
    cluster.settle()
    if lost:
        cluster.lose(lost)
    cluster.tell(cluster.agents["c"].exit("j1", "on-c.0"))
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    return cluster


@pytest.mark.parametrize("name", ["", "a", "c"])
def test_a_job_gives_back_what_a_task_had_that_has_ended_well_and_goes_on(name: str) -> None:
    cluster = half_done()
    if name:
        evict(cluster, name)
    assert cluster.state_of("j1") == "running"
    assert not cluster.machine.leases
    assert cluster.machine.nodes["c"].used == Resources()
    for node_name in ("a", "c"):
        agent = cluster.agents[node_name]
        assert not agent.device_side
        assert not agent.tasks
        assert not cluster.machine.jobs_of_node[node_name]
    assert cluster.machine.jobs_of_node["b"] == {"j1"}
    cluster.restart()
    cluster.join()
    cluster.settle()
    if not name:
        # Others have it meanwhile.
        cluster.submit(job("j2", gpus=1, on="c", cpu_milli=4000))
        cluster.settle()
        assert cluster.state_of("j2") == "running"
    cluster.tell(cluster.agents["b"].exit("j1", "on-b.0"))
    cluster.settle()
    assert cluster.state_of("j1") == "succeeded"
    assert [(task.task, task.node, task.exit_code) for task in cluster.ended["j1"].tasks] == [
        ("on-b.0", "b", 0),
        ("on-c.0", "c", 0),
    ]


def test_what_a_task_had_that_has_ended_well_is_given_back_once_its_node_is_there_again() -> None:
    cluster = half_done(lost="a")
    evict(cluster, "a")
    assert cluster.machine.jobs_of_node["a"] == {"j1"}
    cluster.join("a")
    cluster.settle()
    assert not cluster.machine.jobs_of_node["a"]
    assert cluster.state_of("j1") == "running"


def test_a_job_that_also_runs_on_the_node_ends() -> None:
    cluster = half_done()
    evict(cluster, "b")
    assert (cluster.state_of("j1"), cluster.reason_of("j1")) == ("cancelled", "evicted from node b by ann")


def test_a_job_does_without_a_task_that_has_not_begun_on_the_node() -> None:
    cluster = Cluster(node("a", cpu_milli=1000), node("b", cpu_milli=1000))
    cluster.join("a")
    cluster.submit(job(count=2, min_count=1))
    cluster.settle()
    cluster.join("b")
    while cluster.machine.jobs["j1"].run("main.1") is None:
        cluster.decide()
    evict(cluster, "b")
    assert cluster.state_of("j1") == "running"
    assert not cluster.machine.jobs_of_node["b"]
    assert not cluster.agents["b"].tasks


def test_a_job_that_has_left_the_node_meanwhile_goes_on() -> None:
    cluster = running_remote()
    evict(cluster, "b")
    assert cluster.state_of("j1") == "running"


def renamed_while_leased() -> Cluster:
    """The machine that was node a calls itself b now, while a job on node c has its GPU."""
    cluster = Cluster(node("a", 1), msgspec.structs.replace(node("b"), devices=node("a", 1).devices), node("c"))
    cluster.join("a", "c")
    cluster.submit(job(gpus=1, on="c"))
    cluster.settle()
    cluster.agents["a"].die()
    cluster.lose("a")
    cluster.join("b")
    cluster.settle()
    assert owner_of(cluster) == ("a", "leased")
    return cluster


def owner_of(cluster: Cluster) -> tuple[str, str]:
    (status,) = cluster.machine.device_statuses()
    return status.node, str(status.state)


def test_a_device_of_a_forgotten_node_is_at_once_that_of_who_reports_it() -> None:
    cluster = renamed_while_leased()
    cluster.pass_time(TTL_S)
    forget(cluster, "a")
    cluster.settle()
    assert owner_of(cluster) == ("b", "free")


def test_a_device_whose_lease_ends_is_at_once_that_of_who_reports_it() -> None:
    cluster = renamed_while_leased()
    cluster.agents["a"].node = node("a")
    cluster.join("a")
    cluster.settle()
    assert owner_of(cluster) == ("b", "free")


def test_a_device_of_a_lost_node_is_that_of_who_reports_it() -> None:
    cluster = Cluster(node("a", 1), msgspec.structs.replace(node("b"), devices=node("a", 1).devices))
    cluster.join()
    cluster.lose("a")
    assert owner_of(cluster) == ("a", "lost")
    cluster.pass_time(TTL_S)
    assert owner_of(cluster) == ("b", "free")


def test_a_forgotten_device_node_frees_its_leases_and_keeps_its_epochs() -> None:
    cluster = running_remote()
    cluster.agents["a"].die()
    cluster.lose("a")
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.machine.leases
    forget(cluster, "a")
    cluster.settle()
    assert not cluster.machine.leases
    assert cluster.state_of("j1") == "failed"
    assert cluster.machine.device_statuses() == ()
    assert [status.node.name for status in cluster.machine.node_statuses(cluster.now)] == ["c"]
    cluster.restart()
    assert [status.node.name for status in cluster.machine.node_statuses(cluster.now)] == ["c"]
    cluster.join()
    cluster.submit(job("j2", gpus=1, on="c"))
    cluster.settle()
    (lease,) = cluster.machine.leases.values()
    assert [leased.epoch for leased in lease.lease.devices] == [2]


def test_a_node_is_forgotten_before_its_lease_time_is_over() -> None:
    cluster = running_remote()
    cluster.lose("a")
    forget(cluster, "a")
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "node a is off, says ann" in cluster.reason_of("j1")
    assert not cluster.machine.leases


def test_a_forgotten_client_node_frees_the_device_once_its_node_confirms() -> None:
    cluster = running_remote()
    cluster.lose("c")
    forget(cluster, "c")
    assert cluster.machine.leases
    cluster.settle()
    assert not cluster.machine.leases
    assert cluster.state_of("j1") == "failed"


def test_a_forgotten_node_that_comes_back_first_gives_up_what_it_holds() -> None:
    cluster = running_remote()
    cluster.lose("a")
    forget(cluster, "a")
    cluster.settle()
    assert cluster.agents["a"].device_side
    cluster.join("a")
    cluster.submit(job("j2", gpus=1, on="c"))
    if cluster.round_asked:
        cluster.decide()
    assert cluster.state_of("j2") == "queued"
    cluster.settle()
    assert cluster.state_of("j2") == "running"
    assert list(cluster.agents["a"].device_side) == ["j2-1-0"]


def test_a_connected_node_is_not_forgotten() -> None:
    cluster = running_remote()
    forget(cluster, "a")
    assert cluster.state_of("j1") == "running"
    assert cluster.machine.nodes["a"].connected


def test_forgetting_a_node_ends_the_interactive_jobs_that_wait_for_it() -> None:
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join("c")
    cluster.submit(job(gpus=1, on="c", interactive=True))
    cluster.settle()
    cluster.lose("c")
    forget(cluster, "c")
    assert cluster.state_of("j1") == "cancelled"


def test_how_long_a_job_has_waited_outlives_a_restart() -> None:
    cluster = running_remote()
    cluster.submit(job("j2", gpus=1, on="c"))
    cluster.settle()
    waited = cluster.machine.jobs["j2"].progress.rounds_waited
    assert waited >= 1
    cluster.pass_time(WAITS_PERSIST_S)
    cluster.restart()
    assert cluster.machine.jobs["j2"].progress.rounds_waited == waited
