"""Devices that a whole agent attaches and detaches by order, over a fake bus and an emulated chassis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from farbus.agent.config import AgentConfig
from farbus.agent.orphans import Missing
from farbus.api.audit import read_records
from farbus.api.authority import Authority, write_credentials
from farbus.api.client import ClusterClient
from farbus.api.conversion import to_message
from farbus.api.identity import Role
from farbus.api.peer import PeerClient
from farbus.api.v1 import session_pb2, types_pb2
from farbus.errors import Conflict, InvalidInput, NotFound, NotPermitted, Unsatisfiable
from farbus.hotplug.steps import AssignDevice, CheckRoom, VerifyDevice
from farbus.linux.nvml import Gpu, GpuList
from farbus.model.fabric import ChassisRequest, ChassisView
from farbus.model.holders import Holder, HolderKind, Look
from farbus.model.lease import Lease, LeasedDevice
from farbus.model.move import MoveRequest, MoveState, MoveStatus
from farbus.model.value import from_json
from tests.agent.harness import AgentInProcess, ScriptedScheduler, ScriptedSessions, lease
from tests.agent.moving import CHASSIS, DRIVE, PLAIN, Testbed, attach, detach, open_testbed, serve_here, told
from tests.hotplug.machines import PORT_A, PORT_B, plain


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


@pytest.mark.parametrize("is_right", [True, False], ids=["right", "wrong"])
async def test_a_device_is_offered_once_it_is_verified_and_not_before(
    node: ScriptedSessions, bed: Testbed, monkeypatch: pytest.MonkeyPatch, is_right: bool
) -> None:
    verified, go_on = VerifyDevice.do, asyncio.Event()

    async def verify(step: VerifyDevice) -> dict[str, str]:
        await go_on.wait()
        if not is_right:
            raise Conflict("it is another device")
        return await verified(step)

    monkeypatch.setattr(VerifyDevice, "do", verify)
    coming = asyncio.create_task(node.command(attach_device=attach()))
    await node.until(lambda: any(one.move_progress.says.startswith("verify") for one in node.said))
    assert bed.here("n1") == ["1b36:0010"]
    # The kernel tells of it, and of another device, which was looked for nowhere.
    bed.nodes["n1"].pci.plug(PORT_B, plain(), announce=True)
    bed.nodes["n1"].nvml.gpus = GpuList(gpus=(Gpu(uuid="GPU-1", name="a GPU", memory_bytes=1),))
    bed.nodes["n1"].uevents.send("add", "/devices/pci0000:00/0000:00:03.0/0000:01:00.0")
    await node.until(lambda: bool(devices_told(node)))
    assert devices_told(node) == [["GPU-1"]]
    go_on.set()
    outcome = await coming
    assert outcome.ok is is_right
    if is_right:
        await node.until(lambda: DRIVE in devices_told(node)[-1])
    else:
        assert bed.chassis.assigned()["001300"] == ""


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


async def test_two_that_come_at_once_are_assigned_in_the_order_in_which_their_bridges_were_chosen(
    node: ScriptedSessions, bed: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    check, assign = CheckRoom.do, AssignDevice.do

    async def checks(step: CheckRoom) -> dict[str, str]:
        done.append(f"{step.move.device} is to be below {step.move.bridge}")
        return await check(step)

    async def assigns(step: AssignDevice) -> dict[str, str]:
        result = await assign(step)
        done.append(f"{step.move.device} is assigned")
        return result

    monkeypatch.setattr(CheckRoom, "do", checks)
    monkeypatch.setattr(AssignDevice, "do", assigns)
    first, second = await asyncio.gather(
        node.command(attach_device=attach()), node.command(attach_device=attach("m2", device=PLAIN))
    )
    assert (first.error, second.error) == ("", "")
    # The chassis fills its bridges as it is asked: each is where it was looked for.
    assert done == [
        f"{DRIVE} is to be below {PORT_A}",
        f"{DRIVE} is assigned",
        f"{PLAIN} is to be below {PORT_B}",
        f"{PLAIN} is assigned",
    ]
    identities = {told(first).identity, told(second).identity}
    assert len(identities) == 2
    assert DRIVE in identities
    assert sorted(bed.here("n1")) == ["1234:11e8", "1b36:0010"]


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


async def test_a_plain_device_that_was_not_detached_is_offered_by_the_next_agent_too(
    node: ScriptedSessions, agent: AgentInProcess, config: AgentConfig, bed: Testbed
) -> None:
    assert (await node.command(attach_device=attach(device=PLAIN))).ok
    bed.nodes["n1"].holders.state = Look(holders=(Holder(kind=HolderKind.PROCESS, name="python3", pid=7),))
    assert not (await node.command(detach_device=detach(device=PLAIN))).ok
    await agent.stop()
    node.said.clear()
    settings = bed.config(config)
    agent.start(settings, bed.doors(settings))
    await node.connected(hellos=2)
    # In its hello, or in the first word after it.
    offered = [[device.id for device in node.hellos[-1].node.devices]]
    await node.until(lambda: (offered + devices_told(node))[-1] == [PLAIN])


async def test_a_plain_device_that_comes_beside_another_is_told_by_the_name_that_it_is_offered_by(
    node: ScriptedSessions,
) -> None:
    assert (await node.command(attach_device=attach())).ok
    # Of two at one port the chassis does not tell which is where.
    outcome = await node.command(attach_device=attach("m2", PLAIN))
    assert outcome.ok, outcome.error
    assert told(outcome).identity == PLAIN
    await node.until(lambda: sorted(devices_told(node)[-1]) == sorted([DRIVE, PLAIN]))


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
    # Trying again later would not help.
    with pytest.raises(Conflict, match="physical_devices is off"):
        await move_locally(config)


# Devices with leases.


def lease_of(device: str, number: str = "l1") -> Lease:
    return msgspec.structs.replace(lease(number, client_node="n9"), devices=(LeasedDevice(device=device, epoch=1),))


def prepare(one: Lease) -> session_pb2.PrepareDevices:
    return session_pb2.PrepareDevices(lease=to_message(one, types_pb2.Lease))


async def leased(node: ScriptedSessions) -> None:
    """Have the drive here, under a lease."""
    assert (await node.command(attach_device=attach())).ok
    await node.until(lambda: [DRIVE] in devices_told(node))
    outcome = await node.command(prepare_devices=prepare(lease_of(DRIVE)))
    assert outcome.ok, outcome.error


async def test_a_device_with_a_lease_stays_and_its_lease_too(node: ScriptedSessions, bed: Testbed) -> None:
    await leased(node)
    outcome = await node.command(detach_device=detach())
    assert not outcome.ok
    assert "session l1 (farbus cancel j1)" in outcome.error
    assert not told(outcome).changed
    assert node.ended_leases() == []
    assert bed.here("n1") == ["1b36:0010"]
    # It is offered again, and the lease can be prepared again.
    assert (await node.command(prepare_devices=prepare(lease_of(DRIVE)))).ok
    await node.until(lambda: devices_told(node)[-1] == [DRIVE])


async def test_evict_ends_the_lease_of_a_device_that_goes(node: ScriptedSessions, bed: Testbed) -> None:
    await leased(node)
    outcome = await node.command(detach_device=detach(evict=True))
    assert outcome.ok, outcome.error
    await node.until(lambda: bool(node.ended_leases()))
    assert "evicted from node n1" in node.ended_leases()[0].reason
    assert bed.here("n1") == []


async def test_a_device_that_is_being_moved_gets_no_lease(node: ScriptedSessions, bed: Testbed) -> None:
    assert (await node.command(attach_device=attach())).ok
    bed.nodes["n1"].holders.state = Look(holders=(Holder(kind=HolderKind.MOUNT, name="/data", path="/dev/nvme0n1"),))
    going = asyncio.create_task(node.command(detach_device=detach("m2", drain_s=30.0)))
    await node.until(lambda: any(one.move_progress.says.startswith("wait until") for one in node.said))
    refused = await node.command(prepare_devices=prepare(lease_of(DRIVE)))
    assert not refused.ok
    assert f"device {DRIVE} is closed on n1: it is detached" in refused.error
    bed.nodes["n1"].holders.state = Look()
    assert (await going).ok


async def test_a_device_that_may_be_here_by_another_name_is_not_taken_from_under_the_kernel(
    node: ScriptedSessions, bed: Testbed
) -> None:
    await node.command(attach_device=attach())
    # By hand, and found by the kernel itself; that this is it nobody can tell, since two are at the port.
    bed.chassis.backend.announce = True
    await bed.chassis.assign(PLAIN, "30h")
    assert sorted(bed.here("n1")) == ["1234:11e8", "1b36:0010"]
    outcome = await node.command(detach_device=detach("m2", PLAIN))
    assert not outcome.ok
    assert "chassis falcon has it at port 30h, and 0000:02:00.0 there may be it" in outcome.error
    assert bed.chassis.assigned()[PLAIN] == "30h"


async def test_a_device_that_is_assigned_here_and_can_not_be_another_is_given_back(
    node: ScriptedSessions, bed: Testbed
) -> None:
    await node.command(attach_device=attach())
    # Never announced, and never looked for: the kernel has no function of it.
    await bed.chassis.assign(PLAIN, "30h")
    assert bed.here("n1") == ["1b36:0010"]
    outcome = await node.command(detach_device=detach("m2", PLAIN, drain_s=7.0))
    assert outcome.ok, outcome.error
    said = [one.move_progress.says for one in node.said if one.HasField("move_progress")]
    assert "wait until nothing holds it, for 7 s at most" in said
    assert bed.chassis.assigned() == {"001300": "30h", PLAIN: ""}


# Moves that are called off.


def call_off(move: str = "m2") -> session_pb2.SchedulerMessage:
    return session_pb2.SchedulerMessage(cancel_move=session_pb2.CancelMove(move_id=move, by="ann"))


async def test_who_waits_for_holders_waits_no_longer_once_it_is_called_off(
    node: ScriptedSessions, bed: Testbed
) -> None:
    assert (await node.command(attach_device=attach())).ok
    bed.nodes["n1"].holders.state = Look(holders=(Holder(kind=HolderKind.MOUNT, name="/data", path="/dev/nvme0n1"),))
    going = asyncio.create_task(node.command(detach_device=detach("m2", drain_s=86_400.0)))
    await node.until(lambda: any(one.move_progress.says.startswith("wait until") for one in node.said))
    await node.tell(call_off())
    outcome = await going
    assert (outcome.ok, outcome.error) == (False, "called off by ann")
    assert not told(outcome).changed
    # It is given to those who ask again, and may go by another move.
    await node.until(lambda: devices_told(node)[-1] == [DRIVE])
    bed.nodes["n1"].holders.state = Look()
    assert (await node.command(detach_device=detach("m3"))).ok


async def test_what_is_called_off_before_it_is_asked_for_is_not_begun(node: ScriptedSessions, bed: Testbed) -> None:
    await node.tell(call_off("m1"))
    outcome = await node.command(attach_device=attach())
    assert (outcome.ok, outcome.error) == (False, "called off by ann")
    assert not any(one.startswith("POST") for one in bed.chassis.requests)
    assert (await node.command(attach_device=attach("m9"))).ok


async def test_what_is_done_stays_so_when_it_is_called_off(node: ScriptedSessions, bed: Testbed) -> None:
    assert (await node.command(attach_device=attach())).ok
    await node.tell(call_off("m1"))
    assert (await node.command(attach_device=attach())).ok
    assert bed.here("n1") == ["1b36:0010"]


async def test_what_was_assigned_already_is_taken_back_when_it_is_called_off(
    node: ScriptedSessions, bed: Testbed
) -> None:
    coming = asyncio.create_task(node.command(attach_device=attach()))
    # Said when that step begins, which is then done to its end.
    await node.until(lambda: any(one.move_progress.says.startswith("assign") for one in node.said))
    await node.tell(call_off("m1"))
    outcome = await coming
    assert (outcome.ok, outcome.error) == (False, "called off by ann")
    assert told(outcome).changed
    assert bed.chassis.assigned()["001300"] == ""
    assert bed.here("n1") == []


# Chassis that another agent serves.


@pytest_asyncio.fixture
async def other(
    tmp_path: Path, config: AgentConfig, node: ScriptedSessions, bed: Testbed, authority: Authority
) -> AsyncIterator[ScriptedSessions]:
    """A second node, without credentials for the chassis, in a session of its own."""
    scheduler = ScriptedScheduler(tmp_path / "second", authority)
    await scheduler.start()
    settings = msgspec.structs.replace(
        config,
        name="n2",
        scheduler=scheduler.address,
        state=str(tmp_path / "state2"),
        socket=str(tmp_path / "agent2.sock"),
        credentials=write_credentials(tmp_path / "credentials2", "n2", authority.issue("n2", Role.NODE)),
    )
    settings = bed.config(settings, serves=False)
    agent = AgentInProcess()
    agent.start(settings, bed.doors(settings))
    await scheduler.sessions.connected()
    yield scheduler.sessions
    await agent.stop()
    await scheduler.stop()


def serve_there(sessions: ScriptedSessions, *, term: int = 1) -> session_pb2.SchedulerMessage:
    address = sessions.hellos[-1].node.peer_endpoint
    return session_pb2.SchedulerMessage(
        serve_chassis=session_pb2.ServeChassis(chassis=CHASSIS, term=term, node="n1", address=address)
    )


async def test_a_device_goes_from_one_node_to_another(
    node: ScriptedSessions, other: ScriptedSessions, bed: Testbed
) -> None:
    await other.tell(serve_there(node))
    assert (await node.command(attach_device=attach("m1"))).ok
    went = await node.command(detach_device=detach("m2"))
    assert went.ok, went.error
    came = await other.command(
        attach_device=attach("m2", port="31h", functions=msgspec.json.encode(told(went).functions))
    )
    assert came.ok, came.error
    assert told(came).identity == DRIVE
    assert bed.here("n1") == []
    assert bed.here("n2") == ["1b36:0010"]
    assert bed.chassis.assigned()["001300"] == "31h"
    assert (await other.command(detach_device=detach("m3"))).ok
    assert bed.chassis.assigned()["001300"] == ""


async def test_a_node_may_ask_for_its_own_ports_alone(
    node: ScriptedSessions, other: ScriptedSessions, bed: Testbed
) -> None:
    await other.tell(serve_there(node))
    # Its own agent would not ask; so the cable is not where the scheduler believes it.
    outcome = await other.command(attach_device=attach("m1", port="30h"))
    assert not outcome.ok
    assert "leads to node n1, not to n2" in outcome.error
    assert bed.chassis.assigned()["001300"] == ""


async def test_who_serves_refuses_other_terms_and_other_nodes_ports(
    node: ScriptedSessions,
    bed: Testbed,
    tmp_path: Path,
    authority: Authority,
) -> None:
    assert (await node.command(attach_device=attach())).ok
    client = PeerClient(write_credentials(tmp_path / "c2", "n2", authority.issue("n2", Role.NODE)))
    address = node.hellos[-1].node.peer_endpoint

    async def ask(step: str, *, term: int = 1, port: str = "") -> None:
        await client.ask_chassis(
            "n1", address, ChassisRequest(chassis=CHASSIS, term=term, step=step, device="S1", port=port)
        )

    await ask("list")
    with pytest.raises(Unsatisfiable, match="serves it in term 1, not 2"):
        await ask("list", term=2)
    with pytest.raises(NotPermitted, match="port 30h leads to node n1, not to n2"):
        await ask("unassign", port="30h")
    with pytest.raises(NotFound):
        await ask("unassign")
    # Named elsewhere, it serves nobody any more.
    await node.tell(
        session_pb2.SchedulerMessage(
            serve_chassis=session_pb2.ServeChassis(chassis=CHASSIS, term=2, node="n2", address="127.0.0.1:9")
        )
    )
    # Answered after what came before it.
    assert not (await node.command(detach_device=session_pb2.DetachDevice(move_id="m7", device="none"))).ok
    with pytest.raises(Unsatisfiable, match="not served by node n1"):
        await ask("list", term=2)
    assert bed.chassis.assigned()["001300"] == "30h"


# What is neither finished nor undone, and what is done without the scheduler.


async def test_what_is_stuck_is_told_and_goes_on_when_it_is_asked_for_again(
    node: ScriptedSessions, bed: Testbed
) -> None:
    assert (await node.command(attach_device=attach())).ok
    bed.chassis.refuses_from("DELETE")
    stuck = await node.command(detach_device=detach())
    assert not stuck.ok
    assert told(stuck).stuck
    node.cut()
    await node.connected(hellos=2)
    (held,) = node.hellos[-1].moves
    assert (held.move_id, held.device, held.attach) == ("m2", DRIVE, False)
    assert held.trouble
    assert list(node.hellos[-1].node.devices) == []
    bed.chassis.refuses_from("")
    again = await node.command(detach_device=detach())
    # The way back was begun, and that is where it has ended.
    assert not again.ok
    assert (told(again).stuck, told(again).changed) == (False, True)
    assert bed.here("n1") == ["1b36:0010"]
    await node.until(lambda: devices_told(node)[-1] == [DRIVE])


async def move_locally(config: AgentConfig, **fields: object) -> list[MoveStatus]:
    async with ClusterClient.local(socket=config.socket) as client:
        request = MoveRequest(**{"device": DRIVE, "drain_s": 0.1, **fields})  # type: ignore[arg-type]
        return [status async for status in client.move_device(request, local=True)]


async def test_an_operator_of_the_node_moves_a_device_without_the_scheduler(
    node: ScriptedSessions, scheduler: ScriptedScheduler, config: AgentConfig, bed: Testbed
) -> None:
    await scheduler.stop()
    came = await move_locally(config, node="n1")
    assert (came[0].state, came[-1].state) == (MoveState.ATTACHING, MoveState.DONE)
    assert came[-1].path == "/dev/disk/by-id/nvme-FARBUS_Test_Drive_S1"
    assert {status.says for status in came} >= {f"open {DRIVE} for use"}
    went = await move_locally(config)
    assert went[-1].state is MoveState.DONE
    assert bed.chassis.assigned()["001300"] == ""
    records = list(read_records(Path(config.state) / "audit.jsonl"))
    assert [(one.method, one.target, one.outcome) for one in records] == [
        ("MoveDevice --local", DRIVE, outcome) for outcome in ("begun", "ok", "begun", "ok")
    ]
    await scheduler.start()


async def test_a_device_with_a_lease_is_not_moved_locally(
    node: ScriptedSessions, config: AgentConfig, bed: Testbed
) -> None:
    await leased(node)
    with pytest.raises(Conflict, match="lease l1 of job j1 has it; farbus cancel j1"):
        await move_locally(config)
    for name in ("S1", "001300"):
        # By whatever name: what its chassis calls it is another than its lease does.
        with pytest.raises(Conflict, match="lease l1 of job j1 has it; farbus cancel j1"):
            await move_locally(config, device=name, evict=True)
    with pytest.raises(InvalidInput, match="to n1 and from it only, not to n2"):
        await move_locally(config, node="n2")
    for drain_s in (float("inf"), float("nan"), -1.0):
        with pytest.raises(InvalidInput, match=r"drain_s: .* is not from 0 to 86400"):
            await move_locally(config, drain_s=drain_s)
    assert bed.here("n1") == ["1b36:0010"]
    records = list(read_records(Path(config.state) / "audit.jsonl"))
    assert [one.outcome for one in records] == ["begun", "refused"] * 7


def note_missing(config: AgentConfig, one: Missing) -> None:
    Path(config.state).mkdir()
    (Path(config.state) / "lock").touch()
    (Path(config.state) / "orphans.json").write_bytes(msgspec.json.encode({one.key: one}))


async def test_what_was_assigned_by_hand_and_not_found_is_looked_for(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, bed: Testbed
) -> None:
    await bed.chassis.assign("001300", "30h")
    assert bed.here("n1") == []
    settings = bed.config(config)
    # An agent before this one has missed it first, long ago.
    note_missing(config, Missing(chassis=CHASSIS, device="S1", port="30h", since=1.0))
    agent.start(settings, bed.doors(settings))
    await scheduler.sessions.connected()
    await scheduler.sessions.tell(serve_here())
    await scheduler.sessions.until(lambda: [DRIVE] in devices_told(scheduler.sessions))
    assert bed.here("n1") == ["1b36:0010"]
    # From then on it is a device like others.
    assert (await scheduler.sessions.command(detach_device=detach())).ok
    assert bed.chassis.assigned()["001300"] == ""


async def test_a_move_that_an_agent_is_stopped_in_is_gone_on_with_by_the_next(
    node: ScriptedSessions, agent: AgentInProcess, config: AgentConfig, bed: Testbed
) -> None:
    assert (await node.command(attach_device=attach())).ok
    bed.nodes["n1"].holders.state = Look(holders=(Holder(kind=HolderKind.MOUNT, name="/data", path="/dev/nvme0n1"),))
    going = asyncio.create_task(node.command(detach_device=detach("m2", drain_s=600.0)))
    await node.until(lambda: any(one.move_progress.says.startswith("wait until") for one in node.said))
    going.cancel()
    await agent.stop()
    assert bed.here("n1") == ["1b36:0010"]
    bed.nodes["n1"].holders.state = Look()
    settings = bed.config(config)
    agent.start(settings, bed.doors(settings))
    await node.connected(hellos=2)
    outcome = await node.command(detach_device=detach("m2"))
    assert outcome.ok, outcome.error
    assert [one.ids for one in told(outcome).functions] == ["1b36:0010"]
    assert bed.chassis.assigned()["001300"] == ""
