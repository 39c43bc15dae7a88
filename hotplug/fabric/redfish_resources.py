"""Redfish resources, as far as drivers read them (DSP8010); what else is in them is not looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


def plain(uri: str) -> str:
    """Return a URI as it is compared: with a slash at its end it is the same resource.  It is asked for as it is told.

    One service writes both: its collections' members without, and links to them with one.
    """
    return uri.rstrip("/")


class Link(msgspec.Struct, frozen=True):
    """A reference to a resource."""

    uri: str = msgspec.field(name="@odata.id")


def plain_uris(*links: Link) -> set[str]:
    """Return which resources links are to, as they are compared."""
    return {plain(link.uri) for link in links}


def own_uris(links: Iterable[Link], listed: Mapping[str, str]) -> list[str]:
    """Return which resources links are to, by the URIs that they have themselves where they are listed (by plain)."""
    return [listed.get(plain(link.uri), link.uri) for link in links]


class Expand(msgspec.Struct):
    """What ``$expand`` a service can do."""

    Levels: bool = False
    NoLinks: bool = False


class Features(msgspec.Struct):
    """What of the protocol a service can do."""

    ExpandQuery: Expand = msgspec.field(default_factory=Expand)


class Root(msgspec.Struct):
    """ServiceRoot."""

    Chassis: Link
    Fabrics: Link | None = None
    CompositionService: Link | None = None
    Systems: Link | None = None
    ProtocolFeaturesSupported: Features = msgspec.field(default_factory=Features)


class Collection(msgspec.Struct):
    """Any collection, with its members as they are."""

    Members: list[msgspec.Raw]
    next: str = msgspec.field(name="Members@odata.nextLink", default="")
    count: int | None = msgspec.field(name="Members@odata.count", default=None)
    """Members on all pages; None where that is not told."""


class Status(msgspec.Struct):
    """State and health of a resource."""

    State: str | None = None
    Health: str | None = None


class Chassis(msgspec.Struct):
    """Chassis."""

    Id: str
    PCIeDevices: Link | None = None


class PCIeDevice(msgspec.Struct):
    """PCIeDevice."""

    uri: str = msgspec.field(name="@odata.id")
    Id: str
    Name: str = ""
    Model: str | None = None
    SerialNumber: str | None = None
    UUID: str | None = None
    Status: Status = msgspec.field(default_factory=Status)
    PCIeFunctions: Link | None = None


class PCIeFunction(msgspec.Struct):
    """PCIeFunction."""

    ClassCode: str | None = None
    VendorId: str | None = None
    DeviceId: str | None = None


class Fabric(msgspec.Struct):
    """Fabric."""

    Id: str
    Endpoints: Link
    Zones: Link | None = None
    Connections: Link | None = None


class Entity(msgspec.Struct):
    """What an endpoint stands for."""

    EntityRole: str | None = None
    EntityLink: Link | None = None


class EndpointLinks(msgspec.Struct):
    """Links of an endpoint."""

    ConnectedPorts: list[Link] = []


class Endpoint(msgspec.Struct):
    """Endpoint."""

    uri: str = msgspec.field(name="@odata.id")
    Id: str
    ConnectedEntities: list[Entity]
    Links: EndpointLinks = msgspec.field(default_factory=EndpointLinks)


class ZoneLinks(msgspec.Struct):
    """Links of a zone."""

    Endpoints: list[Link] = []


class Zone(msgspec.Struct):
    """Zone."""

    uri: str = msgspec.field(name="@odata.id")
    Links: ZoneLinks = msgspec.field(default_factory=ZoneLinks)
    etag: str = msgspec.field(name="@odata.etag", default="")


class ConnectionLinks(msgspec.Struct):
    """Links of a connection."""

    InitiatorEndpoints: list[Link] = []
    TargetEndpoints: list[Link] = []


class Connection(msgspec.Struct):
    """Connection."""

    uri: str = msgspec.field(name="@odata.id")
    Links: ConnectionLinks = msgspec.field(default_factory=ConnectionLinks)
    etag: str = msgspec.field(name="@odata.etag", default="")


class Service(msgspec.Struct):
    """CompositionService."""

    ResourceBlocks: Link


class BlockLinks(msgspec.Struct):
    """Links of a resource block."""

    ComputerSystems: list[Link] = []
    PCIeDevices: list[Link] = []


class Block(msgspec.Struct):
    """ResourceBlock."""

    uri: str = msgspec.field(name="@odata.id")
    ComputerSystems: list[Link] = []
    """The nodes in it, where it is a block of such."""
    Links: BlockLinks = msgspec.field(default_factory=BlockLinks)
    etag: str = msgspec.field(name="@odata.etag", default="")


class SystemLinks(msgspec.Struct):
    """Links of a computer system."""

    ResourceBlocks: list[Link] = []


class System(msgspec.Struct):
    """ComputerSystem."""

    uri: str = msgspec.field(name="@odata.id")
    Id: str
    Links: SystemLinks = msgspec.field(default_factory=SystemLinks)
    etag: str = msgspec.field(name="@odata.etag", default="")


class Message(msgspec.Struct):
    """A message of an error or a task."""

    Message: str = ""


class Error(msgspec.Struct):
    """What went wrong."""

    message: str = ""
    extended: list[Message] = msgspec.field(name="@Message.ExtendedInfo", default_factory=list)


class ErrorReply(msgspec.Struct):
    """An error (DSP0266, error responses)."""

    error: Error


class Task(msgspec.Struct):
    """Task."""

    TaskState: str = ""
    Messages: list[Message] = []
