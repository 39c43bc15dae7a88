"""The dialect of Redfish (DMTF DSP0266, DSP0268; composition: DSP2050).

A chassis is a ``Chassis`` with ``PCIeDevices`` and a ``Fabric``: an endpoint
for each device (a target) and for each port (an initiator).  What is assigned
can be said, and changed, in three ways, which differ between chassis:

========== ============================================================ ==========================================
style      assigned means                                               changed by
========== ============================================================ ==========================================
zones      a zone has the port's endpoint and the device's              ``PATCH`` of the zone's ``Links.Endpoints``
connections a connection leads from the one endpoint to the other        ``POST`` and ``DELETE`` of connections
blocks     a resource block with the device is linked by a system       actions ``Add``/``RemoveResourceBlock``
========== ============================================================ ==========================================

Changes are made with ``If-Match``, so that of two writers one is told; what
takes long answers 202 with a task monitor, which is asked until it is done.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from farbus.errors import FarbusError, InvalidInput
from farbus.hotplug.fabric import redfish_resources as resources
from farbus.hotplug.fabric.driver import Answer
from farbus.hotplug.fabric.errors import BadReply, ChassisBusy, ChassisRefused
from farbus.hotplug.fabric.http import Reply, Request, Transport, check_status, decode_reply, remark
from farbus.linux.clock import Clock
from farbus.model.device import DeviceKind
from farbus.model.fabric import ChassisView, FabricDevice, FabricPort, RedfishStyle, device_uuid

ROOT = "/redfish/v1/"
SESSIONS = "/redfish/v1/SessionService/Sessions"

MAX_MEMBERS = 4096
MAX_PAGES = 64
MAX_URI = 1024
MAX_POLL_S = 10.0
FIRST_POLL_S = 0.25
"""Seconds until a task is asked for the first time; each next time after twice as long, to ``MAX_POLL_S``."""

SAID_NO = frozenset({400, 404, 405, 422})

_URI = re.compile(r"/redfish/v1(/[A-Za-z0-9._~$%:@+=?&()',*;-]*)*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/ -]*")

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True)
class Credentials:
    """Name and password for a session; neither is shown in texts."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class Assigned:
    """What a style has read: which port each device (by its handle) is assigned to, and where to change that."""

    port_of: Mapping[str, str]
    uris: Mapping[str, str]
    """By handle of a device: its endpoint's URI, or its block's."""
    ports: Mapping[str, str]
    """By id of a port: its endpoint's URI, or its system's."""
    holders: Mapping[str, str] = field(default_factory=dict)
    """By id of a port its zone's URI; or by handle of a device its connection's."""


