"""Styles of a Redfish fabric: zones and connections of endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farbus.hotplug.fabric import redfish_resources as resources
from farbus.hotplug.fabric.driver import Answer
from farbus.hotplug.fabric.errors import BadReply, ChassisBusy
from farbus.hotplug.fabric.http import remark
from farbus.hotplug.fabric.redfish_client import RedfishClient
from farbus.hotplug.fabric.redfish_styles import Assigned, Devices, is_name, note, own
from farbus.model.fabric import FabricDevice


class _Endpoints:
    """What zones and connections have in common: endpoints of devices and of ports."""

    def __init__(self, client: RedfishClient, fabric_id: str) -> None:
        self._client = client
        self._fabric_id = fabric_id
        self._listed: dict[str, str] = {}
        """URIs of all endpoints, also of those that stand for something else, by what they are compared by."""

    async def _fabric(self, root: resources.Root) -> resources.Fabric:
        """Read the fabric that the chassis' devices are in."""
        if root.Fabrics is None:
            raise BadReply(
                f"chassis {self._client.chassis}: its service has no Fabrics", hint="does another style fit?"
            )
        return await self._client.one_of(root.Fabrics, resources.Fabric, self._fabric_id, what="fabric")

    async def _endpoints(self, fabric: resources.Fabric, devices: Devices) -> tuple[dict[str, str], dict[str, str]]:
        """Return the URIs of endpoints by the ``Id`` of their device, and by the id of their port."""
        targets: dict[str, str] = {}
        ports: dict[str, str] = {}
        endpoints = await self._client.members(fabric.Endpoints.uri, resources.Endpoint)
        self._listed = {resources.plain(endpoint.uri): endpoint.uri for endpoint in endpoints}
        for endpoint in endpoints:
            for entity in endpoint.ConnectedEntities:
                link = resources.plain(entity.EntityLink.uri) if entity.EntityLink else ""
                if entity.EntityRole == "Initiator":
                    connected = endpoint.Links.ConnectedPorts
                    name = connected[0].uri.rstrip("/").rpartition("/")[2] if connected else endpoint.Id
                    if not is_name(name):
                        raise BadReply(f"chassis {self._client.chassis}: a port is called {remark(name)!r}")
                    note(ports, name, self._client.uri(endpoint.uri), chassis=self._client.chassis, what="port")
                elif link in devices:
                    handle, uri = devices[link].Id, self._client.uri(endpoint.uri)
                    note(targets, handle, uri, chassis=self._client.chassis, what="device")
        return targets, ports

    def _assign(
        self,
        assigned: dict[str, str],
        *,
        initiators: Sequence[resources.Link],
        targets: Sequence[resources.Link],
        devices: Mapping[str, str],
        ports: Mapping[str, str],
    ) -> tuple[list[str], list[str]]:
        """Enter what one zone or connection says; return its ports and devices."""
        if strange := resources.plain_uris(*initiators, *targets) - self._listed.keys():
            # Its device would look free, or so would the devices of its port.
            raise BadReply(
                f"chassis {self._client.chassis}: endpoint {remark(min(strange))} is assigned, and not listed",
                hint="its service contradicts itself; nothing is done before that is mended",
            )
        ends, others = resources.plain_uris(*initiators), resources.plain_uris(*targets)
        at = [port for port, uri in ports.items() if resources.plain(uri) in ends]
        having = [handle for handle, uri in devices.items() if resources.plain(uri) in others]
        for handle in having if at else []:
            if len(at) > 1 or assigned.get(handle, at[0]) != at[0]:
                raise BadReply(
                    f"chassis {self._client.chassis}: device {handle} is assigned to several ports",
                    hint="its service contradicts itself; nothing is done before that is mended",
                )
            assigned[handle] = at[0]
        return at, having

    def _uris(self, known: Assigned, device: FabricDevice, port: str) -> tuple[str, str]:
        endpoint = own(known, device, chassis=self._client.chassis, what="endpoint")
        if port not in known.ports:
            raise BadReply(f"chassis {self._client.chassis}: port {port} has no endpoint")
        return endpoint, known.ports[port]


