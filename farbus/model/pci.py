"""The PCI tree of a machine as the kernel tells it: functions, bridges with their windows, slots, and who is who.

Pure values and what can be read from the kernel's texts without a machine.
Sources: include/linux/ioport.h, drivers/pci/pci-sysfs.c and
Documentation/ABI/testing/sysfs-bus-pci of Linux; PCI Express Base
Specification, "Device Serial Number Extended Capability".

An address (``0000:17:00.0``) says where a function is now and nothing else:
it changes when something is plugged in elsewhere.  Devices are named by
:class:`Identity`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from farbus.errors import InvalidInput, NotFound
from farbus.model.value import Value

# include/linux/ioport.h
_IORESOURCE_IO, _IORESOURCE_MEM = 0x100, 0x200
_IORESOURCE_PREFETCH = 0x2000
_IORESOURCE_MEM_64 = 0x100000
_IORESOURCE_DISABLED, _IORESOURCE_UNSET = 0x10000000, 0x20000000

STANDARD_BARS = 6
ROM_INDEX = 6
"""Place of the expansion ROM among a function's regions, after BAR 0 to 5."""
IOV_INDEX = 7
"""Place of the first BAR of virtual functions, where the kernel is built with PCI_IOV."""
WINDOWS = 4
"""A bridge's last lines are its windows: I/O, memory, prefetchable memory, and one that only CardBus has."""

CLASS_BRIDGE = 0x0604
CLASS_NVME = 0x010802
CLASSES_DISPLAY = (0x0300, 0x0302)
VENDOR_NVIDIA = 0x10DE

