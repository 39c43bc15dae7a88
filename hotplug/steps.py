"""The steps by which a device comes to a node and goes from it (docs/decisions/0006-the-action-protocol.md).

To attach is: look for room, assign in the fabric, scan below the port, prove
that it works, open it for use.  To detach is: close it, drain it, quiet its
driver, remove its functions, unassign in the fabric.  Each step can be looked
at, repeated and taken back; each leaves the node as the step before had it
where it fails.

Removals and scans have one turn per node, since in the kernel they have one
lock: behind one that hangs, all hang.  So a step never begins where the kernel
has not finished an earlier removal; it says so instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from farbus.errors import Conflict, FarbusError, NotFound
from farbus.hotplug.fabric.driver import Fabric
from farbus.hotplug.parts import TURN, Move, Parts, device_at, is_meant, is_proven
from farbus.hotplug.windows import look_for_room
from farbus.hotplug.working import (
    appear,
    check_no_other,
    check_no_other_here,
    fabric_deadline_s,
    give_back,
    identity_of,
    lacks_room,
    look_at,
    missing,
    overdue,
    port_of,
    removal_order,
    remove_device,
    stable_path,
    surely_port_of,
    wedged,
    wrong_sizes,
)
from farbus.model.fabric import FabricStep
from farbus.model.holders import HolderKind, Look
from farbus.model.pci import Function, PciTree
from farbus.model.quantity import format_bytes

Result = dict[str, str]

DRAIN_INTERVAL_S = 1.0
"""Between two looks at who holds a device: each reads all of /proc."""

MARGIN_S = 30.0
"""What a step may take beyond what it waits for, before its object is wedged: children start, disks write."""


@dataclass(frozen=True, kw_only=True)
class HotplugStep:
    """What all steps have; ``says`` is what ``--dry-run`` prints."""

    parts: Parts
    move: Move

    @property
    def identity(self) -> str:
        """The device."""
        return f"device {self.move.device}"

    @property
    def devices(self) -> tuple[str, ...]:
        """The device, for which one operation is under way at a time."""
        return (self.move.device,)

    def here(self) -> tuple[PciTree, tuple[Function, ...]]:
        """Return the tree and the functions of the device below its port.

        Raises :class:`farbus.hotplug.working.WedgedRemoval` where the kernel is stuck.
        """
        tree = self.parts.pci.tree()
        if stuck := tree.removing():
            raise wedged(tuple(function.address for function in stuck), since=self.move.asked_at)
        return tree, device_at(self.parts, tree, self.move)

    def found(self) -> tuple[PciTree, tuple[Function, ...]]:
        """Return the same of a device that has come; raise :class:`NotFound` where it has gone again."""
        tree, device = self.here()
        if not device:
            raise NotFound(f"attach {self.move.device}: it is not below {self.move.bridge} any more", hint="see dmesg")
        return tree, device

    @property
    def fabric(self) -> Fabric:
        """The chassis; there is one wherever a step needs it."""
        return self.parts.fabrics(self.move.chassis)


async def noted(known: Result | None) -> Result | None:
    """Return a recorded result: what was looked at once is not looked at again by who goes on."""
    return known


# Attaching.


@dataclass(frozen=True, kw_only=True)
class CheckRoom(HotplugStep):
    """Preflight: nothing is touched before it is known that the device will fit and be driven."""

    kind: str = "CheckRoom"
    deadline_s: float = MARGIN_S
    lasting: bool = True

    @property
    def says(self) -> str:
        """What is done."""
        return f"check that port {self.move.bridge} has room for {self.move.device}, and this kernel a driver"

    async def observe(self, known: Result | None) -> Result | None:
        """It is done when it is on record."""
        return await noted(known)

    async def do(self) -> Result:
        """Look; raise :class:`Conflict` with the cure where it won't do."""
        tree, device = self.here()
        port = tree.at(self.move.bridge)
        if not port.is_bridge:
            raise Conflict(
                f"attach {self.move.device}: {port.address} is no bridge",
                hint="farbus devices --tree shows the bridges",
            )
        if device:
            raise Conflict(
                f"attach {self.move.device}: it is at {device[0].address} already",
                hint="farbus devices --tree shows it",
            )
        if port.is_port and tree.below(port.address):
            there = tree.below(port.address)[0]
            raise Conflict(
                f"attach {self.move.device}: {there.address} ({there.ids}) is below port {port.address} already",
                hint="detach it first, or choose another port",
            )
        fit = look_for_room(tree, port.address, self.move.functions)
        if not fit.fits:
            told = "; ".join(str(misfit) for misfit in fit.misfits)
            cures = " and ".join(dict.fromkeys(misfit.cure for misfit in fit.misfits))
            raise Conflict(f"attach {self.move.device}: {told}", hint=cures)
        self._check_driver()
        return {"room": self._room(fit.unsure, grows=fit.grows)}

    def _room(self, unsure: str, *, grows: bool) -> str:
        if not self.move.functions:
            return "unknown: nobody here has seen this device before"
        return unsure or ("the kernel has to enlarge the port's windows" if grows else "it fits")

    def _check_driver(self) -> None:
        for function in self.move.functions:
            if not function.driver:
                continue
            found = self.parts.pci.driver_for(
                vendor=function.vendor, device=function.device, pci_class=function.pci_class
            )
            if not found:
                raise Conflict(
                    f"attach {self.move.device}: this kernel has no driver for {function.ids}, "
                    f"which {function.driver} drove elsewhere",
                    hint=f"install the module {function.driver}",
                )

    async def compensate(self) -> None:
        """Nothing was touched."""


