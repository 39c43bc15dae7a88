"""What comes and goes on the bus, told once each, whatever the kernel tells of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from farbus.hotplug.watch import TreeWatch
from farbus.linux.fake_pci import FakePci
from farbus.linux.uevents import FakeUevents
from farbus.model.pci import FunctionArrived, FunctionRemoved, PciTree, TreeEvent
from tests.hotplug.machines import PORT_A, PORT_B, drive, gpu, plain, two_ports

PATH = "/devices/pci0000:00/0000:00:03.0/0000:01:00.0"


class Watched:
    def __init__(self, directory: Path) -> None:
        self.pci: FakePci = two_ports(directory)
        self.uevents = FakeUevents()
        self.events: list[TreeEvent] = []
        self.expected: set[str] = set()
        self.watch = TreeWatch(
            pci=self.pci, uevents=self.uevents, told=self.events.append, expected=self.expected.__contains__
        )

    async def heard(self) -> list[TreeEvent]:
        """Let the watch hear what was sent, and return what it has told since."""
        for _ in range(10):
            await asyncio.sleep(0)
        told, self.events[:] = list(self.events), []
        return told


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    one = Watched(tmp_path)
    task = asyncio.create_task(one.watch.run())
    await one.heard()
    yield one
    task.cancel()


async def test_an_arrival_is_told_with_its_sequence_number(watched: Watched) -> None:
    watched.pci.plug(PORT_A, drive(), announce=True)
    watched.uevents.send("add", PATH)
    watched.uevents.send("bind", PATH)
    watched.uevents.send("add", f"{PATH}/nvme/nvme0", subsystem="nvme")
    assert await watched.heard() == [FunctionArrived(address="0000:01:00.0", ids="1b36:0010", seqnum=101)]


async def test_a_surprise_is_told_apart_from_what_was_asked_for(watched: Watched) -> None:
    watched.pci.plug(PORT_A, drive(), announce=True)
    watched.uevents.send("add", PATH)
    await watched.heard()
    watched.pci.unplug(PORT_A)
    watched.uevents.send("remove", PATH)
    assert await watched.heard() == [FunctionRemoved(address="0000:01:00.0", ids="1b36:0010", seqnum=102)]
    watched.expected.add("0000:01:00.0")
    watched.pci.plug(PORT_A, drive(), announce=True)
    watched.uevents.send("add", PATH)
    (arrived,) = await watched.heard()
    assert arrived.expected


async def test_the_end_is_told_before_the_directory_is_gone(watched: Watched) -> None:
    watched.pci.plug(PORT_A, drive(), announce=True)
    watched.uevents.send("add", PATH)
    await watched.heard()
    (watched.pci.directory / "sys/bus/pci/devices/0000:01:00.0/remove").unlink()
    watched.uevents.send("remove", PATH)
    assert [type(event) for event in await watched.heard()] == [FunctionRemoved]
    watched.pci._forget("0000:01:00.0")
    watched.pci._enumerate(PORT_A)
    watched.uevents.send("add", PATH)
    assert [type(event) for event in await watched.heard()] == [FunctionArrived]


async def test_a_removal_that_has_only_begun_is_no_end(watched: Watched) -> None:
    watched.pci.plug(PORT_A, drive(), announce=True)
    watched.uevents.send("add", PATH)
    await watched.heard()
    (watched.pci.directory / "sys/bus/pci/devices/0000:01:00.0/remove").unlink()
    watched.uevents.send("unbind", PATH)
    watched.uevents.lose()
    assert await watched.heard() == []


async def test_lost_messages_are_made_up_for_by_listing(watched: Watched) -> None:
    watched.pci.plug(PORT_A, drive(), announce=True)
    watched.pci.plug(PORT_B, plain(), announce=True)
    watched.uevents.lose()
    assert [event.address for event in await watched.heard()] == ["0000:01:00.0", "0000:02:00.0"]
    watched.pci.unplug(PORT_A)
    watched.uevents.lose()
    assert await watched.heard() == [FunctionRemoved(address="0000:01:00.0", ids="1b36:0010")]


async def test_many_messages_at_once_lead_to_few_looks(watched: Watched) -> None:
    looks, tree = [], watched.pci.tree

    def counted() -> PciTree:
        looks.append(1)
        return tree()

    watched.pci.tree = counted  # type: ignore[method-assign]
    watched.pci.plug(PORT_A, drive(), announce=True)
    looks.clear()
    for number in range(256):
        watched.uevents.send("add", f"{PATH[:-4]}02.{number % 8}")
    watched.uevents.send("add", PATH)
    assert await watched.heard() == [FunctionArrived(address="0000:01:00.0", ids="1b36:0010", seqnum=357)]
    assert len(looks) <= 2


async def test_another_device_at_the_same_address_is_another_device(watched: Watched) -> None:
    watched.pci.plug(PORT_A, drive(), announce=True)
    watched.uevents.send("add", PATH)
    await watched.heard()
    watched.pci.unplug(PORT_A)
    watched.pci.plug(PORT_A, gpu(), announce=True)
    watched.uevents.lose()
    told = await watched.heard()
    assert [(type(event), event.address, event.ids) for event in told] == [
        (FunctionRemoved, "0000:01:00.0", "1b36:0010"),
        (FunctionArrived, "0000:01:00.0", "10de:2330"),
        (FunctionArrived, "0000:01:00.1", "10de:22ba"),
    ]
