"""Words of Redfish that all parts of the emulated service use: references, errors, ETags."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from farbus.hotplug.fabric.emulator.front import json_reply
from farbus.hotplug.fabric.http import Reply

V1 = "/redfish/v1"

Resource = dict[str, Any]
Ports = Mapping[str, str]
"""The port of each device that a listing has; empty for none."""


@dataclass(frozen=True)
class Collection:
    """A collection: its path below ``V1``, its type, and the names of its members."""

    path: str
    type: str
    members: Callable[[Ports], Iterable[str]]
    annotations: Resource = field(default_factory=dict)


@dataclass(frozen=True)
class Single:
    """Resources of one kind: a pattern of their paths below ``V1``, and what makes one of the pattern's groups.

    What is made is all beside ``@odata.id``; None where there is none of that name.
    """

    pattern: str
    make: Callable[..., Resource | None]


def link(path: str) -> Resource:
    """Return a reference to a resource."""
    return {"@odata.id": V1 + path}


def names(links: Any, key: str) -> list[str] | None:
    """Return the last parts of the URIs in ``links[key]``; None where they are not that."""
    found = links.get(key) if isinstance(links, dict) else None
    if not isinstance(found, list):
        return None
    uris = [each.get("@odata.id") if isinstance(each, dict) else None for each in found]
    return [uri.rpartition("/")[2] for uri in uris if isinstance(uri, str)] if all(uris) else None


def as_sent(header: str) -> bytes:
    """Return a header's value as it came: the server reads bytes that are no UTF-8 as lone surrogates."""
    return header.encode("utf-8", "surrogateescape")


def etag(resource: Resource) -> str:
    """Return an ETag by content, so that it means the same after a restart."""
    return f'"{hashlib.sha256(msgspec.json.encode(resource, order="deterministic")).hexdigest()[:16]}"'


def uuid(name: str) -> str:
    """Return a UUID that is always the same for a name."""
    digits = hashlib.sha256(name.encode()).hexdigest()
    return "-".join((digits[:8], digits[8:12], "4" + digits[13:16], "8" + digits[17:20], digits[20:32]))


def error(status: int, message: str, words: str) -> Reply:
    """Return an error as Redfish words it (DSP0266, error responses); ``message`` is one of the Base registry."""
    detail = {"MessageId": f"Base.1.18.{message}", "Message": words, "MessageSeverity": "Warning"}
    body = {"error": {"code": f"Base.1.18.{message}", "message": words, "@Message.ExtendedInfo": [detail]}}
    return json_reply(status, body)
