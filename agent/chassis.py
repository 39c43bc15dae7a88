"""Chassis as this agent reaches them: itself, where it serves one, and else through the agent that does.

The scheduler names who serves a chassis, in a term of the chassis's own that
grows with each naming (docs/decisions/0020-moves-of-devices.md).  The last
naming is kept in the state directory, so that a restarted agent goes on while
the scheduler is away.  Where nobody was ever named, who has the credentials
asks for itself, and serves nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from farbus.agent.state_files import read_state, write_state
from farbus.api.identity import Identity
from farbus.errors import Conflict, FarbusError, InvalidInput, NotPermitted, TimedOut, Unavailable, Unsatisfiable
from farbus.hotplug.fabric.config import ChassisAccess, make_driver
from farbus.hotplug.fabric.driver import Driver, Fabric
from farbus.hotplug.fabric.errors import DeviceElsewhere
from farbus.hotplug.fabric.service import ChassisService
from farbus.hotplug.working import fabric_deadline_s
from farbus.linux.clock import Clock
from farbus.model.fabric import (
    ChassisReply,
    ChassisRequest,
    ChassisView,
    FabricDevice,
    FabricStep,
    StepHistory,
    StepTime,
)
from farbus.model.value import Value, from_json, to_json

_log = structlog.get_logger()

READ_INTERVAL_S = 120.0
"""Between two readings of a chassis where nothing is moved: a serial one takes up to ten seconds for each."""

PATIENCE_S = 30.0
"""How long a reading waits for another agent to be named where the one that serves is gone."""

STEP_PATIENCE_S = 120.0
"""The same for a step of a move, of which the device is nowhere until it is done: as long as a busy node's agent takes
to start again where no other may serve the chassis."""

V = TypeVar("V", bound=Value)
T = TypeVar("T")


class Naming(Value, frozen=True, kw_only=True):
    """Who serves a chassis: the agent of ``node``, at ``address`` unless it is this one; term 0 where nobody does."""

    term: int = 0
    node: str = ""
    address: str = ""


class ChassisNews(Value, frozen=True, kw_only=True):
    """A reading that differs from the one before, or why there is none now."""

    term: int
    view: ChassisView
    history: StepHistory
    parallel: int = 0
    """Requests that the chassis takes at once; 0 where that is not known."""
    trouble: str = ""
    """Why it can't be read now; ``view`` is what was read last."""


class ChassisAsker(Protocol):
    """Asks other agents: :class:`farbus.api.peer.PeerClient`."""

    async def ask_chassis(self, node: str, endpoint: str, request: ChassisRequest) -> ChassisReply:
        """Return the answer; raise :class:`FarbusError` when there is none."""
        ...


def driver_of(access: ChassisAccess, clock: Clock) -> Driver:
    """Return the real driver of a chassis."""
    return make_driver(access, clock=clock)


class Chassis:
    """One chassis: a :class:`farbus.hotplug.fabric.driver.Fabric`, whoever serves it."""

    def __init__(self, name: str, desk: ChassisDesk, *, naming: Naming, history: StepHistory) -> None:
        self.chassis = name
        self._desk = desk
        self.naming = naming
        self.history = history
        self.view: ChassisView | None = None
        """The last reading, of whoever made it."""
        self.trouble = ""
        """Why it could not be read the last time; empty where it could."""
        self.service: ChassisService | None = None
        self.renamed = asyncio.Event()
        """Set, and replaced, when somebody else is named."""
        self.running: asyncio.Event = asyncio.Event()
        """Set once the service takes calls."""
        self.end: asyncio.Event = asyncio.Event()
        """Set when the service is to end."""
        self.ended: asyncio.Task[None] | None = None

    async def list(self) -> ChassisView:
        """See :class:`Fabric`."""
        view = await self._desk.call(
            self, FabricStep.LIST, lambda service: service.list(), ChassisView, device="", port=""
        )
        self.view = view
        return view

    async def assign(self, device: str, port: str) -> FabricDevice:
        """See :class:`Fabric`."""
        try:
            return await self._desk.call(
                self, FabricStep.ASSIGN, lambda service: service.assign(device, port), FabricDevice,
                device=device, port=port,
            )  # fmt: skip
        except Conflict as error:
            raise await self._elsewhere(device, port, error) from error

    async def unassign(self, device: str, *, source: str = "") -> FabricDevice:
        """See :class:`Fabric`."""
        try:
            return await self._desk.call(
                self, FabricStep.UNASSIGN, lambda service: service.unassign(device, source=source), FabricDevice,
                device=device, port=source,
            )  # fmt: skip
        except Conflict as error:
            raise await self._elsewhere(device, source, error) from error

    async def move(self, device: str, port: str) -> FabricDevice:
        """Not here: nodes do the two steps themselves, with their own part between them."""
        raise InvalidInput(f"chassis {self.chassis}: agents move devices step by step")

    def expected_s(self, step: FabricStep) -> float:
        """See :class:`Fabric`."""
        return self.history.expected_s(step)

    def deadline_s(self, step: FabricStep) -> float:
        """See :class:`Fabric`."""
        return self.history.deadline_s(step)

    async def _elsewhere(self, device: str, port: str, error: Conflict) -> Conflict:
        """Return what another agent's no means: its kind does not cross the network, so the chassis is read."""
        if isinstance(error, DeviceElsewhere):
            return error
        try:
            at = (await self.list()).device(device).port
        except FarbusError:
            return error
        if at in ("", port):
            return error
        return DeviceElsewhere(error.message, at=at, hint=error.hint)


