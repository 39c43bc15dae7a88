"""The dialect of H3's Falcon chassis, as KubeComp used it.

``GET /h3api/v1/resources`` lists devices as flat maps of strings,
``POST`` and ``DELETE /h3api/v1/allocation`` assign and unassign.  Replies are
JSON whatever their Content-Type says (text/plain).  There is no
authentication, and one call at a time.  ``Result`` may be false although the
step was done.

The chassis tells neither ports without devices nor serial numbers: both come
from the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from farbus.hotplug.fabric.driver import Answer
from farbus.hotplug.fabric.errors import BadReply
from farbus.hotplug.fabric.http import Reply, Request, Transport, check_status, decode_reply, plain_words, remark
from farbus.model.device import DeviceKind
from farbus.model.fabric import ChassisView, FabricDevice, FabricPort, device_uuid

RESOURCES = "/h3api/v1/resources"
ALLOCATION = "/h3api/v1/allocation"

MAX_DEVICES = 4096
MAX_FIELD = 256

KINDS = {"GPU": DeviceKind.GPU, "NVME": DeviceKind.NVME, "SSD": DeviceKind.NVME, "NIC": DeviceKind.NETWORK}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")

SAID_NO = frozenset({400, 404, 405, 422})


class _Allocated(msgspec.Struct):
    Result: list[bool]
    Action: str = ""
    Remark: str = ""


class KnownDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the configuration says of a device that its chassis can't tell."""

    serial: str = ""
    model: str = ""
    kind: DeviceKind | None = None
    vendor_id: int = 0
    device_id: int = 0


class H3Driver:
    """A :class:`farbus.hotplug.fabric.driver.Driver` of one H3 chassis.

    ``ports`` names the node at each port (``30h``); ``known`` what is known of
    devices by their ``Dev_GID``.
    """

    parallel = 1

    def __init__(
        self,
        chassis: str,
        transport: Transport,
        *,
        ports: Mapping[str, str],
        known: Mapping[str, KnownDevice] | None = None,
    ) -> None:
        self.chassis = chassis
        self._transport = transport
        self._ports = dict(ports)
        self._known = dict(known or {})

    async def read(self) -> ChassisView:
        """See :class:`Driver`."""
        request = Request("GET", RESOURCES)
        reply = await self._transport.exchange(request)
        check_status(self.chassis, request, reply, ok=frozenset({200}))
        rows = decode_reply(self.chassis, request, reply, list[dict[str, str]])
        if len(rows) > MAX_DEVICES:
            raise BadReply(f"chassis {self.chassis}: {request}: {len(rows)} devices, which no chassis has")
        devices: dict[str, FabricDevice] = {}
        for row in rows:
            device = self._device(request, row)
            if device.id in devices:
                raise BadReply(f"chassis {self.chassis}: {request}: device {device.id} is listed twice")
            devices[device.id] = device
        ports = dict(self._ports)
        for device in devices.values():
            if device.port:
                ports.setdefault(device.port, "")
        return ChassisView(
            chassis=self.chassis,
            ports=tuple(FabricPort(id=port, node=ports[port]) for port in sorted(ports)),
            devices=tuple(devices[key] for key in sorted(devices)),
        )

    def _device(self, request: Request, row: Mapping[str, str]) -> FabricDevice:
        handle, uuid, port = row.get("Dev_GID", ""), row.get("OB_GPU_GUID", ""), row.get("Port_GID", "")
        for name, value in (("Dev_GID", handle), ("OB_GPU_GUID", uuid), ("Port_GID", port)):
            if (value or name == "Dev_GID") and (len(value) > MAX_FIELD or not _NAME.fullmatch(value)):
                raise BadReply(f"chassis {self.chassis}: {request}: {name} of a device is {remark(value)!r}")
        known = self._known.get(handle, KnownDevice())
        kind = known.kind or KINDS.get(row.get("dev_type", "").upper(), DeviceKind.PCI)
        uuid = device_uuid(kind, uuid)
        return FabricDevice(
            id=uuid or known.serial or handle,
            handle=handle,
            kind=kind,
            model=known.model,
            serial=known.serial,
            uuid=uuid,
            vendor_id=known.vendor_id,
            device_id=known.device_id,
            slot=remark(row.get("Port#", "")),
            port=port,
        )

    def has_port(self, port: str) -> bool:
        """See :class:`Driver`: this dialect tells of a port only by what is assigned to it."""
        return True

    async def ask_assign(self, device: FabricDevice, port: str) -> Answer:
        """See :class:`Driver`."""
        return await self._allocate("POST", {"gep": "0", "port_gid": port, "dev_gid": device.handle})

    async def ask_unassign(self, device: FabricDevice) -> Answer:
        """See :class:`Driver`."""
        return await self._allocate("DELETE", {"gep": "0", "dev_gid": device.handle})

    async def _allocate(self, method: str, body: Mapping[str, str]) -> Answer:
        request = Request(method, ALLOCATION, body)
        reply = await self._transport.exchange(request)
        if reply.status in SAID_NO:
            return Answer(False, self._words(reply))
        check_status(self.chassis, request, reply, ok=frozenset({200, 201}))
        said = decode_reply(self.chassis, request, reply, _Allocated)
        return Answer(bool(said.Result) and all(said.Result), remark(said.Remark))

    def _words(self, reply: Reply) -> str:
        return plain_words(reply) or f"status {reply.status}"

    async def close(self) -> None:
        """See :class:`Driver`."""
        await self._transport.close()
