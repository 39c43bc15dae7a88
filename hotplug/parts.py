"""What the steps of hot-plug work with, and what they are told to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from farbus.errors import Unavailable
from farbus.hotplug.fabric.driver import Fabric
from farbus.hotplug.times import BusStep, BusTimes
from farbus.linux.clock import Clock
from farbus.linux.holders import Holders
from farbus.linux.nvidia import Nvidia
from farbus.linux.nvml import Nvml
from farbus.linux.pci import Pci
from farbus.linux.sysfs import NvmeController
from farbus.linux.uevents import Uevents
from farbus.model.device import DeviceKind
from farbus.model.fabric import serials_in
from farbus.model.holders import Holder
from farbus.model.pci import Function, Identity, IdentityKind, PciTree, identities, nvme_name
from farbus.model.value import Value

TURN = "pci"
"""The turn of all removals and scans of a node: in the kernel they have one lock (pci_rescan_remove_lock)."""

DRAIN_S = 30.0
"""For holders to go by themselves."""

EVICT_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL of an evicted holder."""

CLASSES: Mapping[DeviceKind, tuple[int, ...]] = {
    DeviceKind.GPU: (0x03, 0x12),
    DeviceKind.NVME: (0x0108,),
    DeviceKind.NETWORK: (0x02,),
}
"""How the PCI class of a device of a kind begins (PCI Code and ID Assignment): a GPU is a display controller or a
processing accelerator, a drive non-volatile memory.  Of other kinds nothing is known."""


class Move(Value, frozen=True, kw_only=True):
    """A device that comes to a port of this node, or goes from it; all that the journal needs to go on.

    ``device`` names it (:class:`farbus.model.pci.Identity`, or the fabric's
    name for it), ``bridge`` is the port's address here.  ``chassis`` and
    ``port`` are empty where no fabric is in between.  What is known of the
    device by whoever has seen it is in ``uuid``, ``serial``, the PCI ids and
    ``functions``, for room and proof.
    """

    device: str
    bridge: str
    id: str = ""
    """Names the request, so that the same one is not done twice; empty for one without."""
    chassis: str = ""
    port: str = ""
    kind: DeviceKind | None = None
    """What the chassis says that it is; None where nobody says it."""
    uuid: str = ""
    serial: str = ""
    vendor: int = 0
    device_id: int = 0
    functions: tuple[Function, ...] = ()
    evict: bool = False
    drain_s: float = DRAIN_S
    evict_grace_s: float = EVICT_GRACE_S
    brought: bool = False
    """Whether a device that goes has come by a move: plain ones are offered for that alone."""
    persistent: bool = False
    """Whether a GPU's driver kept it initialised before it was told not to."""
    asked_at: float = 0.0
    """Wall time of the request, in seconds."""

    @property
    def pci_class(self) -> int:
        """The class of the device as it was seen, 24 bits; 0 where nobody has seen it."""
        return self.functions[0].pci_class if self.functions else 0


class Gate(Protocol):
    """Who may use devices of this node: the agent.  What is closed stays closed until it is opened, over restarts."""

    async def close(self, device: str, *, reason: str) -> None:
        """Give the device to nobody any more; who has it keeps it."""
        ...

    async def open(self, device: str) -> None:
        """Let it be given again."""
        ...

    async def is_closed(self, device: str) -> bool:
        """Say whether it is closed."""
        ...

    async def holders(self, device: str) -> tuple[Holder, ...]:
        """Return the sessions and leases by which it is used."""
        ...

    async def evict(self, holder: Holder) -> None:
        """End a session or lease."""
        ...


def _no_fabric(name: str) -> Fabric:
    raise Unavailable(f"chassis {name}: this node knows of none")