class Zones(_Endpoints):
    """A port has a zone, which has its endpoint and those of its devices."""

    async def read(self, root: resources.Root, devices: Devices) -> Assigned:
        """See :class:`Style`."""
        fabric = await self._fabric(root)
        if fabric.Zones is None:
            raise BadReply(f"chassis {self._client.chassis}: its fabric has no Zones", hint="does another style fit?")
        targets, ports = await self._endpoints(fabric, devices)
        port_of: dict[str, str] = {}
        zones: dict[str, str] = {}
        for zone in await self._client.members(fabric.Zones.uri, resources.Zone):
            links = zone.Links.Endpoints
            at, _ = self._assign(port_of, initiators=links, targets=links, devices=targets, ports=ports)
            zones |= {port: self._client.uri(zone.uri) for port in at}
        return Assigned(port_of, targets, ports, zones)

    async def assign(self, known: Assigned, device: FabricDevice, port: str) -> Answer:
        """See :class:`Style`."""
        return await self._write(known, device, port, present=True)

    async def unassign(self, known: Assigned, device: FabricDevice) -> Answer:
        """See :class:`Style`."""
        return await self._write(known, device, device.port, present=False)

    async def _write(self, known: Assigned, device: FabricDevice, port: str, *, present: bool) -> Answer:
        endpoint, _ = self._uris(known, device, port)
        if port not in known.holders:
            raise BadReply(f"chassis {self._client.chassis}: port {port} has no zone")
        # Read anew, so that the list that is written is the one that its ETag stands for.
        zone = await self._client.get(known.holders[port], resources.Zone)
        others = [uri for uri in resources.own_uris(zone.Links.Endpoints, self._listed) if uri != endpoint]
        links = others + ([endpoint] if present else [])
        body = {"Links": {"Endpoints": [{"@odata.id": uri} for uri in links]}}
        if not zone.etag:
            raise BadReply(f"chassis {self._client.chassis}: zone of port {port} has no ETag, so writers could collide")
        return await self._client.change("PATCH", known.holders[port], body, etag=zone.etag)


class Connections(_Endpoints):
    """A connection leads from a port's endpoint to that of each of its devices."""

    async def read(self, root: resources.Root, devices: Devices) -> Assigned:
        """See :class:`Style`."""
        fabric = await self._fabric(root)
        if fabric.Connections is None:
            raise BadReply(
                f"chassis {self._client.chassis}: its fabric has no Connections", hint="does another style fit?"
            )
        self._collection = self._client.uri(fabric.Connections.uri)
        targets, ports = await self._endpoints(fabric, devices)
        port_of: dict[str, str] = {}
        connections: dict[str, str] = {}
        for connection in await self._client.members(fabric.Connections.uri, resources.Connection):
            _, having = self._assign(
                port_of,
                initiators=connection.Links.InitiatorEndpoints,
                targets=connection.Links.TargetEndpoints,
                devices=targets,
                ports=ports,
            )
            connections |= {handle: self._client.uri(connection.uri) for handle in having}
        return Assigned(port_of, targets, ports, connections)

    async def assign(self, known: Assigned, device: FabricDevice, port: str) -> Answer:
        """See :class:`Style`."""
        target, initiator = self._uris(known, device, port)
        body = {
            "Links": {
                "InitiatorEndpoints": [{"@odata.id": initiator}],
                "TargetEndpoints": [{"@odata.id": target}],
            }
        }
        return await self._client.change("POST", self._collection, body)

    async def unassign(self, known: Assigned, device: FabricDevice) -> Answer:
        """See :class:`Style`."""
        target, initiator = self._uris(known, device, device.port)
        what = f"chassis {self._client.chassis}: connection of device {device.id}"
        if device.handle not in known.holders:
            raise ChassisBusy(f"{what} is gone meanwhile")
        # Read anew: all that it says goes with it, and it may lead elsewhere by now.
        connection = await self._client.get(known.holders[device.handle], resources.Connection)
        initiators = resources.plain_uris(*connection.Links.InitiatorEndpoints)
        targets = resources.plain_uris(*connection.Links.TargetEndpoints)
        if resources.plain(initiator) not in initiators or resources.plain(target) not in targets:
            raise ChassisBusy(f"{what} leads elsewhere meanwhile")
        if others := targets - {resources.plain(target)}:
            raise BadReply(f"{what} leads to {remark(min(others))} too: none of them can be moved without the others")
        return await self._client.change("DELETE", known.holders[device.handle], etag=connection.etag)