class RedfishDriver:
    """A :class:`farbus.hotplug.fabric.driver.Driver` of one Redfish chassis.

    ``chassis_id`` and ``fabric_id`` name the resources where the service has several.
    """

    def __init__(
        self,
        chassis: str,
        transport: Transport,
        *,
        clock: Clock,
        credentials: Credentials | None = None,
        ports: Mapping[str, str] | None = None,
        style: RedfishStyle = RedfishStyle.ZONES,
        chassis_id: str = "",
        fabric_id: str = "",
        parallel: int = 1,
    ) -> None:
        self.chassis = chassis
        self.parallel = parallel
        self._transport = transport
        self._clock = clock
        self._credentials = credentials
        self._nodes = dict(ports or {})
        self._chassis_id = chassis_id
        self._fabric_id = fabric_id
        self._token = ""
        self._session = ""
        self._logging_in = asyncio.Lock()
        self._expand = False
        self._functions: dict[tuple[str, str], resources.PCIeFunction] = {}
        self._style = STYLES[style](self)
        self._assigned: Assigned | None = None

    async def read(self) -> ChassisView:
        """See :class:`Driver`."""
        root = await self.get(ROOT, resources.Root)
        self._expand = root.ProtocolFeaturesSupported.ExpandQuery.Levels
        chassis = await self._one_of(root.Chassis, resources.Chassis, self._chassis_id, what="chassis")
        if chassis.PCIeDevices is None:
            raise BadReply(f"chassis {self.chassis}: {remark(chassis.Id)} has no PCIeDevices")
        listed = await self.members(chassis.PCIeDevices.uri, resources.PCIeDevice)
        assigned = await self._style.read(root, {device.uri: device for device in listed})
        devices: dict[str, FabricDevice] = {}
        for each in listed:
            device = await self._device(each, assigned)
            if device.id in devices:
                raise BadReply(f"chassis {self.chassis}: device {device.id} is listed twice")
            devices[device.id] = device
        ports = self._nodes | {port: self._nodes.get(port, "") for port in assigned.ports}
        self._assigned = assigned
        return ChassisView(
            chassis=self.chassis,
            ports=tuple(FabricPort(id=port, node=ports[port]) for port in sorted(ports)),
            devices=tuple(devices[key] for key in sorted(devices)),
        )

    async def _device(self, device: resources.PCIeDevice, assigned: Assigned) -> FabricDevice:
        for name, value in (("Id", device.Id), ("SerialNumber", device.SerialNumber), ("UUID", device.UUID)):
            if value and (len(value) > 256 or not _NAME.fullmatch(value)):
                raise BadReply(f"chassis {self.chassis}: {name} of a device is {remark(value)!r}")
        if not device.Id:
            raise BadReply(f"chassis {self.chassis}: a device has no Id")
        key = (device.uri, device.SerialNumber or device.UUID or device.Id)
        if key not in self._functions:
            # The ids of a function stay as long as the card does, so they are read once.
            functions = (
                await self.members(device.PCIeFunctions.uri, resources.PCIeFunction) if device.PCIeFunctions else []
            )
            self._functions[key] = functions[0] if functions else resources.PCIeFunction()
        function = self._functions[key]
        kind = _kind(function.ClassCode or "")
        uuid = device_uuid(kind, device.UUID or "")
        return FabricDevice(
            id=uuid or device.SerialNumber or device.Id,
            handle=device.Id,
            kind=kind,
            model=remark(device.Model or ""),
            serial=device.SerialNumber or "",
            uuid=uuid,
            vendor_id=_number(function.VendorId),
            device_id=_number(function.DeviceId),
            slot=remark(device.Name),
            port=assigned.port_of.get(device.Id, ""),
            healthy=device.Status.Health in (None, "OK"),
        )

    async def ask_assign(self, device: FabricDevice, port: str) -> Answer:
        """See :class:`Driver`."""
        return await self._style.assign(await self._known(), device, port)

    async def ask_unassign(self, device: FabricDevice) -> Answer:
        """See :class:`Driver`."""
        return await self._style.unassign(await self._known(), device)

    async def _known(self) -> Assigned:
        if self._assigned is None:
            await self.read()
        assert self._assigned is not None
        return self._assigned

    async def close(self) -> None:
        """See :class:`Driver`. The session is deleted, since a chassis has few of them."""
        try:
            if self._token and self._session:
                await self._transport.exchange(Request("DELETE", self._session, None, {"X-Auth-Token": self._token}))
        except FarbusError:
            # It ends by itself when nobody uses it.
            pass
        finally:
            self._token = ""
            await self._transport.close()

    async def ask(self, method: str, path: str, body: Any = None, *, etag: str = "") -> Reply:
        """Send one request in the session, which is opened, or opened anew, where that is needed."""
        headers = {"OData-Version": "4.0"} | ({"If-Match": etag} if etag else {})
        request = Request(method, path, body, headers)
        if self._credentials is None:
            return await self._transport.exchange(request)
        for last in (False, True):
            token = self._token or await self._log_in("")
            reply = await self._transport.exchange(Request(method, path, body, headers | {"X-Auth-Token": token}))
            if reply.status != 401 or last:
                break
            # Sessions end when they are not used, and with the chassis' service: nothing was done.
            await self._log_in(token)
        return reply

    async def _log_in(self, ended: str) -> str:
        """Open a session, unless another task has done so since the one with the token ``ended``."""
        async with self._logging_in:
            if self._token != ended:
                return self._token
            assert self._credentials is not None
            body = {"UserName": self._credentials.user, "Password": self._credentials.password}
            request = Request("POST", SESSIONS, body)
            reply = await self._transport.exchange(request)
            if reply.status in (400, 401, 403):
                raise ChassisRefused(
                    f"chassis {self.chassis}: user {remark(self._credentials.user)} can't log in",
                    hint="look at its credentials file",
                )
            check_status(self.chassis, request, reply, ok=frozenset({200, 201}))
            token = reply.headers.get("x-auth-token", "")
            if not token or len(token) > 4096 or not token.isascii() or not token.isprintable():
                raise BadReply(f"chassis {self.chassis}: {request}: session without a usable token")
            location = reply.headers.get("location", "")
            self._session = self.uri(urlsplit(location).path) if location else ""
            self._token = token
            return token

    async def get(self, path: str, kind: type[T]) -> T:
        """Read one resource."""
        request = Request("GET", path)
        reply = await self.ask("GET", path)
        check_status(self.chassis, request, reply, ok=frozenset({200}))
        value = decode_reply(self.chassis, request, reply, kind)
        if "etag" in reply.headers and getattr(value, "etag", None) == "":
            value = msgspec.structs.replace(value, etag=reply.headers["etag"])
        return value

    def uri(self, path: str) -> str:
        """Check a URI that the chassis gave: of this service, and not long."""
        if len(path) > MAX_URI or not _URI.fullmatch(path) or ".." in path:
            raise BadReply(f"chassis {self.chassis}: {remark(path)!r} is no URI of a Redfish resource")
        return path

    async def members(self, path: str, kind: type[T]) -> list[T]:
        """Read all members of a collection, by ``$expand`` where the service can, else one by one."""
        page = self.uri(path) + ("?$expand=.($levels=1)" if self._expand else "")
        found: list[T] = []
        for _ in range(MAX_PAGES):
            collection = await self.get(page, resources.Collection)
            if len(found) + len(collection.Members) > MAX_MEMBERS:
                raise BadReply(f"chassis {self.chassis}: {path}: more than {MAX_MEMBERS} members")
            for raw in collection.Members:
                found.append(await self._member(path, raw, kind))
            if not collection.next:
                return found
            page = self.uri(collection.next)
        raise BadReply(f"chassis {self.chassis}: {path}: more than {MAX_PAGES} pages")

    async def _member(self, path: str, raw: msgspec.Raw, kind: type[T]) -> T:
        request = Request("GET", path)
        plain = Reply(200, {}, bytes(raw))
        # Not everybody expands what it says it expands: a bare link is followed.
        if self._expand and len(decode_reply(self.chassis, request, plain, dict[str, msgspec.Raw])) > 1:
            return decode_reply(self.chassis, request, plain, kind)
        return await self.get(self.uri(decode_reply(self.chassis, request, plain, resources.Link).uri), kind)

    async def _one_of(self, collection: resources.Link, kind: type[T], name: str, *, what: str) -> T:
        found = [
            each for each in await self.members(collection.uri, kind) if not name or getattr(each, "Id", "") == name
        ]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(remark(getattr(each, "Id", "")) for each in found)
            raise InvalidInput(
                f"chassis {self.chassis}: has several: {ids}", hint=f"set {what}_id in its configuration"
            )
        raise BadReply(f"chassis {self.chassis}: has no {what} {name}".rstrip())

    async def fabric(self, root: resources.Root) -> resources.Fabric:
        """Read the fabric that the chassis' devices are in."""
        if root.Fabrics is None:
            raise BadReply(f"chassis {self.chassis}: its service has no Fabrics", hint="does another style fit?")
        return await self._one_of(root.Fabrics, resources.Fabric, self._fabric_id, what="fabric")

    async def change(self, method: str, path: str, body: Any = None, *, etag: str = "") -> Answer:
        """Ask for a change, and wait for its task where it has one."""
        request = Request(method, path)
        reply = await self.ask(method, path, body, etag=etag)
        pause_s = FIRST_POLL_S
        monitor = ""
        while reply.status == 202:
            location = reply.headers.get("location", "")
            monitor = self.uri(urlsplit(location).path) if location else monitor
            if not monitor:
                raise BadReply(f"chassis {self.chassis}: {request}: accepted without a task monitor")
            await self._clock.sleep(max(pause_s, _retry_after_s(reply)))
            pause_s = min(MAX_POLL_S, 2 * pause_s)
            reply = await self.ask("GET", monitor)
        if monitor and reply.status == 404:
            # The service was started anew and has forgotten its tasks; what became of it is read.
            return Answer(False, "its task is not known any more")
        if reply.status in SAID_NO:
            return Answer(False, self._words(reply))
        check_status(self.chassis, request, reply, ok=frozenset({200, 201, 204}))
        if monitor and reply.body:
            task = decode_reply(self.chassis, request, reply, resources.Task)
            if task.TaskState not in ("", "Completed"):
                words = "; ".join(message.Message for message in task.Messages[:4])
                return Answer(False, remark(words or f"its task is {task.TaskState}"))
        return Answer(True)

    def _words(self, reply: Reply) -> str:
        try:
            error = msgspec.json.decode(reply.body, type=resources.ErrorReply).error
            words = "; ".join(each.Message for each in error.extended[:4]) or error.message
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            words = reply.body.decode("utf-8", "replace")
        return remark(words) or f"status {reply.status}"


