"""What this node has, what of it is offered, and who is told of what comes and goes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from farbus.agent.chassis import ChassisDesk
from farbus.agent.config import AgentConfig
from farbus.agent.doors import Doors
from farbus.agent.inventory import Inventory, take_inventory
from farbus.agent.moves import AgentGate, Moves
from farbus.agent.ports import names_by_chassis
from farbus.agent.state_files import read_state, write_state
from farbus.agent.storage import NodeStorage
from farbus.hotplug.parts import Parts
from farbus.hotplug.times import BusHistory, BusTimes
from farbus.model.device import Device, DeviceKind, whole_of
from farbus.model.pci import PciTree

_log = structlog.get_logger()

INVENTORY_INTERVAL_S = 30.0
"""How often the node's devices are listed again."""


class NodeDevices:
    """The devices of this node, which are listed again and again.

    ``moves`` and ``storage`` are set, where this agent has them, before the
    first look; ``changed`` and ``vanished`` once there is somebody to be told.
    """

    def __init__(self, config: AgentConfig, doors: Doors, desk: ChassisDesk) -> None:
        self.config = config
        self.gate = AgentGate()
        """Keeps what is being moved from being offered."""
        self.here: dict[str, Device] = {}
        """All that are here by id, offered or not."""
        self.desk = desk
        self.soon = asyncio.Event()
        """Set when devices are to be listed before their time."""
        self.changed: Callable[[], None] = _nobody_is_told
        """Called when what is offered is not what it was."""
        self.vanished: Callable[[tuple[str, ...]], None] = _nobody_loses
        """Called with the ids of what is not here any more."""
        self._doors = doors
        self._gpus: dict[str, str] = {}
        """UUIDs of this node's GPUs, by PCI address."""
        self._inventory: Inventory | None = None
        self._looking = asyncio.Lock()
        self.parts = self._make_parts()
        """What moves of these devices work with; None where this agent offers no devices of the machine."""
        self.moves: Moves | None = None
        self.storage: NodeStorage | None = None

    def _make_parts(self) -> Parts | None:
        doors = self._doors
        nvml = next((source.nvml for source in doors.gpu_sources if not source.software), None)
        if not self.config.physical_devices or nvml is None:
            return None
        if doors.pci is None or doors.uevents is None or doors.holders is None or doors.nvidia is None:
            return None
        times = Path(self.config.state) / "bus_times.json"
        return Parts(
            pci=doors.pci,
            holders=doors.holders,
            nvidia=doors.nvidia,
            nvml=nvml,
            uevents=doors.uevents,
            clock=doors.clock,
            gate=self.gate,
            drives=doors.sysfs.nvme_controllers,
            gpus=lambda: self._gpus,
            fabrics=self.desk.of,
            called=self._called,
            times=BusTimes(
                read_state(times, BusHistory, default=BusHistory()), keep=functools.partial(write_state, times)
            ),
        )

    @property
    def known(self) -> Inventory:
        """What the last look has found, of devices those that are offered."""
        assert self._inventory is not None
        return self._inventory

    async def look(self) -> bool:
        """List the node's devices; say whether what is offered has changed."""
        doors = self._doors
        found = await take_inventory(
            self.config,
            facts=doors.facts,
            sysfs=doors.sysfs,
            gpu_sources=doors.gpu_sources,
            names=self._named,
            storage=self.storage.offer if self.storage is not None else None,
            moved={result.get("address", "") for result in self.moves.attached.values()} if self.moves else (),
        )
        self.here = {device.id: device for device in found.node.devices}
        self._gpus = _gpus_of(found.node.devices)
        # What is closed is here, and offered to nobody.
        closed = self.gate.closed()
        coming = self._coming()
        offered = tuple(
            device
            for device in found.node.devices
            if whole_of(device.id) not in closed and device.pci_address not in coming
        )
        attach_s = self.storage.attach_s if self.storage is not None else 0.0
        known = msgspec.structs.replace(found.node, devices=offered, storage_attach_s=attach_s)
        found = msgspec.structs.replace(found, node=known)
        before, self._inventory = self._inventory, found
        for trouble in found.troubles:
            if before is None or trouble not in before.troubles:
                _log.error("devices not listed", reason=trouble)
        for told in found.left_out:
            if before is None or told not in before.left_out:
                _log.warning("device not listed", reason=told)
        return before is None or before.node != found.node

    async def look_again(self) -> None:
        """List them, and tell what has changed."""
        # Of two looks at a time the one that began first might end last, and bring back what is gone.
        async with self._looking:
            before = set(self.here)
            changed = await self.look()
            # A driver that does not answer has not lost its devices.
            if not self.known.troubles and (gone := before - set(self.here)):
                self.vanished(tuple(sorted(gone)))
            if changed:
                _log.info("inventory changed", devices=sorted(device.id for device in self.known.node.devices))
                self.changed()

    async def keep_looking(self) -> None:
        """List them every half minute, and when somebody wants it sooner."""
        while True:
            timer = asyncio.create_task(self._doors.clock.sleep(INVENTORY_INTERVAL_S), name="next inventory")
            soon = asyncio.create_task(self.soon.wait(), name="inventory soon")
            try:
                await asyncio.wait({timer, soon}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
                soon.cancel()
            self.soon.clear()
            await self.look_again()

    def _named(self, devices: Sequence[Device]) -> dict[str, str]:
        """Return what devices are called wherever they are, by the address of their first function."""
        if self.parts is None:
            return {}
        self._gpus = _gpus_of(devices)
        names = self.parts.names(self.parts.pci.tree())
        return {address: identity.name for address, identity in names.items()}

    def _called(self, tree: PciTree) -> dict[str, str]:
        """Return what moves and chassis call devices that have no name of their own, by address."""
        views = [chassis.view for chassis in self.desk.known if chassis.view is not None]
        found = names_by_chassis(tree, self.config.fabric_ports, views, node=self.config.name)
        attached = self.moves.attached if self.moves is not None else {}
        return {**found, **{result["address"]: device for device, result in attached.items() if "address" in result}}

    def _coming(self) -> frozenset[str]:
        """Return the addresses of what is being attached: it is offered once it is verified and opened."""
        if self.moves is None or self.parts is None:
            return frozenset()
        return self.moves.coming(self.parts.pci.tree())


def _gpus_of(devices: Sequence[Device]) -> dict[str, str]:
    """Return the UUIDs of real GPUs by their PCI addresses."""
    return {
        device.pci_address: whole_of(device.id)
        for device in devices
        if device.kind is DeviceKind.GPU and not device.software and device.pci_address
    }


def _nobody_is_told() -> None:
    pass


def _nobody_loses(_devices: tuple[str, ...]) -> None:
    pass
