"""H3's dialect in front of an emulated chassis (:mod:`farbus.hotplug.fabric.h3` says what it is)."""

from __future__ import annotations

from farbus.hotplug.fabric.emulator.chassis import EmulatedChassis, raise_fault
from farbus.hotplug.fabric.emulator.faults import FaultKind
from farbus.hotplug.fabric.emulator.front import Running, faulty, json_reply
from farbus.hotplug.fabric.h3 import ALLOCATION, RESOURCES
from farbus.hotplug.fabric.http import Reply, Request
from farbus.model.fabric import FabricStep

PLAIN = {"content-type": "text/plain"}


class H3Front:
    """Answers requests in H3's dialect."""

    def __init__(self, chassis: EmulatedChassis, *, running: Running) -> None:
        self._chassis = chassis
        self._running = running

    async def exchange(self, request: Request) -> Reply:
        """See :class:`farbus.hotplug.fabric.emulator.front.Front`."""
        path = request.path.partition("?")[0]
        if path == RESOURCES and request.method == "GET":
            return await self._running.finish(self._list())
        if path == ALLOCATION and request.method in ("POST", "DELETE"):
            return await self._running.finish(self._allocate(request))
        return Reply(405 if path in (RESOURCES, ALLOCATION) else 404, PLAIN, b"")

    async def _list(self) -> Reply:
        ports, fault = await self._chassis.look()
        raise_fault(fault, after=False)
        rows = []
        numbers = {port.id: number for number, port in enumerate(self._chassis.config.ports, start=1)}
        for slot, (name, device) in enumerate(self._chassis.devices.items(), start=1):
            if name not in ports:
                continue
            port = ports[name]
            rows.append(
                {
                    "dev_type": device.type,
                    "Dev_GID": name,
                    "OB_GPU_GUID": device.uuid,
                    "Host_Port#": str(numbers[port]) if port else "",
                    "Port#": str(slot),
                    "Port_GID": port,
                }
            )
        return faulty(json_reply(200, rows, PLAIN), fault)

    async def _allocate(self, request: Request) -> Reply:
        assigns = request.method == "POST"
        step = FabricStep.ASSIGN if assigns else FabricStep.UNASSIGN
        fault = self._chassis.faults.draw(step)
        raise_fault(fault, after=False)
        if fault is not None and fault.kind is FaultKind.ERROR and not fault.after:
            return Reply(502, PLAIN, b"bad gateway")
        body = request.body if isinstance(request.body, dict) else {}
        device, port = str(body.get("dev_gid", "")), str(body.get("port_gid", ""))
        deny = fault is not None and fault.kind is FaultKind.DENY
        if assigns:
            outcome = await self._chassis.assign(device, port, deny=deny)
        else:
            outcome = await self._chassis.unassign(device, deny=deny)
        says = outcome.done and not (fault is not None and fault.kind is FaultKind.FALSE_NEGATIVE)
        words = outcome.remark if says == outcome.done else "no response from the switch"
        action = "allocation" if assigns else "deallocation"
        return faulty(json_reply(200, {"Action": action, "Result": [says], "Remark": words}, PLAIN), fault)