class _Style(Protocol):
    async def read(self, root: resources.Root, devices: Mapping[str, resources.PCIeDevice]) -> Assigned: ...

    async def assign(self, known: Assigned, device: FabricDevice, port: str) -> Answer: ...

    async def unassign(self, known: Assigned, device: FabricDevice) -> Answer: ...


class _Endpoints:
    """What zones and connections have in common: endpoints of devices and of ports."""

    def __init__(self, driver: RedfishDriver) -> None:
        self._driver = driver

    async def _endpoints(
        self, fabric: resources.Fabric, devices: Mapping[str, resources.PCIeDevice]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the URIs of endpoints by the ``Id`` of their device, and by the id of their port."""
        targets: dict[str, str] = {}
        ports: dict[str, str] = {}
        for endpoint in await self._driver.members(fabric.Endpoints.uri, resources.Endpoint):
            for entity in endpoint.ConnectedEntities:
                link = entity.EntityLink.uri if entity.EntityLink else ""
                if entity.EntityRole == "Initiator":
                    connected = endpoint.Links.ConnectedPorts
                    name = connected[0].uri.rstrip("/").rpartition("/")[2] if connected else endpoint.Id
                    if not name or len(name) > 256 or not _NAME.fullmatch(name):
                        raise BadReply(f"chassis {self._driver.chassis}: a port is called {remark(name)!r}")
                    ports[name] = self._driver.uri(endpoint.uri)
                elif link in devices:
                    targets[devices[link].Id] = self._driver.uri(endpoint.uri)
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
        at = [port for port, uri in ports.items() if any(link.uri == uri for link in initiators)]
        having = [handle for handle, uri in devices.items() if any(link.uri == uri for link in targets)]
        for handle in having if at else []:
            if len(at) > 1 or assigned.get(handle, at[0]) != at[0]:
                raise BadReply(
                    f"chassis {self._driver.chassis}: device {handle} is assigned to several ports",
                    hint="its service contradicts itself; nothing is done before that is mended",
                )
            assigned[handle] = at[0]
        return at, having

    def _uris(self, known: Assigned, device: FabricDevice, port: str) -> tuple[str, str]:
        if device.handle not in known.uris:
            raise BadReply(f"chassis {self._driver.chassis}: device {device.id} has no endpoint")
        if port not in known.ports:
            raise BadReply(f"chassis {self._driver.chassis}: port {port} has no endpoint")
        return known.uris[device.handle], known.ports[port]


class _Zones(_Endpoints):
    async def read(self, root: resources.Root, devices: Mapping[str, resources.PCIeDevice]) -> Assigned:
        fabric = await self._driver.fabric(root)
        if fabric.Zones is None:
            raise BadReply(f"chassis {self._driver.chassis}: its fabric has no Zones", hint="does another style fit?")
        targets, ports = await self._endpoints(fabric, devices)
        port_of: dict[str, str] = {}
        zones: dict[str, str] = {}
        for zone in await self._driver.members(fabric.Zones.uri, resources.Zone):
            links = zone.Links.Endpoints
            at, _ = self._assign(port_of, initiators=links, targets=links, devices=targets, ports=ports)
            zones |= {port: self._driver.uri(zone.uri) for port in at}
        return Assigned(port_of, targets, ports, zones)

    async def assign(self, known: Assigned, device: FabricDevice, port: str) -> Answer:
        return await self._write(known, device, port, present=True)

    async def unassign(self, known: Assigned, device: FabricDevice) -> Answer:
        return await self._write(known, device, device.port, present=False)

    async def _write(self, known: Assigned, device: FabricDevice, port: str, *, present: bool) -> Answer:
        endpoint, _ = self._uris(known, device, port)
        if port not in known.holders:
            raise BadReply(f"chassis {self._driver.chassis}: port {port} has no zone")
        # Read anew, so that the list that is written is the one that its ETag stands for.
        zone = await self._driver.get(known.holders[port], resources.Zone)
        links = [link.uri for link in zone.Links.Endpoints if link.uri != endpoint] + ([endpoint] if present else [])
        body = {"Links": {"Endpoints": [{"@odata.id": uri} for uri in links]}}
        if not zone.etag:
            raise BadReply(f"chassis {self._driver.chassis}: zone of port {port} has no ETag, so writers could collide")
        return await self._driver.change("PATCH", known.holders[port], body, etag=zone.etag)


class _Connections(_Endpoints):
    async def read(self, root: resources.Root, devices: Mapping[str, resources.PCIeDevice]) -> Assigned:
        fabric = await self._driver.fabric(root)
        if fabric.Connections is None:
            raise BadReply(
                f"chassis {self._driver.chassis}: its fabric has no Connections", hint="does another style fit?"
            )
        self._collection = self._driver.uri(fabric.Connections.uri)
        targets, ports = await self._endpoints(fabric, devices)
        port_of: dict[str, str] = {}
        connections: dict[str, str] = {}
        for connection in await self._driver.members(fabric.Connections.uri, resources.Connection):
            _, having = self._assign(
                port_of,
                initiators=connection.Links.InitiatorEndpoints,
                targets=connection.Links.TargetEndpoints,
                devices=targets,
                ports=ports,
            )
            connections |= {handle: self._driver.uri(connection.uri) for handle in having}
        return Assigned(port_of, targets, ports, connections)

    async def assign(self, known: Assigned, device: FabricDevice, port: str) -> Answer:
        target, initiator = self._uris(known, device, port)
        body = {
            "Links": {
                "InitiatorEndpoints": [{"@odata.id": initiator}],
                "TargetEndpoints": [{"@odata.id": target}],
            }
        }
        return await self._driver.change("POST", self._collection, body)

    async def unassign(self, known: Assigned, device: FabricDevice) -> Answer:
        if device.handle not in known.holders:
            raise ChassisBusy(f"chassis {self._driver.chassis}: connection of device {device.id} is gone meanwhile")
        return await self._driver.change("DELETE", known.holders[device.handle])


class _Blocks:
    """Composition: each device is a resource block, each port a computer system."""

    def __init__(self, driver: RedfishDriver) -> None:
        self._driver = driver

    async def read(self, root: resources.Root, devices: Mapping[str, resources.PCIeDevice]) -> Assigned:
        if root.CompositionService is None or root.Systems is None:
            raise BadReply(
                f"chassis {self._driver.chassis}: its service has no CompositionService", hint="does another style fit?"
            )
        service = await self._driver.get(self._driver.uri(root.CompositionService.uri), resources.Service)
        systems = await self._driver.members(root.Systems.uri, resources.System)
        port_at = {system.uri: system.Id for system in systems}
        port_of: dict[str, str] = {}
        blocks: dict[str, str] = {}
        for block in await self._driver.members(service.ResourceBlocks.uri, resources.Block):
            for link in block.Links.PCIeDevices:
                if link.uri not in devices:
                    continue
                handle = devices[link.uri].Id
                blocks[handle] = self._driver.uri(block.uri)
                at = [port_at[system.uri] for system in block.Links.ComputerSystems if system.uri in port_at]
                if len(at) > 1:
                    raise BadReply(f"chassis {self._driver.chassis}: device {handle} is assigned to several ports")
                if at:
                    port_of[handle] = at[0]
        return Assigned(port_of, blocks, {system.Id: self._driver.uri(system.uri) for system in systems})

    async def assign(self, known: Assigned, device: FabricDevice, port: str) -> Answer:
        return await self._act("AddResourceBlock", known, device, port)

    async def unassign(self, known: Assigned, device: FabricDevice) -> Answer:
        return await self._act("RemoveResourceBlock", known, device, device.port)

    async def _act(self, action: str, known: Assigned, device: FabricDevice, port: str) -> Answer:
        if device.handle not in known.uris or port not in known.ports:
            raise BadReply(f"chassis {self._driver.chassis}: no block of device {device.id}, or no system {port}")
        block = await self._driver.get(known.uris[device.handle], resources.Block)
        system = known.ports[port]
        body = {"ResourceBlock": {"@odata.id": block.uri}, "ResourceBlockETag": block.etag}
        return await self._driver.change("POST", f"{system}/Actions/ComputerSystem.{action}", body)


STYLES: Mapping[RedfishStyle, Callable[[RedfishDriver], _Style]] = {
    RedfishStyle.ZONES: _Zones,
    RedfishStyle.CONNECTIONS: _Connections,
    RedfishStyle.BLOCKS: _Blocks,
}


def _retry_after_s(reply: Reply) -> float:
    value = reply.headers.get("retry-after", "")
    return min(MAX_POLL_S, float(value)) if value.isascii() and value.isdigit() and len(value) < 9 else 0.0


def _number(text: str | None) -> int:
    """Read an id such as ``0x10DE``; 0 for what is none."""
    try:
        number = int(text or "0", 16)
    except ValueError:
        return 0
    return number if 0 <= number <= 0xFFFF else 0


def _kind(class_code: str) -> DeviceKind:
    """Return the kind by a PCI class code such as ``0x030200`` (PCI Code and ID Assignment Specification)."""
    code = class_code.lower().removeprefix("0x").rjust(6, "0")
    if code.startswith(("0302", "0300")):
        return DeviceKind.GPU
    if code.startswith("0108"):
        return DeviceKind.NVME
    return DeviceKind.NETWORK if code.startswith("02") else DeviceKind.PCI
