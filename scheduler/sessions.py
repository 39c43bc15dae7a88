"""The scheduler's end of the agents' sessions: messages to events, commands to messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec
import structlog

from farbus import __version__
from farbus.api.conversion import check_elements, from_message, to_message
from farbus.api.identity import Identity, Role
from farbus.api.server import SessionHandler
from farbus.api.session import PROTOCOL_VERSION
from farbus.api.v1 import session_pb2, types_pb2
from farbus.errors import InvalidInput
from farbus.model.cluster import LogChunk
from farbus.model.job import TaskStatus
from farbus.model.node import Node, by_remoting_tls, name_some
from farbus.model.quantity import MAX_BYTES
from farbus.model.telemetry import Telemetry
from farbus.scheduler import events
from farbus.scheduler.engine import Engine
from farbus.scheduler.relay import CREDIT_BYTES, LogRelay
from farbus.scheduler.reports import (
    MAX_WORD,
    believed_s,
    in_words,
    read_chassis,
    read_chassis_names,
    read_node,
    read_node_move,
)

_log = structlog.get_logger()

HELLO_TIMEOUT_S = 10.0
"""How long a new session may stay without its hello."""
OUTBOX_LENGTH = 65_536
"""Commands that wait for one node; one that reads so slowly is cut off and told all again when it is back."""
MAX_ELEMENTS = 131_072
"""Elements of all lists in one message of a node's: every series anew, or all leases and tasks that there may be."""

MAX_PARALLEL = 64
"""Requests at once that an agent is believed to make of a chassis."""

Send = Callable[[session_pb2.SchedulerMessage], Awaitable[None]]

_FIELDS: dict[type[events.Command], str] = {
    events.PrepareDevices: "prepare_devices",
    events.PrepareClient: "prepare_client",
    events.StartTask: "start_task",
    events.StopTask: "stop_task",
    events.UnprepareClient: "unprepare_client",
    events.UnprepareDevices: "unprepare_devices",
    events.DetachDevice: "detach_device",
    events.AttachDevice: "attach_device",
    events.MakeVolume: "make_volume",
    events.ResizeVolume: "resize_volume",
    events.RemoveVolume: "remove_volume",
    events.GrowClient: "grow_client",
    events.ServeChassis: "serve_chassis",
    events.CancelMove: "cancel_move",
    events.HeartbeatReply: "heartbeat_reply",
}


def command_message(command: events.Command) -> session_pb2.SchedulerMessage:
    """Return ``command`` as the message of its name."""
    field = _FIELDS[type(command)]
    kind = getattr(session_pb2, type(command).__name__)
    return session_pb2.SchedulerMessage(**{field: to_message(command, kind)})


def _trust_changed(trust: tuple[bytes, bytes]) -> session_pb2.SchedulerMessage:
    revocations, authorities = trust
    return session_pb2.SchedulerMessage(
        trust_changed=session_pb2.TrustChanged(revocations=revocations, authorities=authorities)
    )


