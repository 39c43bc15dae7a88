"""The agent's end of its session: dial, say hello, take commands, report, renew; again when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import structlog
from msgspec.structs import replace

from farbus.agent.actions import Answer, Report, ReportClientEnded, ReportLeaseEnded, ReportTask
from farbus.agent.chassis import ChassisNews, Naming
from farbus.agent.events import (
    ClientReleased,
    ClientRequested,
    DevicesReleased,
    DevicesRequested,
    Event,
    LeasesRenewed,
    LeasesVoided,
    PreparedLease,
    SessionOpened,
    StartRequested,
    StopRequested,
    TaskRun,
)
from farbus.agent.log_streams import LogStreams
from farbus.agent.logs import LogStore
from farbus.agent.machine import NodeMachine
from farbus.agent.membership import Membership
from farbus.agent.moving import HeldMove, MoveNews, MoveOrder, MoveOutcome, parse_functions
from farbus.agent.objects import STORY_LENGTH
from farbus.agent.paths import PathTrouble
from farbus.agent.telemetry.storage import Overuse
from farbus.agent.volumes import GrowOrder, VolumeOrder, VolumeVerb
from farbus.api.conversion import from_message, to_message
from farbus.api.session import PROTOCOL_VERSION
from farbus.api.v1 import session_pb2, types_pb2
from farbus.errors import Conflict, FarbusError, InvalidInput, TimedOut, Unavailable
from farbus.linux.clock import Clock
from farbus.model.job import Requests
from farbus.model.lease import Lease
from farbus.model.node import Node
from farbus.model.series import SeriesEncoder, TelemetryUpdate
from farbus.model.states import SESSION_STATES, SessionState
from farbus.model.telemetry import Telemetry
from farbus.model.value import to_json
from farbus.model.volume import VolumePart

_log = structlog.get_logger()

BACKOFF_FIRST_S = 0.2
BACKOFF_MOST_S = 5.0
BACKOFF_FACTOR = 2.0

WELCOME_TIMEOUT_S = 15.0

MISSED_HEARTBEATS = 3
"""Heartbeats without a reply after which the session counts as dead, though TCP has not noticed."""

HEARTBEAT_LEAST_S = 0.1
"""Whatever the scheduler says, not more often than this."""

OUTBOX_LENGTH = 10_000
"""Reports that wait to be sent.  More means that the scheduler does not read: the session is given up."""

FLUSH_TIMEOUT_S = 2.0
"""How long an agent that stops waits for its last reports to be sent."""


class Stream(Protocol):
    """A session that is open: :class:`farbus.api.session.NodeStream`."""

    async def send(self, message: session_pb2.NodeMessage) -> None:
        """Send; waits while the other side does not read."""
        ...

    def __aiter__(self) -> AsyncIterator[session_pb2.SchedulerMessage]:
        """Receive until the session ends."""
        ...


class OrderTaker(Protocol):
    """Does what concerns a node's devices and chassis: :class:`farbus.agent.orders.Orders`."""

    @property
    def chassis(self) -> tuple[str, ...]:
        """Chassis that this agent has the credentials for."""
        ...

    def held(self) -> tuple[HeldMove, ...]:
        """Return the moves that are under way or stuck."""
        ...

    def move(self, command: str, order: MoveOrder) -> None:
        """Begin a move; it is answered when it has ended (:meth:`SessionRunner.move_ended`)."""
        ...

    def call_off(self, move: str, by: str) -> None:
        """Have a move end as soon as it can."""
        ...

    def volume(self, command: str, order: VolumeOrder) -> None:
        """Begin what is asked of a volume; it is answered when it has ended (:meth:`SessionRunner.volume_ended`)."""
        ...

    def grow(self, command: str, order: GrowOrder) -> None:
        """Let what a task has made of a volume grow; answered as orders about volumes are."""
        ...

    def serve(self, chassis: str, naming: Naming) -> None:
        """Take in who serves a chassis now."""
        ...


