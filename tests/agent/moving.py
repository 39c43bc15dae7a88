"""Nodes with buses that are files, at an emulated chassis, and agents on them."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec

from farbus.agent.config import AgentConfig
from farbus.agent.doors import Doors, real_doors
from farbus.agent.inventory import GpuSource
from farbus.api.v1 import session_pb2
from farbus.hotplug.fabric.config import ChassisAccess
from farbus.hotplug.fabric.driver import Driver
from farbus.hotplug.fabric.emulator.config import ChassisConfig, DeviceConfig, EmulatorConfig, PortConfig
from farbus.hotplug.fabric.emulator.emulator import Emulator
from farbus.hotplug.fabric.emulator.front import LocalTransport
from farbus.hotplug.fabric.emulator.store import Store
from farbus.hotplug.fabric.errors import ChassisRefused
from farbus.hotplug.fabric.h3 import H3Driver
from farbus.hotplug.fabric.http import Reply, Request
from farbus.linux.clock import Clock, SystemClock
from farbus.linux.fake_pci import FakeDevice, FakePci
from farbus.model.move import NodeMove
from farbus.model.value import from_json
from tests.agent.harness import SmallSupervisor
from tests.hotplug.harness import Node
from tests.hotplug.machines import PORT_A, PORT_B, drive, plain

CHASSIS = "falcon"
DRIVE = "NVME-S1-FARBUS_Test_Drive"
PLAIN = "001400"
DEVICES: Mapping[str, FakeDevice] = {"001300": drive("S1"), PLAIN: plain()}
PORTS = {"30h": "n1", "31h": "n2"}

FABRIC_TOML = f"""
[[chassis]]
name = "{CHASSIS}"
dialect = "h3"
url = "http://127.0.0.1:1"
ports = {{ 30h = "n1", 31h = "n2" }}
devices.001300 = {{ serial = "S1", kind = "nvme" }}
devices.001400 = {{ vendor_id = 0x1234, device_id = 0x11e8 }}
"""


class BusBackend:
    """Has what is assigned to a port appear behind the ports of its node, the first one that is empty."""

    def __init__(self, buses: Mapping[str, FakePci], *, announce: bool = False) -> None:
        self._buses = buses
        self.announce = announce

    def where(self, port: str, device: str) -> str:
        pci = self._buses[port]
        return next((bridge for bridge in (PORT_A, PORT_B) if pci.plugged(bridge) == DEVICES[device]), "")

    async def plug(self, device: DeviceConfig, port: PortConfig) -> str:
        if (there := self.where(port.id, device.id)) != "":
            return there
        pci = self._buses[port.id]
        slot = next(bridge for bridge in (PORT_A, PORT_B) if not pci.plugged(bridge))
        pci.plug(slot, DEVICES[device.id], announce=self.announce)
        return slot

    async def unplug(self, device: DeviceConfig, port: PortConfig) -> None:
        if (there := self.where(port.id, device.id)) == "":
            return
        pci = self._buses[port.id]
        # Who is unplugged while the kernel knows of him is lost: what the steps are there to prevent.
        assert not pci.tree().below(there), f"{device.id} was pulled out from under the kernel"
        pci.unplug(there, surprise=False)

    async def close(self) -> None:
        """Nothing is open."""


class Front:
    """The front of an emulator that may be killed and started anew."""

    def __init__(self, chassis: EmulatedFalcon) -> None:
        self._chassis = chassis

    async def exchange(self, request: Request) -> Reply:
        self._chassis.requests.append(str(request))
        self._chassis.check(request)
        return await self._chassis.emulator.h3[CHASSIS].exchange(request)


class EmulatedFalcon:
    """A chassis with a drive and a plain device, whose cables lead to nodes n1 and n2."""

    def __init__(self, directory: Path, buses: Mapping[str, FakePci]) -> None:
        self.store = Store(directory / "fabric.db", durable=False)
        config = EmulatorConfig(
            chassis=(
                ChassisConfig(
                    name=CHASSIS,
                    ports=tuple(PortConfig(id=port, node=node) for port, node in PORTS.items()),
                    devices=(
                        DeviceConfig(id="001300", type="NVME", serial="S1", class_code="0x010802"),
                        DeviceConfig(id=PLAIN, type="OTHER"),
                    ),
                ),
            ),
            speed=0.0,
        )
        self.backend = BusBackend(buses)
        self.emulator = Emulator(config, self.store, clock=SystemClock(), backends={CHASSIS: self.backend})
        self.requests: list[str] = []
        self._refuses_from = ""
        self._is_refusing = False

    def assigned(self) -> dict[str, str]:
        return self.emulator.chassis[CHASSIS].assigned()

    def refuses_from(self, method: str) -> None:
        """Refuse the next request of that method and all after it, until this is called with none."""
        self._refuses_from, self._is_refusing = method, False

    def check(self, request: Request) -> None:
        self._is_refusing = self._is_refusing or request.method == self._refuses_from
        if self._is_refusing:
            raise ChassisRefused(f"chassis {CHASSIS}: {request}: not now")

    async def assign(self, device: str, port: str) -> None:
        """As somebody does by hand, past all agents."""
        driver = self.driver(ACCESS, SystemClock())
        found = next(one for one in (await driver.read()).devices if one.handle == device)
        await driver.ask_assign(found, port)

    def driver(self, access: ChassisAccess, clock: Clock) -> Driver:
        transport = LocalTransport(access.name, Front(self))
        return H3Driver(access.name, transport, ports=access.ports, known=access.devices)

    async def close(self) -> None:
        await self.emulator.stop()
        self.store.close()


ACCESS = msgspec.convert(tomllib.loads(FABRIC_TOML)["chassis"][0], ChassisAccess)


class Testbed:
    """Two nodes and their chassis."""

    __test__ = False

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.nodes = {"n1": Node(directory / "node1"), "n2": Node(directory / "node2")}
        self.chassis = EmulatedFalcon(directory, {"30h": self.nodes["n1"].pci, "31h": self.nodes["n2"].pci})
        self.fabric = directory / "fabric.toml"
        self.fabric.write_text(FABRIC_TOML)

    def config(self, config: AgentConfig, *, serves: bool = True) -> AgentConfig:
        """Return an agent's settings with this chassis."""
        return msgspec.structs.replace(
            config,
            physical_devices=True,
            fabric=str(self.fabric) if serves else "",
            fabric_ports={f"{CHASSIS}/{port}": (PORT_A, PORT_B) for port, node in PORTS.items() if node == config.name},
        )

    def doors(self, config: AgentConfig) -> Doors:
        """Return doors to this machine, with a bus and a chassis that are none."""
        node = self.nodes[config.name]
        return msgspec.structs.replace(
            real_doors(config),
            gpu_sources=(GpuSource(node.nvml, False),),
            remoting=SmallSupervisor(),
            pci=node.pci,
            uevents=node.uevents,
            holders=node.holders,
            nvidia=node.nvidia,
            sysfs=node.sysfs,
            chassis_driver=self.chassis.driver,
        )

    def here(self, node: str) -> list[str]:
        """Return the ids of what a node's kernel knows below its ports."""
        return [function.ids for function in self.nodes[node].pci.tree().functions if not function.is_bridge]


@contextlib.asynccontextmanager
async def open_testbed(directory: Path) -> AsyncIterator[Testbed]:
    bed = Testbed(directory)
    assert await bed.chassis.emulator.reconcile() == []
    try:
        yield bed
    finally:
        await bed.chassis.close()


def attach(move: str = "m1", device: str = DRIVE, **fields: object) -> session_pb2.AttachDevice:
    port = fields.pop("port", "30h")
    return session_pb2.AttachDevice(move_id=move, device=device, chassis=CHASSIS, port=port, **fields)  # type: ignore[arg-type]


def detach(
    move: str = "m2", device: str = DRIVE, *, drain_s: float = 0.1, **fields: object
) -> session_pb2.DetachDevice:
    return session_pb2.DetachDevice(move_id=move, device=device, chassis=CHASSIS, drain_s=drain_s, **fields)  # type: ignore[arg-type]


def serve_here(term: int = 1) -> session_pb2.SchedulerMessage:
    return session_pb2.SchedulerMessage(serve_chassis=session_pb2.ServeChassis(chassis=CHASSIS, term=term, node="n1"))


def told(outcome: session_pb2.Outcome) -> NodeMove:
    """Return what a node says of its part of a move."""
    return from_json(outcome.move, NodeMove)
