"""What an operator asks of a device, made into a move of the cluster as it is now, or refused.  Pure."""

from __future__ import annotations

from typing import NoReturn

from farbus.errors import Conflict, InvalidInput, NotFound, Unavailable
from farbus.model.device import whole_of
from farbus.model.fabric import FabricDevice
from farbus.model.move import MoveRequest, MoveState
from farbus.scheduler.device_moves import DeviceMoves
from farbus.scheduler.move_records import ChassisRecord, StoredMove
from farbus.scheduler.stored import describe_shares

Place = tuple[ChassisRecord, FabricDevice]

MEANT = 3
"""Devices that are asked about where the beginning of an id is given: more would not be read."""


def plan_move(machine: DeviceMoves, request: MoveRequest, *, by: str, at: float) -> StoredMove:
    """Return the move that ``request`` means now; ``at`` is the time in seconds since the epoch.

    Raises :class:`NotFound` for what is not there, :class:`Conflict` for a
    device that is in use or on its way, :class:`Unavailable` where an agent
    that is needed has no session.
    """
    request.check()
    if several := machine.slots.several(request.device):
        raise Conflict(
            f"device {request.device}: several have this name: {', '.join(several)}",
            hint="use another name of it (farbus fabric list), or give each a serial in fabric.toml",
        )
    place = machine.slots.find(request.device)
    device = name_of(machine, request.device, place)
    place = place or machine.slots.find(device)
    stuck = _check_idle(machine, device)
    source = _source(machine, device, place)
    if request.node and machine.nodes.get(request.node) is None:
        raise NotFound(f"there is no node {request.node}", hint="farbus nodes lists them")
    if stuck is not None and request.node and request.node == source:
        # It is where it is to be, and has to be given to use again.
        source = ""
    elif request.node and request.node == source:
        _refuse_here(machine, device, place, source)
    if stuck is not None and not request.node and not source:
        # Whatever may be left of it there that node gives up, and only then it is nobody's.
        source = _stuck_at(machine, stuck)
    if not request.node and not source:
        raise Conflict(f"device {device} is at no node", hint="farbus attach brings it to one")
    for name in (source, request.node):
        if name and not machine.node(name).connected:
            raise Unavailable(f"node {name} can't be reached now", hint="farbus nodes says since when")
    chassis, port = _destination(device, place, request, source)
    return StoredMove(
        id=machine.new_move_id(dry_run=request.dry_run),
        device=device,
        from_node=source,
        to_node=request.node,
        chassis=chassis,
        from_port=port_of(place, source),
        port=port,
        evict=request.evict,
        drain_s=request.drain_s,
        dry_run=request.dry_run,
        by=by,
        at=at,
        state=MoveState.DETACHING if source else MoveState.ATTACHING,
    )


def port_of(place: Place | None, node: str) -> str:
    """Return the port by which a node has a device, also where the chassis was read before that; empty for none."""
    if place is None or not node:
        return ""
    chassis, found = place
    ports = chassis.ports_of(node)
    return found.port if found.port in ports else next(iter(ports), "")


def name_of(machine: DeviceMoves, name: str, place: Place | None) -> str:
    """Return what the cluster calls a device: as its nodes do, or else as its chassis does."""
    if whole_of(name) != name and name in machine.devices:
        raise InvalidInput(f"device {name} is a share of {whole_of(name)}", hint="only the whole of it can be moved")
    known = machine.devices.get(name)
    if known is not None and known.device is not None:
        return name
    if place is not None:
        _, found = place
        nodes_names = [
            each
            for each, record in machine.devices.items()
            # It may answer to the name of a drive whose serial begins like its own.
            if record.device and found.answers_to(each) and machine.slots.find(each) in (None, place)
        ]
        return nodes_names[0] if nodes_names else found.id
    if any(machine.devices[share].device is not None for share in machine.related(name) if share in machine.devices):
        return name
    raise NotFound(
        f"there is no device {name}",
        hint=meant_by(machine, name) or "farbus devices and farbus fabric list show what there is",
    )


def meant_by(machine: DeviceMoves, beginning: str) -> str:
    """Ask whether the devices are meant whose ids begin so, as ``farbus top`` shows them; empty where none does."""
    found = sorted(
        each
        for each, record in machine.devices.items()
        if record.device is not None and beginning and each.startswith(beginning)
    )
    return f"did you mean {' or '.join(found[:MEANT])}?" if found else ""


