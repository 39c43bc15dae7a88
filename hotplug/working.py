"""What the steps of hot-plug do to the node and its chassis: each may be repeated, and says what stopped it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from farbus.errors import Conflict, FarbusError, NotFound, TimedOut, Unavailable
from farbus.hotplug.fabric.driver import Fabric
from farbus.hotplug.fabric.errors import DeviceElsewhere
from farbus.hotplug.fabric.service import MAX_SETTLE_READS
from farbus.hotplug.parts import Move, Parts, device_at
from farbus.hotplug.times import BusStep
from farbus.linux.uevents import News
from farbus.model.fabric import GIVEN_UP_FACTOR, FabricStep
from farbus.model.holders import Look
from farbus.model.pci import CLASS_NVME, Function, Identity, IdentityKind, PciTree
from farbus.model.quantity import format_bytes

LOOK_INTERVAL_S = 0.5
"""Between two looks at a device that is to appear where no uevent comes in between: attributes are filled later."""


class WedgedRemoval(Unavailable):
    """The kernel has begun to remove a function and does not finish; until a reboot it neither removes nor scans."""


def wedged(addresses: Sequence[str], *, since: float) -> WedgedRemoval:
    """Return the error that tells of a removal that does not end."""
    at = f" since {time.strftime('%H:%M:%S', time.gmtime(since))} UTC" if since else ""
    return WedgedRemoval(
        f"wedged: the kernel has not finished removing {', '.join(addresses)}{at}; "
        "until then it removes and scans nothing else",
        hint="a driver waits for a reference that somebody holds, see dmesg; if it does not end, reboot the node",
    )


def fabric_deadline_s(fabric: Fabric, step: FabricStep) -> float:
    """Return how long a step in a chassis may take, in seconds.

    It reads before and after, and what is given up is asked for again, with a longer deadline.
    """
    return (1 + GIVEN_UP_FACTOR) * fabric.deadline_s(step) + 4 * fabric.deadline_s(FabricStep.LIST)


async def port_of(fabric: Fabric, move: Move) -> str:
    """Return the port that a device is assigned to, as the chassis says now; empty for none."""
    return (await fabric.list()).device(move.device).port


async def surely_port_of(fabric: Fabric, move: Move) -> str:
    """Return the port that a device is assigned to, as two readings in a row say: one may be stale.

    For what is left undone because of it; who asks for a step is told by the chassis's service.
    """
    at = await port_of(fabric, move)
    for _ in range(MAX_SETTLE_READS):
        before, at = at, await port_of(fabric, move)
        if at == before:
            return at
    raise Unavailable(
        f"chassis {fabric.chassis}: device {move.device} is elsewhere in each of {MAX_SETTLE_READS} readings",
        hint="does somebody else move it?",
    )


async def identity_of(parts: Parts, tree: PciTree, device: Sequence[Function]) -> Identity:
    """Name a device that has come: a GPU by what its driver says now.

    Our own NVML worker, which initialised NVML before, does not know of it; so
    it is ended, and the next one finds it.
    """
    for function in device:
        if function.is_nvidia_gpu and (uuid := (await parts.nvidia.readiness(function.address)).uuid):
            await parts.nvml.stop()
            return Identity(name=uuid, kind=IdentityKind.UUID)
    return parts.names(tree)[device[0].address]


async def check_no_other(fabric: Fabric, move: Move, identity: Identity) -> None:
    """Raise :class:`Conflict` where the chassis knows the device that has come as another of its devices.

    Two of one model look the same to who knows no serial of the one that was
    meant; the chassis may know the other's.
    """
    if identity.kind not in (IdentityKind.UUID, IdentityKind.SERIAL, IdentityKind.DSN):
        return
    view = await fabric.list()
    meant = view.device(move.device)
    try:
        found = view.device(identity.name)
    except NotFound:
        # None of the chassis's, or one that it does not know by name: nothing speaks against it.
        return
    if found.id != meant.id:
        raise Conflict(
            f"attach {move.device}: {identity.name} has come below {move.bridge}, "
            f"which is device {found.id} of chassis {move.chassis}",
            hint="farbus fabric list shows what the chassis has at which port; are two cables crossed?",
        )


async def check_no_other_here(parts: Parts, fabric: Fabric, move: Move) -> None:
    """Raise :class:`Conflict` where what is below the port is another device that the chassis has assigned to it, too.

    A chassis may fill bridges in another order than it was asked.  To unassign the device that was meant would take it
    from under the kernel, wherever it is; to remove what is here would take another one's.
    """
    tree = parts.pci.tree()
    there = [function for function in tree.below(move.bridge) if not function.is_bridge]
    if not there:
        return
    identity = await identity_of(parts, tree, tree.device_of(there[0].address))
    view = await fabric.list()
    meant = view.device(move.device)
    for other in view.at(move.port):
        ids = (other.vendor_id, other.device_id)
        is_it = other.answers_to(identity.name) if not identity.weak else ids == (there[0].vendor, there[0].device)
        if other.id != meant.id and is_it:
            raise Conflict(
                f"take back {move.device}: {other.id} is below {move.bridge} ({there[0].address}), and chassis "
                f"{move.chassis} has both at port {move.port}",
                hint="farbus devices --tree shows below which bridge it is; in which order does the chassis fill "
                "fabric_ports?",
            )


async def give_back(fabric: Fabric, move: Move) -> None:
    """Unassign a device from our port; nothing happens where it is at another."""
    # Somebody else's: not ours to take away.
    with contextlib.suppress(DeviceElsewhere):
        await fabric.unassign(move.device, source=move.port)


async def look_at(parts: Parts, move: Move, device: Sequence[Function]) -> Look:
    """Return who holds a device, by the kernel and by the agent."""
    look = await parts.holders.look([function.address for function in device])
    return look.with_more(await parts.gate.holders(move.device))


def removal_order(device: Sequence[Function]) -> tuple[Function, ...]:
    """Return the functions of a device in the order in which they are removed.

    The first function last: others depend on it (a GPU's audio, virtual
    functions, which go with their physical one).
    """
    return tuple(reversed([function for function in device if not function.physical]))


async def remove_device(parts: Parts, move: Move, *, whatever: bool = False) -> None:
    """Remove all functions of a device, once it is proven that nobody holds it; verify that they are gone.

    ``whatever`` is below the port counts, be it the device that was meant or
    another.  Our own NVML worker is stopped for that long.  Raises :class:`Conflict`
    with who holds it: a driver may wait for them for ever.
    """
    tree = parts.pci.tree()
    if stuck := tree.removing():
        raise wedged(tuple(function.address for function in stuck), since=move.asked_at)
    device = device_at(parts, tree, move)
    if whatever and not device:
        device = tuple(function for function in tree.below(move.bridge) if not function.is_bridge)
    if not device:
        return
    async with parts.nvml.released():
        look = (await look_at(parts, move, device)).without_trust()
        if not look.clear:
            raise Conflict(f"remove {move.device}: {look.told()}", hint="it was held again; detach it once more")
        await parts.holders.prove([function.address for function in device])
        began = parts.clock.monotonic()
        for function in removal_order(device):
            await parts.pci.remove(function.address)
        parts.times.measure(BusStep.REMOVE, device[0].pci_class, parts.clock.monotonic() - began)
    left = [one.address for one in parts.pci.tree().functions if one.address in {f.address for f in device}]
    if left:
        raise Unavailable(f"remove {move.device}: {', '.join(left)} came back or did not go", hint="see dmesg")


async def appear(parts: Parts, move: Move) -> None:
    """Have the kernel look below the port, and return once the device is there with all its attributes.

    What the kernel finds by itself, where the port tells of what is plugged in,
    is waited for just so: nothing but what there is decides.  Raises
    :class:`TimedOut` with what was missing in the end.
    """
    began, limit_s = parts.clock.monotonic(), parts.scan_limit_s(move)
    until = began + limit_s
    async with parts.uevents.listen() as messages:
        news = News(messages.__anext__)
        try:
            tree = parts.pci.tree()
            if stuck := tree.removing():
                raise wedged(tuple(function.address for function in stuck), since=move.asked_at)
            slot = tree.slot_below(move.bridge)
            if slot is not None and slot.powered is False and slot.occupied:
                await parts.pci.set_power(slot.name, on=True)
            device = device_at(parts, tree, move)
            if lacks_room(device):
                # Where the port's own driver has found it (acpiphp), the windows are as they were: only the scan of
                # an empty bus lays them anew.
                await remove_device(parts, move)
                device = ()
            if not device:
                await parts.pci.rescan_below(move.bridge)
            while True:
                tree = parts.pci.tree()
                device = device_at(parts, tree, move)
                lacking = missing(parts, device) if device else absent(tree, move)
                if not lacking:
                    parts.times.measure(BusStep.SCAN, device[0].pci_class, parts.clock.monotonic() - began)
                    return
                left = until - parts.clock.monotonic()
                if left <= 0:
                    if device or move.pci_class:
                        # Of what has not come nobody knows what it is.
                        pci_class = device[0].pci_class if device else move.pci_class
                        parts.times.measure(BusStep.SCAN, pci_class, limit_s, finished=False)
                    raise TimedOut(
                        f"attach {move.device}: {lacking} below {move.bridge} after {limit_s:g} s",
                        hint="see dmesg; is the slot powered, and the cable of the fabric in this port?",
                    )
                await news.wait(parts.clock.sleep(min(LOOK_INTERVAL_S, left)))
        finally:
            news.close()


def absent(tree: PciTree, move: Move) -> str:
    """Say that the device has not come, and what has come instead."""
    others = [f"{one.address} ({one.ids})" for one in tree.below(move.bridge) if not one.is_bridge]
    return f"it is not there, but {', '.join(others)} is," if others else "it is not there"


def missing(parts: Parts, device: Sequence[Function]) -> str:
    """Say what a device that appears still lacks; an empty string when it is whole.

    The kernel tells of a function before its driver has it, and of a drive
    before its serial is known.  BARs are given before anything is told.
    """
    if not device:
        return "it is not there"
    for function in device:
        if function.vendor == 0xFFFF:
            return f"{function.address} does not answer"
        if function.bars_unassigned:
            # Nothing will come of it any more: VerifyDevice tells why.
            return ""
        known = parts.pci.driver_for(vendor=function.vendor, device=function.device, pci_class=function.pci_class)
        if known and not function.driver:
            return f"{function.address} has no driver (it would be {known})"
        if (
            function.pci_class == CLASS_NVME
            and function.driver
            and function.address not in {drive.address for drive in parts.drives() if drive.serial}
        ):
            return f"the drive {function.address} has no serial yet"
    return ""


def lacks_room(device: Sequence[Function]) -> bool:
    """Say whether a BAR of a device has no place."""
    return any(function.bars_unassigned for function in device)


def wrong_sizes(move: Move, device: Sequence[Function]) -> str:
    """Say which BAR is not as it was seen elsewhere: the kernel may tell of one without a place by nothing at all."""
    for seen, function in zip(move.functions, device, strict=False):
        now = {bar.index: bar for bar in function.bars if bar.needed}
        for bar in seen.bars:
            if bar.needed and bar.index not in now:
                return f"{bar.name} of {function.address} ({format_bytes(bar.size)}) has no place"
    return ""


def stable_path(parts: Parts, function: Function) -> str:
    """Return the path by which programs may name a device for as long as it is here."""
    drive = next((drive for drive in parts.drives() if drive.address == function.address), None)
    if drive is not None and drive.serial:
        # As udev's 60-persistent-storage.rules names it, with what it takes for awkward replaced.
        return f"/dev/disk/by-id/nvme-{'_'.join(drive.model.split())}_{'_'.join(drive.serial.split())}"
    return f"/sys/bus/pci/devices/{function.address}"


def overdue(parts: Parts, move: Move) -> FarbusError | None:
    """Return the error for a step whose deadline has passed while the kernel is removing something."""
    stuck = parts.pci.tree().removing()
    return wedged(tuple(function.address for function in stuck), since=move.asked_at) if stuck else None