class Backoff:
    """Waits that grow, each drawn evenly from its upper half, so that a thousand agents don't return at once."""

    def __init__(self, *, random_source: random.Random | None = None) -> None:
        self._random = random_source or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._next_s = BACKOFF_FIRST_S

    def reset(self) -> None:
        """Start small again."""
        self._next_s = BACKOFF_FIRST_S

    def next_s(self) -> float:
        """Return the next wait in seconds."""
        wait = self._next_s
        self._next_s = min(BACKOFF_MOST_S, wait * BACKOFF_FACTOR)
        return wait * self._random.uniform(0.5, 1.0)


def heed_cancellation() -> None:
    """Raise CancelledError if this task has been cancelled.

    For handlers of errors of the scheduler's: a call that is cancelled while
    gRPC connects may end in an error of its own instead, and a loop that
    takes it for the scheduler's would go on for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def hello(
    machine: NodeMachine, node: Node, *, instance: str, orders: OrderTaker | None = None
) -> session_pb2.NodeMessage:
    """Return the first message of a session: the node, and all that it holds."""
    message = session_pb2.NodeHello(protocol=PROTOCOL_VERSION, node=to_message(node, types_pb2.Node), instance=instance)
    for held in machine.held():
        message.held.add(
            lease_id=held.lease.id,
            device_side=held.device_side,
            endpoint=held.endpoint,
            trouble=held.trouble,
            devices=[to_message(device, types_pb2.LeasedDevice) for device in held.lease.devices],
        )
    message.lists_clients = True
    for job, task in machine.clients():
        message.clients.add(job_id=job, task=task)
    for job, status in machine.task_statuses():
        message.tasks.add(job_id=job, status=to_message(status, types_pb2.TaskStatus))
    if orders is not None:
        message.chassis.extend(orders.chassis)
        for move in orders.held():
            message.moves.add(move_id=move.id, device=move.device, attach=move.attach, trouble=move.trouble)
    return session_pb2.NodeMessage(hello=message)


def report_message(report: Report) -> session_pb2.NodeMessage:
    """Return the message that carries a report of the machine."""
    match report:
        case Answer():
            return session_pb2.NodeMessage(
                outcome=session_pb2.Outcome(
                    command_id=report.command,
                    ok=report.ok,
                    error=report.error,
                    endpoint=report.endpoint,
                    environment=report.environment,
                )
            )
        case ReportTask():
            status = to_message(report.status, types_pb2.TaskStatus)
            return session_pb2.NodeMessage(task_changed=session_pb2.TaskChanged(job_id=report.job, status=status))
        case ReportLeaseEnded():
            return session_pb2.NodeMessage(
                lease_ended=session_pb2.LeaseEnded(
                    lease_id=report.lease_id, device_side=report.device_side, reason=report.reason
                )
            )
        case ReportClientEnded():
            return session_pb2.NodeMessage(
                lease_ended=session_pb2.LeaseEnded(job_id=report.job, task=report.task, reason=report.reason)
            )


def command_event(message: session_pb2.SchedulerMessage, *, now: float, term: int = 0) -> Event | None:
    """Return the event that a command of the scheduler of ``term`` is; None for a message that is no command.

    Raises :class:`InvalidInput` for one that can't be understood.
    """
    match message.WhichOneof("message"):
        case "prepare_devices":
            devices = message.prepare_devices
            return DevicesRequested(
                command=devices.command_id, lease=from_message(devices.lease, Lease), now=now, term=term
            )
        case "unprepare_devices":
            back = message.unprepare_devices
            return DevicesReleased(command=back.command_id, lease_id=back.lease_id, term=term)
        case "prepare_client":
            client = message.prepare_client
            leases = tuple(
                PreparedLease(lease=from_message(prepared.lease, Lease), endpoint=prepared.endpoint)
                for prepared in client.leases
            )
            return ClientRequested(
                command=client.command_id,
                job=client.job_id,
                task=client.task,
                user=client.user,
                leases=leases,
                interactive=client.interactive,
                attachment=client.attachment,
                now=now,
                term=term,
            )
        case "unprepare_client":
            gone = message.unprepare_client
            return ClientReleased(command=gone.command_id, job=gone.job_id, task=gone.task, term=term)
        case "start_task":
            start = message.start_task
            run = TaskRun(
                job=start.job_id,
                task=start.task,
                user=start.user,
                command=tuple(start.command),
                cwd=start.cwd,
                environment=dict(start.environment),
                requests=from_message(start.requests, Requests),
                time_limit_s=start.time_limit_s,
                stage_in=start.stage_in,
                stage_out=tuple(start.stage_out),
            )
            return StartRequested(command=start.command_id, run=run, term=term)
        case "stop_task":
            stop = message.stop_task
            return StopRequested(
                command=stop.command_id, job=stop.job_id, task=stop.task, grace_s=stop.grace_s, term=term
            )
    return None


def move_order(message: session_pb2.SchedulerMessage) -> tuple[str, MoveOrder] | None:
    """Return the command's id and the move that a message asks for; None where it asks for none.

    Raises :class:`InvalidInput`.
    """
    match message.WhichOneof("message"):
        case "detach_device":
            go = message.detach_device
            return go.command_id, MoveOrder(
                id=go.move_id,
                device=go.device,
                attach=False,
                chassis=go.chassis,
                evict=go.evict,
                drain_s=go.drain_s,
                dry_run=go.dry_run,
            )
        case "attach_device":
            come = message.attach_device
            return come.command_id, MoveOrder(
                id=come.move_id,
                device=come.device,
                attach=True,
                chassis=come.chassis,
                port=come.port,
                functions=parse_functions(come.functions),
                dry_run=come.dry_run,
            )
    return None


def volume_order(message: session_pb2.SchedulerMessage) -> tuple[str, VolumeOrder] | None:
    """Return the command's id and what a message asks for of a part of a volume; None where it asks for nothing.

    Raises :class:`InvalidInput`.
    """
    match message.WhichOneof("message"):
        case "make_volume":
            asked: session_pb2.MakeVolume | session_pb2.ResizeVolume | session_pb2.RemoveVolume = message.make_volume
            verb = VolumeVerb.MAKE
        case "resize_volume":
            asked, verb = message.resize_volume, VolumeVerb.RESIZE
        case "remove_volume":
            asked, verb = message.remove_volume, VolumeVerb.REMOVE
        case _:
            return None
    return asked.command_id, VolumeOrder(verb=verb, part=from_message(asked.part, VolumePart))


def grow_order(message: session_pb2.SchedulerMessage) -> tuple[str, GrowOrder] | None:
    """Return the command's id and which use of a volume is to grow; None for another message."""
    if not message.HasField("grow_client"):
        return None
    asked = message.grow_client
    order = GrowOrder(job=asked.job_id, task=asked.task, volume=asked.volume, size_bytes=asked.size_bytes)
    return asked.command_id, order


