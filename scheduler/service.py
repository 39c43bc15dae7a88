"""What people ask of the scheduler: :class:`farbus.api.server.ClusterHandler`.

A user sees and ends only his own jobs, an operator everybody's.  Nodes and
devices are seen by all, but not whose jobs use them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
import itertools
import math
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import structlog

from farbus import __version__
from farbus.api.audit import AuditRecord, read_records
from farbus.api.identity import Identity
from farbus.api.merging import merged
from farbus.api.server import ClusterHandler
from farbus.errors import InvalidInput, NotFound, NotPermitted, Unsatisfiable
from farbus.model.cluster import ClusterInfo, HoldEvent, LogChunk
from farbus.model.decision import Decision
from farbus.model.device import DeviceStatus, Route
from farbus.model.explanation import Explanation
from farbus.model.fabric import ChassisStatus
from farbus.model.job import (
    GPU_SHARE,
    NO_GOAL,
    FlavourCheck,
    Goal,
    Job,
    JobStatus,
    Miss,
    Requests,
    TaskPlacement,
    TaskState,
)
from farbus.model.lease import LeaseStatus
from farbus.model.move import MoveRequest, MoveStatus
from farbus.model.node import NodeStatus, Resources
from farbus.model.operation import CordonResult, DrainStatus, ForgottenNode, RoomPlan
from farbus.model.profile import ApplicationProfile
from farbus.model.rules import QuotaStatus
from farbus.model.states import JobState
from farbus.model.telemetry import ClusterTelemetry
from farbus.model.volume import AdoptRequest, AttachRequest, VolumeRequest, VolumeStatus
from farbus.scheduler import events
from farbus.scheduler.engine import Engine, no_such_job
from farbus.scheduler.explaining import Explaining
from farbus.scheduler.ledger import job_id_of, job_number
from farbus.scheduler.operator_service import OperatorService
from farbus.scheduler.phases.volume import VolumePhase
from farbus.scheduler.queue import validate_job, with_remote_network
from farbus.scheduler.quotas import check_rules
from farbus.scheduler.relay import LogRelay
from farbus.scheduler.telemetry import node_telemetry
from farbus.scheduler.templates import TemplateStore
from farbus.scheduler.volume_requests import with_storage_settled
from farbus.scheduler.volume_service import VolumeService

_log = structlog.get_logger()

TELEMETRY_BATCH = 16
"""Nodes whose telemetry is put together before others have their turn: a millisecond or two."""

MIN_EXIT_CODE, MAX_EXIT_CODE = -64, 255
"""Exit codes of programs, and signals below zero (signal(7): the last is 64)."""

AUDIT_BATCH = 1_024
"""Audit records that are read from the disk at a time."""

MAX_SHAPES = 1_024
"""Kinds of job whose possibility is remembered, so that a batch of equal ones is checked once."""


class ClusterService(ClusterHandler):
    """See the module; ``next_job`` is the number of the first job it will queue."""

    def __init__(
        self,
        engine: Engine,
        relay: LogRelay,
        *,
        next_job: int,
        lease_ttl_s: float,
        now: Callable[[], float],
        audit_logs: Sequence[Path] = (),
        check_files: Callable[[Identity, Job], Awaitable[None]] | None = None,
        policy: str = "",
    ) -> None:
        self._check_files = check_files
        self._audit_logs = audit_logs
        self._engine = engine
        self._relay = relay
        self._next_job = next_job
        self._lease_ttl_s = lease_ttl_s
        self._now = now
        live = (record.job.submitted_at for record in engine.machine.jobs.values())
        self._latest_submission = max(live, default=0.0)
        self._operator_service = OperatorService(engine)
        self._volumes = VolumeService(engine, policy=policy, in_turn=self._in_turn)
        self._explaining = Explaining(engine, now)
        self._templates = TemplateStore()
        self._shapes: OrderedDict[tuple[int, bytes], tuple[Miss, ...]] = OrderedDict()

    # --- jobs ----------------------------------------------------------------------------

    async def submit(self, caller: Identity, job: Job, *, check_only: bool) -> tuple[str, JobStatus | None]:
        """Queue ``job``."""
        owner = job.user or caller.name
        if not caller.may_manage(owner):
            raise NotPermitted(
                f"user: {caller.name} may not submit a job as {owner}", hint="leave it out, or ask an operator"
            )
        wall = time.time()
        rules = self._engine.machine.rules
        if rules.max_time_limit_s and not job.time_limit_s and not caller.is_operator and not job.interactive:
            job = msgspec.structs.replace(job, time_limit_s=rules.max_time_limit_s)
        job = msgspec.structs.replace(job, id="", user=owner, submitted_at=wall)
        validate_job(job)
        if job.composites:
            job = self._templates.expand(job)
            validate_job(job)
        self._check_routes(job)
        self._check_beside(job)
        job = with_storage_settled(self._engine.machine, caller, job)
        job = with_remote_network(job, rules.remote_network_mbit_s)
        check_rules(job, rules, by_operator=caller.is_operator)
        if job.interactive and (not caller.node or any(group.node != caller.node for group in job.groups)):
            raise NotPermitted(
                "interactive: only the agent of the program's node may submit such a job", hint="use farbus run there"
            )
        if self._check_files is not None and not check_only:
            await self._check_files(caller, job)
        impossible = await self._impossible(job)
        if impossible:
            told = "; ".join(miss.message for miss in impossible)
            raise Unsatisfiable(
                f"job {job.name} can never fit on this cluster: {told}",
                hint=_advice(impossible),
            )
        if check_only:
            return "", await self._would_be(job)
        self._engine.machine.queue.check_room(job)
        # Once more: a volume that it names may be gone by now, and from here on it is kept for it.
        job = with_storage_settled(self._engine.machine, caller, job)
        job = msgspec.structs.replace(self._in_turn(job), id=self._new_job_id())
        await self._engine.tell(events.JobSubmitted(job=job))
        _log.info("job submitted", job=job.id, user=job.user, name=job.name)
        return job.id, None

    def _new_job_id(self) -> str:
        self._next_job += 1
        return job_id_of(self._next_job - 1)

    def _check_routes(self, job: Job) -> None:
        """Refuse recomposition where nothing can be moved; where something can, a round says whether it helps."""
        wanted = any(Route.RECOMPOSED in group.routes for name in job.flavours for group in job.in_flavour(name).groups)
        if wanted and not self._engine.machine.has_pools():
            raise InvalidInput(
                "routes: recomposed: no agent serves a chassis whose devices could be moved",
                hint="farbus fabric ports shows chassis; use local, remote or both",
            )

    def _check_beside(self, job: Job) -> None:
        """Refuse a neighbour that its user has not: nothing could be near to it."""
        other = self._engine.machine.jobs.get(job.beside)
        if job.beside and (other is None or other.job.user != job.user):
            raise NotFound(
                f"beside: {job.user} has no job {job.beside} that waits or runs",
                hint="farbus jobs lists them; correct it or leave it out",
            )

    def _in_turn(self, job: Job) -> Job:
        """Return ``job`` submitted after all others: a wall clock that was set back puts nobody ahead of who waits."""
        at = max(math.nextafter(self._latest_submission, math.inf), job.submitted_at)
        self._latest_submission = at
        goal = job.goal
        if goal.deadline_s and at > job.submitted_at:
            # It counts from the submission as it was.
            goal = msgspec.structs.replace(goal, deadline_s=0.0, deadline_at=job.submitted_at + goal.deadline_s)
        return msgspec.structs.replace(job, submitted_at=at, goal=goal)

    async def _impossible(self, job: Job) -> tuple[Miss, ...]:
        """Return why no state of the present cluster could serve ``job``.

        Nothing is impossible before the first node has joined.
        """
        machine = self._engine.machine
        if not any(record.node is not None for record in machine.nodes.values()):
            return ()
        # By digest: some jobs have megabytes of commands.
        wanted = hashlib.sha256(msgspec.json.encode((job.groups, job.alternatives, job.interactive))).digest()
        shape = (machine.shape, wanted)
        if shape not in self._shapes:
            decision = await self._engine.maker.would_be(machine.snapshot(self._now()), job)
            misses = tuple(miss for missed in decision.misses for miss in missed.misses if miss.permanent)
            if any(machine.is_lost(name) for name in job.volumes):
                # What is lost may come back; what it lacks is told while the job waits.
                misses = tuple(miss for miss in misses if miss.phase != VolumePhase.name)
            self._shapes[shape] = misses
            while len(self._shapes) > MAX_SHAPES:
                self._shapes.popitem(last=False)
        return self._shapes[shape]

    async def _would_be(self, job: Job) -> JobStatus:
        machine = self._engine.machine
        profile = machine.inference.known(job)
        decision = await self._engine.maker.would_be(machine.snapshot(self._now()), job, profile=profile)
        alternative = next((placed.alternative for placed in decision.placements), "")
        placements, misses = _parts(decision)
        names = ("", *(each.name for each in job.alternatives)) if job.alternatives else ()
        flavours = tuple([await self._flavour(job, name) for name in names])
        return JobStatus(
            job=job,
            state=JobState.QUEUED,
            placements=placements,
            misses=misses,
            alternative=alternative,
            flavours=flavours,
        )

    async def _flavour(self, job: Job, name: str) -> FlavourCheck:
        machine, alone = self._engine.machine, job.in_flavour(name)
        profile = machine.inference.known(job)
        decision = await self._engine.maker.would_be(machine.snapshot(self._now()), alone, profile=profile)
        placements, misses = _parts(decision)
        room = sum((group.requests.resources * group.count for group in alone.groups), Resources())
        return FlavourCheck(
            alternative=name,
            **msgspec.structs.asdict(room),
            gpus=sum(group.count * group.requests.gpus for group in alone.groups),
            placements=placements,
            misses=misses,
        )

    async def list_jobs(self, caller: Identity, *, include_ended: bool) -> tuple[JobStatus, ...]:
        """Return the jobs that the caller may see, oldest first; attachments of volumes only with those ended."""
        # First: a job that ends between the two looks is in both, and not in neither.
        live = tuple(
            record.status()
            for record in self._engine.machine.jobs.values()
            if caller.may_manage(record.job.user) and (include_ended or not record.job.attachment)
        )
        ended: tuple[JobStatus, ...] = ()
        if include_ended:
            user = None if caller.is_operator else caller.name
            ended = await asyncio.wrap_future(self._engine.ledger.ended_jobs(user=user))
        known = {status.job.id for status in ended}
        found = ended + tuple(status for status in live if status.job.id not in known)
        return tuple(sorted(found, key=lambda status: job_number(status.job.id)))

    async def get_job(self, caller: Identity, job_id: str) -> JobStatus:
        """Return one job."""
        status = await self._engine.find(job_id)
        _check_manages(caller, status.job)
        return status

    async def _find_job(self, caller: Identity, job_id: str) -> Job:
        """Return what a job asks for, without all that has become of its tasks."""
        record = self._engine.machine.jobs.get(job_id)
        job = record.job if record is not None else (await self._engine.find(job_id)).job
        _check_manages(caller, job)
        return job

    async def watch_job(self, caller: Identity, job_id: str) -> AsyncIterator[JobStatus]:
        """Yield the job now and at every change, until it has ended."""
        await self._find_job(caller, job_id)
        async with contextlib.aclosing(self._engine.watch(job_id)) as statuses:
            async for status in statuses:
                yield status

    async def cancel_job(
        self, caller: Identity, job_id: str, *, released: bool, exit_code: int | None = None
    ) -> JobStatus:
        """Start ending the job; one that has ended stays as it is."""
        status = await self.get_job(caller, job_id)
        if exit_code is not None and not MIN_EXIT_CODE <= exit_code <= MAX_EXIT_CODE:
            raise InvalidInput(
                f"job {job_id}: {exit_code} is no exit code", hint="0 to 255, or a signal's number below 0"
            )
        released = (released and status.job.interactive) or status.job.attachment
        reason = "" if released and status.job.interactive else f"cancelled by {caller.name}"
        await self._engine.tell(
            events.JobCancelled(
                job_id=job_id,
                reason=reason,
                released=released,
                exit_code=exit_code if status.job.interactive else None,
            )
        )
        _log.info("job released" if released else "job cancelled", job=job_id, by=caller.name)
        return await self._engine.find(job_id)

    async def read_logs(
        self, caller: Identity, job_id: str, *, task: str, follow: bool, position: int = 0
    ) -> AsyncIterator[LogChunk]:
        """Yield a task's output; with ``follow`` wait for the task to start, and for its end."""
        job = await self._find_job_to_read(caller, job_id)
        positions = dict.fromkeys(_tasks_to_read(job, (task,)), position)
        async with contextlib.aclosing(self._read(caller, job_id, positions, follow=follow)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def read_several_logs(
        self, caller: Identity, job_id: str, positions: Mapping[str, int], *, follow: bool
    ) -> AsyncIterator[LogChunk]:
        """Yield the output of tasks as it comes; with ``follow`` wait for all of them to start, and for their end."""
        job = await self._find_job_to_read(caller, job_id)
        positions = dict(zip(_tasks_to_read(job, positions), positions.values(), strict=True))
        async with contextlib.aclosing(self._read(caller, job_id, positions, follow=follow)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _find_job_to_read(self, caller: Identity, job_id: str) -> Job:
        job = await self._find_job(caller, job_id)
        if job.attachment:
            raise InvalidInput(f"job {job_id} keeps a volume attached: it has no program, and no output")
        if job.interactive:
            raise InvalidInput(f"job {job_id} is interactive: its output is in the terminal of its program")
        return job

    async def _read(
        self, caller: Identity, job_id: str, positions: Mapping[str, int], *, follow: bool
    ) -> AsyncGenerator[LogChunk, None]:
        found = await self._find_logs(job_id, positions, wait=follow)
        by_node: dict[str, dict[str, int]] = {}
        for task, node in found.items():
            by_node.setdefault(node, {})[task] = positions[task]
        streams = [
            self._relay.read(node, job_id, there, user=caller.name, follow=follow) for node, there in by_node.items()
        ]
        async with contextlib.aclosing(merged(streams)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _find_logs(self, job_id: str, tasks: Iterable[str], *, wait: bool) -> dict[str, str]:
        """Return the nodes that have tasks' logs: where they started, or may have.

        With ``wait`` once there is one of each, or the job has ended.
        """
        left, found = list(tasks), dict[str, str]()
        with self._engine.watching((job_id,)) as changed:
            while True:
                changed.clear()
                record = self._engine.machine.jobs.get(job_id)
                if record is None:
                    nodes = {each.task: each.node for each in (await self._engine.find(job_id)).tasks}
                    return found | {task: nodes[task] for task in left if nodes.get(task)}
                ready = record.state in (JobState.RUNNING, JobState.FINISHING)
                waiting = []
                while left:
                    task = left.pop()
                    run = record.run(task)
                    # Of one that comes late the job's state says nothing.
                    if run is not None and ((ready and not run.late) or run.status().state is not TaskState.PENDING):
                        found[task] = run.node
                        continue
                    waiting.append(task)
                    if wait:
                        # One is enough to wait for, and each task of a large job changes it.
                        break
                left += waiting
                if not wait or not left:
                    return found
                await changed.wait()

    async def explain(self, caller: Identity, job_id: str) -> Explanation:
        """Return the job and why it is where it is, in words and as values."""
        return await self._explaining.explain(caller, await self.get_job(caller, job_id))

    # --- the cluster ---------------------------------------------------------------------

    async def list_nodes(self, caller: Identity) -> tuple[NodeStatus, ...]:
        """Return all nodes."""
        return self._engine.machine.node_statuses(self._now())

    async def list_devices(self, caller: Identity) -> tuple[DeviceStatus, ...]:
        """Return all devices; whose job uses one is shown to those who may see the job."""
        machine = self._engine.machine
        statuses = []
        for status in machine.device_statuses():
            lease, kept = machine.leases.get(status.lease), machine.kept_for(status.device.id)
            hidden: dict[str, str] = {}
            if lease is not None and not caller.may_manage(lease.lease.user):
                hidden |= {"lease": "", "job": "", "used_by": "another user"}
            if kept is not None and not caller.may_manage(kept.user):
                hidden |= {"kept_for": "another user"}
            statuses.append(msgspec.structs.replace(status, **hidden) if hidden else status)
        return tuple(statuses)

    async def get_telemetry(self, caller: Identity, *, nodes: Collection[str]) -> ClusterTelemetry:
        """Return how busy nodes are; other users' sessions are left out."""
        machine = self._engine.machine
        wanted = sorted(set(nodes) & machine.nodes.keys() if nodes else machine.nodes)
        found = []
        for number, name in enumerate(wanted):
            if number % TELEMETRY_BATCH == TELEMETRY_BATCH - 1:
                # Of thousands of nodes this takes a while: heartbeats go first.
                await asyncio.sleep(0)
            record = machine.nodes.get(name)
            if record is not None and record.node is not None:
                found.append(node_telemetry(machine, record, caller, self._now()))
        return ClusterTelemetry(nodes=tuple(found))

    async def list_leases(self, caller: Identity, *, include_released: bool) -> tuple[LeaseStatus, ...]:
        """Return the leases that the caller may see, without their secrets."""
        # First, as of jobs.
        live = tuple(
            status
            for status in self._engine.machine.lease_statuses(self._now())
            if caller.may_manage(status.lease.user)
        )
        released: tuple[LeaseStatus, ...] = ()
        if include_released:
            user = None if caller.is_operator else caller.name
            released = await asyncio.wrap_future(self._engine.ledger.released_leases(user=user))
        known = {status.lease.id for status in released}
        return released + tuple(status for status in live if status.lease.id not in known)

    async def list_quotas(self, caller: Identity) -> tuple[QuotaStatus, ...]:
        """Return what users have and may have: all to an operator, his own to a user."""
        machine = self._engine.machine
        found = machine.accounts.statuses(machine.rules, machine.queue.of_users(), machine.stored_bytes())
        if caller.is_operator:
            return found
        own = tuple(status for status in found if status.user == caller.name)
        quota = machine.rules.quota_of(caller.name)
        nothing = QuotaStatus(
            user=caller.name,
            jobs_limit=quota.jobs,
            devices_limit=quota.devices,
            volume_bytes_limit=quota.volume_bytes,
        )
        return own or (nothing,)

    async def list_profiles(self, caller: Identity, *, application: str) -> tuple[ApplicationProfile, ...]:
        """Return what is known: all to an operator, to a user what his own jobs are placed by."""
        inference = self._engine.machine.inference
        found = tuple(each for each in inference.profiles() if not each.user or caller.may_manage(each.user))
        if not application:
            return found
        return tuple(inference.with_runs(each) for each in found if each.application == application)

    async def cluster_info(self, caller: Identity) -> ClusterInfo:
        """Return one line about the cluster."""
        machine = self._engine.machine
        return ClusterInfo(
            scheduler_version=__version__,
            term=machine.term,
            lease_ttl_s=self._lease_ttl_s,
            nodes=sum(1 for record in machine.nodes.values() if record.connected),
            jobs_queued=len(machine.queue) - len(machine.attachments),
            jobs_running=sum(
                1 for record in machine.jobs.values() if record.state is JobState.RUNNING and not record.job.attachment
            ),
        )

    # --- operators -----------------------------------------------------------------------

    async def cordon(self, caller: Identity, name: str, *, reason: str) -> CordonResult:
        """Give a node or device nothing new."""
        return await self._operator_service.cordon(caller, name, reason=reason)

    async def uncordon(self, caller: Identity, name: str) -> CordonResult:
        """Take a cordon back."""
        return await self._operator_service.uncordon(caller, name)

    async def drain(self, caller: Identity, node: str, *, evict: bool, reason: str) -> AsyncIterator[DrainStatus]:
        """Cordon a node and yield the jobs that use it until none does."""
        async with contextlib.aclosing(
            self._operator_service.drain(caller, node, evict=evict, reason=reason)
        ) as statuses:
            async for status in statuses:
                yield status

    async def forget(self, caller: Identity, node: str) -> ForgottenNode:
        """Release what a node holds that is off for good."""
        return await self._operator_service.forget(caller, node)

    async def move_device(
        self, caller: Identity, request: MoveRequest, *, local: bool = False
    ) -> AsyncIterator[MoveStatus]:
        """Have a device moved and yield how far it is, until it has ended."""
        if local:
            raise InvalidInput("the scheduler moves no device without itself", hint="use --local on the device's node")
        async with contextlib.aclosing(self._operator_service.move_device(caller, request)) as statuses:
            async for status in statuses:
                yield status

    async def list_moves(self, caller: Identity, *, include_ended: bool) -> tuple[MoveStatus, ...]:
        """Return moves of devices."""
        return await self._operator_service.list_moves(include_ended=include_ended)

    async def cancel_move(self, caller: Identity, move: str) -> MoveStatus:
        """Call a move of a device off."""
        return await self._operator_service.cancel_move(caller, move)

    async def create_volume(self, caller: Identity, request: VolumeRequest) -> AsyncIterator[VolumeStatus]:
        """Have a volume made and yield how far it is, until it is there."""
        async with contextlib.aclosing(self._volumes.create(caller, request)) as statuses:
            async for status in statuses:
                yield status

    async def resize_volume(self, caller: Identity, name: str, *, size_bytes: int) -> AsyncIterator[VolumeStatus]:
        """Have a volume made larger and yield how far it is, until it is."""
        async with contextlib.aclosing(self._volumes.resize(caller, name, size_bytes)) as statuses:
            async for status in statuses:
                yield status

    async def delete_volume(self, caller: Identity, name: str) -> AsyncIterator[VolumeStatus]:
        """Have a volume removed and yield how far it is, until it is gone."""
        async with contextlib.aclosing(self._volumes.delete(caller, name)) as statuses:
            async for status in statuses:
                yield status

    async def list_volumes(self, caller: Identity) -> tuple[VolumeStatus, ...]:
        """Return the volumes that the caller may see."""
        return await self._volumes.list(caller)

    async def adopt_volume(self, caller: Identity, request: AdoptRequest) -> AsyncIterator[VolumeStatus]:
        """Take parts that nobody knows into the ledger, and yield how far it is, until that is done."""
        async with contextlib.aclosing(self._volumes.adopt(caller, request)) as statuses:
            async for status in statuses:
                yield status

    async def attach_volume(self, caller: Identity, request: AttachRequest) -> AsyncIterator[VolumeStatus]:
        """Have a volume attached to a node and yield how far it is, until it can be used there."""
        attaching = self._volumes.attach(caller, request, new_job_id=self._new_job_id)
        async with contextlib.aclosing(attaching) as statuses:
            async for status in statuses:
                yield status

    async def detach_volume(self, caller: Identity, name: str) -> AsyncIterator[VolumeStatus]:
        """Take a volume from its node and yield how far it is, until it is free."""
        async with contextlib.aclosing(self._volumes.detach(caller, name)) as statuses:
            async for status in statuses:
                yield status

    async def list_chassis(self, caller: Identity) -> tuple[ChassisStatus, ...]:
        """Return all chassis."""
        return self._engine.machine.chassis_statuses()

    async def set_profile(self, caller: Identity, profile: ApplicationProfile) -> ApplicationProfile:
        """Have a profile count before what is learned."""
        return await self._operator_service.set_profile(caller, profile)

    async def forget_profile(
        self, caller: Identity, application: str, *, user: str | None
    ) -> tuple[ApplicationProfile, ...]:
        """Forget an application."""
        return await self._operator_service.forget_profile(caller, application, user=user)

    async def defragment(self, caller: Identity, job_id: str, *, dry_run: bool) -> RoomPlan:
        """Move moveable jobs so that a waiting one has room."""
        return await self._operator_service.defragment(caller, job_id, dry_run=dry_run)

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
        """Refuse: the connection that holds devices is one to an agent."""
        raise InvalidInput(
            "the scheduler does not hold devices for a terminal", hint="use farbus run on a node with an agent"
        )
        yield  # makes this a generator, as the interface asks

    async def read_audit(self, caller: Identity, *, since: str) -> AsyncIterator[AuditRecord]:
        """Yield the records of all logs that are kept here, in the order of their times."""
        del caller
        logs = (read_records(path, since=since) for path in self._audit_logs)
        records = heapq.merge(*logs, key=lambda record: record.at)
        while batch := await asyncio.to_thread(lambda: tuple(itertools.islice(records, AUDIT_BATCH))):
            for record in batch:
                yield record


def _parts(decision: Decision) -> tuple[tuple[TaskPlacement, ...], tuple[Miss, ...]]:
    """Return what a decision on one job places, and what it misses."""
    placements = tuple(task for placed in decision.placements for task in placed.tasks)
    return placements, tuple(miss for missed in decision.misses for miss in missed.misses)


def _tasks_to_read(job: Job, tasks: Iterable[str]) -> list[str]:
    """Return ``tasks``, whose empty name is the only one's; raise :class:`NotFound` where the job has one of them not.

    Whoever follows a job of thousands of tasks asks for each of them.
    """
    counts = {group.name: group.count for group in job.groups}
    count = sum(counts.values())
    first, last = f"{job.groups[0].name}.0", f"{job.groups[-1].name}.{job.groups[-1].count - 1}"
    named = []
    for task in tasks:
        if not task and count > 1:
            raise InvalidInput(f"job {job.id} has {count} tasks", hint=f"name one, from {first} to {last}")
        name, _, number = (task or first).rpartition(".")
        is_index = number.isascii() and number.isdigit() and len(number) < 8 and number == str(int(number))
        if not is_index or int(number) >= counts.get(name, 0):
            raise NotFound(f"job {job.id} has no task {task}", hint=f"its tasks are {first} to {last}")
        named.append(task or first)
    return named


def _check_manages(caller: Identity, job: Job) -> None:
    """Raise :class:`NotFound` for a job of somebody else's: it is not told from one that never was."""
    if not caller.may_manage(job.user):
        raise no_such_job(job.id)


def _advice(misses: Sequence[Miss]) -> str:
    """Return what to do where a job never fits: one advice, which does not contradict that of the misses' own words."""
    if all(miss.resource == GPU_SHARE for miss in misses):
        return "farbus devices says what is offered"
    return "ask for less, or add nodes (farbus nodes and farbus devices say what there is)"
