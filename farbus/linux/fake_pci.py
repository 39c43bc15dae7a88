"""The fake of the PCI door: a sysfs tree in a directory, in the kernel's own form, and a kernel that acts on it.

What is read is read by the real door's code; only what is written is answered
here, as Linux 6.1 did in a guest with QEMU's ports.  Everything lies in files,
so that a process that is killed finds the machine as it was: ``sys`` and
``proc`` are the machine's, ``behind.json`` says what is electrically behind
each port, whether the kernel knows of it or not.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from farbus.errors import Conflict, NotFound, Unavailable
from farbus.linux.pci import KernelPci
from farbus.model.pci import STANDARD_BARS, Address, Region, Space
from farbus.model.value import Value, from_json, to_json

_FLAGS = {Space.IO: 0x40101, Space.MEMORY: 0x40200, Space.PREFETCHABLE: 0x42208}
_MEM_64 = 0x100004
_WINDOW_FLAGS = (0x101, 0x200, 0x102201)


class FakeFunction(Value, frozen=True, kw_only=True):
    """What a function is, wherever it is plugged in.  ``bars`` have sizes; where they lie is the kernel's matter."""

    vendor: int
    device: int
    pci_class: int
    driver: str = ""
    bars: tuple[Region, ...] = ()
    serial: str = ""
    """Device Serial Number."""
    drive_serial: str = ""
    """For an NVMe controller: it gets a controller and a namespace of its own."""
    model: str = "FARBUS Test Drive"


FakeDevice = tuple[FakeFunction, ...]
"""All functions of one device."""


class FakePort(Value, frozen=True, kw_only=True):
    """A bridge: ``bus`` is the one below it, the windows are (start, size) of I/O, memory, prefetchable memory."""

    address: str
    bus: int
    io: tuple[int, int] = (0, 0)
    memory: tuple[int, int] = (0, 0)
    prefetchable: tuple[int, int] = (0, 0)
    slot: str = ""
    vendor: int = 0x1B36
    device: int = 0x000C


def bar(index: int, size: int, space: Space = Space.MEMORY, *, wide: bool = True) -> Region:
    """Return a BAR that nobody has placed yet."""
    return Region(index=index, space=space, start=0, size=size, wide=wide, assigned=False)


