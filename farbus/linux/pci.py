"""The PCI door: the tree as sysfs shows it, and the few things that can be told the kernel to do with it.

Reading is quick and done where it is called.  Writing may block for ever: a
driver's remove function that waits for a reference, or the one lock of the
kernel for all removals and scans behind it.  So each write is made in a
disposable child (:mod:`farbus.linux.disposable`).

Sources: Documentation/ABI/testing/sysfs-bus-pci and drivers/pci/pci-sysfs.c,
drivers/pci/slot.c, drivers/pci/remove.c of Linux 6.1.
"""

from __future__ import annotations

import errno
import fnmatch
import os
from pathlib import Path
from typing import Protocol

from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, NotPermitted, Unavailable
from farbus.linux.disposable import run_disposable
from farbus.model.pci import (
    CLASS_BRIDGE,
    CONFIG_BYTES,
    Address,
    Function,
    PcieLink,
    PciTree,
    Regions,
    Slot,
    device_serial,
    parse_apertures,
    parse_regions,
    parse_speed,
    unassigned_bars,
)

HEADER_BYTES = 64
"""What everybody may read of a function's configuration space; the rest is root's."""


class Pci(Protocol):
    """One machine's PCI tree.  What is written may be repeated."""

    def tree(self) -> PciTree:
        """Return all functions and slots as they are now.  What disappears meanwhile is left out."""
        ...

    def driver_for(self, *, vendor: int, device: int, pci_class: int) -> str:
        """Return the module or driver that takes such a function; an empty string where this kernel has none."""
        ...

    def release(self) -> str:
        """Return the kernel's release and options, as an error may want to tell them."""
        ...

    async def rescan_below(self, bridge: str) -> None:
        """Have the kernel look what is below a bridge, and nowhere else.

        Returns when drivers that were loaded have been bound.  Where nothing is
        there yet, the kernel lays the bridge's windows anew for what it finds.
        Raises :class:`NotFound` where there is no such bridge.
        """
        ...

    async def remove(self, address: str) -> None:
        """Have the kernel let go of a function: unbind its driver and forget it.  Nothing happens where it is gone.

        Raises :class:`Conflict` where another removal of it has begun and not ended.
        """
        ...

    async def set_power(self, slot: str, *, on: bool) -> None:
        """Switch a slot's power.  The kernel then adds or removes what is in it."""
        ...


