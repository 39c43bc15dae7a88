"""What a node remembers of the drives that it stores on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from farbus.agent.config import AgentConfig
from farbus.agent.journal import Journal
from farbus.agent.steps import StepRunner
from farbus.agent.storage_inventory import StorageInventory
from farbus.linux.clock import FakeClock
from tests.agent.storing import Machine


async def test_of_a_drive_that_is_not_here_any_more_nothing_is_told(tmp_path: Path, config: AgentConfig) -> None:
    """It may be another node's by now: its health was told by this one, too, until the agent ended."""
    machine, clock = Machine(tmp_path / "machine"), FakeClock()
    stays, goes, breaks = await machine.give("S1", "S2", "S3")
    machine.nvme.smart["critical_warning"] = 1
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id="b1")
    async with asyncio.TaskGroup() as group:
        inventory = StorageInventory(
            config=msgspec.structs.replace(config, drive_bandwidth={"*": 1}),
            lvm=machine.lvm, nvme=machine.nvme, speed=machine.speed, journal=journal, clock=clock,
            runner=StepRunner(journal=journal, clock=clock, group=group),
        )  # fmt: skip
        await inventory.offer(())
        assert inventory.smart.keys() == inventory.troubles().keys() == {stays, goes, breaks}
        await machine.lvm.remove_drive(goes)
        machine.lvm.pull(breaks)
        inventory.changed()
        await inventory.offer(())
        assert inventory.smart.keys() == {stays}
        assert inventory.troubles().keys() == {stays, breaks}
        assert inventory.troubles()[breaks] == "it is missing"
    await journal.close()
