"""``farbus devices --tree``: this machine's PCI tree, with who uses what."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from farbus.cli.listing import Column
from farbus.errors import FarbusError
from farbus.hotplug.parts import known_names
from farbus.hotplug.report import PciRow, Use, is_worth_a_look, rows
from farbus.linux.holders import Machine, look_for_holders
from farbus.linux.pci import KernelPci
from farbus.linux.sysfs import KernelSysfs
from farbus.model.device import DeviceStatus, whole_of
from farbus.model.holders import Look
from farbus.model.pci import PciTree, identities

_OWN = {"farbus.linux.nvml_worker": "NVML worker"}


def read_tree(statuses: tuple[DeviceStatus, ...], *, sys: str = "/sys", proc: str = "/proc") -> tuple[PciRow, ...]:
    """Read this machine's tree.  ``statuses`` are its devices as the cluster knows them; empty where there is none."""
    tree = KernelPci(sys=sys, proc=proc).tree()
    gpus = {status.device.pci_address: whole_of(status.device.id) for status in statuses if not status.device.software}
    gpus = {address: name for address, name in gpus.items() if address and name.startswith("GPU-")}
    names = identities(tree, known=known_names(KernelSysfs(sys).nvme_controllers(), gpus))
    uses: dict[str, Use] = {}
    for status in statuses:
        use = Use(lease=status.lease, used_by=status.used_by)
        uses[whole_of(status.device.id)] = use
        if status.device.pci_address:
            uses[status.device.pci_address] = use
    looks = _looks(tree, sys=sys, proc=proc)
    return tuple(rows(tree, names, uses=uses, looks=looks))


def _looks(tree: PciTree, *, sys: str, proc: str) -> Mapping[str, Look]:
    found = {}
    roots = {"sys": sys, "proc": proc, "dev": "/dev"}
    machine = Machine(roots)
    for device in tree.devices():
        if not any(is_worth_a_look(function) for function in device):
            continue
        try:
            told = look_for_holders(roots, [function.address for function in device], _OWN, machine=machine)
        except (FarbusError, OSError) as error:
            found[device[0].address] = Look(unseen=(str(error),))
            continue
        found[device[0].address] = msgspec.convert(told, Look)
    return found


def _drawn(row: PciRow) -> str:
    # No-break spaces would be copied along; plain ones at the beginning stay, since no cell before it does.
    return f"{'  ' * (row.depth - 1)}└ {row.address}" if row.depth else row.address


TREE_COLUMNS: tuple[Column[PciRow], ...] = (
    Column("FUNCTION", _drawn),
    Column("KIND", lambda row: row.kind),
    Column("DEVICE", lambda row: f"{row.device} (weak)" if row.weak else row.device, identity=True),
    Column("IDS", lambda row: row.ids, wide=True),
    Column("DRIVER", lambda row: row.driver),
    Column("SLOT", lambda row: row.slot or (f"port of {row.port_of}" if row.port_of else "")),
    Column("LINK", lambda row: row.link, wide=True),
    Column("NUMA", lambda row: "" if row.numa_node < 0 else str(row.numa_node), wide=True),
    Column("IOMMU", lambda row: row.iommu_group, wide=True),
    Column("LEASE", lambda row: row.lease),
    Column("USED BY", lambda row: "; ".join(filter(None, (row.used_by, *row.holders, row.trouble)))),
)
