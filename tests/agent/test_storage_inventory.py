"""What a node remembers of the drives that it stores on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from farbus.agent.config import AgentConfig
from farbus.agent.journal import Journal
from farbus.agent.steps import StepRunner
from farbus.agent.storage_inventory import HEALTH_CHARACTERS, SMART_AT_ONCE, StorageInventory
from farbus.linux.clock import FakeClock
from farbus.model.nvmeof import SmartLog
from farbus.model.storage import EXTENT_BYTES, LogicalIdentity
from farbus.model.volume import HEALTH
from tests.agent.storing import Machine


async def test_what_is_wrong_with_many_drives_at_once_is_told_as_far_as_it_is_taken(
    tmp_path: Path, config: AgentConfig
) -> None:
    machine, clock = Machine(tmp_path / "machine"), FakeClock()
    drives = await machine.give(*(f"S{number:019}" for number in range(20)))
    part = LogicalIdentity(volume="data")
    await machine.lvm.create(part, size_bytes=20 * EXTENT_BYTES, drives=drives)
    await machine.lvm.wipe(part)
    asked, at_once = 0, 0

    async def complain(_: str) -> SmartLog:
        nonlocal asked, at_once
        asked += 1
        at_once = max(at_once, asked)
        await asyncio.sleep(0)
        asked -= 1
        return SmartLog(critical_warning=0b111111)

    machine.nvme.smart_log = complain  # type: ignore[method-assign]
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id="b1")
    async with asyncio.TaskGroup() as group:
        inventory = StorageInventory(
            config=msgspec.structs.replace(config, drive_bandwidth={"*": 1}),
            lvm=machine.lvm, nvme=machine.nvme, speed=machine.speed, journal=journal, clock=clock,
            runner=StepRunner(journal=journal, clock=clock, group=group),
        )  # fmt: skip
        (told,) = await inventory.offer(())
    await journal.close()
    assert len(told.attributes[HEALTH]) == HEALTH_CHARACTERS
    assert told.attributes[HEALTH].startswith(f"{drives[0]}: spare capacity below its threshold; ")
    assert at_once == SMART_AT_ONCE


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
