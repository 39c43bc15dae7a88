"""Nodes that the scheduler can't reach: how long running jobs are kept, and what becomes of their devices."""

from __future__ import annotations

import msgspec
import pytest

from farbus.model.states import LeaseState
from farbus.scheduler import events
from tests.scheduler.scripted import TTL_S, Cluster, job, node

LIMIT_S = 100.0


def remote(*, own_limit_s: float = 0.0, interactive: bool = False) -> Cluster:
    """A job that runs on node c with the GPU of node a, in a cluster that keeps jobs for a while."""
    cluster = Cluster(node("a", 1), node("c"))
    cluster.unreachable_limit_s = LIMIT_S
    cluster.restart()
    cluster.join()
    wanted = job(gpus=1, on="c", interactive=interactive)
    cluster.submit(msgspec.structs.replace(wanted, unreachable_limit_s=own_limit_s))
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    return cluster


def device_of(cluster: Cluster) -> str:
    (device,) = cluster.machine.device_statuses()
    return device.lease


@pytest.mark.parametrize("names", [("a",), ("c",), ("a", "c")])
@pytest.mark.parametrize("interactive", [False, True])
def test_a_job_outlives_a_partition(names: tuple[str, ...], interactive: bool) -> None:
    cluster = remote(interactive=interactive)
    for name in names:
        cluster.lose(name)
    cluster.pass_time(LIMIT_S - 1)
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    assert cluster.reason_of("j1").startswith(f"unreachable: node {names[-1]} was last heard at ")
    assert cluster.reason_of("j1").endswith("the job is kept for 100 s")
    cluster.join(*names)
    cluster.settle()
    assert (cluster.state_of("j1"), cluster.reason_of("j1")) == ("running", "")
    cluster.pass_time(2 * LIMIT_S)
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    assert not [one for one in cluster.sent if isinstance(one[1], events.StopTask | events.UnprepareClient)]


def test_a_connection_that_is_half_open_is_no_other_case() -> None:
    cluster = remote()
    cluster.pass_time(LIMIT_S - 1, heartbeats=False)
    assert cluster.state_of("j1") == "running"
    assert not cluster.machine.nodes["a"].connected
    cluster.join()
    cluster.settle()
    assert cluster.state_of("j1") == "running"


@pytest.mark.parametrize("name", ["a", "c"])
def test_a_job_is_given_up_at_its_limit(name: str) -> None:
    cluster = remote()
    cluster.lose(name)
    cluster.pass_time(LIMIT_S)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert f"node {name} was lost: its agent has not been heard for 100 s" in cluster.reason_of("j1")


def test_nobody_knows_how_a_program_ended_that_was_lost() -> None:
    cluster = remote()
    cluster.lose("c")
    cluster.pass_time(LIMIT_S)
    cluster.settle()
    cluster.tell(events.NodeForgotten(node="c", reason="node c is off"))
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    (task,) = cluster.ended["j1"].tasks
    assert (task.state, task.exit_unknown, task.reason) == ("exited", True, "lost with node c")


@pytest.mark.parametrize("own_limit_s", [1.0, 3 * LIMIT_S])
def test_a_jobs_own_limit_goes_first(own_limit_s: float) -> None:
    cluster = remote(own_limit_s=own_limit_s)
    cluster.lose("a")
    least = max(TTL_S, own_limit_s)
    cluster.pass_time(least - 1)
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    cluster.pass_time(1)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"


def test_each_job_is_given_up_at_its_own_limit() -> None:
    cluster = Cluster(node("a", 2, cpu_milli=4000))
    cluster.join()
    for name, limit_s in (("j1", 90.0), ("j2", 40.0)):
        cluster.submit(msgspec.structs.replace(job(name, gpus=1), unreachable_limit_s=limit_s))
    cluster.settle()
    cluster.lose("a")
    cluster.pass_time(40.0)
    cluster.settle()
    assert (cluster.state_of("j1"), cluster.state_of("j2")) == ("running", "failed")
    cluster.pass_time(50.0)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"


def test_nobody_else_gets_the_device_before_its_node_has_confirmed() -> None:
    cluster = remote()
    cluster.lose("a")
    cluster.submit(job("j2", gpus=1))
    cluster.pass_time(3 * LIMIT_S)
    cluster.settle()
    assert (cluster.state_of("j1"), cluster.state_of("j2")) == ("failed", "queued")
    assert device_of(cluster) == "j1-1-0"
    cluster.join("a")
    cluster.settle()
    assert cluster.state_of("j2") == "running"
    assert device_of(cluster) == "j2-1-0"


