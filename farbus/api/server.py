"""The servers: the scheduler's over mutual TLS, an agent's on its Unix socket.

Handlers speak values; this module turns messages into values, errors into
status codes, and certificates or peer credentials into identities.
"""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from farbus.api.audit import AuditLog, AuditRecord
from farbus.api.authority import Credentials
from farbus.api.conversion import chassis_to_message, check_elements, from_message, to_message
from farbus.api.front import AddService, Caller, LocalFront
from farbus.api.gate import Gate, caller_of_call, errors_become_status, peer_of_call
from farbus.api.identity import BELIEVE_USERS, LOCAL_METADATA, Identity, Vouching
from farbus.api.trust import Peer, Trust
from farbus.api.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    enrollment_pb2,
    enrollment_pb2_grpc,
    profile_pb2,
    session_pb2,
    session_pb2_grpc,
    types_pb2,
)
from farbus.errors import Conflict, InvalidInput, Unavailable
from farbus.model.cluster import ClusterInfo, HoldEvent, HoldLost, HoldReady, HoldWaiting, LogChunk
from farbus.model.device import DeviceStatus, Route
from farbus.model.explanation import Explanation
from farbus.model.fabric import ChassisStatus
from farbus.model.job import MAX_GROUPS, MAX_JOB_BYTES, NO_GOAL, Goal, Job, JobStatus, Requests
from farbus.model.lease import LeaseStatus
from farbus.model.move import MoveRequest, MoveStatus
from farbus.model.node import NodeStatus
from farbus.model.operation import CordonResult, DrainStatus, ForgottenNode, RoomPlan
from farbus.model.profile import MAX_TIMES, ApplicationProfile
from farbus.model.rules import QuotaStatus
from farbus.model.telemetry import ClusterTelemetry
from farbus.model.volume import AdoptRequest, AttachRequest, VolumeRequest, VolumeStatus

_log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 * 2**20
"""Largest message that a server sends: a listing of some 100,000 jobs."""

MAX_LISTING_BYTES = 60 * 2**20
"""Jobs that are listed as they are: with a little room for what surrounds them."""

PAGE_BYTES = 256 * 2**10
"""Jobs that are sent in one piece of a listing: a few hundred, or one whose commands are long."""

MAX_LISTED_WORD = 256
"""Characters of a command's first word in a listing that leaves out the rest."""

MAX_REQUEST_BYTES = 16 * 2**20
"""Largest message that a server accepts: an agent's first words, with some ten thousand leases and tasks."""

MAX_LOCAL_REQUEST_BYTES = 4 * 2**20
"""The same on an agent's socket: a job, or a piece of a file."""

MAX_JOB_ELEMENTS = 65_536
"""Words, variables, labels and routes of a job, all together: a tenth of a second to read."""

MAX_TASKS_READ = 65_536
"""Tasks whose output one call reads: more than a job has."""

MAX_NAMES = 65_536
"""Nodes that one call names: more than a cluster has."""

HANDSHAKE_TIMEOUT_S = 30.0
"""Longest that a caller may take to prove who it is, in a storm of agents too; gRPC's own limit is 120 s."""

WINDOW_OPTIONS: list[tuple[str, int]] = [
    # No ping with each message to measure the link: both sides of an idle session would wake for it and for its
    # answer.  What may be under way on a stream is fixed instead: enough for 100 MB/s at 10 ms there and back.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 2**20),
]

SERVER_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A connection without a certificate is hung up on: some thousands of them would take all descriptors.
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_TIMEOUT_S * 1000)),
    # A second process on the same port must fail, not share it.
    ("grpc.so_reuseport", 0),
    # Callers are authenticated; one that pings often is no reason to cut its stream, which may be a lease.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Else gRPC waits a minute for the answer to a ping, whatever the line before says.  A node that lost its power and
    # has booted again is let in when the end of its old connection is known.
    ("grpc.http2.ping_timeout_ms", 10_000),
    *WINDOW_OPTIONS,
]

