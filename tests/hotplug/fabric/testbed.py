"""KubeComp's testbed, emulated: 8 GPUs and 2 nodes at one chassis, and clients of it in each dialect."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from farbus.hotplug.fabric.driver import Driver
from farbus.hotplug.fabric.emulator.chassis import Backend, EmulatedChassis
from farbus.hotplug.fabric.emulator.config import ChassisConfig, DeviceConfig, EmulatorConfig, PortConfig
from farbus.hotplug.fabric.emulator.emulator import Emulator
from farbus.hotplug.fabric.emulator.faults import Fault, Rates
from farbus.hotplug.fabric.emulator.front import Front, LocalTransport
from farbus.hotplug.fabric.emulator.store import Store
from farbus.hotplug.fabric.emulator.virtual import LoopClock
from farbus.hotplug.fabric.h3 import H3Driver
from farbus.hotplug.fabric.http import Reply, Request
from farbus.hotplug.fabric.redfish import RedfishDriver
from farbus.hotplug.fabric.redfish_client import Credentials
from farbus.hotplug.fabric.service import ChassisService
from farbus.model.fabric import RedfishStyle, StepHistory

DIALECTS = ("h3", "zones", "connections", "blocks", "composed")
USER = Credentials("operator", "secret")
NODES = {"30h": "alpha", "31h": "beta"}


def gpu(number: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{number:012}"


def chassis_config(**changes: object) -> ChassisConfig:
    config = ChassisConfig(
        name="falcon",
        ports=tuple(PortConfig(id=port, node=node) for port, node in NODES.items()),
        devices=tuple(
            DeviceConfig(
                id=f"00{number}300",
                uuid=gpu(number),
                serial=f"S{number}",
                model="Tesla V100",
                vendor_id=0x10DE,
                device_id=0x1DB4,
                port="30h" if number < 4 else "31h",
            )
            for number in range(8)
        ),
    )
    return msgspec.structs.replace(config, **changes)


class Revivable:
    """A front whose emulator can be killed and started anew under the same address."""

    def __init__(self) -> None:
        self.front: Front | None = None

    async def exchange(self, request: Request) -> Reply:
        assert self.front is not None
        return await self.front.exchange(request)


@dataclass
class Bed:
    """An emulator in this process, and a way to it."""

    path: Path | str
    config: ChassisConfig
    speed: float = 0.0
    seed: int = 0
    backend: Backend | None = None
    told: list[str] = field(default_factory=list)
    fronts: dict[str, Revivable] = field(default_factory=lambda: {"h3": Revivable(), "redfish": Revivable()})
    emulator: Emulator = field(init=False)
    store: Store = field(init=False)

    async def start(self, *, on_write: Callable[[str], None] | None = None) -> None:
        self.store = Store(self.path, durable=False)
        config = EmulatorConfig(chassis=(self.config,), speed=self.speed, seed=self.seed)
        self.emulator = Emulator(
            config,
            self.store,
            clock=LoopClock(),
            credentials=USER,
            backends={self.config.name: self.backend} if self.backend else None,
        )
        assert await self.emulator.reconcile() == []
        self.fronts["h3"].front = self.emulator.h3["falcon"]
        self.fronts["redfish"].front = self.emulator.redfish["falcon"]
        if on_write:
            self.store.on_write = on_write

    async def stop(self) -> None:
        await self.emulator.stop()
        self.store.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.start()
        try:
            yield
        finally:
            await self.stop()

    @property
    def chassis(self) -> EmulatedChassis:
        return self.emulator.chassis["falcon"]

    def ports(self) -> dict[str, str]:
        """The truth: port by UUID."""
        return {self.chassis.devices[name].uuid: port for name, port in self.chassis.assigned().items()}

    def driver(self, dialect: str, *, parallel: int = 1, ports: Mapping[str, str] = NODES) -> Driver:
        if dialect == "h3":
            return H3Driver("falcon", LocalTransport("falcon", self.fronts["h3"]), ports=ports)
        return RedfishDriver(
            "falcon",
            LocalTransport("falcon", self.fronts["redfish"]),
            clock=LoopClock(),
            credentials=USER,
            ports=ports,
            style=RedfishStyle(dialect),
            parallel=parallel,
        )

    def service(
        self, dialect: str | Driver, *, history: StepHistory | None = None, parallel: int = 1
    ) -> ChassisService:
        driver = self.driver(dialect, parallel=parallel) if isinstance(dialect, str) else dialect
        return ChassisService(driver, clock=LoopClock(), history=history, tell=self.told.append)


@contextlib.asynccontextmanager
async def emulated(
    path: Path | str = ":memory:",
    *,
    speed: float = 0.0,
    seed: int = 0,
    rates: Rates | None = None,
    script: Sequence[Fault] = (),
    backend: Backend | None = None,
    **changes: object,
) -> AsyncIterator[Bed]:
    config = chassis_config(rates=rates or Rates(), script=tuple(script), **changes)
    bed = Bed(path, config, speed=speed, seed=seed, backend=backend)
    async with bed.running():
        yield bed
