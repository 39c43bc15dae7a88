"""Storage, with its agent killed at every record: a lease has it or has nothing, a volume is made or is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farbus.agent.journal import Journal
from farbus.agent.steps import StepRunner
from farbus.agent.volumes import VolumeOrder, Volumes, VolumeVerb
from farbus.linux.clock import SystemClock
from farbus.model.storage import LogicalIdentity
from farbus.model.volume import VolumePart
from farbus.nvmeof.target import TargetParts
from farbus.nvmeof.volumes import VolumeParts
from tests.agent.storing import MIB, Machine
from tests.harness.killing import kill_everywhere

HERE = "tests.agent.kill_storage"
EXPORT = ("CheckExport", "EndOlder", "MakeSubsystem", "AllowHost", "OfferSubsystem")
CONNECT = ("ClearEarlier", "Connect", "VerifyNamespaces", "HandOver")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("scenario", "kinds", "fail"),
    [
        ("RoomExported", ("ProvideStorage", "CreatePart", "WipePart", "ActivatePart", *EXPORT), ()),
        (
            "RoomExportedByTls",
            ("ProvideStorage", "CreatePart", "WipePart", "ActivatePart", *EXPORT[:-1], "HoldTlsKey", EXPORT[-1]),
            (),
        ),
        (
            "StorageUsedByTls",
            ("CheckUser", CONNECT[0], "HoldTlsKey", *CONNECT[1:], "MakeFileSystem", "MountStorage"),
            (),
        ),
        ("StorageUsed", ("CheckUser", *CONNECT, "MakeFileSystem", "MountStorage"), ()),
        (
            "StripeMapped",
            ("CheckUser", *CONNECT, *CONNECT, "CreateStripe", "MakeFileSystem", "MountStorage", "FillFile"),
            (),
        ),
        ("LocalRaw", ("CheckUser", "FindPart", "GiveNode"), (2,)),
    ],
)
def test_a_lease_has_its_storage_or_nothing_wherever_its_agent_is_killed(
    scenario: str, kinds: tuple[str, ...], fail: tuple[int, ...], tmp_path: Path
) -> None:
    told = kill_everywhere(f"{HERE}:{scenario}", tmp_path, fail=fail)
    expected = tuple(record for kind in kinds for record in (f"started forward {kind}", "completed"))
    assert told.records["forward"] == expected
    assert told.to_old
    assert told.to_new


class StoppingJournal(Journal):
    """One that stops the world before or after a record."""

    stop_at = -1
    points = 0

    async def _write(self, what: str, operation: Callable[[Any], Any]) -> Any:
        await self._pass()
        result = await super()._write(what, operation)
        await self._pass()
        return result

    async def _pass(self) -> None:
        at, self.points = self.points, self.points + 1
        if at == self.stop_at:
            self.stopped.set()
            await asyncio.get_running_loop().create_future()

    @property
    def stopped(self) -> asyncio.Event:
        found: asyncio.Event = self.__dict__.setdefault("_stopped", asyncio.Event())
        return found


async def one_agent(machine: Machine, order: VolumeOrder | None, *, stop_at: int) -> tuple[int, str]:
    """Let an agent recover, and do what is asked; return how many points it passed, and its answer."""
    journal, _ = await StoppingJournal.open(machine.directory / "journal.db", boot_id="b")
    assert isinstance(journal, StoppingJournal)
    journal.stop_at = stop_at
    answer = ["stopped"]

    async def nothing(*_: str) -> None:
        pass

    async def live() -> None:
        async with asyncio.TaskGroup() as group:
            volumes = Volumes(
                boot_id="b",
                journal=journal,
                runner=StepRunner(journal=journal, clock=SystemClock(), group=group),
                parts=VolumeParts(lvm=machine.lvm),
                target=TargetParts(nvmet=machine.nvmet, blocks=machine.blocks),
                close=nothing,
                open=nothing,
                lease_of=lambda _: "",
                changed=nothing,
            )
            await volumes.recover(group)
            if order is not None:
                answer[0] = await volumes.perform(order)

    life, stopped = asyncio.create_task(live()), asyncio.create_task(journal.stopped.wait())
    await asyncio.wait({life, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not life.done():
        life.cancel()
        await asyncio.wait({life})
    else:
        life.result()
    await journal.close()
    return journal.points, answer[0]


PART = VolumePart(volume="data", size_bytes=64 * MIB, drives=("NVME-S1-Fake_drive",))


async def worlds(machine: Machine, verb: VolumeVerb) -> VolumeOrder:
    """Make the world in which something is asked for."""
    await machine.give("S1")
    if verb is not VolumeVerb.MAKE:
        identity = LogicalIdentity(volume="data")
        await machine.lvm.create(identity, size_bytes=64 * MIB, drives=PART.drives)
        await machine.lvm.wipe(identity)
    size = 128 * MIB if verb is VolumeVerb.RESIZE else 64 * MIB
    return VolumeOrder(verb=verb, part=VolumePart(volume="data", size_bytes=size, drives=PART.drives))


@pytest.mark.parametrize("verb", list(VolumeVerb))
async def test_a_volume_is_as_before_or_as_asked_for_wherever_its_agent_ends(verb: VolumeVerb, tmp_path: Path) -> None:
    whole = Machine(tmp_path / "whole")
    order = await worlds(whole, verb)
    old = whole.world()
    points, answer = await one_agent(whole, order, stop_at=-1)
    new = whole.world()
    assert answer == ""
    assert new != old
    seen = set()
    for stop_at in range(points):
        directory = tmp_path / f"stopped-at-{stop_at}"
        await worlds(Machine(directory), verb)
        _, answer = await one_agent(Machine(directory), order, stop_at=stop_at)
        assert answer == "stopped" or stop_at == points - 1
        await one_agent(Machine(directory), None, stop_at=-1)
        found = Machine(directory).world()
        assert found in (old, new), f"stopped at {stop_at}"
        seen.add(found == new)
        # Asked again it is done, whatever came of it.
        assert await one_agent(Machine(directory), order, stop_at=-1) != ("", "stopped")
        assert Machine(directory).world() == new
    assert seen == {True, False}