@pytest.mark.parametrize("name", ["a", "c"])
def test_what_a_node_gave_up_meanwhile_ends_the_job_when_it_is_back(name: str) -> None:
    cluster = remote()
    cluster.lose(name)
    cluster.pass_time(LIMIT_S / 2)
    agent = cluster.agents[name]
    agent.device_side.clear()
    agent.client_side.clear()
    for job_id, task in list(agent.tasks):
        agent.exit(job_id, task, -9)
    cluster.join(name)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert not cluster.machine.leases


def test_a_program_that_ends_while_the_devices_node_is_away_ends_its_job() -> None:
    cluster = remote()
    cluster.lose("a")
    cluster.pass_time(2 * TTL_S)
    cluster.tell(cluster.agents["c"].exit("j1", "main.0"))
    cluster.settle()
    assert cluster.state_of("j1") == "succeeded"
    (lease,) = cluster.machine.leases.values()
    assert lease.state is LeaseState.RELEASING
    cluster.join("a")
    cluster.settle()
    assert not cluster.machine.leases


def two_tasks(*on: str) -> Cluster:
    """A job of two tasks, on nodes of their own, with the GPUs of the nodes a and b."""
    cluster = Cluster(node("a", 1), node("b", 1), node("c"), node("d"))
    cluster.unreachable_limit_s = LIMIT_S
    cluster.restart()
    cluster.join()
    (group,) = job(gpus=1).groups
    parts = [msgspec.structs.replace(group, name=f"on-{name}", node=name) for name in on]
    cluster.submit(msgspec.structs.replace(job(), groups=tuple(parts)))
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    return cluster


def test_what_a_task_had_that_has_ended_well_is_not_missed() -> None:
    cluster = two_tasks("a", "b")
    cluster.tell(cluster.agents["a"].exit("j1", "on-a.0"))
    cluster.settle()
    cluster.lose("a")
    cluster.pass_time(2 * LIMIT_S)
    cluster.settle()
    assert (cluster.state_of("j1"), cluster.reason_of("j1")) == ("running", "")
    cluster.agents["a"].die()
    cluster.join("a")
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    assert [lease.lease.task for lease in cluster.machine.leases.values()] == ["on-b.0"]
    cluster.tell(cluster.agents["b"].exit("j1", "on-b.0"))
    cluster.settle()
    assert cluster.state_of("j1") == "succeeded"
    assert not cluster.machine.leases


def test_a_lender_is_not_waited_for_once_its_task_has_ended_well() -> None:
    cluster = two_tasks("c", "d")
    run = cluster.machine.jobs["j1"].run("on-c.0")
    assert run is not None
    (place,) = run.placement.devices
    cluster.lose(place.node)
    cluster.pass_time(LIMIT_S / 2)
    assert cluster.reason_of("j1").startswith(f"unreachable: node {place.node}")
    cluster.tell(cluster.agents["c"].exit("j1", "on-c.0"))
    cluster.pass_time(LIMIT_S)
    cluster.settle()
    assert (cluster.state_of("j1"), cluster.reason_of("j1")) == ("running", "")


def test_a_kept_job_can_be_cancelled() -> None:
    cluster = remote()
    cluster.lose("c")
    cluster.pass_time(2 * TTL_S)
    cluster.tell(events.JobCancelled(job_id="j1", reason="cancelled by ada"))
    cluster.settle()
    assert cluster.state_of("j1") == "cancelled"
    cluster.join("c")
    cluster.settle()
    assert not cluster.agents["c"].tasks


def test_an_operators_word_that_a_node_is_off_ends_the_wait() -> None:
    cluster = remote()
    cluster.lose("a")
    cluster.pass_time(2 * TTL_S)
    cluster.tell(events.NodeForgotten(node="a", reason="node a is off"))
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert not cluster.machine.leases


def test_a_job_that_is_not_running_yet_is_placed_elsewhere_at_once() -> None:
    cluster = remote()
    cluster.submit(job("j2", cpu_milli=1000, on="c"))
    cluster.decide()
    cluster.lose("c")
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert (cluster.state_of("j1"), cluster.state_of("j2")) == ("running", "queued")


def test_a_restart_of_the_scheduler_counts_from_its_own_return() -> None:
    cluster = remote()
    cluster.lose("a")
    cluster.pass_time(LIMIT_S - 1)
    cluster.restart()
    cluster.join("c")
    cluster.pass_time(LIMIT_S - 1)
    assert cluster.state_of("j1") == "running"
    cluster.join("a")
    cluster.settle()
    assert (cluster.state_of("j1"), cluster.reason_of("j1")) == ("running", "")


def test_a_lease_that_a_node_which_is_heard_does_not_renew_ends_after_the_lease_time() -> None:
    cluster = remote()
    cluster.agents["a"].device_side.clear()
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "did not renew" in cluster.reason_of("j1")