def move_answer(command: str, outcome: MoveOutcome) -> session_pb2.Outcome:
    """Return the answer to a command to move a device; what to do about an error is in its words, and by itself."""
    error = f"{outcome.error}; {outcome.hint}" if outcome.hint else outcome.error
    move = replace(outcome.move, hint=outcome.hint)
    return session_pb2.Outcome(command_id=command, ok=outcome.ok, error=error, move=to_json(move))


def peers_in(message: session_pb2.SchedulerMessage) -> Iterator[tuple[str, str]]:
    """Yield the nodes that a command's leases are shared with, and where their agents serve others."""
    match message.WhichOneof("message"):
        case "prepare_devices":
            yield message.prepare_devices.lease.client_node, message.prepare_devices.peer_endpoint
        case "prepare_client":
            for prepared in message.prepare_client.leases:
                yield prepared.lease.device_node, prepared.peer_endpoint


def command_id(message: session_pb2.SchedulerMessage) -> str:
    """Return a command's id; an empty string for a message that has none."""
    name = message.WhichOneof("message")
    return str(getattr(getattr(message, name), "command_id", "")) if name else ""


class SessionRunner:
    """Keeps a session with the scheduler."""

    def __init__(
        self,
        *,
        open_stream: Callable[[], AbstractAsyncContextManager[Stream]],
        machine: NodeMachine,
        node: Callable[[], Node],
        telemetry: Callable[[SeriesEncoder], TelemetryUpdate],
        logs: LogStore,
        clock: Clock,
        post: Callable[[Event], None],
        membership: Membership,
        instance: str = "",
        backoff: Backoff | None = None,
        orders: OrderTaker | None = None,
    ) -> None:
        self.orders = orders
        self._membership = membership
        self._open_stream = open_stream
        self._machine = machine
        self._node = node
        self._telemetry = telemetry
        self._logs = logs
        self._clock = clock
        self._post = post
        self._backoff = backoff or Backoff()
        self._instance = instance or secrets.token_hex(16)
        self._current: _Session | None = None
        self._early: list[session_pb2.NodeMessage] | None = None
        """What was reported after the hello was written and before its welcome; None at other times."""
        self._state = SessionState.AWAY
        self._story: deque[str] = deque(maxlen=STORY_LENGTH)
        self.error = "the agent has not yet reached the scheduler"
        """Why there is no session; empty while there is one."""
        self.on_lost: Callable[[], None] = _nothing_to_do
        """Called when a session has ended."""
        self.lost_at = clock.monotonic()
        """Monotonic time since which there is none."""
        self.lease_ttl_s = 0.0
        self.term = 0
        self.scheduler_version = ""

    def report(self, report: Report) -> None:
        """Send a report in the present session; without one, the next hello tells it all."""
        self._put(report_message(report))

    def inventory_changed(self, node: Node) -> None:
        """Tell what the node has now."""
        changed = session_pb2.InventoryChanged(node=to_message(node, types_pb2.Node))
        self._put(session_pb2.NodeMessage(inventory_changed=changed))

    def move_ended(self, command: str, outcome: MoveOutcome) -> None:
        """Answer a command to move a device."""
        self._put(session_pb2.NodeMessage(outcome=move_answer(command, outcome)))

    def volume_ended(self, command: str, error: str) -> None:
        """Answer a command about a volume; without an ``error`` it is done."""
        answer = session_pb2.Outcome(command_id=command, ok=not error, error=error)
        self._put(session_pb2.NodeMessage(outcome=answer))

    def lease_overused(self, overuse: Overuse) -> None:
        """Tell that a lease has more than it was granted, or not any more."""
        told = session_pb2.LeaseOverused(
            lease_id=overuse.lease, bytes_per_s=overuse.bytes_per_s, granted_bytes_per_s=overuse.granted_bytes_per_s
        )
        self._put(session_pb2.NodeMessage(lease_overused=told))

    def lease_paths(self, told: PathTrouble) -> None:
        """Tell which paths of a lease do not work, or that all do again."""
        changed = session_pb2.LeasePaths(lease_id=told.lease, trouble=told.trouble)
        self._put(session_pb2.NodeMessage(lease_paths=changed))

    def move_progress(self, news: MoveNews) -> None:
        """Tell that a step of a move begins."""
        progress = session_pb2.MoveProgress(
            move_id=news.id,
            device=news.device,
            step=news.step,
            steps=news.steps,
            says=news.says,
            expected_s=news.expected_s,
        )
        self._put(session_pb2.NodeMessage(move_progress=progress))

    def chassis_changed(self, news: ChassisNews) -> None:
        """Tell what a chassis holds that this agent serves."""
        changed = session_pb2.ChassisChanged(
            term=news.term,
            view=to_json(news.view),
            history=to_json(news.history),
            parallel=news.parallel,
            trouble=news.trouble,
        )
        self._put(session_pb2.NodeMessage(chassis_changed=changed))

    def leaving(self) -> None:
        """Tell that this agent stops, and that another takes up what goes on here."""
        self._put(session_pb2.NodeMessage(leaving=session_pb2.Leaving()))

    def _put(self, message: session_pb2.NodeMessage) -> None:
        if self._current is not None:
            self._current.put(message)
        elif self._early is not None:
            self._early.append(message)

    async def flush(self) -> None:
        """Return once the scheduler has read what was reported, or after :data:`FLUSH_TIMEOUT_S`."""
        if self._current is not None:
            with contextlib.suppress(TimeoutError, FarbusError):
                async with asyncio.timeout(FLUSH_TIMEOUT_S):
                    await self._current.sent()

    async def run(self) -> None:
        """Keep a session until cancelled."""
        while True:
            try:
                await self._serve_one()
                self._lost("the scheduler ended the session")
            except FarbusError as error:
                heed_cancellation()
                self._lost(str(error))
            await self._clock.sleep(self._backoff.next_s())

    def _go(self, state: SessionState) -> None:
        SESSION_STATES.check(f"of node {self._machine.node}", self._state, state, self._story)
        self._state = state
        self._story.append(state)

    def _lost(self, reason: str) -> None:
        self._early = None
        if self._state is not SessionState.AWAY:
            self._go(SessionState.AWAY)
            self._story.append(reason)
        if not self.error:
            self.lost_at = self._clock.monotonic()
            self.on_lost()
        # Once for each reason: a scheduler that is away for a night is one line, not thousands.
        if reason != self.error:
            _log.warning("no session", reason=reason)
        self.error = reason

    async def _serve_one(self) -> None:
        async with self._open_stream() as stream:
            greeting = hello(self._machine, self._node(), instance=self._instance, orders=self.orders)
            self._early = []
            self._go(SessionState.GREETING)
            incoming = aiter(stream)
            try:
                # The hello too waits: until there is a connection.
                async with asyncio.timeout(WELCOME_TIMEOUT_S):
                    await stream.send(greeting)
                    first = await anext(incoming, None)
            except TimeoutError as error:
                raise TimedOut(f"the scheduler did not answer the hello in {WELCOME_TIMEOUT_S:g} s") from error
            if first is None:
                raise Unavailable("the scheduler ended the session before its welcome")
            if first.HasField("refused"):
                raise Conflict(f"the scheduler refuses this node: {first.refused.reason}")
            if not first.HasField("welcome"):
                raise InvalidInput("the scheduler's first message is no welcome", hint="is it of the same version?")
            welcome = first.welcome
            self._membership.accept(term=welcome.term, lease_ttl_s=welcome.lease_ttl_s)
            self._go(SessionState.OPEN)
            self.error = ""
            self.lease_ttl_s, self.term = welcome.lease_ttl_s, welcome.term
            self.scheduler_version = welcome.scheduler_version
            self._backoff.reset()
            self._post(SessionOpened(lease_ttl_s=welcome.lease_ttl_s, now=self._clock.monotonic(), term=welcome.term))
            _log.info("session open", term=welcome.term, lease_ttl_s=welcome.lease_ttl_s)
            session = _Session(
                stream=stream,
                machine=self._machine,
                heartbeat_s=max(HEARTBEAT_LEAST_S, welcome.heartbeat_s),
                term=welcome.term,
                telemetry=self._telemetry,
                logs=self._logs,
                clock=self._clock,
                post=self._post,
                learn=self._membership.learn,
                orders=self.orders,
            )
            self._current = session
            for message in self._early:
                session.put(message)
            self._early = None
            try:
                await session.serve(incoming)
            finally:
                self._current = None


