"""The servers: the scheduler's over mutual TLS, an agent's on its Unix socket.

Handlers speak values; this module turns messages into values, errors into
status codes, and certificates or peer credentials into identities.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import os
import socket as sockets
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from farbus.api.audit import AuditLog, AuditRecord
from farbus.api.authority import Credentials
from farbus.api.conversion import from_message, to_message
from farbus.api.gate import Gate, caller_of_call, errors_become_status, peer_of_call
from farbus.api.identity import Identity, resolve_caller
from farbus.api.trust import Peer, Trust
from farbus.api.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    enrollment_pb2,
    enrollment_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    types_pb2,
)
from farbus.errors import Conflict, FarbusError, InvalidInput, Unavailable
from farbus.model.cluster import ClusterInfo, HoldEvent, HoldLost, HoldReady, HoldWaiting, LogChunk
from farbus.model.device import DeviceStatus, Route
from farbus.model.job import Job, JobStatus, Requests
from farbus.model.lease import LeaseStatus
from farbus.model.node import NodeStatus
from farbus.model.operation import CordonResult, DrainStatus, ForgottenNode
from farbus.model.telemetry import ClusterTelemetry

_log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 * 2**20
"""Largest message either side accepts: a listing of some 100,000 jobs."""

MAX_LOCAL_CONNECTIONS = 512
"""Connections to an agent's socket at one time, over all users."""

MAX_LOCAL_CALLERS = 256
"""Different users that one agent serves in its life, those that it refuses among them: each has a server."""

SERVER_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A second process on the same port must fail, not share it.
    ("grpc.so_reuseport", 0),
    # Callers are authenticated; one that pings often is no reason to cut its stream, which may be a lease.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]

Context = grpc.aio.ServicerContext[Any, Any]
SendToNode = Callable[[session_pb2.SchedulerMessage], Awaitable[None]]


Caller = Callable[[Context, str], Identity]
AddService = Callable[[Caller, grpc.aio.Server], None]
"""Adds a further service to a server: like :func:`farbus.api.staging.add_staging`, with its handler bound."""


