"""Puts together what moves this node's devices, what has users let go of them, and what looks for missing ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from farbus.agent.events import DeviceClosed, DeviceOpened, LeasesVoided
from farbus.agent.moves import Moves
from farbus.agent.moving import Moving
from farbus.agent.node_devices import NodeDevices
from farbus.agent.orphans import Orphans
from farbus.agent.ports import Ports, bridges_of
from farbus.agent.service import AgentService
from farbus.agent.session import SessionRunner
from farbus.errors import FarbusError, NotFound
from farbus.hotplug.parts import Move, Parts
from farbus.hotplug.sequences import HotScan
from farbus.linux.clock import Clock
from farbus.model.device import whole_of
from farbus.model.fabric import ChassisView, FabricDevice
from farbus.model.holders import Holder, HolderKind

_log = structlog.get_logger()


def make_moving(
    devices: NodeDevices,
    *,
    boot_id: str,
    service: AgentService,
    session: SessionRunner,
    group: asyncio.TaskGroup,
    clock: Clock,
) -> Moving | None:
    """Return what moves devices when it is asked to; None where this agent offers no devices of the machine."""
    parts, moves, config = devices.parts, devices.moves, devices.config
    if parts is None or moves is None:
        return None
    leases = _Leases(config.name, service, devices)
    devices.gate.sessions, devices.gate.end_session, devices.gate.told = leases.of, leases.end, leases.told
    moves.changed = devices.soon.set
    moving = Moving(
        node=config.name,
        boot_id=boot_id,
        moves=moves,
        gate=devices.gate,
        parts=parts,
        ports=config.fabric_ports,
        group=group,
        told=session.move_progress,
    )
    search = _Search(parts, moves, config.fabric_ports, clock)
    orphans = Orphans(
        Path(config.state) / "orphans.json",
        node=config.name,
        ports=config.fabric_ports,
        clock=clock,
        tree=parts.pci.tree,
        names=parts.names,
        busy=search.is_moved,
        scan=search.scan_for,
    )
    moving.orphans = orphans.troubles
    devices.desk.read = _OrphanLooks(orphans, moving, group).read
    return moving


class _Leases:
    """The leases by which devices are used here: who moves one has them asked, ended, and kept from coming anew."""

    def __init__(self, node: str, service: AgentService, devices: NodeDevices) -> None:
        self._node = node
        self._service = service
        self._devices = devices

    def of(self, device: str) -> tuple[Holder, ...]:
        return tuple(
            Holder(
                kind=HolderKind.SESSION,
                name=held.lease.id,
                user=held.lease.user,
                cure=f"farbus cancel {held.lease.job}",
            )
            for held in self._service.machine.held()
            if held.device_side and any(whole_of(one.device) == device for one in held.lease.devices)
        )

    async def end(self, holder: Holder) -> None:
        reason = f"evicted from node {self._node}: its device is moved"
        self._service.post(LeasesVoided(lease_ids=(holder.name,), reason=reason))
        # One that can't be given up is told by the next look at who holds the device.
        await self._service.until(
            lambda machine: all(
                held.lease.id != holder.name or not held.device_side or held.trouble for held in machine.held()
            )
        )

    async def told(self, device: str, reason: str) -> None:
        """A device is closed for that reason, or open again."""
        if reason:
            self._service.post(DeviceClosed(device=device, reason=reason))
        else:
            self._service.post(DeviceOpened(device=device))
        # Requests that came before it are answered by then: who looks at holders afterwards sees theirs.
        await self._service.until(lambda machine: machine.is_closed(device) == bool(reason))
        self._devices.soon.set()


class _Search:
    """Scans the bus for what a chassis has assigned to this node and the kernel has not found."""

    def __init__(self, parts: Parts, moves: Moves, ports: Ports, clock: Clock) -> None:
        self._parts = parts
        self._moves = moves
        self._ports = ports
        self._clock = clock

    def is_moved(self, device: FabricDevice) -> bool:
        moves = self._moves
        return any(device.answers_to(name) for name in (*moves.under_way, *moves.stuck))

    async def scan_for(self, device: FabricDevice, view: ChassisView) -> None:
        """Look below each bridge where it may be."""
        tree = self._parts.pci.tree()
        bridges = bridges_of(tree, self._ports, chassis=view.chassis, port=device.port)
        for bridge in bridges:
            if tree.below(bridge):
                continue
            move = Move(
                device=device.id,
                bridge=bridge,
                chassis=view.chassis,
                port=device.port,
                kind=device.kind,
                uuid=device.uuid,
                serial=device.serial,
                vendor=device.vendor_id,
                device_id=device.device_id,
                asked_at=self._clock.wall(),
            )
            async with self._moves.turn(device.id):
                try:
                    await self._moves.perform(HotScan(move=move))
                except (FarbusError, OSError) as error:
                    _log.warning("not there", device=device.id, bridge=bridge, error=str(error))
                else:
                    return
        where = (
            f"not below {', '.join(bridges)}" if bridges else f"no bridge here is known to lead to port {device.port}"
        )
        raise NotFound(f"device {device.id}: {where}", hint="see dmesg, and fabric_ports of the agent")


class _OrphanLooks:
    """Looks for orphans after each reading of a chassis, once what an earlier agent began to move is settled."""

    def __init__(self, orphans: Orphans, moving: Moving, group: asyncio.TaskGroup) -> None:
        self._orphans = orphans
        self._moving = moving
        self._group = group
        self._looks: set[str] = set()

    def read(self, view: ChassisView) -> None:
        # One at a time: a scan for what is missing takes a while, and leads to readings of its own.
        if view.chassis not in self._looks:
            self._looks.add(view.chassis)
            self._group.create_task(self._look(view), name=f"orphans of chassis {view.chassis}")

    async def _look(self, view: ChassisView) -> None:
        try:
            await self._moving.recovered.wait()
            await self._orphans.look(view)
        finally:
            self._looks.discard(view.chassis)
