"""Composition in the emulated Redfish service (DSP2050): blocks, zones, systems, and changes of systems.

Each device is a resource block, and so is the node at each port: a system is
composed of one node's block and of devices' blocks.  It is composed by
``POST`` to the systems, with its blocks (specific) or with how many resources
of which kind it needs (constrained); ``PATCH`` of its blocks adds and removes,
``DELETE`` gives all of them back.  At first each node is a system.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from farbus.hotplug.fabric.emulator.chassis import EmulatedChassis
from farbus.hotplug.fabric.emulator.front import json_reply
from farbus.hotplug.fabric.emulator.redfish_tasks import Tasks
from farbus.hotplug.fabric.emulator.redfish_words import V1, Collection, Ports, Resource, Single, error, link, names
from farbus.hotplug.fabric.http import Reply
from farbus.model.fabric import FabricStep

SERVICE = "/CompositionService"
BLOCKS = f"{SERVICE}/ResourceBlocks"
SYSTEMS = "/Systems"

NODE = "node:"
"""Begins the ids of nodes' blocks; no device's id has a colon."""

MAX_NAME = 256

CONSTRAINTS = {"Processors": "GPU", "Storage": "NVME"}
"""Resources that a constrained request can name, and the type of device that each is."""

CAPABILITIES = {
    "Specific": "ComputerSystemComposition",
    "Constrained": "ComputerSystemConstrainedComposition",
}


class _Wanted(NamedTuple):
    """What a request to compose asks for."""

    port: str
    devices: list[str]
    name: str


class CompositionPart:
    """CompositionService and Systems. ``matches`` says whether a resource still has an ETag, ``read`` returns one."""

    def __init__(
        self,
        chassis: EmulatedChassis,
        tasks: Tasks,
        *,
        matches: Callable[[str, str], bool],
        read: Callable[[str], Resource | None],
    ) -> None:
        self._chassis = chassis
        self._name = chassis.config.name
        self._tasks = tasks
        self._matches = matches
        self._read = read
        self._ports = [port.id for port in chassis.config.ports]
        self.collections: Sequence[Collection] = (
            Collection(BLOCKS, "ResourceBlockCollection", lambda _: self._block_ids()),
            Collection(f"{SERVICE}/ResourceZones", "ZoneCollection", lambda _: [self._name]),
            Collection(
                SYSTEMS,
                "ComputerSystemCollection",
                lambda ports: [port for port in self._ports if self._exists(ports, port)],
                self._capabilities(),
            ),
        )
        self.singles: Sequence[Single] = (
            Single(re.escape(SERVICE), self._service),
            Single(rf"{BLOCKS}/([^/]+)", self._block),
            Single(rf"{BLOCKS}/{NODE}([^/]+)/Systems/([^/]+)", self._node),
            Single(rf"{SERVICE}/ResourceZones/([^/]+)", self._zone),
            Single(rf"{SERVICE}/Capabilities/([^/]+)", self._capability),
            Single(rf"{SYSTEMS}/([^/]+)", self._system),
        )

    # Resources.

    def _block_ids(self) -> list[str]:
        return [*self._chassis.devices, *(NODE + port for port in self._ports)]

    def _exists(self, ports: Ports, port: str) -> bool:
        return self._chassis.system(port).is_composed or port in ports.values()

    def _service(self, _: Ports) -> Resource:
        return {
            "@odata.type": "#CompositionService.v1_2_0.CompositionService",
            "Id": "CompositionService",
            "Name": "Composition service",
            "ServiceEnabled": True,
            "AllowOverprovisioning": False,
            "ResourceBlocks": link(BLOCKS),
            "ResourceZones": link(f"{SERVICE}/ResourceZones"),
        }

    def _block(self, ports: Ports, name: str) -> Resource | None:
        if name not in self._block_ids():
            return None
        if name.startswith(NODE):
            port = name.removeprefix(NODE)
            types, is_used, is_changing = ["ComputerSystem"], self._exists(ports, port), False
            at = f"{BLOCKS}/{name}/Systems"
            has: Resource = {"ComputerSystems": [link(f"{at}/{port}")]}
            devices: list[Resource] = []
        else:
            port = ports.get(name, "")
            types = ["Processor" if self._chassis.devices[name].type == "GPU" else "Expansion"]
            is_used, is_changing = bool(port), self._chassis.row(name).pending is not None
            has, devices = {}, [link(f"/Chassis/{self._name}/PCIeDevices/{name}")]
        state = "Composing" if is_changing else "Composed" if is_used else "Unused"
        return {
            "@odata.type": "#ResourceBlock.v1_4_0.ResourceBlock",
            "Id": name,
            "Name": f"Node at port {port}" if name.startswith(NODE) else f"Device {name}",
            "ResourceBlockType": types,
            "CompositionStatus": {"CompositionState": state, "SharingCapable": False},
            "Status": {"State": "Enabled", "Health": "OK"},
            **has,
            "Links": {
                "ComputerSystems": [link(f"{SYSTEMS}/{port}")] if is_used else [],
                "PCIeDevices": devices,
                "Zones": [link(f"{SERVICE}/ResourceZones/{self._name}")],
            },
        }

    def _node(self, _: Ports, port: str, name: str) -> Resource | None:
        config = self._chassis.config.port(port)
        if config is None or name != port:
            return None
        return {
            "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem",
            "Id": port,
            "Name": config.node or f"Node at port {port}",
            "SystemType": "Physical",
            "Links": {"ResourceBlocks": [link(f"{BLOCKS}/{NODE}{port}")]},
        }

    def _zone(self, _: Ports, name: str) -> Resource | None:
        if name != self._name:
            return None
        return {
            "@odata.type": "#Zone.v1_6_1.Zone",
            "Id": name,
            "Name": "Devices and nodes of this chassis",
            "ZoneType": "ZoneOfResourceBlocks",
            "Links": {"ResourceBlocks": [link(f"{BLOCKS}/{block}") for block in self._block_ids()]},
            **self._capabilities(),
        }

    def _capabilities(self) -> Resource:
        return {
            "@Redfish.CollectionCapabilities": {
                "@odata.type": "#CollectionCapabilities.v1_4_0.CollectionCapabilities",
                "Capabilities": [
                    {
                        "CapabilitiesObject": link(f"{SERVICE}/Capabilities/{name}"),
                        "UseCase": use_case,
                        "Links": {
                            "TargetCollection": link(SYSTEMS),
                            "RelatedItem": [link(f"{SERVICE}/ResourceZones/{self._name}")],
                        },
                    }
                    for name, use_case in CAPABILITIES.items()
                ],
            }
        }

    def _capability(self, _: Ports, name: str) -> Resource | None:
        if name not in CAPABILITIES:
            return None
        capability: Resource = {
            "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem",
            "Id": name,
            "Name": "What a request to compose has",
            "Name@Redfish.OptionalOnCreate": True,
            "Name@Redfish.SetOnlyOnCreate": True,
        }
        blocks = {"ResourceBlocks@Redfish.UpdatableAfterCreate": True}
        if name == "Specific":
            return capability | {
                "Links@Redfish.RequiredOnCreate": True,
                "Links": blocks | {"ResourceBlocks@Redfish.RequiredOnCreate": True},
            }
        return capability | {
            "Links@Redfish.OptionalOnCreate": True,
            "Links": blocks | {"ResourceBlocks@Redfish.OptionalOnCreate": True},
            **{f"{kind}@Redfish.OptionalOnCreate": True for kind in CONSTRAINTS},
        }

    def _system(self, ports: Ports, port: str) -> Resource | None:
        config = self._chassis.config.port(port)
        if config is None or not self._exists(ports, port):
            return None
        actions = f"{V1}{SYSTEMS}/{port}/Actions/ComputerSystem."
        blocks = [NODE + port, *(device for device, at in ports.items() if at == port)]
        return {
            "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem",
            "Id": port,
            "Name": self._chassis.system(port).name or config.node or f"Node at port {port}",
            "SystemType": "Composed",
            "Links": {"ResourceBlocks": [link(f"{BLOCKS}/{block}") for block in blocks]},
            "Actions": {
                f"#ComputerSystem.{name}": {"target": actions + name}
                for name in ("AddResourceBlock", "RemoveResourceBlock")
            },
        }

    # Changes.

    async def change(self, method: str, path: str, body: Resource, headers: Mapping[str, str]) -> Reply | None:
        """Answer a change of a system or of the systems; None where it is of something else."""
        if method == "POST" and path == SYSTEMS:
            return await self._post(body)
        if method == "POST" and (
            action := re.fullmatch(rf"{SYSTEMS}/([^/]+)/Actions/ComputerSystem\.(Add|Remove)ResourceBlock", path)
        ):
            return await self._act(action[1], body, adds=action[2] == "Add")
        system = re.fullmatch(rf"{SYSTEMS}/([^/]+)", path)
        if system is None or method not in ("PATCH", "DELETE"):
            return None
        if self._read(path) is None:
            return error(404, "ResourceMissingAtURI", f"There is no system {system[1]}.")
        etag = headers.get("if-match", "")
        if not etag and method == "PATCH":
            return error(428, "PreconditionRequired", "If-Match is needed.")
        if not self._matches(path, etag or "*"):
            return error(412, "PreconditionFailed", "The system has changed.")
        if method == "PATCH":
            return await self._patch(path, system[1], body, etag)
        return await self._delete(path, system[1], etag or "*")

    async def _post(self, body: Resource) -> Reply:
        wanted = self._wanted(body)
        if isinstance(wanted, Reply):
            return wanted
        port, devices, name = wanted

        async def compose(deny: bool) -> Reply:
            if self._exists(self._chassis.assigned(), port):
                return error(409, "ResourceInUse", f"Block {NODE}{port} is part of a system.")
            if deny:
                return error(400, "GeneralError", "the switch did not take it")
            self._chassis.compose(port, name)
            for device in devices:
                if failure := await self._tasks.do([(FabricStep.ASSIGN, device, port)], deny=False):
                    # All of it or nothing: a system that nobody asked for would hold what others wait for.
                    given = devices[: devices.index(device)]
                    await self._tasks.do([(FabricStep.UNASSIGN, each, port) for each in given], deny=False)
                    self._chassis.decompose(port)
                    return failure
            return json_reply(201, self._read(f"{SYSTEMS}/{port}"), {"location": f"{V1}{SYSTEMS}/{port}"})

        return await self._tasks.change(FabricStep.ASSIGN, compose)

    def _wanted(self, body: Resource) -> _Wanted | Reply:
        """Return what shall be composed, or why it can't be."""
        links = body.get("Links", {})
        blocks: list[str] | None = []
        if links:
            blocks = names(links, "ResourceBlocks")
        if blocks is None or len(set(blocks)) != len(blocks):
            return error(400, "PropertyValueFormatError", "Links.ResourceBlocks is not a list of resource blocks.")
        if unknown := [block for block in blocks if block not in self._block_ids()]:
            return error(400, "PropertyValueNotInList", f"There is no resource block {unknown[0]}.")
        if used := [block for block in blocks if self._is_used(block)]:
            return error(409, "ResourceInUse", f"Block {used[0]} is part of a system.")
        nodes = [block.removeprefix(NODE) for block in blocks if block.startswith(NODE)]
        devices = [block for block in blocks if not block.startswith(NODE)]
        name = body.get("Name", "")
        if not isinstance(name, str) or len(name) > MAX_NAME:
            return error(400, "PropertyValueFormatError", f"Name is not a text of at most {MAX_NAME} characters.")
        is_constrained = any(kind in body for kind in CONSTRAINTS)
        if len(nodes) > 1 or (not nodes and not is_constrained):
            return error(400, "PropertyMissing", "Links.ResourceBlocks has to have one node's block.")
        if not nodes:
            nodes = [port for port in self._ports if not self._is_used(NODE + port)][:1]
            if not nodes:
                return error(409, "ResourceExhaustion", "No node's block is unused.")
        for kind, type in CONSTRAINTS.items():
            for constraint in _constraints(body.get(kind)):
                found = self._matching(type, constraint, but=devices)
                if isinstance(found, Reply):
                    return found
                devices += found
        return _Wanted(nodes[0], devices, name)

    def _is_used(self, block: str) -> bool:
        assigned = self._chassis.assigned()
        if block.startswith(NODE):
            return self._exists(assigned, block.removeprefix(NODE))
        return bool(assigned[block]) or self._chassis.row(block).pending is not None

    def _matching(self, type: str, constraint: Any, *, but: Sequence[str]) -> list[str] | Reply:
        """Return as many unused devices of ``type`` as a constraint requests, in the order of their slots."""
        if not isinstance(constraint, dict):
            return error(400, "PropertyValueFormatError", "A constraint is not an object.")
        count = constraint.get("@Redfish.RequestedCount", 1)
        if type == "GPU" and constraint.get("ProcessorType", "GPU") != "GPU":
            return error(400, "PropertyValueNotInList", "ProcessorType: there are GPUs alone.")
        if unknown := constraint.keys() - {"@Redfish.RequestedCount", "ProcessorType", "Model"}:
            return error(400, "PropertyUnknown", f"{min(unknown)} is no constraint here.")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            return error(400, "PropertyValueFormatError", "@Redfish.RequestedCount is not a number from 1.")
        model = constraint.get("Model")
        found = [
            name
            for name, device in self._chassis.devices.items()
            if device.type == type and model in (None, device.model) and name not in but and not self._is_used(name)
        ]
        if len(found) < count:
            return error(409, "ResourceExhaustion", f"{len(found)} of {count} requested resources are unused.")
        return found[:count]

    async def _patch(self, path: str, port: str, body: Resource, etag: str) -> Reply:
        wanted = names(body.get("Links"), "ResourceBlocks")
        if wanted is None or NODE + port not in wanted:
            return error(400, "PropertyValueFormatError", "Links.ResourceBlocks has to have the node's own block.")
        devices = [block for block in wanted if block != NODE + port]
        if unknown := [block for block in devices if block not in self._chassis.devices]:
            return error(400, "PropertyValueNotInList", f"There is no device's block {unknown[0]}.")
        assigned = self._chassis.assigned()
        if used := [device for device in devices if assigned[device] not in ("", port)]:
            return error(409, "ResourceInUse", f"Block {used[0]} is part of another system.")
        now = [device for device, at in assigned.items() if at == port]
        steps = [(FabricStep.UNASSIGN, device, port) for device in now if device not in devices]
        steps += [(FabricStep.ASSIGN, device, port) for device in devices if device not in now]
        return await self._tasks.steps(steps, unless=lambda: not self._matches(path, etag))

    async def _delete(self, path: str, port: str, etag: str) -> Reply:
        async def decompose(deny: bool) -> Reply:
            if not self._matches(path, etag):
                return error(412, "PreconditionFailed", "The system has changed.")
            if deny:
                return error(400, "GeneralError", "the switch did not let it go")
            devices = [device for device, at in self._chassis.assigned().items() if at == port]
            steps = [(FabricStep.UNASSIGN, device, port) for device in devices]
            if failure := await self._tasks.do(steps, deny=False):
                return failure
            if not self._chassis.decompose(port):
                return error(409, "ResourceInUse", f"A device was added to system {port} meanwhile.")
            return Reply(204, {}, b"")

        return await self._tasks.change(FabricStep.UNASSIGN, decompose)

    async def _act(self, port: str, body: Resource, *, adds: bool) -> Reply:
        found = names({"it": [body.get("ResourceBlock")]}, "it")
        if not found or found[0] not in self._chassis.devices:
            return error(400, "ActionParameterMissing", "ResourceBlock is none of a device here.")
        etag = str(body.get("ResourceBlockETag") or "*")
        if not self._matches(f"{BLOCKS}/{found[0]}", etag):
            return error(412, "PreconditionFailed", "The resource block has changed.")
        return await self._tasks.steps([(FabricStep.ASSIGN if adds else FabricStep.UNASSIGN, found[0], port)])


def _constraints(asked: Any) -> list[Any]:
    """Return what a constrained request asks for of one kind: ``{"Members": [...]}``, or the list itself."""
    if isinstance(asked, dict):
        asked = asked.get("Members")
    return asked if isinstance(asked, list) else [] if asked is None else [asked]
