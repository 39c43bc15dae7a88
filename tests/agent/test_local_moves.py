"""What ``--local`` refuses: names that several devices have, and devices that somebody has by another name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from farbus.agent.local_moves import LocalMoves
from farbus.agent.moving import MoveOrder, MoveOutcome
from farbus.api.audit import AuditLog
from farbus.api.identity import Identity, Role
from farbus.errors import Conflict, FarbusError, Unavailable
from farbus.linux.clock import FakeClock
from farbus.model.device import Device, DeviceKind, DeviceStatus
from farbus.model.fabric import ChassisView, FabricDevice, FabricPort
from farbus.model.move import MoveRequest, MoveState
from farbus.model.states import DeviceState

ANN = Identity(name="ann", role=Role.OPERATOR, node="n1")
DRIVE = "NVME-S1-MODEL"


class Chassis:
    """One whose reading is set; without devices it can't be read."""

    def __init__(self, name: str, *devices: FabricDevice) -> None:
        self.chassis, self._devices = name, devices

    async def list(self) -> ChassisView:
        if not self._devices:
            raise Unavailable(f"chassis {self.chassis}: no agent serves it")
        return ChassisView(chassis=self.chassis, ports=(FabricPort(id="30h", node="n1"),), devices=self._devices)


class Moving:
    """Does everything that it is asked for."""

    def __init__(self) -> None:
        self.orders: list[MoveOrder] = []

    def name_of(self, device: str) -> str:
        return device

    async def perform(self, order: MoveOrder, *, listener: Callable[[Any], None]) -> MoveOutcome:
        self.orders.append(order)
        return MoveOutcome()


class Bench:
    def __init__(self, path: Path) -> None:
        self.moving, self.chassis = Moving(), [Chassis("one", drive())]
        self.cluster: tuple[DeviceStatus, ...] | None = None
        self.audit = AuditLog(path)

    async def detach(self, device: str) -> MoveState:
        async def cluster(_: Identity) -> tuple[DeviceStatus, ...] | None:
            return self.cluster

        moves = LocalMoves(
            node="n1",
            moving=self.moving,  # type: ignore[arg-type]
            why="",
            desk=SimpleNamespace(known=tuple(self.chassis)),  # type: ignore[arg-type]
            held=tuple,
            scheduler=cluster,
            audit=self.audit,
            clock=FakeClock(),
        )
        return [status async for status in moves.move(ANN, MoveRequest(device=device))][-1].state


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path / "audit.jsonl")
    yield made
    await made.audit.close()


def drive(handle: str = "001300", serial: str = "S1") -> FabricDevice:
    return FabricDevice(id=serial or handle, handle=handle, kind=DeviceKind.NVME, serial=serial)


def status(**fields: str) -> DeviceStatus:
    device = Device(id=DRIVE, kind=DeviceKind.NVME, model="MODEL")
    return DeviceStatus(device=device, node="n1", state=DeviceState.FREE, epoch=1, **fields)


@pytest.mark.parametrize("name", [DRIVE, "S1", "001300"])
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lease": "l1"}, "lease l1 has it, on node n1"),
        ({"move": "m1"}, "move m1 has it"),
        ({"used_by": "1 volume"}, "it is shared: it has 1 volume"),
        ({"kept_for": "job 7 of ada"}, "it is kept for job 7 of ada"),
    ],
)
async def test_what_the_scheduler_has_given_is_not_moved_by_any_of_its_names(
    bench: Bench, name: str, fields: dict[str, str], words: str
) -> None:
    bench.cluster = (status(**fields),)
    with pytest.raises(Conflict, match=words):
        await bench.detach(name)
    assert bench.moving.orders == []
    bench.cluster = (status(),)
    assert await bench.detach(name) is MoveState.DONE


async def test_a_name_that_devices_of_two_chassis_have_means_neither(bench: Bench) -> None:
    bench.chassis = [Chassis("one", drive(serial="")), Chassis("two", drive(serial=""), drive("002300"))]
    with pytest.raises(Conflict, match="several have this name: one/001300, two/001300"):
        await bench.detach("001300")
    assert await bench.detach("002300") is MoveState.DONE
    assert bench.moving.orders[0].chassis == "two"


async def test_a_chassis_that_can_not_be_read_keeps_nobody_from_what_another_surely_has(bench: Bench) -> None:
    bench.chassis = [Chassis("off"), Chassis("two", drive())]
    assert await bench.detach("S1") is MoveState.DONE
    assert bench.moving.orders[0].chassis == "two"
    for name in ("001300", "NVME-S2-MODEL"):
        # It may be in that one.
        with pytest.raises(FarbusError, match="chassis off: no agent serves it"):
            await bench.detach(name)
