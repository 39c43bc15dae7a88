"""The client of the Cluster service, for the CLI and for agents that forward."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, Self

import grpc
import grpc.aio

from farbus.api.audit import AuditRecord
from farbus.api.authority import SCHEDULER_SERVER_NAME, Credentials
from farbus.api.conversion import chassis_from_message, from_message, to_message
from farbus.api.identity import LOCAL_METADATA, ROLE_METADATA, USER_METADATA, Identity
from farbus.api.server import MAX_MESSAGE_BYTES, WINDOW_OPTIONS
from farbus.api.status import converted, late
from farbus.api.v1 import cluster_pb2, cluster_pb2_grpc, enrollment_pb2, enrollment_pb2_grpc, profile_pb2, types_pb2
from farbus.errors import FarbusError
from farbus.model.cluster import ClusterInfo, HoldEvent, HoldLost, HoldReady, HoldWaiting, LogChunk
from farbus.model.device import DeviceStatus, Route
from farbus.model.explanation import Explanation
from farbus.model.fabric import ChassisStatus
from farbus.model.job import NO_GOAL, Goal, Job, JobStatus, Requests
from farbus.model.lease import LeaseStatus
from farbus.model.move import MoveRequest, MoveStatus
from farbus.model.node import NodeStatus
from farbus.model.operation import CordonResult, DrainStatus, ForgottenNode, RoomPlan
from farbus.model.profile import ApplicationProfile
from farbus.model.rules import QuotaStatus
from farbus.model.telemetry import ClusterTelemetry
from farbus.model.volume import AdoptRequest, AttachRequest, VolumeRequest, VolumeStatus

CALL_TIMEOUT_S = 30.0
"""Longest time that one call without a stream may take."""

CLIENT_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A peer that vanished without a word is noticed within 30 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Else gRPC waits a minute for the answer to a ping, whatever the line before says.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
    *WINDOW_OPTIONS,
]


def open_tls_channel(address: str, credentials: Credentials) -> grpc.aio.Channel:
    """Open a channel to the scheduler at ``address`` (``HOST:PORT``), with mutual TLS."""
    pem = credentials.read()
    return grpc.aio.secure_channel(
        address,
        grpc.ssl_channel_credentials(pem.authority, pem.key, pem.certificate),
        options=[*CLIENT_OPTIONS, ("grpc.ssl_target_name_override", SCHEDULER_SERVER_NAME)],
    )


async def open_enrollment(address: str, credentials: Credentials, request_pem: bytes) -> tuple[bytes, bytes]:
    """Ask the scheduler at ``address`` to renew; return certificate and authorities as PEM."""
    channel = open_tls_channel(address, credentials)
    try:
        with converted(f"scheduler at {address}"):
            stub: Any = enrollment_pb2_grpc.EnrollmentStub(channel)
            reply = await stub.Renew(enrollment_pb2.RenewRequest(request=request_pem), timeout=CALL_TIMEOUT_S)
            return reply.certificate, reply.authorities
    finally:
        await channel.close()


class ClusterClient:
    """Calls to a scheduler or to an agent's socket; every error is a :class:`FarbusError`.

    Use as an asynchronous context manager, or call :meth:`close`.
    """

    def __init__(self, channel: grpc.aio.Channel, peer: str, metadata: Sequence[tuple[str, str]] = ()) -> None:
        self.channel = channel
        self.peer = peer
        self.metadata = tuple(metadata)
        self.is_over: Callable[[], bool] = lambda: False
        """Says, where it is known, that the other side has ended for good: to wait for it is in vain."""
        self._stub: Any = cluster_pb2_grpc.ClusterStub(channel)

    @classmethod
    def remote(cls, *, address: str, credentials: Credentials, on_behalf_of: Identity | None = None) -> ClusterClient:
        """Call the scheduler at ``address``; a node may do so on behalf of a user of its own."""
        metadata = []
        if on_behalf_of is not None:
            metadata = [(USER_METADATA, on_behalf_of.name), (ROLE_METADATA, on_behalf_of.role.value)]
        return cls(open_tls_channel(address, credentials), f"scheduler at {address}", metadata)

    @classmethod
    def local(cls, *, socket: str) -> ClusterClient:
        """Call the agent that serves the Unix socket ``socket``."""
        return cls(grpc.aio.insecure_channel(f"unix:{socket}", options=CLIENT_OPTIONS), f"agent at {socket}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, *, grace_s: float | None = None) -> None:
        """Close the connection; calls under way get ``grace_s`` seconds, then end with Unavailable."""
        await self.channel.close(grace_s)

    async def _call(self, method: str, request: Any) -> Any:
        with converted(self.peer):
            return await getattr(self._stub, method)(request, metadata=self.metadata, timeout=CALL_TIMEOUT_S)

    async def _stream(
        self, method: str, request: Any, *, also: Sequence[tuple[str, str]] = ()
    ) -> AsyncGenerator[Any, None]:
        with converted(self.peer):
            call = getattr(self._stub, method)(request, metadata=(*self.metadata, *also))
            try:
                async for message in call:
                    yield message
            finally:
                call.cancel()

    async def submit(self, job: Job, *, check_only: bool = False) -> tuple[str, JobStatus | None]:
        """Queue ``job``; return its id and, with ``check_only``, what would become of it."""
        request = cluster_pb2.SubmitRequest(job=to_message(job, types_pb2.Job), check_only=check_only)
        reply = await self._call("Submit", request)
        return reply.job_id, from_message(reply.would_be, JobStatus) if reply.HasField("would_be") else None

    async def list_jobs(self, *, include_ended: bool = False) -> tuple[JobStatus, ...]:
        """Return the jobs that the caller may see."""
        found: list[JobStatus] = []
        pages = self._stream("StreamJobs", cluster_pb2.ListJobsRequest(all=include_ended))
        async with contextlib.aclosing(pages):
            while True:
                try:
                    async with asyncio.timeout(CALL_TIMEOUT_S):
                        page = await anext(pages)
                except StopAsyncIteration:
                    return tuple(found)
                except TimeoutError as error:
                    raise late(self.peer) from error
                found += [from_message(job, JobStatus) for job in page.jobs]

    async def get_job(self, job_id: str) -> JobStatus:
        """Return one job; raise :class:`farbus.errors.NotFound`."""
        return from_message(await self._call("GetJob", cluster_pb2.JobRequest(job_id=job_id)), JobStatus)

    async def watch_job(self, job_id: str) -> AsyncIterator[JobStatus]:
        """Yield the job now and at every change, until it has ended."""
        async for message in self._stream("WatchJob", cluster_pb2.JobRequest(job_id=job_id)):
            yield from_message(message, JobStatus)

    async def cancel_job(self, job_id: str, *, released: bool = False, exit_code: int | None = None) -> JobStatus:
        """Start ending the job and return it.

        ``released`` when it is interactive and its program has ended, with ``exit_code`` (None: not known).
        """
        request = cluster_pb2.CancelJobRequest(job_id=job_id, released=released, exit_code=exit_code)
        return from_message(await self._call("CancelJob", request), JobStatus)

    async def read_logs(
        self, job_id: str, *, task: str = "", follow: bool = False, position: int = 0
    ) -> AsyncIterator[LogChunk]:
        """Yield a task's output, and with ``follow`` what comes until it has ended.

        ``position`` is that of the last chunk that the caller has already.
        """
        request = cluster_pb2.ReadLogsRequest(job_id=job_id, task=task, follow=follow, position=position)
        async for message in self._stream("ReadLogs", request):
            yield from_message(message, LogChunk)

    async def read_several_logs(
        self, job_id: str, positions: Mapping[str, int], *, follow: bool = False
    ) -> AsyncIterator[LogChunk]:
        """Yield the output of tasks as it comes, of each from behind its position, and with ``follow`` until their end.

        Each chunk says whose it is.  Of a task that has none there is nothing.
        """
        request = cluster_pb2.ReadLogsRequest(job_id=job_id, follow=follow, tasks=dict(positions))
        async for message in self._stream("ReadLogs", request):
            yield from_message(message, LogChunk)

    async def list_nodes(self) -> tuple[NodeStatus, ...]:
        """Return all nodes."""
        reply = await self._call("ListNodes", cluster_pb2.ListNodesRequest())
        return tuple(from_message(node, NodeStatus) for node in reply.nodes)

    async def list_devices(self) -> tuple[DeviceStatus, ...]:
        """Return all devices."""
        reply = await self._call("ListDevices", cluster_pb2.ListDevicesRequest())
        return tuple(from_message(device, DeviceStatus) for device in reply.devices)

    async def list_leases(self, *, include_released: bool = False) -> tuple[LeaseStatus, ...]:
        """Return the leases that the caller may see, without their secrets."""
        reply = await self._call("ListLeases", cluster_pb2.ListLeasesRequest(all=include_released))
        return tuple(from_message(lease, LeaseStatus) for lease in reply.leases)

    async def get_telemetry(self, *, nodes: Collection[str] = ()) -> ClusterTelemetry:
        """Return how busy ``nodes`` are, all if empty."""
        reply = await self._call("GetTelemetry", cluster_pb2.GetTelemetryRequest(nodes=sorted(nodes)))
        return from_message(reply, ClusterTelemetry)

    async def explain(self, job_id: str) -> Explanation:
        """Return the job and why it is where it is, in words and as values."""
        reply = await self._call("Explain", cluster_pb2.JobRequest(job_id=job_id))
        return from_message(reply, Explanation)

    async def list_quotas(self) -> tuple[QuotaStatus, ...]:
        """Return what users have and may have: all to an operator, his own to a user."""
        reply = await self._call("ListQuotas", cluster_pb2.ListQuotasRequest())
        return tuple(from_message(each, QuotaStatus) for each in reply.quotas)

    async def list_profiles(self, *, application: str = "") -> tuple[ApplicationProfile, ...]:
        """Return what is known of applications; with the runs that it was learned from of ``application`` alone."""
        reply = await self._call("ListProfiles", cluster_pb2.ListProfilesRequest(application=application))
        return tuple(from_message(each, ApplicationProfile) for each in reply.profiles)

    async def set_profile(self, profile: ApplicationProfile) -> ApplicationProfile:
        """Have a profile count before what is learned of its application; for operators."""
        request = to_message(profile, profile_pb2.ApplicationProfile)
        return from_message(await self._call("SetProfile", request), ApplicationProfile)

    async def forget_profile(self, application: str, *, user: str | None = None) -> tuple[ApplicationProfile, ...]:
        """Forget an application, of one user (empty for everybody) or of all, and return what was known; for operators.

        Raises :class:`farbus.errors.NotFound` where nothing was.
        """
        request = cluster_pb2.ForgetProfileRequest(application=application, user=user)
        reply = await self._call("ForgetProfile", request)
        return tuple(from_message(each, ApplicationProfile) for each in reply.profiles)

    async def cluster_info(self) -> ClusterInfo:
        """Return one line about the cluster."""
        return from_message(await self._call("GetCluster", cluster_pb2.GetClusterRequest()), ClusterInfo)

    async def cordon(self, name: str, *, reason: str = "") -> CordonResult:
        """Give the node or device ``name`` nothing new; for operators, as is all that follows."""
        reply = await self._call("Cordon", cluster_pb2.CordonRequest(name=name, reason=reason))
        return from_message(reply, CordonResult)

    async def uncordon(self, name: str) -> CordonResult:
        """Take the cordon of a node or device back."""
        return from_message(await self._call("Uncordon", cluster_pb2.CordonRequest(name=name)), CordonResult)

    async def drain(self, node: str, *, evict: bool = False, reason: str = "") -> AsyncIterator[DrainStatus]:
        """Cordon ``node`` and yield the jobs that use it, at every change, until none does; ``evict`` ends them."""
        request = cluster_pb2.DrainRequest(node=node, evict=evict, reason=reason)
        async for message in self._stream("Drain", request):
            yield from_message(message, DrainStatus)

    async def defragment(self, job_id: str, *, dry_run: bool = False) -> RoomPlan:
        """Move moveable jobs so that a waiting one has room; with ``dry_run`` only say which."""
        request = cluster_pb2.DefragmentRequest(job_id=job_id, dry_run=dry_run)
        return from_message(await self._call("Defragment", request), RoomPlan)

    async def forget(self, node: str) -> ForgottenNode:
        """Release what a node holds that is off for good; raise :class:`farbus.errors.Conflict` while it is not."""
        return from_message(await self._call("Forget", cluster_pb2.ForgetRequest(node=node)), ForgottenNode)

    async def hold(
        self,
        *,
        name: str,
        requests: Requests,
        routes: Sequence[Route],
        wait_limit_s: float = 0.0,
        job_id: str = "",
        goal: Goal = NO_GOAL,
        application: str = "",
    ) -> AsyncIterator[HoldEvent]:
        """Hold devices until the iterator is closed (``aclose``); those of ``job_id`` again, if it is given."""
        request = cluster_pb2.HoldRequest(
            name=name,
            requests=to_message(requests, types_pb2.Requests),
            routes=[route.value for route in routes],
            wait_limit_s=wait_limit_s,
            job_id=job_id,
            goal=to_message(goal, types_pb2.Goal),
            application=application,
        )
        async for message in self._stream("Hold", request):
            yield _hold_event(message)

    async def move_device(self, request: MoveRequest, *, local: bool = False) -> AsyncIterator[MoveStatus]:
        """Have a device moved and yield how far it is, at every change, until it has ended; for operators.

        A stream that is closed ends nothing.  ``local`` asks an agent's socket to do it without the scheduler.
        """
        also = ((LOCAL_METADATA, "1"),) if local else ()
        message = to_message(request, cluster_pb2.MoveRequest)
        async for status in self._stream("MoveDevice", message, also=also):
            yield from_message(status, MoveStatus)

    async def list_moves(self, *, include_ended: bool = False) -> tuple[MoveStatus, ...]:
        """Return the moves that are under way or stuck, and with ``include_ended`` those that have ended."""
        reply = await self._call("ListMoves", cluster_pb2.ListMovesRequest(all=include_ended))
        return tuple(from_message(each, MoveStatus) for each in reply.moves)

    async def cancel_move(self, move: str) -> MoveStatus:
        """Call a move off and return it as it is then; for operators.

        Raises :class:`NotFound` for one that is not there, :class:`Conflict` for one that can't be called off any more.
        """
        return from_message(await self._call("CancelMove", cluster_pb2.CancelMoveRequest(move=move)), MoveStatus)

    async def create_volume(self, request: VolumeRequest) -> AsyncIterator[VolumeStatus]:
        """Have a volume made, and yield how far it is, at every change, until it is there.

        The last one may say why it is not.  A stream that is closed ends nothing; nor does it of the others.
        """
        async for status in self._stream("CreateVolume", to_message(request, cluster_pb2.VolumeRequest)):
            yield from_message(status, VolumeStatus)

    async def resize_volume(self, name: str, *, size_bytes: int) -> AsyncIterator[VolumeStatus]:
        """Have a volume made larger, and yield how far it is, until it is, or its last status says why not."""
        request = cluster_pb2.ResizeVolumeRequest(name=name, size_bytes=size_bytes)
        async for status in self._stream("ResizeVolume", request):
            yield from_message(status, VolumeStatus)

    async def delete_volume(self, name: str) -> AsyncIterator[VolumeStatus]:
        """Have a volume that nobody uses wiped and removed, and yield how far it is, until it is gone."""
        async for status in self._stream("DeleteVolume", cluster_pb2.VolumeName(name=name)):
            yield from_message(status, VolumeStatus)

    async def list_volumes(self) -> tuple[VolumeStatus, ...]:
        """Return the caller's volumes; to an operator all, and what nodes have of others."""
        reply = await self._call("ListVolumes", cluster_pb2.ListVolumesRequest())
        return tuple(from_message(each, VolumeStatus) for each in reply.volumes)

    async def adopt_volume(self, request: AdoptRequest) -> AsyncIterator[VolumeStatus]:
        """Take parts that nodes have of a volume which the ledger does not know into it, or have them removed, and
        yield how far it is; for operators."""
        async for status in self._stream("AdoptVolume", to_message(request, cluster_pb2.AdoptRequest)):
            yield from_message(status, VolumeStatus)

    async def attach_volume(self, request: AttachRequest) -> AsyncIterator[VolumeStatus]:
        """Have a volume attached to a node, and yield how far it is, until it can be used there; for operators."""
        async for status in self._stream("AttachVolume", to_message(request, cluster_pb2.AttachRequest)):
            yield from_message(status, VolumeStatus)

    async def detach_volume(self, name: str) -> AsyncIterator[VolumeStatus]:
        """Take a volume from the node that it was attached to, and yield how far it is; for operators."""
        async for status in self._stream("DetachVolume", cluster_pb2.VolumeName(name=name)):
            yield from_message(status, VolumeStatus)

    async def list_chassis(self) -> tuple[ChassisStatus, ...]:
        """Return the chassis that agents have credentials for, as they were read last."""
        reply = await self._call("ListChassis", cluster_pb2.ListChassisRequest())
        return tuple(chassis_from_message(each) for each in reply.chassis)

    async def read_audit(self, *, since: str = "") -> AsyncIterator[AuditRecord]:
        """Yield the records of the audit log from ``since`` (RFC 3339, UTC) on; for operators."""
        async for message in self._stream("ReadAudit", cluster_pb2.ReadAuditRequest(since=since)):
            yield from_message(message, AuditRecord)


def _hold_event(message: cluster_pb2.HoldEvent) -> HoldEvent:
    match message.WhichOneof("event"):
        case "waiting":
            return HoldWaiting(status=from_message(message.waiting, JobStatus))
        case "ready":
            ready = message.ready
            return HoldReady(status=from_message(ready.status, JobStatus), environment=dict(ready.environment))
        case "lost":
            return HoldLost(reason=message.lost)
        case other:
            raise FarbusError(f"the agent sent an event that this version does not know: {other}")
