"""GPUs that are offered in shares: who is given one, and that nobody has the hardware twice."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from farbus.errors import InvalidInput
from farbus.model.decision import DeviceView, JobPlacement, PendingJob
from farbus.model.device import Device, Route, share_id
from farbus.model.job import DevicePlacement, Requests, TaskPlacement
from farbus.model.node import Node
from farbus.model.states import DeviceState
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.queue import validate_job
from farbus.scheduler.round import decide
from tests.scheduler import scripted, worlds


def share(whole: str, number: int, on: str, *, milli: int = 250) -> DeviceView:
    view = worlds.gpu(share_id(whole, number), on, memory_gib=20)
    return replace(view, device=replace(view.device, share_milli=milli))


def asks(name: str, milli: int, **more: Any) -> PendingJob:
    entry = worlds.job(name, gpus=1, **more)
    (group,) = entry.job.groups
    requests = replace(group.requests, gpu_share_milli=milli)
    return replace(entry, job=replace(entry.job, groups=(replace(group, requests=requests),)))


SHARED = (worlds.node("alpha"), worlds.gpu("G1", "alpha"), *(share("G2", number, "alpha") for number in (1, 2, 3, 4)))


def test_whole_gpus_and_shares_go_to_those_who_ask_for_them() -> None:
    pending = [asks("whole", 0), asks("quarter", 250), asks("tenth", 100)]
    decision = decide(worlds.world(*SHARED), pending, policy=DefaultPolicy())
    given = {each.job: each.tasks[0].devices[0].device for each in decision.placements}
    assert given["whole"] == "G1"
    assert {given["quarter"], given["tenth"]} <= {f"G2/{number}" for number in (1, 2, 3, 4)}
    assert given["quarter"] != given["tenth"]


@pytest.mark.parametrize(
    ("milli", "parts", "says"),
    [
        (500, SHARED, "no share of a GPU is 50 % of it; the largest is 25 %"),
        (
            250,
            SHARED[:2],
            "no GPU of the cluster is offered in shares (gpu_shares of a node's agent); ask for a whole one",
        ),
        (
            0,
            (SHARED[0], *SHARED[2:]),
            "all GPUs of the cluster are offered in shares; ask for one (gpu_share in a job file, --gpu-share)",
        ),
    ],
)
def test_who_asks_for_what_is_not_offered_is_told_so(milli: int, parts: tuple[Any, ...], says: str) -> None:
    decision = decide(worlds.world(*parts), [asks("j", milli)], policy=DefaultPolicy())
    (miss,) = decision.misses[0].misses
    assert (miss.message, miss.permanent) == (says, True)


def offered(*devices: Device) -> Node:
    return replace(scripted.node("a"), devices=devices)


WHOLE = scripted.gpu("a-0")
HALVES = tuple(
    replace(WHOLE, id=share_id(WHOLE.id, number), memory_bytes=WHOLE.memory_bytes // 2, share_milli=500)
    for number in (1, 2)
)


@pytest.mark.parametrize(("before", "after"), [((WHOLE,), HALVES), (HALVES, (WHOLE,))])
def test_hardware_that_is_leased_under_another_name_is_not_free(
    before: tuple[Device, ...], after: tuple[Device, ...]
) -> None:
    cluster = scripted.Cluster(offered(*before))
    cluster.join()
    wanted = scripted.job(gpus=1)
    (group,) = wanted.groups
    requests = replace(group.requests, gpu_share_milli=before[0].share_milli)
    cluster.submit(replace(wanted, groups=(replace(group, requests=requests),)))
    cluster.settle()
    assert len(cluster.machine.leases) == 1
    cluster.machine.take_inventory(offered(*after))
    cluster.machine.check_invariants(now=cluster.now)
    views = cluster.machine.snapshot(cluster.now).devices
    assert [view.free for view in views if view.device in after] == [False] * len(after)
    # What is leased by its old name is listed by it, and nothing is lost.
    leased = before[0].id
    assert {status.device.id: status.state for status in cluster.machine.device_statuses()} == {
        leased: DeviceState.LEASED,
        **{device.id: DeviceState.CORDONED for device in after},
    }
    cluster.tell(cluster.agents["a"].exit("j1", "main.0"))
    cluster.settle()
    cluster.machine.check_invariants(now=cluster.now)
    views = cluster.machine.snapshot(cluster.now).devices
    assert [view.free for view in views if view.device in after] == [True] * len(after)
    assert {status.device.id: status.state for status in cluster.machine.device_statuses()} == {
        device.id: DeviceState.FREE for device in after
    }


def test_a_plan_with_a_share_for_who_asks_for_a_whole_gpu_is_refused() -> None:
    cluster = scripted.Cluster(offered(*HALVES))
    cluster.join()
    cluster.submit(scripted.job(gpus=1))
    place = DevicePlacement(device=HALVES[0].id, node="a", route=Route.LOCAL)
    plan = JobPlacement(job="j1", tasks=(TaskPlacement(task="main.0", node="a", devices=(place,)),))
    problem = cluster.machine.placement_problem(cluster.machine.jobs["j1"], plan)
    assert problem == f"device {HALVES[0].id} is not what task main.0 asks for"


@pytest.mark.parametrize(
    ("gpus", "milli", "says"),
    [
        (2, 250, "gpus: 2 GPUs are asked for, and a share"),
        (1, 501, "gpu_share_milli: 501 is more"),
        (0, 250, "gpus: 0"),
    ],
)
def test_shares_that_nobody_can_have_are_refused(gpus: int, milli: int, says: str) -> None:
    wanted = scripted.job()
    (group,) = wanted.groups
    requests = Requests(gpus=gpus, gpu_share_milli=milli)
    with pytest.raises(InvalidInput, match=says):
        validate_job(replace(wanted, groups=(replace(group, requests=requests),)))


def test_a_gpu_that_was_offered_in_shares_and_is_at_another_node_now_is_listed_once() -> None:
    a, b = replace(scripted.node("a"), devices=HALVES), scripted.node("b")
    cluster = scripted.Cluster(a, b)
    cluster.join()
    cluster.agents["a"].node = scripted.node("a")
    cluster.agents["b"].node = replace(b, devices=(WHOLE,))
    for agent in cluster.agents.values():
        cluster.tell(agent.inventory())
    (status,) = cluster.machine.device_statuses()
    assert (status.device.id, status.node, status.state) == (WHOLE.id, "b", DeviceState.FREE)
