"""Redfish in front of an emulated chassis: resources made of its state, compare and swap.

All styles of :mod:`farbus.hotplug.fabric.redfish` are there at once: the zone,
the connections, the resource blocks and the composed system of a port say the
same, and changing one changes the others.
"""

from __future__ import annotations

import hmac
import re

from farbus.hotplug.fabric.emulator.chassis import EmulatedChassis, raise_fault
from farbus.hotplug.fabric.emulator.faults import FaultKind
from farbus.hotplug.fabric.emulator.front import Running, faulty, json_reply
from farbus.hotplug.fabric.emulator.redfish_composition import CompositionPart
from farbus.hotplug.fabric.emulator.redfish_fabric import FabricPart
from farbus.hotplug.fabric.emulator.redfish_sessions import Sessions
from farbus.hotplug.fabric.emulator.redfish_tasks import Tasks
from farbus.hotplug.fabric.emulator.redfish_words import V1, Ports, Resource, Single, as_sent, error, etag, link, uuid
from farbus.hotplug.fabric.http import Reply, Request
from farbus.hotplug.fabric.redfish_client import Credentials
from farbus.linux.clock import Clock

SAY_WHERE = frozenset({"Zones", "Connections", "ResourceBlocks", "Systems"})
"""Collections that say where devices are assigned."""


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
        self._running = running
        self._sessions = Sessions(chassis, clock=clock, credentials=credentials)
        self._tasks = Tasks(chassis, running=running)
        self._fabric = FabricPart(chassis, self._tasks, matches=self._matches)
        self._composition = CompositionPart(chassis, self._tasks, matches=self._matches, read=self._now)
        parts = (self._sessions, self._tasks, self._fabric, self._composition)
        self._collections = {each.path: each for part in parts for each in part.collections}
        singles = [Single(r"/", self._root), *(each for part in parts for each in part.singles)]
        self._singles = [(re.compile(each.pattern), each.make) for each in singles]

    async def exchange(self, request: Request) -> Reply:
        """See :class:`farbus.hotplug.fabric.emulator.front.Front`."""
        path, _, query = request.path.partition("?")
        if path.rstrip("/") == "/redfish" and request.method == "GET":
            return json_reply(200, {"v1": V1 + "/"})
        if not path.startswith(V1) or path[len(V1) :][:1] not in ("", "/"):
            return error(404, "ResourceMissingAtURI", f"There is no resource {path}.")
        path = "/" + path[len(V1) :].strip("/")
        if request.method == "POST" and path == "/SessionService/Sessions":
            return self._sessions.log_in(request.body)
        headers = {name.lower(): value for name, value in request.headers.items()}
        if path != "/" and not self._sessions.knows(headers):
            return error(401, "NoValidSession", "There is no valid session.")
        if request.method == "GET" and path.startswith("/TaskService/TaskMonitors/"):
            return await self._running.finish(self._tasks.monitor(path.rpartition("/")[2]))
        if request.method == "GET":
            return await self._running.finish(self._get(path, query))
        if request.method == "DELETE" and path.startswith("/SessionService/Sessions/"):
            return self._sessions.log_out(path.rpartition("/")[2])
        body = request.body if isinstance(request.body, dict) else {}
        for part in (self._fabric, self._composition):
            if (reply := await part.change(request.method, path, body, headers)) is not None:
                return reply
        if self._now(path) is None and self._collection(path, {}, expand=False) is None:
            return error(404, "ResourceMissingAtURI", f"There is no resource {path}.")
        return error(405, "OperationNotAllowed", f"{request.method} is not allowed here.")

    async def _get(self, path: str, query: str) -> Reply:
        # The list of devices is what takes a chassis its time; where each is assigned stands beside it.
        lists_devices = path.endswith("/PCIeDevices")
        says_where = path.rpartition("/")[2] in SAY_WHERE
        ports, fault = await self._chassis.look(is_slow=lists_devices, has_devices=lists_devices or says_where)
        raise_fault(fault, after=False)
        if fault is not None and fault.kind is FaultKind.ERROR and not fault.after:
            return error(503, "ServiceTemporarilyUnavailable", "The service is busy.")
        found = self._collection(path, ports, expand="$expand" in query)
        if found is None:
            found = self._single(path, ports)
        if found is None:
            return error(404, "ResourceMissingAtURI", f"There is no resource {path}.")
        headers = {"odata-version": "4.0"} | ({"etag": found["@odata.etag"]} if "@odata.etag" in found else {})
        return faulty(json_reply(200, found, headers), fault)

    def _collection(self, path: str, ports: Ports, *, expand: bool) -> Resource | None:
        collection = self._collections.get(path)
        if collection is None:
            return None
        uris = [f"{path}/{name}" for name in collection.members(ports)]
        return {
            "@odata.id": V1 + path,
            "@odata.type": f"#{collection.type}.{collection.type}",
            "Name": collection.type.removesuffix("Collection"),
            "Members@odata.count": len(uris),
            "Members": [(self._single(uri, ports) if expand else None) or link(uri) for uri in uris],
            **collection.annotations,
        }

    def _single(self, path: str, ports: Ports) -> Resource | None:
        for pattern, make in self._singles:
            if match := pattern.fullmatch(path):
                made = make(ports, *match.groups())
                if made is None:
                    return None
                resource = {"@odata.id": V1 + path} | made
                resource.setdefault("@odata.etag", etag(resource))
                return resource
        return None

    def _now(self, path: str) -> Resource | None:
        """Return a resource as it is; None where there is none."""
        return self._single(path, self._chassis.assigned())

    def _matches(self, path: str, tag: str) -> bool:
        """Say whether a resource still is the one of an ETag."""
        now = self._now(path)
        return tag == "*" or (now is not None and hmac.compare_digest(str(now["@odata.etag"]).encode(), as_sent(tag)))

    def _root(self, _: Ports) -> Resource:
        return {
            "@odata.type": "#ServiceRoot.v1_15_0.ServiceRoot",
            "Id": "RootService",
            "Name": "Root service",
            "RedfishVersion": "1.18.0",
            "UUID": uuid(self._name),
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
