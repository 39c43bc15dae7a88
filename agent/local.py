"""What an agent's socket serves: the cluster, on behalf of the node's users; and holding devices for a terminal."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

import structlog

from farbus import __version__
from farbus.agent.events import HoldClaimed
from farbus.agent.local_moves import LocalMoves
from farbus.agent.service import AgentService
from farbus.agent.session import Backoff, heed_cancellation
from farbus.api.audit import AuditRecord
from farbus.api.client import ClusterClient
from farbus.api.identity import Identity, Role
from farbus.api.server import ClusterHandler
from farbus.errors import Conflict, FarbusError, NotFound, NotPermitted, TimedOut, Unavailable
from farbus.linux.clock import Clock
from farbus.linux.users import Users
from farbus.model.cluster import ClusterInfo, HoldEvent, HoldLost, HoldReady, HoldWaiting, LogChunk
from farbus.model.device import DeviceStatus, Route
from farbus.model.explanation import Explanation
from farbus.model.fabric import ChassisStatus
from farbus.model.job import NO_GOAL, Goal, Job, JobStatus, Requests, TaskGroup
from farbus.model.lease import LeaseStatus
from farbus.model.move import MoveRequest, MoveStatus
from farbus.model.node import NodeStatus
from farbus.model.operation import CordonResult, DrainStatus, ForgottenNode, RoomPlan
from farbus.model.profile import ApplicationProfile
from farbus.model.rules import QuotaStatus
from farbus.model.states import JOB_STATES, JobState
from farbus.model.telemetry import ClusterTelemetry
from farbus.model.volume import AdoptRequest, AttachRequest, VolumeRequest, VolumeStatus

_log = structlog.get_logger()

MAX_CLIENTS = 256
"""Connections to the scheduler kept at one time: one for each user of the node who calls."""

OLD_CONNECTION_S = 3_600.0
"""How long calls go on over a connection that was dialled with a certificate that has been renewed."""

MAX_HOLDS = 1024
"""Programs that hold devices through one agent at one time."""

SCHEDULER_PATIENCE_S = 5.0
"""How long calls wait after a session was lost: a scheduler that is restarted is back within it."""

SCHEDULER_LOOK_S = 0.1

HOLD_TASK = "main.0"

T = TypeVar("T")

HOLD_EVENTS = 64
"""Events of one hold that wait for a caller who does not read."""


class SchedulerState(Protocol):
    """What is known of the scheduler: :class:`farbus.agent.session.SessionRunner`."""

    error: str
    lost_at: float


@dataclass
class _Connection:
    """A user's connection to the scheduler, and how many calls are under way on it."""

    client: ClusterClient
    calls: int = 0


class Identifier:
    """Names the user at the other end of the socket."""

    def __init__(self, *, node: str, users: Users, operators: tuple[str, ...]) -> None:
        self._node = node
        self._users = users
        self.operators = frozenset(operators)

    def __call__(self, uid: int, gid: int, pid: int) -> Identity:
        """Return who has the user id; raise :class:`farbus.errors.NotFound` for one without a name."""
        account = self._users.by_uid(uid)
        role = Role.OPERATOR if account.name in self.operators else Role.USER
        return Identity(name=account.name, role=role, node=self._node)


