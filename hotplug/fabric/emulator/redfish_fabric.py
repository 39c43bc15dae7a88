"""The fabric of the emulated Redfish service: its devices, endpoints, zones and connections, and changes of those."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from farbus.hotplug.fabric.emulator.chassis import EmulatedChassis
from farbus.hotplug.fabric.emulator.redfish_tasks import Tasks
from farbus.hotplug.fabric.emulator.redfish_words import Collection, Ports, Resource, Single, error, link, names
from farbus.hotplug.fabric.http import Reply
from farbus.model.fabric import FabricStep


class FabricPart:
    """Chassis and Fabrics. ``matches`` says whether a resource still has an ETag."""

    def __init__(self, chassis: EmulatedChassis, tasks: Tasks, *, matches: Callable[[str, str], bool]) -> None:
        self._chassis = chassis
        self._name = chassis.config.name
        self._tasks = tasks
        self._matches = matches
        self._at_fabric = fabric = f"/Fabrics/{self._name}"
        at = f"/Chassis/{self._name}"
        port_ids = [port.id for port in chassis.config.ports]
        self.collections: Sequence[Collection] = (
            Collection("/Chassis", "ChassisCollection", lambda _: [self._name]),
            Collection(f"{at}/PCIeDevices", "PCIeDeviceCollection", lambda ports: ports),
            Collection("/Fabrics", "FabricCollection", lambda _: [self._name]),
            Collection(f"{fabric}/Switches", "SwitchCollection", lambda _: ["1"]),
            Collection(f"{fabric}/Switches/1/Ports", "PortCollection", lambda _: port_ids),
            Collection(f"{fabric}/Endpoints", "EndpointCollection", lambda _: self._endpoint_ids()),
            Collection(f"{fabric}/Zones", "ZoneCollection", lambda _: port_ids),
            Collection(
                f"{fabric}/Connections",
                "ConnectionCollection",
                lambda ports: [device for device, port in ports.items() if port],
            ),
            *(
                Collection(f"{at}/PCIeDevices/{device}/PCIeFunctions", "PCIeFunctionCollection", lambda _: ["0"])
                for device in chassis.devices
            ),
        )
        self.singles: Sequence[Single] = (
            Single(r"/Chassis/([^/]+)", self._chassis_resource),
            Single(r"/Chassis/[^/]+/PCIeDevices/([^/]+)", self._pcie_device),
            Single(r"/Chassis/[^/]+/PCIeDevices/([^/]+)/PCIeFunctions/0", self._pcie_function),
            Single(r"/Fabrics/([^/]+)", self._fabric),
            Single(r"/Fabrics/[^/]+/Switches/1", self._switch),
            Single(r"/Fabrics/[^/]+/Switches/1/Ports/([^/]+)", self._port),
            Single(r"/Fabrics/[^/]+/Endpoints/([^/]+)", self._endpoint),
            Single(r"/Fabrics/[^/]+/Zones/([^/]+)", self._zone),
            Single(r"/Fabrics/[^/]+/Connections/([^/]+)", self._connection),
        )

    def _endpoint_ids(self) -> list[str]:
        ports = (f"port-{port.id}" for port in self._chassis.config.ports)
        return [*ports, *(f"device-{name}" for name in self._chassis.devices)]

    async def change(self, method: str, path: str, body: Resource, headers: Mapping[str, str]) -> Reply | None:
        """Answer a change of a zone or a connection; None where it is of something else."""
        fabric = re.escape(self._at_fabric)
        if method == "PATCH" and (match := re.fullmatch(rf"{fabric}/Zones/([^/]+)", path)):
            return await self._patch_zone(path, match[1], body, headers.get("if-match", ""))
        if method == "POST" and path == f"{self._at_fabric}/Connections":
            return await self._connect(body)
        if method == "DELETE" and (match := re.fullmatch(rf"{fabric}/Connections/([^/]+)", path)):
            if not self._matches(path, headers.get("if-match", "*")):
                return error(412, "PreconditionFailed", "The connection has changed.")
            return await self._tasks.steps(
                [(FabricStep.UNASSIGN, match[1], self._chassis.assigned().get(match[1], ""))]
            )
        return None

    async def _patch_zone(self, path: str, port: str, body: Resource, etag: str) -> Reply:
        if self._chassis.config.port(port) is None:
            return error(404, "ResourceMissingAtURI", f"There is no zone {port}.")
        if not etag:
            return error(428, "PreconditionRequired", "If-Match is needed.")
        if not self._matches(path, etag):
            return error(412, "PreconditionFailed", "The zone has changed.")
        wanted = names(body.get("Links"), "Endpoints")
        if wanted is None or f"port-{port}" not in wanted:
            return error(400, "PropertyValueFormatError", "Links.Endpoints has to have the port's endpoint.")
        devices = [name.removeprefix("device-") for name in wanted if name != f"port-{port}"]
        if unknown := [name for name in devices if name not in self._chassis.devices]:
            return error(400, "PropertyValueNotInList", f"There is no endpoint of {unknown[0]}.")
        now = [device for device, at in self._chassis.assigned().items() if at == port]
        steps = [(FabricStep.UNASSIGN, device, port) for device in now if device not in devices]
        steps += [(FabricStep.ASSIGN, device, port) for device in devices if device not in now]
        return await self._tasks.steps(steps, unless=lambda: not self._matches(path, etag))

    async def _connect(self, body: Resource) -> Reply:
        initiators = names(body.get("Links"), "InitiatorEndpoints")
        targets = names(body.get("Links"), "TargetEndpoints")
        if not initiators or not targets or len(initiators) != 1:
            return error(400, "PropertyMissing", "A connection needs one initiator and targets.")
        port = initiators[0].removeprefix("port-")
        return await self._tasks.steps([(FabricStep.ASSIGN, name.removeprefix("device-"), port) for name in targets])

    def _chassis_resource(self, _: Ports, name: str) -> Resource | None:
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

    def _pcie_device(self, _: Ports, name: str) -> Resource | None:
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

    def _pcie_function(self, _: Ports, name: str) -> Resource | None:
        device = self._chassis.devices.get(name)
        if device is None:
            return None
        return {
            "@odata.type": "#PCIeFunction.v1_5_0.PCIeFunction",
            "Id": "0",
            "Name": "Function 0",
            "FunctionId": 0,
            "FunctionType": "Physical",
            "ClassCode": device.pci_class,
            "VendorId": f"0x{device.vendor_id:04X}",
            "DeviceId": f"0x{device.device_id:04X}",
            "Links": {"PCIeDevice": link(f"/Chassis/{self._name}/PCIeDevices/{name}")},
        }

    def _fabric(self, _: Ports, name: str) -> Resource | None:
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

    def _switch(self, _: Ports) -> Resource:
        return {
            "@odata.type": "#Switch.v1_9_0.Switch",
            "Id": "1",
            "Name": "PCIe switch",
            "SwitchType": "PCIe",
            "Ports": link(f"/Fabrics/{self._name}/Switches/1/Ports"),
        }

    def _port(self, _: Ports, name: str) -> Resource | None:
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

    def _endpoint(self, ports: Ports, name: str) -> Resource | None:
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
            port = ports.get(of, "")
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

    def _zone(self, ports: Ports, port: str) -> Resource | None:
        if self._chassis.config.port(port) is None:
            return None
        at = f"/Fabrics/{self._name}/Endpoints"
        members = [f"port-{port}", *(f"device-{device}" for device, where in ports.items() if where == port)]
        return {
            "@odata.type": "#Zone.v1_6_1.Zone",
            "Id": port,
            "Name": f"Devices of port {port}",
            "ZoneType": "ZoneOfEndpoints",
            "Status": {"State": "Enabled", "Health": "OK"},
            "Links": {"Endpoints": [link(f"{at}/{name}") for name in members]},
        }

    def _connection(self, ports: Ports, device: str) -> Resource | None:
        port = ports.get(device, "")
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
