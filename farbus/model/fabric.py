"""PCIe fabrics: what a chassis has in its slots, which port each device is assigned to, and how long that takes.

A **chassis** holds devices and has **ports**; a cable leads from a port to a
node.  Assigning a device to a port makes it appear on that node's bus.  Only
the chassis knows what is assigned, so all of this is *observed*, by reading.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from farbus.errors import NotFound
from farbus.model.device import DeviceKind
from farbus.model.value import Value, to_json

K = TypeVar("K")


MAX_LISTED = 4096
"""Devices, or ports, of one chassis: more than any has."""
MAX_MISSING = 256
"""Devices that are told as missing: a chassis that calls its devices something new each time has ever more of them."""
MAX_NAME = 256
"""Characters of the name of a chassis, a port, a device, a node."""
MAX_VIEW_BYTES = 2 * 2**20
"""JSON of one reading, half of what the scheduler takes: as many devices with half a kilobyte each."""


class Dialect(enum.StrEnum):
    """How a chassis is spoken to."""

    H3 = "h3"
    """The REST interface of H3's Falcon chassis."""
    REDFISH = "redfish"
    """DMTF's Redfish, with Fabrics and CompositionService."""


class RedfishStyle(enum.StrEnum):
    """By which Redfish resources a chassis says, and is told, what is assigned."""

    ZONES = "zones"
    CONNECTIONS = "connections"
    BLOCKS = "blocks"
    COMPOSED = "composed"


class FabricStep(enum.StrEnum):
    """What a chassis is asked to do, as it is measured."""

    LIST = "list"
    ASSIGN = "assign"
    UNASSIGN = "unassign"


class FabricPort(Value, frozen=True, kw_only=True):
    """An upstream port of a chassis, and the node at the other end of its cable (configured; empty if none)."""

    id: str
    node: str = ""


class FabricDevice(Value, frozen=True, kw_only=True):
    """A device in a chassis.

    ``id`` is its identity that stays when it moves: a GPU's UUID, a serial
    number, or else what the chassis calls it for good (H3's ``Dev_GID``), which
    is ``handle``.  ``port`` is what it is assigned to; empty for none.  The PCI
    ids are 0 where the chassis does not tell them.
    """

    id: str
    handle: str
    kind: DeviceKind
    model: str = ""
    serial: str = ""
    uuid: str = ""
    vendor_id: int = 0
    device_id: int = 0
    slot: str = ""
    port: str = ""
    healthy: bool = True

    @property
    def is_free(self) -> bool:
        """Whether it is assigned to no port."""
        return not self.port

    def answers_to(self, name: str) -> bool:
        """Say whether ``name`` means it: its id, handle, serial or UUID, or what a node calls it.

        Nodes name drives by serial and model (:func:`farbus.model.pci.nvme_name`),
        other functions by ids and serial.
        """
        return bool(name) and (name in self.names or any(serial == self.serial for serial in serials_in(name)))

    @property
    def names(self) -> frozenset[str]:
        """What it is called, beside names that are made of its serial."""
        called = (self.id, self.handle, self.serial, self.uuid, device_uuid(self.kind, self.uuid))
        return frozenset(name for name in called if name)


