"""Moves of devices by an agent: what the next agent makes of them, and which devices are closed meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from farbus.agent.journal import Journal
from farbus.agent.moves import AgentGate, Moves, closed_by
from farbus.agent.steps import CalledOff, CallOff, Result, StepRunner
from farbus.errors import Conflict, TimedOut, Unavailable
from farbus.hotplug.sequences import HotAttach, HotDetach
from farbus.hotplug.steps import RemoveFunctions, ScanBelow, UnassignDevice
from farbus.hotplug.working import WedgedRemoval
from farbus.linux.clock import FakeClock
from farbus.model.holders import Holder, HolderKind, Look
from farbus.model.pci import PciTree
from tests.hotplug.harness import DRIVE, Node, a_move
from tests.hotplug.machines import PORT_A

ATTACH = HotAttach(move=a_move())
DETACH = HotDetach(move=a_move(drain_s=0.0))


class Agent:
    """An agent's moves on a node that outlives it."""

    def __init__(self, node: Node, journal: Journal, group: asyncio.TaskGroup, *, boot_id: str) -> None:
        self.node, self.journal, self.boot_id = node, journal, boot_id
        self.gate = AgentGate()
        parts = dataclasses.replace(node.parts, gate=self.gate, appear_s=0.0)
        runner = StepRunner(journal=journal, clock=FakeClock(), group=group)
        self.moves = Moves(parts=parts, gate=self.gate, journal=journal, runner=runner)

    async def recover(self) -> dict[str, dict[str, str]]:
        return await self.moves.recover(boot_id=self.boot_id)


@contextlib.asynccontextmanager
async def agent(directory: Path, *, boot_id: str = "a-boot") -> AsyncIterator[Agent]:
    journal, _ = await Journal.open(directory / "journal.db", boot_id=boot_id)
    async with asyncio.TaskGroup() as group:
        yield Agent(Node(directory / "node"), journal, group, boot_id=boot_id)
    await journal.close()


async def test_while_nothing_is_moved_no_change_has_the_bus_read(tmp_path: Path) -> None:
    async with agent(tmp_path) as one:

        def read() -> PciTree:
            raise AssertionError("hundreds of virtual functions would each have it read")

        one.node.pci.tree = read  # type: ignore[method-assign]
        assert not one.moves.is_expected("0000:01:00.0")


async def test_what_is_attached_is_adopted_by_the_next_agent(tmp_path: Path) -> None:
    async with agent(tmp_path) as first:
        await first.moves.perform(ATTACH)
    async with agent(tmp_path) as second:
        attached = await second.recover()
        assert attached[DRIVE]["address"] == "0000:01:00.0"
        assert second.gate.closed() == {}
        assert second.node.pci.writes == second.node.fabric.calls == []


async def test_a_defect_in_what_is_taken_up_is_a_trouble_of_its_device_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(tmp_path) as first:
        await first.moves.perform(ATTACH)

    async def fail(_: ScanBelow, _known: Result | None) -> Result:
        raise ZeroDivisionError("planted")

    async with agent(tmp_path) as second:
        with monkeypatch.context() as patched:
            patched.setattr(ScanBelow, "observe", fail)
            assert await second.recover() == {}
        assert second.moves.troubles == {DRIVE: "a defect: ZeroDivisionError('planted')"}
        # It is tried again, as all that is stuck.
        await second.moves.try_again(boot_id=second.boot_id)
        assert (second.moves.troubles, list(second.moves.attached)) == ({}, [DRIVE])


async def test_what_is_detached_stays_away_and_closed(tmp_path: Path) -> None:
    async with agent(tmp_path) as first:
        await first.moves.perform(ATTACH)
        await first.moves.perform(DETACH)
    async with agent(tmp_path) as second:
        assert await second.recover() == {}
        assert await second.gate.is_closed(DRIVE)
        assert second.node.world()["there"] == []
        # Until it is attached again.
        await second.moves.perform(ATTACH)
        assert second.gate.closed() == {}


