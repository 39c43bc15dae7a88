"""What an event costs does not grow with the cluster: ten thousand agents come back at once to a new scheduler."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from farbus.scheduler import events
from tests.scheduler.scripted import Cluster, job, storing

FEW, MANY = 2, 12
"""Other nodes."""


def lines_of(action: Callable[[], object]) -> int:
    """Count the lines of the scheduler's code that ``action`` runs, each time that one does."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal count
        if "/scheduler/" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def busy(others: int) -> Cluster:
    """A cluster in which each node has a volume, a job that runs with its GPU, and one that it is asked to start."""
    names = ["node", *(f"other-{number}" for number in range(others))]
    cluster = Cluster(*(storing(name, 1, gpus=1) for name in names))
    cluster.join()
    for number, name in enumerate(names):
        cluster.create(f"data-{number}", node=name)
        cluster.submit(job(f"j{number}-runs", gpus=1, on=name))
    cluster.settle()
    for number, name in enumerate(names):
        cluster.submit(job(f"j{number}-begins", on=name))
    cluster.decide()
    assert len(cluster.machine.steps.outstanding()) == len(names) == len(cluster.machine.leases)
    return cluster


def lost(cluster: Cluster) -> events.Event:
    return events.NodeLost(node="node", session=cluster.agents["node"].session, reason="closed")


def joined(cluster: Cluster) -> events.Event:
    return cluster.agents["node"].hello(1000)


def inventory(cluster: Cluster) -> events.Event:
    return cluster.agents["node"].inventory()


def heartbeat(cluster: Cluster) -> events.Event:
    agent = cluster.agents["node"]
    return events.HeartbeatArrived(node="node", session=agent.session, lease_ids=tuple(agent.device_side))


def exit_of_a_task(cluster: Cluster) -> events.Event:
    return cluster.agents["node"].exit("j0-runs", "main.0")


def outcome(cluster: Cluster) -> events.Event:
    agent = cluster.agents["node"]
    answered = agent.do(agent.inbox.pop())
    assert answered is not None
    return answered


def submission(_: Cluster) -> events.Event:
    return events.JobSubmitted(job=job("another", gpus=1))


def cancellation(_: Cluster) -> events.Event:
    return events.JobCancelled(job_id="j0-runs", reason="cancelled by ada")


@pytest.mark.parametrize(
    "event", [lost, joined, inventory, heartbeat, exit_of_a_task, outcome, submission, cancellation]
)
def test_an_event_costs_the_same_however_many_nodes_there_are(
    event: Callable[[Cluster], events.Event],
) -> None:
    costs = []
    for others in (FEW, MANY):
        cluster = busy(others)
        told = event(cluster)
        costs.append(lines_of(lambda: cluster.machine.handle(told, now=cluster.now, wall=cluster.wall)))  # noqa: B023
        cluster.machine.check_invariants(now=cluster.now)
    assert costs[0] == costs[1]


def test_a_heartbeat_costs_the_same_however_many_attachments_wait() -> None:
    costs = []
    for others in (FEW, MANY):
        cluster = busy(others)
        for number in range(others):
            cluster.lose(f"other-{number}")
            cluster.attach(f"data-{number + 1}", "node", f"j{number}-attaches")
        assert len(cluster.machine.attachments) == others
        told = heartbeat(cluster)
        costs.append(lines_of(lambda: cluster.machine.handle(told, now=cluster.now, wall=cluster.wall)))  # noqa: B023
    assert costs[0] == costs[1]
