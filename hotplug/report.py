"""What people are shown of a machine's PCI tree: a row for each function, and what is wrong with it.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from farbus.hotplug.windows import RESERVE_OPTION, cure_for
from farbus.model.holders import Look
from farbus.model.pci import CLASS_NVME, CLASSES_DISPLAY, Function, Identity, PciTree, Region, Space
from farbus.model.quantity import format_bytes
from farbus.model.value import Value

CLASS_ACCELERATOR = 0x1200

_CLASSES = {
    0x0106: "SATA", 0x0108: "NVMe", 0x0180: "storage", 0x0200: "network", 0x0207: "InfiniBand", 0x0300: "display",
    0x0302: "GPU", 0x0403: "audio", 0x0600: "host bridge", 0x0601: "ISA bridge", 0x0604: "bridge", 0x0C03: "USB",
    0x0C05: "SMBus", CLASS_ACCELERATOR: "accelerator",
}  # fmt: skip
"""PCI Code and ID Assignment Specification: base class and subclass."""

GPU_WINDOW_BYTES = 1 << 30
"""Less than this of prefetchable addresses takes no GPU of a data centre: theirs begin at 16 GiB."""


class PciRow(Value, frozen=True, kw_only=True):
    """A function as ``farbus devices --tree`` shows it; ``depth`` counts the bridges above it."""

    address: str
    depth: int
    kind: str
    ids: str
    device: str = ""
    """The device's identity; only its first function has it."""
    weak: bool = False
    """Whether that names a place rather than a device."""
    driver: str = ""
    link: str = ""
    slot: str = ""
    port_of: str = ""
    """Of a hot-plug port: the slot that it leads to, also while that is empty."""
    numa_node: int = -1
    iommu_group: str = ""
    windows: tuple[Region, ...] = ()
    bars: tuple[Region, ...] = ()
    lease: str = ""
    used_by: str = ""
    holders: tuple[str, ...] = ()
    trouble: str = ""


class Use(Value, frozen=True, kw_only=True):
    """What the cluster says of a device of this node."""

    lease: str = ""
    used_by: str = ""


def kind_of(function: Function) -> str:
    """Return what a function is, in a word."""
    return _CLASSES.get(function.pci_class >> 8, f"class {function.pci_class >> 8:04x}")


def is_worth_a_look(function: Function) -> bool:
    """Say whether people ask who holds such a function's device."""
    return function.pci_class == CLASS_NVME or function.pci_class >> 8 in (*CLASSES_DISPLAY, CLASS_ACCELERATOR)


def rows(
    tree: PciTree, names: Mapping[str, Identity], *, uses: Mapping[str, Use], looks: Mapping[str, Look]
) -> Iterator[PciRow]:
    """Yield the functions so that each stands beneath the bridge above it.

    ``names`` and ``looks`` are by the address of a device's first function,
    ``uses`` by a device's name, or by an address where that names it.
    """
    for top in tree.below(""):
        for function in tree.subtree(top.address):
            identity = names.get(function.address)
            use = uses.get(identity.name if identity else "") or uses.get(function.address) or Use()
            look = looks.get(function.address, Look())
            slot = tree.slot_of(function.address)
            leads_to = tree.slot_below(function.address) if function.is_bridge else None
            yield PciRow(
                address=function.address,
                depth=len(tree.path_to(function.address)),
                kind=kind_of(function),
                ids=function.ids,
                device=identity.name if identity else "",
                weak=identity is not None and identity.weak,
                driver=function.driver,
                link=str(function.link) if function.link is not None else "",
                slot=slot.name if slot is not None and slot.address == function.at.slot else "",
                port_of=leads_to.name if leads_to is not None else "",
                numa_node=function.numa_node,
                iommu_group=function.iommu_group,
                windows=function.windows,
                bars=function.bars,
                lease=use.lease,
                used_by=use.used_by,
                holders=(*map(str, look.others), *look.unseen),
                trouble=trouble_of(function),
            )


def trouble_of(function: Function) -> str:
    """Say what is wrong with a function; an empty string for nothing."""
    if function.removing:
        return "the kernel has not finished removing it"
    if function.bars_unassigned:
        told = ", ".join(f"BAR {number}" for number in function.bars_unassigned)
        return f"no place for {told}"
    if function.link is not None and function.link.degraded and not function.is_bridge:
        # A port's own link is that of what is below it, which tells the same.
        return f"link {function.link}"
    return ""


class PortRoom(Value, frozen=True, kw_only=True):
    """A hot-plug port and what its windows take."""

    address: str
    slot: str
    memory_bytes: int
    prefetchable_bytes: int
    occupied: bool

    @property
    def takes_gpus(self) -> bool:
        """Say whether a GPU of a data centre may find room, as the windows are now."""
        return self.prefetchable_bytes >= GPU_WINDOW_BYTES

    def __str__(self) -> str:
        return (
            f"{self.address} (slot {self.slot}): {format_bytes(self.memory_bytes)}, "
            f"{format_bytes(self.prefetchable_bytes)} prefetchable"
        )


def hotplug_ports(tree: PciTree) -> tuple[PortRoom, ...]:
    """Return the bridges that lead to a slot."""
    found = []
    for function in tree.functions:
        slot = tree.slot_below(function.address) if function.is_bridge else None
        if slot is None:
            continue
        sizes = {window.space: window.size for window in function.windows if window.assigned}
        found.append(
            PortRoom(
                address=function.address,
                slot=slot.name,
                memory_bytes=sizes.get(Space.MEMORY, 0),
                prefetchable_bytes=sizes.get(Space.PREFETCHABLE, 0),
                occupied=bool(tree.below(function.address)),
            )
        )
    return tuple(found)


def cure_of(tree: PciTree, function: Function) -> str:
    """Say what gives the BARs of a function their places: by how much of what lies below its port."""
    spaces = [bar.space for bar in function.bars if not bar.assigned]
    device = tree.device_of(function.address)
    if spaces:
        return cure_for(spaces[0], device)
    return f"boot with pci=realloc,{RESERVE_OPTION[Space.PREFETCHABLE]}=SIZE of its BARs (lspci -vv)"
