"""An agent that speaks the real protocol over a real connection and only pretends to work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

import msgspec

from farbus.api.authority import Credentials
from farbus.api.conversion import from_message, to_message
from farbus.api.session import PROTOCOL_VERSION, NodeStream, open_session
from farbus.api.v1 import cluster_pb2, session_pb2, types_pb2
from farbus.model.cluster import LogChunk
from farbus.model.job import TaskState, TaskStatus
from farbus.model.node import Node
from farbus.model.value import to_json
from farbus.scheduler import events
from tests.scheduler.scripted import ScriptedAgent

_COMMANDS = {
    "prepare_devices": events.PrepareDevices,
    "prepare_client": events.PrepareClient,
    "start_task": events.StartTask,
    "stop_task": events.StopTask,
    "unprepare_client": events.UnprepareClient,
    "unprepare_devices": events.UnprepareDevices,
    "detach_device": events.DetachDevice,
    "attach_device": events.AttachDevice,
    "make_volume": events.MakeVolume,
    "resize_volume": events.ResizeVolume,
    "remove_volume": events.RemoveVolume,
    "grow_client": events.GrowClient,
    "serve_chassis": events.ServeChassis,
    "cancel_move": events.CancelMove,
    "heartbeat_reply": events.HeartbeatReply,
}


class LightAgent:
    """Answers every command at once; tasks run until :meth:`finish`."""

    def __init__(self, node: Node, *, instance: str = "") -> None:
        self.state = ScriptedAgent(node)
        self.instance = instance
        self.welcome: asyncio.Future[session_pb2.SchedulerMessage] = asyncio.get_running_loop().create_future()
        self.commands: list[events.Command] = []
        self.holds_back: tuple[type[events.Command], ...] = ()
        """Commands that it does not answer."""
        self.rehearsals: list[events.DetachDevice | events.AttachDevice] = []
        """Parts of moves of which it was asked what it would do."""
        self.in_the_way: tuple[str, ...] = ()
        """What it says then."""
        self.logs: dict[tuple[str, str], list[bytes]] = {}
        self.log_requests: list[session_pb2.LogRequest] = []
        self._stream: NodeStream | None = None
        self._changed = asyncio.Event()
        self._heard_before = 0
        """Commands of earlier sessions."""

    def hello(self) -> session_pb2.NodeMessage:
        said = self.state.hello(1)
        return session_pb2.NodeMessage(
            hello=session_pb2.NodeHello(
                protocol=PROTOCOL_VERSION,
                node=to_message(said.node, types_pb2.Node),
                held=[to_message(held, session_pb2.HeldLease) for held in said.held],
                tasks=[to_message(task, session_pb2.HeldTask) for task in said.tasks],
                instance=self.instance,
                chassis=said.chassis,
            )
        )

    @contextlib.asynccontextmanager
    async def connected(self, address: str, credentials: Credentials) -> AsyncIterator[LightAgent]:
        """Keep a session for the block, after its welcome."""
        async with open_session(address=address, credentials=credentials) as stream:
            self._stream = stream
            self._heard_before = len(self.commands)
            self.welcome = asyncio.get_running_loop().create_future()
            await stream.send(self.hello())
            reader = asyncio.create_task(self._read(stream))
            try:
                await self.welcome
                yield self
            finally:
                reader.cancel()
                with contextlib.suppress(BaseException):
                    await reader
                self._stream = None

    async def _read(self, stream: NodeStream) -> None:
        async for message in stream:
            name = message.WhichOneof("message")
            assert name is not None
            if name in ("welcome", "refused"):
                self.welcome.set_result(message)
            elif name == "log_request":
                await self._send_log(message.log_request)
            elif name not in ("log_cancel", "log_credit"):
                command = from_message(getattr(message, name), _COMMANDS[name])
                if isinstance(command, events.DetachDevice | events.AttachDevice) and command.dry_run:
                    await self._rehearse(command)
                    continue
                self.commands.append(command)
                if isinstance(command, self.holds_back):
                    self._wake()
                    continue
                outcome = self.state.do(command)
                if outcome is not None:
                    await self.answer(outcome)
                kinds = events.DetachDevice | events.AttachDevice
                if isinstance(command, kinds | events.MakeVolume | events.ResizeVolume | events.RemoveVolume):
                    await self.send(
                        inventory_changed=session_pb2.InventoryChanged(node=to_message(self.state.node, types_pb2.Node))
                    )
            self._wake()

    async def _rehearse(self, command: events.DetachDevice | events.AttachDevice) -> None:
        self.rehearsals.append(command)
        outcome = self.state.do(command)
        assert outcome is not None
        assert outcome.move is not None
        move = msgspec.structs.replace(outcome.move, in_the_way=self.in_the_way)
        await self.answer(msgspec.structs.replace(outcome, move=move))

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def answer(self, outcome: events.OutcomeArrived) -> None:
        """Answer a command; what is said of a move travels as JSON."""
        message = session_pb2.Outcome(
            command_id=outcome.command_id,
            ok=outcome.ok,
            error=outcome.error,
            endpoint=outcome.endpoint,
            environment=outcome.environment,
            move=to_json(outcome.move) if outcome.move is not None else b"",
        )
        await self.send(outcome=message)

    async def read_chassis(self, nodes: Iterable[str]) -> None:
        """Wait until this agent serves a chassis, read it, and tell."""
        # What an earlier session was told is over: its term is an older one.
        while not any(isinstance(command, events.ServeChassis) for command in self.commands[self._heard_before :]):
            await self._changed.wait()
        (serving,) = self.state.serves.values()
        assert self.state.fabric is not None
        view = self.state.fabric.view(nodes)
        await self.send(chassis_changed=session_pb2.ChassisChanged(term=serving.term, view=to_json(view)))

    async def send(self, **message: object) -> None:
        assert self._stream is not None
        await self._stream.send(session_pb2.NodeMessage(**message))  # type: ignore[arg-type]

    async def until(self, kind: type[events.Command], job_id: str) -> None:
        """Wait for a command of a job."""
        while not any(
            isinstance(command, kind) and getattr(command, "job_id", job_id) == job_id for command in self.commands
        ):
            await self._changed.wait()

    async def finish(self, job_id: str, task: str = "main.0", code: int = 0) -> None:
        """End a task's program."""
        status = TaskStatus(task=task, state=TaskState.EXITED, node=self.state.name, exit_code=code)
        self.state.tasks[job_id, task] = status
        changed = session_pb2.TaskChanged(job_id=job_id, status=to_message(status, types_pb2.TaskStatus))
        await self.send(task_changed=changed)

    async def beat(self) -> None:
        """Send one heartbeat for what is held."""
        client = [lease for leases in self.state.client_side.values() for lease in leases]
        await self.send(heartbeat=session_pb2.Heartbeat(lease_ids=[*self.state.device_side, *client]))

    async def _send_log(self, request: session_pb2.LogRequest) -> None:
        self.log_requests.append(request)
        for task in (*request.tasks, *([request.task] if request.task else [])):
            for data in self.logs.get((request.job_id, task), []):
                # Of one task an older agent does not say whose it is.
                chunk = LogChunk(data=data, task=task if request.tasks else "")
                message = to_message(chunk, cluster_pb2.LogChunk)
                await self.send(log_data=session_pb2.LogData(request_id=request.request_id, chunk=message))
        await self.send(log_data=session_pb2.LogData(request_id=request.request_id, end=True))
