"""Moves through an agent's door to its chassis, with the emulated chassis in the process that is killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

from farbus.agent.chassis import ChassisDesk, Naming
from farbus.agent.steps import Steps
from farbus.hotplug.sequences import HotAttach, HotDetach, HotMove
from farbus.linux.clock import SystemClock
from farbus.model.fabric import ChassisReply, ChassisRequest
from tests.agent.moving import ACCESS, CHASSIS, DRIVE, EmulatedFalcon
from tests.hotplug.harness import Node, a_move
from tests.hotplug.machines import PORT_A


class Nobody:
    """No other agent is there to be asked."""

    async def ask_chassis(self, node: str, endpoint: str, request: ChassisRequest) -> ChassisReply:
        raise AssertionError(request)


class AttachAtChassis:
    """The drive comes: to be killed also around each write of the chassis."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.passing: Callable[[], None] = _go_on
        if not (directory / "prepared").exists():
            asyncio.run(self._prepare())
            (directory / "prepared").touch()

    def _open(self) -> tuple[Node, EmulatedFalcon]:
        node = Node(self._directory / "node1")
        return node, EmulatedFalcon(self._directory, {"30h": node.pci, "31h": node.pci})

    def work(self) -> HotMove:
        return HotAttach(move=a_move(DRIVE, chassis=CHASSIS))

    async def _prepare(self) -> None:
        """Make the old world, once."""

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        node, chassis = self._open()
        await chassis.emulator.reconcile()
        chassis.store.on_write = lambda _: self.passing()
        async with asyncio.TaskGroup() as group:
            desk = ChassisDesk(
                node="n1",
                accesses={CHASSIS: ACCESS},
                asker=Nobody(),
                clock=SystemClock(),
                group=group,
                directory=self._directory / "fabric",
                driver=chassis.driver,
            )
            await desk.name(CHASSIS, Naming(term=1, node="n1"))
            node.parts = replace(node.parts, fabrics=desk.of)
            try:
                yield node.steps(self.work())
            finally:
                await desk.close()
                await chassis.close()

    def world(self) -> object:
        node, chassis = self._open()
        # As whoever starts the chassis next finds it.
        asyncio.run(chassis.emulator.reconcile())
        at = chassis.assigned()["001300"]
        asyncio.run(chassis.close())
        return {**{name: seen for name, seen in node.world().items() if name != "assigned"}, "at": at}

    def clear(self) -> None:
        """Its directory is removed anyway."""


class DetachAtChassis(AttachAtChassis):
    """It goes."""

    def work(self) -> HotMove:
        return HotDetach(move=a_move(DRIVE, chassis=CHASSIS, drain_s=0.0))

    async def _prepare(self) -> None:
        node, chassis = self._open()
        await chassis.emulator.reconcile()
        await chassis.assign("001300", "30h")
        node.pci._enumerate(PORT_A)
        await chassis.close()


def _go_on() -> None:
    """Where nobody is to be killed."""
