"""A scheduler, agents and a chassis, each a process that can be killed; buses and cables are files, which can't.

The scheduler, the agents and ``farbus fabric emulate`` are what they are elsewhere.  Of the machines below them the
buses are :class:`farbus.linux.fake_pci.FakePci`, and what the chassis plugs in by QMP goes into them (:class:`Bus`):
these see all that would lose a device or give it to two nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import multiprocessing
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec

from farbus.agent import chassis
from farbus.agent import daemon as agent_daemon
from farbus.agent.config import AgentConfig
from farbus.agent.doors import Doors, real_doors
from farbus.agent.inventory import GpuSource
from farbus.api.client import ClusterClient
from farbus.api.identity import Role
from farbus.cli import main as farbus_command
from farbus.errors import FarbusError
from farbus.hotplug.fabric.emulator.qemu import qemu_id
from farbus.hotplug.fabric.emulator.run import STATE_FILE
from farbus.linux.fake_pci import FakeDevice, FakeFunction, FakePci, bar
from farbus.linux.nvidia import FakeNvidia, GpuReadiness
from farbus.linux.nvml import FakeNvml, Gpu, GpuList
from farbus.linux.tcp_ports import HeldPort
from farbus.model.device import DeviceStatus
from farbus.model.fabric import Dialect
from farbus.model.value import from_json, to_json
from farbus.scheduler import daemon as scheduler_daemon
from farbus.scheduler.config import SchedulerConfig
from tests.hotplug.fabric.fake_guest import FakeGuest
from tests.hotplug.harness import Node
from tests.hotplug.machines import PORT_A, PORT_B, drive, plain
from tests.scheduler.site import Site

CHASSIS = "falcon"
PORTS = {"30h": "n1", "31h": "n2", "32h": "n3"}
BRIDGES = {"rp1": PORT_A, "rp2": PORT_B}
"""What the chassis fills at each node, and which bridge that is."""

KIB = 1 << 10
DRIVE, PLAIN, GPU = "001300", "002300", "003300"
NAMES = {DRIVE: "NVME-S1-FARBUS_Test_Drive", PLAIN: PLAIN, GPU: "GPU-00000000-0000-4000-8000-000000000001"}
"""What nodes call them."""
DEVICE_OF = {name: device for device, name in NAMES.items()} | {"S1": DRIVE}
"""By the name that a node or the chassis has for it: the drive is the chassis's until a node has had it."""
DEVICES: Mapping[str, FakeDevice] = {
    DRIVE: drive("S1"),
    PLAIN: plain(),
    GPU: (
        FakeFunction(vendor=0x10DE, device=0x2330, pci_class=0x030200, driver="nvidia", bars=(bar(0, 64 * KIB),)),
    ),
}  # fmt: skip
VENDOR_OF_GPU = "0x10de"

READ_INTERVAL_S = 2.0
"""Between two readings of the chassis by who serves it: more often than elsewhere."""

EMULATOR = """
state = "chassis.state"
seed = {seed}
speed = 0.0
credentials = "emulator.credentials"

[[chassis]]
name = "{chassis}"
h3 = "127.0.0.1:{h3}"
redfish = "127.0.0.1:{redfish}"

[chassis.faults]
eof = 0.01
error = 0.01
false-negative = 0.03
deny = 0.03
stale = 0.02
partial = 0.02
"""

EMULATED_PORT = """
[[chassis.port]]
id = "{port}"
node = "{node}"
qmp = "{node}.qmp"
slots = ["rp1", "rp2"]
"""

EMULATED_DEVICES = f"""
[[chassis.device]]
id = "{DRIVE}"
type = "NVME"
serial = "S1"
qemu = {{ driver = "nvme" }}

[[chassis.device]]
id = "{PLAIN}"
type = "OTHER"
vendor_id = 0x1234
device_id = 0x11e8
qemu = {{ driver = "edu" }}

[[chassis.device]]
id = "{GPU}"
type = "GPU"
uuid = "{NAMES[GPU]}"
vendor_id = 0x10de
device_id = 0x2330
qemu = {{ driver = "gpu" }}
"""

FABRIC = """
[[chassis]]
name = "{chassis}"
dialect = "{dialect}"
url = "{url}"
ports = {{ {ports} }}
{more}
"""

ONLY_REDFISH = 'certificate = "chassis.state/redfish.crt"\ncredentials = "emulator.credentials"'
ONLY_H3 = f"""
devices.{DRIVE} = {{ serial = "S1", kind = "nvme" }}
devices.{PLAIN} = {{ vendor_id = 0x1234, device_id = 0x11e8 }}
"""


