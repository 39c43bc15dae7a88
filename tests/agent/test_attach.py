"""Devices that a whole agent attaches and detaches by order, over a fake bus and an emulated chassis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from farbus.agent.config import AgentConfig
from farbus.api.v1 import session_pb2
from farbus.model.fabric import ChassisView
from farbus.model.value import from_json
from tests.agent.harness import AgentInProcess, ScriptedScheduler, ScriptedSessions
from tests.agent.moving import CHASSIS, DRIVE, PLAIN, Testbed, attach, detach, open_testbed, serve_here, told
from tests.hotplug.machines import PORT_A


@pytest_asyncio.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Testbed]:
    async with open_testbed(tmp_path / "bed") as found:
        yield found


@pytest_asyncio.fixture
async def node(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, bed: Testbed
) -> ScriptedSessions:
    settings = bed.config(config)
    agent.start(settings, bed.doors(settings))
    await scheduler.sessions.connected()
    await scheduler.sessions.tell(serve_here())
    return scheduler.sessions


def devices_told(sessions: ScriptedSessions) -> list[list[str]]:
    return [
        [device.id for device in one.inventory_changed.node.devices]
        for one in sessions.said
        if one.HasField("inventory_changed")
    ]


async def test_a_drive_comes_by_order_and_is_offered_at_once(node: ScriptedSessions, bed: Testbed) -> None:
    outcome = await node.command(attach_device=attach())
    assert outcome.ok, outcome.error
    move = told(outcome)
    assert (move.identity, move.path) == (DRIVE, "/dev/disk/by-id/nvme-FARBUS_Test_Drive_S1")
    assert bed.chassis.assigned()["001300"] == "30h"
    await node.until(lambda: [DRIVE] in devices_told(node))
    steps = [one.move_progress for one in node.said if one.HasField("move_progress")]
    assert [(one.move_id, one.step, one.steps) for one in steps] == [("m1", number, 5) for number in range(5)]
    assert steps[1].says.startswith(f"assign {DRIVE} to port 30h of chassis {CHASSIS}")


async def test_a_drive_goes_by_order_and_what_was_seen_of_it_is_told(node: ScriptedSessions, bed: Testbed) -> None:
    await node.command(attach_device=attach())
    await node.until(lambda: [DRIVE] in devices_told(node))
    outcome = await node.command(detach_device=detach())
    assert outcome.ok, outcome.error
    assert [function.ids for function in told(outcome).functions] == ["1b36:0010"]
    assert bed.here("n1") == []
    assert bed.chassis.assigned()["001300"] == ""
    await node.until(lambda: devices_told(node)[-1] == [])


async def test_a_move_that_is_asked_for_again_is_done_once(node: ScriptedSessions, bed: Testbed) -> None:
    first = await node.command(attach_device=attach())
    second = await node.command(attach_device=attach())
    # By another id: it is here already.
    third = await node.command(attach_device=attach("m9"))
    assert first.ok
    assert second.ok
    assert third.ok
    assert told(second) == told(first)
    assert told(third).path == told(first).path
    assert [one for one in bed.chassis.requests if one.startswith("POST")] == ["POST /h3api/v1/allocation"]


async def test_a_restarted_agent_knows_how_a_move_has_ended(
    node: ScriptedSessions, agent: AgentInProcess, config: AgentConfig, bed: Testbed
) -> None:
    first = await node.command(attach_device=attach())
    await agent.stop()
    settings = bed.config(config)
    agent.start(settings, bed.doors(settings))
    await node.connected(hellos=2)
    # What came before this agent is offered from its first word.
    assert [device.id for device in node.hellos[-1].node.devices] == [DRIVE]
    assert list(node.hellos[-1].moves) == []
    again = await node.command(attach_device=attach())
    assert (again.ok, told(again).path) == (True, told(first).path)


async def test_a_chassis_that_is_served_is_told(node: ScriptedSessions) -> None:
    assert list(node.hellos[-1].chassis) == [CHASSIS]
    await node.command(attach_device=attach())

    def views() -> list[ChassisView]:
        return [
            from_json(one.chassis_changed.view, ChassisView) for one in node.said if one.HasField("chassis_changed")
        ]

    await node.until(lambda: bool(views()) and views()[-1].device("S1").port == "30h")


async def test_a_plain_device_has_the_name_that_its_chassis_gives_it(node: ScriptedSessions, bed: Testbed) -> None:
    outcome = await node.command(attach_device=attach(device=PLAIN))
    assert outcome.ok, outcome.error
    await node.until(lambda: [PLAIN] in devices_told(node))
    assert (await node.command(detach_device=detach(device=PLAIN))).ok
    assert bed.here("n1") == []


async def test_a_dry_run_changes_nothing(node: ScriptedSessions, bed: Testbed) -> None:
    outcome = await node.command(attach_device=attach(dry_run=True))
    assert outcome.ok, outcome.error
    plan = told(outcome).plan
    assert len(plan) == 5
    assert PORT_A in plan[0]
    assert bed.chassis.assigned()["001300"] == ""


async def test_a_device_of_another_node_is_not_taken_from_there(node: ScriptedSessions, bed: Testbed) -> None:
    await bed.chassis.assign("001300", "31h")
    outcome = await node.command(attach_device=attach())
    assert not outcome.ok
    assert "31h" in outcome.error
    assert not told(outcome).stuck
    assert bed.chassis.assigned()["001300"] == "31h"


async def test_an_agent_without_devices_of_its_own_moves_none(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    outcome = await scheduler.sessions.command(detach_device=session_pb2.DetachDevice(move_id="m", device="GPU-1"))
    assert not outcome.ok
    assert "physical_devices is off" in outcome.error