@dataclass(frozen=True, kw_only=True)
class AssignDevice(HotplugStep):
    """The fabric gives the device to this node's port."""

    kind: str = "AssignDevice"
    lasting: bool = True

    @property
    def deadline_s(self) -> float:
        """What the chassis is given, by what was measured there, with readings before and after."""
        return fabric_deadline_s(self.fabric, FabricStep.ASSIGN)

    @property
    def says(self) -> str:
        """What is done."""
        seconds = self.fabric.expected_s(FabricStep.ASSIGN)
        return f"assign {self.move.device} to port {self.move.port} of chassis {self.move.chassis} ({seconds:.0f} s)"

    async def observe(self, known: Result | None) -> Result | None:
        """Read the chassis, unless the device is on the bus: then it is ours, whatever a chassis that is away says."""
        if known is not None and self.here()[1]:
            return known
        return {"port": self.move.port} if await port_of(self.fabric, self.move) == self.move.port else None

    async def do(self) -> Result:
        """Assign; the fabric verifies by reading again."""
        await self.fabric.assign(self.move.device, self.move.port)
        return {"port": self.move.port}

    async def compensate(self) -> None:
        """Take it back from our port; nothing happens where it is elsewhere, or at none."""
        await give_back(self.fabric, self.move)


@dataclass(frozen=True, kw_only=True)
class ScanBelow(HotplugStep):
    """The kernel looks below the port, and the device is there with all that is to be known of it."""

    kind: str = "ScanBelow"
    lasting: bool = False

    @property
    def devices(self) -> tuple[str, ...]:
        """The device, and the one turn of all removals and scans."""
        return (TURN, self.move.device)

    @property
    def deadline_s(self) -> float:
        """For the scan and all that follows it."""
        return self.parts.scan_limit_s(self.move) + MARGIN_S

    def overdue(self) -> FarbusError | None:
        """Tell of a removal that hangs, if that is what holds it up."""
        return overdue(self.parts, self.move)

    @property
    def says(self) -> str:
        """What is done."""
        return f"scan the bus below {self.move.bridge} and wait until the device is there"

    async def observe(self, known: Result | None) -> Result | None:
        """Look below the port."""
        _, device = self.here()
        if not device or missing(self.parts, device) or lacks_room(device):
            return None
        return {"address": device[0].address}

    async def do(self) -> Result:
        """Scan, and wait for what is missing; raise :class:`TimedOut` with that."""
        await appear(self.parts, self.move)
        return {"address": self.found()[1][0].address}

    async def compensate(self) -> None:
        """Remove it again, if nobody holds it: all that the port leads to, while it is ours there.

        It may not be what was meant, and the fabric is about to take it away.
        Where the fabric has taken it already, what is below the port has come
        by another move.  Where it is another device that the fabric has here too,
        nothing is touched: the one that was meant may be below another bridge.
        """
        is_ours = await self._is_assigned()
        if is_ours and not self.here()[1]:
            await check_no_other_here(self.parts, self.fabric, self.move)
        await remove_device(self.parts, self.move, whatever=is_ours)

    async def _is_assigned(self) -> bool:
        try:
            return bool(self.move.port) and await surely_port_of(self.fabric, self.move) == self.move.port
        except NotFound:
            return False