class ClusterHandler(abc.ABC):
    """What people ask of the cluster; ``caller`` has been authenticated and may call the method at all.

    Handlers raise :class:`FarbusError`; anything else is a defect, logged with
    its traceback, of which the caller learns only that it happened.
    """

    @abc.abstractmethod
    async def submit(self, caller: Identity, job: Job, *, check_only: bool) -> tuple[str, JobStatus | None]:
        """Queue ``job`` and return its id; with ``check_only`` only say what would become of it."""

    @abc.abstractmethod
    async def list_jobs(self, caller: Identity, *, include_ended: bool) -> tuple[JobStatus, ...]:
        """Return the jobs that the caller may see."""

    @abc.abstractmethod
    async def get_job(self, caller: Identity, job_id: str) -> JobStatus:
        """Return one job."""

    @abc.abstractmethod
    def watch_job(self, caller: Identity, job_id: str) -> AsyncIterator[JobStatus]:
        """Yield the job now and at every change, until it has ended."""

    @abc.abstractmethod
    async def cancel_job(
        self, caller: Identity, job_id: str, *, released: bool, exit_code: int | None = None
    ) -> JobStatus:
        """Start ending the job; ``released`` when it is interactive and its program has ended, with ``exit_code``."""

    @abc.abstractmethod
    def read_logs(
        self, caller: Identity, job_id: str, *, task: str, follow: bool, position: int = 0
    ) -> AsyncIterator[LogChunk]:
        """Yield a task's output from behind ``position``, and with ``follow`` what comes until it has ended."""

    @abc.abstractmethod
    async def list_nodes(self, caller: Identity) -> tuple[NodeStatus, ...]:
        """Return all nodes."""

    @abc.abstractmethod
    async def list_devices(self, caller: Identity) -> tuple[DeviceStatus, ...]:
        """Return all devices."""

    @abc.abstractmethod
    async def list_leases(self, caller: Identity, *, include_released: bool) -> tuple[LeaseStatus, ...]:
        """Return the leases that the caller may see, without their secrets."""

    @abc.abstractmethod
    async def get_telemetry(self, caller: Identity, *, nodes: Collection[str]) -> ClusterTelemetry:
        """Return how busy ``nodes`` are, all if empty; of sessions and leases those that the caller may see."""

    @abc.abstractmethod
    async def explain(self, caller: Identity, job_id: str) -> tuple[JobStatus, tuple[str, ...]]:
        """Return the job and, in words, why it is where it is."""

    @abc.abstractmethod
    async def cluster_info(self, caller: Identity) -> ClusterInfo:
        """Return one line about the cluster."""

    @abc.abstractmethod
    def hold(
        self,
        caller: Identity,
        *,
        name: str,
        requests: Requests,
        routes: tuple[Route, ...],
        wait_limit_s: float,
        job_id: str = "",
    ) -> AsyncIterator[HoldEvent]:
        """Hold devices for as long as the caller reads, those of ``job_id`` again; only an agent's socket does it."""

    @abc.abstractmethod
    async def cordon(self, caller: Identity, name: str, *, reason: str) -> CordonResult:
        """Give the node or device ``name`` nothing new."""

    @abc.abstractmethod
    async def uncordon(self, caller: Identity, name: str) -> CordonResult:
        """Take the cordon of a node or device back."""

    @abc.abstractmethod
    def drain(self, caller: Identity, node: str, *, evict: bool, reason: str) -> AsyncIterator[DrainStatus]:
        """Cordon ``node`` and yield the jobs that use it, at every change, until none does; ``evict`` ends them."""

    @abc.abstractmethod
    async def forget(self, caller: Identity, node: str) -> ForgottenNode:
        """Release what a node without a session holds: the operator's word that it is off."""

    async def read_audit(self, caller: Identity, *, since: str) -> AsyncIterator[AuditRecord]:
        """Yield what is in the audit log from ``since`` (RFC 3339, UTC) on."""
        raise Unavailable("no audit log is kept here")
        yield  # makes this a generator


class EnrollmentHandler(abc.ABC):
    """Gives certificates to those who have one."""

    @abc.abstractmethod
    async def renew(self, peer: Peer, request_pem: bytes) -> tuple[bytes, bytes]:
        """Return a certificate for the request's key, of the peer's own name and role, and the authorities."""


class SessionHandler(abc.ABC):
    """The scheduler's end of the agents' sessions."""

    @abc.abstractmethod
    async def session(
        self, caller: Identity, incoming: AsyncIterator[session_pb2.NodeMessage], send: SendToNode
    ) -> None:
        """Serve one agent until ``incoming`` ends; returning ends the stream.

        ``send`` may be called from several tasks; it waits while the agent
        does not read.
        """


class RunningServer:
    """A server that accepts calls; ``port`` is 0 for a Unix socket."""

    def __init__(self, port: int, stop: Callable[[float], Awaitable[None]], *, gate: Gate | None = None) -> None:
        self.port = port
        self._stop = stop
        self._gate = gate

    async def end_untrusted(self) -> None:
        """End the calls of certificates that are revoked or have expired, now rather than within a second."""
        if self._gate is not None:
            await self._gate.end_untrusted()

    async def stop(self, grace_s: float = 0.0) -> None:
        """Accept no more calls, give those under way ``grace_s`` seconds, then cancel them."""
        await self._stop(grace_s)