class FakePci(KernelPci):
    """A machine of ports and devices in ``directory``.

    Tests set what goes wrong: ``hang`` lets removals begin and never end,
    ``no_driver`` and ``no_room`` let functions come up without, ``refuse``
    makes the next writes fail.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        super().__init__(sys=directory / "sys", proc=directory / "proc", modules=directory / "modules")
        self.hang = False
        self.no_driver = False
        self.no_room = False
        self.refuse = ""
        self.lazy = False
        """Whether what a port announces gets no addresses, as where there is too little room until the next scan."""
        self.writes: list[str] = []
        for name in ("sys/bus/pci/devices", "sys/bus/pci/slots", "sys/bus/pci/drivers", "sys/class/nvme", "proc"):
            (directory / name).mkdir(parents=True, exist_ok=True)

    # Building the machine.

    def add_port(self, port: FakePort, *, parent: str = "") -> None:
        """Build a bridge, on the root bus or below another one."""
        address = Address.parse(port.address)
        place = self._new_place(address, parent)
        windows = (port.io, port.memory, port.prefetchable, (0, 0))
        lines = [_NO_REGION] * (STANDARD_BARS + 1)
        for (start, size), flags in zip(windows, (*_WINDOW_FLAGS, 0), strict=True):
            lines.append(_line(start, start + size - 1, flags) if size else _NO_REGION)
        below = f"{address.domain:04x}:{port.bus:02x}"
        self._write_function(place, FakeFunction(vendor=port.vendor, device=port.device, pci_class=0x060400), lines)
        _put(place / "secondary_bus_number", f"{port.bus}\n")
        _put(place / "subordinate_bus_number", f"{port.bus}\n")
        _put(place / "pci_bus" / below / "rescan", "")
        _link(place / "driver", self._driver("pcieport"))
        if port.slot:
            slot = self._sys / "bus/pci/slots" / port.slot
            for name, text in (("address", f"{below}:00\n"), ("power", "0\n"), ("adapter", "0\n"), ("latch", "0\n")):
                _put(slot / name, text)

    def plug(self, port: str, device: Sequence[FakeFunction], *, announce: bool = False) -> None:
        """Put a device behind a port; the kernel sees it when it looks, at once where the port announces it."""
        self._behind({**self._plugged(), port: [json.loads(to_json(function)) for function in device]})
        self._set_slot(port, occupied=True)
        if announce:
            before, self.no_room = self.no_room, self.no_room or self.lazy
            self._enumerate(port)
            self.no_room = before

    def unplug(self, port: str, *, surprise: bool = True) -> None:
        """Take away what is behind a port; a kernel that is surprised forgets the functions by itself."""
        self._behind({name: device for name, device in self._plugged().items() if name != port})
        self._set_slot(port, occupied=False)
        if surprise:
            for function in self.tree().below(port):
                self._forget(function.address)

    def plugged(self, port: str) -> FakeDevice:
        """Return what is behind a port."""
        return tuple(from_json(json.dumps(one), FakeFunction) for one in self._plugged().get(port, ()))

    # What the kernel is told.

    async def _write(self, path: Path, value: str, what: str) -> None:
        await asyncio.sleep(0)
        if not self._act(path, value, what):
            await asyncio.get_running_loop().create_future()

    def _act(self, path: Path, value: str, what: str) -> bool:
        """Do what a write does; say whether it comes back."""
        self.writes.append(what)
        if self.refuse:
            raise Unavailable(f"{what}: {self.refuse}")
        if not path.exists():
            raise NotFound(f"{what}: No such file or directory")
        if any(function.removing for function in self.tree().functions):
            # All removals and scans wait for one lock (pci_rescan_remove_lock).
            if path.name == "remove":
                path.unlink()
            return False
        if path.name == "remove":
            address = path.parent.name
            if self.hang:
                path.unlink()
                (path.parent / "driver").unlink(missing_ok=True)
                return False
            self._forget(address)
        elif path.name == "rescan":
            # pci_bus/0000:01/rescan below the bridge's directory.
            self._enumerate(path.parents[2].name)
        elif path.name == "power":
            path.write_text(f"{value}\n", encoding="ascii")
        return True

    def _enumerate(self, port: str) -> None:
        """Find what is behind a port, as far as it is not known, and give it addresses and drivers."""
        known = {function.at.function for function in self.tree().below(port)}
        place = (self._sys / "bus/pci/devices" / port).resolve(strict=True)
        bus = int((place / "secondary_bus_number").read_text(encoding="ascii"))
        windows = self.tree().at(port).windows
        free = {window.space: window.start for window in windows}
        for below in self.tree().below(port):
            for region in below.bars:
                free[region.space] = max(free.get(region.space, 0), region.end)
        for number, function in enumerate(self.plugged(port)):
            if number in known:
                continue
            lines = [_NO_REGION] * (STANDARD_BARS + 1)
            for region in sorted(function.bars, key=lambda one: -one.size):
                lines[region.index] = self._place_bar(region, windows, free)
            address = Address(Address.parse(port).domain, bus, 0, number)
            where = self._new_place(address, port)
            self._write_function(where, function, lines)
            if function.driver and not self.no_driver:
                _link(where / "driver", self._driver(function.driver))
                if function.drive_serial:
                    self._add_drive(where, str(address), function)
        self._set_slot(port, powered=True)

    def _place_bar(self, region: Region, windows: Iterable[Region], free: dict[Space, int]) -> str:
        flags = _FLAGS[region.space] | (_MEM_64 if region.wide else 0)
        space = region.space if any(window.space is region.space for window in windows) else Space.MEMORY
        window = next((window for window in windows if window.space is space), None)
        start = -(-free.get(space, 0) // region.size) * region.size
        if self.no_room or window is None or start + region.size > window.end:
            # reset_resource(): nothing is left of it but the bits in the register.
            return _NO_REGION
        free[space] = start + region.size
        return _line(start, start + region.size - 1, flags)

    def _forget(self, address: str) -> None:
        entry = self._sys / "bus/pci/devices" / address
        if not entry.is_symlink():
            return
        place = entry.resolve()
        for name in os.listdir(place / "nvme") if (place / "nvme").is_dir() else ():
            (self._sys / "class/nvme" / name).unlink(missing_ok=True)
            (self._sys / "class/block" / f"{name}n1").unlink(missing_ok=True)
        entry.unlink()
        shutil.rmtree(place)

    # Files.

    def _new_place(self, address: Address, parent: str) -> Path:
        top = self._sys / "devices" / f"pci{address.domain:04x}:{address.bus:02x}"
        above = (self._sys / "bus/pci/devices" / parent).resolve(strict=True) if parent else top
        place = above / str(address)
        if place.exists():
            raise Conflict(f"{address} is there already")
        place.mkdir(parents=True)
        return place

    def _write_function(self, place: Path, function: FakeFunction, lines: Sequence[str]) -> None:
        for name, text in (
            ("vendor", f"0x{function.vendor:04x}\n"),
            ("device", f"0x{function.device:04x}\n"),
            ("class", f"0x{function.pci_class:06x}\n"),
            ("subsystem_vendor", "0x1af4\n"),
            ("subsystem_device", "0x1100\n"),
            ("resource", "".join(f"{line}\n" for line in lines)),
            ("numa_node", "0\n"),
            ("power_state", "D0\n"),
            ("current_link_speed", "16.0 GT/s PCIe\n"),
            ("current_link_width", "16\n"),
            ("max_link_speed", "16.0 GT/s PCIe\n"),
            ("max_link_width", "16\n"),
            ("rescan", ""),
        ):
            _put(place / name, text)
        (place / "config").write_bytes(_config(function))
        _link(place / "subsystem", self._sys / "bus/pci")
        # Both make it visible, the link last: what is half there is not listed.
        _put(place / "remove", "")
        _link(self._sys / "bus/pci/devices" / place.name, place)

    def _add_drive(self, place: Path, address: str, function: FakeFunction) -> None:
        taken = set(os.listdir(self._sys / "class/nvme"))
        name = next(name for number in range(1000) if (name := f"nvme{number}") not in taken)
        controller = place / "nvme" / name
        for attribute, text in (
            ("serial", f"{function.drive_serial:<20}\n"),
            ("model", f"{function.model:<40}\n"),
            ("transport", "pcie\n"),
            ("address", f"{address}\n"),
            ("subsysnqn", f"nqn.2014.08.org.nvmexpress:1af4{function.drive_serial}\n"),
            ("state", "live\n"),
            ("dev", f"244:{name.removeprefix('nvme')}\n"),
            (f"{name}n1/size", "131072\n"),
            (f"{name}n1/dev", f"259:{name.removeprefix('nvme')}\n"),
        ):
            _put(controller / attribute, text)
        _link(controller / "device", place)
        _link(self._sys / "class/nvme" / name, controller)
        _link(self._sys / "class/block" / f"{name}n1", controller / f"{name}n1")

    def _driver(self, name: str) -> Path:
        place = self._sys / "bus/pci/drivers" / name
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _plugged(self) -> dict[str, Any]:
        file = self.directory / "behind.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def _behind(self, plugged: dict[str, Any]) -> None:
        new = self.directory / f"behind.{os.getpid()}"
        new.write_text(json.dumps(plugged))
        new.replace(self.directory / "behind.json")

    def _set_slot(self, port: str, *, occupied: bool | None = None, powered: bool | None = None) -> None:
        slot = self.tree().slot_below(port)
        if slot is None:
            return
        place = self._sys / "bus/pci/slots" / slot.name
        if occupied is not None:
            _put(place / "adapter", f"{int(occupied)}\n")
            _put(place / "power", f"{int(occupied)}\n")
        if powered is not None:
            _put(place / "power", f"{int(powered)}\n")


_NO_REGION = "0x0000000000000000 0x0000000000000000 0x0000000000000000"


def _line(start: int, end: int, flags: int) -> str:
    return f"0x{start:016x} 0x{end:016x} 0x{flags:016x}"


def _config(function: FakeFunction) -> bytes:
    """Return a configuration space with the registers that are looked at."""
    data = bytearray(0x100)
    data[0:4] = function.vendor.to_bytes(2, "little") + function.device.to_bytes(2, "little")
    data[0x0E] = 1 if function.pci_class >> 8 == 0x0604 else 0
    for region in function.bars:
        low = 1 if region.space is Space.IO else (0b100 if region.wide else 0)
        low |= 0b1000 if region.space is Space.PREFETCHABLE else 0
        data[0x10 + 4 * region.index] = low
    if function.serial:
        number = bytes(int(part, 16) for part in reversed(function.serial.split("-")))
        data += (0x00010003).to_bytes(4, "little") + number
    return bytes(data)


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))