class Bus(FakeGuest):
    """What a chassis's port leads to: its devices are behind the ports of a node's bus.

    ``faults`` gets what would be the end of a device: one that two nodes have,
    or that is taken from under a kernel that knows it.
    """

    def __init__(self, path: Path, pci: FakePci, all_buses: list[Bus], faults: list[str]) -> None:
        super().__init__(path)
        self.pci = pci
        self.changed = asyncio.Event()
        self._all = all_buses
        self._faults = faults
        all_buses.append(self)

    def _device_add(self, driver: str, id: str, bus: str, **more: Any) -> dict[str, Any]:
        super()._device_add(driver, id, bus, **more)
        self._faults += [f"{id} is given to {self.path.stem} while {o.path.stem} has it" for o in self._others(id)]
        device = next(device for device in DEVICES if qemu_id(device) == id)
        self.pci.plug(BRIDGES[bus], DEVICES[device])
        return {}

    def _others(self, id: str) -> Iterator[Bus]:
        return (other for other in self._all if other is not self and id in other.devices)

    def _device_del(self, id: str) -> dict[str, Any]:
        super()._device_del(id)
        bridge = BRIDGES[self.devices[id]]
        if self.pci.tree().below(bridge):
            self._faults.append(f"{id} is taken from under the kernel of {self.path.stem}")
        self.pci.unplug(bridge, surprise=False)
        return {}

    def has(self) -> set[str]:
        """Return the devices that the kernel of this node knows."""
        known = {function.ids for function in self.pci.tree().functions if not function.is_bridge}
        return {device for device, (first, *_) in DEVICES.items() if f"{first.vendor:04x}:{first.device:04x}" in known}


class BusNvml(FakeNvml):
    """Lists the GPUs that a driver has on a bus; who has listed them knows of no others until it is stopped."""

    def __init__(self, pci: FakePci) -> None:
        super().__init__()
        self._pci = pci

    async def list(self) -> GpuList:
        if not self.running:
            self.gpus = GpuList(
                gpus=tuple(
                    Gpu(uuid=NAMES[GPU], name="a GPU", memory_bytes=1 << 30, pci_address=function.address)
                    for function in self._pci.tree().functions
                    if function.is_nvidia_gpu and function.driver
                )
            )
        return await super().list()


class BusNvidia(FakeNvidia):
    """NVIDIA's driver on that bus."""

    def __init__(self, pci: FakePci) -> None:
        super().__init__()
        self._pci = pci

    async def readiness(self, address: str) -> GpuReadiness:
        function = self._pci.tree().get(address)
        if function is None or not (function.is_nvidia_gpu and function.driver):
            self.gpus.pop(address, None)
            return GpuReadiness()
        return self.gpus.setdefault(address, GpuReadiness(uuid=NAMES[GPU]))


# What runs in processes of their own.


def run_scheduler(config: bytes, log: str) -> None:
    """Be the scheduler."""
    _say_to(log)
    sys.exit(scheduler_daemon.main(from_json(config, SchedulerConfig)))


def run_agent(config: bytes, directory: str, log: str) -> None:
    """Be the agent of a node, on a bus of files in ``directory``."""
    _say_to(log)
    node, settings = Node(Path(directory)), from_json(config, AgentConfig)

    def doors(config: AgentConfig) -> Doors:
        return msgspec.structs.replace(
            real_doors(config), gpu_sources=(GpuSource(BusNvml(node.pci), False),), pci=node.pci, uevents=node.uevents,
            holders=node.holders, nvidia=BusNvidia(node.pci), sysfs=node.sysfs,
        )  # fmt: skip

    agent_daemon.real_doors = doors
    # A listing that was stale is found out with the next one.
    chassis.READ_INTERVAL_S = READ_INTERVAL_S
    sys.exit(agent_daemon.main(settings))


def run_chassis(file: str, log: str) -> None:
    """Be the chassis: ``farbus fabric emulate``."""
    _say_to(log)
    sys.exit(farbus_command(["fabric", "emulate", "-c", file, "--backend", "qemu"]))


