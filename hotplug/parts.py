"""What the steps of hot-plug work with, and what they are told to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from farbus.hotplug.fabric.driver import Fabric
from farbus.linux.clock import Clock
from farbus.linux.holders import Holders
from farbus.linux.nvidia import Nvidia
from farbus.linux.nvml import Nvml
from farbus.linux.pci import Pci
from farbus.linux.sysfs import NvmeController
from farbus.linux.uevents import Uevents
from farbus.model.holders import Holder
from farbus.model.pci import Function, Identity, IdentityKind, PciTree, identities, nvme_name
from farbus.model.value import Value

TURN = "pci"
"""The turn of all removals and scans of a node: in the kernel they have one lock (pci_rescan_remove_lock)."""

APPEAR_S = 60.0
"""For a device to appear with all its attributes, from the scan: a GPU's driver initialises for some seconds."""

REMOVE_S = 60.0
"""For the kernel to let go of a device: a drive flushes, a GPU's driver unloads its state."""

DRAIN_S = 30.0
"""For holders to go by themselves."""

EVICT_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL of an evicted holder."""


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
    chassis: str = ""
    port: str = ""
    uuid: str = ""
    serial: str = ""
    vendor: int = 0
    device_id: int = 0
    functions: tuple[Function, ...] = ()
    evict: bool = False
    drain_s: float = DRAIN_S
    evict_grace_s: float = EVICT_GRACE_S
    persistent: bool = False
    """Whether a GPU's driver kept it initialised before it was told not to."""
    asked_at: float = 0.0
    """Wall time of the request, in seconds."""


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
    fabric: Fabric | None = None
    appear_s: float = APPEAR_S
    remove_s: float = REMOVE_S

    def names(self, tree: PciTree) -> dict[str, Identity]:
        """Name the devices of a tree by what drivers say of them."""
        return identities(tree, known=known_names(self.drives(), self.gpus()))


def known_names(drives: tuple[NvmeController, ...], gpus: Mapping[str, str]) -> dict[str, Identity]:
    """Return, by PCI address, what drivers call devices."""
    found = {address: Identity(name=uuid, kind=IdentityKind.UUID) for address, uuid in gpus.items() if uuid}
    for drive in drives:
        if drive.transport == "pcie" and drive.serial:
            found[drive.address] = Identity(name=nvme_name(drive.serial, drive.model), kind=IdentityKind.SERIAL)
    return found


def is_meant(move: Move, function: Function, identity: Identity | None) -> bool:
    """Say whether a device below the port is the one that is moved, by the best that is known of it.

    A UUID or serial that both sides know decides; else the PCI ids; else,
    below a port that takes one device, whatever is there.
    """
    name = identity.name if identity is not None else ""
    if identity is not None and not identity.weak:
        if name == move.device:
            return True
        if identity.kind is IdentityKind.UUID and move.uuid:
            return name == move.uuid
        if identity.kind is IdentityKind.SERIAL and move.serial:
            return name.startswith(f"NVME-{move.serial}-")
        if identity.kind is IdentityKind.DSN and move.serial:
            return name.endswith(f"-{move.serial}") or not move.vendor or function.vendor == move.vendor
    if move.vendor and move.device_id:
        return (function.vendor, function.device) == (move.vendor, move.device_id)
    return True


def device_at(parts: Parts, tree: PciTree, move: Move) -> tuple[Function, ...]:
    """Return the functions of the moved device below its port; empty where it is not there."""
    names = parts.names(tree)
    for first in tree.below(move.bridge):
        if first.is_bridge:
            continue
        device = tree.device_of(first.address)
        if is_meant(move, device[0], names.get(device[0].address)):
            return device
    return ()
