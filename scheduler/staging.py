"""Files of jobs at the scheduler: taken from who submits, given to nodes, and the other way round."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from farbus.api.identity import Identity
from farbus.api.staging import OutputFile, StagingHandler
from farbus.api.v1 import staging_pb2
from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, NotPermitted
from farbus.model.job import Job, JobStatus
from farbus.model.quantity import format_bytes
from farbus.model.staging import MAX_FILES, ReceivedFile, StagedFile, check_digest, check_files, check_path
from farbus.model.states import JOB_STATES
from farbus.scheduler.contents import LEAST_PART_BYTES, UNUSED_KEPT_S, Contents, Key, Limits, user_directory
from farbus.scheduler.engine import Engine, no_such_job
from farbus.scheduler.manifests import Manifests
from farbus.scheduler.outputs import Outputs, TaskOutput
from farbus.scheduler.receiver import Receiver

_log = structlog.get_logger()

SWEEP_INTERVAL_S = 300.0
"""How often what nobody needs any more is looked for."""

SWEEP_AGAIN_S = 5.0
"""Least pause before somebody without room has it looked for again: it costs seconds where there is much."""

OUTPUT_KEPT_S = 7 * 86_400.0
"""How long a job's output waits to be fetched."""

JOBS_PER_TURN = 8_192
"""Jobs that are gone through before others get their turn: a few milliseconds."""

MAX_DIGESTS = 20_001
"""Contents of one question: those of a whole manifest, and the manifest."""