class ChassisDesk:
    """All chassis of one agent, those that it has the credentials for and those that it hears of."""

    def __init__(
        self,
        *,
        node: str,
        accesses: Mapping[str, ChassisAccess],
        asker: ChassisAsker,
        clock: Clock,
        group: asyncio.TaskGroup,
        directory: Path,
        driver: Callable[[ChassisAccess, Clock], Driver] = driver_of,
        patience_s: float = PATIENCE_S,
        step_patience_s: float = STEP_PATIENCE_S,
    ) -> None:
        self._node = node
        self._accesses = dict(accesses)
        self._asker = asker
        self._clock = clock
        self._group = group
        self._directory = directory
        self._driver = driver
        self._patience_s = patience_s
        self._step_patience_s = step_patience_s
        self._namings = read_state(directory / "serving.json", dict[str, Naming], default={})
        self._chassis: dict[str, Chassis] = {}
        self._soon = asyncio.Event()
        """Set when chassis are to be read before their time: another agent was named."""
        self.told: Callable[[ChassisNews], None] = _nobody_hears
        """Called with each reading of a chassis served here that differs from the one before."""
        self.read: Callable[[ChassisView], None] = _nobody_reads
        """Called with each reading that this agent makes or is given."""
        for name in {*self._accesses, *self._namings}:
            self._of(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Chassis that this agent has the credentials for."""
        return tuple(sorted(self._accesses))

    @property
    def known(self) -> tuple[Chassis, ...]:
        """All that were heard of."""
        return tuple(self._chassis[name] for name in sorted(self._chassis))

    def of(self, name: str) -> Fabric:
        """Return a chassis.  Its calls fail where nobody serves it."""
        return self._of(name)

    def _of(self, name: str) -> Chassis:
        chassis = self._chassis.get(name)
        if chassis is None:
            naming = self._namings.get(name, Naming())
            history = read_state(self._file(name), StepHistory, default=StepHistory())
            chassis = self._chassis[name] = Chassis(name, self, naming=naming, history=history)
        return chassis

    def _file(self, name: str) -> Path:
        # No chassis's name makes this that of the namings.
        return self._directory / f"{name}.times.json"

    # Serving.

    def is_ours(self, chassis: Chassis) -> bool:
        """Say whether this agent asks the chassis itself."""
        if chassis.chassis not in self._accesses:
            return False
        return not chassis.naming.term or (chassis.naming.node == self._node and not chassis.naming.address)

    async def name(self, name: str, naming: Naming) -> None:
        """Take in who serves a chassis now; what is named in an older term is passed over."""
        chassis = self._of(name)
        if naming.term < chassis.naming.term:
            return
        if naming != chassis.naming:
            _log.info("chassis served", chassis=name, term=naming.term, node=naming.node or self._node)
            chassis.naming = naming
            self._namings[name] = naming
            write_state(self._directory / "serving.json", self._namings)
            chassis.renamed.set()
            chassis.renamed = asyncio.Event()
            self._soon.set()
        if not self.is_ours(chassis):
            await self._leave(chassis)
            return
        if chassis.view is not None:
            # The scheduler may be another one than was told.
            self._tell(chassis)

    async def _serve(self, chassis: Chassis) -> ChassisService:
        """Return the service of a chassis that is ours, started if it is not there yet."""
        if (begun := chassis.service) is not None:
            # Who comes while it is being started waits with who has started it.
            await chassis.running.wait()
            return begun
        name = chassis.chassis

        def measured(time: StepTime) -> None:
            chassis.history = chassis.history.with_time(time)
            write_state(self._file(name), chassis.history)

        service = ChassisService(
            self._driver(self._accesses[name], self._clock),
            clock=self._clock,
            history=chassis.history,
            on_time=measured,
            on_view=lambda view: self._seen(chassis, view),
            tell=lambda line: _log.info("chassis asked again", reason=line),
        )
        chassis.service = service
        chassis.end, chassis.running = asyncio.Event(), asyncio.Event()
        running = chassis.running

        async def serve() -> None:
            async with service.running():
                running.set()
                await chassis.end.wait()

        chassis.ended = self._group.create_task(serve(), name=f"chassis {name}")
        await running.wait()
        return service

    async def _leave(self, chassis: Chassis) -> None:
        service, chassis.service = chassis.service, None
        if service is not None and chassis.ended is not None:
            chassis.end.set()
            await chassis.ended

    async def close(self) -> None:
        """Ask for nothing any more."""
        for chassis in self.known:
            await self._leave(chassis)

    def _seen(self, chassis: Chassis, view: ChassisView) -> None:
        before = (chassis.view, chassis.trouble)
        chassis.view, chassis.trouble = view, ""
        if before != (view, ""):
            self._tell(chassis)
        self.read(view)

    def _tell(self, chassis: Chassis) -> None:
        if chassis.view is not None and chassis.naming.term:
            access = self._accesses.get(chassis.chassis)
            news = ChassisNews(
                term=chassis.naming.term,
                view=chassis.view,
                history=chassis.history,
                parallel=access.parallel if access is not None else 0,
                trouble=chassis.trouble,
            )
            self.told(news)

    async def keep_reading(self, wanted: Callable[[str], bool]) -> None:
        """Read the chassis that this agent serves, and those that are ``wanted``, now and then, until cancelled."""
        while True:
            self._soon.clear()
            for chassis in self.known:
                # Where nobody was named yet, all who have the credentials would ask a chassis at once.
                if not chassis.naming.term or not (self.is_ours(chassis) or wanted(chassis.chassis)):
                    continue
                before, trouble = chassis.trouble, ""
                try:
                    view = await chassis.list()
                    if chassis.service is None:
                        self.read(view)
                except FarbusError as error:
                    trouble = str(error)
                except Exception as error:
                    # What a chassis says that nobody has foreseen must not end what the agent does for others.
                    _log.exception("defect", chassis=chassis.chassis)
                    trouble = f"a defect: {error!r}"
                # Once for each reason: a chassis that is off for a night is one line.
                chassis.trouble = trouble
                if trouble and trouble != before:
                    _log.warning("chassis not read", chassis=chassis.chassis, reason=trouble)
                    if self.is_ours(chassis):
                        self._tell(chassis)
            await self._within(self._soon.wait(), READ_INTERVAL_S)

    # Asking.

    async def call(
        self,
        chassis: Chassis,
        step: FabricStep,
        ask: Callable[[ChassisService], Awaitable[V]],
        kind: type[V],
        *,
        device: str,
        port: str,
    ) -> V:
        """Have a chassis asked by whoever serves it; again where another is named meanwhile.

        Each step is read before it is repeated, so that costs time and no device.
        """
        patience_s = self._patience_s if step is FabricStep.LIST else self._step_patience_s
        until = self._clock.monotonic() + patience_s
        while True:
            naming, renamed = chassis.naming, chassis.renamed
            try:
                if self.is_ours(chassis):
                    return await ask(await self._serve(chassis))
                return await self._ask_other(chassis, naming, step, kind, device=device, port=port)
            except (Unavailable, Unsatisfiable, TimedOut) as error:
                left = until - self._clock.monotonic()
                if naming == chassis.naming and (
                    self.is_ours(chassis) or left <= 0 or not await self._within(renamed.wait(), left)
                ):
                    raise _gone(error) from error

    async def _ask_other(
        self, chassis: Chassis, naming: Naming, step: FabricStep, kind: type[V], *, device: str, port: str
    ) -> V:
        if not naming.address:
            raise Unavailable(
                f"chassis {chassis.chassis}: no agent serves it",
                hint="one that has its credentials (fabric in its settings) must have a session with the scheduler",
            )
        request = ChassisRequest(chassis=chassis.chassis, term=naming.term, step=step, device=device, port=port)
        limit_s = fabric_deadline_s(chassis, step)
        answer = asyncio.create_task(
            self._asker.ask_chassis(naming.node, naming.address, request), name=f"ask for chassis {chassis.chassis}"
        )
        try:
            if not await self._within(_settled(answer), limit_s):
                raise TimedOut(
                    f"chassis {chassis.chassis}: the agent of node {naming.node} did not answer in {limit_s:.0f} s"
                )
            reply = answer.result()
        finally:
            # Also of a caller who has left.
            answer.cancel()
        if reply.history:
            chassis.history = from_json(reply.history, StepHistory)
        return from_json(reply.value, kind)

    async def _within(self, awaitable: Awaitable[object], seconds: float) -> bool:
        """Wait, but not longer; say whether it has happened."""
        waiting = asyncio.ensure_future(awaitable)
        timer = asyncio.create_task(self._clock.sleep(seconds), name="limit of a chassis")
        try:
            await asyncio.wait({waiting, timer}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.done()
        finally:
            for task in (waiting, timer):
                task.cancel()

    # Answering other agents.

    async def answer(self, caller: Identity, request: ChassisRequest) -> ChassisReply:
        """Ask a chassis that this agent serves for another node; see :class:`farbus.api.peer.PeerHandler`."""
        chassis = self._chassis.get(request.chassis)
        if chassis is None or not self.is_ours(chassis) or not chassis.naming.term:
            raise Unsatisfiable(f"chassis {request.chassis}: not served by node {self._node}")
        if request.term != chassis.naming.term:
            raise Unsatisfiable(
                f"chassis {request.chassis}: node {self._node} serves it in term {chassis.naming.term}, "
                f"not {request.term}"
            )
        service = await self._serve(chassis)
        value: Value
        match request.step:
            case FabricStep.LIST:
                value = await service.list()
            case FabricStep.ASSIGN:
                await self._check_port(caller, service, request.port)
                value = await service.assign(request.device, request.port)
            case FabricStep.UNASSIGN:
                await self._check_port(caller, service, request.port)
                value = await service.unassign(request.device, source=request.port)
            case other:
                raise InvalidInput(f"chassis {request.chassis}: there is no step {other!r}")
        return ChassisReply(value=to_json(value), history=to_json(chassis.history))

    async def _check_port(self, caller: Identity, service: ChassisService, port: str) -> None:
        """Raise unless the caller's node is at the other end of the port."""
        view = self._chassis[service.chassis].view or await service.list()
        at = view.port(port).node
        if at != caller.name:
            raise NotPermitted(
                f"chassis {service.chassis}: port {port} leads to {f'node {at}' if at else 'no node that is known'}, "
                f"not to {caller.name}",
                hint="ports in fabric.toml says which node is at which port",
            )


def _gone(error: FarbusError) -> FarbusError:
    """Return the error for who asked: a refusal to serve is nothing that he could mend."""
    return Unavailable(error.message, hint=error.hint) if isinstance(error, Unsatisfiable) else error


async def _settled(task: asyncio.Task[T]) -> None:
    with contextlib.suppress(Exception):
        await asyncio.shield(task)


def _nobody_reads(_: ChassisView) -> None:
    """Do nothing: :attr:`ChassisDesk.read` before there is somebody who wants to know."""


def _nobody_hears(_: ChassisNews) -> None:
    """Do nothing: :attr:`ChassisDesk.told` before there is a session."""