def _check_idle(machine: DeviceMoves, device: str) -> StoredMove | None:
    """Raise :class:`Conflict` for a device that somebody has; return the move that has it and is stuck, if any."""
    for name in (device, *machine.related(device)):
        record = machine.devices.get(name)
        if record is None:
            continue
        if record.lease:
            lease = machine.leases[record.lease].lease
            raise Conflict(
                f"device {name} is used by job {lease.job} of {lease.user} on node {lease.client_node}",
                hint=f"farbus cancel {lease.job} ends it; after farbus cordon {name} nobody else gets it",
            )
        if record.shares:
            raise Conflict(
                f"device {name} is shared: it has {describe_shares(record)}",
                hint="farbus leases and farbus volume list say whose; what is stored on it does not move with it",
            )
        if record.reserved:
            raise Conflict(f"device {name} is kept for job {record.reserved}", hint=f"farbus cancel {record.reserved}")
    held = machine.moves.get(machine.mover_of(device))
    if held is None:
        return None
    if held.move.state is not MoveState.STUCK:
        where = f"to node {held.move.to_node}" if held.move.to_node else f"from node {held.move.from_node}"
        raise Conflict(f"device {device} is on its way {where} (move {held.move.id})", hint="farbus moves shows it")
    return held.move


def _stuck_at(machine: DeviceMoves, move: StoredMove) -> str:
    """Return the node that could neither finish nor undo its part of a move; empty where it is forgotten."""
    last = move.stuck_at or (move.from_node if move.returning else move.to_node)
    return next((name for name in (last, *move.nodes) if name and machine.nodes.get(name) is not None), "")


def _reported_by(machine: DeviceMoves, device: str) -> str:
    """Return the node that has the device among its own, whatever its chassis says; empty for none."""
    for name in (device, *machine.related(device)):
        record = machine.devices.get(name)
        if record is not None and record.device is not None and record.present:
            return record.node
    return ""


def _refuse_here(machine: DeviceMoves, device: str, place: Place | None, node: str) -> NoReturn:
    """Refuse to attach a device to the node that has it, or that only its chassis says has it."""
    if place is None or _reported_by(machine, device):
        raise Conflict(f"device {device} is on node {node} already")
    raise Conflict(
        f"device {device} is assigned to node {node} in chassis {place[0].name} already, and that node has no such "
        "device",
        hint="farbus detach frees it; then attach it again",
    )


def _source(machine: DeviceMoves, device: str, place: Place | None) -> str:
    """Return the node that has the device now, empty where it is at none."""
    if on := _reported_by(machine, device):
        return on
    if place is not None:
        chassis, found = place
        assert chassis.view is not None
        return next((port.node for port in chassis.view.ports if port.id == found.port), "")
    record = machine.devices.get(device)
    if record is not None and record.node and not machine.node(record.node).connected:
        raise Unavailable(f"device {device} is on node {record.node}, which can't be reached now")
    return ""


def _destination(device: str, place: Place | None, request: MoveRequest, source: str) -> tuple[str, str]:
    """Return the chassis that the device is in and the port where it is to come to; both are empty for none."""
    if place is None:
        if request.port:
            raise InvalidInput(f"port: device {device} is in no chassis", hint="farbus fabric list shows what is")
        if request.node and source:
            raise Conflict(
                f"no chassis has device {device}: nothing brings it from node {source} to node {request.node}",
                hint="farbus fabric list shows what is in one; farbus detach takes it from its node",
            )
        return "", ""
    chassis, _ = place
    assert chassis.view is not None
    if not chassis.served_by:
        raise Unavailable(
            f"no agent serves chassis {chassis.name}", hint="start one on a node that has its credentials"
        )
    if not request.node:
        return chassis.name, ""
    port = chassis.view.port(request.port or request.node)
    if port.node != request.node:
        _refuse_port(chassis.name, port.id, port.node, request.node)
    return chassis.name, port.id


def _refuse_port(chassis: str, port: str, node: str, wanted: str) -> NoReturn:
    leads = f"to node {node}" if node else "to no node"
    raise InvalidInput(f"port: {port} of chassis {chassis} leads {leads}, not to node {wanted}")
