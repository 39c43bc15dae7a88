"""Machines for tests: recorded ones of tests/machines, and some built of the fake's ports and devices."""

from __future__ import annotations

import json
from pathlib import Path

from farbus.linux.fake_pci import FakeFunction, FakePci, FakePort, bar
from farbus.model.pci import Space

RECORDED = Path(__file__).resolve().parents[1] / "machines"

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def unpack(name: str, directory: Path) -> Path:
    """Write a recorded tree below ``directory`` and return it.

    A recording holds, by path, a file's text, a link's target, or what of a
    configuration space is not zero, in lines of 16 bytes.
    """
    for path, what in json.loads((RECORDED / f"{name}.json").read_text()).items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(what, str):
            place.write_text(what)
        elif "link" in what:
            place.symlink_to(what["link"])
        else:
            data = bytearray(what["config"])
            for offset, line in what["lines"].items():
                data[int(offset, 16) : int(offset, 16) + 16] = bytes.fromhex(line)
            place.write_bytes(data)
    return directory


def drive(serial: str = "S1", *, size: int = 16 * KIB) -> tuple[FakeFunction, ...]:
    """An NVMe drive as QEMU's."""
    return (
        FakeFunction(
            vendor=0x1B36, device=0x0010, pci_class=0x010802, driver="nvme", bars=(bar(0, size),), drive_serial=serial
        ),
    )


def gpu(serial: str = "") -> tuple[FakeFunction, ...]:
    """A GPU of 80 GB with its audio function: 16 MiB, 128 GiB and 32 MiB of addresses, as lspci tells of an H100."""
    return (
        FakeFunction(
            vendor=0x10DE,
            device=0x2330,
            pci_class=0x030200,
            driver="nvidia",
            serial=serial,
            bars=(
                bar(0, 16 * MIB),
                bar(2, 128 * GIB, Space.PREFETCHABLE),
                bar(4, 32 * MIB, Space.PREFETCHABLE),
            ),
        ),
        FakeFunction(
            vendor=0x10DE, device=0x22BA, pci_class=0x040300, driver="snd_hda_intel",
            bars=(bar(0, 16 * KIB, wide=False),),
        ),
    )  # fmt: skip


def plain(serial: str = "", *, driver: str = "") -> tuple[FakeFunction, ...]:
    """A device that nobody drives, as QEMU's edu."""
    return (
        FakeFunction(
            vendor=0x1234, device=0x11E8, pci_class=0x00FF00, driver=driver, serial=serial,
            bars=(bar(0, MIB, wide=False),),
        ),
    )  # fmt: skip


PORT_A, PORT_B = "0000:00:03.0", "0000:00:04.0"


def two_ports(directory: Path) -> FakePci:
    """A node with two hot-plug ports of the kernel's usual 2 MiB windows."""
    pci = FakePci(directory)
    for number, address in enumerate((PORT_A, PORT_B), start=1):
        pci.add_port(
            FakePort(
                address=address,
                bus=number,
                io=(0x1000 * number, 0x1000),
                memory=(0xFD000000 + number * 0x200000, 0x200000),
                prefetchable=(0xFE000000 + number * 0x200000, 0x200000),
                slot=str(number),
            )
        )
    return pci


def server(directory: Path) -> FakePci:
    """A server with eight GPUs, with their audio functions, behind one PCI Express switch."""
    pci = FakePci(directory)
    pci.add_port(
        FakePort(address="0000:15:01.0", bus=0x16, memory=(0xB0000000, 1 * GIB), prefetchable=(2**45, 4096 * GIB))
    )
    pci.add_port(
        FakePort(address="0000:16:00.0", bus=0x17, memory=(0xB0000000, 1 * GIB), prefetchable=(2**45, 4096 * GIB)),
        parent="0000:15:01.0",
    )
    for number in range(8):
        port = f"0000:17:{number:02x}.0"
        pci.add_port(
            FakePort(
                address=port,
                bus=0x18 + number,
                memory=(0xB0000000 + number * 64 * MIB, 64 * MIB),
                prefetchable=(2**45 + number * 256 * GIB, 256 * GIB),
                slot=str(21 + number),
            ),
            parent="0000:16:00.0",
        )
        pci.plug(port, gpu(f"00-00-00-00-00-00-00-{number:02x}" if number else "00-00-00-00-00-00-00-aa"))
        pci._enumerate(port)
    return pci