async def serve_scheduler(
    *,
    cluster: ClusterHandler,
    sessions: SessionHandler,
    listen: str,
    credentials: Credentials | Trust,
    enrollment: EnrollmentHandler | None = None,
    audit: AuditLog | None = None,
    operator_only: frozenset[str] = frozenset(),
    services: Sequence[AddService] = (),
) -> RunningServer:
    """Serve all services over mutual TLS on ``listen`` (``ADDRESS:PORT``, port 0 for any free one).

    Files of ``credentials`` that are replaced hold from the next connection
    on; calls of a certificate that is revoked end (:mod:`farbus.api.gate`).

    Raises :class:`InvalidInput` for bad credentials, :class:`Conflict` for an
    address that can't be bound.
    """
    trust = credentials if isinstance(credentials, Trust) else Trust(credentials)
    gate = Gate(trust, audit=audit, operator_only=operator_only)
    server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=[gate])
    cluster_pb2_grpc.add_ClusterServicer_to_server(_ClusterServicer(cluster, caller_of_call), server)
    session_pb2_grpc.add_NodeSessionServicer_to_server(_SessionServicer(sessions), server)
    enrollment_pb2_grpc.add_EnrollmentServicer_to_server(_EnrollmentServicer(enrollment), server)
    for add in services:
        add(caller_of_call, server)

    tls = tls_credentials(trust)
    try:
        port = server.add_secure_port(listen, tls)
    except RuntimeError as error:
        raise Conflict(
            f"can't listen on {listen}: the address is in use or not of this node",
            hint="stop what uses it or choose another with --listen",
        ) from error
    await server.start()
    return gated_server(server, port, gate)


def tls_credentials(trust: Trust) -> grpc.ServerCredentials:
    """Return what a server proves itself with and what it asks of callers; files that change hold from then on."""

    def configuration() -> grpc.ServerCertificateConfiguration:
        pem = trust.files
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], root_certificates=pem.authority)

    # Replacing the configuration while another thread shakes hands crashes gRPC: only when there is another one.
    served = trust.files

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        # In a thread of gRPC's, for each connection: files that are no good leave those before them in force.
        nonlocal served
        trust.refresh()
        if trust.files == served:
            return None
        served = trust.files
        return configuration()

    # None keeps what there is, which the type hints leave out.
    return grpc.dynamic_ssl_server_credentials(configuration(), fetch, require_client_authentication=True)  # type: ignore[arg-type]


def gated_server(server: grpc.aio.Server, port: int, gate: Gate) -> RunningServer:
    """Return a server that has been started, whose calls ``gate`` watches until it is stopped."""
    watch = asyncio.create_task(gate.watch(), name="revocations")

    async def stop(grace_s: float) -> None:
        watch.cancel()
        await server.stop(grace_s)

    return RunningServer(port, stop, gate=gate)


async def serve_local(
    *,
    cluster: ClusterHandler,
    socket: str,
    identify: Callable[[int, int, int], Identity],
    services: Sequence[AddService] = (),
) -> RunningServer:
    """Serve the Cluster service on the Unix socket ``socket`` to every local user.

    gRPC does not tell a handler who is at the other end of a Unix socket, so
    the socket is accepted here, the kernel is asked for the peer's (uid, gid,
    pid), ``identify`` names the caller, and the bytes are passed on to a
    private socket whose server knows that one identity.

    Raises :class:`Conflict` where another process serves the socket.
    """
    front = _LocalFront(cluster, socket, identify, services)
    await front.start()
    return RunningServer(0, front.stop)


