"""Moves that were asked for: each is done once, and whoever asks again hears the same.

A request becomes a :class:`farbus.hotplug.sequences.HotMove` by looking at the
bus and at the chassis; from then on the journal has all of it
(:mod:`farbus.agent.moves`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import structlog

from farbus.agent.moves import AgentGate, Moves, result_of
from farbus.agent.ports import Ports, bridge_for, bridges_of
from farbus.agent.reconcile import Verdict, verdict_of
from farbus.agent.steps import CallOff, StepNews, WedgedError
from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound
from farbus.hotplug.parts import DRAIN_S, Move, Parts, is_meant
from farbus.hotplug.sequences import HotAttach, HotDetach, HotMove, expected_s, find_device, rehearse, steps_of
from farbus.hotplug.working import stable_path
from farbus.model.device import DeviceKind
from farbus.model.fabric import ChassisView, FabricDevice
from farbus.model.move import NodeMove
from farbus.model.pci import Function, PciTree
from farbus.model.value import Value

_log = structlog.get_logger()

T = TypeVar("T")

KEPT_OUTCOMES = 1000
"""Moves whose outcome is remembered while the agent runs; those of the journal beyond."""

MAX_FUNCTIONS = 256
"""Functions of one device: as many as a PCI Express device can have."""

CHANGING = frozenset({"AssignDevice", "ScanBelow", "QuietGpu", "RemoveFunctions", "UnassignDevice"})
"""Kinds of step that change something for others."""


class MoveOrder(Value, frozen=True, kw_only=True):
    """A device is to come to this node (``attach``) or to go from it; the same id is the same move."""

    id: str
    device: str
    attach: bool
    chassis: str = ""
    port: str = ""
    """The chassis's port of this node that it is to come to."""
    functions: tuple[Function, ...] = ()
    evict: bool = False
    drain_s: float = 0.0
    dry_run: bool = False


class MoveNews(Value, frozen=True, kw_only=True):
    """A step of a move begins: ``step`` counts from 0; ``expected_s`` is of the whole of it on this node."""

    id: str
    device: str
    step: int
    steps: int
    says: str
    expected_s: float = 0.0


class MoveOutcome(Value, frozen=True, kw_only=True):
    """How a move has ended; ``error`` and ``hint`` are empty where it is done."""

    error: str = ""
    hint: str = ""
    move: NodeMove = NodeMove()

    @property
    def ok(self) -> bool:
        """Say whether it is done."""
        return not self.error


class HeldMove(Value, frozen=True, kw_only=True):
    """A move that is under way, or stuck with its ``trouble``; without an id one that was never asked for."""

    id: str
    device: str
    attach: bool
    trouble: str = ""


def parse_functions(data: bytes) -> tuple[Function, ...]:
    """Read what another node has seen of a device; raise :class:`InvalidInput` for what can't be that."""
    if not data:
        return ()
    try:
        found = msgspec.json.decode(data, type=tuple[Function, ...])
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"functions of a device: {error}") from error
    if len(found) > MAX_FUNCTIONS:
        raise InvalidInput(f"functions of a device: {len(found)} are more than it can have")
    return found


@dataclass
class _UnderWay:
    order: MoveOrder
    task: asyncio.Task[MoveOutcome]
    listeners: list[Callable[[MoveNews], None]] = field(default_factory=list)
    last: MoveNews | None = None
    changed: bool = False


class _Turn:
    """A lock that is held from one function to another; without one there is nothing to wait for."""

    def __init__(self, lock: asyncio.Lock | None) -> None:
        self._lock = lock
        self._has_it = False

    async def begin(self) -> None:
        """Wait for it."""
        if self._lock is not None:
            await self._lock.acquire()
            self._has_it = True

    def end(self) -> None:
        """Let others have it; nothing happens where it was let go already."""
        if self._lock is not None and self._has_it:
            self._has_it = False
            self._lock.release()


