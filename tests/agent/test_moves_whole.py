"""A scheduler, two whole agents and an emulated chassis: devices move from node to node, by order of people."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from farbus.agent.config import AgentConfig
from farbus.api.client import ClusterClient
from farbus.api.identity import Role
from farbus.model.device import DeviceStatus
from farbus.model.move import MoveRequest, MoveState, MoveStatus
from tests.agent.harness import AgentInProcess
from tests.agent.moving import CHASSIS, DRIVE, PLAIN, Testbed, open_testbed
from tests.scheduler.site import Site

pytestmark = pytest.mark.timeout(300)


class Whole:
    """All of it; only n1 has the credentials of the chassis."""

    def __init__(self, directory: Path, site: Site, bed: Testbed, operator: ClusterClient) -> None:
        self.directory, self.site, self.bed, self.operator = directory, site, bed, operator
        self.agents: dict[str, AgentInProcess] = {}

    def start(self, name: str, *, serves: bool) -> None:
        config = AgentConfig(
            name=name,
            scheduler=self.site.address,
            address="127.0.0.1",
            peer_port=0,
            state=str(self.directory / name),
            socket=str(self.directory / f"{name}.sock"),
            credentials=self.site.credentials(name),
            run_as_self=True,
            end_on_stop=True,
        )
        config = self.bed.config(config, serves=serves)
        self.agents[name] = AgentInProcess()
        self.agents[name].start(config, self.bed.doors(config))

    async def move(self, device: str, to: str = "", **more: object) -> list[MoveStatus]:
        request = MoveRequest(device=device, node=to, drain_s=0.1, **more)  # type: ignore[arg-type]
        return [status async for status in self.operator.move_device(request)]

    async def until_told(self, device: str, node: str) -> DeviceStatus:
        """Wait until the scheduler has it that a device is at a node; at none for an empty name."""
        while True:
            for status in await self.operator.list_devices():
                if (status.device.id, status.node) == (device, node) and not status.move:
                    return status


@pytest.fixture
async def whole(tmp_path: Path) -> AsyncIterator[Whole]:
    site = Site(tmp_path)
    async with (
        site.scheduler(),
        open_testbed(tmp_path / "bed") as bed,
        site.client("ann", Role.OPERATOR) as operator,
        contextlib.AsyncExitStack() as stack,
    ):
        found = Whole(tmp_path, site, bed, operator)
        for name in ("n1", "n2"):
            found.start(name, serves=name == "n1")
            stack.push_async_callback(found.agents[name].stop)
        while len(await operator.list_nodes()) < 2:
            pass
        # By what its chassis calls it, before a node has it.
        await found.until_told("S1", "")
        yield found


async def test_a_drive_goes_from_node_to_node_and_back_to_its_chassis(whole: Whole) -> None:
    came = await whole.move("S1", "n1")
    assert (came[-1].state, came[-1].error) == (MoveState.DONE, "")
    assert came[-1].path == "/dev/disk/by-id/nvme-FARBUS_Test_Drive_S1"
    await whole.until_told(DRIVE, "n1")
    went = await whole.move(DRIVE, "n2")
    assert (went[-1].state, went[-1].error) == (MoveState.DONE, "")
    assert {status.state for status in went} >= {MoveState.DETACHING, MoveState.ATTACHING}
    await whole.until_told(DRIVE, "n2")
    assert (whole.bed.here("n1"), whole.bed.here("n2")) == ([], ["1b36:0010"])
    gone = await whole.move(DRIVE)
    assert (gone[-1].state, gone[-1].error) == (MoveState.DONE, "")
    assert whole.bed.chassis.assigned() == {"001300": "", PLAIN: ""}


async def test_what_the_next_node_can_not_have_comes_back(whole: Whole) -> None:
    assert (await whole.move("S1", "n1"))[-1].state is MoveState.DONE
    await whole.until_told(DRIVE, "n1")
    whole.bed.nodes["n2"].pci.refuse = "Input/output error"
    back = await whole.move(DRIVE, "n2")
    assert back[-1].state is MoveState.UNDONE
    assert "Input/output error" in back[-1].error
    assert (whole.bed.here("n1"), whole.bed.chassis.assigned()["001300"]) == (["1b36:0010"], "30h")
    await whole.until_told(DRIVE, "n1")


async def test_a_dry_run_tells_both_nodes_steps(whole: Whole) -> None:
    assert (await whole.move("S1", "n1"))[-1].state is MoveState.DONE
    await whole.until_told(DRIVE, "n1")
    rehearsed = (await whole.move(DRIVE, "n2", dry_run=True))[-1]
    assert rehearsed.error == ""
    assert [line.partition(":")[0] for line in rehearsed.plan] == ["n1"] * 5 + ["n2"] * 5
    assert whole.bed.here("n1") == ["1b36:0010"]


async def test_another_agent_takes_the_chassis_over(whole: Whole) -> None:
    (before,) = await whole.operator.list_chassis()
    assert (before.name, before.served_by) == (CHASSIS, "n1")
    await whole.agents["n2"].stop()
    whole.start("n2", serves=True)
    while len(await whole.operator.list_nodes()) < 2:
        pass
    await whole.agents["n1"].stop()
    while (await whole.operator.list_chassis())[0].served_by != "n2":
        pass
    (after,) = await whole.operator.list_chassis()
    assert after.term > before.term
    assert (await whole.move("S1", "n2"))[-1].state is MoveState.DONE