_ADDRESS = re.compile(r"([0-9a-f]{4,}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_SPEED = re.compile(r"([0-9.]+) GT/s")


class Address(NamedTuple):
    """Where a function is: its parts as numbers, in the order in which lists are sorted."""

    domain: int
    bus: int
    device: int
    function: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``0000:17:00.0``; raise :class:`InvalidInput` for anything else."""
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise InvalidInput(f"{text!r}: no PCI address", hint="it looks like 0000:17:00.0")
        return cls(*(int(part, 16) for part in match.groups()))

    @property
    def slot(self) -> str:
        """The address without its function, as /sys/bus/pci/slots/*/address has it."""
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}"

    @property
    def bus_name(self) -> str:
        """Domain and bus, as /sys/class/pci_bus names them."""
        return f"{self.domain:04x}:{self.bus:02x}"

    def __str__(self) -> str:
        return f"{self.slot}.{self.function:x}"


class Space(enum.StrEnum):
    """What kind of addresses a region takes."""

    IO = "io"
    MEMORY = "memory"
    PREFETCHABLE = "prefetchable"


class Region(Value, frozen=True, kw_only=True):
    """A BAR that a function has, or a window through which a bridge passes addresses on, in bytes.

    ``wide`` is set where it may lie above 4 GiB.  ``start`` means nothing
    while it is not ``assigned``: the kernel found no room for it.
    """

    index: int
    space: Space
    start: int
    size: int
    wide: bool = False
    assigned: bool = True

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.start + self.size

    @property
    def name(self) -> str:
        """What the kernel calls it in its log."""
        if self.index < STANDARD_BARS:
            return f"BAR {self.index}"
        return "ROM" if self.index == ROM_INDEX else f"VF BAR {self.index - IOV_INDEX}"

    @property
    def needed(self) -> bool:
        """Say whether the device can't work without it: the kernel gives the ROM and virtual functions what is left."""
        return self.index < STANDARD_BARS


class Regions(NamedTuple):
    """A function's ``resource`` file: what it has itself, and what it passes on."""

    bars: tuple[Region, ...]
    windows: tuple[Region, ...]


def parse_regions(text: str, *, bridge: bool) -> Regions:
    """Read a ``resource`` file: a line of start, end and flags for each region, all zero for none.

    Raises :class:`InvalidInput` for a line that is none.
    """
    found: list[Region | None] = [_region(index, line) for index, line in enumerate(text.splitlines())]
    # How many lines there are goes by the kernel's configuration; the windows are always the last.
    behind = max(0, len(found) - WINDOWS) if bridge else len(found)
    windows = (
        msgspec.structs.replace(region, index=index - behind)
        for index, region in enumerate(found)
        if region is not None and index >= behind
    )
    bars = (region for region in found[:behind] if region is not None)
    return Regions(bars=tuple(bars), windows=tuple(windows))


def _region(index: int, line: str) -> Region | None:
    try:
        start, end, flags = (int(word, 16) for word in line.split())
    except ValueError as error:
        raise InvalidInput(f"line {index} of a resource file: {line!r}") from error
    if not flags & (_IORESOURCE_IO | _IORESOURCE_MEM) or flags & _IORESOURCE_DISABLED:
        return None
    if flags & _IORESOURCE_IO:
        space = Space.IO
    else:
        space = Space.PREFETCHABLE if flags & _IORESOURCE_PREFETCH else Space.MEMORY
    return Region(
        index=index,
        space=space,
        start=start,
        size=end - start + 1,
        wide=bool(flags & _IORESOURCE_MEM_64),
        # BARs never lie at zero on a machine where the kernel gives them out; I/O ports of an unset one neither.
        assigned=not flags & _IORESOURCE_UNSET and start > 0,
    )


class PcieLink(Value, frozen=True, kw_only=True):
    """A link's speed in GT/s per lane and its lanes, now and at most; 0 where there is no link or nobody knows."""

    speed_gt_s: float = 0.0
    width: int = 0
    max_speed_gt_s: float = 0.0
    max_width: int = 0

    @property
    def degraded(self) -> bool:
        """Say whether it runs with fewer lanes than it could: speed goes down by itself to save power, lanes do not."""
        return 0 < self.width < self.max_width

    def __str__(self) -> str:
        if not self.width:
            return "no link"
        return f"x{self.width} {self.speed_gt_s:g} GT/s (of x{self.max_width} {self.max_speed_gt_s:g})"


def parse_speed(text: str) -> float:
    """Read ``16.0 GT/s PCIe``; 0 for ``Unknown``."""
    match = _SPEED.match(text)
    return float(match.group(1)) if match else 0.0


class Function(Value, frozen=True, kw_only=True):
    """One PCI function.  ``pci_class`` is the 24-bit class code; the ids are 16 bits.

    ``parent`` is the bridge above it, empty on a root bus; ``secondary_bus``
    what is below a bridge, as ``0000:01``.  ``removing`` says that the kernel
    has begun to remove it and has not finished.
    """

    address: str
    vendor: int
    device: int
    pci_class: int
    subsystem_vendor: int = 0
    subsystem_device: int = 0
    parent: str = ""
    driver: str = ""
    numa_node: int = -1
    iommu_group: str = ""
    link: PcieLink | None = None
    bars: tuple[Region, ...] = ()
    windows: tuple[Region, ...] = ()
    secondary_bus: str = ""
    physical: str = ""
    """The physical function that it is a virtual function of."""
    serial: str = ""
    """Device Serial Number, as ``lspci`` writes it; empty where it has none, or nobody may read it."""
    bars_unassigned: tuple[int, ...] = ()
    """BARs that its configuration space has and the kernel has given no addresses."""
    removing: bool = False

    @property
    def at(self) -> Address:
        """Its address in parts."""
        return Address.parse(self.address)

    @property
    def is_bridge(self) -> bool:
        """Say whether it is a PCI-to-PCI bridge: a root port, a switch's port, or an old bridge."""
        return self.pci_class >> 8 == CLASS_BRIDGE

    @property
    def is_port(self) -> bool:
        """Say whether it is a bridge with a PCI Express link, which has room for one device below it."""
        return self.is_bridge and self.link is not None

    @property
    def is_nvidia_gpu(self) -> bool:
        """Say whether it is the function of a GPU that NVIDIA's driver drives."""
        return self.vendor == VENDOR_NVIDIA and self.pci_class >> 8 in CLASSES_DISPLAY

    @property
    def ids(self) -> str:
        """Vendor and device, as ``lspci -n`` writes them."""
        return f"{self.vendor:04x}:{self.device:04x}"


class Slot(Value, frozen=True, kw_only=True):
    """A hot-plug slot: ``address`` is that of what is plugged in, without its function.

    ``powered`` and ``occupied`` are None where the slot can't tell; ``latch``
    and ``attention`` are the kernel's numbers, -1 for none.
    """

    name: str
    address: str
    powered: bool | None = None
    occupied: bool | None = None
    latch: int = -1
    attention: int = -1
    removing: bool = False


class IdentityKind(enum.StrEnum):
    """What a device's name is made of."""

    UUID = "uuid"
    SERIAL = "serial"
    DSN = "device serial number"
    CHASSIS = "chassis"
    """What the chassis calls that has assigned it to this node."""
    POSITION = "position"


class Identity(Value, frozen=True, kw_only=True):
    """A device's name that stays the same when it moves, unless it is weak."""

    name: str
    kind: IdentityKind
    serial: str = ""
    """Of one that is named by its serial, that alone: where it ends in the name only its driver knows."""

    @property
    def weak(self) -> bool:
        """Say whether it names a place and a model rather than a device: another of the same model looks the same."""
        return self.kind is IdentityKind.POSITION


def nvme_name(serial: str, model: str) -> str:
    """Return a drive's name: its serial is unique among those of its model.  Without commas, which separate names."""
    return f"NVME-{serial.strip()}-{'_'.join(model.split())}".replace(",", "_")


class PciTree(Value, frozen=True, kw_only=True):
    """All functions by address, all slots by name, and the addresses that root buses have to give."""

    functions: tuple[Function, ...] = ()
    slots: tuple[Slot, ...] = ()
    apertures: dict[str, tuple[Region, ...]] = {}
    """What each root bus (``0000:00``) passes on; empty where nobody may read it."""

    def get(self, address: str) -> Function | None:
        """Return the function at an address; None where there is none."""
        return next((function for function in self.functions if function.address == address), None)

    def at(self, address: str) -> Function:
        """Return the function at an address; raise :class:`NotFound`."""
        if (found := self.get(address)) is None:
            raise NotFound(f"PCI function {address}: not there", hint="lspci lists what is")
        return found

    def below(self, bridge: str) -> tuple[Function, ...]:
        """Return the functions right below a bridge; an empty name stands for the root buses."""
        return tuple(function for function in self.functions if function.parent == bridge)

    def subtree(self, address: str) -> Iterator[Function]:
        """Yield a function and all below it."""
        if (top := self.get(address)) is not None:
            yield top
            for child in self.below(address):
                yield from self.subtree(child.address)

    def path_to(self, address: str) -> tuple[Function, ...]:
        """Return the bridges above a function, the nearest first."""
        found: list[Function] = []
        here = self.get(address)
        while here is not None and (here := self.get(here.parent)) is not None:
            found.append(here)
        return tuple(found)

    def device_of(self, address: str) -> tuple[Function, ...]:
        """Return all functions of the device that a function belongs to: what has to be removed together.

        Below a PCI Express port there is one device, whatever device numbers
        its functions have (ARI, virtual functions); on a root bus those of one
        device number and their virtual functions are one.
        """
        one = self.at(address)
        parent = self.get(one.parent)
        if parent is not None and parent.is_port and not one.is_bridge:
            return tuple(other for other in self.below(one.parent) if not other.is_bridge)
        origin = self.get(one.physical) if one.physical else one
        slot = (origin or one).at.slot
        return tuple(
            other
            for other in self.functions
            if other.at.slot == slot or (other.physical and Address.parse(other.physical).slot == slot)
        )

    def slot_of(self, address: str) -> Slot | None:
        """Return the slot that a function sits in, itself or with a bridge above it."""
        chain = [address, *(bridge.address for bridge in self.path_to(address))]
        for one in chain:
            place = Address.parse(one).slot
            for slot in self.slots:
                if slot.address == place:
                    return slot
        return None

    def slot_below(self, bridge: str) -> Slot | None:
        """Return the slot that a bridge leads to, which may be empty; None where there is none."""
        port = self.get(bridge)
        if port is None or not port.secondary_bus:
            return None
        return next((slot for slot in self.slots if slot.address == f"{port.secondary_bus}:00"), None)

    def devices(self) -> Iterator[tuple[Function, ...]]:
        """Yield each device that is no bridge, as its functions in the order of their addresses."""
        seen: set[str] = set()
        for function in self.functions:
            if function.address in seen or function.is_bridge:
                continue
            device = self.device_of(function.address)
            seen.update(one.address for one in device)
            yield device

    def removing(self) -> tuple[Function, ...]:
        """Return the functions that the kernel has begun to remove and has not finished with."""
        return tuple(function for function in self.functions if function.removing)


def identities(tree: PciTree, *, known: Mapping[str, Identity]) -> dict[str, Identity]:
    """Name every device: by its first function's address, its identity.

    ``known`` has, by address, what drivers say of functions: a GPU's UUID, a
    drive's serial.  The Device Serial Number comes next; what two devices here
    both have tells neither apart.  What is left is named by model and place.
    """
    told: dict[str, Identity] = {}
    for device in tree.devices():
        first = device[0]
        name = next((known[function.address] for function in device if function.address in known), None)
        serial = next((function.serial for function in device if function.serial), "")
        if name is None and serial:
            name = Identity(name=f"PCI-{first.ids}-{serial}", kind=IdentityKind.DSN)
        told[first.address] = name or _position(tree, first)
    names = [identity.name for identity in told.values()]
    return {
        address: _position(tree, tree.at(address)) if names.count(identity.name) > 1 else identity
        for address, identity in told.items()
    }


def _position(tree: PciTree, function: Function) -> Identity:
    slot = tree.slot_of(function.address)
    place = f"slot-{slot.name}" if slot is not None and slot.address == function.at.slot else function.at.slot
    return Identity(name=f"PCI-{function.ids}@{place}", kind=IdentityKind.POSITION)


# Configuration space.

CONFIG_BYTES = 4096
_EXTENDED = 0x100
_ID_SERIAL = 0x0003
MAX_CAPABILITIES = (CONFIG_BYTES - _EXTENDED) // 8
"""Most extended capabilities that there can be: a broken device's list may run in a circle."""


def device_serial(config: bytes) -> str:
    """Return the Device Serial Number as ``lspci`` writes it; empty where there is none, or only the first 64 bytes.

    Walks the extended capabilities: each begins with its id (16 bits), version
    (4) and the offset of the next (12).  A number of zeros or ones is no number.
    """
    offset = _EXTENDED
    for _ in range(MAX_CAPABILITIES):
        if offset < _EXTENDED or offset + 12 > len(config):
            return ""
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return ""
        if header & 0xFFFF == _ID_SERIAL:
            number = config[offset + 4 : offset + 12]
            if number in (bytes(8), b"\xff" * 8):
                return ""
            return "-".join(f"{byte:02x}" for byte in reversed(number))
        offset = header >> 20 & 0xFFC
    return ""


def unassigned_bars(config: bytes, *, bars: Iterable[Region]) -> tuple[int, ...]:
    """Return the BARs that a function has and that nobody has given addresses.

    The kernel may tell of such a BAR by a line of zeros alone, as if there were
    none; the register's lowest bits, which are wired, still tell of it: I/O
    (bit 0), 64 bits (10 in bits 1 and 2), prefetchable (bit 3).  A 32-bit BAR
    for plain memory at zero can't be told from none, and is not seen.
    """
    # A bridge (header type 1) has two BARs, then its bus numbers.
    if len(config) < 0x40 or config[:2] == b"\xff\xff":
        return ()
    count = 2 if config[0x0E] & 0x7F == 1 else STANDARD_BARS
    told = {bar.index: bar for bar in bars}
    missing = []
    index = 0
    while index < count:
        low = int.from_bytes(config[0x10 + 4 * index : 0x14 + 4 * index], "little")
        wide = low & 0b111 == 0b100
        bar = told.get(index)
        if (bar is not None and not bar.assigned) or (bar is None and low & 0xF):
            missing.append(index)
        index += 2 if wide else 1
    return tuple(missing)


_APERTURE = re.compile(r"\s*([0-9a-f]+)-([0-9a-f]+) : PCI Bus ([0-9a-f]{4,}:[0-9a-f]{2})")
FOUR_GIB = 1 << 32


def parse_apertures(text: str, *, roots: Iterable[str]) -> dict[str, tuple[Region, ...]]:
    """Read from /proc/iomem what root buses pass on; nothing of a bus for a reader who is shown zeros."""
    found: dict[str, list[Region]] = {root: [] for root in roots}
    for line in text.splitlines():
        match = _APERTURE.match(line)
        if match is None or match.group(3) not in found:
            continue
        start, end = int(match.group(1), 16), int(match.group(2), 16)
        if end > 0:
            regions = found[match.group(3)]
            regions.append(
                Region(index=len(regions), space=Space.MEMORY, start=start, size=end - start + 1, wide=end >= FOUR_GIB)
            )
    return {root: tuple(regions) for root, regions in found.items() if regions}


# Kernel uevents.


class Uevent(Value, frozen=True, kw_only=True):
    """One message of the kernel about one of its objects; ``seqnum`` counts them all since the boot."""

    action: str
    devpath: str
    subsystem: str
    seqnum: int
    properties: dict[str, str] = {}

    @property
    def address(self) -> str:
        """The PCI function that it is about, or that its object hangs below; empty for neither."""
        found = [part for part in self.devpath.split("/") if _ADDRESS.fullmatch(part)]
        return found[-1] if found else ""


class Lost(Value, frozen=True, kw_only=True):
    """Events were lost, or nobody has listened yet: whoever needs to know what there is has to list it."""

    reason: str


def parse_uevent(data: bytes) -> Uevent | None:
    """Read a kernel's message: ``add@/devices/...`` and NAME=VALUE, each ended by a zero; None for one that is none."""
    head, _, rest = data.partition(b"\0")
    if b"@" not in head:
        return None
    pairs = (word.partition("=") for word in rest.decode("utf-8", "replace").split("\0") if "=" in word)
    properties = {name: value for name, _, value in pairs}
    try:
        return Uevent(
            action=properties["ACTION"],
            devpath=properties["DEVPATH"],
            subsystem=properties.get("SUBSYSTEM", ""),
            seqnum=int(properties["SEQNUM"]),
            properties=properties,
        )
    except (KeyError, ValueError):
        return None


class FunctionArrived(Value, frozen=True, kw_only=True):
    """A function is there that was not.  ``expected`` where somebody here is attaching it.

    ``seqnum`` is that of the uevent that told of it; 0 where a list did.
    """

    address: str
    ids: str
    seqnum: int = 0
    expected: bool = False


class FunctionRemoved(Value, frozen=True, kw_only=True):
    """A function is gone.  Not ``expected``: it was pulled out, or has failed."""

    address: str
    ids: str
    seqnum: int = 0
    expected: bool = False


TreeEvent = FunctionArrived | FunctionRemoved


def changes(
    before: PciTree, after: PciTree, *, seqnums: Mapping[str, int], expected: Callable[[str], bool]
) -> tuple[TreeEvent, ...]:
    """Return what is different between two trees, removals first.

    A function at the same address whose ids are others was replaced.
    ``seqnums`` has the last uevent of each address.
    """
    old = {function.address: function.ids for function in before.functions}
    new = {function.address: function.ids for function in after.functions}
    removed = [
        FunctionRemoved(address=address, ids=ids, seqnum=seqnums.get(address, 0), expected=expected(address))
        for address, ids in old.items()
        if new.get(address) != ids
    ]
    arrived = [
        FunctionArrived(address=address, ids=ids, seqnum=seqnums.get(address, 0), expected=expected(address))
        for address, ids in new.items()
        if old.get(address) != ids
    ]
    return (*removed, *arrived)
