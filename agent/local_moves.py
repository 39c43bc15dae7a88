"""``farbus attach --local`` and ``detach --local``: an operator of this node moves a device without the scheduler.

Only a device that has no lease: none that this agent knows, and none that the
scheduler does, where there is a session to ask it in.  Each is in the audit
log of the node (``audit.jsonl`` in its state directory).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from farbus.agent.chassis import ChassisDesk
from farbus.agent.moving import MoveNews, MoveOrder, MoveOutcome, Moving
from farbus.agent.objects import Held
from farbus.api.audit import AuditLog, AuditRecord, bounded, now_text
from farbus.api.identity import Identity
from farbus.errors import Conflict, FarbusError, InvalidInput
from farbus.linux.clock import Clock
from farbus.model.device import DeviceStatus, whole_of
from farbus.model.fabric import ChassisView, FabricDevice
from farbus.model.move import MoveRequest, MoveState, MoveStatus

METHOD = "MoveDevice --local"
"""What audit records call it: the same call without it is the scheduler's."""


class LocalMoves:
    """Moves devices of this node for its operators.

    ``held`` are the leases that this node holds, ``scheduler`` returns the
    cluster's devices, or None where there is no session to ask in.
    """

    def __init__(
        self,
        *,
        node: str,
        moving: Moving | None,
        why: str,
        desk: ChassisDesk,
        held: Callable[[], tuple[Held, ...]],
        scheduler: Callable[[Identity], Awaitable[tuple[DeviceStatus, ...] | None]],
        audit: AuditLog,
        clock: Clock,
    ) -> None:
        self._node = node
        self._moving = moving
        self._why = why
        self._desk = desk
        self._held = held
        self._scheduler = scheduler
        self._audit = audit
        self._clock = clock
        self._under_way: set[asyncio.Future[MoveOutcome]] = set()

    async def move(self, caller: Identity, request: MoveRequest) -> AsyncIterator[MoveStatus]:
        """Move a device to this node, or from it, and yield how far it is until it has ended.

        Leaving the stream ends nothing.  Raises :class:`Conflict` for a device with a lease.
        """
        await self._note(caller, request, "begun")
        try:
            moving, order = await self._order(caller, request)
        except FarbusError as error:
            await self._note(caller, request, "refused", str(error))
            raise
        status = MoveStatus(
            id=order.id,
            device=request.device,
            from_node="" if order.attach else self._node,
            to_node=self._node if order.attach else "",
            chassis=order.chassis,
            port=order.port,
            state=MoveState.ATTACHING if order.attach else MoveState.DETACHING,
            by=caller.name,
            at=self._clock.wall(),
        )
        news: asyncio.Queue[MoveNews | None] = asyncio.Queue()
        began = self._clock.monotonic()
        work = asyncio.ensure_future(self._perform(moving, caller, request, order, news))
        # Kept, since who asked may leave.
        self._under_way.add(work)
        work.add_done_callback(self._under_way.discard)
        yield status
        while (step := await news.get()) is not None:
            yield msgspec.structs.replace(
                status, says=step.says, step=step.step, steps=step.steps, expected_s=step.expected_s,
                took_s=self._clock.monotonic() - began,
            )  # fmt: skip
        yield _ended(status, await work, took_s=self._clock.monotonic() - began)

    async def _perform(
        self,
        moving: Moving,
        caller: Identity,
        request: MoveRequest,
        order: MoveOrder,
        news: asyncio.Queue[MoveNews | None],
    ) -> MoveOutcome:
        """Do it to its end, whoever is still listening."""
        try:
            outcome = await moving.perform(order, listener=news.put_nowait)
            await self._note(caller, request, "ok" if outcome.ok else "failed", outcome.error)
            return outcome
        finally:
            news.put_nowait(None)

    async def _order(self, caller: Identity, request: MoveRequest) -> tuple[Moving, MoveOrder]:
        # What is not a number of seconds would be none in the journal, and its move unknown to the next agent.
        request.check()
        attach = bool(request.node)
        verb = f"{'attach' if attach else 'detach'} {request.device}"
        if attach and request.node != self._node:
            raise InvalidInput(
                f"{verb}: --local moves devices to {self._node} and from it only, not to {request.node}",
                hint="leave out --local, or ask on that node",
            )
        if self._moving is None:
            # Trying again later would not help.
            raise Conflict(f"{verb}: {self._why}")
        view, device = await self._find(request.device, verb)
        await self._check_leases(caller, self._names_of(self._moving, request.device, view, device), verb)
        order = MoveOrder(
            id=f"local-{secrets.token_hex(8)}",
            device=request.device,
            attach=attach,
            chassis=view.chassis if view is not None else "",
            port=view.port(request.port or self._node).id if view is not None and attach else "",
            evict=request.evict,
            drain_s=request.drain_s,
            dry_run=request.dry_run,
        )
        return self._moving, order

    async def _find(self, name: str, verb: str) -> tuple[ChassisView | None, FabricDevice | None]:
        """Return the device of that name as its chassis has it; nothing where it is in none.

        Raises :class:`Conflict` where several have the name, and what is wrong with a chassis that can't be read
        where the device may be another one of that.
        """
        found: list[tuple[ChassisView, FabricDevice]] = []
        trouble: FarbusError | None = None
        for chassis in self._desk.known:
            try:
                view = await chassis.list()
            except FarbusError as error:
                trouble = trouble or error
                continue
            found += [(view, device) for device in view.meant(name)]
        if len(found) > 1:
            several = ", ".join(f"{view.chassis}/{device.id}" for view, device in found)
            raise Conflict(
                f"{verb}: several have this name: {several}",
                hint="use another name of it (farbus fabric list), or give each a serial in fabric.toml",
            )
        # Each chassis counts its slots from one; other names no second device has.
        if trouble is not None and (not found or name == found[0][1].handle):
            raise trouble
        return found[0] if found else (None, None)

    @staticmethod
    def _names_of(
        moving: Moving, name: str, view: ChassisView | None, device: FabricDevice | None
    ) -> Callable[[str], bool]:
        """Return what says of the whole of a lease's device whether it is the one of that name: it has several."""
        here = moving.name_of(name)
        return lambda whole: whole in (name, here) or (view is not None and view.meant(whole) == (device,))

    async def _check_leases(self, caller: Identity, is_meant: Callable[[str], bool], verb: str) -> None:
        for held in self._held():
            if any(is_meant(whole_of(leased.device)) for leased in held.lease.devices):
                raise Conflict(
                    f"{verb}: lease {held.lease.id} of job {held.lease.job} has it",
                    hint=f"farbus cancel {held.lease.job}, or farbus drain, come first",
                )
        for status in await self._scheduler(caller) or ():
            if not is_meant(whole_of(status.device.id)):
                continue
            if status.lease:
                raise Conflict(
                    f"{verb}: lease {status.lease} has it, on node {status.node}",
                    hint="farbus cancel or farbus drain come first",
                )
            if status.used_by:
                raise Conflict(
                    f"{verb}: it is shared: it has {status.used_by}",
                    hint="farbus leases and farbus volume list say whose; what is stored on it does not move with it",
                )
            if status.kept_for:
                raise Conflict(f"{verb}: it is kept for {status.kept_for}", hint="farbus cancel of that job frees it")
            if status.move:
                raise Conflict(f"{verb}: move {status.move} has it", hint="farbus moves shows how far that is")

    async def _note(self, caller: Identity, request: MoveRequest, outcome: str, error: str = "") -> None:
        if request.dry_run:
            return
        await self._audit.record(
            AuditRecord(
                at=now_text(),
                who=bounded(caller.name),
                role=caller.role.value,
                node=self._node,
                method=METHOD,
                target=bounded(request.device),
                outcome=outcome,
                error=bounded(error),
            )
        )


def _ended(status: MoveStatus, outcome: MoveOutcome, *, took_s: float) -> MoveStatus:
    """Return the last status of a move."""
    move = outcome.move
    if outcome.ok:
        state = MoveState.DONE
    elif move.stuck:
        state = MoveState.STUCK
    else:
        state = MoveState.UNDONE if move.changed else MoveState.FAILED
    return msgspec.structs.replace(
        status,
        state=state,
        error=outcome.error,
        hint=outcome.hint,
        expected_s=move.expected_s,
        took_s=took_s,
        plan=move.plan,
        in_the_way=move.in_the_way,
        path=move.path,
    )