class LocalCluster(ClusterHandler):
    """Forwards every call to the scheduler, vouching for the caller; holds devices itself."""

    def __init__(
        self,
        *,
        node: str,
        connect: Callable[[Identity], ClusterClient],
        scheduler: SchedulerState,
        service: AgentService,
        group: asyncio.TaskGroup,
        clock: Clock,
        moves: LocalMoves | None = None,
    ) -> None:
        self.moves = moves
        """Moves devices of this node without the scheduler."""
        self._node = node
        self._connect = connect
        self._scheduler = scheduler
        self._service = service
        self._group = group
        self._clock = clock
        self._clients: OrderedDict[Identity, _Connection] = OrderedDict()
        """The one that was used last is last."""
        self._exits: dict[tuple[Identity, str], int | None] = {}
        """Of each job that is held here: what its program has ended with, once it has."""
        self._leaving = False

    @contextlib.asynccontextmanager
    async def _client(self, caller: Identity) -> AsyncGenerator[ClusterClient, None]:
        """Lend the caller's connection to the scheduler for one call."""
        await self._wait_for_scheduler()
        connection = self._clients.get(caller)
        if connection is None:
            self._make_room()
            connection = self._clients[caller] = _Connection(self._connect(caller))
        self._clients.move_to_end(caller)
        connection.calls += 1
        try:
            yield connection.client
        finally:
            connection.calls -= 1

    def lend(self, caller: Identity) -> contextlib.AbstractAsyncContextManager[ClusterClient]:
        """Lend the caller's connection to the scheduler for one call of another service."""
        return self._client(caller)

    def _make_room(self) -> None:
        """Close the connection that has been idle longest, if there are too many."""
        if len(self._clients) < MAX_CLIENTS:
            return
        idle = next((caller for caller, connection in self._clients.items() if not connection.calls), None)
        if idle is None:
            raise Unavailable(f"node {self._node}: {MAX_CLIENTS} users have calls under way", hint="try later")
        self._group.create_task(self._clients.pop(idle).client.close(), name="close connection")

    def reconnect(self) -> None:
        """Give up the connections: a new one reaches a new scheduler sooner than one that waits to dial again."""
        connections, self._clients = self._clients, OrderedDict()
        for connection in connections.values():
            self._group.create_task(connection.client.close(), name="close connection")

    def replace_connections(self) -> None:
        """Have further calls dial anew, with the certificate that there is now; those under way go on."""
        connections, self._clients = self._clients, OrderedDict()
        for connection in connections.values():
            self._group.create_task(connection.client.close(grace_s=OLD_CONNECTION_S), name="close old connection")

    async def close(self) -> None:
        """Close the connections."""
        for connection in self._clients.values():
            await connection.client.close()
        self._clients.clear()

    async def submit(self, caller: Identity, job: Job, *, check_only: bool) -> tuple[str, JobStatus | None]:
        """Forward."""
        async with self._client(caller) as client:
            return await client.submit(job, check_only=check_only)

    async def list_jobs(self, caller: Identity, *, include_ended: bool) -> tuple[JobStatus, ...]:
        """Forward."""
        async with self._client(caller) as client:
            return await client.list_jobs(include_ended=include_ended)

    async def get_job(self, caller: Identity, job_id: str) -> JobStatus:
        """Forward."""
        async with self._client(caller) as client:
            return await client.get_job(job_id)

    async def watch_job(self, caller: Identity, job_id: str) -> AsyncIterator[JobStatus]:
        """Forward."""
        async with self._client(caller) as client, _closing(client.watch_job(job_id)) as statuses:
            async for status in statuses:
                yield status

    async def cancel_job(
        self, caller: Identity, job_id: str, *, released: bool, exit_code: int | None = None
    ) -> JobStatus:
        """Forward; what a program held here has ended with is kept until the scheduler has heard it."""
        if released and exit_code is not None and (caller, job_id) in self._exits:
            self._exits[caller, job_id] = exit_code
        async with self._client(caller) as client:
            return await client.cancel_job(job_id, released=released, exit_code=exit_code)

    async def read_logs(
        self, caller: Identity, job_id: str, *, task: str, follow: bool, position: int = 0
    ) -> AsyncIterator[LogChunk]:
        """Forward."""
        async with (
            self._client(caller) as client,
            _closing(client.read_logs(job_id, task=task, follow=follow, position=position)) as chunks,
        ):
            async for chunk in chunks:
                yield chunk

    async def read_several_logs(
        self, caller: Identity, job_id: str, positions: Mapping[str, int], *, follow: bool
    ) -> AsyncIterator[LogChunk]:
        """Forward."""
        async with (
            self._client(caller) as client,
            _closing(client.read_several_logs(job_id, positions, follow=follow)) as chunks,
        ):
            async for chunk in chunks:
                yield chunk

    async def list_nodes(self, caller: Identity) -> tuple[NodeStatus, ...]:
        """Forward."""
        async with self._client(caller) as client:
            return await client.list_nodes()

    async def list_devices(self, caller: Identity) -> tuple[DeviceStatus, ...]:
        """Forward."""
        async with self._client(caller) as client:
            return await client.list_devices()

    async def list_leases(self, caller: Identity, *, include_released: bool) -> tuple[LeaseStatus, ...]:
        """Forward."""
        async with self._client(caller) as client:
            return await client.list_leases(include_released=include_released)

    async def get_telemetry(self, caller: Identity, *, nodes: Collection[str]) -> ClusterTelemetry:
        """Forward."""
        async with self._client(caller) as client:
            return await client.get_telemetry(nodes=nodes)

    async def explain(self, caller: Identity, job_id: str) -> Explanation:
        """Forward."""
        async with self._client(caller) as client:
            return await client.explain(job_id)

    async def list_quotas(self, caller: Identity) -> tuple[QuotaStatus, ...]:
        """Forward."""
        async with self._client(caller) as client:
            return await client.list_quotas()

    async def list_profiles(self, caller: Identity, *, application: str) -> tuple[ApplicationProfile, ...]:
        """Forward."""
        async with self._client(caller) as client:
            return await client.list_profiles(application=application)

    async def set_profile(self, caller: Identity, profile: ApplicationProfile) -> ApplicationProfile:
        """Forward."""
        async with self._client(caller) as client:
            return await client.set_profile(profile)

    async def forget_profile(
        self, caller: Identity, application: str, *, user: str | None
    ) -> tuple[ApplicationProfile, ...]:
        """Forward."""
        async with self._client(caller) as client:
            return await client.forget_profile(application, user=user)

    async def defragment(self, caller: Identity, job_id: str, *, dry_run: bool) -> RoomPlan:
        """Forward."""
        async with self._client(caller) as client:
            return await client.defragment(job_id, dry_run=dry_run)

    async def cordon(self, caller: Identity, name: str, *, reason: str) -> CordonResult:
        """Forward."""
        async with self._client(caller) as client:
            return await client.cordon(name, reason=reason)

    async def uncordon(self, caller: Identity, name: str) -> CordonResult:
        """Forward."""
        async with self._client(caller) as client:
            return await client.uncordon(name)

    async def drain(self, caller: Identity, node: str, *, evict: bool, reason: str) -> AsyncIterator[DrainStatus]:
        """Forward."""
        async with self._client(caller) as client, _closing(client.drain(node, evict=evict, reason=reason)) as found:
            async for status in found:
                yield status

    async def forget(self, caller: Identity, node: str) -> ForgottenNode:
        """Forward."""
        async with self._client(caller) as client:
            return await client.forget(node)

    async def move_device(
        self, caller: Identity, request: MoveRequest, *, local: bool = False
    ) -> AsyncIterator[MoveStatus]:
        """Forward; with ``local`` do it here."""
        if not local:
            async with self._client(caller) as client, _closing(client.move_device(request)) as found:
                async for status in found:
                    yield status
            return
        if self.moves is None:
            raise Unavailable(f"node {self._node}: this agent moves no devices by itself")
        async with _closing(self.moves.move(caller, request)) as found:
            async for status in found:
                yield status

    async def devices_if_connected(self, caller: Identity) -> tuple[DeviceStatus, ...] | None:
        """Return the cluster's devices; None where there is no session with a scheduler."""
        return None if self._scheduler.error else await self.list_devices(caller)

    async def list_moves(self, caller: Identity, *, include_ended: bool) -> tuple[MoveStatus, ...]:
        """Forward."""
        async with self._client(caller) as client:
            return await client.list_moves(include_ended=include_ended)

    async def cancel_move(self, caller: Identity, move: str) -> MoveStatus:
        """Forward."""
        async with self._client(caller) as client:
            return await client.cancel_move(move)

    async def create_volume(self, caller: Identity, request: VolumeRequest) -> AsyncIterator[VolumeStatus]:
        """Forward."""
        async with self._client(caller) as client, _closing(client.create_volume(request)) as found:
            async for status in found:
                yield status

    async def resize_volume(self, caller: Identity, name: str, *, size_bytes: int) -> AsyncIterator[VolumeStatus]:
        """Forward."""
        async with self._client(caller) as client, _closing(client.resize_volume(name, size_bytes=size_bytes)) as found:
            async for status in found:
                yield status

    async def delete_volume(self, caller: Identity, name: str) -> AsyncIterator[VolumeStatus]:
        """Forward."""
        async with self._client(caller) as client, _closing(client.delete_volume(name)) as found:
            async for status in found:
                yield status

    async def list_volumes(self, caller: Identity) -> tuple[VolumeStatus, ...]:
        """Forward."""
        async with self._client(caller) as client:
            return await client.list_volumes()

    async def adopt_volume(self, caller: Identity, request: AdoptRequest) -> AsyncIterator[VolumeStatus]:
        """Forward."""
        async with self._client(caller) as client, _closing(client.adopt_volume(request)) as found:
            async for status in found:
                yield status

    async def attach_volume(self, caller: Identity, request: AttachRequest) -> AsyncIterator[VolumeStatus]:
        """Forward."""
        async with self._client(caller) as client, _closing(client.attach_volume(request)) as found:
            async for status in found:
                yield status

    async def detach_volume(self, caller: Identity, name: str) -> AsyncIterator[VolumeStatus]:
        """Forward."""
        async with self._client(caller) as client, _closing(client.detach_volume(name)) as found:
            async for status in found:
                yield status

    async def list_chassis(self, caller: Identity) -> tuple[ChassisStatus, ...]:
        """Forward."""
        async with self._client(caller) as client:
            return await client.list_chassis()

    async def read_audit(self, caller: Identity, *, since: str) -> AsyncIterator[AuditRecord]:
        """Forward."""
        async with self._client(caller) as client, _closing(client.read_audit(since=since)) as found:
            async for record in found:
                yield record

    async def cluster_info(self, caller: Identity) -> ClusterInfo:
        """Answer with this node; with the scheduler's word when it can be had, else with why not."""
        error = self._scheduler.error
        known = ClusterInfo()
        if not error:
            try:
                async with self._client(caller) as client:
                    known = await client.cluster_info()
            except FarbusError as problem:
                error = str(problem)
        return ClusterInfo(
            scheduler_version=known.scheduler_version,
            term=known.term,
            lease_ttl_s=known.lease_ttl_s,
            nodes=known.nodes,
            jobs_queued=known.jobs_queued,
            jobs_running=known.jobs_running,
            node=self._node,
            agent_version=__version__,
            scheduler_error=error,
        )

    def leave(self) -> None:
        """Let what is held go on when the callers' streams end: they come back to the next agent."""
        self._leaving = True

    async def hold(
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
        """Submit an interactive job for this node, tell how it goes, and end it when the caller leaves.

        With ``job_id`` go on with one whose caller's stream broke.
        """
        if len(self._exits) >= MAX_HOLDS:
            raise Unavailable(f"node {self._node}: {MAX_HOLDS} programs hold devices already", hint="try later")
        if job_id:
            await self._claim(caller, job_id)
        else:
            group = TaskGroup(name="main", command=(), requests=requests, node=self._node, routes=routes)
            job = Job(
                id="",
                name=name,
                user=caller.name,
                groups=(group,),
                interactive=True,
                goal=goal,
                application=application,
            )
            submission = asyncio.create_task(self._submit(caller, job), name="submit for a terminal")
            try:
                job_id = await asyncio.shield(submission)
            except asyncio.CancelledError:
                # The scheduler may have it already, or is about to.  What an agent that stops has, the next one ends.
                if not self._leaving:
                    self._group.create_task(self._end_submitted(caller, submission), name="end what has no terminal")
                raise
        held = (caller, job_id)
        self._exits[held] = None
        try:
            async with contextlib.aclosing(self._follow(caller, job_id, wait_limit_s)) as events:
                async for event in events:
                    yield event
        finally:
            exit_code = self._exits.pop(held, None)
            if not self._leaving:
                # In a task of its own: the caller's going away cancels this one.
                self._group.create_task(self._cancel(caller, job_id, exit_code), name=f"cancel {job_id}")

    async def _submit(self, caller: Identity, job: Job) -> str:
        async with self._client(caller) as client:
            job_id, _ = await client.submit(job)
        return job_id

    async def _end_submitted(self, caller: Identity, submission: asyncio.Task[str]) -> None:
        """End a job whose caller has left before he could hear what it is called."""
        await asyncio.wait({submission})
        if not submission.cancelled() and submission.exception() is None:
            await self._cancel(caller, submission.result(), None)

    async def _claim(self, caller: Identity, job_id: str) -> None:
        """Check that a job is the caller's to hold, and here; raise :class:`NotFound` for any other."""
        if (caller, job_id) in self._exits:
            raise Conflict(f"job {job_id} is held already", hint="a program has one terminal")
        # What an earlier agent held is known before anything else happens.
        await self._service.restored.wait()
        holder = self._service.machine.holder(job_id, HOLD_TASK)
        if holder is None:
            # It has no devices here: it waits for them, or has lost them.  The scheduler knows.
            async with self._client(caller) as client:
                job = (await client.get_job(job_id)).job
            holder = job.user if job.interactive and job.groups[0].node == self._node else None
        if holder != caller.name:
            raise NotFound(f"job {job_id} is of no program of yours on node {self._node}")
        self._service.post(HoldClaimed(job=job_id, task=HOLD_TASK))

    async def _wait_for_scheduler(self) -> None:
        """Give a scheduler that has just gone the time to restart; raise :class:`Unavailable` for one that is away."""
        while self._scheduler.error:
            if self._clock.monotonic() >= self._scheduler.lost_at + SCHEDULER_PATIENCE_S:
                raise Unavailable(self._scheduler.error)
            await self._clock.sleep(SCHEDULER_LOOK_S)

    async def _follow(self, caller: Identity, job_id: str, wait_limit_s: float) -> AsyncGenerator[HoldEvent, None]:
        queue: asyncio.Queue[HoldEvent | FarbusError] = asyncio.Queue(HOLD_EVENTS)
        watches = [asyncio.create_task(self._watch(caller, job_id, queue), name=f"hold {job_id}")]
        started = self._clock.monotonic()
        ready = False
        try:
            while True:
                left = wait_limit_s - (self._clock.monotonic() - started)
                try:
                    async with asyncio.timeout(max(0.0, left) if wait_limit_s and not ready else None):
                        event = await queue.get()
                except TimeoutError as error:
                    raise TimedOut(
                        f"job {job_id}: no devices after {wait_limit_s:g} s", hint=f"farbus explain {job_id} says why"
                    ) from error
                if isinstance(event, FarbusError):
                    raise event
                if isinstance(event, HoldReady):
                    ready = True
                    watches.append(asyncio.create_task(self._watch_loss(job_id, queue), name=f"loss of {job_id}"))
                yield event
                if isinstance(event, HoldLost):
                    return
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _watch_loss(self, job_id: str, queue: asyncio.Queue[HoldEvent | FarbusError]) -> None:
        """Tell when this node has given the devices up, also while the scheduler is away."""
        await self._service.until(lambda machine: machine.client_environment(job_id, HOLD_TASK) is None)
        await queue.put(HoldLost(reason=f"job {job_id}: its devices are gone from this node"))

    async def _watch(self, caller: Identity, job_id: str, queue: asyncio.Queue[HoldEvent | FarbusError]) -> None:
        """Put what becomes of the job into ``queue``."""
        ready = False
        backoff = Backoff()
        while True:
            try:
                async with self._client(caller) as client, _closing(client.watch_job(job_id)) as statuses:
                    async for status in statuses:
                        backoff.reset()
                        if JOB_STATES.is_final(status.state) or status.state is JobState.FINISHING:
                            reason = status.reason or f"job {job_id} is {status.state}"
                            await queue.put(HoldLost(reason=reason))
                            return
                        if status.state is JobState.RUNNING and not ready:
                            environment = self._service.machine.client_environment(job_id, HOLD_TASK)
                            if environment is None:
                                await queue.put(HoldLost(reason=f"job {job_id}: its devices are gone from this node"))
                                return
                            ready = True
                            self._service.post(HoldClaimed(job=job_id, task=HOLD_TASK))
                            await queue.put(HoldReady(status=status, environment=environment))
                        elif not ready:
                            await queue.put(HoldWaiting(status=status))
            except (NotFound, NotPermitted) as error:
                await queue.put(error)
                return
            except FarbusError:
                # A scheduler that is away forgets no job and does not take the devices; the end of the lease does.
                heed_cancellation()
            await self._clock.sleep(backoff.next_s())

    async def _cancel(self, caller: Identity, job_id: str, exit_code: int | None) -> None:
        """End a job whose caller has left; again until the scheduler has heard it."""
        backoff = Backoff()
        while True:
            try:
                async with self._client(caller) as client:
                    await client.cancel_job(job_id, released=True, exit_code=exit_code)
            except (NotFound, NotPermitted):
                return
            except FarbusError as error:
                heed_cancellation()
                _log.warning("job not cancelled yet", job=job_id, error=str(error))
            else:
                return
            await self._clock.sleep(backoff.next_s())


@contextlib.asynccontextmanager
async def _closing(stream: AsyncIterator[T]) -> AsyncGenerator[AsyncIterator[T], None]:
    """Close a stream of the client's however the block ends: that is what ends its call."""
    try:
        yield stream
    finally:
        await cast(AsyncGenerator[T, None], stream).aclose()
