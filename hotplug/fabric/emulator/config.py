"""What is emulated: chassis, their ports and devices, faults, and where it is served (a TOML file)."""

from __future__ import annotations

import re

import msgspec

from farbus.errors import InvalidInput
from farbus.hotplug.fabric.emulator.faults import Fault, FaultKind, Rates, fits
from farbus.hotplug.fabric.emulator.latency import KUBECOMP, Measured
from farbus.model.fabric import FabricStep

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Ids are parts of Redfish's URIs."""

MAX_PCI_ID = 0xFFFF
MAX_TCP_PORT = 0xFFFF
MAX_LATENCY_S = 3600.0
"""Longest that a step is emulated to take."""

CLASS_CODES = {"GPU": "0x030200", "NVME": "0x010802", "SSD": "0x010802", "NIC": "0x020000"}
"""What Redfish says where H3 says the type (PCI Code and ID Assignment Specification)."""

OTHER_CLASS = "0xff0000"
"""A device that fits no class."""


class QemuDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a device is made in a guest: QEMU's ``driver`` with its properties, and a drive that it opens before."""

    driver: str
    properties: dict[str, str | int | bool] = {}
    blockdev: dict[str, object] = {}
    """Arguments of ``blockdev-add``, without ``node-name``; the device gets it as its ``drive``."""


class DeviceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device in a slot. ``id`` is what the chassis calls it (H3's ``Dev_GID``); ``port`` where it is at first."""

    id: str
    type: str = "GPU"
    uuid: str = ""
    serial: str = ""
    model: str = ""
    vendor_id: int = 0
    device_id: int = 0
    class_code: str = ""
    port: str = ""
    qemu: QemuDevice | None = None

    @property
    def pci_class(self) -> str:
        """Return ``class_code``, or where none is set that of a device of its ``type``."""
        return self.class_code or CLASS_CODES.get(self.type.upper(), OTHER_CLASS)


class PortConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A port, and the guest at its cable: its QMP socket, and the root ports that devices are plugged into."""

    id: str
    node: str = ""
    qmp: str = ""
    slots: tuple[str, ...] = ()


class ChassisConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One chassis. ``h3`` and ``redfish`` are the addresses where it serves each dialect, ``HOST:PORT``; empty for not.

    ``serial`` chassis do one thing after the other, listing too.  ``tasks``
    says whether Redfish answers changes at once, by a task.
    """

    name: str
    ports: tuple[PortConfig, ...] = msgspec.field(name="port", default=())
    devices: tuple[DeviceConfig, ...] = msgspec.field(name="device", default=())
    serial: bool = True
    tasks: bool = True
    h3: str = ""
    redfish: str = ""
    rates: Rates = msgspec.field(name="faults", default_factory=Rates)
    script: tuple[Fault, ...] = msgspec.field(name="fault", default=())
    latency: dict[FabricStep, Measured] = {}

    def port(self, name: str) -> PortConfig | None:
        """Return the port of that id."""
        return next((port for port in self.ports if port.id == name), None)

    def measured(self, step: FabricStep) -> Measured:
        """Return the row that the latency of ``step`` is drawn from."""
        return self.latency.get(step, KUBECOMP[step])


class EmulatorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that one emulator serves.

    ``state`` is a directory; paths are relative to the file's.  ``speed`` scales
    latencies: 0 none, 1 as measured.  Redfish is served over TLS with
    ``certificate`` and ``key``, which are made in ``state`` where none are named,
    to who logs in as ``credentials`` says (a file with ``user`` and ``password``).
    """

    chassis: tuple[ChassisConfig, ...]
    state: str = "state"
    seed: int = 0
    speed: float = 1.0
    certificate: str = ""
    key: str = ""
    credentials: str = ""


def check(config: EmulatorConfig, *, name: str) -> None:
    """Raise :class:`InvalidInput` for what can't be emulated; ``name`` is what errors call the file."""
    if not config.chassis:
        raise InvalidInput(f"{name}: has no chassis", hint="docs/fabric.md shows one")
    _unique([chassis.name for chassis in config.chassis], f"{name}: chassis")
    _unique(
        [where for each in config.chassis for where in (each.h3, each.redfish) if where and where[-2:] != ":0"], name
    )
    if not 0 <= config.speed <= 1000:
        raise InvalidInput(f"{name}: speed: {config.speed:g} is not from 0 to 1000")
    sockets = [port.qmp for chassis in config.chassis for port in chassis.ports if port.qmp]
    _unique(sockets, f"{name}: qmp")
    for chassis in config.chassis:
        at = f"{name}: chassis {chassis.name}"
        ports, devices = [port.id for port in chassis.ports], [device.id for device in chassis.devices]
        _unique(ports, f"{at}: port")
        _unique(devices, f"{at}: device")
        for id in (chassis.name, *ports, *devices):
            if not _NAME.fullmatch(id):
                raise InvalidInput(f"{at}: {id!r} is no id", hint="at most 64 of letters, digits, '.', '_' and '-'")
        addresses(chassis)
        _check_faults(chassis, at)
        for step, row in chassis.latency.items():
            _check_row(row, f"{at}: latency.{step}")
        for port in chassis.ports:
            if port.qmp and not port.slots:
                raise InvalidInput(f"{at}: port {port.id}: a QMP socket without slots", hint='add slots = ["rp1"]')
        for device in chassis.devices:
            if device.port and chassis.port(device.port) is None:
                raise InvalidInput(f"{at}: device {device.id}: there is no port {device.port}")
            if not (0 <= device.vendor_id <= MAX_PCI_ID and 0 <= device.device_id <= MAX_PCI_ID):
                raise InvalidInput(f"{at}: device {device.id}: vendor_id or device_id is not of 16 bits")
        if not chassis.h3 and not chassis.redfish:
            raise InvalidInput(f"{at}: is served nowhere", hint='add h3 = "127.0.0.1:8801", or redfish')


def addresses(chassis: ChassisConfig) -> dict[str, tuple[str, int]]:
    """Return host and port of each dialect that a chassis serves; raise :class:`InvalidInput` for what is none."""
    found = {}
    for dialect, where in (("h3", chassis.h3), ("redfish", chassis.redfish)):
        if where:
            host, _, port = where.rpartition(":")
            if not port.isascii() or not port.isdigit() or not 0 <= int(port[:6]) <= MAX_TCP_PORT:
                raise InvalidInput(
                    f"chassis {chassis.name}: {dialect}: {where}: not HOST:PORT", hint="like 127.0.0.1:8801"
                )
            found[dialect] = (host.strip("[]") or "127.0.0.1", int(port))
    return found


def _check_faults(chassis: ChassisConfig, at: str) -> None:
    rates = {kind: chassis.rates.rate(kind) for kind in FaultKind}
    for kind, rate in rates.items():
        # Also not a number is not between two.
        if not 0 <= rate <= 1:
            raise InvalidInput(f"{at}: faults: {kind} = {rate:g} is not from 0 to 1", hint="0.01 is one in a hundred")
    if sum(rates.values()) > 1:
        raise InvalidInput(f"{at}: faults: the sum of all rates is more than 1")
    for fault in chassis.script:
        if fault.number < 1 or not fits(fault.kind, fault.step):
            raise InvalidInput(
                f"{at}: fault {fault}: there is none", hint="requests count from 1; docs/fabric.md says what fits which"
            )


def _check_row(row: Measured, what: str) -> None:
    if not (0 <= row.min_s <= row.p50_s <= row.p90_s <= row.max_s <= MAX_LATENCY_S) or not (
        row.min_s <= row.mean_s <= row.max_s and 0 <= row.sd_s <= row.max_s
    ):
        raise InvalidInput(
            f"{what}: not 0 <= min_s <= p50_s <= p90_s <= max_s <= {MAX_LATENCY_S:g}, with mean_s and sd_s among them"
        )


def _unique(names: list[str], what: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"{what}: {name} is there twice")