class _Session:
    """One session after its welcome."""

    def __init__(
        self,
        *,
        stream: Stream,
        machine: NodeMachine,
        heartbeat_s: float,
        term: int,
        telemetry: Callable[[SeriesEncoder], TelemetryUpdate],
        logs: LogStore,
        clock: Clock,
        post: Callable[[Event], None],
        learn: Callable[[str, str], None],
        orders: OrderTaker | None,
    ) -> None:
        self._learn = learn
        self._orders = orders
        self._stream = stream
        self._machine = machine
        self._heartbeat_s = heartbeat_s
        self._term = term
        self._telemetry = telemetry
        self._log_streams = LogStreams(logs=logs, send=stream.send, refuse=self.put)
        self._clock = clock
        self._post = post
        # What a session was told holds for that session: the next one begins with everything.
        self._encoder = SeriesEncoder()
        self._outbox: asyncio.Queue[session_pb2.NodeMessage] = asyncio.Queue(OUTBOX_LENGTH)
        self._overflow = asyncio.Event()
        self._sent_at: deque[float] = deque()
        self._answered = asyncio.Event()

    def put(self, message: session_pb2.NodeMessage) -> None:
        """Queue a report; when there are too many, the session ends, and the next hello tells it all."""
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            self._overflow.set()

    async def serve(self, incoming: AsyncIterator[session_pb2.SchedulerMessage]) -> None:
        """Serve until the stream ends or breaks.

        Without a TaskGroup: where one of its tasks fails while it ends, Python before 3.13 leaves the task
        around it with a cancellation that nobody asked for (Task.cancelling() stays 1).
        """
        parts = [
            asyncio.create_task(self._send_heartbeats(), name="session heartbeats"),
            asyncio.create_task(self._watch_overflow(), name="session overflow"),
            asyncio.create_task(self._send_outbox(), name="session outbox"),
            asyncio.create_task(self._receive_all(incoming), name="session reader"),
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            self._log_streams.cancel_all()
            outcomes = await asyncio.gather(*parts, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _receive_all(self, incoming: AsyncIterator[session_pb2.SchedulerMessage]) -> None:
        async for message in incoming:
            self._receive(message)

    async def _send_outbox(self) -> None:
        while True:
            await self._stream.send(await self._outbox.get())
            self._outbox.task_done()

    async def sent(self) -> None:
        """Return once the scheduler has read all that was put.

        To end a stream drops what is still under way, so the sign is the
        answer to a heartbeat sent after everything else.
        """
        await self._outbox.join()
        await self._send_heartbeat()
        while self._sent_at:
            await self._answered.wait()

    async def _watch_overflow(self) -> None:
        await self._overflow.wait()
        raise Unavailable(f"the scheduler does not read: {OUTBOX_LENGTH} reports wait")

    async def _send_heartbeats(self) -> None:
        while True:
            if len(self._sent_at) >= MISSED_HEARTBEATS:
                raise TimedOut(f"the scheduler has not answered {MISSED_HEARTBEATS} heartbeats")
            await self._send_heartbeat()
            await self._clock.sleep(self._heartbeat_s)

    async def _send_heartbeat(self) -> None:
        beat = session_pb2.Heartbeat(
            lease_ids=sorted({held.lease.id for held in self._machine.held()}),
            telemetry=to_message(Telemetry(update=self._telemetry(self._encoder)), session_pb2.Telemetry),
        )
        # Counted from before it was sent: the device side never believes in a lease
        # for longer than the scheduler does.
        self._sent_at.append(self._clock.monotonic())
        await self._stream.send(session_pb2.NodeMessage(heartbeat=beat))

    def _receive(self, message: session_pb2.SchedulerMessage) -> None:
        match message.WhichOneof("message"):
            case "heartbeat_reply":
                if self._sent_at:
                    now = self._sent_at.popleft()
                    self._answered.set()
                    self._answered = asyncio.Event()
                    if renewed := tuple(message.heartbeat_reply.renewed):
                        self._post(LeasesRenewed(lease_ids=renewed, now=now, term=self._term))
                if message.heartbeat_reply.telemetry_lost:
                    self._encoder.restart()
                if message.heartbeat_reply.void:
                    self._post(LeasesVoided(lease_ids=tuple(message.heartbeat_reply.void), term=self._term))
            case "log_request":
                self._log_streams.start(message.log_request)
            case "log_credit":
                self._log_streams.give(message.log_credit)
            case "log_cancel":
                self._log_streams.cancel(message.log_cancel.request_id)
            case "cancel_move":
                if self._orders is not None:
                    self._orders.call_off(message.cancel_move.move_id, message.cancel_move.by)
            case "serve_chassis":
                served = message.serve_chassis
                if self._orders is not None:
                    naming = Naming(term=served.term, node=served.node, address=served.address)
                    self._orders.serve(served.chassis, naming)
            case _:
                self._receive_command(message)

    def _receive_command(self, message: session_pb2.SchedulerMessage) -> None:
        try:
            if self._orders is not None and (asked := move_order(message)) is not None:
                self._orders.move(*asked)
                return
            if self._orders is not None and (wanted := volume_order(message)) is not None:
                self._orders.volume(*wanted)
                return
            if self._orders is not None and (growing := grow_order(message)) is not None:
                self._orders.grow(*growing)
                return
            event = command_event(message, now=self._clock.monotonic(), term=self._term)
            if event is None:
                raise InvalidInput("this agent does not know the command", hint="upgrade the agent")
        except InvalidInput as error:
            _log.error("command not understood", error=str(error))
            self.put(report_message(Answer(command=command_id(message), ok=False, error=str(error))))
        else:
            for node, endpoint in peers_in(message):
                self._learn(node, endpoint)
            self._post(event)


def _nothing_to_do() -> None:
    """Stand where nobody asks to be called."""
