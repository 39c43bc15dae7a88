"""The dialect of Redfish (DMTF DSP0266, DSP0268; composition: DSP2050).

A chassis is a ``Chassis`` with ``PCIeDevices`` and a ``Fabric``: an endpoint
for each device (a target) and for each port (an initiator).  What is assigned
can be said, and changed, in four ways, which differ between chassis:

========== ============================================================ ==========================================
style      assigned means                                               changed by
========== ============================================================ ==========================================
zones      a zone has the port's endpoint and the device's              ``PATCH`` of the zone's ``Links.Endpoints``
connections a connection leads from the one endpoint to the other        ``POST`` and ``DELETE`` of connections
blocks     a resource block with the device is linked by a system       actions ``Add``/``RemoveResourceBlock``
composed   a system has the port's node's block and the device's        ``POST`` of systems, ``PATCH`` of their
                                                                        ``Links.ResourceBlocks``
========== ============================================================ ==========================================

Changes are made with ``If-Match``, so that of two writers one is told; what
takes long answers 202 with a task monitor, which is asked until it is done.
"""

from __future__ import annotations

from collections.abc import Mapping

from farbus.hotplug.fabric import redfish_resources as resources
from farbus.hotplug.fabric.driver import Answer
from farbus.hotplug.fabric.errors import BadReply
from farbus.hotplug.fabric.http import Transport, remark
from farbus.hotplug.fabric.redfish_client import Credentials, RedfishClient
from farbus.hotplug.fabric.redfish_composition import Blocks, Composed
from farbus.hotplug.fabric.redfish_endpoints import Connections, Zones
from farbus.hotplug.fabric.redfish_styles import Assigned, Style, is_name
from farbus.linux.clock import Clock
from farbus.model.device import DeviceKind
from farbus.model.fabric import ChassisView, FabricDevice, FabricPort, RedfishStyle, device_uuid

ROOT = "/redfish/v1/"


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
        self._client = client = RedfishClient(chassis, transport, clock=clock, credentials=credentials)
        self._nodes = dict(ports or {})
        self._chassis_id = chassis_id
        self._functions: dict[tuple[str, str], resources.PCIeFunction] = {}
        self._style: Style
        match style:
            case RedfishStyle.ZONES:
                self._style = Zones(client, fabric_id)
            case RedfishStyle.CONNECTIONS:
                self._style = Connections(client, fabric_id)
            case RedfishStyle.BLOCKS:
                self._style = Blocks(client)
            case RedfishStyle.COMPOSED:
                self._style = Composed(client)
        self._assigned: Assigned | None = None

    async def read(self) -> ChassisView:
        """See :class:`Driver`."""
        root = await self._client.get(ROOT, resources.Root)
        self._client.can_expand = root.ProtocolFeaturesSupported.ExpandQuery.Levels
        chassis = await self._client.one_of(root.Chassis, resources.Chassis, self._chassis_id, what="chassis")
        if chassis.PCIeDevices is None:
            raise BadReply(f"chassis {self.chassis}: {remark(chassis.Id)} has no PCIeDevices")
        listed = await self._client.members(chassis.PCIeDevices.uri, resources.PCIeDevice)
        assigned = await self._style.read(root, {resources.plain(device.uri): device for device in listed})
        devices: dict[str, FabricDevice] = {}
        for each in listed:
            device = await self._device(each, assigned)
            if device.id in devices:
                raise BadReply(f"chassis {self.chassis}: device {device.id} is listed twice")
            devices[device.id] = device
        cards = {_card(each) for each in listed}
        # What is not listed any more is read again when it comes back: a service may rename its devices for ever.
        self._functions = {card: function for card, function in self._functions.items() if card in cards}
        ports = self._nodes | {port: self._nodes.get(port, "") for port in assigned.ports}
        self._assigned = assigned
        return ChassisView(
            chassis=self.chassis,
            ports=tuple(FabricPort(id=port, node=ports[port]) for port in sorted(ports)),
            devices=tuple(devices[key] for key in sorted(devices)),
        )

    async def _device(self, device: resources.PCIeDevice, assigned: Assigned) -> FabricDevice:
        for name, value in (("Id", device.Id), ("SerialNumber", device.SerialNumber), ("UUID", device.UUID)):
            if value and not is_name(value):
                raise BadReply(f"chassis {self.chassis}: {name} of a device is {remark(value)!r}")
        if not device.Id:
            raise BadReply(f"chassis {self.chassis}: a device has no Id")
        key = _card(device)
        if key not in self._functions:
            # The ids of a function stay as long as the card does, so they are read once.
            functions = (
                await self._client.members(device.PCIeFunctions.uri, resources.PCIeFunction)
                if device.PCIeFunctions
                else []
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

    def has_port(self, port: str) -> bool:
        """See :class:`Driver`."""
        return self._assigned is None or port in self._assigned.ports

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
        """See :class:`Driver`."""
        await self._client.close()


def _card(device: resources.PCIeDevice) -> tuple[str, str]:
    """Return what tells a card from another one that is put in its place."""
    return resources.plain(device.uri), device.SerialNumber or device.UUID or device.Id


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