_UUID = re.compile(r"(?:GPU-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE)


def serials_in(name: str) -> tuple[str, ...]:
    """Return the serials that a node's name for a device may have: ``NVME-SERIAL-MODEL``, ``PCI-IDS-SERIAL``.

    The longest comes last.
    """
    kind, _, rest = name.partition("-")
    if kind == "PCI":
        return (rest.partition("-")[2],) if "-" in rest else ()
    # Either may have a dash.
    return tuple(rest[:end] for end, each in enumerate(rest) if each == "-" and end) if kind == "NVME" else ()


def device_uuid(kind: DeviceKind, uuid: str) -> str:
    """Return a UUID as the node's driver names it: a GPU's is ``GPU-...`` in lower case (NVML)."""
    if kind is DeviceKind.GPU and (found := _UUID.fullmatch(uuid)) is not None:
        return f"GPU-{found[1].lower()}"
    return f"GPU-{uuid}" if kind is DeviceKind.GPU and uuid and not uuid.startswith("GPU-") else uuid


class ChassisView(Value, frozen=True, kw_only=True):
    """What one reading of a chassis gave, checked.

    ``missing`` holds devices, as they were read last, that earlier readings
    had and several in a row have not: pulled out, or a fault of the chassis.
    They are told instead of left out, so that nobody takes fewer devices for
    a smaller chassis.
    """

    chassis: str
    ports: tuple[FabricPort, ...]
    devices: tuple[FabricDevice, ...]
    missing: tuple[FabricDevice, ...] = ()

    def device(self, name: str) -> FabricDevice:
        """Return the device that ``name`` means (:meth:`meant`); raise :class:`NotFound`.

        What several answer to means none of them.
        """
        found = self.meant(name)
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(device.id for device in found)
            raise NotFound(f"chassis {self.chassis}: several devices answer to {name}", hint=f"name one of {several}")
        if any(device.answers_to(name) for device in self.missing):
            raise NotFound(
                f"chassis {self.chassis}: device {name} was there and is not listed any more",
                hint="is it pulled out or without power?",
            )
        raise NotFound(f"chassis {self.chassis}: no device {name}", hint="farbus fabric list shows what there is")

    def meant(self, name: str) -> tuple[FabricDevice, ...]:
        """Return the devices that ``name`` may mean (:meth:`FabricDevice.answers_to`).

        Its id comes first: no other device has that; then the longest serial: ``NVME-S1-2-MODEL`` is no drive S1 where
        there is an S1-2.
        """
        found = [device for device in self.devices if device.answers_to(name)]
        found = [device for device in found if device.id == name] or found
        if len(found) > 1 and not any(name in device.names for device in found):
            longest = max(len(device.serial) for device in found)
            found = [device for device in found if len(device.serial) == longest]
        return tuple(found)

    def port(self, name: str) -> FabricPort:
        """Return the port whose id, or whose node, is ``name``; raise :class:`NotFound`.

        A node with several cables in one chassis is named by port only.
        """
        for port in self.ports:
            if port.id == name:
                return port
        at_node = [port for port in self.ports if name and port.node == name]
        if len(at_node) == 1:
            return at_node[0]
        if at_node:
            several = ", ".join(port.id for port in at_node)
            raise NotFound(f"chassis {self.chassis}: node {name} is at several ports", hint=f"name one of {several}")
        raise NotFound(f"chassis {self.chassis}: no port {name}", hint="farbus fabric ports shows what there is")

    def contradiction(self) -> str:
        """Return in words what is given twice that there can be once only; empty where the reading is plausible.

        Names that differ in case alone are the same: chassis, nodes and people do not agree on it, and of two names
        for one device each could be given away.
        """
        for what, names in (
            ("port", [port.id for port in self.ports]),
            ("device", [device.id for device in self.devices]),
            ("handle", [device.handle for device in self.devices if device.handle]),
        ):
            seen: dict[str, str] = {}
            for name in names:
                if (before := seen.setdefault(name.casefold(), name)) != name:
                    return f"{what}s {before} and {name} differ in case alone"
            if len(seen) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                return f"{what} {twice} is listed twice"
        return ""

    def excess(self) -> str:
        """Return in words what is more than there can be, and than any scheduler believes; empty where nothing is."""
        for what, items in (("ports", self.ports), ("devices", self.devices)):
            if len(items) > MAX_LISTED:
                return f"{len(items)} {what}, which no chassis has"
        names = [name for port in self.ports for name in (port.id, port.node)]
        names += [
            name
            for device in self.devices
            for name in (device.id, device.handle, device.model, device.serial, device.uuid, device.slot, device.port)
        ]
        longest = max(names, key=len, default="")
        if len(longest) > MAX_NAME:
            return f"a name of more than {MAX_NAME} characters: {longest[:40]}..."
        size = len(to_json(self))
        return f"{size} bytes of names, which no chassis has" if size > MAX_VIEW_BYTES else ""

    def at(self, port: str) -> tuple[FabricDevice, ...]:
        """Return the devices that are assigned to ``port``; the free ones for an empty name."""
        return tuple(device for device in self.devices if device.port == port)


class ChassisRequest(Value, frozen=True, kw_only=True):
    """What one agent asks of a chassis through the agent that serves it in ``term``.

    ``step`` is a :class:`FabricStep`; ``port`` is where the device is to come
    to, or where the caller believes it to be.
    """

    chassis: str
    term: int
    step: str
    device: str = ""
    port: str = ""


class ChassisReply(Value, frozen=True, kw_only=True):
    """The answer: JSON of the :class:`ChassisView` or of the :class:`FabricDevice`, and of the :class:`StepHistory`."""

    value: bytes
    history: bytes = b""


class ChassisStatus(Value, frozen=True, kw_only=True):
    """A chassis as listings show it: the node whose agent serves it, empty for none, and what that has read last."""

    name: str
    served_by: str = ""
    term: int = 0
    view: ChassisView | None = None
    trouble: str = ""
    """Why it can't be read now: ``view`` may be past.  Empty when it can."""


class StrandedDevice(Value, frozen=True, kw_only=True):
    """A device that was taken from a port and could not be given to the next: nobody has it, and it can be repaired.

    Repair is to assign it to ``target``, or back to ``source``.
    """

    chassis: str
    device: str
    source: str
    target: str
    cause: str


class StepTime(Value, frozen=True, kw_only=True):
    """How long one step took, in seconds.

    ``finished`` is false for one that was given up at its deadline: it took
    longer than ``seconds``, nobody knows how much.
    """

    step: FabricStep
    seconds: float
    finished: bool = True


HISTORY_LENGTH = 200
"""Times kept of each step: enough for a high quantile, few enough that new firmware is learned in days."""

MIN_SAMPLES = 5
"""Times from which on a deadline is learned; with fewer the cold one holds."""

DEADLINE_QUANTILE = 0.99
DEADLINE_MARGIN = 1.5
"""What a deadline is beyond the quantile. It has to end what hangs, not to be close: being late costs a reconfiguration
that was about to succeed, being generous costs seconds, and only when something is wrong."""

GIVEN_UP_FACTOR = 2.0
"""The deadline after a step that was given up, in what that had: one that is too short grows until it is not."""

COLD_DEADLINE_S = {FabricStep.LIST: 30.0, FabricStep.ASSIGN: 90.0, FabricStep.UNASSIGN: 60.0}
"""Before anything was measured: some three to five times the slowest of what KubeComp's testbed has logged."""

FLOOR_S = {FabricStep.LIST: 5.0, FabricStep.ASSIGN: 10.0, FabricStep.UNASSIGN: 10.0}
CEILING_S = 600.0
"""The longest deadline: who hangs for ten minutes will not answer."""


class StepHistory(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The last times of each step at one chassis, the newest last; what deadlines are learned from.

    It is a value: whoever owns the chassis keeps it over restarts
    (:func:`farbus.model.value.to_json`).  Its JSON has no field that is empty:
    what knows no ``given_up`` yet reads it as long as nothing is given up.
    """

    times: dict[FabricStep, tuple[float, ...]] = {}
    """Seconds, of steps that were answered."""
    given_up: dict[FabricStep, float] = {}
    """Seconds after which a step was given up; no entry once one was answered again (:func:`measured`)."""

    def with_time(self, time: StepTime) -> StepHistory:
        """Return the history with one time more; the oldest beyond ``HISTORY_LENGTH`` go."""
        times, given_up = measured(
            self.times, self.given_up, time.step, time.seconds, finished=time.finished,
            cold_s=COLD_DEADLINE_S[time.step], floor_s=FLOOR_S[time.step],
        )  # fmt: skip
        return msgspec.structs.replace(self, times=times, given_up=given_up)

    def deadline_s(self, step: FabricStep) -> float:
        """Return the seconds after which ``step`` is given up: a high quantile of its last times, with a margin."""
        learned_s = learned_deadline_s(self.times.get(step, ()), cold_s=COLD_DEADLINE_S[step], floor_s=FLOOR_S[step])
        return lengthened_s(learned_s, self.given_up.get(step, 0.0))

    def expected_s(self, step: FabricStep) -> float:
        """Return the median of the last times, in seconds; a third of the deadline where there are none."""
        times = self.times.get(step, ())
        return quantile(times, 0.5) if times else COLD_DEADLINE_S[step] / 3


def measured(
    times: Mapping[K, tuple[float, ...]],
    given_up: Mapping[K, float],
    step: K,
    seconds: float,
    *,
    finished: bool,
    cold_s: float,
    floor_s: float,
) -> tuple[dict[K, tuple[float, ...]], dict[K, float]]:
    """Return the times of all steps, and those of what was given up, with one more of ``step``.

    How long something takes that was given up nobody knows, so it is no time
    among the others: it only makes the next deadline longer, until one is
    answered.  An answer that came later than its times alone would have waited
    takes nothing back: among many that were quick, a few slow ones are not in
    the quantile yet.
    """
    seconds = max(0.0, seconds)
    if not finished:
        # Of several at once, some began with the deadline from before.
        return dict(times), {**given_up, step: max(seconds, given_up.get(step, 0.0))}
    kept = (*times.get(step, ()), seconds)[-HISTORY_LENGTH:]
    is_late = seconds > learned_deadline_s(kept, cold_s=cold_s, floor_s=floor_s)
    left = {name: had for name, had in given_up.items() if is_late or name != step}
    return {**times, step: kept}, left


def learned_deadline_s(times: tuple[float, ...], *, cold_s: float, floor_s: float) -> float:
    """Return the seconds after which is given up what took ``times`` before; ``cold_s`` while they are few."""
    if len(times) < MIN_SAMPLES:
        # The cold one is for machines like those that were measured; a slower one shows in its first times.
        seconds = max(cold_s, *(DEADLINE_MARGIN * time for time in times), 0.0)
    else:
        seconds = DEADLINE_MARGIN * quantile(times, DEADLINE_QUANTILE)
    return min(CEILING_S, max(floor_s, seconds))


def lengthened_s(learned_s: float, given_up_s: float) -> float:
    """Return the deadline after a step that was given up ``given_up_s`` seconds after it began, 0 for none."""
    return min(CEILING_S, max(learned_s, GIVEN_UP_FACTOR * given_up_s))


def quantile(times: Iterable[float], part: float) -> float:
    """Return the smallest of ``times`` that ``part`` of them do not exceed (inverse of the empirical distribution)."""
    ordered = sorted(times)
    if not ordered:
        raise ValueError("a quantile of nothing")
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
