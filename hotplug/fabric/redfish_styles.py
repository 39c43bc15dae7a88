"""How styles of Redfish say what is assigned: what each reads, and what it asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from farbus.hotplug.fabric import redfish_resources as resources
from farbus.hotplug.fabric.driver import Answer
from farbus.hotplug.fabric.errors import BadReply
from farbus.hotplug.fabric.http import remark
from farbus.model.fabric import FabricDevice

MAX_NAME = 256

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/ -]*")

Devices = Mapping[str, resources.PCIeDevice]
"""All devices by their URI."""


def is_name(text: str) -> bool:
    """Say whether ``text`` can be the name of a device or a port."""
    return len(text) <= MAX_NAME and _NAME.fullmatch(text) is not None


def note(known: dict[str, str], name: str, uri: str, *, chassis: str, what: str) -> None:
    """Enter which resource stands for a port or a device; raise :class:`BadReply` where another one does already.

    The one that came last would hide what the other says is assigned, and what looks free is given away.
    """
    if known.setdefault(name, uri) != uri:
        raise BadReply(
            f"chassis {chassis}: {what} {name} is listed twice: {remark(known[name])} and {remark(uri)}",
            hint="where a fabric has several switches, give each a chassis of its own in fabric.toml (fabric_id)",
        )


@dataclass(frozen=True)
class Assigned:
    """What a style has read: which port each device (by its handle) is assigned to, and where to change that."""

    port_of: Mapping[str, str]
    uris: Mapping[str, str]
    """By handle of a device: its endpoint's URI, or its block's."""
    ports: Mapping[str, str]
    """By id of a port: its endpoint's URI, its system's, or its node's block's."""
    holders: Mapping[str, str] = field(default_factory=dict)
    """By id of a port its zone's URI or its composed system's; or by handle of a device its connection's."""


def own(known: Assigned, device: FabricDevice, *, chassis: str, what: str) -> str:
    """Return the URI of the resource that stands for a device alone, an endpoint or a block.

    Raises :class:`BadReply` where there is none, and where it stands for others as well: they would be moved along,
    from under the node that uses them.
    """
    if device.handle not in known.uris:
        raise BadReply(f"chassis {chassis}: device {device.id} has no {what}")
    uri = known.uris[device.handle]
    same = [handle for handle, each in known.uris.items() if resources.plain(each) == resources.plain(uri)]
    if others := [handle for handle in same if handle != device.handle]:
        raise BadReply(
            f"chassis {chassis}: device {device.id} has one {what} with {', '.join(others)}: none of them can be "
            "moved without the others"
        )
    return uri


class Style(Protocol):
    """One way to say and to change what is assigned."""

    async def read(self, root: resources.Root, devices: Devices) -> Assigned:
        """Read what is assigned; raise as :meth:`farbus.hotplug.fabric.driver.Driver.read` does."""
        ...

    async def assign(self, known: Assigned, device: FabricDevice, port: str) -> Answer:
        """Ask for a free device to be assigned to a port."""
        ...

    async def unassign(self, known: Assigned, device: FabricDevice) -> Answer:
        """Ask for a device to be taken from its port."""
        ...
