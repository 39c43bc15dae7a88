"""What people ask of the scheduler about volumes: checks, events, and how far it is until that is done."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

import msgspec
import structlog

from farbus.api.identity import Identity
from farbus.errors import Conflict, NotFound, NotPermitted
from farbus.model.job import Job
from farbus.model.states import JobState, VolumeState
from farbus.model.volume import AdoptRequest, AttachRequest, VolumeRequest, VolumeStatus, check_volume_name
from farbus.scheduler import events
from farbus.scheduler.costs.named import POLICIES
from farbus.scheduler.engine import Engine
from farbus.scheduler.lifecycle import ClusterMachine
from farbus.scheduler.queue import validate_mount
from farbus.scheduler.volume_plans import attachment_job, check_resize, plan_adoption, plan_volume
from farbus.scheduler.volume_records import VolumeRecord
from farbus.scheduler.volume_requests import volume_of_caller

_log = structlog.get_logger()


class VolumeService:
    """The calls about volumes, on one engine; ``policy`` names the policy whose composition rules hold."""

    def __init__(self, engine: Engine, *, policy: str, in_turn: Callable[[Job], Job]) -> None:
        self._engine = engine
        self._policy = POLICIES[policy or next(iter(POLICIES))]()
        self._in_turn = in_turn

    @property
    def _machine(self) -> ClusterMachine:
        return self._engine.machine

    async def create(self, caller: Identity, request: VolumeRequest) -> AsyncGenerator[VolumeStatus, None]:
        """Have a volume made, and yield how far it is until it is there, or is taken back."""
        volume = plan_volume(
            self._machine,
            request,
            policy=self._policy,
            user=caller.name,
            by=caller.name,
            at=time.time(),
            now=asyncio.get_running_loop().time(),
        )
        _log.info("volume asked for", volume=volume.name, nodes=volume.nodes, size=volume.size_bytes, by=caller.name)
        await self._engine.tell(events.VolumeAsked(volume=volume))
        async for status in self._watch(volume.id, lambda record: record.volume.state is VolumeState.AVAILABLE):
            yield status

    async def resize(self, caller: Identity, name: str, size_bytes: int) -> AsyncGenerator[VolumeStatus, None]:
        """Have a volume made larger, and yield how far it is until it is."""
        record = volume_of_caller(self._machine, caller, name)
        check_resize(self._machine, record, size_bytes)
        _log.info("volume to be resized", volume=name, size=size_bytes, by=caller.name)
        await self._engine.tell(events.VolumeResizeAsked(name=name, size_bytes=size_bytes, by=caller.name))
        async for status in self._watch(record.volume.id, lambda record: not record.volume.resize_to):
            yield status

    async def delete(self, caller: Identity, name: str) -> AsyncGenerator[VolumeStatus, None]:
        """Have a volume that nobody uses wiped and removed, and yield how far it is until it is gone."""
        record = volume_of_caller(self._machine, caller, name)
        if record.volume.state is not VolumeState.DELETING:
            self._check_unused(record)
            _log.info("volume to be deleted", volume=name, by=caller.name)
            await self._engine.tell(events.VolumeDeletionAsked(name=name, by=caller.name))
        async for status in self._watch(record.volume.id, lambda _: False):
            yield status

    def _check_unused(self, record: VolumeRecord) -> None:
        """Raise :class:`Conflict` for a volume that a job uses, or waits for: it would get another one of that name."""
        name = record.volume.name
        for job_id in sorted(record.jobs):
            job = self._machine.jobs[job_id]
            if job.job.attachment:
                raise Conflict(
                    f"volume {name} is attached to node {job.job.groups[0].node}", hint=f"farbus volume detach {name}"
                )
            waits = "which waits for it" if job.state is JobState.QUEUED else "which uses it"
            raise Conflict(
                f"volume {name} is named by job {job_id} of {job.job.user}, {waits}",
                hint=f"farbus cancel {job_id} ends it",
            )
        if self._machine.lease_of(record.volume) is not None:
            raise Conflict(f"volume {name} is still being given up", hint="farbus volume list says by whom")

    async def list(self, caller: Identity) -> tuple[VolumeStatus, ...]:
        """Return all volumes to an operator, and what nodes have of others; his own to a user."""
        return tuple(status for status in self._machine.volume_statuses() if caller.may_manage(status.user))

    async def adopt(self, caller: Identity, request: AdoptRequest) -> AsyncGenerator[VolumeStatus, None]:
        """Take parts that the ledger does not know into it, and yield how far it is, until that is done."""
        volume = plan_adoption(
            self._machine, request, user=request.user or caller.name, by=caller.name, at=time.time()
        )  # fmt: skip
        _log.info("volume adopted", volume=volume.name, nodes=volume.nodes, remove=request.remove, by=caller.name)
        await self._engine.tell(events.VolumeAsked(volume=volume))
        async for status in self._watch(volume.id, lambda record: record.volume.state is VolumeState.AVAILABLE):
            yield status

    async def attach(
        self, caller: Identity, request: AttachRequest, *, new_job_id: Callable[[], str]
    ) -> AsyncGenerator[VolumeStatus, None]:
        """Have a volume attached to a node, and yield how far it is until it can be used there."""
        machine = self._machine
        check_volume_name(request.volume, field="volume")
        node = machine.nodes.get(request.node)
        if node is None or node.node is None:
            raise NotFound(f"there is no node {request.node[:80]}", hint="farbus nodes lists them")
        _check_operator(caller, request.node)
        record = machine.volumes.get(request.volume)
        if record is None or not (caller.is_operator or caller.may_manage(record.volume.user)):
            raise NotFound(
                f"there is no volume {request.volume} that you may use", hint="farbus volume list lists those"
            )
        validate_mount(request.use, request.path, read_only=request.read_only, field="attachment")
        volume = record.volume
        if volume.state is not VolumeState.AVAILABLE:
            raise Conflict(f"volume {volume.name} is {volume.state}", hint="farbus volume list says why")
        attached = machine.attachment_of(record)
        if attached is not None:
            raise Conflict(
                f"volume {volume.name} is attached to node {attached.job.groups[0].node} already, or is to be",
                hint=f"farbus volume detach {volume.name}",
            )
        job = attachment_job(request, job_id=new_job_id(), user=caller.name, parts=len(volume.parts), at=time.time())
        job = self._in_turn(job)
        _log.info("volume to be attached", volume=volume.name, node=request.node, job=job.id, by=caller.name)
        await self._engine.tell(events.JobSubmitted(job=job))

        def is_done(_: VolumeRecord) -> bool:
            live = machine.jobs.get(job.id)
            return live is None or live.state is JobState.RUNNING

        async for status in self._watch(volume.id, is_done):
            if job.id in machine.jobs:
                yield status
                continue
            ended = await self._engine.find(job.id)
            yield msgspec.structs.replace(status, error=f"it was not attached: {ended.reason or ended.state}")

    async def detach(self, caller: Identity, name: str) -> AsyncGenerator[VolumeStatus, None]:
        """Take a volume from the node that it was attached to, and yield how far it is until it is free."""
        machine = self._machine
        record = machine.volumes.get(name)
        if record is None:
            raise NotFound(f"there is no volume {name[:80]}", hint="farbus volume list lists them")
        job = machine.attachment_of(record)
        if job is None:
            known = machine.volume_status(record)
            if known.job:
                raise Conflict(
                    f"volume {name} is used by job {known.job} on node {known.attached_to}",
                    hint=f"farbus cancel {known.job} ends it",
                )
            raise Conflict(f"volume {name} is attached to no node", hint="farbus volume list shows where volumes are")
        _check_operator(caller, job.job.groups[0].node)
        job_id = job.job.id
        _log.info("volume to be detached", volume=name, job=job_id, by=caller.name)
        await self._engine.tell(events.JobCancelled(job_id=job_id, reason=f"detached by {caller.name}", released=True))

        def is_done(record: VolumeRecord) -> bool:
            lease = machine.volume_status(record).job
            return job_id not in machine.jobs and lease != job_id

        async for status in self._watch(record.volume.id, is_done):
            yield status

    async def _watch(
        self, volume_id: str, is_done: Callable[[VolumeRecord], bool]
    ) -> AsyncGenerator[VolumeStatus, None]:
        """Yield a volume until what was asked of it is done, or it is gone; the caller may leave before that."""
        async with contextlib.aclosing(self._engine.watch_volume(volume_id)) as statuses:
            async for status in statuses:
                # Before it is shown: what happens while the reader takes it is in the next one.
                record = next((each for each in self._machine.volumes.values() if each.volume.id == volume_id), None)
                done = record is not None and is_done(record)
                yield self._machine.volume_status(record) if record is not None and done else status
                if done:
                    return


def _check_operator(caller: Identity, node: str) -> None:
    if not caller.may_operate(node):
        who = f"{caller.name} of node {caller.node}" if caller.node else caller.name
        raise NotPermitted(
            f"{who} does not operate node {node}",
            hint="a job has a volume by [[storage]] in its file; ask an operator to attach it for longer",
        )