Context = grpc.aio.ServicerContext[Any, Any]
SendToNode = Callable[[session_pb2.SchedulerMessage], Awaitable[None]]


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

    async def read_several_logs(
        self, caller: Identity, job_id: str, positions: Mapping[str, int], *, follow: bool
    ) -> AsyncIterator[LogChunk]:
        """Yield the output of several tasks as it comes, of each from behind its position; each chunk says whose."""
        raise Unavailable("several logs are not read together here")
        yield  # makes this a generator

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
    async def explain(self, caller: Identity, job_id: str) -> Explanation:
        """Return the job and why it is where it is, in words and as values."""

    async def defragment(self, caller: Identity, job_id: str, *, dry_run: bool) -> RoomPlan:
        """Move moveable jobs so that a waiting one has room; with ``dry_run`` only say which."""
        raise Unavailable("nothing is moved here")

    async def list_quotas(self, caller: Identity) -> tuple[QuotaStatus, ...]:
        """Return what users have and may have: all to an operator, his own to a user."""
        raise Unavailable("no quotas are kept here")

    async def list_profiles(self, caller: Identity, *, application: str) -> tuple[ApplicationProfile, ...]:
        """Return what is known of applications, or with its runs of one: what the caller may see."""
        raise Unavailable("no profiles are kept here")

    async def set_profile(self, caller: Identity, profile: ApplicationProfile) -> ApplicationProfile:
        """Have a profile count before what is learned; return it as it is kept."""
        raise Unavailable("no profiles are kept here")

    async def forget_profile(
        self, caller: Identity, application: str, *, user: str | None
    ) -> tuple[ApplicationProfile, ...]:
        """Forget an application, of one user or with None of all; return what was known."""
        raise Unavailable("no profiles are kept here")

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
        goal: Goal = NO_GOAL,
        application: str = "",
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

    async def move_device(
        self, caller: Identity, request: MoveRequest, *, local: bool = False
    ) -> AsyncIterator[MoveStatus]:
        """Have a device moved and yield how far it is, at every change, until it has ended.

        ``local``: by this node alone, without the scheduler; only an agent's socket does it.
        """
        raise Unavailable("no devices are moved here")
        yield  # makes this a generator

    async def list_moves(self, caller: Identity, *, include_ended: bool) -> tuple[MoveStatus, ...]:
        """Return the moves that are under way or stuck, and with ``include_ended`` those that have ended."""
        raise Unavailable("no devices are moved here")

    async def cancel_move(self, caller: Identity, move: str) -> MoveStatus:
        """Call a move off, and return it as it is then."""
        raise Unavailable("no devices are moved here")

    async def create_volume(self, caller: Identity, request: VolumeRequest) -> AsyncIterator[VolumeStatus]:
        """Have a volume made and yield how far it is, at every change, until it is there."""
        raise Unavailable("no volumes are kept here")
        yield  # makes this a generator

    async def resize_volume(self, caller: Identity, name: str, *, size_bytes: int) -> AsyncIterator[VolumeStatus]:
        """Have a volume made larger and yield how far it is, at every change, until it is."""
        raise Unavailable("no volumes are kept here")
        yield  # makes this a generator

    async def delete_volume(self, caller: Identity, name: str) -> AsyncIterator[VolumeStatus]:
        """Have a volume removed and yield how far it is, at every change, until it is gone."""
        raise Unavailable("no volumes are kept here")
        yield  # makes this a generator

    async def list_volumes(self, caller: Identity) -> tuple[VolumeStatus, ...]:
        """Return the volumes that the caller may see."""
        raise Unavailable("no volumes are kept here")

    async def adopt_volume(self, caller: Identity, request: AdoptRequest) -> AsyncIterator[VolumeStatus]:
        """Take parts that nobody knows into the ledger, and yield how far it is, until that is done."""
        raise Unavailable("no volumes are kept here")
        yield  # makes this a generator

    async def attach_volume(self, caller: Identity, request: AttachRequest) -> AsyncIterator[VolumeStatus]:
        """Have a volume attached to a node and yield how far it is, at every change, until it can be used there."""
        raise Unavailable("no volumes are kept here")
        yield  # makes this a generator

    async def detach_volume(self, caller: Identity, name: str) -> AsyncIterator[VolumeStatus]:
        """Take a volume from the node that it was attached to, and yield how far it is, until it is free."""
        raise Unavailable("no volumes are kept here")
        yield  # makes this a generator

    async def list_chassis(self, caller: Identity) -> tuple[ChassisStatus, ...]:
        """Return the chassis that agents have credentials for, as they were read last."""
        raise Unavailable("no chassis are known here")

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
    vouching: Vouching = BELIEVE_USERS,
    services: Sequence[AddService] = (),
) -> RunningServer:
    """Serve all services over mutual TLS on ``listen`` (``ADDRESS:PORT``, port 0 for any free one).

    Files of ``credentials`` that are replaced hold from the next connection
    on; calls of a certificate that is revoked end (:mod:`farbus.api.gate`).

    Raises :class:`InvalidInput` for bad credentials, :class:`Conflict` for an
    address that can't be bound.
    """
    trust = credentials if isinstance(credentials, Trust) else Trust(credentials)
    gate = Gate(trust, audit=audit, operator_only=operator_only, vouching=vouching)
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

    ``identify`` names the caller by (uid, gid, pid); :mod:`farbus.api.front`
    says how.  Raises :class:`Conflict` where another process serves the socket.
    """

    def add_cluster(caller: Caller, server: grpc.aio.Server) -> None:
        cluster_pb2_grpc.add_ClusterServicer_to_server(_ClusterServicer(cluster, caller), server)

    options = [*({**dict(SERVER_OPTIONS), "grpc.max_receive_message_length": MAX_LOCAL_REQUEST_BYTES}).items()]
    front = LocalFront(socket, identify, (add_cluster, *services), options=options)
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
            job = _read_job(request.job)
            job_id, would_be = await self._handler.submit(caller, job, check_only=request.check_only)
            reply = cluster_pb2.SubmitReply(job_id=job_id)
            if would_be is not None:
                reply.would_be.CopyFrom(to_message(would_be, types_pb2.JobStatus))
            return reply

        return await self._call("Submit", context, answer)

    async def ListJobs(self, request: cluster_pb2.ListJobsRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ListJobsReply:
            jobs = await self._handler.list_jobs(caller, include_ended=request.all)
            return _listing([to_message(job, types_pb2.JobStatus) for job in jobs])

        return await self._call("ListJobs", context, answer)

    async def StreamJobs(self, request: cluster_pb2.ListJobsRequest, context: Any) -> AsyncIterator[Any]:
        async for page in self._stream("StreamJobs", context, lambda caller: self._pages(caller, all_jobs=request.all)):
            yield page

    async def _pages(self, caller: Identity, *, all_jobs: bool) -> AsyncIterator[cluster_pb2.ListJobsReply]:
        page, size = cluster_pb2.ListJobsReply(), 0
        for status in await self._handler.list_jobs(caller, include_ended=all_jobs):
            message = to_message(status, types_pb2.JobStatus)
            page.jobs.append(message)
            size += message.ByteSize()
            if size >= PAGE_BYTES:
                yield page
                # Of a hundred thousand jobs this takes seconds: others go in between.
                await asyncio.sleep(0)
                page, size = cluster_pb2.ListJobsReply(), 0
        yield page

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
        def answers(caller: Identity) -> AsyncIterator[LogChunk]:
            check_elements(request, most=MAX_TASKS_READ, what="logs")
            if request.tasks:
                return self._handler.read_several_logs(
                    caller, request.job_id, dict(request.tasks), follow=request.follow
                )
            return self._handler.read_logs(
                caller, request.job_id, task=request.task, follow=request.follow, position=request.position
            )

        async for chunk in self._stream("ReadLogs", context, answers):
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
            check_elements(request, most=MAX_NAMES, what="telemetry")
            telemetry = await self._handler.get_telemetry(caller, nodes=frozenset(request.nodes))
            return to_message(telemetry, cluster_pb2.ClusterTelemetry)

        return await self._call("GetTelemetry", context, answer)

    async def Explain(self, request: cluster_pb2.JobRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.Explanation:
            return to_message(await self._handler.explain(caller, request.job_id), cluster_pb2.Explanation)

        return await self._call("Explain", context, answer)

    async def ListQuotas(self, request: cluster_pb2.ListQuotasRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ListQuotasReply:
            quotas = await self._handler.list_quotas(caller)
            return cluster_pb2.ListQuotasReply(quotas=[to_message(each, cluster_pb2.QuotaStatus) for each in quotas])

        return await self._call("ListQuotas", context, answer)

    async def ListProfiles(self, request: cluster_pb2.ListProfilesRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ListProfilesReply:
            profiles = await self._handler.list_profiles(caller, application=request.application)
            return cluster_pb2.ListProfilesReply(profiles=[_profile_message(each) for each in profiles])

        return await self._call("ListProfiles", context, answer)

    async def SetProfile(self, request: profile_pb2.ApplicationProfile, context: Any) -> Any:
        async def answer(caller: Identity) -> profile_pb2.ApplicationProfile:
            check_elements(request, most=MAX_TIMES, what="profile")
            profile = from_message(request, ApplicationProfile)
            return _profile_message(await self._handler.set_profile(caller, profile))

        return await self._call("SetProfile", context, answer)

    async def ForgetProfile(self, request: cluster_pb2.ForgetProfileRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ForgetProfileReply:
            user = request.user if request.HasField("user") else None
            profiles = await self._handler.forget_profile(caller, request.application, user=user)
            return cluster_pb2.ForgetProfileReply(profiles=[_profile_message(each) for each in profiles])

        return await self._call("ForgetProfile", context, answer)

    async def GetCluster(self, request: cluster_pb2.GetClusterRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ClusterInfo:
            return to_message(await self._handler.cluster_info(caller), cluster_pb2.ClusterInfo)

        return await self._call("GetCluster", context, answer)

    async def Hold(self, request: cluster_pb2.HoldRequest, context: Any) -> AsyncIterator[Any]:
        def answers(caller: Identity) -> AsyncIterator[HoldEvent]:
            check_elements(request, most=len(Route), what="hold")
            return self._handler.hold(
                caller,
                name=request.name,
                requests=from_message(request.requests, Requests),
                routes=tuple(_route(route) for route in request.routes),
                wait_limit_s=request.wait_limit_s,
                job_id=request.job_id,
                goal=from_message(request.goal, Goal),
                application=request.application,
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
            message = to_message(status, cluster_pb2.DrainStatus)
            # Who is in the way is asked for, by operators of that node, too: what others' programs are given is not.
            _shorten(message.jobs)
            yield message

    async def Defragment(self, request: cluster_pb2.DefragmentRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.RoomPlan:
            plan = await self._handler.defragment(caller, request.job_id, dry_run=request.dry_run)
            return to_message(plan, cluster_pb2.RoomPlan)

        return await self._call("Defragment", context, answer)

    async def Forget(self, request: cluster_pb2.ForgetRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ForgetReply:
            return to_message(await self._handler.forget(caller, request.node), cluster_pb2.ForgetReply)

        return await self._call("Forget", context, answer)

    async def MoveDevice(self, request: cluster_pb2.MoveRequest, context: Any) -> AsyncIterator[Any]:
        def answers(caller: Identity) -> AsyncIterator[MoveStatus]:
            local = dict(context.invocation_metadata() or ()).get(LOCAL_METADATA) == "1"
            return self._handler.move_device(caller, from_message(request, MoveRequest), local=local)

        async for status in self._stream("MoveDevice", context, answers):
            yield to_message(status, cluster_pb2.MoveStatus)

    async def ListMoves(self, request: cluster_pb2.ListMovesRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ListMovesReply:
            moves = await self._handler.list_moves(caller, include_ended=request.all)
            return cluster_pb2.ListMovesReply(moves=[to_message(move, cluster_pb2.MoveStatus) for move in moves])

        return await self._call("ListMoves", context, answer)

    async def CancelMove(self, request: cluster_pb2.CancelMoveRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.MoveStatus:
            return to_message(await self._handler.cancel_move(caller, request.move), cluster_pb2.MoveStatus)

        return await self._call("CancelMove", context, answer)

    async def CreateVolume(self, request: cluster_pb2.VolumeRequest, context: Any) -> AsyncIterator[Any]:
        def answers(caller: Identity) -> AsyncIterator[VolumeStatus]:
            return self._handler.create_volume(caller, from_message(request, VolumeRequest))

        async for status in self._stream("CreateVolume", context, answers):
            yield to_message(status, cluster_pb2.VolumeStatus)

    async def ResizeVolume(self, request: cluster_pb2.ResizeVolumeRequest, context: Any) -> AsyncIterator[Any]:
        def answers(caller: Identity) -> AsyncIterator[VolumeStatus]:
            return self._handler.resize_volume(caller, request.name, size_bytes=request.size_bytes)

        async for status in self._stream("ResizeVolume", context, answers):
            yield to_message(status, cluster_pb2.VolumeStatus)

    async def DeleteVolume(self, request: cluster_pb2.VolumeName, context: Any) -> AsyncIterator[Any]:
        def answers(caller: Identity) -> AsyncIterator[VolumeStatus]:
            return self._handler.delete_volume(caller, request.name)

        async for status in self._stream("DeleteVolume", context, answers):
            yield to_message(status, cluster_pb2.VolumeStatus)

    async def ListVolumes(self, request: cluster_pb2.ListVolumesRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ListVolumesReply:
            volumes = await self._handler.list_volumes(caller)
            return cluster_pb2.ListVolumesReply(
                volumes=[to_message(each, cluster_pb2.VolumeStatus) for each in volumes]
            )

        return await self._call("ListVolumes", context, answer)

    async def AdoptVolume(self, request: cluster_pb2.AdoptRequest, context: Any) -> AsyncIterator[Any]:
        def answers(caller: Identity) -> AsyncIterator[VolumeStatus]:
            return self._handler.adopt_volume(caller, from_message(request, AdoptRequest))

        async for status in self._stream("AdoptVolume", context, answers):
            yield to_message(status, cluster_pb2.VolumeStatus)

    async def AttachVolume(self, request: cluster_pb2.AttachRequest, context: Any) -> AsyncIterator[Any]:
        def answers(caller: Identity) -> AsyncIterator[VolumeStatus]:
            return self._handler.attach_volume(caller, from_message(request, AttachRequest))

        async for status in self._stream("AttachVolume", context, answers):
            yield to_message(status, cluster_pb2.VolumeStatus)

    async def DetachVolume(self, request: cluster_pb2.VolumeName, context: Any) -> AsyncIterator[Any]:
        def answers(caller: Identity) -> AsyncIterator[VolumeStatus]:
            return self._handler.detach_volume(caller, request.name)

        async for status in self._stream("DetachVolume", context, answers):
            yield to_message(status, cluster_pb2.VolumeStatus)

    async def ListChassis(self, request: cluster_pb2.ListChassisRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> cluster_pb2.ListChassisReply:
            chassis = await self._handler.list_chassis(caller)
            return cluster_pb2.ListChassisReply(chassis=[chassis_to_message(each) for each in chassis])

        return await self._call("ListChassis", context, answer)

    async def ReadAudit(self, request: cluster_pb2.ReadAuditRequest, context: Any) -> AsyncIterator[Any]:
        async for record in self._stream(
            "ReadAudit", context, lambda caller: self._handler.read_audit(caller, since=request.since)
        ):
            yield to_message(record, cluster_pb2.AuditRecord)


def _listing(jobs: list[types_pb2.JobStatus]) -> cluster_pb2.ListJobsReply:
    """Return a listing; where it were too long for a message, without environments and all but commands' first words.

    So nobody hides everybody's jobs behind a few long ones of his own.
    """
    if sum(status.ByteSize() for status in jobs) > MAX_LISTING_BYTES:
        _shorten(jobs)
    return cluster_pb2.ListJobsReply(jobs=jobs)


def _shorten(jobs: Iterable[types_pb2.JobStatus]) -> None:
    """Leave out environments and all but commands' first words."""
    for status in jobs:
        status.job.ClearField("environment")
        parts: list[types_pb2.TaskGroup | types_pb2.Composite] = [*status.job.groups, *status.job.composites]
        for part in parts:
            part.command[:] = [word[:MAX_LISTED_WORD] for word in part.command[:1]]


def _profile_message(profile: ApplicationProfile) -> profile_pb2.ApplicationProfile:
    return to_message(profile, profile_pb2.ApplicationProfile)


def _read_job(message: types_pb2.Job) -> Job:
    """Return the job of a message; what is too large is refused before it is read."""
    if (size := message.ByteSize()) > MAX_JOB_BYTES:
        raise InvalidInput(
            f"job: {size} bytes are more than {MAX_JOB_BYTES}",
            hint="put what is long into files that it takes along (stage_in)",
        )
    if len(message.groups) > MAX_GROUPS:
        raise InvalidInput(f"groups: has more than {MAX_GROUPS} groups")
    check_elements(message, most=MAX_JOB_ELEMENTS, what="job")
    return from_message(message, Job)


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