class KernelPci:
    """Reads a sysfs tree below ``sys`` and tells the kernel what to do by writing there."""

    def __init__(self, *, sys: str | Path = "/sys", proc: str | Path = "/proc", modules: str | Path = "") -> None:
        self._sys = Path(sys)
        self._proc = Path(proc)
        self._modules = Path(modules or f"/lib/modules/{os.uname().release}")
        self._serials: dict[str, tuple[int, str]] = {}
        """Serial number by address, with the inode of the directory that it was read in: another is another device."""

    # Reading.

    def tree(self) -> PciTree:
        """Read bus/pci/devices, bus/pci/slots and what root may read of /proc/iomem."""
        functions = []
        for entry in _children(self._sys / "bus/pci/devices"):
            try:
                functions.append(self._function(entry))
            except (OSError, ValueError, InvalidInput):
                # It is gone, or going: its next uevent has the tree read again.
                continue
        found = {function.address for function in functions}
        self._serials = {address: kept for address, kept in self._serials.items() if address in found}
        functions.sort(key=lambda function: function.at)
        slots = tuple(slot for entry in _children(self._sys / "bus/pci/slots") if (slot := self._slot(entry)))
        roots = {function.at.bus_name for function in functions if not function.parent}
        return PciTree(
            functions=tuple(functions),
            slots=slots,
            apertures=parse_apertures(_text(self._proc / "iomem"), roots=roots),
        )

    def _function(self, entry: Path) -> Function:
        address = Address.parse(entry.name)
        # A link into /sys/devices, where directories lie in each other as the functions do.
        place = entry.resolve(strict=True)
        pci_class = _hexadecimal(place / "class")
        bridge = pci_class >> 8 == CLASS_BRIDGE
        regions = parse_regions((place / "resource").read_text(encoding="ascii"), bridge=bridge)
        parent = place.parent.name
        secondary = _number(place / "secondary_bus_number", 0) if bridge else 0
        vendor = _hexadecimal(place / "vendor")
        return Function(
            address=str(address),
            vendor=vendor,
            device=_hexadecimal(place / "device"),
            pci_class=pci_class,
            subsystem_vendor=_hexadecimal(place / "subsystem_vendor", 0),
            subsystem_device=_hexadecimal(place / "subsystem_device", 0),
            parent=parent if _is_address(parent) else "",
            driver=_link_name(place / "driver"),
            numa_node=_number(place / "numa_node", -1),
            iommu_group=_link_name(place / "iommu_group"),
            link=_link(place),
            bars=regions.bars,
            windows=regions.windows,
            secondary_bus=f"{address.domain:04x}:{secondary:02x}" if secondary else "",
            physical=_link_name(place / "physfn"),
            serial=self._serial(str(address), place),
            bars_unassigned=self._unassigned(place, regions),
            # The attribute goes first when somebody writes to it (device_remove_file_self), the directory last.
            # Virtual functions have neither of the two (pci_dev_hp_attrs_are_visible).
            removing=(place / "rescan").exists() and not (place / "remove").exists(),
        )

    def _serial(self, address: str, place: Path) -> str:
        inode = place.stat().st_ino
        known = self._serials.get(address)
        if known is None or known[0] != inode:
            known = inode, device_serial(_config(place, CONFIG_BYTES))
            self._serials[address] = known
        return known[1]

    def _unassigned(self, place: Path, regions: Regions) -> tuple[int, ...]:
        return unassigned_bars(_config(place, HEADER_BYTES), bars=regions.bars)

    def _slot(self, entry: Path) -> Slot | None:
        address = _text(entry / "address")
        if not address:
            return None
        power, adapter = (_number(entry / name, -1) for name in ("power", "adapter"))
        return Slot(
            name=entry.name,
            address=address,
            powered=None if power < 0 else bool(power),
            occupied=None if adapter < 0 else bool(adapter),
            latch=_number(entry / "latch", -1),
            # Where there is no indicator, the file is there and can't be read (EINVAL).
            attention=_number(entry / "attention", -1),
        )

    def driver_for(self, *, vendor: int, device: int, pci_class: int) -> str:
        """Look in modules.alias, and for what is built in at what the kernel has registered."""
        base, sub, interface = pci_class >> 16 & 0xFF, pci_class >> 8 & 0xFF, pci_class & 0xFF
        wanted = f"pci:v{vendor:08X}d{device:08X}sv00000000sd00000000bc{base:02X}sc{sub:02X}i{interface:02X}"
        prefixes = (f"pci:v{vendor:08X}", "pci:v*")
        for line in _text(self._modules / "modules.alias").splitlines():
            words = line.split()
            if len(words) == 3 and words[1].startswith(prefixes) and fnmatch.fnmatchcase(wanted, words[1]):
                return words[2]
        built_in = {0x010802: "nvme"}.get(pci_class, "")
        return built_in if built_in and (self._sys / "bus/pci/drivers" / built_in).exists() else ""

    def release(self) -> str:
        """Read /proc/sys/kernel/osrelease and /proc/cmdline."""
        return f"{_text(self._proc / 'sys/kernel/osrelease')} {_text(self._proc / 'cmdline')}".strip()

    # Writing.

    async def rescan_below(self, bridge: str) -> None:
        """Write to the ``rescan`` of the bus below, not of the bridge, which would scan the bus that it sits on."""
        place = self._place(bridge)
        buses = _children(place / "pci_bus") if place is not None else []
        if not buses:
            raise NotFound(f"rescan below {bridge}: no such bridge", hint="lspci -t shows the bridges")
        await self._write(buses[0] / "rescan", "1", f"rescan below {bridge}")

    async def remove(self, address: str) -> None:
        """Write to the function's ``remove``."""
        place = self._place(address)
        if place is None:
            return
        if not (place / "remove").exists():
            if not place.exists():
                return
            raise Conflict(f"remove {address}: the kernel is removing it already", hint="see dmesg")
        try:
            await self._write(place / "remove", "1", f"remove {address}")
        except NotFound:
            # Somebody was faster; whether it is gone is for the caller to look.
            return

    async def set_power(self, slot: str, *, on: bool) -> None:
        """Write to the slot's ``power``."""
        await self._write(self._sys / "bus/pci/slots" / slot / "power", "1" if on else "0", f"power of slot {slot}")

    def _place(self, address: str) -> Path | None:
        try:
            return (self._sys / "bus/pci/devices" / address).resolve(strict=True)
        except OSError:
            return None

    async def _write(self, path: Path, value: str, what: str) -> None:
        try:
            await run_disposable(write_attribute, str(path), value)
        except OSError as error:
            raise _converted(what, error) from error


def write_attribute(path: str, value: str) -> None:
    """Write a sysfs attribute with one write(2), as the kernel takes it.  May block for ever."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode("ascii"))
    finally:
        os.close(descriptor)


def _converted(what: str, error: OSError) -> FarbusError:
    message = f"{what}: {error.strerror}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NotPermitted(message, hint="only root may, outside of containers")
    if error.errno in (errno.ENOENT, errno.ENODEV):
        return NotFound(message)
    if error.errno == errno.EBUSY:
        return Conflict(message)
    return Unavailable(message, hint="see dmesg")


def _link(place: Path) -> PcieLink | None:
    width = _text(place / "max_link_width")
    if not width:
        return None
    return PcieLink(
        speed_gt_s=parse_speed(_text(place / "current_link_speed")),
        width=_number(place / "current_link_width", 0),
        max_speed_gt_s=parse_speed(_text(place / "max_link_speed")),
        # 255 stands for a width that the device does not tell.
        max_width=_number(place / "max_link_width", 0) % 255,
    )


def _config(place: Path, count: int) -> bytes:
    """Read the configuration space; not of a function without power, which that would wake."""
    if _text(place / "power_state") == "D3cold":
        return b""
    try:
        with open(place / "config", "rb") as file:
            return file.read(count)
    except OSError:
        return b""


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _is_address(text: str) -> bool:
    try:
        Address.parse(text)
    except InvalidInput:
        return False
    return True


def _text(path: Path) -> str:
    """Return a file's text; an empty string where it is not there, or says that it has nothing to say."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path, default: int) -> int:
    try:
        return int(_text(path))
    except ValueError:
        return default


def _hexadecimal(path: Path, default: int | None = None) -> int:
    if default is None:
        return int(path.read_text(encoding="ascii"), 16)
    try:
        return int(_text(path), 16)
    except ValueError:
        return default


def _link_name(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:
        return ""
