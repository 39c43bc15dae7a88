"""What a node reports of itself, checked: who says what can't be is refused, with the field and the reason.

A node is believed in what it has, never in how much there can be of it: its
report goes into the arithmetic of rounds and into everybody's listings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import structlog

from farbus.api.conversion import from_message
from farbus.api.identity import Identity
from farbus.api.v1 import types_pb2
from farbus.errors import InvalidInput
from farbus.model.device import Device, PoolReach
from farbus.model.fabric import HISTORY_LENGTH, ChassisView, FabricStep, StepHistory
from farbus.model.job import MAX_RESOURCE
from farbus.model.move import NodeMove
from farbus.model.node import DIMENSIONS, Link, Node, amounts_of
from farbus.model.quantity import MAX_BYTES, format_bytes
from farbus.model.value import from_json

_log = structlog.get_logger()

MAX_DEVICES = 4_096
"""Devices of one node."""
MAX_LINKS = 1_024
"""Network interfaces of one node."""
MAX_POOLS = 256
"""Fabric pools that one node reaches."""
MAX_ATTACH_S = 3_600.0
"""Longest that attaching a device, or storage over the network, is believed to take."""
MAX_CHASSIS = 256
"""Chassis that one node has the credentials for."""
MAX_EXPECTED_S = 86_400.0
"""Longest that a move is believed to take."""
MAX_PAIRS = 256
"""Labels of a node, or attributes of a device."""
MAX_NODE_BYTES = 4 * 2**20
"""What a node says of itself and its devices; everybody's listings have it: a kilobyte for each of as many devices."""
MAX_WORD = 256
"""Characters of an address, a version, a model, a label; of DNS, names have 253."""
MAX_TEXT = 4_096
"""Characters of a reason, an error or a device's name that a node sends."""
MAX_NUMA_NODE = 4_095
"""Linux's MAX_NUMNODES is at most 1024; other kernels may have more."""
WHOLE_MILLI = 1_000
"""A whole device, in thousandths: no share is more."""
MAX_LINK_MBIT_S = 10**8
"""A hundred terabits a second: more than any link."""


def read_node(caller: Identity, message: types_pb2.Node) -> Node:
    """Return the node that a message announces, if it is the caller's and makes sense."""
    if message.ByteSize() > MAX_NODE_BYTES:
        limit = format_bytes(MAX_NODE_BYTES)
        raise InvalidInput(f"node {caller.name} says more than {limit} of itself and its devices")
    for field, items, most in (
        ("devices", message.devices, MAX_DEVICES),
        ("links", message.links, MAX_LINKS),
        ("pools", message.pools, MAX_POOLS),
    ):
        if len(items) > most:
            raise InvalidInput(f"node {caller.name} reports more than {most} {field}")
    node = from_message(message, Node)
    if node.name != caller.name:
        name = _shown(node.name)
        raise InvalidInput(f"the certificate is of node {caller.name}, but the agent calls itself {name}")
    report = _Report(node.name)
    for dimension, amount in zip(DIMENSIONS, amounts_of(node.capacity), strict=True):
        report.number(f"capacity.{dimension.name}", amount, 0, dimension.most)
    for field in ("address", "boot_id", "agent_version", "peer_endpoint", "remoting_tls"):
        report.text(field, getattr(node, field), MAX_WORD)
    report.pairs("labels", node.labels)
    seen: set[str] = set()
    for index, device in enumerate(node.devices):
        report.device(f"devices[{index}]", device, seen)
    for index, pool in enumerate(node.pools):
        report.pool(f"pools[{index}]", pool)
    for index, link in enumerate(node.links):
        report.link(f"links[{index}]", link)
    report.attach_s("storage_attach_s", node.storage_attach_s)
    return msgspec.structs.replace(node, trouble=in_words(node.trouble))


def believed_s(seconds: float) -> float:
    """Return how long something is likely to take, as far as a node is believed; 0 where it does not know."""
    return seconds if 0 < seconds <= MAX_EXPECTED_S else 0.0


