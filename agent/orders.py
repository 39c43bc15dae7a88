"""What the scheduler asks of a node's devices, chassis and drives: moves, who serves which chassis, volumes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from farbus.agent.chassis import ChassisDesk, Naming
from farbus.agent.moving import HeldMove, MoveOrder, MoveOutcome, Moving
from farbus.agent.volumes import GrowOrder, VolumeOrder, Volumes

NO_STORAGE = "this node stores nothing for others; set storage = true in its agent.toml"
"""Why an order about a volume is refused where it is."""


NO_USE = "this node's agent uses no storage: it is not root's, or physical_devices is off"
"""Why none grows where it is."""


async def _uses_nothing(order: GrowOrder) -> str:
    """Where no storage is used."""
    return f"{order}: {NO_USE}"


def _nobody_asks(_command: str, _error: str) -> None:
    """Where nobody asks for volumes."""


class Orders:
    """Takes orders from the session, and answers each by ``answer`` with its command's id.

    Without ``moving`` every move is refused, with ``why``.
    """

    def __init__(
        self,
        *,
        moving: Moving | None,
        why: str,
        desk: ChassisDesk,
        group: asyncio.TaskGroup,
        answer: Callable[[str, MoveOutcome], None],
        volumes: Volumes | None = None,
        answer_volume: Callable[[str, str], None] = _nobody_asks,
        grow: Callable[[GrowOrder], Awaitable[str]] | None = None,
    ) -> None:
        self._grow = grow or _uses_nothing
        self._volumes = volumes
        self._answer_volume = answer_volume
        self._moving = moving
        self._why = why
        self._desk = desk
        self._group = group
        self._answer = answer

    @property
    def chassis(self) -> tuple[str, ...]:
        """Chassis that this agent has the credentials for."""
        return self._desk.names

    def held(self) -> tuple[HeldMove, ...]:
        """Return the moves that are under way or stuck."""
        return self._moving.held() if self._moving is not None else ()

    def move(self, command: str, order: MoveOrder) -> None:
        """Begin a move, or wait with who has asked for it before; the answer comes when it has ended."""
        if self._moving is None:
            verb = "attach" if order.attach else "detach"
            self._answer(command, MoveOutcome(error=f"{verb} {order.device}: {self._why}"))
            return
        self._group.create_task(self._perform(self._moving, command, order), name=f"order {command}")

    def volume(self, command: str, order: VolumeOrder) -> None:
        """Do what is asked of a part of a volume, or wait with who has asked before; the answer comes at its end."""
        if self._volumes is None:
            self._answer_volume(command, f"{order}: {NO_STORAGE}")
            return
        self._group.create_task(self._perform_volume(self._volumes, command, order), name=f"order {command}")

    async def _perform_volume(self, volumes: Volumes, command: str, order: VolumeOrder) -> None:
        self._answer_volume(command, await volumes.perform(order))

    def grow(self, command: str, order: GrowOrder) -> None:
        """Let what a task has made of a volume grow; the answer comes at its end."""
        self._group.create_task(self._perform_growing(command, order), name=f"order {command}")

    async def _perform_growing(self, command: str, order: GrowOrder) -> None:
        self._answer_volume(command, await self._grow(order))

    def call_off(self, move: str, by: str) -> None:
        """Have a move end as soon as it can; its own answer says what came of it."""
        if self._moving is not None:
            self._moving.call_off(move, by=by)

    async def _perform(self, moving: Moving, command: str, order: MoveOrder) -> None:
        self._answer(command, await moving.perform(order))

    def serve(self, chassis: str, naming: Naming) -> None:
        """Take in who serves a chassis now."""
        self._group.create_task(self._desk.name(chassis, naming), name=f"chassis {chassis} named")
