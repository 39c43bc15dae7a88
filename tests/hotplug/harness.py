"""A node with two ports at a chassis, all in files, so that it outlives the processes that work on it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from farbus.agent.steps import Steps
from farbus.errors import Unavailable
from farbus.hotplug.fabric.errors import DeviceElsewhere
from farbus.hotplug.parts import Move, Parts
from farbus.hotplug.sequences import HotAttach, HotDetach, HotMove, object_of, steps_of
from farbus.linux.clock import Clock, SystemClock
from farbus.linux.fake_pci import FakeDevice, FakeFunction, FakePci
from farbus.linux.holders import FakeHolders
from farbus.linux.nvidia import FakeNvidia, GpuReadiness
from farbus.linux.nvml import FakeNvml
from farbus.linux.sysfs import KernelSysfs
from farbus.linux.uevents import FakeUevents
from farbus.model.device import DeviceKind
from farbus.model.fabric import ChassisView, FabricDevice, FabricPort, FabricStep
from farbus.model.holders import Holder, HolderKind, Look
from farbus.model.pci import Function
from farbus.model.value import from_json, to_json
from tests.hotplug.machines import PORT_A, PORT_B, drive, plain, two_ports

CHASSIS = "chassis1"
PORTS = {"30h": PORT_A, "31h": PORT_B}
"""Ports of the chassis and where their cables come out on this node; 40h is another node's."""

DRIVE = "NVME-S1-FARBUS_Test_Drive"


class FileFabric:
    """A chassis whose assignments lie in a file, and show on the node's ports."""

    chassis = CHASSIS

    def __init__(self, pci: FakePci, devices: dict[str, FakeDevice]) -> None:
        self._pci = pci
        self._file = pci.directory / "fabric.json"
        if not self._file.exists():
            self._save(dict.fromkeys(devices, ""))
            (pci.directory / "devices.json").write_text(
                json.dumps({name: [json.loads(to_json(one)) for one in device] for name, device in devices.items()})
            )
        self.refuse = ""
        self.announce = False
        """Whether the node's ports tell the kernel of what is plugged in, as pciehp does."""
        self.calls: list[str] = []
        self.stale: list[dict[str, str]] = []
        """Assignments of earlier moments, for the next listings; assign and unassign read until they are sure."""

    def ports(self) -> dict[str, str]:
        return dict(json.loads(self._file.read_text()))

    def _save(self, ports: dict[str, str]) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(ports))
        new.replace(self._file)

    def _device(self, name: str) -> FakeDevice:
        known = json.loads((self._pci.directory / "devices.json").read_text())
        return tuple(from_json(json.dumps(one), FakeFunction) for one in known[name])

    async def list(self) -> ChassisView:
        return self._view(self.stale.pop(0) if self.stale else self.ports())

    def _view(self, ports: dict[str, str]) -> ChassisView:
        return ChassisView(
            chassis=CHASSIS,
            ports=tuple(FabricPort(id=port) for port in (*PORTS, "40h")),
            devices=tuple(
                FabricDevice(id=name, handle=name, kind=DeviceKind.PCI, port=port, serial="S1" if name == DRIVE else "")
                for name, port in ports.items()
            ),
        )

    async def assign(self, device: str, port: str) -> FabricDevice:
        self.calls.append(f"assign {device} {port}")
        if self.refuse:
            raise Unavailable(self.refuse)
        found = self._view(self.ports()).device(device)
        device, there = found.id, found.port
        if there not in ("", port):
            raise DeviceElsewhere(f"{device} is at port {there}")
        self._save({**self.ports(), device: port})
        if port in PORTS and not self._pci.plugged(PORTS[port]):
            self._pci.plug(PORTS[port], self._device(device), announce=self.announce)
        return self._view(self.ports()).device(device)

    async def unassign(self, device: str, *, source: str = "") -> FabricDevice:
        self.calls.append(f"unassign {device}")
        if self.refuse:
            raise Unavailable(self.refuse)
        found = self._view(self.ports()).device(device)
        device, there = found.id, found.port
        if source and there not in ("", source):
            raise DeviceElsewhere(f"{device} is at port {there}")
        if there in PORTS:
            # Who is unplugged while the kernel knows of him is lost: what the steps are there to prevent.
            if self._pci.tree().below(PORTS[there]):
                raise AssertionError(f"{device} was pulled out from under the kernel")
            self._pci.unplug(PORTS[there], surprise=False)
        self._save({**self.ports(), device: ""})
        return self._view(self.ports()).device(device)

    async def move(self, device: str, port: str) -> FabricDevice:
        raise NotImplementedError

    def expected_s(self, step: FabricStep) -> float:
        return {FabricStep.LIST: 3.0, FabricStep.ASSIGN: 13.0, FabricStep.UNASSIGN: 7.0}[step]

    def deadline_s(self, step: FabricStep) -> float:
        return 60.0


