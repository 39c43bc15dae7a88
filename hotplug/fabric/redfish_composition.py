"""Styles of Redfish's composition (DSP2050): blocks that actions move, and systems composed of them."""

from __future__ import annotations

from collections.abc import Mapping

from farbus.hotplug.fabric import redfish_resources as resources
from farbus.hotplug.fabric.driver import Answer
from farbus.hotplug.fabric.errors import BadReply, ChassisBusy
from farbus.hotplug.fabric.http import remark
from farbus.hotplug.fabric.redfish_client import RedfishClient
from farbus.hotplug.fabric.redfish_styles import Assigned, Devices, is_name, note, own
from farbus.model.fabric import FabricDevice


async def _collections(client: RedfishClient, root: resources.Root) -> tuple[str, str]:
    """Return the URIs of the collections of blocks and of systems."""
    if root.CompositionService is None or root.Systems is None:
        raise BadReply(
            f"chassis {client.chassis}: its service has no CompositionService", hint="does another style fit?"
        )
    service = await client.get(client.uri(root.CompositionService.uri), resources.Service)
    return service.ResourceBlocks.uri, root.Systems.uri


class Blocks:
    """Each device is a resource block, each port a computer system; actions add and remove blocks."""

    def __init__(self, client: RedfishClient) -> None:
        self._client = client

    async def read(self, root: resources.Root, devices: Devices) -> Assigned:
        """See :class:`Style`."""
        all_blocks, all_systems = await _collections(self._client, root)
        systems = await self._client.members(all_systems, resources.System)
        port_at = {resources.plain(system.uri): system.Id for system in systems}
        port_of: dict[str, str] = {}
        blocks: dict[str, str] = {}
        for block in await self._client.members(all_blocks, resources.Block):
            for link in block.Links.PCIeDevices:
                device = devices.get(resources.plain(link.uri))
                if device is None:
                    continue
                handle = device.Id
                note(blocks, handle, self._client.uri(block.uri), chassis=self._client.chassis, what="device")
                at = [self._port(port_at, handle, system.uri) for system in block.Links.ComputerSystems]
                if len(at) > 1:
                    raise BadReply(f"chassis {self._client.chassis}: device {handle} is assigned to several ports")
                if at:
                    port_of[handle] = at[0]
        return Assigned(port_of, blocks, {system.Id: self._client.uri(system.uri) for system in systems})

    def _port(self, port_at: Mapping[str, str], handle: str, system: str) -> str:
        port = port_at.get(resources.plain(system))
        if port is None:
            # Not free: to call it so would be to give it away.
            raise BadReply(
                f"chassis {self._client.chassis}: device {handle} is in system {remark(system)}, which is not listed"
            )
        return port

    async def assign(self, known: Assigned, device: FabricDevice, port: str) -> Answer:
        """See :class:`Style`."""
        return await self._act("AddResourceBlock", known, device, port)

    async def unassign(self, known: Assigned, device: FabricDevice) -> Answer:
        """See :class:`Style`."""
        return await self._act("RemoveResourceBlock", known, device, device.port)

    async def _act(self, action: str, known: Assigned, device: FabricDevice, port: str) -> Answer:
        uri = own(known, device, chassis=self._client.chassis, what="resource block")
        if port not in known.ports:
            raise BadReply(f"chassis {self._client.chassis}: there is no system {port}")
        block = await self._client.get(uri, resources.Block)
        system = known.ports[port]
        body = {"ResourceBlock": {"@odata.id": block.uri}, "ResourceBlockETag": block.etag}
        return await self._client.change("POST", f"{system}/Actions/ComputerSystem.{action}", body)


class Composed:
    """A system is composed of a node's own block and of devices' blocks, by ``POST``, and changed by ``PATCH``.

    A port is a node's block: it has that before it has a system, and after.
    """

    def __init__(self, client: RedfishClient) -> None:
        self._client = client

    async def read(self, root: resources.Root, devices: Devices) -> Assigned:
        """See :class:`Style`."""
        all_blocks, self._systems = await _collections(self._client, root)
        targets: dict[str, str] = {}
        nodes: dict[str, str] = {}
        listed = await self._client.members(all_blocks, resources.Block)
        self._listed = {resources.plain(block.uri): block.uri for block in listed}
        for block in listed:
            uri = self._client.uri(block.uri)
            if block.ComputerSystems:
                name = block.ComputerSystems[0].uri.rstrip("/").rpartition("/")[2]
                if not is_name(name):
                    raise BadReply(f"chassis {self._client.chassis}: a port is called {remark(name)!r}")
                note(nodes, name, uri, chassis=self._client.chassis, what="port")
            for link in block.Links.PCIeDevices:
                device = devices.get(resources.plain(link.uri))
                if device is not None:
                    note(targets, device.Id, uri, chassis=self._client.chassis, what="device")
        port_of: dict[str, str] = {}
        systems: dict[str, str] = {}
        for system in await self._client.members(self._systems, resources.System):
            blocks = resources.plain_uris(*system.Links.ResourceBlocks)
            ports = [port for port, uri in nodes.items() if resources.plain(uri) in blocks]
            having = [handle for handle, uri in targets.items() if resources.plain(uri) in blocks]
            if having and len(ports) != 1:
                # Neither free nor at a port: to call it either would be to give it away.
                raise BadReply(
                    f"chassis {self._client.chassis}: device {having[0]} is in system {remark(system.Id)}, "
                    f"which has {len(ports)} nodes"
                )
            for port in ports:
                if port in systems:
                    raise BadReply(f"chassis {self._client.chassis}: port {port} is in several systems")
                systems[port] = self._client.uri(system.uri)
            for handle in having:
                if handle in port_of:
                    raise BadReply(f"chassis {self._client.chassis}: device {handle} is assigned to several ports")
                port_of[handle] = ports[0]
        return Assigned(port_of, targets, nodes, systems)

    async def assign(self, known: Assigned, device: FabricDevice, port: str) -> Answer:
        """See :class:`Style`."""
        block = self._block(known, device)
        if port not in known.ports:
            raise BadReply(f"chassis {self._client.chassis}: no node's block is that of port {port}")
        if port not in known.holders:
            body = _blocks([known.ports[port], block])
            return await self._client.change("POST", self._client.uri(self._systems), body)
        return await self._patch(known.holders[port], block, present=True)

    async def unassign(self, known: Assigned, device: FabricDevice) -> Answer:
        """See :class:`Style`. The system stays, though nothing but its node be left of it."""
        block = self._block(known, device)
        if device.port not in known.holders:
            raise ChassisBusy(f"chassis {self._client.chassis}: system of port {device.port} is gone meanwhile")
        return await self._patch(known.holders[device.port], block, present=False)

    def _block(self, known: Assigned, device: FabricDevice) -> str:
        return own(known, device, chassis=self._client.chassis, what="resource block")

    async def _patch(self, uri: str, block: str, *, present: bool) -> Answer:
        # Read anew, so that the list that is written is the one that its ETag stands for.
        system = await self._client.get(uri, resources.System)
        if not system.etag:
            raise BadReply(
                f"chassis {self._client.chassis}: system {remark(system.Id)} has no ETag, so writers could collide"
            )
        others = [uri for uri in resources.own_uris(system.Links.ResourceBlocks, self._listed) if uri != block]
        body = _blocks(others + ([block] if present else []))
        return await self._client.change("PATCH", uri, body, etag=system.etag)


def _blocks(uris: list[str]) -> dict[str, object]:
    return {"Links": {"ResourceBlocks": [{"@odata.id": uri} for uri in uris]}}
