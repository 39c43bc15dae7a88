"""A scheduler that does what a test tells it, speaking the real protocol over mutual TLS."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pwd
import sys
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from weakref import WeakSet

import msgspec

from farbus.agent.config import AgentConfig
from farbus.agent.daemon import serve
from farbus.agent.doors import Doors, real_doors
from farbus.agent.inventory import GpuSource
from farbus.agent.remoting_host import SupervisorProgram
from farbus.api.authority import Authority, write_credentials
from farbus.api.conversion import from_message
from farbus.api.identity import Identity, Role
from farbus.api.server import AddService, ClusterHandler, RunningServer, SendToNode, SessionHandler, serve_scheduler
from farbus.api.v1 import session_pb2
from farbus.errors import NotFound, Unavailable
from farbus.linux.nvml import FakeNvml, Gpu, GpuList
from farbus.model.cluster import ClusterInfo, HoldEvent, LogChunk
from farbus.model.device import Device, DeviceStatus, Route
from farbus.model.explanation import Explanation
from farbus.model.job import NO_GOAL, Goal, Job, JobStatus, Requests
from farbus.model.lease import Lease, LeasedDevice, LeaseStatus
from farbus.model.node import NodeStatus
from farbus.model.operation import CordonResult, DrainStatus, ForgottenNode
from farbus.model.series import TelemetryUpdate
from farbus.model.states import JobState, NodeState
from farbus.model.telemetry import ClusterTelemetry, NodeTelemetry
from tests.harness.whereabouts import whereabouts
from tests.old_peers import as_first_version

PATIENCE_S = 30.0
AGENTS: WeakSet[asyncio.Task[None]] = WeakSet()
"""Agents in this process that nobody has stopped."""
MYSELF = pwd.getpwuid(os.geteuid()).pw_name
ROOT = Path(__file__).resolve().parents[2]


class ScriptedSessions(SessionHandler):
    """Welcomes agents, answers heartbeats, and keeps what they say."""

    def __init__(self) -> None:
        self.term = 1
        self.lease_ttl_s = 30.0
        self.heartbeat_s = 0.2
        self.renew = True
        self.void: set[str] = set()
        self.lose_telemetry = False
        """Say of the next update that one before it is missing."""
        self.refuse = ""
        self.silent = False
        self.first_version = False
        self.hellos: list[session_pb2.NodeHello] = []
        self.said: list[session_pb2.NodeMessage] = []
        self.news = asyncio.Event()
        self._send: SendToNode | None = None
        self._commands = itertools.count(1)
        self._cut = asyncio.Event()

    async def session(
        self, caller: Identity, incoming: AsyncIterator[session_pb2.NodeMessage], send: SendToNode
    ) -> None:
        if self.first_version:
            send, incoming = _old_scheduler(send, incoming)
        hello = await anext(incoming)
        self.hellos.append(hello.hello)
        # An agent's next session may begin before its last one has been seen to end.
        self._send = None
        if self.silent:
            await anext(incoming, None)
            return
        if self.refuse:
            await send(session_pb2.SchedulerMessage(refused=session_pb2.Refused(reason=self.refuse)))
            return
        welcome = session_pb2.Welcome(
            term=self.term, lease_ttl_s=self.lease_ttl_s, heartbeat_s=self.heartbeat_s, scheduler_version="test"
        )
        await send(session_pb2.SchedulerMessage(welcome=welcome))
        self._send = send
        self._cut = asyncio.Event()
        self._wake()
        reader = asyncio.create_task(self._read(incoming, send))
        cut = asyncio.create_task(self._cut.wait())
        await asyncio.wait((reader, cut), return_when=asyncio.FIRST_COMPLETED)
        for task in (reader, cut):
            task.cancel()
        await asyncio.gather(reader, cut, return_exceptions=True)
        if self._send is send:
            self._send = None
        self._wake()

    async def _read(self, incoming: AsyncIterator[session_pb2.NodeMessage], send: SendToNode) -> None:
        async for message in incoming:
            self.said.append(message)
            if message.HasField("heartbeat"):
                ids = list(message.heartbeat.lease_ids) if self.renew else []
                reply = session_pb2.HeartbeatReply(
                    renewed=[one for one in ids if one not in self.void],
                    void=[one for one in ids if one in self.void],
                    telemetry_lost=self.lose_telemetry,
                )
                self.lose_telemetry = False
                await send(session_pb2.SchedulerMessage(heartbeat_reply=reply))
            self._wake()

    def _wake(self) -> None:
        self.news.set()
        self.news = asyncio.Event()

    def cut(self) -> None:
        """End the session from this side."""
        self._cut.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that was said makes ``condition`` true, or raise what an agent here ended with."""
        agents = {task for task in AGENTS if task.get_loop() is asyncio.get_running_loop()}
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    for agent in [one for one in agents if one.done()]:
                        agents.remove(agent)
                        if not agent.cancelled():
                            agent.result()
                    news = asyncio.create_task(self.news.wait())
                    try:
                        await asyncio.wait((news, *agents), return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        news.cancel()
        except TimeoutError as error:
            error.add_note(whereabouts())
            raise

    async def connected(self, *, hellos: int = 1) -> None:
        """Wait for a session."""
        await self.until(lambda: len(self.hellos) >= hellos and self._send is not None)

    async def tell(self, message: session_pb2.SchedulerMessage) -> None:
        """Send a message down."""
        assert self._send is not None
        await self._send(message)

    async def command(self, **kind: object) -> session_pb2.Outcome:
        """Send one command and return its outcome."""
        ((name, body),) = kind.items()
        number = f"c{next(self._commands)}"
        body.command_id = number  # type: ignore[attr-defined]
        await self.tell(session_pb2.SchedulerMessage(**{name: body}))
        await self.until(lambda: bool(self._outcomes(number)))
        return self._outcomes(number)[0]

    def _outcomes(self, number: str) -> list[session_pb2.Outcome]:
        return [said.outcome for said in self.said if said.HasField("outcome") and said.outcome.command_id == number]

    def task_changes(self, job: str) -> list[session_pb2.TaskChanged]:
        """Return what was said of a job's tasks."""
        return [
            one.task_changed for one in self.said if one.HasField("task_changed") and one.task_changed.job_id == job
        ]

    async def exited(self, job: str) -> session_pb2.TaskChanged:
        """Wait for a job's task to end."""
        await self.until(lambda: any(change.status.state == "exited" for change in self.task_changes(job)))
        return next(change for change in self.task_changes(job) if change.status.state == "exited")

    async def running(self, job: str) -> None:
        """Wait for a job's task to run."""
        await self.until(lambda: any(change.status.state == "running" for change in self.task_changes(job)))

    async def log(self, job: str, *, follow: bool = False) -> tuple[bytes, bytes, str]:
        """Read a task's log to its end: (standard output, standard error, error)."""
        number = f"r{next(self._commands)}"
        request = session_pb2.LogRequest(request_id=number, job_id=job, task="main.0", follow=follow)
        await self.tell(session_pb2.SchedulerMessage(log_request=request))

        def parts() -> list[session_pb2.LogData]:
            return [one.log_data for one in self.said if one.HasField("log_data") and one.log_data.request_id == number]

        await self.until(lambda: any(part.end for part in parts()))
        out = b"".join(part.chunk.data for part in parts() if part.chunk.stream == 1)
        err = b"".join(part.chunk.data for part in parts() if part.chunk.stream == 2)
        return out, err, next(part.error for part in parts() if part.end)

    async def log_has(self, job: str, part: bytes) -> bytes:
        """Follow a task's log until its output has ``part``; return the output so far."""
        number = f"r{next(self._commands)}"
        request = session_pb2.LogRequest(request_id=number, job_id=job, task="main.0", follow=True)
        await self.tell(session_pb2.SchedulerMessage(log_request=request))

        def output() -> bytes:
            data = [one.log_data for one in self.said if one.HasField("log_data") and one.log_data.request_id == number]
            return b"".join(piece.chunk.data for piece in data)

        await self.until(lambda: part in output())
        await self.tell(session_pb2.SchedulerMessage(log_cancel=session_pb2.LogCancel(request_id=number)))
        return output()

    def updates(self) -> list[TelemetryUpdate]:
        """Return the telemetry of all heartbeats."""
        return [
            from_message(one.heartbeat.telemetry.update, TelemetryUpdate)
            for one in self.said
            if one.HasField("heartbeat")
        ]

    def ended_leases(self) -> list[session_pb2.LeaseEnded]:
        """Return the leases that agents have ended by themselves."""
        return [one.lease_ended for one in self.said if one.HasField("lease_ended")]


def _old_scheduler(
    send: SendToNode, incoming: AsyncIterator[session_pb2.NodeMessage]
) -> tuple[SendToNode, AsyncIterator[session_pb2.NodeMessage]]:
    """Return both directions of a session as a scheduler of the protocol's first version has them."""

    async def send_old(message: session_pb2.SchedulerMessage) -> None:
        await send(as_first_version(message))

    async def receive_old() -> AsyncIterator[session_pb2.NodeMessage]:
        async for message in incoming:
            stripped = as_first_version(message)
            # What it does not know it passes over.
            if stripped.WhichOneof("message"):
                yield stripped

    return send_old, receive_old()


class ScriptedCluster(ClusterHandler):
    """Knows one interactive job, whose states a test sets."""

    def __init__(self) -> None:
        self.callers: list[Identity] = []
        self.job: Job | None = None
        self.cancelled = asyncio.Event()
        self.exit_code: int | None = None
        self.states: asyncio.Queue[JobState] = asyncio.Queue()

    async def submit(self, caller: Identity, job: Job, *, check_only: bool) -> tuple[str, JobStatus | None]:
        self.callers.append(caller)
        self.job = job
        self.states.put_nowait(JobState.QUEUED)
        return "j9", None

    async def list_jobs(self, caller: Identity, *, include_ended: bool) -> tuple[JobStatus, ...]:
        return ()

    async def get_job(self, caller: Identity, job_id: str) -> JobStatus:
        if self.job is None or job_id != "j9":
            raise NotFound(f"there is no job {job_id}")
        return JobStatus(job=self.job, state=JobState.RUNNING)

    async def watch_job(self, caller: Identity, job_id: str) -> AsyncIterator[JobStatus]:
        assert self.job is not None
        while True:
            yield JobStatus(job=self.job, state=await self.states.get())

    async def cancel_job(
        self, caller: Identity, job_id: str, *, released: bool, exit_code: int | None = None
    ) -> JobStatus:
        assert self.job is not None
        self.exit_code = self.exit_code if exit_code is None else exit_code
        self.cancelled.set()
        return JobStatus(job=self.job, state=JobState.CANCELLED)

    async def read_logs(
        self, caller: Identity, job_id: str, *, task: str, follow: bool, position: int = 0
    ) -> AsyncIterator[LogChunk]:
        yield LogChunk(data=f"{caller.name} at {caller.node}".encode())

    async def list_nodes(self, caller: Identity) -> tuple[NodeStatus, ...]:
        return ()

    async def list_devices(self, caller: Identity) -> tuple[DeviceStatus, ...]:
        return ()

    async def list_leases(self, caller: Identity, *, include_released: bool) -> tuple[LeaseStatus, ...]:
        return ()

    async def get_telemetry(self, caller: Identity, *, nodes: Collection[str]) -> ClusterTelemetry:
        return ClusterTelemetry(nodes=tuple(NodeTelemetry(node=name, state=NodeState.LOST) for name in sorted(nodes)))

    async def explain(self, caller: Identity, job_id: str) -> Explanation:
        raise Unavailable("not in this test")

    async def cordon(self, caller: Identity, name: str, *, reason: str) -> CordonResult:
        raise Unavailable("not in this test")

    async def uncordon(self, caller: Identity, name: str) -> CordonResult:
        raise Unavailable("not in this test")

    def drain(self, caller: Identity, node: str, *, evict: bool, reason: str) -> AsyncIterator[DrainStatus]:
        raise Unavailable("not in this test")

    async def forget(self, caller: Identity, node: str) -> ForgottenNode:
        raise Unavailable("not in this test")

    async def cluster_info(self, caller: Identity) -> ClusterInfo:
        return ClusterInfo(scheduler_version="test", term=1, nodes=1)

    def hold(
        self,
        caller: Identity,
        *,
        name: str,
        requests: Requests,
        routes: tuple[Route, ...],
        wait_limit_s: float,
        job_id: str = "",
        goal: Goal = NO_GOAL,
        application: str = "",
    ) -> AsyncIterator[HoldEvent]:
        raise Unavailable("only an agent's socket serves it")


class ScriptedScheduler:
    """Both services, with the credentials for them."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self.sessions = ScriptedSessions()
        self.cluster = ScriptedCluster()
        self._credentials = write_credentials(
            directory / "scheduler", "scheduler", authority.issue("scheduler", Role.SCHEDULER)
        )
        self._server: RunningServer | None = None
        self.address = ""
        self.services: tuple[AddService, ...] = ()
        """Further services, from the next start on."""

    async def start(self) -> None:
        """Listen: at first on any port, later on the same one."""
        self._server = await serve_scheduler(
            cluster=self.cluster,
            sessions=self.sessions,
            listen=self.address or "127.0.0.1:0",
            credentials=self._credentials,
            services=self.services,
        )
        self.address = f"127.0.0.1:{self._server.port}"

    async def stop(self) -> None:
        """Go away."""
        if self._server is not None:
            await self._server.stop()
            self._server = None


class SmallSupervisor(SupervisorProgram):
    """A supervisor that listens, lets nobody in, and shows what it was given."""

    PROGRAM = """
import os, socket, sys
secret = os.read(int(sys.argv[1]), 100).decode().strip()
listener = socket.create_server((sys.argv[2], 0))
print("sees", sys.argv[3], len(secret), flush=True)
print("listening", f"{sys.argv[2]}:{listener.getsockname()[1]}", flush=True)
listener.accept()
"""

    def command(
        self, *, address: str, secret_descriptor: int, devices: tuple[Device, ...], **_: object
    ) -> tuple[str, ...]:
        return (sys.executable, "-c", self.PROGRAM, str(secret_descriptor), address, *(device.id for device in devices))

    def client_environment(self, session: Path, shim: Path) -> dict[str, str]:
        return {"FARBUS_SESSION": str(session)}


GPU = "GPU-8f2d6c1e-0000-4000-8000-000000000001"


def doors_with_gpu(config: AgentConfig) -> Doors:
    """Return this machine's doors, but for one GPU that NVML is made to report, and small supervisors."""
    gpus = GpuList(gpus=(Gpu(uuid=GPU, name="Test GPU", memory_bytes=2**30),))
    return msgspec.structs.replace(
        real_doors(config), gpu_sources=(GpuSource(FakeNvml(gpus), False),), remoting=SmallSupervisor()
    )


def lease(number: str = "l1", *, route: Route = Route.REMOTE, job: str = "j1", client_node: str = "n1") -> Lease:
    """Return a lease of the GPU for a task of this test's user."""
    return Lease(
        id=number,
        job=job,
        task="main.0",
        user=MYSELF,
        client_node=client_node,
        device_node="n1",
        route=route,
        devices=(LeasedDevice(device=GPU, epoch=1),),
        term=1,
        secret="5e" * 32,
    )


class AgentInProcess:
    """An agent in the test's own event loop."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, config: AgentConfig, doors: Doors | None = None) -> None:
        """Start it."""
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(serve(config, doors=doors, stop=self._stop), name="agent")
        AGENTS.add(self._task)

    async def stop(self) -> None:
        """Stop it as SIGTERM does, and raise what it raised."""
        self._stop.set()
        if self._task is not None:
            task, self._task = self._task, None
            AGENTS.discard(task)
            async with asyncio.timeout(PATIENCE_S):
                await task


class AgentProcess:
    """An agent in a process of its own, which can be killed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, config: AgentConfig, directory: Path) -> AgentProcess:
        """Start one as the command would."""
        from farbus.model.value import to_json

        file = directory / "agent.json"
        file.write_bytes(to_json(config))
        program = (
            "import sys; from farbus.agent.config import AgentConfig; from farbus.agent.daemon import main;"
            "from farbus.model.value import from_json;"
            "sys.exit(main(from_json(open(sys.argv[1]).read(), AgentConfig)))"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(file), cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return cls(process)

    async def kill(self) -> None:
        """Kill it without a word."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        """Stop it as systemd would."""
        self.process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            await self.process.wait()

    async def output(self) -> str:
        """Wait for its end and return what it wrote to standard error."""
        async with asyncio.timeout(PATIENCE_S):
            _, data = await self.process.communicate()
        return data.decode()