class FileGate:
    """Closed devices in a file."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "gate.json"
        self.sessions: tuple[Holder, ...] = ()

    def closed(self) -> list[str]:
        return json.loads(self._file.read_text()) if self._file.exists() else []

    async def close(self, device: str, *, reason: str) -> None:
        self._file.write_text(json.dumps(sorted({*self.closed(), device})))

    async def open(self, device: str) -> None:
        self._file.write_text(json.dumps(sorted({*self.closed()} - {device})))

    async def is_closed(self, device: str) -> bool:
        return device in self.closed()

    async def holders(self, device: str) -> tuple[Holder, ...]:
        return self.sessions

    async def evict(self, holder: Holder) -> None:
        self.sessions = tuple(other for other in self.sessions if other != holder)


class FileNvidia(FakeNvidia):
    """GPUs with a driver, in a file."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "nvidia.json"
        super().__init__()
        if self._file.exists():
            self.gpus = msgspec.json.decode(self._file.read_bytes(), type=dict[str, GpuReadiness])

    def _change(self, address: str, **values: bool) -> None:
        super()._change(address, **values)
        self._file.write_bytes(msgspec.json.encode(self.gpus))


class NodeHolders(FakeHolders):
    """Holders of which our own worker is one while it runs."""

    def __init__(self, directory: Path, nvml: FakeNvml) -> None:
        super().__init__(directory)
        self._nvml = nvml

    async def look(self, addresses: Sequence[str]) -> Look:
        found = await super().look(addresses)
        if self._nvml.running:
            return found
        left = tuple(holder for holder in found.holders if holder.kind is not HolderKind.OWN)
        return msgspec.structs.replace(found, holders=left)


class Node:
    """All of it; made anew by each process that opens ``directory``."""

    def __init__(self, directory: Path, *, clock: Clock | None = None) -> None:
        directory.mkdir(exist_ok=True)
        new = not (directory / "sys").exists()
        self.pci = two_ports(directory) if new else FakePci(directory)
        if new:
            (directory / "proc/iomem").write_text("fd000000-febfffff : PCI Bus 0000:00\n")
            (directory / "modules").mkdir()
            (directory / "modules/modules.alias").write_text("alias pci:v*d*sv*sd*bc01sc08i02* nvme\n")
        self.fabric = FileFabric(self.pci, {DRIVE: drive("S1"), "0011": plain()})
        self.gate = FileGate(directory)
        self.nvml = FakeNvml()
        self.holders = NodeHolders(directory, self.nvml)
        self.nvidia = FileNvidia(directory)
        self.uevents = FakeUevents()
        self.gpus: dict[str, str] = {}
        self.sysfs = KernelSysfs(str(directory / "sys"))
        self.parts = Parts(
            pci=self.pci,
            holders=self.holders,
            nvidia=self.nvidia,
            nvml=self.nvml,
            uevents=self.uevents,
            clock=clock or SystemClock(),
            gate=self.gate,
            drives=self.sysfs.nvme_controllers,
            gpus=lambda: self.gpus,
            fabrics=lambda _: self.fabric,
        )

    def steps(self, work: HotMove) -> Steps:
        body = msgspec.json.encode(work).decode()
        return Steps(object=object_of(work.move), body=body, steps=steps_of(self.parts, work), resumable=True)

    def world(self) -> dict[str, object]:
        """What anybody can see: where devices are assigned, what the kernel knows, what is closed."""
        tree = self.pci.tree()
        return {
            "assigned": self.fabric.ports(),
            "there": [
                [function.address, function.ids, function.driver]
                for function in tree.functions
                if not function.is_bridge
            ],
            "drives": [drive.serial for drive in self.sysfs.nvme_controllers()],
            # Of what is not here it means nothing: attaching opens it.
            "closed": self.gate.closed() if any(not function.is_bridge for function in tree.functions) else [],
            "removing": [function.address for function in tree.removing()],
        }


def functions(device: FakeDevice) -> tuple[Function, ...]:
    """What somebody has seen of a device elsewhere."""
    return tuple(
        Function(
            address=f"0000:99:00.{number}", vendor=one.vendor, device=one.device, pci_class=one.pci_class,
            driver=one.driver, bars=one.bars,
        )
        for number, one in enumerate(device)
    )  # fmt: skip


def a_move(device: str = DRIVE, **changes: object) -> Move:
    move = Move(device=device, bridge=PORT_A, chassis=CHASSIS, port="30h")
    if device == DRIVE:
        move = msgspec.structs.replace(move, serial="S1", vendor=0x1B36, device_id=0x0010)
    return msgspec.structs.replace(move, **changes)


class Attach:
    """A drive comes to the node (:mod:`tests.harness.killing`)."""

    device = DRIVE

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "node"

    def prepare(self, node: Node) -> None:
        """Make the old world, once."""

    def work(self) -> HotMove:
        return HotAttach(move=a_move(self.device))

    def _node(self) -> Node:
        new = not (self._directory / "sys").exists()
        node = Node(self._directory)
        if new:
            self.prepare(node)
        return node

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        yield self._node().steps(self.work())

    def world(self) -> object:
        return self._node().world()

    def clear(self) -> None:
        """Its directory is removed anyway."""


class Detach(Attach):
    """It goes."""

    def prepare(self, node: Node) -> None:
        node.fabric._save({**node.fabric.ports(), self.device: "30h"})
        node.pci.plug(PORT_A, node.fabric._device(self.device), announce=True)

    def work(self) -> HotMove:
        return HotDetach(move=a_move(self.device))


class AttachPlain(Attach):
    """A plain device, which no driver takes and nobody can name, comes."""

    device = "0011"