@dataclass(frozen=True, kw_only=True)
class VerifyDevice(HotplugStep):
    """The device is the one that was meant, every BAR has its place, and a driver has it."""

    kind: str = "VerifyDevice"
    lasting: bool = False

    @property
    def deadline_s(self) -> float:
        """For looking, and for a reading of the chassis where one may be needed."""
        return MARGIN_S + (fabric_deadline_s(self.fabric, FabricStep.LIST) if self.move.port else 0.0)

    @property
    def says(self) -> str:
        """What is done."""
        return "verify identity, BARs, driver and link, and hand over the path"

    async def observe(self, known: Result | None) -> Result | None:
        """It is still there, and the same."""
        return await self._found() if known is not None and self.here()[1] else None

    async def do(self) -> Result:
        """Look at all of it; raise :class:`Conflict` with the cause."""
        tree, device = self.found()
        identity = await identity_of(self.parts, tree, device)
        if not is_meant(self.move, device[0], identity):
            raise Conflict(
                f"attach {self.move.device}: {identity.name} has come below {self.move.bridge} instead",
                hint="farbus fabric list shows what the chassis has at which port; are two cables crossed?",
            )
        if self.move.port and not is_proven(self.move, identity):
            await check_no_other(self.fabric, self.move, identity)
        expected = {(index, bar.index): bar for index, one in enumerate(self.move.functions) for bar in one.bars}
        for index, function in enumerate(device):
            for number in function.bars_unassigned:
                told = expected.get((index, number))
                size = f" of {format_bytes(told.size)}" if told is not None else ""
                raise Conflict(
                    f"attach {self.move.device}: BAR {number}{size} of {function.address} has no place below "
                    f"{self.move.bridge}",
                    hint="farbus doctor says what makes the port's windows larger",
                )
        if wrong := wrong_sizes(self.move, device):
            raise Conflict(f"attach {self.move.device}: {wrong}", hint="see dmesg")
        for function in device:
            known = self.parts.pci.driver_for(
                vendor=function.vendor, device=function.device, pci_class=function.pci_class
            )
            if known and not function.driver:
                raise Conflict(f"attach {self.move.device}: {known} did not take {function.address}", hint="see dmesg")
        return await self._found()

    async def _found(self) -> Result:
        tree, device = self.found()
        first = device[0]
        identity = await identity_of(self.parts, tree, device)
        link = str(first.link) if first.link is not None and first.link.degraded else ""
        return {
            "address": first.address,
            "identity": identity.name,
            "weak": "yes" if identity.weak else "",
            "path": stable_path(self.parts, first),
            "degraded_link": link,
        }

    async def compensate(self) -> None:
        """Nothing was changed."""