def _say_to(log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


class FabricSite:
    """All of it.  ``kill`` ends a part and starts it again: ``scheduler``, ``chassis``, or a node's name."""

    def __init__(self, directory: Path, *, dialect: Dialect, seed: int) -> None:
        self.directory = directory
        self.faults: list[str] = []
        self.listed: tuple[DeviceStatus, ...] = ()
        """What the ledger has, as it was asked last."""
        self.buses: dict[str, Bus] = {}
        self._site = Site(directory)
        self._ports = [HeldPort() for _ in range(3)]
        self._site.port = self._ports[0].number
        self._processes: dict[str, BaseProcess] = {}
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._configs: dict[str, tuple[Any, ...]] = {}
        self._prepare(dialect, seed)

    def _prepare(self, dialect: Dialect, seed: int) -> None:
        directory = self.directory
        h3, redfish = (port.number for port in self._ports[1:])
        credentials = directory / "emulator.credentials"
        credentials.write_text('user = "ann"\npassword = "a password"\n')
        credentials.chmod(0o600)
        ports = "".join(EMULATED_PORT.format(port=port, node=node) for port, node in PORTS.items())
        (directory / "emulator.toml").write_text(
            EMULATOR.format(seed=seed, chassis=CHASSIS, h3=h3, redfish=redfish) + ports + EMULATED_DEVICES
        )
        url = f"https://127.0.0.1:{redfish}" if dialect is Dialect.REDFISH else f"http://127.0.0.1:{h3}"
        (directory / "fabric.toml").write_text(
            FABRIC.format(
                chassis=CHASSIS, dialect=dialect, url=url,
                ports=", ".join(f'{port} = "{node}"' for port, node in PORTS.items()),
                more=ONLY_REDFISH if dialect is Dialect.REDFISH else ONLY_H3,
            )
        )  # fmt: skip
        buses: list[Bus] = []
        for port, name in PORTS.items():
            node = Node(directory / name)
            with (directory / name / "modules/modules.alias").open("a") as aliases:
                aliases.write("alias pci:v000010DEd*sv*sd*bc*sc*i* nvidia\n")
            self.buses[name] = Bus(directory / f"{name}.qmp", node.pci, buses, self.faults)
            config = AgentConfig(
                name=name,
                scheduler=self._site.address,
                address="127.0.0.1",
                peer_port=0,
                state=str(directory / f"{name}.state"),
                socket=str(self.socket(name)),
                credentials=self._site.credentials(name),
                run_as_self=True,
                end_on_stop=True,
                physical_devices=True,
                storage=False,
                fabric=str(directory / "fabric.toml"),
                fabric_ports={f"{CHASSIS}/{port}": (PORT_A, PORT_B)},
            )
            self._configs[name] = (run_agent, to_json(config), str(directory / name), self.log(name))
        scheduler = self._site.config(listen=self._site.address)
        self._configs["scheduler"] = (run_scheduler, to_json(scheduler), self.log("scheduler"))
        self._configs["chassis"] = (run_chassis, str(directory / "emulator.toml"), self.log("chassis"))

    def socket(self, node: str) -> Path:
        """Return where a node's agent listens for commands."""
        return self.directory / f"{node}.sock"

    def log(self, part: str) -> str:
        """Return where a part writes its log."""
        return str(self.directory / f"{part}.log")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ClusterClient]:
        """Run all of it; yield an operator's connection once every node and the chassis are known."""
        for bus in self.buses.values():
            await bus.start()
        try:
            for part in ("chassis", "scheduler", *PORTS.values()):
                self._start(part)
            # Agents that run all as their own user run jobs of that user alone.
            async with self._site.client(getpass.getuser(), Role.OPERATOR) as operator:
                await until(operator, lambda found: {DRIVE, "S1"} & {one.device.id for one in found})
                yield operator
        finally:
            for part in (*PORTS.values(), "scheduler", "chassis"):
                self._processes[part].terminate()
            for process in self._processes.values():
                await asyncio.to_thread(process.join)
            for bus in self.buses.values():
                await bus.stop()
            for port in self._ports:
                port.close()

    def _start(self, part: str) -> None:
        target, *arguments = self._configs[part]
        process = self._context.Process(target=target, args=tuple(arguments), name=part)
        process.start()
        self._processes[part] = process

    async def kill(self, part: str) -> None:
        """Kill a part, and start it again."""
        self._processes[part].kill()
        await asyncio.to_thread(self._processes[part].join)
        self._start(part)

    # What is so.

    def in_chassis(self) -> dict[str, tuple[str, str, bool]]:
        """Return by device the node that it is assigned to, the one that has it, and whether all of that is done."""
        file = self.directory / "chassis.state" / STATE_FILE
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            rows = connection.execute("SELECT id, port, holder, pending FROM device").fetchall()
        return {id: (PORTS.get(port, ""), PORTS.get(holder, ""), pending is None) for id, port, holder, pending in rows}

    def plugged(self) -> dict[str, str]:
        """Return where each device is electrically."""
        return {
            device: node for node, bus in self.buses.items() for device in DEVICES if qemu_id(device) in bus.devices
        }

    def agreement(self, listed: tuple[DeviceStatus, ...]) -> dict[str, str] | None:
        """Return where devices are where chassis, cables, kernels and ledger say the same; else None."""
        rows = self.in_chassis()
        at = {device: node for device, (node, _, _) in rows.items()}
        self.listed = listed
        ledger = [(DEVICE_OF[one.device.id], one.node) for one in listed if one.device.id in DEVICE_OF and not one.move]
        kernels = {device: node for node, bus in self.buses.items() for device in bus.has()}
        assigned = {device: node for device, node in at.items() if node}
        settled = all(node == holder and is_settled for node, holder, is_settled in rows.values())
        if settled and self.plugged() == assigned == kernels and sorted(ledger) == sorted(at.items()):
            return at
        return None

    def story(self) -> str:
        """Return who has what, and the end of all logs, for a failure."""
        tails = [f"{part}: ...{Path(self.log(part)).read_text()[-3000:]}" for part in self._configs]
        kernels = {node: bus.has() for node, bus in self.buses.items()}
        ledger = [f"{one.device.id} at {one.node!r}: {one.state} {one.move}" for one in self.listed]
        return "\n".join(map(str, (self.in_chassis(), self.plugged(), kernels, ledger, *tails)))


async def until(operator: ClusterClient, so: Any) -> tuple[DeviceStatus, ...]:
    """List devices until something is so of them; a scheduler that is away is waited for."""
    while True:
        with contextlib.suppress(FarbusError):
            await operator.channel.channel_ready()
            found = await operator.list_devices()
            if so(found):
                return found