async def test_what_is_called_off_while_a_step_looks_does_not_begin_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(tmp_path) as first:
        await first.moves.perform(ATTACH)
        call_off = CallOff()
        before = len(first.node.fabric.calls)

        async def look(_: UnassignDevice, _known: Result | None) -> None:
            # The last step sees that there is something to be done, and meanwhile nobody wants it any more.
            call_off.say("ann")

        monkeypatch.setattr(UnassignDevice, "observe", look)
        with pytest.raises(CalledOff, match="called off by ann"):
            await first.moves.perform(DETACH, call_off=call_off)
        assert first.node.fabric.calls[before:] == []
        assert first.node.world()["there"] != []
        assert not await first.gate.is_closed(DRIVE)


async def test_after_a_reboot_it_is_as_it_was(tmp_path: Path) -> None:
    async with agent(tmp_path) as first:
        await first.moves.perform(ATTACH)
    async with agent(tmp_path, boot_id="another-boot") as second:
        assert (await second.recover())[DRIVE]["identity"] == DRIVE
        await second.moves.perform(DETACH)
    async with agent(tmp_path, boot_id="a-third-boot") as third:
        assert await third.recover() == {}
        assert third.node.world()["there"] == []
        assert third.moves.troubles == {}


async def test_what_was_pulled_out_meanwhile_is_given_back(tmp_path: Path) -> None:
    async with agent(tmp_path) as first:
        await first.moves.perform(ATTACH)
    async with agent(tmp_path) as second:
        second.node.pci._forget("0000:01:00.0")
        changes: list[str] = []
        second.moves.changed = lambda: changes.append("")
        assert await second.recover() == {}
        assert second.node.fabric.ports()[DRIVE] == ""
        # What was offered until then is not any more.
        assert changes


async def test_a_refused_detach_is_no_trouble(tmp_path: Path) -> None:
    async with agent(tmp_path) as only:
        await only.moves.perform(ATTACH)
        only.node.holders.state = Look(holders=(Holder(kind=HolderKind.PROCESS, name="python3", pid=7),))
        with pytest.raises(Conflict):
            await only.moves.perform(DETACH)
        assert only.moves.troubles == {}
        assert only.gate.closed() == {}


async def test_what_can_not_be_undone_is_a_trouble_and_stays_closed(tmp_path: Path) -> None:
    async with agent(tmp_path) as first:
        await first.moves.perform(ATTACH)
        first.node.fabric.refuse = "no answer"
        first.node.pci.no_driver = True
        # The unassignment fails, and so does the way back: the drive is there without its driver.
        with pytest.raises(TimedOut, match="no driver"):
            await first.moves.perform(DETACH)
        assert DRIVE in first.moves.troubles
        assert await first.gate.is_closed(DRIVE)
    async with agent(tmp_path) as second:
        # The next agent takes it back to where it was: the driver is there again.
        second.node.pci._forget("0000:01:00.0")
        await second.recover()
        assert second.node.world()["drives"] == ["S1"]
        assert second.gate.closed() == {}
        assert second.moves.troubles == {}


async def test_a_wedged_node_is_told_by_the_next_agent(tmp_path: Path) -> None:
    async with agent(tmp_path) as first:
        await first.moves.perform(ATTACH)
        (first.node.pci.directory / "sys/bus/pci/devices/0000:01:00.0/remove").unlink()
        with pytest.raises(WedgedRemoval):
            await first.moves.perform(DETACH)
        assert "wedged" in first.moves.troubles[DRIVE]
    async with agent(tmp_path) as second:
        assert await second.recover() == {}
        assert "wedged: the kernel has not finished removing 0000:01:00.0" in second.moves.troubles[DRIVE]
        assert await second.gate.is_closed(DRIVE)


async def test_what_comes_and_goes_at_a_port_is_expected_while_it_is_being_moved(tmp_path: Path) -> None:
    async with agent(tmp_path) as only:
        seen: list[tuple[bool, bool]] = []
        remove = only.node.pci.remove

        async def removing(address: str) -> None:
            await remove(address)
            seen.append((only.moves.is_expected(address), only.moves.is_expected("0000:02:00.0")))

        only.node.pci.remove = removing  # type: ignore[method-assign]
        await only.moves.perform(ATTACH)
        assert not only.moves.is_expected("0000:01:00.0")
        await only.moves.perform(DETACH)
        assert seen == [(True, False)]