class Moving:
    """Does what is asked of a node's devices.  ``told`` hears of each step of each move."""

    def __init__(
        self,
        *,
        node: str,
        boot_id: str,
        moves: Moves,
        gate: AgentGate,
        parts: Parts,
        ports: Ports,
        group: asyncio.TaskGroup,
        told: Callable[[MoveNews], None],
    ) -> None:
        self._node = node
        self._boot_id = boot_id
        self._moves = moves
        self._gate = gate
        self._parts = parts
        self._ports = ports
        self._group = group
        self._told = told
        self._under_way: dict[tuple[str, bool], _UnderWay] = {}
        self._ended: OrderedDict[tuple[str, bool], MoveOutcome] = OrderedDict()
        self._call_offs: OrderedDict[str, CallOff] = OrderedDict()
        self._filling: dict[tuple[str, str], asyncio.Lock] = {}
        """By chassis and port: who has it chooses a bridge and has his device assigned, one after the other."""
        self._chosen: dict[tuple[str, bool], str] = {}
        """Bridges that are meant for devices, by order: from the choice on, before the move itself is under way."""
        self.recovered = asyncio.Event()
        """Set once what an earlier agent has left is finished, undone or stuck."""
        self.orphans: Callable[[], Mapping[str, str]] = dict
        """Devices that are assigned to this node and can't be found, with why."""

    def held(self) -> tuple[HeldMove, ...]:
        """Return what is under way or stuck, for the hello."""
        found = {
            one.order.device: HeldMove(id=one.order.id, device=one.order.device, attach=one.order.attach)
            for one in self._under_way.values()
        }
        for device, work in self._moves.under_way.items():
            found.setdefault(device, _held(device, work))
        for device, work in self._moves.stuck.items():
            found[device] = _held(device, work, self._moves.troubles.get(device, ""))
        for device, trouble in self.orphans().items():
            found.setdefault(device, HeldMove(id="", device=device, attach=True, trouble=trouble))
        return tuple(found.values())

    async def recover(self) -> None:
        """Take up what an earlier agent has left."""
        try:
            await self._moves.recover(boot_id=self._boot_id)
        finally:
            self.recovered.set()

    def call_off(self, move: str, *, by: str) -> None:
        """Have a move end as soon as it can and be taken back, also one that is asked for later.

        What has ended stays as it is; so does what an earlier agent began,
        which is gone on with first.
        """
        self._call_off_of(move).say(by)

    def _call_off_of(self, move: str) -> CallOff:
        found = self._call_offs.setdefault(move, CallOff())
        while len(self._call_offs) > KEPT_OUTCOMES:
            self._call_offs.popitem(last=False)
        return found

    async def perform(self, order: MoveOrder, *, listener: Callable[[MoveNews], None] | None = None) -> MoveOutcome:
        """Do it, or say how it has ended; who asks while it is under way waits with others.

        A move that is stuck is tried again.  ``listener`` hears of its steps.
        """
        if order.dry_run:
            return await self._rehearse(order)
        key = (order.id, order.attach)
        one = self._under_way.get(key)
        if one is None:
            if (known := self._ended.get(key)) is not None and not known.move.stuck:
                return known
            task = self._group.create_task(self._perform(order), name=f"move {order.id}")
            one = self._under_way[key] = _UnderWay(order, task)
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        if listener is not None:
            one.listeners.append(listener)
            if one.last is not None:
                listener(one.last)
        # Who gives up waiting does not end it.
        return await asyncio.shield(one.task)

    async def _perform(self, order: MoveOrder) -> MoveOutcome:
        await self.recovered.wait()
        name = self.name_of(order.device)
        async with self._moves.turn(name):
            try:
                outcome = await self._in_turn(order, name)
            except FarbusError as error:
                # It was refused before there was anything to record.
                outcome = MoveOutcome(error=error.message, hint=error.hint)
            except Exception as error:
                # A defect in one mechanism must not end what the agent does for others.
                _log.exception("defect", move=order.id, device=order.device)
                stuck = name in self._moves.stuck
                outcome = MoveOutcome(error=f"a defect: {error!r}", move=NodeMove(changed=stuck, stuck=stuck))
            finally:
                self._chosen.pop((order.id, order.attach), None)
        if outcome.ok:
            _log.info("device moved", device=order.device, move=order.id, attach=order.attach)
        else:
            _log.warning(
                "device not moved", device=order.device, move=order.id, attach=order.attach, error=outcome.error
            )
        self._ended[order.id, order.attach] = outcome
        while len(self._ended) > KEPT_OUTCOMES:
            self._ended.popitem(last=False)
        return outcome

    async def _in_turn(self, order: MoveOrder, name: str) -> MoveOutcome:
        # What is stuck is brought to an end first, whichever it is: what is asked for follows from there.
        await self._moves.unstick(name, boot_id=self._boot_id)
        if (trouble := self._moves.troubles.get(name)) is not None:
            return MoveOutcome(error=trouble, move=NodeMove(changed=True, stuck=True))
        return await self._known(order) or await self._do(order, self._call_off_of(order.id))

    def name_of(self, device: str) -> str:
        """Return what this node calls a device, if it knows it."""
        try:
            return find_device(self._parts, self._parts.pci.tree(), device)[1].device
        except FarbusError:
            return self._closed_name(device)

    def _closed_name(self, device: str, view: ChassisView | None = None) -> str:
        """Return by which name a device went from here, so that it comes back under the same."""
        chassis_name = FabricDevice(id=device, handle=device, kind=DeviceKind.PCI, serial=device)
        for name in self._gate.closed():
            # Of a drive whose serial begins like this one's its chassis knows better.
            if chassis_name.answers_to(name) and (view is None or _meant(view, name) in ("", _meant(view, device))):
                return name
        return device

    async def _known(self, order: MoveOrder) -> MoveOutcome | None:
        """Return how this very move has ended before, by the journal; None where it has not."""
        last = await self._moves.last_of(self.name_of(order.device))
        if last is None:
            return None
        records, work = last
        if not order.id or work.move.id != order.id or isinstance(work, HotAttach) != order.attach:
            return None
        match verdict_of(tuple(records), boot_id=self._boot_id, resumable=True):
            case Verdict.HELD:
                return MoveOutcome(move=_done(work, result_of(records)))
            case Verdict.OVER:
                errors = [record.error for record in records if record.error]
                changed = any(record.action in CHANGING for record in records)
                error = errors[0] if errors else "it was cut off, and taken back"
                return MoveOutcome(error=error, move=NodeMove(functions=work.move.functions, changed=changed))
            case _:
                return None

    async def _do(self, order: MoveOrder, call_off: CallOff) -> MoveOutcome:
        # A chassis fills its bridges in the order in which it is asked: two that choose theirs in another order would
        # each be looked for below the other's.
        filling = self._filling.setdefault((order.chassis, order.port), asyncio.Lock())
        turn = _Turn(filling if order.attach and order.chassis else None)
        try:
            work = await self._unless(call_off, self._work_in(turn, order))
            if isinstance(work, MoveOutcome):
                return work
            return await self._perform_work(order, work, call_off, turn)
        finally:
            turn.end()

    async def _work_in(self, turn: _Turn, order: MoveOrder) -> HotMove | MoveOutcome:
        await turn.begin()
        return await self._work(order)

    async def _perform_work(self, order: MoveOrder, work: HotMove, call_off: CallOff, turn: _Turn) -> MoveOutcome:
        one = self._under_way.get((order.id, order.attach))
        whole_s = expected_s(steps_of(self._parts, work))

        def told(news: StepNews) -> None:
            if news.step.kind == "ScanBelow":
                # It is assigned.
                turn.end()
            if one is None:
                return
            one.changed = one.changed or (news.does and news.step.kind in CHANGING)
            one.last = MoveNews(
                id=order.id,
                device=order.device,
                step=news.position,
                steps=news.length,
                says=_says(news),
                expected_s=whole_s,
            )
            for listener in (self._told, *one.listeners):
                listener(one.last)

        seen = NodeMove(functions=work.move.functions, expected_s=whole_s)
        try:
            result = await self._moves.perform(work, told=told, call_off=call_off)
        except WedgedError as error:
            return MoveOutcome(
                error=error.message, hint=error.hint, move=msgspec.structs.replace(seen, changed=True, stuck=True)
            )
        except (FarbusError, OSError) as error:
            stuck = work.move.device in self._moves.stuck
            move = msgspec.structs.replace(seen, changed=stuck or (one is not None and one.changed), stuck=stuck)
            if isinstance(error, FarbusError):
                return MoveOutcome(error=error.message, hint=error.hint, move=move)
            return MoveOutcome(error=f"{work.move.device}: {error}", move=move)
        return MoveOutcome(move=msgspec.structs.replace(_done(work, result), expected_s=whole_s))

    @staticmethod
    async def _unless(call_off: CallOff, looking: Coroutine[Any, Any, T]) -> T:
        """Look, unless it is called off before or meanwhile: a chassis that hangs is read for minutes."""
        looked = asyncio.create_task(looking, name="look before a move")
        said = asyncio.create_task(call_off.said.wait(), name="call-off of a move")
        try:
            await asyncio.wait({looked, said}, return_when=asyncio.FIRST_COMPLETED)
            call_off.check()
            return await looked
        finally:
            for task in (looked, said):
                task.cancel()

    async def _rehearse(self, order: MoveOrder) -> MoveOutcome:
        try:
            work = await self._work(order)
            if isinstance(work, MoveOutcome):
                return work
            run = await rehearse(self._parts, work)
        except FarbusError as error:
            return MoveOutcome(error=error.message, hint=error.hint)
        return MoveOutcome(
            move=NodeMove(
                functions=work.move.functions, plan=run.steps, in_the_way=run.in_the_way, expected_s=run.expected_s
            )
        )

    # From what is asked to what is done.

    async def _work(self, order: MoveOrder) -> HotMove | MoveOutcome:
        """Return the move that an order means; its outcome where nothing is to be done."""
        return await (self._attach(order) if order.attach else self._detach(order))

    async def _detach(self, order: MoveOrder) -> HotMove | MoveOutcome:
        view, device = await self._in_chassis(order)
        tree = self._parts.pci.tree()
        try:
            _, move = find_device(self._parts, tree, order.device)
        except NotFound:
            return await self._gone(order, view, device)
        if device is not None and view is not None:
            if not device.port:
                raise Conflict(
                    f"detach {order.device}: it is on this node's bus, and chassis {order.chassis} has it at no port",
                    hint="farbus fabric list shows what the chassis says",
                )
            self._check_node(order, view, device.port)
        move = self._with_chassis(order, move, device, device.port if device is not None else "")
        persistent = False
        for function in move.functions:
            if function.is_nvidia_gpu:
                persistent = persistent or (await self._parts.nvidia.readiness(function.address)).persistent
        return HotDetach(
            move=msgspec.structs.replace(
                move,
                evict=order.evict,
                drain_s=order.drain_s or DRAIN_S,
                brought=self._moves.has_brought(move.device),
                persistent=persistent,
            )
        )

    async def _gone(
        self, order: MoveOrder, view: ChassisView | None, device: FabricDevice | None
    ) -> HotMove | MoveOutcome:
        """Say what is to be done about a device that is not on the bus: the chassis may still have it here."""
        if view is not None and device is not None and device.port and view.port(device.port).node == self._node:
            tree = self._parts.pci.tree()
            bridges = bridges_of(tree, self._ports, chassis=view.chassis, port=device.port)
            empty = [bridge for bridge in bridges if not tree.below(bridge)]
            move = Move(device=self._closed_name(order.device, view), bridge=empty[0] if empty else "")
            move = self._with_chassis(order, move, device, device.port)
            if (maybe := self._mistaken(tree, bridges, move, view, device)) is not None:
                # The chassis would take it from under the kernel, and from whoever uses it.
                raise Conflict(
                    f"detach {order.device}: no device of node {self._node} has this name, chassis {view.chassis} has "
                    f"it at port {device.port}, and {maybe} there may be it",
                    hint="farbus devices --tree shows what it is called here; is its driver loaded?",
                )
            return HotDetach(move=msgspec.structs.replace(move, evict=order.evict, drain_s=order.drain_s or DRAIN_S))
        last = await self._moves.last_of(self._closed_name(order.device))
        if device is not None or (last is not None and isinstance(last[1], HotDetach)):
            # It is where it was to be: not here.
            return MoveOutcome(move=NodeMove(functions=last[1].move.functions if last is not None else ()))
        raise NotFound(
            f"detach {order.device}: not on the bus of node {self._node}",
            hint="farbus devices --tree shows what is; software GPUs are on none",
        )

    def _mistaken(
        self, tree: PciTree, bridges: Collection[str], move: Move, view: ChassisView, device: FabricDevice
    ) -> str | None:
        """Return the address of a function at a port that may be the device, for all that is known of both."""
        names = self._parts.names(tree)
        for bridge in bridges:
            for first in tree.below(bridge):
                identity = names.get(first.address)
                if first.is_bridge or identity is None:
                    continue
                other = "" if identity.weak else _meant(view, identity.name)
                is_other = other not in ("", device.id) and view.device(other).port == device.port
                if not is_other and is_meant(move, first, identity):
                    return first.address
        return None

    async def _attach(self, order: MoveOrder) -> HotMove | MoveOutcome:
        tree = self._parts.pci.tree()
        if (here := await self._here(order, tree)) is not None:
            return here
        view, device = await self._in_chassis(order)
        name = self._closed_name(order.device, view)
        last = await self._moves.last_of(name)
        port = order.port
        # Several look at once, and whoever has a bridge in mind has it before its move is under way.
        others = {bridge for key, bridge in self._chosen.items() if key != (order.id, order.attach)}
        taken = self._moves.bridges(but=name) | others
        if view is not None:
            port = view.port(order.port or self._node).id
            self._check_node(order, view, port)
            bridge = bridge_for(tree, self._ports, device=name, chassis=order.chassis, port=port, taken=taken)
        elif last is not None and tree.get(last[1].move.bridge) is not None:
            # Without a chassis it comes back to where it went from.
            bridge = last[1].move.bridge
        else:
            bridge = bridge_for(tree, {}, device=name, chassis="", port="", taken=taken)
        if not order.dry_run:
            self._chosen[order.id, order.attach] = bridge
        functions = order.functions or (last[1].move.functions if last is not None else ())
        move = Move(
            device=name,
            bridge=bridge,
            vendor=functions[0].vendor if functions else 0,
            device_id=functions[0].device if functions else 0,
            functions=functions,
        )
        return HotAttach(move=self._with_chassis(order, move, device, port))

    async def _here(self, order: MoveOrder, tree: PciTree) -> MoveOutcome | None:
        """Return the outcome for a device that is here already, and may be used."""
        try:
            address, move = find_device(self._parts, tree, order.device)
        except (NotFound, Conflict):
            return None
        if await self._gate.is_closed(move.device) or move.device in self._moves.stuck:
            return None
        path = stable_path(self._parts, tree.at(address))
        return MoveOutcome(move=NodeMove(functions=move.functions, identity=move.device, path=path))

    async def _in_chassis(self, order: MoveOrder) -> tuple[ChassisView | None, FabricDevice | None]:
        if not order.chassis:
            return None, None
        view = await self._parts.fabrics(order.chassis).list()
        return view, view.device(order.device)

    def _check_node(self, order: MoveOrder, view: ChassisView, port: str) -> None:
        node = view.port(port).node
        if node not in ("", self._node):
            verb = "attach" if order.attach else "detach"
            raise Conflict(
                f"{verb} {order.device}: port {port} of chassis {view.chassis} leads to node {node}, "
                f"not to {self._node}",
                hint="farbus fabric ports shows the cables",
            )

    def _with_chassis(self, order: MoveOrder, move: Move, device: FabricDevice | None, port: str) -> Move:
        """Return a move with what the chassis tells of its device, and who asked when."""
        move = msgspec.structs.replace(
            move, id=order.id, chassis=order.chassis, port=port, asked_at=self._parts.clock.wall()
        )
        if device is None:
            return move
        return msgspec.structs.replace(
            move,
            kind=device.kind,
            uuid=device.uuid,
            serial=device.serial,
            vendor=move.vendor or device.vendor_id,
            device_id=move.device_id or device.device_id,
        )


def _meant(view: ChassisView, name: str) -> str:
    """Return the id of the device of a chassis that a node calls so; empty for none."""
    try:
        return view.device(name).id
    except NotFound:
        return ""


def _held(device: str, work: HotMove, trouble: str = "") -> HeldMove:
    return HeldMove(id=work.move.id, device=device, attach=not isinstance(work, HotDetach), trouble=trouble)


def _done(work: HotMove, result: Mapping[str, str]) -> NodeMove:
    # What nothing here tells apart is offered by the name that it has come by.
    identity = work.move.device if result.get("weak") else result.get("identity", "")
    return NodeMove(
        functions=work.move.functions,
        identity=identity,
        path=result.get("path", ""),
        changed=True,
    )


def _says(news: StepNews) -> str:
    """Return a step in words; one that can't look at what it is about has its kind."""
    try:
        words = str(getattr(news.step, "says", news.step.kind))
    except FarbusError:
        words = news.step.kind
    return words if news.direction == "forward" else f"take back: {words}"