class _Port:
    """A session's outbox, and the means to end it."""

    def __init__(self) -> None:
        self.outbox: asyncio.Queue[session_pb2.SchedulerMessage] = asyncio.Queue(OUTBOX_LENGTH)
        self.closed = asyncio.Event()
        self.reason = ""

    def put(self, message: session_pb2.SchedulerMessage) -> None:
        try:
            self.outbox.put_nowait(message)
        except asyncio.QueueFull:
            self.close(f"{OUTBOX_LENGTH} commands wait for it")

    def send(self, command: events.Command) -> None:
        self.put(command_message(command))

    def close(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.closed.set()


class Sessions(SessionHandler):
    """All sessions, and the log readers that use them."""

    def __init__(
        self,
        engine: Engine,
        *,
        lease_ttl_s: float,
        heartbeat_s: float,
        trust: Callable[[], tuple[bytes, bytes]] = lambda: (b"", b""),
    ) -> None:
        self._engine = engine
        self._trust = trust
        self._passed_on = (b"", b"")
        self._lease_ttl_s = lease_ttl_s
        self._heartbeat_s = heartbeat_s
        self._ports: dict[str, _Port] = {}
        self._remoting_tls: Counter[str] = Counter()
        """How many sessions are of nodes with each setting of it."""
        self.relay = LogRelay(request=self._request_log, credit=self._give_log_credit, cancel=self._cancel_log)

    async def session(self, caller: Identity, incoming: AsyncIterator[session_pb2.NodeMessage], send: Send) -> None:
        """Serve one agent; see :class:`farbus.api.server.SessionHandler`."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                first = await anext(incoming, None)
            if first is None:
                return
            joined = self._read_hello(caller, first)
        except TimeoutError:
            await self._refuse(caller, send, f"no hello came within {HELLO_TIMEOUT_S:g} s")
            return
        except InvalidInput as error:
            await self._refuse(caller, send, str(error))
            return
        await self._serve(joined, incoming, send)

    def pass_on_trust(self) -> None:
        """Send revocations and authorities to all nodes if they are others than before."""
        trust = self._trust()
        if trust != self._passed_on:
            self._passed_on = trust
            for port in self._ports.values():
                port.put(_trust_changed(trust))

    def close(self) -> None:
        """End all sessions; the agents dial again."""
        for port in self._ports.values():
            port.close("the scheduler is stopping")

    async def _refuse(self, caller: Identity, send: Send, reason: str) -> None:
        # It may quote what the agent sent.
        reason = in_words(reason)
        _log.warning("session refused", node=caller.name, reason=reason)
        await send(session_pb2.SchedulerMessage(refused=session_pb2.Refused(reason=reason)))

    def _warn_of_others_tls(self, node: Node) -> None:
        """Say with which nodes this one can't share GPUs, as sessions between them would be refused."""
        if len([setting for setting in +self._remoting_tls if setting]) < 2:
            return
        present = [
            record.node
            for record in self._engine.machine.nodes.values()
            if record.connected and record.node is not None and record.name != node.name
        ]
        settings = by_remoting_tls([node, *present])
        if len(settings) > 1 and node.remoting_tls:
            settings.pop(node.remoting_tls)
            others = name_some([name for names in settings.values() for name in names])
            _log.warning("nodes differ in remoting_tls", node=node.name, remoting_tls=node.remoting_tls, others=others)

    def _read_hello(self, caller: Identity, message: session_pb2.NodeMessage) -> events.NodeJoined:
        check_elements(message, most=MAX_ELEMENTS, what=f"the hello of node {caller.name}")
        if not message.HasField("hello"):
            raise InvalidInput("the first message of a session must be its hello")
        hello = message.hello
        if hello.protocol != PROTOCOL_VERSION:
            raise InvalidInput(
                f"the agent speaks version {hello.protocol} of the protocol, this scheduler {PROTOCOL_VERSION}",
                hint="install the same version of Farbus on both",
            )
        node = read_node(caller, hello.node)
        if len(hello.instance) > MAX_WORD:
            raise InvalidInput(f"node {node.name} reports instance of more than {MAX_WORD} characters")
        present = self._engine.machine.nodes.get(node.name)
        if present is not None and present.connected and present.node is not None:
            # The same agent may be back before its old connection was missed; on another
            # boot, or with another instance, it is another one under the same name.  One
            # that was restarted is let in when the end of its old connection has been read.
            silent_s = asyncio.get_running_loop().time() - present.seen
            others = hello.instance and present.instance and hello.instance != present.instance
            if (present.node.boot_id != node.boot_id or others) and silent_s < self._lease_ttl_s:
                raise InvalidInput(
                    f"another agent is connected as node {node.name}", hint="give each node a name of its own"
                )
        return events.NodeJoined(
            node=node,
            session=self._engine.next_session(),
            held=tuple(_read_held(held) for held in hello.held),
            tasks=tuple(events.HeldTask(job_id=task.job_id, status=_read_status(task.status)) for task in hello.tasks),
            instance=hello.instance,
            clients=frozenset((held.job_id, held.task) for held in hello.clients) if hello.lists_clients else None,
            moves=tuple(_read_held_move(held) for held in hello.moves),
            chassis=read_chassis_names(node.name, hello.chassis),
        )

    async def _serve(
        self, joined: events.NodeJoined, incoming: AsyncIterator[session_pb2.NodeMessage], send: Send
    ) -> None:
        name, session = joined.node.name, joined.session
        port = _Port()
        port.put(
            session_pb2.SchedulerMessage(
                welcome=session_pb2.Welcome(
                    term=self._engine.machine.term,
                    lease_ttl_s=self._lease_ttl_s,
                    heartbeat_s=self._heartbeat_s,
                    scheduler_version=__version__,
                )
            )
        )
        if any(trust := self._trust()):
            port.put(_trust_changed(trust))
        if name in self._ports:
            # What the older session was asked for it will not deliver.
            self.relay.lose(name)
        self._ports[name] = port
        self._engine.attach(name, session, port)
        _log.info("node joined", node=name, devices=len(joined.node.devices), held=len(joined.held))
        for chassis in joined.chassis:
            if not self._engine.machine.may_serve(name, chassis):
                _log.warning(
                    "chassis not served by this node", node=name, chassis=chassis, reason="chassis_servers has it not"
                )
        self._remoting_tls[joined.node.remoting_tls] += 1
        self._warn_of_others_tls(joined.node)
        self._engine.tell(joined)
        helpers = {
            asyncio.create_task(self._read(name, session, incoming), name=f"read {name}"),
            asyncio.create_task(_write(port, send), name=f"write {name}"),
            asyncio.create_task(port.closed.wait(), name=f"close {name}"),
        }
        try:
            done, _ = await asyncio.wait(helpers, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (error := task.exception()) is not None:
                    port.close(in_words(f"{type(error).__name__}: {error}"))
        finally:
            for task in helpers:
                task.cancel()
            try:
                await asyncio.gather(*helpers, return_exceptions=True)
            finally:
                # Also where the connection breaks while the helpers end, which cancels this: a session whose end nobody
                # notes keeps the node's next agent out until it has been silent for a lease's time.
                self._remoting_tls[joined.node.remoting_tls] -= 1
                self._end(name, session, port)

    def _end(self, name: str, session: int, port: _Port) -> None:
        self._engine.detach(name, session)
        if self._ports.get(name) is port:
            del self._ports[name]
            self.relay.lose(name)
        reason = port.reason or "the agent closed it"
        _log.info("session ended", node=name, reason=reason)
        self._engine.tell(events.NodeLost(node=name, session=session, reason=reason))

    async def _read(self, name: str, session: int, incoming: AsyncIterator[session_pb2.NodeMessage]) -> None:
        async for message in incoming:
            check_elements(message, most=MAX_ELEMENTS, what=f"a message of node {name}")
            if message.HasField("log_data"):
                data = message.log_data
                chunk = from_message(data.chunk, LogChunk) if data.HasField("chunk") else None
                self.relay.take(
                    name, data.request_id, chunk, end=data.end, error=in_words(data.error), missing=data.missing
                )
                continue
            event = _event(name, session, message)
            if event is not None:
                # The next message waits until this one is on the disk, so that
                # a node can't pile up more than the ledger can take.
                await self._engine.tell(event)

    def _request_log(
        self, node: str, number: str, job_id: str, positions: Mapping[str, int], follow: bool, user: str
    ) -> bool:
        port = self._ports.get(node)
        if port is None:
            return False
        request = session_pb2.LogRequest(
            request_id=number, job_id=job_id, follow=follow, credit_bytes=CREDIT_BYTES, user=user
        )
        if len(positions) == 1:
            # As also agents before this version know it.
            ((request.task, request.position),) = positions.items()
        else:
            request.tasks.update(positions)
        port.put(session_pb2.SchedulerMessage(log_request=request))
        return True

    def _give_log_credit(self, node: str, number: str, size: int) -> None:
        port = self._ports.get(node)
        if port is not None:
            port.put(session_pb2.SchedulerMessage(log_credit=session_pb2.LogCredit(request_id=number, bytes=size)))

    def _cancel_log(self, node: str, number: str) -> None:
        port = self._ports.get(node)
        if port is not None:
            port.put(session_pb2.SchedulerMessage(log_cancel=session_pb2.LogCancel(request_id=number)))


async def _write(port: _Port, send: Send) -> None:
    while True:
        await send(await port.outbox.get())


def _event(name: str, session: int, message: session_pb2.NodeMessage) -> events.Event | None:
    """Return what a message of a running session means; None for one of a newer agent."""
    match message.WhichOneof("message"):
        case "heartbeat":
            beat = message.heartbeat
            telemetry = from_message(beat.telemetry, Telemetry) if beat.HasField("telemetry") else None
            return events.HeartbeatArrived(
                node=name, session=session, lease_ids=tuple(beat.lease_ids), telemetry=telemetry
            )
        case "outcome":
            outcome = message.outcome
            return events.OutcomeArrived(
                node=name,
                session=session,
                command_id=outcome.command_id,
                ok=outcome.ok,
                error=in_words(outcome.error) or ("" if outcome.ok else "no reason was given"),
                endpoint=in_words(outcome.endpoint),
                environment=dict(outcome.environment),
                move=read_node_move(name, outcome.move),
            )
        case "move_progress":
            progress = message.move_progress
            return events.MoveProgressed(
                node=name,
                session=session,
                move_id=progress.move_id,
                step=progress.step,
                steps=progress.steps,
                says=in_words(progress.says),
                expected_s=believed_s(progress.expected_s),
            )
        case "chassis_changed":
            chassis = message.chassis_changed
            view, history = read_chassis(name, chassis.view, chassis.history)
            return events.ChassisReported(
                node=name,
                session=session,
                term=chassis.term,
                view=view,
                history=history,
                parallel=min(max(1, chassis.parallel), MAX_PARALLEL),
                trouble=in_words(chassis.trouble),
            )
        case "task_changed":
            changed = message.task_changed
            return events.TaskReported(
                node=name, session=session, job_id=changed.job_id, status=_read_status(changed.status)
            )
        case "lease_ended":
            ended = message.lease_ended
            return events.LeaseEndedByNode(
                node=name,
                session=session,
                lease_id=ended.lease_id,
                device_side=ended.device_side,
                reason=in_words(ended.reason),
                job_id=ended.job_id,
                task=ended.task,
            )
        case "lease_overused":
            over = message.lease_overused
            return events.LeaseOverused(
                node=name,
                session=session,
                lease_id=over.lease_id,
                bytes_per_s=min(max(0, over.bytes_per_s), MAX_BYTES),
                granted_bytes_per_s=min(max(0, over.granted_bytes_per_s), MAX_BYTES),
            )
        case "lease_paths":
            return events.LeasePaths(
                node=name,
                session=session,
                lease_id=message.lease_paths.lease_id,
                trouble=in_words(message.lease_paths.trouble),
            )
        case "leaving":
            return events.NodeLeaving(node=name, session=session)
        case "inventory_changed":
            node = read_node(Identity(name=name, role=Role.NODE), message.inventory_changed.node)
            return events.InventoryChanged(node=node, session=session)
        case "hello":
            raise InvalidInput(f"node {name} sent a second hello")
        case _:
            return None


def _read_held(message: session_pb2.HeldLease) -> events.HeldLease:
    held = from_message(message, events.HeldLease)
    return msgspec.structs.replace(held, endpoint=in_words(held.endpoint), trouble=in_words(held.trouble))


def _read_held_move(message: session_pb2.HeldMove) -> events.HeldMove:
    held = from_message(message, events.HeldMove)
    return msgspec.structs.replace(held, trouble=in_words(held.trouble))


def _read_status(message: types_pb2.TaskStatus) -> TaskStatus:
    status = from_message(message, TaskStatus)
    return msgspec.structs.replace(status, reason=in_words(status.reason))