async def test_records_say_whether_a_device_is_closed(tmp_path: Path) -> None:
    async with agent(tmp_path) as only:

        async def closed() -> bool:
            (records,) = await only.journal.sequences()
            return closed_by(records)

        await only.moves.perform(ATTACH)
        assert not await closed()
        only.node.holders.state = Look(unseen=("something",))
        with pytest.raises(Conflict):
            await only.moves.perform(DETACH)
        assert not await closed()
        only.node.holders.state = Look()
        await only.moves.perform(DETACH)
        assert await closed()


async def test_what_came_by_its_chassis_name_and_went_by_its_own_is_not_taken_back_again(tmp_path: Path) -> None:
    async with agent(tmp_path) as first:
        await first.moves.perform(HotAttach(move=a_move("S1", serial="S1")))
        await first.moves.perform(DETACH)
        # Another device comes to the same port.
        await first.moves.perform(HotAttach(move=a_move("0011", port="30h")))
        first.node.fabric.calls.clear()
        first.node.pci.writes.clear()
    async with agent(tmp_path) as second:
        assert list(await second.recover()) == ["0011"]
        assert second.node.fabric.calls == second.node.pci.writes == []


async def test_what_came_by_its_chassis_name_and_is_given_back_by_its_own_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_off_the_bus = asyncio.Event()

    async def fail(_: UnassignDevice) -> Result:
        raise Unavailable("no answer")

    async def never(_: RemoveFunctions) -> None:
        is_off_the_bus.set()
        await asyncio.Event().wait()

    async with agent(tmp_path) as first:
        await first.moves.perform(HotAttach(move=a_move("S1", serial="S1")))
        with monkeypatch.context() as patched:
            patched.setattr(UnassignDevice, "do", fail)
            patched.setattr(RemoveFunctions, "compensate", never)
            going = asyncio.create_task(first.moves.perform(DETACH))
            await is_off_the_bus.wait()
            # Here the agent ends: the drive is off the bus, and on its way back.
            going.cancel()
            await asyncio.wait({going})
        first.node.fabric.calls.clear()
    async with agent(tmp_path) as second:
        assert list(await second.recover()) == []
        assert second.node.fabric.calls == []
        assert second.node.fabric.ports()[DRIVE] == "30h"
        assert second.node.world()["drives"] == ["S1"]
        assert second.gate.closed() == {}
    async with agent(tmp_path) as third:
        await third.recover()
        assert third.node.world()["drives"] == ["S1"]


async def test_what_was_brought_here_is_still_known_after_a_detach_that_was_refused(tmp_path: Path) -> None:
    plain = a_move("0011")
    async with agent(tmp_path) as first:
        await first.moves.perform(HotAttach(move=plain))
        assert first.moves.has_brought("0011")
        first.node.holders.state = Look(holders=(Holder(kind=HolderKind.PROCESS, name="python3", pid=7),))
        with pytest.raises(Conflict):
            await first.moves.perform(HotDetach(move=msgspec.structs.replace(plain, drain_s=0.0, brought=True)))
        assert first.moves.has_brought("0011")
    async with agent(tmp_path) as second:
        await second.recover()
        assert second.moves.attached["0011"]["address"] == "0000:01:00.0"
        # Of what nobody has brought it is no more true than before.
        second.node.holders.state = Look()
        await second.moves.perform(HotDetach(move=plain))
        assert second.moves.attached == {}


async def test_what_was_pulled_out_does_not_take_along_what_came_after_it(tmp_path: Path) -> None:
    async with agent(tmp_path) as first:
        await first.moves.perform(ATTACH)
        # Somebody takes it away, past all agents, and another device comes to its port.
        first.node.pci.unplug(PORT_A)
        await first.node.fabric.unassign(DRIVE)
        await first.moves.perform(HotAttach(move=a_move("0011")))
    async with agent(tmp_path) as second:
        assert list(await second.recover()) == ["0011"]
        assert [one.ids for one in second.node.pci.tree().below(PORT_A)] == ["1234:11e8"]
