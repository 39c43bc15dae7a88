"""Agents that were restarted and still hold what they held: what their hello tells, and what it does not."""

from __future__ import annotations

import msgspec
import pytest

from farbus.model.states import DeviceState, LeaseState
from farbus.scheduler import events
from tests.scheduler.scripted import TTL_S, Cluster, job, node


def interactive(*, gpus: int) -> Cluster:
    """Bring an interactive job to running: its program on c, its device on a."""
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=gpus, on="c", interactive=True))
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    return cluster


def hello(cluster: Cluster, name: str, *clients: tuple[str, str], held: bool = True) -> None:
    """Let an agent come back that tells which client sides it holds."""
    told = cluster.agents[name].hello(99)
    cluster.tell(
        msgspec.structs.replace(
            told, clients=frozenset(clients), held=told.held if held else (), instance=told.instance
        )
    )
    cluster.settle()


def test_a_restarted_agent_that_holds_everything_keeps_its_jobs() -> None:
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c"))
    cluster.settle()
    for name in ("a", "c"):
        cluster.lose(name)
    hello(cluster, "a")
    hello(cluster, "c", ("j1", "main.0"))
    assert cluster.state_of("j1") == "running"
    assert not [one for one in cluster.sent if isinstance(one[1], events.StopTask)]


def remote() -> Cluster:
    """Bring a job to running: its program on c, its device on a."""
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c"))
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    return cluster


@pytest.mark.parametrize("names", [("a",), ("c",), ("a", "c")])
def test_a_job_waits_for_agents_that_said_that_they_are_stopped(names: tuple[str, ...]) -> None:
    cluster = remote()
    for name in names:
        cluster.stop(name)
    cluster.pass_time(cluster.restart_grace_s - 1)
    assert cluster.state_of("j1") == "running"
    cluster.join(*names)
    cluster.settle()
    cluster.pass_time(2 * cluster.restart_grace_s)
    assert cluster.state_of("j1") == "running"
    assert not [one for one in cluster.sent if isinstance(one[1], events.StopTask)]


@pytest.mark.parametrize("name", ["a", "c"])
def test_a_job_is_given_up_where_a_stopped_agent_stays_away(name: str) -> None:
    cluster = remote()
    cluster.stop(name)
    cluster.pass_time(cluster.restart_grace_s)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert f"node {name} was lost: its agent was stopped" in cluster.reason_of("j1")


@pytest.mark.parametrize("name", ["a", "c"])
def test_a_restarted_agent_is_given_no_more_time_than_others_when_it_is_lost(name: str) -> None:
    cluster = remote()
    cluster.stop(name)
    cluster.join(name)
    cluster.settle()
    cluster.lose(name)
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "has not been heard" in cluster.reason_of("j1")


@pytest.mark.parametrize("name", ["a", "c"])
def test_a_stopped_agent_that_came_back_and_dies_is_missed_as_soon_as_any_other(name: str) -> None:
    cluster = remote()
    cluster.stop(name)
    cluster.pass_time(TTL_S)  # now what looks after it waits for the end of its grace
    cluster.join(name)
    cluster.settle()
    cluster.lose(name)
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "has not been heard" in cluster.reason_of("j1")


def test_a_lease_that_a_returned_agent_does_not_renew_ends_after_the_lease_time() -> None:
    cluster = remote()
    cluster.stop("a")
    cluster.pass_time(TTL_S)
    cluster.join("a")
    cluster.settle()
    cluster.agents["a"].device_side.clear()
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "did not renew" in cluster.reason_of("j1")


def test_a_word_of_an_earlier_session_gives_no_time() -> None:
    cluster = remote()
    cluster.tell(events.NodeLeaving(node="a", session=cluster.agents["a"].session + 99))
    cluster.lose("a")
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"


def test_an_interactive_job_without_devices_outlives_its_agents_restart() -> None:
    cluster = interactive(gpus=0)
    cluster.lose("c")
    hello(cluster, "c", ("j1", "main.0"))
    assert cluster.state_of("j1") == "running"


def test_an_interactive_job_whose_client_side_is_gone_is_lost() -> None:
    cluster = interactive(gpus=1)
    cluster.lose("c")
    hello(cluster, "c")
    assert cluster.state_of("j1") == "failed"
    assert "was lost" in cluster.reason_of("j1")


def test_a_client_side_that_nobody_knows_is_removed() -> None:
    cluster = interactive(gpus=0)
    cluster.lose("c")
    hello(cluster, "c", ("j1", "main.0"), ("j9", "main.0"))
    gone = [command for name, command in cluster.sent if isinstance(command, events.UnprepareClient) and name == "c"]
    assert [(command.job_id, command.task) for command in gone] == [("j9", "main.0")]


def test_a_client_side_without_leases_that_ended_by_itself_ends_its_job() -> None:
    cluster = interactive(gpus=0)
    ended = events.LeaseEndedByNode(
        node="c",
        session=cluster.agents["c"].session,
        lease_id="",
        device_side=False,
        reason="nobody came back for it",
        job_id="j1",
        task="main.0",
    )
    cluster.tell(ended)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "nobody came back for it" in cluster.reason_of("j1")


def test_the_agent_is_told_which_client_sides_are_interactive() -> None:
    cluster = interactive(gpus=1)
    (prepare,) = [command for _, command in cluster.sent if isinstance(command, events.PrepareClient)]
    assert prepare.interactive


def test_a_lease_that_can_not_be_released_is_wedged_and_says_why() -> None:
    cluster = interactive(gpus=1)
    cluster.tell(events.JobCancelled(job_id="j1", reason="cancelled by ann"))
    agent = cluster.agents["a"]
    while not any(isinstance(command, events.UnprepareDevices) for command in agent.inbox):
        assert cluster.step("c") is not None
    cluster.tell(agent.answer(agent.inbox.pop(0), error="still not done (lease j1-1-0, story: prepared -> wedged)"))
    (lease,) = cluster.machine.lease_statuses(cluster.now)
    (device,) = cluster.machine.device_statuses()
    assert (lease.state, device.state) == (LeaseState.RELEASING, DeviceState.WEDGED)
    assert lease.trouble == device.trouble == "still not done (lease j1-1-0, story: prepared -> wedged)"
    # Asked again, it is given back.
    cluster.pass_time(2)
    cluster.settle()
    assert cluster.machine.device_statuses()[0].state is DeviceState.FREE


def test_a_job_tells_once_why_its_node_can_not_be_cleared() -> None:
    cluster = interactive(gpus=1)
    cluster.tell(events.JobCancelled(job_id="j1", reason="cancelled by ann"))
    agent = cluster.agents["c"]
    for error in ("read-only", "read-only", "read-only", "broken"):
        while not agent.inbox:
            if cluster.step("c") is None:
                cluster.pass_time(2)
        cluster.tell(agent.answer(agent.inbox.pop(0), error=error))
    told = [line.partition(" ")[2] for line in cluster.machine.jobs["j1"].progress.story]
    assert [line for line in told if "not cleared" in line] == [
        "task main.0 is not cleared from node c: read-only",
        "task main.0 is not cleared from node c: broken",
    ]


def test_a_hello_tells_of_what_is_wedged() -> None:
    cluster = interactive(gpus=1)
    cluster.lose("a")
    agent = cluster.agents["a"]
    (held,) = agent.device_side.values()
    agent.device_side[held.lease_id] = msgspec.structs.replace(held, trouble="its supervisor can't be killed")
    cluster.join("a")
    assert cluster.machine.device_statuses()[0].trouble == "its supervisor can't be killed"
