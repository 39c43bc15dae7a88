"""Recomposition carried out: a round names the devices, moves bring them, and then the job has its lease and starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from farbus.api.identity import Identity, Role
from farbus.cli.tables import DEVICE_COLUMNS
from farbus.errors import Conflict
from farbus.model.device import Route
from farbus.model.job import Job
from farbus.model.move import MoveRequest, MoveState, NodeMove
from farbus.model.operation import Cordon, CordonKind
from farbus.model.rules import Quota, Rules
from farbus.model.states import DeviceState
from farbus.scheduler import events
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.move_requests import plan_move
from farbus.scheduler.round import decide
from farbus.scheduler.service import ClusterService
from tests.scheduler.scripted import TTL_S, Cluster, job, node

MOVED = "GPU-a-0"
ROUTES = (Route.LOCAL, Route.RECOMPOSED)


def wanting(name: str = "j1", *, on: str = "b", **more: object) -> Job:
    return job(name, gpus=1, on=on, routes=ROUTES, **more)  # type: ignore[arg-type]


def cabled(*, gpus: int = 1) -> Cluster:
    cluster = Cluster(node("a", gpus), node("b"), node("c"))
    cluster.give_fabric(to=("a",))
    cluster.join()
    cluster.read_chassis()
    return cluster


def placed(cluster: Cluster, *jobs: Job) -> None:
    """Submit jobs, and have a round place them."""
    cluster.submit(*jobs)
    while cluster.round_asked:
        cluster.decide()


def half_come() -> tuple[Cluster, str]:
    """A job whose two GPUs are to come to node b, and the one that has."""
    cluster = cabled(gpus=2)
    placed(cluster, job("j1", gpus=2, on="b", routes=ROUTES))
    cluster.step("a")
    cluster.step("b")
    (come,) = (name for name, device in cluster.machine.devices.items() if device.reserved)
    return cluster, come


def device(cluster: Cluster, name: str = MOVED) -> tuple[str, DeviceState]:
    (found,) = [each for each in cluster.machine.device_statuses() if each.device.id == name]
    return found.node, found.state


def test_a_job_starts_when_its_device_has_come() -> None:
    cluster = cabled()
    placed(cluster, wanting())
    assert cluster.state_of("j1") == "preparing"
    assert not cluster.machine.leases
    (move,) = cluster.machine.move_statuses()
    assert (move.from_node, move.to_node, move.by) == ("a", "b", "scheduler")
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    (lease,) = cluster.machine.leases.values()
    assert (lease.lease.device_node, lease.lease.client_node, lease.lease.route) == ("b", "b", Route.LOCAL)
    assert [leased.epoch for leased in lease.lease.devices] == [2]
    assert any("device GPU-a-0 comes from node a to node b (move m1)" in line for line in story(cluster))
    cluster.tell(cluster.agents["b"].exit("j1", "main.0"))
    cluster.settle()
    assert cluster.state_of("j1") == "succeeded"
    assert device(cluster) == ("b", DeviceState.FREE)


def story(cluster: Cluster, name: str = "j1") -> tuple[str, ...]:
    return cluster.machine.jobs[name].status().story


def test_a_round_of_the_scheduler_sees_chassis_as_pools() -> None:
    cluster = cabled()
    cluster.submit(wanting())
    snapshot, pending, generation = cluster.machine.round_input(cluster.now)
    decision = decide(snapshot, pending, policy=DefaultPolicy())
    (placement,) = decision.placements
    assert [(place.device, place.node, place.route) for place in placement.tasks[0].devices] == [
        (MOVED, "a", Route.RECOMPOSED)
    ]
    cluster.round_asked = False
    cluster.tell(events.RoundDecided(decision=decision, generation=generation))
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def test_a_device_that_is_free_in_the_chassis_is_given_too() -> None:
    cluster = cabled()
    cluster.move(MOVED)
    cluster.settle()
    assert device(cluster) == ("", DeviceState.UNASSIGNED)
    cluster.submit(wanting())
    snapshot, pending, generation = cluster.machine.round_input(cluster.now)
    decision = decide(snapshot, pending, policy=DefaultPolicy())
    cluster.round_asked = False
    cluster.tell(events.RoundDecided(decision=decision, generation=generation))
    assert cluster.machine.move_statuses()[0].from_node == ""
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    assert device(cluster) == ("b", DeviceState.LEASED)


def test_a_cordoned_device_stays_in_the_chassis() -> None:

    cluster = cabled()
    cluster.move(MOVED)
    cluster.settle()
    cluster.tell(events.Cordoned(cordon=Cordon(kind=CordonKind.DEVICE, name=MOVED, by="ann", at=0.0)))
    placed(cluster, wanting())
    assert cluster.state_of("j1") == "queued"


def test_a_device_in_use_is_never_moved() -> None:
    cluster = cabled()
    cluster.submit(job("j1", gpus=1, on="a"))
    cluster.settle()
    placed(cluster, wanting("j2"))
    cluster.settle()
    assert cluster.state_of("j2") == "queued"
    assert not cluster.machine.moves
    cluster.tell(cluster.agents["a"].exit("j1", "main.0"))
    cluster.settle()
    assert cluster.state_of("j2") == "running"


def test_a_node_without_a_cable_gets_nothing() -> None:
    cluster = cabled()
    view = cluster.machine.chassis["falcon"].view
    assert view is not None
    agent = cluster.agents["a"]
    ports = tuple(port for port in view.ports if port.node != "b")
    cluster.tell(
        events.ChassisReported(node="a", session=agent.session, term=1, view=msgspec.structs.replace(view, ports=ports))
    )
    placed(cluster, wanting())
    assert cluster.state_of("j1") == "queued"


@pytest.mark.parametrize("stuck", [False, True])
def test_a_move_that_fails_puts_the_job_back_with_the_reason(stuck: bool) -> None:
    cluster = cabled()
    placed(cluster, wanting())
    cluster.step("a")
    agent = cluster.agents["b"]
    outcome = agent.answer(agent.inbox.pop(0), error="no room for BAR 2")
    cluster.tell(msgspec.structs.replace(outcome, move=NodeMove(stuck=stuck)))
    for name in ("a", "b"):
        while cluster.step(name):
            pass
    assert cluster.state_of("j1") == "queued"
    assert cluster.reason_of("j1") == "device GPU-a-0 could not be moved to node b: node b: no room for BAR 2"
    assert device(cluster)[1] is (DeviceState.WEDGED if stuck else DeviceState.FREE)


def test_the_device_of_a_job_that_is_cancelled_meanwhile_comes_to_rest() -> None:
    cluster = cabled()
    placed(cluster, wanting())
    cluster.step("a")
    cluster.tell(events.JobCancelled(job_id="j1", reason="cancelled by ada"))
    assert cluster.state_of("j1") == "cancelled"
    cluster.settle()
    assert cluster.moves["m1"].state is MoveState.DONE
    assert device(cluster) == ("b", DeviceState.FREE)
    assert not cluster.machine.leases


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_restarted_scheduler_goes_on_with_it(steps: int) -> None:
    cluster = cabled()
    placed(cluster, wanting())
    for name in ("a", "b")[:steps]:
        cluster.step(name)
    cluster.restart()
    cluster.join()
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    assert device(cluster) == ("b", DeviceState.LEASED)


def test_a_donor_that_is_lost_afterwards_is_no_loss() -> None:
    cluster = cabled()
    placed(cluster, wanting())
    cluster.settle()
    cluster.lose("a")
    cluster.pass_time(10 * TTL_S)
    assert cluster.state_of("j1") == "running"


def test_devices_on_their_way_count_for_the_users_quota() -> None:
    cluster = cabled(gpus=2)
    cluster.tell(events.RulesChanged(rules=Rules(quota=Quota(devices=1))))
    placed(cluster, wanting("j1"))
    placed(cluster, wanting("j2"))
    assert cluster.state_of("j1") == "preparing"
    assert cluster.state_of("j2") == "queued"
    assert "has 1 of 1 devices" in cluster.machine.jobs["j2"].misses[0].message


def test_several_devices_come_before_the_lease_of_all_is_granted() -> None:
    cluster = cabled(gpus=2)
    wide = job("j1", gpus=2, on="b", routes=ROUTES)
    placed(cluster, wide)
    assert len(cluster.machine.moves) == 2
    cluster.step("a")
    cluster.step("b")
    assert not cluster.machine.leases
    cluster.settle()
    (lease,) = cluster.machine.leases.values()
    assert sorted(leased.device for leased in lease.lease.devices) == ["GPU-a-0", "GPU-a-1"]
    assert cluster.state_of("j1") == "running"


@pytest.mark.parametrize("restarted", [False, True])
def test_what_has_come_is_kept_for_its_job_while_another_device_is_on_its_way(restarted: bool) -> None:
    cluster, _ = half_come()
    assert [move.state for move in cluster.machine.move_statuses()] != [MoveState.DONE] * 2
    if restarted:
        cluster.restart()
        cluster.join()
        cluster.read_chassis()
    come = [name for name in ("GPU-a-0", "GPU-a-1") if device(cluster, name)[0] == "b"]
    assert len(come) == 1
    assert not cluster.machine.is_free(cluster.machine.devices[come[0]])
    with pytest.raises(Conflict, match=f"device {come[0]} is kept for job j1"):
        plan_move(cluster.machine, MoveRequest(device=come[0], node="c"), by="root", at=0.0)
    placed(cluster, job("j2", gpus=1, on="b", routes=(Route.LOCAL,)))
    cluster.settle()
    assert cluster.state_of("j2") == "queued"
    assert cluster.state_of("j1") == "running"
    assert {device(cluster, name)[1] for name in ("GPU-a-0", "GPU-a-1")} == {DeviceState.LEASED}


async def test_listings_tell_for_whom_what_has_come_is_kept() -> None:
    cluster, _ = half_come()
    engine: Any = SimpleNamespace(machine=cluster.machine)
    relay: Any = None
    service = ClusterService(engine, relay, next_job=1, lease_ttl_s=TTL_S, now=lambda: cluster.now)
    told = {}
    for user in ("ada", "bob"):
        statuses = await service.list_devices(Identity(name=user, role=Role.USER))
        (come,) = (status for status in statuses if status.kept_for)
        (used_by,) = (column for column in DEVICE_COLUMNS if column.title == "USED BY")
        told[user] = come.node, come.state, come.kept_for, used_by.cell(come)
    assert told == {
        "ada": ("b", DeviceState.FREE, "job j1 of ada", "kept for job j1 of ada"),
        "bob": ("b", DeviceState.FREE, "another user", "kept for another user"),
    }
    cluster.settle()
    assert not any(status.kept_for for status in cluster.machine.device_statuses())


def test_what_is_made_of_a_gpu_that_came_for_a_job_is_kept_with_it() -> None:
    cluster, come = half_come()
    # Node b divides its GPUs.
    there = cluster.agents["b"]
    (whole,) = there.node.devices
    shares = tuple(msgspec.structs.replace(whole, id=f"{come}/{number}", share_milli=500) for number in (1, 2))
    there.node = msgspec.structs.replace(there.node, devices=shares)
    cluster.tell(there.inventory())
    assert [status.kept_for for status in cluster.machine.device_statuses() if status.device.share_milli] == [
        "job j1 of ada"
    ] * 2
    assert not any(cluster.machine.is_free(cluster.machine.devices[share.id]) for share in shares)


def test_what_has_come_for_a_job_that_is_cancelled_meanwhile_is_free() -> None:
    cluster, _ = half_come()
    cluster.tell(events.JobCancelled(job_id="j1", reason="cancelled by ada"))
    placed(cluster, job("j2", gpus=1, on="b", routes=(Route.LOCAL,)))
    cluster.settle()
    assert cluster.state_of("j2") == "running"


# --- rehearsals ----------------------------------------------------------------------------------


def commands(cluster: Cluster) -> list[tuple[str, str, bool]]:
    """Return who was asked for which part of a move, and whether only for what it would do."""
    return [
        (name, type(command).__name__, command.dry_run)
        for name, command in cluster.sent
        if isinstance(command, events.DetachDevice | events.AttachDevice)
    ]


REHEARSAL = [("a", "DetachDevice", True), ("b", "AttachDevice", True)]


def test_a_node_without_room_is_asked_before_the_donor_gives_the_device() -> None:
    cluster = cabled()
    cluster.agents["b"].in_the_way = ("bridge 3 has room for 2 MiB at most",)
    cluster.submit(wanting())
    cluster.decide()
    assert commands(cluster) == REHEARSAL
    assert cluster.state_of("j1") == "queued"
    assert cluster.reason_of("j1") == (
        "device GPU-a-0 could not be moved to node b: node b: bridge 3 has room for 2 MiB at most"
    )
    assert cluster.moves["m1"].state is MoveState.FAILED
    assert device(cluster) == ("a", DeviceState.FREE)


def test_who_holds_it_on_the_donor_may_go_until_it_is_moved() -> None:
    cluster = cabled()
    cluster.agents["a"].in_the_way = ("program 17 has it open",)
    placed(cluster, wanting())
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def test_a_node_that_had_room_for_a_device_is_not_asked_again_in_its_session() -> None:
    cluster = cabled()
    for name, on in (("j1", "b"), ("j2", "a"), ("j3", "b")):
        placed(cluster, wanting(name, on=on))
        cluster.settle()
        cluster.tell(cluster.agents[on].exit(name, "main.0"))
        cluster.settle()
    rehearsed = [(name, kind) for name, kind, dry_run in commands(cluster) if dry_run]
    # a has had it, and has not said so in a move.
    assert rehearsed == [(name, kind) for name, kind, _ in REHEARSAL] + [("b", "DetachDevice"), ("a", "AttachDevice")]


def test_the_device_is_nobodys_else_while_nodes_are_asked() -> None:
    cluster = cabled()
    cluster.answers_rehearsals = False
    placed(cluster, wanting())
    assert cluster.machine.move_statuses()[0].says == "nodes a and b are asked whether it can be moved"
    assert device(cluster) == ("a", DeviceState.MOVING)
    placed(cluster, job("j2", gpus=1, on="a"))
    assert cluster.state_of("j2") == "queued"
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def test_a_node_that_is_lost_while_it_is_asked_puts_the_job_back() -> None:
    cluster = cabled()
    cluster.answers_rehearsals = False
    placed(cluster, wanting())
    cluster.lose("a")
    assert cluster.moves["m1"].state is MoveState.FAILED
    assert cluster.reason_of("j1") == "device GPU-a-0 could not be moved to node b: node a was lost"


def test_a_move_that_is_called_off_while_nodes_are_asked_is_not_begun() -> None:
    cluster = cabled()
    cluster.answers_rehearsals = False
    placed(cluster, wanting())
    cluster.tell(events.MoveCancelled(move_id="m1", by="bob"))
    assert (cluster.moves["m1"].state, cluster.moves["m1"].error) == (MoveState.FAILED, "called off by bob")
    cluster.step("a")
    assert all(dry_run for _, _, dry_run in commands(cluster))


def test_a_scheduler_that_is_restarted_while_nodes_are_asked_goes_on() -> None:
    cluster = cabled()
    cluster.answers_rehearsals = False
    placed(cluster, wanting())
    cluster.restart()
    cluster.join()
    cluster.settle()
    assert cluster.state_of("j1") == "running"
