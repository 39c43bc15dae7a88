"""Files of jobs at the scheduler: taken from who submits, given to nodes, and the other way round."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from farbus.api.identity import Identity
from farbus.api.staging import OutputFile, StagingHandler
from farbus.api.v1 import staging_pb2
from farbus.errors import FarbusError, InvalidInput, NotFound, NotPermitted
from farbus.model.job import Job, JobStatus
from farbus.model.quantity import format_bytes
from farbus.model.staging import MAX_FILES, MAX_MANIFEST_BYTES, Manifest, StagedFile, check_digest, check_path
from farbus.model.states import JOB_STATES
from farbus.model.value import Value
from farbus.scheduler.contents import Contents, Key, Receiver, user_directory
from farbus.scheduler.engine import Engine, no_such_job

_log = structlog.get_logger()

SWEEP_INTERVAL_S = 300.0
"""How often what nobody needs any more is looked for."""

OUTPUT_KEPT_S = 7 * 86_400.0
"""How long a job's output waits to be fetched."""

MAX_MANIFESTS = 256
"""Manifests that are remembered, so that each task of a large job costs no reading of its own."""

LOOKS_PER_TURN = 256
"""Files that are looked for before others get their turn: a few milliseconds."""

MAX_DIGESTS = 20_001
"""Contents of one question: those of a whole manifest, and the manifest."""


class TaskOutput(Value, frozen=True, kw_only=True):
    """What a task has put out, as it is kept."""

    user: str
    task: str
    at: float
    files: tuple[StagedFile, ...]


