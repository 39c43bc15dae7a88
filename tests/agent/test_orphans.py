"""Devices that a chassis has assigned to a node and that are not on its bus: looked for after a grace time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from farbus.agent.orphans import GRACE_S, Orphans
from farbus.errors import TimedOut
from farbus.linux.clock import FakeClock
from farbus.linux.fake_pci import FakePci
from farbus.model.device import DeviceKind
from farbus.model.fabric import ChassisView, FabricDevice, FabricPort
from tests.hotplug.harness import Node
from tests.hotplug.machines import PORT_A, PORT_B, drive, plain

DRIVE = FabricDevice(id="S1", handle="001300", kind=DeviceKind.NVME, serial="S1", port="30h")
PLAIN = FabricDevice(id="001400", handle="001400", kind=DeviceKind.PCI, port="30h")


def a_view(*devices: FabricDevice) -> ChassisView:
    ports = (FabricPort(id="30h", node="n1"), FabricPort(id="31h", node="n2"))
    return ChassisView(chassis="falcon", ports=ports, devices=devices)


class Bench:
    """A node's orphans, and a scan that finds what is plugged in."""

    def __init__(self, directory: Path, clock: FakeClock) -> None:
        self.directory, self.clock = directory, clock
        self.node = Node(directory / "node")
        self.scans: list[str] = []
        self.moved: set[str] = set()
        self.broken = False
        """Whether the kernel fails to scan."""
        self.orphans = self.made()

    @property
    def pci(self) -> FakePci:
        return self.node.pci

    def made(self) -> Orphans:
        """Return them as the next agent has them."""
        return Orphans(
            self.directory / "orphans.json",
            node="n1",
            ports={"falcon/30h": (PORT_A, PORT_B)},
            clock=self.clock,
            tree=self.pci.tree,
            names=self.node.parts.names,
            busy=lambda device: device.id in self.moved,
            scan=self.scan,
        )

    async def scan(self, device: FabricDevice, view: ChassisView) -> None:
        self.scans.append(device.id)
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        await self.pci.rescan_below(PORT_A)
        if not self.pci.tree().below(PORT_A):
            raise TimedOut("it is not there")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def bench(tmp_path: Path, clock: FakeClock) -> Bench:
    return Bench(tmp_path, clock)


async def test_what_is_missing_for_too_long_is_looked_for_and_found(bench: Bench, clock: FakeClock) -> None:
    bench.pci.plug(PORT_A, drive("S1"))
    await bench.orphans.look(a_view(DRIVE))
    await clock.advance(GRACE_S - 1)
    await bench.orphans.look(a_view(DRIVE))
    assert bench.scans == []
    await clock.advance(1)
    await bench.orphans.look(a_view(DRIVE))
    assert bench.scans == ["S1"]
    assert bench.orphans.troubles() == {}
    await clock.advance(GRACE_S)
    await bench.orphans.look(a_view(DRIVE))
    assert bench.scans == ["S1"]


async def test_what_a_scan_does_not_bring_is_a_trouble_until_it_is_there_or_elsewhere(
    bench: Bench, clock: FakeClock
) -> None:
    await bench.orphans.look(a_view(DRIVE))
    await clock.advance(GRACE_S)
    await bench.orphans.look(a_view(DRIVE))
    assert "falcon has it assigned to port 30h, which leads here" in bench.orphans.troubles()["S1"]
    # Nobody scans for it for ever.
    await clock.advance(GRACE_S)
    await bench.orphans.look(a_view(DRIVE))
    assert bench.scans == ["S1"]
    await bench.orphans.look(a_view())
    assert bench.orphans.troubles() == {}


async def test_a_scan_that_the_kernel_fails_at_is_a_trouble_and_ends_nothing(bench: Bench, clock: FakeClock) -> None:
    await bench.orphans.look(a_view(DRIVE))
    await clock.advance(GRACE_S)
    bench.broken = True
    await bench.orphans.look(a_view(DRIVE))
    assert bench.scans == ["S1"]
    assert "S1" in bench.orphans.troubles()


async def test_the_grace_time_goes_on_over_a_restart(bench: Bench, clock: FakeClock) -> None:
    bench.pci.plug(PORT_A, drive("S1"))
    await bench.orphans.look(a_view(DRIVE))
    await clock.advance(GRACE_S)
    await bench.made().look(a_view(DRIVE))
    assert bench.scans == ["S1"]


async def test_what_is_being_moved_is_no_orphan(bench: Bench, clock: FakeClock) -> None:
    bench.moved.add("S1")
    await bench.orphans.look(a_view(DRIVE))
    await clock.advance(GRACE_S)
    await bench.orphans.look(a_view(DRIVE))
    assert bench.scans == []


async def test_what_is_of_another_node_is_no_orphan_of_this_one(bench: Bench, clock: FakeClock) -> None:
    other = FabricDevice(id="S2", handle="001500", kind=DeviceKind.NVME, serial="S2", port="31h")
    await bench.orphans.look(a_view(other))
    await clock.advance(GRACE_S)
    await bench.orphans.look(a_view(other))
    assert bench.scans == []


async def test_a_device_without_a_name_is_there_while_one_without_a_name_is(bench: Bench, clock: FakeClock) -> None:
    bench.pci.plug(PORT_B, plain(), announce=True)
    await bench.orphans.look(a_view(PLAIN))
    await clock.advance(GRACE_S)
    await bench.orphans.look(a_view(PLAIN))
    assert bench.scans == []
    bench.pci.unplug(PORT_B)
    await bench.orphans.look(a_view(PLAIN))
    await clock.advance(GRACE_S)
    await bench.orphans.look(a_view(PLAIN))
    assert bench.scans == ["001400"]