class StagingService(StagingHandler):
    """See the module; ``base`` is a directory of its own."""

    def __init__(
        self, engine: Engine, base: Path, *, limits: Limits, job_limit_bytes: int, wall: Callable[[], float] = time.time
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._contents = Contents(base, limits, wall=wall)
        self._manifests = Manifests(self._contents)
        self._outputs = Outputs(base / "output")
        self._job_limit_bytes = job_limit_bytes
        self._wall = wall
        self._putting: dict[tuple[str, str], asyncio.Task[Any] | None] = {}
        """The calls that send the output of tasks, by job and task."""
        self._sweeping = asyncio.Lock()
        self._swept_at = -SWEEP_AGAIN_S
        """By the event loop's clock."""

    # --- in ------------------------------------------------------------------------------

    async def missing(self, caller: Identity, digests: Sequence[str]) -> dict[str, int]:
        """Return those of the caller's contents that are not there, with how many bytes there are of each."""
        if len(digests) > MAX_DIGESTS:
            raise InvalidInput(f"{len(digests)} contents in one question are more than {MAX_DIGESTS}")
        sizes = await self._contents.sizes(caller.name, digests)
        absent = (each for each, size in zip(digests, sizes, strict=True) if size is None)
        return {each: self._contents.received(caller.name, each) for each in absent}

    async def put(self, caller: Identity, chunks: AsyncIterator[staging_pb2.ContentChunk]) -> staging_pb2.PutReply:
        """Take contents of the caller's."""
        reply = staging_pb2.PutReply()
        with self._contents.sending(caller.name):
            async with contextlib.AsyncExitStack() as stack:
                receiver: Receiver | None = None
                async for chunk in chunks:
                    if chunk.sha256:
                        if receiver is not None:
                            raise InvalidInput("a file began before the one before it was whole")
                        await self._make_room(caller.name, chunk.size)
                        receiver = await stack.enter_async_context(
                            self._contents.receive(
                                caller.name,
                                chunk.size,
                                check_digest(chunk.sha256),
                                part=chunk.sha256,
                                offset=chunk.offset,
                            )
                        )
                    if receiver is None:
                        raise InvalidInput("a piece of a file came before its digest")
                    await receiver.write(chunk.data)
                    if receiver.is_whole:
                        await receiver.finish()
                        reply.files += 1
                        reply.bytes += receiver.size
                        await stack.aclose()
                        receiver = None
                if receiver is not None:
                    raise InvalidInput("the files end in the middle of one")
        return reply

    async def _make_room(self, user: str, size: int) -> None:
        """Look for what jobs have let go of, where there is no room for a file."""
        if self._contents.has_room(user, size):
            return
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with self._sweeping:
            if self._swept_at <= asked:
                await asyncio.sleep(max(0.0, self._swept_at + SWEEP_AGAIN_S - loop.time()))
                await self._sweep()

    async def check(self, caller: Identity, job: Job) -> None:
        """Raise :class:`InvalidInput` where files that ``job`` takes along are not here, or too many."""
        if not job.stage_in:
            return
        if job.user != caller.name:
            raise InvalidInput("stage_in: files can be taken along only by who sent them", hint="leave user out")
        listed = await self._manifests.get(job.user, job.stage_in)
        if listed.total_bytes > self._job_limit_bytes:
            raise InvalidInput(
                f"stage_in: {format_bytes(listed.total_bytes)} are more than the "
                f"{format_bytes(self._job_limit_bytes)} that a job may take along"
            )
        sizes = await self._contents.sizes(job.user, [job.stage_in, *(file.sha256 for file in listed.files)])
        if sizes[0] is None:
            raise InvalidInput("stage_in: the list of files is not here", hint="submit again: it is sent again")
        for file, size in zip(listed.files, sizes[1:], strict=True):
            if size != file.size:
                raise InvalidInput(f"stage_in: {file.path} is not here", hint="submit again: it is sent again")
        self._contents.name(job.user, listed.digests | {job.stage_in})

    async def get(
        self, caller: Identity, job_id: str, digests: Sequence[str], *, offset: int
    ) -> AsyncIterator[staging_pb2.ContentChunk]:
        """Yield contents of a job with a task on the calling node, the first from ``offset`` on."""
        status = await self._job_on(caller, job_id)
        if len(digests) > MAX_DIGESTS:
            raise InvalidInput(f"{len(digests)} contents in one question are more than {MAX_DIGESTS}")
        user, stage_in = status.job.user, status.job.stage_in
        others = frozenset[str]()
        if any(each != stage_in for each in digests):
            others = (await self._manifests.get(user, stage_in)).digests
        for sha256 in digests:
            size = None
            if sha256 == stage_in or sha256 in others:
                (size,) = await self._contents.sizes(user, [sha256])
            if size is None:
                raise NotFound(f"job {job_id}: content {sha256[:64]} is not one of its files, or not here any more")
            if not 0 <= offset <= size:
                raise InvalidInput(f"job {job_id}: content {sha256} has {size} bytes, none at {offset}")
            first = True
            async for data in self._contents.read(user, sha256, offset=offset):
                chunk = staging_pb2.ContentChunk(data=data)
                if first:
                    chunk.sha256, chunk.size, chunk.offset = sha256, size, offset
                first, offset = False, 0
                yield chunk

    async def _job_on(self, node: Identity, job_id: str, task: str | None = None) -> JobStatus:
        """Return a job that has a task on the calling node, or that task."""
        status = await self._engine.find(job_id)
        if not any(each.node == node.name and task in (None, each.task) for each in status.placements):
            raise NotPermitted(f"job {job_id} has no such task on node {node.name}")
        return status

    # --- out -----------------------------------------------------------------------------

    async def put_output(
        self, caller: Identity, chunks: AsyncIterator[staging_pb2.OutputChunk]
    ) -> staging_pb2.PutReply:
        """Take the output of a task of the calling node's; it is there as a whole, or not at all."""
        head = await anext(chunks, None)
        if head is None:
            raise InvalidInput("no output came")
        job = (await self._job_on(caller, head.job_id, head.task)).job
        await self._outputs.load()
        async with self._alone(job.id, head.task):
            with self._contents.sending(job.user):
                files = await self._put_output(job, head.task, chunks)
        return staging_pb2.PutReply(files=len(files), bytes=sum(file.size for file in files))

    @contextlib.asynccontextmanager
    async def _alone(self, job_id: str, task: str) -> AsyncIterator[None]:
        """Have one call send a task's output: an earlier one's connection has broken, also where nobody knows yet."""
        await self._end_earlier(job_id, task)
        self._putting[job_id, task] = asyncio.current_task()
        try:
            yield
        finally:
            del self._putting[job_id, task]

    async def _end_earlier(self, job_id: str, task: str) -> None:
        while (earlier := self._putting.get((job_id, task))) is not None:
            earlier.cancel()
            await asyncio.wait((earlier,))

    async def received_output(self, caller: Identity, job_id: str, task: str) -> tuple[ReceivedFile, ...]:
        """Return what has come of a task's output whose sending broke off."""
        job = (await self._job_on(caller, job_id, task)).job
        await self._outputs.load()
        await self._end_earlier(job.id, task)
        noted = [*(await self._outputs.begun(job.id, task)).values()]
        sizes = iter(await self._contents.sizes(job.user, [file.sha256 for file in noted if file.sha256]))
        found = []
        for file in noted:
            if file.sha256:
                received, sha256 = next(sizes), file.sha256
                if received != file.size:
                    continue
            else:
                part = _part_name(job, task, file)
                received, sha256 = self._contents.received(job.user, part), ""
                if not received or not (sha256 := await self._contents.received_digest(job.user, part)):
                    continue
            found.append(ReceivedFile(path=file.path, size=file.size, received=received, sha256=sha256))
        return tuple(found)

    async def _put_output(
        self, job: Job, task: str, chunks: AsyncIterator[staging_pb2.OutputChunk]
    ) -> tuple[StagedFile, ...]:
        room = self._job_limit_bytes - self._outputs.bytes_of(job.id, besides=task)
        most = min(MAX_FILES, self._limits.user_files - self._outputs.files_of(job.user))
        files: list[StagedFile] = []
        ended = False
        async with contextlib.AsyncExitStack() as whole, contextlib.AsyncExitStack() as stack:
            notes = await whole.enter_async_context(self._outputs.sending(job.id, task, wall=self._wall))
            receiver: Receiver | None = None
            file = StagedFile(path="", size=0, sha256="")
            async for chunk in chunks:
                if chunk.end:
                    ended = True
                    break
                if receiver is None:
                    file = StagedFile(path=chunk.path, size=chunk.size, sha256="", executable=chunk.executable)
                    room -= file.size
                    self._check_output(job, file, most - len(files), room)
                    if chunk.offset and chunk.offset == file.size and chunk.sha256:
                        file = msgspec.structs.replace(file, sha256=chunk.sha256)
                        if await self._contents.sizes(job.user, [file.sha256]) != [file.size]:
                            raise Conflict(f"path {file.path}: it is not here any more", hint="send it as a whole")
                        files.append(file)
                        continue
                    await self._make_room(job.user, file.size)
                    receiving = self._contents.receive(
                        job.user, file.size, part=_part_name(job, task, file), offset=chunk.offset
                    )
                    receiver = await stack.enter_async_context(receiving)
                    if file.size >= LEAST_PART_BYTES:
                        await notes.begin(file)
                await receiver.write(chunk.data)
                if chunk.sha256:
                    file = msgspec.structs.replace(file, sha256=await receiver.finish(check_digest(chunk.sha256)))
                    files.append(file)
                    await notes.add(file)
                    await stack.aclose()
                    receiver = None
        if not ended:
            raise InvalidInput("the output broke off")
        check_files(tuple(files))
        output = TaskOutput(user=job.user, task=task, at=self._wall(), files=tuple(files))
        await self._outputs.write(job.id, output)
        return output.files

    def _check_output(self, job: Job, file: StagedFile, files: int, room: int) -> None:
        path = check_path(file.path)
        if not any(path == out or path.startswith(f"{out}/") for out in job.stage_out):
            raise InvalidInput(f"path {path}: is not of the job's output")
        if files <= 0:
            raise InvalidInput(
                f"path {path}: more than {MAX_FILES} files of output, or {self._limits.user_files} of one user",
                hint="pack them into an archive",
            )
        if room < 0:
            raise InvalidInput(
                f"path {path}: with it the job has more than {format_bytes(self._job_limit_bytes)} of output"
            )

    async def list_output(self, caller: Identity, job_id: str) -> tuple[OutputFile, ...]:
        """Return what a job of the caller's has put out."""
        status = await self._engine.find(job_id)
        if not caller.may_manage(status.job.user):
            raise no_such_job(job_id)
        outputs = await self._outputs.read(status.job.id)
        return await asyncio.to_thread(_files_of, outputs)

    async def get_output(
        self, caller: Identity, job_id: str, files: Sequence[int], digests: Sequence[str], *, offset: int
    ) -> AsyncIterator[staging_pb2.OutputChunk]:
        """Yield files of a job's output, the first from ``offset`` on."""
        listed = await self.list_output(caller, job_id)
        user = (await self._engine.find(job_id)).job.user
        for file in _asked_for(job_id, listed, files, digests):
            first = True
            if not 0 <= offset <= file.size:
                raise InvalidInput(f"job {job_id}: {file.path} has {file.size} bytes, none at {offset}")
            async for data in self._contents.read(user, file.sha256, offset=offset):
                chunk = staging_pb2.OutputChunk(job_id=job_id, task=file.task, data=data)
                if first:
                    chunk.path, chunk.size, chunk.executable = file.path, file.size, file.executable
                    chunk.sha256, chunk.offset = file.sha256, offset
                first, offset = False, 0
                yield chunk

    # --- what nobody needs any more ------------------------------------------------------

    async def keep_sweeping(self) -> None:
        """Remove what nobody needs any more, again and again, until cancelled."""
        while True:
            try:
                await self.sweep()
            except (FarbusError, OSError) as error:
                _log.error("files of jobs not looked through", reason=str(error))
            except Exception:
                # What one look has met, the next one may not.
                _log.exception("files of jobs not looked through")
            await asyncio.sleep(SWEEP_INTERVAL_S)

    async def sweep(self) -> None:
        """Remove output that has waited long enough or whose job is forgotten, and contents that nothing names."""
        async with self._sweeping:
            await self._sweep()

    async def _sweep(self) -> None:
        await self._outputs.load()
        started = self._wall()
        used: set[Key] = set()
        await self._add_taken_along(used)
        await self._add_put_out(used)
        removed = await self._contents.sweep(used, started=started)
        self._swept_at = asyncio.get_running_loop().time()
        if removed:
            _log.info("files removed that no job needs", files=removed)

    async def _add_taken_along(self, used: set[Key]) -> None:
        """Add the contents that live jobs take along."""
        manifests: set[tuple[str, str]] = set()
        records = tuple(self._engine.machine.jobs.values())
        for start in range(0, len(records), JOBS_PER_TURN):
            manifests |= {
                (record.job.user, record.job.stage_in)
                for record in records[start : start + JOBS_PER_TURN]
                if record.job.stage_in and not JOB_STATES.is_final(record.state)
            }
            await asyncio.sleep(0)
        for user, digest in manifests:
            owner = user_directory(user)
            used.add((owner, digest))
            with contextlib.suppress(NotFound, InvalidInput):
                used |= {(owner, each) for each in (await self._manifests.get(user, digest)).digests}
            await asyncio.sleep(0)

    async def _add_put_out(self, used: set[Key]) -> None:
        """Remove outputs that have waited long enough; add the contents of the others."""
        now = self._wall()
        for job_id, at in self._outputs.jobs():
            try:
                user = (await self._engine.find(job_id)).job.user
            except NotFound:
                await self._outputs.remove(job_id)
                continue
            kept = await self._outputs.keys(job_id, user, since=now - UNUSED_KEPT_S)
            sent_now = any(job == job_id for job, _ in self._putting)
            if at < now - OUTPUT_KEPT_S and (at or not kept) and not sent_now:
                await self._outputs.remove(job_id)
            else:
                used |= kept


def _asked_for(
    job_id: str, listed: Sequence[OutputFile], files: Sequence[int], digests: Sequence[str]
) -> list[OutputFile]:
    """Return files of a job's output by their contents, else by where they stand in the list, else all."""
    if digests:
        known = {file.sha256: file for file in listed}
        if any(each not in known for each in digests):
            raise Conflict(f"job {job_id}: its files have changed since they were listed", hint="fetch again")
        return [known[each] for each in digests]
    if any(not 0 <= index < len(listed) for index in files):
        raise NotFound(f"job {job_id} has no such file")
    return [listed[index] for index in files or range(len(listed))]


def _part_name(job: Job, task: str, file: StagedFile) -> str:
    """Return under which name a part of a task's output is kept: its digest is known at its end only."""
    return hashlib.sha256(f"{job.id}\0{task}\0{file.path}\0{file.size}".encode()).hexdigest()


def _files_of(outputs: Sequence[TaskOutput]) -> tuple[OutputFile, ...]:
    return tuple(
        OutputFile(task=output.task, path=file.path, size=file.size, sha256=file.sha256, executable=file.executable)
        for output in outputs
        for file in output.files
    )