@dataclass(frozen=True, kw_only=True)
class OpenDevice(HotplugStep):
    """The device may be used."""

    kind: str = "OpenDevice"
    deadline_s: float = MARGIN_S
    lasting: bool = True

    @property
    def says(self) -> str:
        """What is done."""
        return f"open {self.move.device} for use"

    async def observe(self, known: Result | None) -> Result | None:
        """Ask the gate; a device that nobody has heard of is open, but not by us."""
        return {} if known is not None and not await self.parts.gate.is_closed(self.move.device) else None

    async def do(self) -> Result:
        """Open it."""
        await self.parts.gate.open(self.move.device)
        return {}

    async def compensate(self) -> None:
        """Close it: what follows takes it away."""
        await self.parts.gate.close(self.move.device, reason="it is taken back")


# Detaching.


@dataclass(frozen=True, kw_only=True)
class CloseDevice(HotplugStep):
    """Cordon: nobody new may have the device."""

    kind: str = "CloseDevice"
    deadline_s: float = MARGIN_S
    lasting: bool = True

    @property
    def says(self) -> str:
        """What is done."""
        return f"cordon {self.move.device}"

    async def observe(self, known: Result | None) -> Result | None:
        """Ask the gate."""
        return {} if await self.parts.gate.is_closed(self.move.device) else None

    async def do(self) -> Result:
        """Close it."""
        await self.parts.gate.close(self.move.device, reason="it is detached")
        return {}

    async def compensate(self) -> None:
        """Open it again, unless the kernel has begun to remove it: nobody may have half a device."""
        going = [function.address for function in self.parts.pci.tree().below(self.move.bridge) if function.removing]
        if going:
            raise wedged(going, since=self.move.asked_at)
        await self.parts.gate.open(self.move.device)


@dataclass(frozen=True, kw_only=True)
class DrainDevice(HotplugStep):
    """All holders go, by themselves or evicted."""

    kind: str = "DrainDevice"
    lasting: bool = False
    only_waits: bool = True

    @property
    def deadline_s(self) -> float:
        """What holders are given, and what looking takes."""
        return self.move.drain_s + 2 * self.move.evict_grace_s + 2 * MARGIN_S

    @property
    def says(self) -> str:
        """What is done."""
        what = "evict programs and sessions, and wait" if self.move.evict else "wait"
        return f"{what} until nothing holds it, for {self.move.drain_s:g} s at most"

    async def observe(self, known: Result | None) -> Result | None:
        """It is drained for good when it is gone; else who goes on looks anew, since holders may have come."""
        return {} if not self.here()[1] else None

    async def do(self) -> Result:
        """Look again and again; raise :class:`Conflict` with who is left, and what makes them go."""
        until = self.parts.clock.monotonic() + self.move.drain_s
        evicted = False
        while True:
            _, device = self.here()
            look = await look_at(self.parts, self.move, device)
            if look.clear:
                return {}
            if self.move.evict and not evicted:
                evicted = True
                await self._evict(look)
                continue
            left = until - self.parts.clock.monotonic()
            if left <= 0:
                helps = look.others and not self.move.evict and all(holder.evictable for holder in look.others)
                hint = "end what holds it, or use --evict" if helps else "end what holds it"
                raise Conflict(
                    f"detach {self.move.device}: still held after {self.move.drain_s:g} s: {look.told()}", hint=hint
                )
            await self.parts.clock.sleep(min(DRAIN_INTERVAL_S, left))

    async def _evict(self, look: Look) -> None:
        for holder in look.others:
            if holder.kind is HolderKind.SESSION:
                await self.parts.gate.evict(holder)
            elif holder.evictable:
                await self.parts.holders.evict(holder, grace_s=self.move.evict_grace_s)

    async def compensate(self) -> None:
        """Who has gone comes back by himself."""