def _nobody_calls(_: PciTree) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The doors of a node, the chassis that it is cabled to, and its gate."""

    pci: Pci
    holders: Holders
    nvidia: Nvidia
    nvml: Nvml
    uevents: Uevents
    clock: Clock
    gate: Gate
    drives: Callable[[], tuple[NvmeController, ...]] = tuple
    gpus: Callable[[], Mapping[str, str]] = dict
    """UUIDs of this node's GPUs by PCI address, as the inventory has them."""
    fabrics: Callable[[str], Fabric] = _no_fabric
    """The chassis of that name, whoever serves it; asked for only where a move names one."""
    called: Callable[[PciTree], Mapping[str, str]] = _nobody_calls
    """What others call devices, by PCI address, that nothing on this node tells apart: the chassis's own names."""
    times: BusTimes = field(default_factory=BusTimes)
    appear_s: float | None = None
    """For a device to appear with all its attributes, in seconds; None for what was learned."""
    remove_s: float | None = None
    """For the kernel to let go of a device."""

    def scan_limit_s(self, move: Move) -> float:
        """Return how long the device of a move has to appear, from the scan."""
        return self.times.history.deadline_s(BusStep.SCAN, move.pci_class) if self.appear_s is None else self.appear_s

    def remove_limit_s(self, move: Move) -> float:
        """Return how long the kernel has to let go of it."""
        return self.times.history.deadline_s(BusStep.REMOVE, move.pci_class) if self.remove_s is None else self.remove_s

    def names(self, tree: PciTree) -> dict[str, Identity]:
        """Name the devices of a tree by what drivers say of them, and what nothing tells apart as its chassis does."""
        names = identities(tree, known=known_names(self.drives(), self.gpus()))
        if any(identity.weak for identity in names.values()):
            for address, name in self.called(tree).items():
                if address in names and names[address].weak:
                    names[address] = Identity(name=name, kind=IdentityKind.CHASSIS)
        return names


def known_names(drives: tuple[NvmeController, ...], gpus: Mapping[str, str]) -> dict[str, Identity]:
    """Return, by PCI address, what drivers call devices."""
    found = {address: Identity(name=uuid, kind=IdentityKind.UUID) for address, uuid in gpus.items() if uuid}
    for drive in drives:
        if drive.transport == "pcie" and drive.serial:
            found[drive.address] = Identity(
                name=nvme_name(drive.serial, drive.model), kind=IdentityKind.SERIAL, serial=drive.serial.strip()
            )
    return found


def is_meant(move: Move, function: Function, identity: Identity | None) -> bool:
    """Say whether a device below the port is the one that is moved, by the best that is known of it.

    A UUID or serial that both sides know decides; else the PCI ids; else the
    class, by the kind that the chassis tells; else, below a port that takes one
    device, whatever is there.
    """
    name = identity.name if identity is not None else ""
    if identity is not None and not identity.weak:
        # What a device is called by its chassis alone follows from where it is: that it is the one is yet to be shown.
        if name == move.device and identity.kind is not IdentityKind.CHASSIS:
            return True
        if not move.chassis and _of_one_kind(identity, move.device):
            # A node's own name against another: where no chassis is in between, nothing else calls it so.
            return identity.serial in serials_in(move.device) if identity.serial else False
        if identity.kind is IdentityKind.UUID and move.uuid:
            return name == move.uuid
        if identity.kind is IdentityKind.SERIAL and move.serial:
            return identity.serial == move.serial
        if identity.kind is IdentityKind.DSN and move.serial:
            return name.endswith(f"-{move.serial}") or not move.vendor or function.vendor == move.vendor
    if move.vendor and move.device_id:
        return (function.vendor, function.device) == (move.vendor, move.device_id)
    return is_of_kind(function, move.kind)


def is_of_kind(function: Function, kind: DeviceKind | None) -> bool:
    """Say whether a function may be of a device of a kind, by its PCI class; any may be where nobody says the kind."""
    classes = CLASSES.get(kind, ()) if kind is not None else ()
    return not classes or any(_begins(function.pci_class, start) for start in classes)


def is_proven(move: Move, identity: Identity) -> bool:
    """Say whether a name alone makes a device that :func:`is_meant` the moved one: no other can have it."""
    if identity.weak:
        return False
    return identity.name == move.device or bool(
        (identity.kind is IdentityKind.UUID and move.uuid) or (identity.kind is IdentityKind.SERIAL and move.serial)
    )


def _of_one_kind(identity: Identity, device: str) -> bool:
    """Say whether a strong name and a device's are names that nodes give to the same kind of device."""
    kind, dash, _ = identity.name.partition("-")
    is_name = identity.kind is not IdentityKind.CHASSIS and bool(dash) and "@" not in device
    return is_name and device.startswith(f"{kind}-")


def _begins(pci_class: int, start: int) -> bool:
    """Say whether a class of 24 bits begins with one of 8 or 16."""
    return pci_class >> (8 if start > 0xFF else 16) == start


def device_at(parts: Parts, tree: PciTree, move: Move) -> tuple[Function, ...]:
    """Return the functions of the moved device below its port; empty where it is not there."""
    if not move.bridge:
        return ()
    names = parts.names(tree)
    for first in tree.below(move.bridge):
        if first.is_bridge:
            continue
        device = tree.device_of(first.address)
        if is_meant(move, device[0], names.get(device[0].address)):
            return device
    return ()
