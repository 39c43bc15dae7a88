"""Where the cables of chassis come out on this node: which bridge a device will be below, before it is there.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from farbus.errors import Conflict
from farbus.hotplug.parts import is_of_kind
from farbus.model.fabric import ChassisView, FabricDevice
from farbus.model.pci import Function, PciTree

Ports = Mapping[str, tuple[str, ...]]
"""Bridges by ``CHASSIS/PORT``, in the order in which the chassis fills them."""


def port_name(chassis: str, port: str) -> str:
    """Return how settings call a chassis's port."""
    return f"{chassis}/{port}"


def bridge_for(
    tree: PciTree, ports: Ports, *, device: str, chassis: str, port: str, taken: Collection[str] = ()
) -> str:
    """Return the bridge below which a device will be that is assigned to a port.

    The first free one of those that are set for the port; where nothing is
    set, the only hot-plug port of the node that is free.  ``taken`` are bridges
    where something else is on its way.  Raises :class:`Conflict` with what to set.
    """
    named = port_name(chassis, port)
    is_set = named in ports
    found = list(_set_for(tree, ports[named], named) if is_set else _hot_plug(tree, tree.functions))
    free = [bridge.address for bridge in found if not tree.below(bridge.address) and bridge.address not in taken]
    what = f"attach {device}"
    if is_set and free:
        return free[0]
    if len(free) == 1:
        return free[0]
    setting = f'fabric_ports = {{ "{named}" = ["0000:00:03.0"] }}'
    if not found and not is_set:
        raise Conflict(
            f"{what}: this node has no hot-plug port",
            hint="farbus doctor there says why; fabric_ports may name a bridge that the kernel does not take for one",
        )
    if not free:
        where = f"port {named} of the chassis" if is_set else "this node"
        raise Conflict(f"{what}: no hot-plug port of {where} is free", hint="detach what is there, or set fabric_ports")
    raise Conflict(
        f"{what}: {len(free)} hot-plug ports are free, and nothing says which of them is port {named} of the chassis",
        hint=f"set it in this node's agent.toml, such as {setting}; farbus devices --tree shows the bridges",
    )


def bridges_of(tree: PciTree, ports: Ports, *, chassis: str, port: str) -> tuple[str, ...]:
    """Return the bridges below which devices of a port are; all hot-plug ports where nothing is set."""
    named = port_name(chassis, port)
    if named in ports:
        return tuple(one.address for address in ports[named] for one in _ends(tree, address))
    return tuple(one.address for one in _hot_plug(tree, tree.functions))


def names_by_chassis(
    tree: PciTree, ports: Ports, views: Collection[ChassisView], *, node: str, named: Collection[str] = ()
) -> dict[str, str]:
    """Return what chassis call devices of this node, by the address of their first function.

    Only what is certain: one device is assigned to a port, and one device is
    below its bridges, which it may be by its ids and class.  ``named`` are addresses that have names of their own.
    """
    found: dict[str, str] = {}
    for view in views:
        for port in view.ports:
            if port.node != node or port_name(view.chassis, port.id) not in ports:
                continue
            assigned = view.at(port.id)
            bridges = bridges_of(tree, ports, chassis=view.chassis, port=port.id)
            there = [
                below[0].address
                for bridge in bridges
                if (below := [one for one in tree.below(bridge) if not one.is_bridge])
            ]
            if len(assigned) == len(there) == 1 and there[0] not in named and _may_be(tree.at(there[0]), assigned[0]):
                found[there[0]] = assigned[0].id
    return found


def _may_be(function: Function, device: FabricDevice) -> bool:
    """Say whether a function may be a device of a chassis: a reading may be stale, and another one be there."""
    ids = (device.vendor_id, device.device_id)
    return (not all(ids) or ids == (function.vendor, function.device)) and is_of_kind(function, device.kind)


def _set_for(tree: PciTree, addresses: Collection[str], named: str) -> Iterator[Function]:
    for address in addresses:
        if tree.get(address) is None:
            raise Conflict(
                f"fabric_ports: {named}: there is no bridge {address} on this node",
                hint="farbus devices --tree shows the bridges",
            )
        yield from _ends(tree, address)


def _ends(tree: PciTree, address: str) -> Iterator[Function]:
    """Yield a bridge, or the hot-plug ports below it where it is the upstream port of a switch."""
    below = [one for one in tree.subtree(address) if one.is_bridge]
    ports = [one for one in below[1:] if tree.slot_below(one.address) is not None]
    yield from ports or below[:1]


def _hot_plug(tree: PciTree, functions: Collection[Function]) -> Iterator[Function]:
    return (one for one in functions if one.is_bridge and tree.slot_below(one.address) is not None)
