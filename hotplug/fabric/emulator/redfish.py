"""Redfish in front of an emulated chassis: resources made of its state, sessions, tasks, compare and swap.

All styles of :mod:`farbus.hotplug.fabric.redfish` are there at once: a zone,
the connections and the resource blocks of a port say the same, and changing
one changes the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from farbus.hotplug.fabric.emulator.chassis import EmulatedChassis, Outcome, raise_fault
from farbus.hotplug.fabric.emulator.faults import Fault, FaultKind
from farbus.hotplug.fabric.emulator.front import Running, faulty, json_reply
from farbus.hotplug.fabric.http import Reply, Request
from farbus.hotplug.fabric.redfish import Credentials
from farbus.linux.clock import Clock
from farbus.model.fabric import FabricStep

MAX_SESSIONS = 32
SESSION_IDLE_S = 1800.0
MAX_TASKS = 256
"""Tasks that are remembered; the oldest that are done go first."""

V1 = "/redfish/v1"

Resource = dict[str, Any]
Ports = Mapping[str, str]


@dataclass
class _Session:
    token: str
    used_at: float


@dataclass
class _Task:
    work: asyncio.Task[Reply]


def link(path: str) -> Resource:
    """Return a reference to a resource."""
    return {"@odata.id": V1 + path}


class RedfishFront:
    """Answers requests in Redfish. Without ``credentials`` everybody may do everything."""

    def __init__(
        self,
        chassis: EmulatedChassis,
        *,
        clock: Clock,
        running: Running,
        credentials: Credentials | None = None,
    ) -> None:
        self._chassis = chassis
        self._name = chassis.config.name
        self._clock = clock
        self._running = running
        self._credentials = credentials
        self._sessions: dict[str, _Session] = {}
        self._tasks: dict[str, _Task] = {}
        self._number = 0
        self._ports: Ports = {}
        """Of the request that is answered: resources are made of it without a pause between."""
        fabric, composition = f"/Fabrics/{self._name}", "/CompositionService"
        at = f"/Chassis/{self._name}"
        self._collections: list[tuple[str, str, Callable[[Ports], Iterable[str]]]] = [
            # path, type, names of its members
            ("/Chassis", "ChassisCollection.ChassisCollection", lambda _: [self._name]),
            (f"{at}/PCIeDevices", "PCIeDeviceCollection.PCIeDeviceCollection", lambda ports: ports),
            ("/Fabrics", "FabricCollection.FabricCollection", lambda _: [self._name]),
            (f"{fabric}/Switches", "SwitchCollection.SwitchCollection", lambda _: ["1"]),
            (f"{fabric}/Switches/1/Ports", "PortCollection.PortCollection", lambda _: self._port_ids()),
            (f"{fabric}/Endpoints", "EndpointCollection.EndpointCollection", lambda _: self._endpoint_ids()),
            (f"{fabric}/Zones", "ZoneCollection.ZoneCollection", lambda _: self._port_ids()),
            (f"{fabric}/Connections", "ConnectionCollection.ConnectionCollection", self._connected),
            (
                f"{composition}/ResourceBlocks",
                "ResourceBlockCollection.ResourceBlockCollection",
                lambda _: self._chassis.devices,
            ),
            (f"{composition}/ResourceZones", "ZoneCollection.ZoneCollection", lambda _: [self._name]),
            ("/Systems", "ComputerSystemCollection.ComputerSystemCollection", lambda _: self._port_ids()),
            ("/TaskService/Tasks", "TaskCollection.TaskCollection", lambda _: list(self._tasks)),
            ("/SessionService/Sessions", "SessionCollection.SessionCollection", lambda _: list(self._sessions)),
        ]
        self._collections += [
            (
                f"{at}/PCIeDevices/{device}/PCIeFunctions",
                "PCIeFunctionCollection.PCIeFunctionCollection",
                lambda _: ["0"],
            )
            for device in self._chassis.devices
        ]
        self._singles: list[tuple[re.Pattern[str], Callable[..., Resource | None]]] = [
            (re.compile(pattern), make)
            for pattern, make in (
                (r"/", self._root),
                (r"/SessionService", self._session_service),
                (r"/SessionService/Sessions/([^/]+)", self._session),
                (r"/TaskService", self._task_service),
                (r"/TaskService/Tasks/([^/]+)", self._task),
                (r"/CompositionService", self._composition_service),
                (r"/CompositionService/ResourceBlocks/([^/]+)", self._block),
                (r"/CompositionService/ResourceZones/([^/]+)", self._resource_zone),
                (r"/Systems/([^/]+)", self._system),
                (r"/Chassis/([^/]+)", self._chassis_resource),
                (r"/Chassis/[^/]+/PCIeDevices/([^/]+)", self._pcie_device),
                (r"/Chassis/[^/]+/PCIeDevices/([^/]+)/PCIeFunctions/0", self._pcie_function),
                (r"/Fabrics/([^/]+)", self._fabric),
                (r"/Fabrics/[^/]+/Switches/1", self._switch),
                (r"/Fabrics/[^/]+/Switches/1/Ports/([^/]+)", self._port),
                (r"/Fabrics/[^/]+/Endpoints/([^/]+)", self._endpoint),
                (r"/Fabrics/[^/]+/Zones/([^/]+)", self._zone),
                (r"/Fabrics/[^/]+/Connections/([^/]+)", self._connection),
            )
        ]

    async def exchange(self, request: Request) -> Reply:
        """See :class:`farbus.hotplug.fabric.emulator.front.Front`."""
        path, _, query = request.path.partition("?")
        if path.rstrip("/") == "/redfish" and request.method == "GET":
            return json_reply(200, {"v1": V1 + "/"})
        if not path.startswith(V1) or path[len(V1) :][:1] not in ("", "/"):
            return _error(404, "ResourceMissingAtURI", f"There is no resource {path}.")
        path = "/" + path[len(V1) :].strip("/")
        if request.method == "POST" and path == "/SessionService/Sessions":
            return self._log_in(request.body)
        if path != "/" and not self._is_known(request):
            return _error(401, "NoValidSession", "There is no valid session.")
        if request.method == "GET" and path.startswith("/TaskService/TaskMonitors/"):
            return await self._running.finish(self._monitor(path.rpartition("/")[2]))
        if request.method == "GET":
            return await self._running.finish(self._get(path, query))
        return await self._change(path, request)

    # Sessions.

    def _log_in(self, body: Any) -> Reply:
        fault = self._chassis.faults.draw(FabricStep.LIST, has_devices=False)
        raise_fault(fault, after=False)
        said = body if isinstance(body, dict) else {}
        if self._credentials is not None and not (
            hmac.compare_digest(str(said.get("UserName")).encode(), self._credentials.user.encode())
            & hmac.compare_digest(str(said.get("Password")).encode(), self._credentials.password.encode())
        ):
            return _error(401, "NoValidSession", "Name or password is wrong.")
        now = self._clock.monotonic()
        self._sessions = {
            name: session for name, session in self._sessions.items() if now - session.used_at < SESSION_IDLE_S
        }
        if len(self._sessions) >= MAX_SESSIONS:
            # A chassis has few; a client that never logs out keeps nobody out for ever.
            del self._sessions[min(self._sessions, key=lambda name: self._sessions[name].used_at)]
        self._number += 1
        name, token = str(self._number), secrets.token_urlsafe(24)
        self._sessions[name] = _Session(token, now)
        resource = self._session(name)
        assert resource is not None
        where = f"{V1}/SessionService/Sessions/{name}"
        return faulty(json_reply(201, resource, {"x-auth-token": token, "location": where}), fault)

    def _is_known(self, request: Request) -> bool:
        if self._credentials is None:
            return True
        given = {name.lower(): value for name, value in request.headers.items()}.get("x-auth-token", "")
        now = self._clock.monotonic()
        for session in self._sessions.values():
            if hmac.compare_digest(session.token.encode(), given.encode()) and now - session.used_at < SESSION_IDLE_S:
                session.used_at = now
                return True
        return False

    # Reading.

    async def _get(self, path: str, query: str) -> Reply:
        # The list of devices is what takes a chassis its time; where each is assigned stands beside it.
        lists_devices = path.endswith("/PCIeDevices")
        says_where = path.rpartition("/")[2] in ("Zones", "Connections", "ResourceBlocks")
        ports, fault = await self._chassis.look(is_slow=lists_devices, has_devices=lists_devices or says_where)
        raise_fault(fault, after=False)
        if fault is not None and fault.kind is FaultKind.ERROR and not fault.after:
            return _error(503, "ServiceTemporarilyUnavailable", "The service is busy.")
        found = self._collection(path, ports, expand="$expand" in query)
        if found is None:
            found = self._single(path, ports)
        if found is None:
            return _error(404, "ResourceMissingAtURI", f"There is no resource {path}.")
        headers = {"odata-version": "4.0"} | ({"etag": found["@odata.etag"]} if "@odata.etag" in found else {})
        return faulty(json_reply(200, found, headers), fault)

    def _collection(self, path: str, ports: Ports, *, expand: bool) -> Resource | None:
        for where, kind, members in self._collections:
            if where == path:
                uris = [f"{path}/{name}" for name in members(ports)]
                return {
                    "@odata.id": V1 + path,
                    "@odata.type": f"#{kind}",
                    "Name": kind.partition(".")[0].removesuffix("Collection"),
                    "Members@odata.count": len(uris),
                    "Members": [(self._single(uri, ports) if expand else None) or link(uri) for uri in uris],
                }
        return None

    def _single(self, path: str, ports: Ports) -> Resource | None:
        for pattern, make in self._singles:
            if match := pattern.fullmatch(path):
                arguments = match.groups()
                self._ports = ports
                made = make(*arguments)
                if made is None:
                    return None
                resource = {"@odata.id": V1 + ("" if path == "/" else path)} | made
                if path == "/":
                    resource["@odata.id"] = V1 + "/"
                resource.setdefault("@odata.etag", _etag(resource))
                return resource
        return None

    def _port_ids(self) -> list[str]:
        return [port.id for port in self._chassis.config.ports]

    def _endpoint_ids(self) -> list[str]:
        return [*(f"port-{port}" for port in self._port_ids()), *(f"device-{name}" for name in self._chassis.devices)]

    def _connected(self, ports: Ports) -> list[str]:
        return [device for device, port in ports.items() if port]

    def _at(self, port: str) -> list[str]:
        return [device for device, at in self._ports.items() if at == port]

    # Resources. Each returns what is beside @odata.id; None where there is none of that name.

    def _root(self) -> Resource:
        return {
            "@odata.type": "#ServiceRoot.v1_15_0.ServiceRoot",
            "Id": "RootService",
            "Name": "Root service",
            "RedfishVersion": "1.18.0",
            "UUID": _uuid(self._name),
            "ProtocolFeaturesSupported": {
                "ExpandQuery": {"Levels": True, "MaxLevels": 1, "ExpandAll": False, "Links": False, "NoLinks": True},
                "SelectQuery": False,
                "FilterQuery": False,
            },
            "Chassis": link("/Chassis"),
            "Fabrics": link("/Fabrics"),
            "Systems": link("/Systems"),
            "CompositionService": link("/CompositionService"),
            "SessionService": link("/SessionService"),
            "Tasks": link("/TaskService"),
            "Links": {"Sessions": link("/SessionService/Sessions")},
        }

    def _session_service(self) -> Resource:
        return {
            "@odata.type": "#SessionService.v1_1_9.SessionService",
            "Id": "SessionService",
            "Name": "Session service",
            "SessionTimeout": int(SESSION_IDLE_S),
            "Sessions": link("/SessionService/Sessions"),
        }

    def _session(self, name: str) -> Resource | None:
        if name not in self._sessions:
            return None
        user = self._credentials.user if self._credentials else None
        return {
            "@odata.id": f"{V1}/SessionService/Sessions/{name}",
            "@odata.type": "#Session.v1_7_0.Session",
            "Id": name,
            "Name": f"Session {name}",
            "UserName": user,
        }

    def _task_service(self) -> Resource:
        return {
            "@odata.type": "#TaskService.v1_2_0.TaskService",
            "Id": "TaskService",
            "Name": "Task service",
            "Tasks": link("/TaskService/Tasks"),
        }

    def _task(self, name: str) -> Resource | None:
        if name not in self._tasks:
            return None
        work = self._tasks[name].work
        state, status, messages = "Running", "OK", []
        if work.done():
            failed = work.cancelled() or work.exception() is not None or work.result().status >= 400
            state, status = ("Exception", "Warning") if failed else ("Completed", "OK")
            if failed:
                messages = [{"MessageId": "Base.1.0.GeneralError", "Message": "The change was not made."}]
        return {
            "@odata.id": f"{V1}/TaskService/Tasks/{name}",
            "@odata.type": "#Task.v1_7_0.Task",
            "Id": name,
            "Name": f"Task {name}",
            "TaskState": state,
            "TaskStatus": status,
            "TaskMonitor": f"{V1}/TaskService/TaskMonitors/{name}",
            "Messages": messages,
        }

    def _composition_service(self) -> Resource:
        return {
            "@odata.type": "#CompositionService.v1_2_0.CompositionService",
            "Id": "CompositionService",
            "Name": "Composition service",
            "ServiceEnabled": True,
            "AllowOverprovisioning": False,
            "ResourceBlocks": link("/CompositionService/ResourceBlocks"),
            "ResourceZones": link("/CompositionService/ResourceZones"),
        }

    def _block(self, device: str) -> Resource | None:
        if device not in self._chassis.devices:
            return None
        port = self._ports.get(device, "")
        state = "Composed" if port else "Unused"
        if self._chassis.row(device).pending is not None:
            state = "Composing"
        return {
            "@odata.type": "#ResourceBlock.v1_4_0.ResourceBlock",
            "Id": device,
            "Name": f"Device {device}",
            "ResourceBlockType": ["Processor" if self._chassis.devices[device].type == "GPU" else "Expansion"],
            "CompositionStatus": {"CompositionState": state, "SharingCapable": False},
            "Status": {"State": "Enabled", "Health": "OK"},
            "Links": {
                "ComputerSystems": [link(f"/Systems/{port}")] if port else [],
                "PCIeDevices": [link(f"/Chassis/{self._name}/PCIeDevices/{device}")],
                "Zones": [link(f"/CompositionService/ResourceZones/{self._name}")],
            },
        }

    def _resource_zone(self, name: str) -> Resource | None:
        if name != self._name:
            return None
        return {
            "@odata.type": "#Zone.v1_6_1.Zone",
            "Id": name,
            "Name": "Devices and ports of this chassis",
            "ZoneType": "ZoneOfResourceBlocks",
            "Links": {
                "ResourceBlocks": [
                    link(f"/CompositionService/ResourceBlocks/{device}") for device in self._chassis.devices
                ]
            },
        }

    def _system(self, port: str) -> Resource | None:
        config = self._chassis.config.port(port)
        if config is None:
            return None
        actions = f"{V1}/Systems/{port}/Actions/ComputerSystem."
        return {
            "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem",
            "Id": port,
            "Name": config.node or f"Node at port {port}",
            "SystemType": "Composed",
            "Links": {
                "ResourceBlocks": [link(f"/CompositionService/ResourceBlocks/{device}") for device in self._at(port)]
            },
            "Actions": {
                f"#ComputerSystem.{name}": {"target": actions + name}
                for name in ("AddResourceBlock", "RemoveResourceBlock")
            },
        }

    def _chassis_resource(self, name: str) -> Resource | None:
        if name != self._name:
            return None
        return {
            "@odata.type": "#Chassis.v1_23_0.Chassis",
            "Id": name,
            "Name": f"Chassis {name}",
            "ChassisType": "Expansion",
            "SerialNumber": name,
            "Status": {"State": "Enabled", "Health": "OK"},
            "PCIeDevices": link(f"/Chassis/{name}/PCIeDevices"),
        }

    def _pcie_device(self, name: str) -> Resource | None:
        device = self._chassis.devices.get(name)
        if device is None:
            return None
        at = f"/Chassis/{self._name}"
        return {
            "@odata.type": "#PCIeDevice.v1_12_0.PCIeDevice",
            "Id": name,
            "Name": f"Slot {list(self._chassis.devices).index(name) + 1}",
            "Model": device.model or None,
            "SerialNumber": device.serial or None,
            "UUID": device.uuid.removeprefix("GPU-") or None,
            "DeviceType": "SingleFunction",
            "Status": {"State": "Enabled", "Health": "OK"},
            "PCIeFunctions": link(f"{at}/PCIeDevices/{name}/PCIeFunctions"),
            "Links": {"Chassis": [link(at)]},
        }

    def _pcie_function(self, name: str) -> Resource | None:
        device = self._chassis.devices.get(name)
        if device is None:
            return None
        return {
            "@odata.type": "#PCIeFunction.v1_5_0.PCIeFunction",
            "Id": "0",
            "Name": "Function 0",
            "FunctionId": 0,
            "FunctionType": "Physical",
            "ClassCode": device.class_code,
            "VendorId": f"0x{device.vendor_id:04X}",
            "DeviceId": f"0x{device.device_id:04X}",
            "Links": {"PCIeDevice": link(f"/Chassis/{self._name}/PCIeDevices/{name}")},
        }

    def _fabric(self, name: str) -> Resource | None:
        if name != self._name:
            return None
        at = f"/Fabrics/{name}"
        return {
            "@odata.type": "#Fabric.v1_3_0.Fabric",
            "Id": name,
            "Name": f"PCIe fabric of chassis {name}",
            "FabricType": "PCIe",
            "Status": {"State": "Enabled", "Health": "OK"},
            "Switches": link(f"{at}/Switches"),
            "Endpoints": link(f"{at}/Endpoints"),
            "Zones": link(f"{at}/Zones"),
            "Connections": link(f"{at}/Connections"),
        }

    def _switch(self) -> Resource:
        return {
            "@odata.type": "#Switch.v1_9_0.Switch",
            "Id": "1",
            "Name": "PCIe switch",
            "SwitchType": "PCIe",
            "Ports": link(f"/Fabrics/{self._name}/Switches/1/Ports"),
        }

    def _port(self, name: str) -> Resource | None:
        config = self._chassis.config.port(name)
        if config is None:
            return None
        return {
            "@odata.type": "#Port.v1_9_0.Port",
            "Id": name,
            "Name": f"Port {name}",
            "PortType": "UpstreamPort",
            "PortProtocol": "PCIe",
            "Links": {"AssociatedEndpoints": [link(f"/Fabrics/{self._name}/Endpoints/port-{name}")]},
        }

    def _endpoint(self, name: str) -> Resource | None:
        kind, _, of = name.partition("-")
        at = f"/Fabrics/{self._name}"
        if kind == "port" and self._chassis.config.port(of) is not None:
            entity: Resource = {"EntityType": "RootComplex", "EntityRole": "Initiator"}
            links = {"ConnectedPorts": [link(f"{at}/Switches/1/Ports/{of}")], "Zones": [link(f"{at}/Zones/{of}")]}
        elif kind == "device" and of in self._chassis.devices:
            device_at = link(f"/Chassis/{self._name}/PCIeDevices/{of}")
            is_gpu = self._chassis.devices[of].type == "GPU"
            entity = {
                "EntityType": "Processor" if is_gpu else "StorageSubsystem",
                "EntityRole": "Target",
                "EntityLink": device_at,
            }
            port = self._ports.get(of, "")
            links = {"Zones": [link(f"{at}/Zones/{port}")] if port else []}
        else:
            return None
        return {
            "@odata.type": "#Endpoint.v1_8_0.Endpoint",
            "Id": name,
            "Name": f"Endpoint of {kind} {of}",
            "EndpointProtocol": "PCIe",
            "ConnectedEntities": [entity],
            "Links": links,
        }

    def _zone(self, port: str) -> Resource | None:
        if self._chassis.config.port(port) is None:
            return None
        at = f"/Fabrics/{self._name}/Endpoints"
        members = [f"port-{port}", *(f"device-{device}" for device in self._at(port))]
        return {
            "@odata.type": "#Zone.v1_6_1.Zone",
            "Id": port,
            "Name": f"Devices of port {port}",
            "ZoneType": "ZoneOfEndpoints",
            "Status": {"State": "Enabled", "Health": "OK"},
            "Links": {"Endpoints": [link(f"{at}/{name}") for name in members]},
        }

    def _connection(self, device: str) -> Resource | None:
        port = self._ports.get(device, "")
        if not port:
            return None
        at = f"/Fabrics/{self._name}/Endpoints"
        return {
            "@odata.type": "#Connection.v1_3_1.Connection",
            "Id": device,
            "Name": f"Device {device} at port {port}",
            "Links": {
                "InitiatorEndpoints": [link(f"{at}/port-{port}")],
                "TargetEndpoints": [link(f"{at}/device-{device}")],
            },
        }

    # Changes.

    async def _change(self, path: str, request: Request) -> Reply:
        fabric = f"/Fabrics/{self._name}"
        body = request.body if isinstance(request.body, dict) else {}
        headers = {name.lower(): value for name, value in request.headers.items()}
        if request.method == "DELETE" and path.startswith("/SessionService/Sessions/"):
            self._sessions.pop(path.rpartition("/")[2], None)
            return Reply(204, {}, b"")
        if request.method == "PATCH" and (match := re.fullmatch(rf"{re.escape(fabric)}/Zones/([^/]+)", path)):
            return await self._patch_zone(path, match[1], body, headers.get("if-match", ""))
        if request.method == "POST" and path == f"{fabric}/Connections":
            return await self._connect(body)
        if request.method == "DELETE" and (match := re.fullmatch(rf"{re.escape(fabric)}/Connections/([^/]+)", path)):
            if not self._matches(path, headers.get("if-match", "*")):
                return _error(412, "PreconditionFailed", "The connection has changed.")
            return await self._steps([(FabricStep.UNASSIGN, match[1], self._chassis.assigned().get(match[1], ""))])
        action = re.fullmatch(r"/Systems/([^/]+)/Actions/ComputerSystem\.(Add|Remove)ResourceBlock", path)
        if request.method == "POST" and action:
            return await self._compose(action[1], body, adds=action[2] == "Add")
        known = self._single(path, self._chassis.assigned()) or self._collection(path, {}, expand=False)
        if known is None:
            return _error(404, "ResourceMissingAtURI", f"There is no resource {path}.")
        return _error(405, "OperationNotAllowed", f"{request.method} is not allowed here.")

    def _matches(self, path: str, etag: str) -> bool:
        now = self._single(path, self._chassis.assigned())
        return etag == "*" or (now is not None and hmac.compare_digest(str(now["@odata.etag"]).encode(), etag.encode()))

    async def _patch_zone(self, path: str, port: str, body: Resource, etag: str) -> Reply:
        if self._chassis.config.port(port) is None:
            return _error(404, "ResourceMissingAtURI", f"There is no zone {port}.")
        if not etag:
            return _error(428, "PreconditionRequired", "If-Match is needed.")
        if not self._matches(path, etag):
            return _error(412, "PreconditionFailed", "The zone has changed.")
        wanted = _names(body.get("Links"), "Endpoints")
        if wanted is None or f"port-{port}" not in wanted:
            return _error(400, "PropertyValueFormatError", "Links.Endpoints has to have the port's endpoint.")
        devices = [name.removeprefix("device-") for name in wanted if name != f"port-{port}"]
        if unknown := [name for name in devices if name not in self._chassis.devices]:
            return _error(400, "PropertyValueNotInList", f"There is no endpoint of {unknown[0]}.")
        now = [device for device, at in self._chassis.assigned().items() if at == port]
        steps = [(FabricStep.UNASSIGN, device, port) for device in now if device not in devices]
        steps += [(FabricStep.ASSIGN, device, port) for device in devices if device not in now]
        return await self._steps(steps, unless=lambda: not self._matches(path, etag))

    async def _connect(self, body: Resource) -> Reply:
        initiators = _names(body.get("Links"), "InitiatorEndpoints")
        targets = _names(body.get("Links"), "TargetEndpoints")
        if not initiators or not targets or len(initiators) != 1:
            return _error(400, "PropertyMissing", "A connection needs one initiator and targets.")
        port = initiators[0].removeprefix("port-")
        return await self._steps([(FabricStep.ASSIGN, name.removeprefix("device-"), port) for name in targets])

    async def _compose(self, port: str, body: Resource, *, adds: bool) -> Reply:
        names = _names({"it": [body.get("ResourceBlock")]}, "it")
        if not names or names[0] not in self._chassis.devices:
            return _error(400, "ActionParameterMissing", "ResourceBlock is none of this service.")
        block = f"/CompositionService/ResourceBlocks/{names[0]}"
        etag = str(body.get("ResourceBlockETag") or "*")
        if not self._matches(block, etag):
            return _error(412, "PreconditionFailed", "The resource block has changed.")
        return await self._steps([(FabricStep.ASSIGN if adds else FabricStep.UNASSIGN, names[0], port)])

    async def _steps(
        self, steps: Sequence[tuple[FabricStep, str, str]], *, unless: Callable[[], bool] = lambda: False
    ) -> Reply:
        """Do steps in their order, as a task or at once; the first that fails ends them."""
        fault = self._chassis.faults.draw(steps[0][0]) if steps else None
        raise_fault(fault, after=False)
        if fault is not None and fault.kind is FaultKind.ERROR and not fault.after:
            return _error(502, "GeneralError", "The switch does not answer.")
        work = self._do(steps, fault, unless)
        if not self._chassis.config.tasks:
            return faulty(await self._running.finish(work), fault)
        return faulty(self._start(work), fault)

    async def _do(
        self, steps: Sequence[tuple[FabricStep, str, str]], fault: Fault | None, unless: Callable[[], bool]
    ) -> Reply:
        deny = fault is not None and fault.kind is FaultKind.DENY
        if unless():
            return _error(412, "PreconditionFailed", "It has changed.")
        for step, device, port in steps:
            work: Awaitable[Outcome]
            if step is FabricStep.ASSIGN:
                work = self._chassis.assign(device, port, deny=deny)
            else:
                work = self._chassis.unassign(device, source=port, deny=deny)
            outcome = await work
            if not outcome.done:
                return _error(outcome.status if outcome.status in (404, 409) else 400, "GeneralError", outcome.remark)
        if fault is not None and fault.kind is FaultKind.FALSE_NEGATIVE:
            return _error(400, "GeneralError", "No response from the switch.")
        return Reply(204, {}, b"")

    def _start(self, work: Coroutine[Any, Any, Reply]) -> Reply:
        for name in [name for name, task in self._tasks.items() if task.work.done()][: -MAX_TASKS or None]:
            del self._tasks[name]
        self._number += 1
        name = str(self._number)
        self._tasks[name] = _Task(self._running.start(work))
        monitor = f"{V1}/TaskService/TaskMonitors/{name}"
        return json_reply(202, self._task(name), {"location": monitor})

    async def _monitor(self, name: str) -> Reply:
        fault = self._chassis.faults.draw(FabricStep.LIST, has_devices=False)
        raise_fault(fault, after=False)
        task = self._tasks.get(name)
        if task is None:
            return _error(404, "ResourceMissingAtURI", "There is no such task.")
        if not task.work.done():
            here = f"{V1}/TaskService/TaskMonitors/{name}"
            return faulty(json_reply(202, self._task(name), {"location": here}), fault)
        if task.work.cancelled() or task.work.exception() is not None:
            return _error(500, "InternalError", "The task was ended.")
        return faulty(task.work.result(), fault)


def _names(links: Any, key: str) -> list[str] | None:
    """Return the last parts of the URIs in ``links[key]``; None where they are not that."""
    found = links.get(key) if isinstance(links, dict) else None
    if not isinstance(found, list):
        return None
    uris = [each.get("@odata.id") if isinstance(each, dict) else None for each in found]
    return [uri.rpartition("/")[2] for uri in uris if isinstance(uri, str)] if all(uris) else None


def _etag(resource: Resource) -> str:
    """Return an ETag by content, so that it means the same after a restart."""
    return f'"{hashlib.sha256(msgspec.json.encode(resource, order="deterministic")).hexdigest()[:16]}"'


def _uuid(name: str) -> str:
    digits = hashlib.sha256(name.encode()).hexdigest()
    return "-".join((digits[:8], digits[8:12], "4" + digits[13:16], "8" + digits[17:20], digits[20:32]))


def _error(status: int, message: str, words: str) -> Reply:
    """Return an error as Redfish words it (DSP0266, error responses)."""
    detail = {"MessageId": f"Base.1.18.{message}", "Message": words, "MessageSeverity": "Warning"}
    body = {"error": {"code": f"Base.1.18.{message}", "message": words, "@Message.ExtendedInfo": [detail]}}
    return json_reply(status, body)
