"""What operators ask of the scheduler: checks, events, and waiting for a node to be drained."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

import msgspec
import structlog

from farbus.api.identity import Identity
from farbus.errors import Conflict, InvalidInput, NotFound, NotPermitted, Unavailable
from farbus.model.move import MAX_NAME, MoveRequest, MoveState, MoveStatus
from farbus.model.operation import Cordon, CordonKind, CordonResult, DrainStatus, ForgottenNode, RoomPlan
from farbus.model.profile import ApplicationProfile
from farbus.scheduler import events
from farbus.scheduler.device_moves import status_of
from farbus.scheduler.engine import Engine, rest
from farbus.scheduler.ledger import job_number
from farbus.scheduler.lifecycle import ClusterMachine
from farbus.scheduler.move_requests import meant_by, name_of, plan_move

_log = structlog.get_logger()

MAX_REASON = 256
"""Characters of the reason that an operator gives for a cordon."""


class OperatorService:
    """The operators' calls, on one engine.

    Roles have been checked; not which node it is of one who operates only the
    node that he is on.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def _machine(self) -> ClusterMachine:
        return self._engine.machine

    async def cordon(self, caller: Identity, name: str, *, reason: str) -> CordonResult:
        """Give the node or device ``name`` nothing new; a cordon that is there already stays as it is."""
        if len(reason) > MAX_REASON or not reason.isprintable():
            raise InvalidInput(f"reason: it is longer than {MAX_REASON} characters, or not printable")
        kind, present = self._find(caller, name)
        if present is None:
            cordon = Cordon(kind=kind, name=name, by=_who(caller), at=time.time(), reason=reason)
            await self._engine.tell(events.Cordoned(cordon=cordon))
            _log.info("cordoned", kind=kind.value, name=name, by=_who(caller), reason=reason)
        return CordonResult(name=name, kind=kind, changed=present is None)

    async def uncordon(self, caller: Identity, name: str) -> CordonResult:
        """Take the cordon of a node or device back.

        Who operates one node only takes back what was cordoned from there.
        """
        kind, present = self._find(caller, name)
        if present is not None:
            if not caller.is_operator and not present.by.endswith(_of_node(caller)):
                raise NotPermitted(
                    f"{name}: cordoned by {present.by}, who operates the cluster", hint=f"ask {present.by}"
                )
            await self._engine.tell(events.Uncordoned(kind=kind, name=name))
            _log.info("uncordoned", kind=kind.value, name=name, by=_who(caller))
        return CordonResult(name=name, kind=kind, changed=present is not None)

    def _find(self, caller: Identity, name: str) -> tuple[CordonKind, Cordon | None]:
        """Return what is named so, and its cordon; raise :class:`NotPermitted` where the caller does not operate it."""
        node = self._machine.nodes.get(name)
        if node is not None and node.node is not None:
            _check_operator(caller, name, what=f"node {name}")
            return CordonKind.NODE, node.cordon
        device = self._machine.devices.get(name)
        if device is not None and device.device is not None:
            _check_operator(caller, device.node, what=f"device {name} of node {device.node}")
            return CordonKind.DEVICE, device.cordon
        if (place := self._machine.slots.find(name)) is not None:
            called = name_of(self._machine, name, place)
            if called in self._machine.devices and self._machine.devices[called].device is not None:
                raise NotFound(f"its node calls device {name} {called}", hint="use that name")
            raise Conflict(
                f"device {name} is at no node, and only those of nodes are cordoned", hint="farbus devices shows it"
            )
        raise NotFound(
            f"there is no node or device {name}",
            hint=meant_by(self._machine, name) or "farbus nodes and farbus devices list them",
        )

    def _check_node(self, name: str) -> None:
        node = self._machine.nodes.get(name)
        if node is None or node.node is None:
            raise NotFound(f"there is no node {name}", hint="farbus nodes lists them")

    async def drain(
        self, caller: Identity, node: str, *, evict: bool, reason: str
    ) -> AsyncGenerator[DrainStatus, None]:
        """Cordon ``node`` and yield the jobs that use it, at every change, until none does."""
        self._check_node(node)
        await self.cordon(caller, node, reason=reason)
        if evict:
            why = f"evicted from node {node} by {_who(caller)}"
            for job_id in sorted(self._machine.jobs_of_node[node]):
                await self._engine.tell(events.JobEvicted(job_id=job_id, node=node, reason=why))
            _log.info("evicted", node=node, by=_who(caller))
        last: DrainStatus | None = None
        while True:
            # Nothing new comes: who uses it now is all that can change.
            with self._engine.watching(self._machine.jobs_of_node[node]) as changed:
                jobs = tuple(self._machine.jobs[job_id].status() for job_id in sorted(self._machine.jobs_of_node[node]))
                status = DrainStatus(node=node, jobs=jobs, lost=not self._machine.nodes[node].connected)
                if status != last:
                    last = status
                    yield status
                if not jobs:
                    return
                await changed.wait()
                await rest(sum(len(job.tasks) for job in jobs))

    async def defragment(self, caller: Identity, job_id: str, *, dry_run: bool) -> RoomPlan:
        """Move moveable jobs so that a waiting one has room; with ``dry_run`` only say which.

        Raises :class:`NotFound` where no moves help, :class:`Conflict` where
        the cluster has changed meanwhile so that the plan does not hold.
        """
        await self._engine.find(job_id)
        plan, event = await self._engine.planner.defragment(job_id)
        if dry_run or not plan.moved:
            return plan
        await self._engine.tell(event)
        if job_id in self._machine.queue and job_id not in self._machine.reservations:
            raise Conflict(f"the cluster has changed: the plan for job {job_id} does not hold", hint="try again")
        _log.info("defragmenting", job=job_id, moved=event.moved, by=_who(caller))
        return msgspec.structs.replace(plan, begun=True)

    async def move_device(self, caller: Identity, request: MoveRequest) -> AsyncGenerator[MoveStatus, None]:
        """Have a device moved and yield how far it is, until it has ended; the caller may leave before that.

        A node that gives a device has touched it before the next one is asked.
        So both are asked first what they would do; :class:`Conflict` where
        the second one can't have it.
        """
        if request.node and not request.dry_run:
            await self._look_ahead(caller, request)
        move = plan_move(self._machine, request, by=_who(caller), at=time.time())
        _log.info(
            "move asked for",
            move=move.id,
            device=move.device,
            came_from=move.from_node,
            goes_to=move.to_node,
            by=move.by,
        )
        await self._engine.tell(events.MoveAsked(move=move))
        async with contextlib.aclosing(self._engine.watch_move(move.id)) as statuses:
            async for status in statuses:
                yield status

    async def _look_ahead(self, caller: Identity, request: MoveRequest) -> None:
        """Raise :class:`Conflict` where a dry run says that the move can't be; who holds it may still let go."""
        rehearsal = msgspec.structs.replace(request, dry_run=True)
        if not plan_move(self._machine, rehearsal, by=_who(caller), at=time.time()).from_node:
            # Its own first step looks for room.
            return
        async with contextlib.aclosing(self.move_device(caller, rehearsal)) as statuses:
            said = [status async for status in statuses]
        if not said:
            raise Unavailable(f"device {request.device}: nobody has said whether it can be moved", hint="ask again")
        last = said[-1]
        if last.state is MoveState.FAILED:
            raise Conflict(f"device {last.device} is not moved: {last.error}", hint=last.hint)
        prefix = f"{request.node}: "
        refused = [line.removeprefix(prefix) for line in last.in_the_way if line.startswith(prefix)]
        if refused:
            raise Conflict(f"device {last.device} is not moved: node {request.node}: {'; '.join(refused)}")

    async def cancel_move(self, caller: Identity, move_id: str) -> MoveStatus:
        """Call a move off, and return it as it is then: nothing of it is begun any more, what was begun is taken back.

        Once more changes nothing.  Raises :class:`NotFound` for one that is
        not there, :class:`Conflict` for one that has ended, is stuck, or goes
        back already.
        """
        if len(move_id) > MAX_NAME or not move_id.isprintable():
            raise InvalidInput(f"move: it is longer than {MAX_NAME} characters, or not printable")
        machine = self._machine
        record = machine.moves.get(move_id)
        if record is None or record.move.dry_run:
            for ended in await self.list_moves(include_ended=True):
                if ended.id == move_id:
                    back = "farbus attach moves it back"
                    hint = back if ended.state is MoveState.DONE else f"farbus moves {move_id} says why"
                    raise Conflict(f"move {move_id} has ended: {ended.state}", hint=hint)
            raise NotFound(f"there is no move {move_id}", hint="farbus moves lists them")
        move = record.move
        if move.state is MoveState.STUCK:
            raise Conflict(f"move {move_id} is stuck, and nothing of it is under way", hint=move.hint)
        if move.returning:
            raise Conflict(f"move {move_id}: device {move.device} is on its way back already: {move.error}")
        if not move.called_off:
            await self._engine.tell(events.MoveCancelled(move_id=move_id, by=_who(caller)))
            _log.info("move called off", move=move_id, device=move.device, by=_who(caller))
        # It may have ended with that.
        if record.move.state.has_ended:
            return status_of(record.move)
        return next(status for status in machine.move_statuses() if status.id == move_id)

    async def list_moves(self, *, include_ended: bool) -> tuple[MoveStatus, ...]:
        """Return the moves that are under way or stuck, and with ``include_ended`` those that have ended."""
        # First, as of jobs.
        live = self._machine.move_statuses()
        ended: tuple[MoveStatus, ...] = ()
        if include_ended:
            kept = await asyncio.wrap_future(self._engine.ledger.ended_moves())
            # One that has just ended may not be on the disk yet.
            found = {move.id: status_of(move) for move in kept}
            ended = tuple({**found, **self._engine.recent_moves()}.values())
        known = {status.id for status in ended}
        listed = ended + tuple(status for status in live if status.id not in known)
        return tuple(sorted(listed, key=lambda status: job_number(status.id, prefix="m")))

    async def set_profile(self, caller: Identity, profile: ApplicationProfile) -> ApplicationProfile:
        """Have ``profile`` count; raise :class:`InvalidInput` naming what in it can't be, or where too many are set."""
        profile = msgspec.structs.replace(profile, set_by=_who(caller), set_at=time.time(), runs=())
        profile.check()
        self._machine.inference.check_room(profile)
        await self._engine.tell(events.ProfileSet(profile=profile))
        _log.info("profile set", application=profile.application, user=profile.user, by=profile.set_by)
        return profile

    async def forget_profile(
        self, caller: Identity, application: str, *, user: str | None
    ) -> tuple[ApplicationProfile, ...]:
        """Forget what is known of an application; raise :class:`NotFound` where nothing is."""
        known = self._machine.inference.of(application, user)
        if not known:
            whose = "" if user is None else f" of user {user}" if user else " of everybody"
            raise NotFound(
                f"nothing is known of application {application}{whose}", hint="farbus profiles list lists what is"
            )
        await self._engine.tell(events.ProfileForgotten(application=application, user=user))
        _log.info("profile forgotten", application=application, user=user, by=_who(caller))
        return known

    async def forget(self, caller: Identity, node: str) -> ForgottenNode:
        """Release what a node holds that is off for good; raise :class:`Conflict` for one that has a session."""
        self._check_node(node)
        machine = self._machine
        if machine.nodes[node].connected:
            raise Conflict(f"node {node} is connected", hint=f"stop its agent first; farbus drain {node} empties it")
        forgotten = ForgottenNode(
            node=node,
            leases=tuple(sorted(machine.leases_of_node[node])),
            devices=tuple(sorted(machine.devices_of_node[node])),
            jobs=tuple(sorted(machine.jobs_of_node[node])),
        )
        await self._engine.tell(events.NodeForgotten(node=node, reason=f"node {node} is off, says {caller.name}"))
        _log.warning("node forgotten", by=caller.name, **msgspec.structs.asdict(forgotten))
        return forgotten


def _of_node(caller: Identity) -> str:
    return f" of node {caller.node}"


def _who(caller: Identity) -> str:
    """Name an operator; no name has the spaces by which one of a node is told from one of the cluster."""
    return caller.name if caller.is_operator else caller.name + _of_node(caller)


def _check_operator(caller: Identity, node: str, *, what: str) -> None:
    if not caller.may_operate(node):
        raise NotPermitted(
            f"{what}: {_who(caller)} operates that node only",
            hint="use an operator's certificate, or name the node in the scheduler's operator_nodes",
        )