class StagingService(StagingHandler):
    """See the module; ``base`` is a directory of its own."""

    def __init__(
        self,
        engine: Engine,
        base: Path,
        *,
        limit_bytes: int,
        user_limit_bytes: int,
        job_limit_bytes: int,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._outputs = base / "output"
        self._contents = Contents(base, limit_bytes=limit_bytes, user_limit_bytes=user_limit_bytes, wall=wall)
        self._job_limit_bytes = job_limit_bytes
        self._wall = wall
        self._manifests: OrderedDict[Key, Manifest] = OrderedDict()

    # --- in ------------------------------------------------------------------------------

    async def missing(self, caller: Identity, digests: Sequence[str]) -> tuple[str, ...]:
        """Return those of the caller's contents that are not there."""
        if len(digests) > MAX_DIGESTS:
            raise InvalidInput(f"{len(digests)} contents in one question are more than {MAX_DIGESTS}")
        sizes = await self._sizes(caller.name, digests)
        return tuple(each for each, size in zip(digests, sizes, strict=True) if size is None)

    async def _sizes(self, user: str, digests: Sequence[str]) -> list[int | None]:
        """Return the sizes of contents; others get their turn meanwhile."""
        sizes = []
        for number, each in enumerate(digests):
            if number % LOOKS_PER_TURN == LOOKS_PER_TURN - 1:
                await asyncio.sleep(0)
            sizes.append(self._contents.size(user, each))
        return sizes

    async def put(self, caller: Identity, chunks: AsyncIterator[staging_pb2.ContentChunk]) -> staging_pb2.PutReply:
        """Take contents of the caller's."""
        reply = staging_pb2.PutReply()
        async with contextlib.AsyncExitStack() as stack:
            receiver: Receiver | None = None
            async for chunk in chunks:
                if chunk.sha256:
                    if receiver is not None:
                        raise InvalidInput("a file began before the one before it was whole")
                    receiver = stack.enter_context(
                        self._contents.receive(caller.name, chunk.size, check_digest(chunk.sha256))
                    )
                if receiver is None:
                    raise InvalidInput("a piece of a file came before its digest")
                await asyncio.to_thread(receiver.write, chunk.data)
                if receiver.is_whole:
                    receiver.finish()
                    reply.files += 1
                    reply.bytes += receiver.size
                    await stack.aclose()
                    receiver = None
            if receiver is not None:
                raise InvalidInput("the files end in the middle of one")
        return reply

    async def check(self, caller: Identity, job: Job) -> None:
        """Raise :class:`InvalidInput` where files that ``job`` takes along are not here, or too many."""
        if not job.stage_in:
            return
        if job.user != caller.name:
            raise InvalidInput("stage_in: files can be taken along only by who sent them", hint="leave user out")
        manifest = await self._manifest(job.user, job.stage_in)
        if manifest.total_bytes > self._job_limit_bytes:
            raise InvalidInput(
                f"stage_in: {format_bytes(manifest.total_bytes)} are more than the "
                f"{format_bytes(self._job_limit_bytes)} that a job may take along"
            )
        sizes = await self._sizes(job.user, [file.sha256 for file in manifest.files])
        for file, size in zip(manifest.files, sizes, strict=True):
            if size != file.size:
                raise InvalidInput(f"stage_in: {file.path} is not here", hint="submit again: it is sent again")

    async def _manifest(self, user: str, digest: str) -> Manifest:
        key = (user_directory(user), check_digest(digest))
        if key not in self._manifests:
            data = await self._contents.read_whole(user, digest, most_bytes=MAX_MANIFEST_BYTES)
            self._manifests[key] = await asyncio.to_thread(Manifest.decode, data)
            while len(self._manifests) > MAX_MANIFESTS:
                self._manifests.popitem(last=False)
        return self._manifests[key]

    async def get(
        self, caller: Identity, job_id: str, digests: Sequence[str]
    ) -> AsyncIterator[staging_pb2.ContentChunk]:
        """Yield contents of a job with a task on the calling node."""
        status = await self._job_on(caller, job_id)
        if len(digests) > MAX_DIGESTS:
            raise InvalidInput(f"{len(digests)} contents in one question are more than {MAX_DIGESTS}")
        user, stage_in = status.job.user, status.job.stage_in
        allowed = {stage_in}
        if any(each != stage_in for each in digests):
            allowed |= {file.sha256 for file in (await self._manifest(user, stage_in)).files}
        for sha256 in digests:
            size = self._contents.size(user, sha256) if sha256 in allowed else None
            if size is None:
                raise NotFound(f"job {job_id}: content {sha256[:64]} is not one of its files, or not here any more")
            first = True
            async for data in self._contents.read(user, sha256):
                yield staging_pb2.ContentChunk(sha256=sha256 if first else "", size=size if first else 0, data=data)
                first = False

    async def _job_on(self, node: Identity, job_id: str, task: str = "") -> JobStatus:
        """Return a job that has a task on the calling node, or that task."""
        status = await self._engine.find(job_id)
        if not any(each.node == node.name and task in ("", each.task) for each in status.placements):
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
        room = self._job_limit_bytes - sum(
            file.size for output in self._read(job.id) if output.task != head.task for file in output.files
        )
        files: list[StagedFile] = []
        ended = False
        async with contextlib.AsyncExitStack() as stack:
            receiver: Receiver | None = None
            begun = head
            async for chunk in chunks:
                if chunk.end:
                    ended = True
                    break
                if receiver is None:
                    begun = chunk
                    room -= chunk.size
                    self._check_output(job, chunk, len(files), room)
                    receiver = stack.enter_context(self._contents.receive(job.user, chunk.size))
                await asyncio.to_thread(receiver.write, chunk.data)
                if chunk.sha256:
                    receiver.finish(check_digest(chunk.sha256))
                    files.append(
                        StagedFile(path=begun.path, size=begun.size, sha256=chunk.sha256, executable=begun.executable)
                    )
                    await stack.aclose()
                    receiver = None
        if not ended:
            raise InvalidInput("the output broke off")
        output = TaskOutput(user=job.user, task=head.task, at=self._wall(), files=tuple(files))
        await asyncio.to_thread(self._write, job.id, output)
        return staging_pb2.PutReply(files=len(files), bytes=sum(file.size for file in files))

    def _check_output(self, job: Job, chunk: staging_pb2.OutputChunk, files: int, room: int) -> None:
        path = check_path(chunk.path)
        if not any(path == out or path.startswith(f"{out}/") for out in job.stage_out):
            raise InvalidInput(f"path {path}: is not of the job's output")
        if files >= MAX_FILES:
            raise InvalidInput(f"more than {MAX_FILES} files of output", hint="pack them into an archive")
        if room < 0:
            raise InvalidInput(
                f"path {path}: with it the job has more than {format_bytes(self._job_limit_bytes)} of output"
            )

    def _write(self, job_id: str, output: TaskOutput) -> None:
        directory = self._outputs / job_id
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = directory / f".{output.task}"
        with open(partial, "wb") as file:
            file.write(msgspec.json.encode(output))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, directory / f"{output.task}.json")

    def _read(self, job_id: str) -> tuple[TaskOutput, ...]:
        found = []
        with contextlib.suppress(FileNotFoundError):
            for path in sorted((self._outputs / job_id).glob("*.json")):
                with contextlib.suppress(msgspec.MsgspecError):
                    found.append(msgspec.json.decode(path.read_bytes(), type=TaskOutput))
        return tuple(found)

    async def list_output(self, caller: Identity, job_id: str) -> tuple[OutputFile, ...]:
        """Return what a job of the caller's has put out."""
        status = await self._engine.find(job_id)
        if not caller.may_manage(status.job.user):
            raise no_such_job(job_id)
        outputs = await asyncio.to_thread(self._read, status.job.id)
        return tuple(
            OutputFile(task=output.task, path=file.path, size=file.size, sha256=file.sha256, executable=file.executable)
            for output in outputs
            for file in output.files
        )

    async def get_output(
        self, caller: Identity, job_id: str, files: Sequence[int]
    ) -> AsyncIterator[staging_pb2.OutputChunk]:
        """Yield files of a job's output."""
        listed = await self.list_output(caller, job_id)
        user = (await self._engine.find(job_id)).job.user
        wanted = files or range(len(listed))
        if any(not 0 <= index < len(listed) for index in wanted):
            raise NotFound(f"job {job_id} has no such file")
        for index in wanted:
            file = listed[index]
            first = True
            async for data in self._contents.read(user, file.sha256):
                chunk = staging_pb2.OutputChunk(job_id=job_id, task=file.task, data=data)
                if first:
                    chunk.path, chunk.size, chunk.executable = file.path, file.size, file.executable
                    chunk.sha256 = file.sha256
                first = False
                yield chunk

    # --- what nobody needs any more ------------------------------------------------------

    async def keep_sweeping(self) -> None:
        """Remove what nobody needs any more, again and again, until cancelled."""
        while True:
            try:
                await self.sweep()
            except (FarbusError, OSError) as error:
                _log.error("files of jobs not looked through", reason=str(error))
            await asyncio.sleep(SWEEP_INTERVAL_S)

    async def sweep(self) -> None:
        """Remove output that has waited long enough or whose job is forgotten, and contents that no job names."""
        used: set[Key] = set()
        for record in tuple(self._engine.machine.jobs.values()):
            job = record.job
            if job.stage_in and not JOB_STATES.is_final(record.state):
                owner = user_directory(job.user)
                used.add((owner, job.stage_in))
                with contextlib.suppress(NotFound, InvalidInput):
                    manifest = await self._manifest(job.user, job.stage_in)
                    used |= {(owner, file.sha256) for file in manifest.files}
        for directory in sorted(self._outputs.iterdir()) if self._outputs.exists() else ():
            outputs = self._read(directory.name)
            newest = max((output.at for output in outputs), default=0.0)
            if newest < self._wall() - OUTPUT_KEPT_S or not await self._is_known(directory.name):
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
                continue
            used |= {(user_directory(output.user), file.sha256) for output in outputs for file in output.files}
        removed = self._contents.sweep(used)
        if removed:
            _log.info("files removed that no job needs", files=removed)

    async def _is_known(self, job_id: str) -> bool:
        try:
            await self._engine.find(job_id)
        except NotFound:
            return False
        return True