def read_chassis_names(node: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the chassis that a node's agent has the credentials for."""
    if len(names) > MAX_CHASSIS:
        raise InvalidInput(f"node {node} reports more than {MAX_CHASSIS} chassis")
    report = _Report(node)
    for index, name in enumerate(names):
        report.text(f"chassis[{index}]", name, MAX_WORD, empty=False)
    return tuple(dict.fromkeys(names))


def read_chassis(node: str, view: bytes, history: bytes) -> tuple[ChassisView, StepHistory | None]:
    """Return what a node's agent has read of a chassis, and how long steps take there, None where it does not tell."""
    for field, text in (("view", view), ("history", history)):
        if len(text) > MAX_NODE_BYTES:
            raise InvalidInput(f"node {node} reports a chassis's {field} of more than {format_bytes(MAX_NODE_BYTES)}")
    read = from_json(view, ChassisView)
    report = _Report(node)
    report.text("chassis", read.chassis, MAX_WORD, empty=False)
    for items in (read.ports, read.devices, read.missing):
        if len(items) > MAX_DEVICES:
            raise InvalidInput(f"node {node} reports a chassis with more than {MAX_DEVICES} ports or devices")
    for index, port in enumerate(read.ports):
        report.text(f"ports[{index}].id", port.id, MAX_WORD, empty=False)
        report.text(f"ports[{index}].node", port.node, MAX_WORD)
    for index, device in enumerate((*read.devices, *read.missing)):
        report.text(f"devices[{index}].id", device.id, MAX_WORD, empty=False)
        for name in ("handle", "model", "serial", "uuid", "slot", "port"):
            report.text(f"devices[{index}].{name}", getattr(device, name), MAX_WORD)
    if told := read.contradiction():
        raise report.refuse("chassis", f"{read.chassis}, which can't be: {told}")
    if not history:
        return read, None
    times = from_json(history, StepHistory)
    for step in FabricStep:
        kept = times.times.get(step, ())
        if len(kept) > HISTORY_LENGTH:
            raise report.refuse(f"history.{step}", f"with more than {HISTORY_LENGTH} times")
        for seconds in (*kept, times.given_up.get(step, 0.0)):
            if not 0 <= seconds <= MAX_EXPECTED_S:
                raise report.refuse(f"history.{step}", f"{seconds:g}, which is not from 0 to {MAX_EXPECTED_S:g} s")
    return read, times


def read_node_move(node: str, text: bytes) -> NodeMove | None:
    """Return what a node says of its part of a move; None where it says nothing that is understood.

    It is never refused: that the part has ended must be heard.
    """
    if not text or len(text) > MAX_NODE_BYTES:
        return None
    try:
        told = from_json(text, NodeMove)
    except InvalidInput as error:
        _log.warning("what a node says of a move is not understood", node=node, error=str(error))
        return None
    return msgspec.structs.replace(
        told,
        plan=tuple(map(in_words, told.plan[:MAX_PAIRS])),
        in_the_way=tuple(map(in_words, told.in_the_way[:MAX_PAIRS])),
        identity=in_words(told.identity)[:MAX_WORD],
        path=in_words(told.path),
        hint=in_words(told.hint),
        expected_s=believed_s(told.expected_s),
    )


def in_words(text: str) -> str:
    """Return what a node says to people as far as it is believed: on one line, and not for ever.

    It is never refused: a node in trouble must be able to say so.
    """
    return "".join(each if each.isprintable() else " " for each in text[:MAX_TEXT])


class _Report:
    """The checks of one node's report; each raises :class:`InvalidInput`."""

    def __init__(self, node: str) -> None:
        self._node = node

    def refuse(self, field: str, reason: str) -> InvalidInput:
        return InvalidInput(f"node {self._node} reports {field} {reason}")

    def number(self, field: str, value: int, least: int, most: int) -> None:
        if not least <= value <= most:
            raise self.refuse(field, f"{value}, which is not from {least} to {most}")

    def text(self, field: str, value: str, most: int, *, empty: bool = True) -> None:
        if not value and not empty:
            raise self.refuse(field, "without a value")
        if len(value) > most:
            raise self.refuse(field, f"of more than {most} characters")
        if not value.isprintable():
            raise self.refuse(field, f"{_shown(value)}, which has a character that can't be printed")

    def pairs(self, field: str, values: Mapping[str, str]) -> None:
        if len(values) > MAX_PAIRS:
            raise self.refuse(field, f"with more than {MAX_PAIRS} entries")
        for key, value in values.items():
            self.text(field, key, MAX_WORD, empty=False)
            self.text(f"{field}.{key}", value, MAX_TEXT if field.startswith("devices") else MAX_WORD)

    def device(self, field: str, device: Device, seen: set[str]) -> None:
        self.text(f"{field}.id", device.id, MAX_WORD, empty=False)
        if "," in device.id:
            raise self.refuse(f"{field}.id", f"{device.id!r}: a comma stands between ids in listings")
        if device.id in seen:
            raise self.refuse(f"{field}.id", f"{device.id!r} twice: devices have names of their own")
        seen.add(device.id)
        for name in ("model", "pci_address", "compute_capability", "pool"):
            self.text(f"{field}.{name}", getattr(device, name), MAX_WORD)
        self.number(f"{field}.memory_bytes", device.memory_bytes, 0, MAX_BYTES)
        self.number(f"{field}.bandwidth_bytes_per_s", device.bandwidth_bytes_per_s, 0, MAX_BYTES)
        self.number(f"{field}.share_milli", device.share_milli, 0, WHOLE_MILLI)
        self.number(f"{field}.numa_node", device.numa_node, -1, MAX_NUMA_NODE)
        self.pairs(f"{field}.attributes", device.attributes)
        for what, names in (("resources", device.resources), ("services", device.services)):
            if len(names) > MAX_PAIRS:
                raise self.refuse(f"{field}.{what}", f"with more than {MAX_PAIRS} entries")
            for name in names:
                self.text(f"{field}.{what}", name, MAX_WORD, empty=False)
        for name, amount in device.resources.items():
            self.number(f"{field}.resources.{name}", amount, 0, MAX_RESOURCE)

    def pool(self, field: str, reach: PoolReach) -> None:
        self.text(f"{field}.pool", reach.pool, MAX_WORD, empty=False)
        self.attach_s(f"{field}.attach_s", reach.attach_s)

    def attach_s(self, field: str, seconds: float) -> None:
        # Also not a number is not between two.
        if not 0 <= seconds <= MAX_ATTACH_S:
            raise self.refuse(field, f"{seconds:g}, which is not from 0 to {MAX_ATTACH_S:g}")

    def link(self, field: str, link: Link) -> None:
        self.text(f"{field}.name", link.name, MAX_WORD, empty=False)
        self.number(f"{field}.speed_mbit_s", link.speed_mbit_s, 0, MAX_LINK_MBIT_S)


def _shown(text: str) -> str:
    return repr(text[:40] + "..." if len(text) > 40 else text)
