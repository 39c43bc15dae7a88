"""What an agent's socket serves: the cluster, on behalf of the node's users; and holding devices for a terminal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from typing import Protocol

import structlog

from farbus import __version__
from farbus.agent.service import AgentService
from farbus.agent.session import Backoff, heed_cancellation
from farbus.api.client import ClusterClient
from farbus.api.identity import Identity, Role
from farbus.api.server import ClusterHandler
from farbus.errors import FarbusError, NotFound, NotPermitted, TimedOut, Unavailable
from farbus.linux.clock import Clock
from farbus.linux.users import Users
from farbus.model.cluster import ClusterInfo, HoldEvent, HoldLost, HoldReady, HoldWaiting, LogChunk
from farbus.model.device import DeviceStatus, Route
from farbus.model.job import Job, JobStatus, Requests, TaskGroup
from farbus.model.lease import LeaseStatus
from farbus.model.node import NodeStatus
from farbus.model.states import JOB_STATES, JobState
from farbus.model.telemetry import ClusterTelemetry

_log = structlog.get_logger()

MAX_CLIENTS = 256
"""Connections to the scheduler kept at one time: one for each user of the node who calls."""

MAX_HOLDS = 1024
"""Programs that hold devices through one agent at one time."""

SCHEDULER_PATIENCE_S = 5.0
"""How long calls wait after a session was lost: a scheduler that is restarted is back within it."""

SCHEDULER_LOOK_S = 0.1

HOLD_TASK = "main.0"

HOLD_EVENTS = 64
"""Events of one hold that wait for a caller who does not read."""


class SchedulerState(Protocol):
    """What is known of the scheduler: :class:`farbus.agent.session.SessionRunner`."""

    error: str
    lost_at: float


class Identifier:
    """Names the user at the other end of the socket."""

    def __init__(self, *, node: str, users: Users, operators: tuple[str, ...]) -> None:
        self._node = node
        self._users = users
        self._operators = frozenset(operators)

    def __call__(self, uid: int, gid: int, pid: int) -> Identity:
        """Return who has the user id; raise :class:`farbus.errors.NotFound` for one without a name."""
        account = self._users.by_uid(uid)
        role = Role.OPERATOR if account.name in self._operators else Role.USER
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
    ) -> None:
        self._node = node
        self._connect = connect
        self._scheduler = scheduler
        self._service = service
        self._group = group
        self._clock = clock
        self._clients: dict[Identity, ClusterClient] = {}
        self._holds = 0

    async def _client(self, caller: Identity) -> ClusterClient:
        await self._wait_for_scheduler()
        if caller not in self._clients:
            if len(self._clients) >= MAX_CLIENTS:
                raise Unavailable(f"node {self._node}: {MAX_CLIENTS} users are connected already", hint="try later")
            self._clients[caller] = self._connect(caller)
        return self._clients[caller]

    def reconnect(self) -> None:
        """Give up the connections: a new one reaches a new scheduler sooner than one that waits to dial again."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            self._group.create_task(client.close(), name="close connection")

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.close()
        self._clients.clear()

    async def submit(self, caller: Identity, job: Job, *, check_only: bool) -> tuple[str, JobStatus | None]:
        """Forward."""
        return await (await self._client(caller)).submit(job, check_only=check_only)

    async def list_jobs(self, caller: Identity, *, include_ended: bool) -> tuple[JobStatus, ...]:
        """Forward."""
        return await (await self._client(caller)).list_jobs(include_ended=include_ended)

    async def get_job(self, caller: Identity, job_id: str) -> JobStatus:
        """Forward."""
        return await (await self._client(caller)).get_job(job_id)

    async def watch_job(self, caller: Identity, job_id: str) -> AsyncIterator[JobStatus]:
        """Forward."""
        async for status in (await self._client(caller)).watch_job(job_id):
            yield status

    async def cancel_job(self, caller: Identity, job_id: str, *, released: bool) -> JobStatus:
        """Forward."""
        return await (await self._client(caller)).cancel_job(job_id, released=released)

    async def read_logs(self, caller: Identity, job_id: str, *, task: str, follow: bool) -> AsyncIterator[LogChunk]:
        """Forward."""
        async for chunk in (await self._client(caller)).read_logs(job_id, task=task, follow=follow):
            yield chunk

    async def list_nodes(self, caller: Identity) -> tuple[NodeStatus, ...]:
        """Forward."""
        return await (await self._client(caller)).list_nodes()

    async def list_devices(self, caller: Identity) -> tuple[DeviceStatus, ...]:
        """Forward."""
        return await (await self._client(caller)).list_devices()

    async def list_leases(self, caller: Identity, *, include_released: bool) -> tuple[LeaseStatus, ...]:
        """Forward."""
        return await (await self._client(caller)).list_leases(include_released=include_released)

    async def get_telemetry(self, caller: Identity, *, nodes: Collection[str]) -> ClusterTelemetry:
        """Forward."""
        return await (await self._client(caller)).get_telemetry(nodes=nodes)

    async def explain(self, caller: Identity, job_id: str) -> tuple[JobStatus, tuple[str, ...]]:
        """Forward."""
        return await (await self._client(caller)).explain(job_id)

    async def cluster_info(self, caller: Identity) -> ClusterInfo:
        """Answer with this node; with the scheduler's word when it can be had, else with why not."""
        error = self._scheduler.error
        known = ClusterInfo()
        if not error:
            try:
                known = await (await self._client(caller)).cluster_info()
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

    async def hold(
        self, caller: Identity, *, name: str, requests: Requests, routes: tuple[Route, ...], wait_limit_s: float
    ) -> AsyncIterator[HoldEvent]:
        """Submit an interactive job for this node, tell how it goes, and end it when the caller leaves."""
        if self._holds >= MAX_HOLDS:
            raise Unavailable(f"node {self._node}: {MAX_HOLDS} programs hold devices already", hint="try later")
        job = Job(
            id="",
            name=name,
            user=caller.name,
            groups=(TaskGroup(name="main", command=(), requests=requests, node=self._node, routes=routes),),
            interactive=True,
        )
        self._holds += 1
        try:
            job_id, _ = await (await self._client(caller)).submit(job)
            try:
                async with contextlib.aclosing(self._follow(caller, job_id, wait_limit_s)) as events:
                    async for event in events:
                        yield event
            finally:
                # In a task of its own: the caller's going away cancels this one.
                self._group.create_task(self._cancel(caller, job_id), name=f"cancel {job_id}")
        finally:
            self._holds -= 1

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
                async for status in (await self._client(caller)).watch_job(job_id):
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
                        await queue.put(HoldReady(status=status, environment=environment))
                    elif not ready:
                        await queue.put(HoldWaiting(status=status))
            except (NotFound, NotPermitted) as error:
                await queue.put(error)
                return
            except FarbusError as error:
                heed_cancellation()
                if not ready:
                    await queue.put(error)
                    return
            # A scheduler that is away does not take the devices; the end of the lease does.
            await self._clock.sleep(backoff.next_s())

    async def _cancel(self, caller: Identity, job_id: str) -> None:
        """End a job whose caller has left; again until the scheduler has heard it."""
        backoff = Backoff()
        while True:
            try:
                await (await self._client(caller)).cancel_job(job_id, released=True)
            except (NotFound, NotPermitted):
                return
            except FarbusError as error:
                heed_cancellation()
                _log.warning("job not cancelled yet", job=job_id, error=str(error))
            else:
                return
            await self._clock.sleep(backoff.next_s())
