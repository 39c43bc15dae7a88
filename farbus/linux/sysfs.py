"""The sysfs door: PCI functions and NVMe controllers, named by what stays the same.

The root is a parameter, so the same code reads a recorded tree.  A function
or controller that disappears while it is read is left out: it is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from farbus.linux.names import shown
from farbus.model.pci import nvme_name

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_CONTROLLER = re.compile(r"nvme[0-9]+")

# Block sizes in sysfs are in sectors of 512 bytes whatever the device's own (Documentation/ABI/stable/sysfs-block).
SECTOR_BYTES = 512


class PciFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A PCI function; ``pci_class`` is the 24-bit class code, the ids are 16 bits."""

    address: str
    vendor: int
    device: int
    pci_class: int
    driver: str = ""
    numa_node: int = -1


class NvmeController(msgspec.Struct, frozen=True, kw_only=True):
    """An NVMe controller with the capacity of its namespaces in bytes."""

    name: str
    serial: str
    model: str
    transport: str
    address: str
    """PCI address for transport ``pcie``, the transport's own form otherwise."""
    subsystem_nqn: str
    capacity_bytes: int
    numa_node: int = -1


class Sysfs(Protocol):
    """What sysfs says of devices."""

    def pci_functions(self) -> tuple[PciFunction, ...]:
        """Return all PCI functions by address."""
        ...

    def nvme_controllers(self) -> tuple[NvmeController, ...]:
        """Return all NVMe controllers by name."""
        ...


def own_drives(controllers: Iterable[NvmeController]) -> dict[str, NvmeController]:
    """Return the drives on the machine's own bus by their names (:func:`farbus.model.pci.nvme_name`).

    Of several controllers with one name that at the lowest address: a drive with two ports, or with virtual functions,
    has several.  Of two drives that nothing tells apart, one is left out.
    """
    found: dict[str, NvmeController] = {}
    for one in sorted(controllers, key=lambda one: one.address):
        if one.transport == "pcie" and one.serial:
            found.setdefault(nvme_name(one.serial, one.model), one)
    return found


_NO_SUBSYSTEM = frozenset({"(null)", "(efault)"})
"""What the kernel prints of a controller before it has asked it who it is (check_pointer_msg, lib/vsprintf.c)."""


class KernelSysfs:
    """Reads a sysfs tree."""

    def __init__(self, root: str = "/sys") -> None:
        self.root = Path(root)

    def pci_functions(self) -> tuple[PciFunction, ...]:
        """Read bus/pci/devices."""
        found = []
        for directory in _children(self.root / "bus/pci/devices"):
            if not _ADDRESS.fullmatch(directory.name):
                continue
            try:
                found.append(
                    PciFunction(
                        address=directory.name,
                        vendor=int(_text(directory / "vendor"), 16),
                        device=int(_text(directory / "device"), 16),
                        pci_class=int(_text(directory / "class"), 16),
                        driver=_link_name(directory / "driver"),
                        numa_node=_number(directory / "numa_node", -1),
                    )
                )
            except (OSError, ValueError):
                continue
        return tuple(found)

    def nvme_controllers(self) -> tuple[NvmeController, ...]:
        """Read class/nvme; a controller that has not told yet who it is does not count."""
        found = []
        for directory in _children(self.root / "class/nvme"):
            if not _CONTROLLER.fullmatch(directory.name):
                continue
            try:
                serial = _text(directory / "serial")
                if serial in _NO_SUBSYSTEM:
                    continue
                found.append(
                    NvmeController(
                        name=directory.name,
                        # As the firmware of whoever made it has them: any bytes.
                        serial=shown(serial),
                        model=shown(_text(directory / "model")),
                        transport=_text(directory / "transport"),
                        address=_text(directory / "address"),
                        subsystem_nqn=shown(_text(directory / "subsysnqn")),
                        capacity_bytes=self._capacity(directory),
                        numa_node=_number(directory / "numa_node", -1),
                    )
                )
            except OSError:
                continue
        return tuple(found)

    def _capacity(self, controller: Path) -> int:
        # With native multipath the namespaces hang below the subsystem, and below the
        # controller are only paths to them (nvme0c0n1) with the same size.
        pattern = re.compile(rf"{controller.name}(c[0-9]+)?n[0-9]+")
        namespaces = [entry for entry in _children(controller) if pattern.fullmatch(entry.name)]
        return sum(_number(namespace / "size", 0) for namespace in namespaces) * SECTOR_BYTES


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()


def _number(path: Path, default: int) -> int:
    try:
        return int(_text(path))
    except (OSError, ValueError):
        return default


def _link_name(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:
        return ""


class FakeSysfs:
    """Devices that a test sets."""

    def __init__(self, functions: tuple[PciFunction, ...] = (), controllers: tuple[NvmeController, ...] = ()) -> None:
        self.functions = functions
        self.controllers = controllers

    def pci_functions(self) -> tuple[PciFunction, ...]:
        """Return the set functions by address."""
        return tuple(sorted(self.functions, key=lambda function: function.address))

    def nvme_controllers(self) -> tuple[NvmeController, ...]:
        """Return the set controllers by name."""
        return tuple(sorted(self.controllers, key=lambda controller: controller.name))