@dataclass(frozen=True, kw_only=True)
class QuietGpu(HotplugStep):
    """NVIDIA's driver takes no new clients of the GPU and lets go of it itself."""

    kind: str = "QuietGpu"
    deadline_s: float = MARGIN_S
    lasting: bool = False

    @property
    def says(self) -> str:
        """What is done."""
        if not any(function.is_nvidia_gpu for function in self.move.functions):
            return "nothing to end in NVIDIA's driver: it is none of its GPUs"
        return "end persistence mode and let the GPU take no new clients"

    def _gpus(self) -> tuple[str, ...]:
        return tuple(function.address for function in self.here()[1] if function.is_nvidia_gpu)

    async def observe(self, known: Result | None) -> Result | None:
        """Ask the driver."""
        for address in self._gpus():
            found = await self.parts.nvidia.readiness(address)
            # Without a driver nobody needs to be quiet.
            if found.uuid and (found.persistent or not found.draining):
                return None
        return {}

    async def do(self) -> Result:
        """Persistence first: a GPU that drains takes no such call."""
        for address in self._gpus():
            if (await self.parts.nvidia.readiness(address)).persistent:
                await self.parts.nvidia.set_persistent(address, on=False)
            await self.parts.nvidia.set_draining(address, on=True)
        return {}

    async def compensate(self) -> None:
        """Let it be used as before."""
        for address in self._gpus():
            found = await self.parts.nvidia.readiness(address)
            if found.draining:
                await self.parts.nvidia.set_draining(address, on=False)
            if self.move.persistent and (found.draining or found.uuid):
                await self.parts.nvidia.set_persistent(address, on=True)


@dataclass(frozen=True, kw_only=True)
class RemoveFunctions(HotplugStep):
    """The kernel lets go of all functions of the device."""

    kind: str = "RemoveFunctions"
    lasting: bool = False

    @property
    def devices(self) -> tuple[str, ...]:
        """The device, and the one turn of all removals and scans."""
        return (TURN, self.move.device)

    @property
    def deadline_s(self) -> float:
        """For the kernel, and the last look before."""
        return self.parts.remove_limit_s(self.move) + MARGIN_S

    def overdue(self) -> FarbusError | None:
        """Tell which functions hang."""
        return overdue(self.parts, self.move)

    @property
    def says(self) -> str:
        """What is done."""
        addresses = ", ".join(function.address for function in removal_order(self.here()[1])) or "nothing: it is gone"
        return f"look once more that nothing holds it, and remove {addresses}"

    async def observe(self, known: Result | None) -> Result | None:
        """It is gone."""
        return None if self.here()[1] else {}

    async def do(self) -> Result:
        """Remove it; raise :class:`Conflict` where somebody has come after all."""
        await remove_device(self.parts, self.move)
        return {}

    async def compensate(self) -> None:
        """Scan for it, where it is still assigned to us."""
        if self.move.port and await surely_port_of(self.fabric, self.move) != self.move.port:
            return
        await appear(self.parts, self.move)


@dataclass(frozen=True, kw_only=True)
class UnassignDevice(HotplugStep):
    """The fabric takes the device from this node's port."""

    kind: str = "UnassignDevice"
    lasting: bool = True

    @property
    def deadline_s(self) -> float:
        """What the chassis is given, by what was measured there, with readings before and after."""
        return fabric_deadline_s(self.fabric, FabricStep.UNASSIGN)

    @property
    def says(self) -> str:
        """What is done."""
        seconds = self.fabric.expected_s(FabricStep.UNASSIGN)
        return f"unassign {self.move.device} in chassis {self.move.chassis} ({seconds:.0f} s)"

    async def observe(self, known: Result | None) -> Result | None:
        """It is done when it is on record: one reading may be stale, and who does it reads until he is sure."""
        return await noted(known)

    async def do(self) -> Result:
        """Unassign; the fabric verifies by reading again."""
        await give_back(self.fabric, self.move)
        return {}

    async def compensate(self) -> None:
        """Have it back, unless somebody else has it already."""
        if not await surely_port_of(self.fabric, self.move):
            await self.fabric.assign(self.move.device, self.move.port)
