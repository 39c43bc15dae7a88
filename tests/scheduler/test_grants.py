"""Leases are granted at one place, which gives nobody what somebody has, whatever was decided."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from farbus.model.decision import Decision, JobPlacement, RoundReport
from farbus.model.device import Route
from farbus.model.job import DevicePlacement, TaskPlacement
from farbus.model.states import DeviceState
from farbus.scheduler import events
from tests.scheduler.scripted import TTL_S, Cluster, job, node
from tests.scheduler.test_recomposed_jobs import ROUTES, cabled, half_come

LEASED = "device GPU-a-0 has lease j1-1-0"


def credulous(cluster: Cluster) -> None:
    """Have the machine believe every decision: nothing but the grant itself stands in the way of a second one."""
    machine: Any = cluster.machine
    machine.placement_problem = lambda *_, **__: ""


def decide_for(
    cluster: Cluster, job_id: str, *devices: str, task: str = "main.0", on: str = "a", route: Route | None = None
) -> None:
    """Tell of a round that gives a job these devices of node a, used or not."""
    route = route or (Route.LOCAL if on == "a" else Route.REMOTE)
    places = tuple(DevicePlacement(device=name, node="a", route=route) for name in devices)
    placement = JobPlacement(job=job_id, tasks=(TaskPlacement(task=task, node=on, devices=places),))
    report = RoundReport(pending=1, placed=1, decision_ms=0.1, solves=0, certified=False)
    decision = Decision(placements=(placement,), misses=(), report=report)
    cluster.tell(events.RoundDecided(decision=decision, generation=cluster.machine.generation))


def states(cluster: Cluster) -> dict[str, DeviceState]:
    return {status.device.id: status.state for status in cluster.machine.device_statuses()}


def test_a_device_that_has_a_lease_is_granted_to_nobody_else() -> None:
    cluster = Cluster(node("a", 2), node("b"))
    cluster.join()
    cluster.submit(job("j1", gpus=1))
    cluster.settle()
    cluster.submit(job("j2", gpus=2, on="b"))
    credulous(cluster)
    decide_for(cluster, "j2", "GPU-a-1", "GPU-a-0", on="b")
    cluster.settle()
    assert cluster.faults == [LEASED]
    assert cluster.state_of("j2") == "queued"
    assert cluster.reason_of("j2") == f"task main.0 could not be given its devices: {LEASED}"
    # What it could have had it gives back, and who has the other one keeps it.
    assert states(cluster) == {"GPU-a-0": DeviceState.LEASED, "GPU-a-1": DeviceState.FREE}
    assert cluster.state_of("j1") == "running"
    assert {lease.lease.job for lease in cluster.machine.leases.values()} == {"j1"}


def test_a_job_that_is_decided_so_again_and_again_fails() -> None:
    cluster = Cluster(node("a", 1))
    cluster.join()
    cluster.submit(job("j1", gpus=1))
    cluster.settle()
    cluster.submit(job("j2", gpus=1))
    credulous(cluster)
    for _ in range(3):
        decide_for(cluster, "j2", "GPU-a-0")
        cluster.settle()
        cluster.pass_time(TTL_S)
    assert cluster.state_of("j2") == "failed"
    assert LEASED in cluster.reason_of("j2")
    assert cluster.state_of("j1") == "running"


def test_a_job_goes_on_without_a_late_task_whose_device_is_another_s() -> None:
    cluster = Cluster(node("a", 2, cpu_milli=1500))
    cluster.join()
    cluster.submit(job("j1", gpus=1, cpu_milli=500))
    cluster.settle()
    cluster.submit(job("j2", gpus=1, cpu_milli=500, count=2, min_count=1))
    cluster.settle()
    credulous(cluster)
    decide_for(cluster, "j2+main", "GPU-a-0", task="main.1")
    cluster.settle()
    assert cluster.faults == [LEASED]
    assert cluster.state_of("j2") == "running"
    assert [run.task for run in cluster.machine.jobs["j2"].runs] == ["main.0"]


def test_what_somebody_has_is_moved_for_nobody_else() -> None:
    cluster = cabled()
    cluster.submit(job("j1", gpus=1, on="a"))
    cluster.settle()
    cluster.submit(job("j2", gpus=1, on="b", routes=ROUTES))
    credulous(cluster)
    decide_for(cluster, "j2", "GPU-a-0", on="b", route=Route.RECOMPOSED)
    cluster.settle()
    assert cluster.faults == [LEASED]
    assert not cluster.machine.moves
    assert (cluster.state_of("j1"), cluster.state_of("j2")) == ("running", "queued")


def test_what_is_kept_for_a_job_is_granted_to_no_other() -> None:
    cluster, come = half_come()
    told = cluster.machine.holder_of(come, "j2", shared=False)
    assert told == f"device {come} is kept for job j1"
    assert cluster.machine.holder_of(come, "j1", shared=False) == ""
    (moving,) = cluster.machine.move_of
    assert cluster.machine.holder_of(moving, "j1", shared=False).startswith(f"device {moving} is on the move")


@pytest.mark.parametrize(("granted", "asked"), [("GPU-a-0", "GPU-a-0/1"), ("GPU-a-0/1", "GPU-a-0")])
def test_a_gpu_and_a_share_of_it_are_the_same_hardware(granted: str, asked: str) -> None:
    plain = node("a", 1)
    (whole,) = plain.devices
    share = msgspec.structs.replace(whole, id="GPU-a-0/1", share_milli=500)
    # No agent says so.
    cluster = Cluster(msgspec.structs.replace(plain, devices=(whole, share)))
    cluster.join()
    cluster.submit(job("j1", gpus=1), job("j2", gpus=1))
    credulous(cluster)
    decide_for(cluster, "j1", granted)
    decide_for(cluster, "j2", asked)
    assert cluster.faults == [f"device {granted} has lease j1-1-0"]
    assert {lease.lease.job for lease in cluster.machine.leases.values()} == {"j1"}


def test_what_has_come_and_was_plugged_in_elsewhere_since_is_not_granted() -> None:
    cluster, come = half_come()
    here, there = cluster.agents["b"], cluster.agents["c"]
    cluster.lose("b")
    there.node, here.node = msgspec.structs.replace(there.node, devices=here.node.devices), node("b")
    cluster.tell(there.inventory())
    cluster.join("b")
    cluster.step("a")
    cluster.step("b")
    assert cluster.state_of("j1") == "queued"
    assert cluster.reason_of("j1") == f"task main.0 could not be given its devices: device {come} is not at node b"
    assert not cluster.faults
    assert not cluster.machine.leases