class _ClusterServicer(cluster_pb2_grpc.ClusterServicer):
    """Messages to values and back, for one way of knowing the caller."""

    def __init__(self, handler: ClusterHandler, caller: Caller) -> None:
        self._handler = handler
        self._caller = caller

    async def _call(self, method: str, context: Context, answer: Callable[[Identity], Awaitable[Any]]) -> Any:
        path = f"/farbus.v1.Cluster/{method}"
        async with errors_become_status(context, path):
            return await answer(self._caller(context, path))

    async def _stream(
        self, method: str, context: Context, answers: Callable[[Identity], AsyncIterator[Any]]
    ) -> AsyncIterator[Any]:
        path = f"/farbus.v1.Cluster/{method}"
        async with errors_become_status(context, path):
            stream = answers(self._caller(context, path))
            try:
                async for item in stream:
                    yield item
            finally:
                # An abandoned generator would run its cleanup whenever the collector finds it.
                if (close := getattr(stream, "aclose", None)) is not None:
                    await close()

    async def Submit(self, request: cluster_pb2.SubmitRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.SubmitReply:
            job = from_message(request.job, Job)
            job_id, would_be = await self._handler.submit(caller, job, check_only=request.check_only)
            reply = cluster_pb2.SubmitReply(job_id=job_id)
            if would_be is not None:
                reply.would_be.CopyFrom(to_message(would_be, types_pb2.JobStatus))
            return reply

        return await self._call("Submit", context, answer)

    async def ListJobs(self, request: cluster_pb2.ListJobsRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ListJobsReply:
            jobs = await self._handler.list_jobs(caller, include_ended=request.all)
            return cluster_pb2.ListJobsReply(jobs=[to_message(job, types_pb2.JobStatus) for job in jobs])

        return await self._call("ListJobs", context, answer)

    async def GetJob(self, request: cluster_pb2.JobRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> types_pb2.JobStatus:
            return to_message(await self._handler.get_job(caller, request.job_id), types_pb2.JobStatus)

        return await self._call("GetJob", context, answer)

    async def WatchJob(self, request: cluster_pb2.JobRequest, context: Any) -> AsyncIterator[Any]:
        async for status in self._stream(
            "WatchJob", context, lambda caller: self._handler.watch_job(caller, request.job_id)
        ):
            yield to_message(status, types_pb2.JobStatus)

    async def CancelJob(self, request: cluster_pb2.CancelJobRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> types_pb2.JobStatus:
            code = request.exit_code if request.HasField("exit_code") else None
            ended = await self._handler.cancel_job(caller, request.job_id, released=request.released, exit_code=code)
            return to_message(ended, types_pb2.JobStatus)

        return await self._call("CancelJob", context, answer)

    async def ReadLogs(self, request: cluster_pb2.ReadLogsRequest, context: Any) -> AsyncIterator[Any]:
        async for chunk in self._stream(
            "ReadLogs",
            context,
            lambda caller: self._handler.read_logs(
                caller, request.job_id, task=request.task, follow=request.follow, position=request.position
            ),
        ):
            yield to_message(chunk, cluster_pb2.LogChunk)

    async def ListNodes(self, request: cluster_pb2.ListNodesRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ListNodesReply:
            nodes = await self._handler.list_nodes(caller)
            return cluster_pb2.ListNodesReply(nodes=[to_message(node, types_pb2.NodeStatus) for node in nodes])

        return await self._call("ListNodes", context, answer)

    async def ListDevices(self, request: cluster_pb2.ListDevicesRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ListDevicesReply:
            devices = await self._handler.list_devices(caller)
            return cluster_pb2.ListDevicesReply(
                devices=[to_message(device, types_pb2.DeviceStatus) for device in devices]
            )

        return await self._call("ListDevices", context, answer)

    async def ListLeases(self, request: cluster_pb2.ListLeasesRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ListLeasesReply:
            leases = await self._handler.list_leases(caller, include_released=request.all)
            return cluster_pb2.ListLeasesReply(leases=[to_message(lease, types_pb2.LeaseStatus) for lease in leases])

        return await self._call("ListLeases", context, answer)

    async def GetTelemetry(self, request: cluster_pb2.GetTelemetryRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ClusterTelemetry:
            telemetry = await self._handler.get_telemetry(caller, nodes=frozenset(request.nodes))
            return to_message(telemetry, cluster_pb2.ClusterTelemetry)

        return await self._call("GetTelemetry", context, answer)

    async def Explain(self, request: cluster_pb2.JobRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.Explanation:
            status, lines = await self._handler.explain(caller, request.job_id)
            return cluster_pb2.Explanation(status=to_message(status, types_pb2.JobStatus), lines=lines)

        return await self._call("Explain", context, answer)

    async def GetCluster(self, request: cluster_pb2.GetClusterRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ClusterInfo:
            return to_message(await self._handler.cluster_info(caller), cluster_pb2.ClusterInfo)

        return await self._call("GetCluster", context, answer)

    async def Hold(self, request: cluster_pb2.HoldRequest, context: Any) -> AsyncIterator[Any]:
        def answers(caller: Identity) -> AsyncIterator[HoldEvent]:
            return self._handler.hold(
                caller,
                name=request.name,
                requests=from_message(request.requests, Requests),
                routes=tuple(_route(route) for route in request.routes),
                wait_limit_s=request.wait_limit_s,
                job_id=request.job_id,
            )

        async for event in self._stream("Hold", context, answers):
            yield hold_event_to_message(event)

    async def Cordon(self, request: cluster_pb2.CordonRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.CordonReply:
            result = await self._handler.cordon(caller, request.name, reason=request.reason)
            return to_message(result, cluster_pb2.CordonReply)

        return await self._call("Cordon", context, answer)

    async def Uncordon(self, request: cluster_pb2.CordonRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.CordonReply:
            return to_message(await self._handler.uncordon(caller, request.name), cluster_pb2.CordonReply)

        return await self._call("Uncordon", context, answer)

    async def Drain(self, request: cluster_pb2.DrainRequest, context: Any) -> AsyncIterator[Any]:
        def answers(caller: Identity) -> AsyncIterator[DrainStatus]:
            return self._handler.drain(caller, request.node, evict=request.evict, reason=request.reason)

        async for status in self._stream("Drain", context, answers):
            yield to_message(status, cluster_pb2.DrainStatus)

    async def Forget(self, request: cluster_pb2.ForgetRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ForgetReply:
            return to_message(await self._handler.forget(caller, request.node), cluster_pb2.ForgetReply)

        return await self._call("Forget", context, answer)

    async def ReadAudit(self, request: cluster_pb2.ReadAuditRequest, context: Any) -> AsyncIterator[Any]:
        async for record in self._stream(
            "ReadAudit", context, lambda caller: self._handler.read_audit(caller, since=request.since)
        ):
            yield to_message(record, cluster_pb2.AuditRecord)


def _route(name: str) -> Route:
    try:
        return Route(name)
    except ValueError as error:
        raise InvalidInput(f"routes: {name!r} is not one of {', '.join(Route)}") from error


def hold_event_to_message(event: HoldEvent) -> cluster_pb2.HoldEvent:
    """Return the message that carries ``event``."""
    message = cluster_pb2.HoldEvent()
    match event:
        case HoldWaiting():
            message.waiting.CopyFrom(to_message(event.status, types_pb2.JobStatus))
        case HoldReady():
            message.ready.status.CopyFrom(to_message(event.status, types_pb2.JobStatus))
            message.ready.environment.update(event.environment)
        case HoldLost():
            message.lost = event.reason
    return message


class _EnrollmentServicer(enrollment_pb2_grpc.EnrollmentServicer):
    def __init__(self, handler: EnrollmentHandler | None) -> None:
        self._handler = handler

    async def Renew(self, request: enrollment_pb2.RenewRequest, context: Any) -> Any:
        async with errors_become_status(context, "/farbus.v1.Enrollment/Renew"):
            if self._handler is None:
                raise Unavailable(
                    "this scheduler renews no certificates", hint="set its ca_directory, or use farbus ca renew"
                )
            certificate, authorities = await self._handler.renew(peer_of_call(), request.request)
            return enrollment_pb2.RenewReply(certificate=certificate, authorities=authorities)


class _SessionServicer(session_pb2_grpc.NodeSessionServicer):
    def __init__(self, handler: SessionHandler) -> None:
        self._handler = handler

    async def Session(self, request_iterator: Any, context: Any) -> None:
        path = "/farbus.v1.NodeSession/Session"
        lock = asyncio.Lock()

        async def send(message: session_pb2.SchedulerMessage) -> None:
            async with lock:
                await context.write(message)

        async with errors_become_status(context, path):
            await self._handler.session(caller_of_call(context, path), aiter(request_iterator), send)


class _LocalFront:
    """Accepts on the public socket and passes bytes on to one private server for each caller."""

    def __init__(
        self,
        handler: ClusterHandler,
        path: str,
        identify: Callable[[int, int, int], Identity],
        services: Sequence[AddService],
    ) -> None:
        self._services = services
        self._handler = handler
        self._path = Path(path)
        self._identify = identify
        self._servers: dict[Identity | str, tuple[grpc.aio.Server, str]] = {}
        self._starting = asyncio.Lock()
        self._connections: set[asyncio.Task[None]] = set()
        self._private: tempfile.TemporaryDirectory[str] | None = None
        self._front: asyncio.Server | None = None

    async def start(self) -> None:
        if len(os.fsencode(self._path)) > 100:
            raise InvalidInput(f"{self._path}: too long for a Unix socket", hint="choose a path under 100 bytes")
        await self._clear_stale_socket()
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._private = tempfile.TemporaryDirectory(prefix=".farbus-", dir=self._path.parent)
            self._front = await asyncio.start_unix_server(self._accept, str(self._path))
        except OSError as error:
            raise InvalidInput(f"{self._path}: can't make the socket: {error.strerror}") from error
        self._path.chmod(0o666)

    async def _clear_stale_socket(self) -> None:
        if not self._path.exists():
            return
        try:
            _, writer = await asyncio.open_unix_connection(str(self._path))
        except OSError:
            # Nobody listens: its process was killed.
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        else:
            writer.close()
            raise Conflict(f"{self._path}: another agent serves this socket", hint="stop it or choose another path")

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_LOCAL_CONNECTIONS:
            _log.error("refused a connection: %d are open on %s", len(self._connections), self._path)
            writer.close()
            return
        task = asyncio.create_task(self._serve(reader, writer), name="local connection")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller: Identity | FarbusError
        try:
            caller = self._identify(*_peer_credentials(writer))
        except FarbusError as error:
            _log.error("refused a local connection: %s", error)
            # Told by a server of its own: a connection that only closes says nothing to its user.
            caller = error
        try:
            target = await self._server_for(caller)
            inner_reader, inner_writer = await asyncio.open_unix_connection(target)
        except FarbusError:
            # The agent stops.
            writer.close()
            return
        except OSError as error:
            _log.error("refused a local connection: %s", error)
            writer.close()
            return
        # Either end closing ends both: the caller's end of stream is what releases a lease.
        directions = [
            asyncio.create_task(_pump(reader, inner_writer)),
            asyncio.create_task(_pump(inner_reader, writer)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
            for end in (inner_writer, writer):
                end.close()

    async def _server_for(self, caller: Identity | FarbusError) -> str:
        """Return the path of the private socket for ``caller``, or of the one that refuses with an error."""
        key = str(caller) if isinstance(caller, FarbusError) else caller
        async with self._starting:
            if key in self._servers:
                return self._servers[key][1]
            if len(self._servers) >= MAX_LOCAL_CALLERS:
                raise OSError(f"{MAX_LOCAL_CALLERS} users have servers")
            if self._private is None:
                raise Conflict("the agent is stopping")
            path = f"{self._private.name}/{len(self._servers)}"
            server = grpc.aio.server(options=SERVER_OPTIONS)

            def identity_for(_: Context, method: str) -> Identity:
                if isinstance(caller, FarbusError):
                    raise type(caller)(caller.message, hint=caller.hint)
                return resolve_caller(caller, {}, method)

            cluster_pb2_grpc.add_ClusterServicer_to_server(_ClusterServicer(self._handler, identity_for), server)
            for add in self._services:
                add(identity_for, server)
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            self._servers[key] = (server, path)
            return path

    async def stop(self, grace_s: float) -> None:
        if self._front is not None:
            self._front.close()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        await asyncio.gather(*(server.stop(grace_s) for server, _ in self._servers.values()))
        for connection in tuple(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._private is not None:
            self._private.cleanup()
            self._private = None


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()


def _peer_credentials(writer: asyncio.StreamWriter) -> tuple[int, int, int]:
    """Return the peer's uid, gid and pid; see SO_PEERCRED in unix(7)."""
    with _borrowed(writer.get_extra_info("socket").fileno()) as borrowed:
        data = borrowed.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", data)
    return uid, gid, pid


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[sockets.socket]:
    """Make a socket of a descriptor that somebody else closes: uvloop's own lacks getsockopt."""
    borrowed = sockets.socket(fileno=os.dup(descriptor))
    try:
        yield borrowed
    finally:
        borrowed.close()
