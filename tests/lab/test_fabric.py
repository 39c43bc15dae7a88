"""Devices move between guests through an emulated chassis: QEMU's hot-plug, Debian's kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from farbus.hotplug.fabric.config import ChassisAccess, make_driver
from farbus.hotplug.fabric.emulator.config import ChassisConfig, DeviceConfig, EmulatorConfig, PortConfig, QemuDevice
from farbus.hotplug.fabric.emulator.run import BackendKind, serving
from farbus.hotplug.fabric.service import ChassisService
from farbus.linux.clock import SystemClock
from farbus.model.fabric import Dialect
from tests.lab.guest import Guest, patient
from tests.lab.nodes import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(900))]

NODES = {"30h": "a", "31h": "b"}
DRIVE, CARD = "001300", "002300"
CONTENT = b"farbus"
MOVES = 6

# QEMU's pci-testdev (docs/specs/pci-testdev.txt): a plain PCI function that no driver takes.
HAS_BOTH = (
    "grep -qs DRIVE1 /sys/class/nvme/*/serial && [ -b /dev/nvme0n1 ]"
    " && grep -l 0x0005 $(grep -ls 0x1b36 /sys/bus/pci/devices/*/vendor | sed s/vendor/device/)"
)
HAS_NEITHER = (
    "! grep -qs DRIVE1 /sys/class/nvme/*/serial"
    " && ! grep -l 0x0005 $(grep -ls 0x1b36 /sys/bus/pci/devices/*/vendor | sed s/vendor/device/)"
)


def make_config(directory: Path, guests: Mapping[str, Guest]) -> EmulatorConfig:
    image = directory / "drive.img"
    image.write_bytes(CONTENT.ljust(8 << 20, b"\0"))
    drive = QemuDevice(
        driver="nvme",
        properties={"serial": "DRIVE1"},
        blockdev={"driver": "raw", "file": {"driver": "file", "filename": str(image)}},
    )
    chassis = ChassisConfig(
        name="lab",
        h3="127.0.0.1:0",
        ports=tuple(
            PortConfig(id=port, node=node, qmp=str(guests[node].monitor), slots=("port1", "port2"))
            for port, node in NODES.items()
        ),
        devices=(
            DeviceConfig(id=DRIVE, type="NVME", serial="DRIVE1", qemu=drive),
            DeviceConfig(id=CARD, type="PCI", qemu=QemuDevice(driver="pci-testdev")),
        ),
    )
    return EmulatorConfig(chassis=(chassis,), speed=0.0)


def test_a_drive_and_a_card_move_between_guests(lab: Lab, tmp_path: Path, tell: Callable[[str], None]) -> None:
    guests = dict(zip(NODES.values(), lab.nodes(*NODES.values()), strict=True))
    asyncio.run(move(make_config(tmp_path, guests), tmp_path, guests, tell))


async def move(
    config: EmulatorConfig, directory: Path, guests: Mapping[str, Guest], tell: Callable[[str], None]
) -> None:
    async def until(node: str, script: str) -> None:
        await asyncio.to_thread(guests[node].until, script)

    async with serving(config, directory, backend=BackendKind.QEMU, tell=tell) as served:
        access = ChassisAccess(name="lab", dialect=Dialect.H3, url=served[0].url, ports=NODES)
        driver = make_driver(access, clock=SystemClock())
        async with ChassisService(driver, clock=SystemClock(), tell=tell).running() as service:
            for turn in range(MOVES):
                node, other = ("a", "b") if turn % 2 == 0 else ("b", "a")
                for device in (DRIVE, CARD):
                    assert (await service.move(device, node)).port in NODES
                await until(node, HAS_BOTH)
                await until(other, HAS_NEITHER)
                read = await asyncio.to_thread(guests[node].shell, f"head -c {len(CONTENT)} /dev/nvme0n1")
                assert read.stdout == CONTENT.decode()
            # The guest that has them loses power: the chassis can give them to the other.
            await asyncio.to_thread(guests["b"].power_off)
            for device in (DRIVE, CARD):
                await service.move(device, "a")
            await until("a", HAS_BOTH)
