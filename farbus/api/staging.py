"""The Staging service: its servers' end at the scheduler and at agents, and its clients."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc.aio

from farbus.api.authority import Credentials
from farbus.api.client import ClusterClient, open_tls_channel
from farbus.api.gate import Context, errors_become_status
from farbus.api.identity import Identity
from farbus.api.status import converted
from farbus.api.v1 import staging_pb2, staging_pb2_grpc
from farbus.errors import FarbusError, InvalidInput
from farbus.model.staging import Manifest, StagedFile
from farbus.model.value import Value

DIGESTS_PER_CALL = 10_000
"""Contents that are asked for at a time: 64 bytes each."""

Caller = Callable[[Context, str], Identity]


class OutputFile(Value, frozen=True, kw_only=True):
    """A file that a task has put out."""

    task: str
    path: str
    size: int
    sha256: str
    executable: bool = False


class StagingHandler(abc.ABC):
    """What the service does; it speaks in messages, since the scheduler's and the agents' differ in little else."""

    @abc.abstractmethod
    async def missing(self, caller: Identity, digests: Sequence[str]) -> tuple[str, ...]:
        """Return those of the contents that are not there."""

    @abc.abstractmethod
    async def put(self, caller: Identity, chunks: AsyncIterator[staging_pb2.ContentChunk]) -> staging_pb2.PutReply:
        """Take contents."""

    @abc.abstractmethod
    def get(self, caller: Identity, job_id: str, digests: Sequence[str]) -> AsyncIterator[staging_pb2.ContentChunk]:
        """Yield contents that belong to a job of the calling node's."""

    @abc.abstractmethod
    async def put_output(
        self, caller: Identity, chunks: AsyncIterator[staging_pb2.OutputChunk]
    ) -> staging_pb2.PutReply:
        """Take the output of a task."""

    @abc.abstractmethod
    async def list_output(self, caller: Identity, job_id: str) -> tuple[OutputFile, ...]:
        """Return what a job has put out."""

    @abc.abstractmethod
    def get_output(self, caller: Identity, job_id: str, files: Sequence[int]) -> AsyncIterator[staging_pb2.OutputChunk]:
        """Yield the files of a job's output that are asked for, or all."""


def add_staging(handler: StagingHandler, caller: Caller, server: grpc.aio.Server) -> None:
    """Serve the service on ``server``; ``caller`` says who calls."""
    staging_pb2_grpc.add_StagingServicer_to_server(_Servicer(handler, caller), server)


class _Servicer(staging_pb2_grpc.StagingServicer):
    def __init__(self, handler: StagingHandler, caller: Caller) -> None:
        self._handler = handler
        self._caller = caller

    async def _call(self, method: str, context: Context, answer: Callable[[Identity], Awaitable[Any]]) -> Any:
        path = f"/farbus.v1.Staging/{method}"
        async with errors_become_status(context, path):
            return await answer(self._caller(context, path))

    async def _stream(
        self, method: str, context: Context, answers: Callable[[Identity], AsyncIterator[Any]]
    ) -> AsyncIterator[Any]:
        path = f"/farbus.v1.Staging/{method}"
        async with errors_become_status(context, path):
            stream: Any = answers(self._caller(context, path))
            async with contextlib.aclosing(stream):
                async for item in stream:
                    yield item

    async def Missing(self, request: staging_pb2.MissingRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> staging_pb2.MissingReply:
            return staging_pb2.MissingReply(sha256=await self._handler.missing(caller, request.sha256))

        return await self._call("Missing", context, answer)

    async def Put(self, request_iterator: Any, context: Any) -> Any:
        return await self._call("Put", context, lambda caller: self._handler.put(caller, aiter(request_iterator)))

    async def Get(self, request: staging_pb2.GetRequest, context: Any) -> AsyncIterator[Any]:
        async for chunk in self._stream(
            "Get", context, lambda caller: self._handler.get(caller, request.job_id, request.sha256)
        ):
            yield chunk

    async def PutOutput(self, request_iterator: Any, context: Any) -> Any:
        return await self._call(
            "PutOutput", context, lambda caller: self._handler.put_output(caller, aiter(request_iterator))
        )

    async def ListOutput(self, request: staging_pb2.OutputRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> staging_pb2.ListOutputReply:
            files = await self._handler.list_output(caller, request.job_id)
            return staging_pb2.ListOutputReply(
                files=[
                    staging_pb2.OutputFile(
                        task=file.task, path=file.path, size=file.size, sha256=file.sha256, executable=file.executable
                    )
                    for file in files
                ]
            )

        return await self._call("ListOutput", context, answer)

    async def GetOutput(self, request: staging_pb2.OutputRequest, context: Any) -> AsyncIterator[Any]:
        async for chunk in self._stream(
            "GetOutput", context, lambda caller: self._handler.get_output(caller, request.job_id, request.files)
        ):
            yield chunk


class StagingClient:
    """Calls to a scheduler or to an agent's socket, over the connection of a :class:`ClusterClient`."""

    def __init__(self, client: ClusterClient) -> None:
        self._stub: Any = staging_pb2_grpc.StagingStub(client.channel)
        self._metadata = client.metadata
        self._peer = client.peer

    async def missing(self, digests: Sequence[str]) -> tuple[str, ...]:
        """Return those of the contents that the scheduler does not have."""
        found: list[str] = []
        for start in range(0, len(digests), DIGESTS_PER_CALL):
            request = staging_pb2.MissingRequest(sha256=digests[start : start + DIGESTS_PER_CALL])
            with converted(self._peer):
                found += (await self._stub.Missing(request, metadata=self._metadata)).sha256
        return tuple(found)

    async def put(self, chunks: AsyncIterator[staging_pb2.ContentChunk]) -> staging_pb2.PutReply:
        """Send contents."""
        with converted(self._peer):
            reply: staging_pb2.PutReply = await self._stub.Put(chunks, metadata=self._metadata)
            return reply

    async def put_files(self, contents: AsyncIterator[tuple[str, int, bytes]]) -> None:
        """Send contents, each as (digest, size, piece); the pieces of one follow each other."""

        async def chunks() -> AsyncIterator[staging_pb2.ContentChunk]:
            before = ""
            async for sha256, size, data in contents:
                first, before = sha256 != before, sha256
                yield staging_pb2.ContentChunk(sha256=sha256 if first else "", size=size if first else 0, data=data)

        await self.put(chunks())

    async def list_output(self, job_id: str) -> tuple[OutputFile, ...]:
        """Return what a job has put out."""
        with converted(self._peer):
            reply = await self._stub.ListOutput(staging_pb2.OutputRequest(job_id=job_id), metadata=self._metadata)
        return tuple(
            OutputFile(task=file.task, path=file.path, size=file.size, sha256=file.sha256, executable=file.executable)
            for file in reply.files
        )

    async def get_output(self, job_id: str, files: Sequence[int]) -> AsyncGenerator[staging_pb2.OutputChunk, None]:
        """Yield files of a job's output."""
        with converted(self._peer):
            call = self._stub.GetOutput(staging_pb2.OutputRequest(job_id=job_id, files=files), metadata=self._metadata)
            try:
                async for chunk in call:
                    yield chunk
            finally:
                call.cancel()


class StagingForwarder(StagingHandler):
    """An agent's end: forwards what users of the node ask, message by message."""

    def __init__(self, lend: Callable[[Identity], contextlib.AbstractAsyncContextManager[ClusterClient]]) -> None:
        self._lend = lend

    async def missing(self, caller: Identity, digests: Sequence[str]) -> tuple[str, ...]:
        """Forward."""
        async with self._lend(caller) as client:
            return await StagingClient(client).missing(digests)

    async def put(self, caller: Identity, chunks: AsyncIterator[staging_pb2.ContentChunk]) -> staging_pb2.PutReply:
        """Forward."""
        async with self._lend(caller) as client:
            return await StagingClient(client).put(chunks)

    async def get(
        self, caller: Identity, job_id: str, digests: Sequence[str]
    ) -> AsyncIterator[staging_pb2.ContentChunk]:
        """Refuse: nodes ask the scheduler."""
        raise InvalidInput("contents are for nodes, which ask the scheduler")
        yield  # makes this a generator

    async def put_output(
        self, caller: Identity, chunks: AsyncIterator[staging_pb2.OutputChunk]
    ) -> staging_pb2.PutReply:
        """Refuse: nodes tell the scheduler."""
        raise InvalidInput("output comes from nodes, which tell the scheduler")

    async def list_output(self, caller: Identity, job_id: str) -> tuple[OutputFile, ...]:
        """Forward."""
        async with self._lend(caller) as client:
            return await StagingClient(client).list_output(job_id)

    async def get_output(
        self, caller: Identity, job_id: str, files: Sequence[int]
    ) -> AsyncIterator[staging_pb2.OutputChunk]:
        """Forward."""
        async with (
            self._lend(caller) as client,
            contextlib.aclosing(StagingClient(client).get_output(job_id, files)) as chunks,
        ):
            async for chunk in chunks:
                yield chunk


class NodeStaging:
    """A node's own transfers, each over a connection of its own: they must not hold up its session."""

    def __init__(self, *, address: str, credentials: Credentials) -> None:
        self._address = address
        self._credentials = credentials

    @contextlib.asynccontextmanager
    async def _stub(self) -> AsyncIterator[Any]:
        channel = open_tls_channel(self._address, self._credentials)
        try:
            with converted(f"scheduler at {self._address}"):
                yield staging_pb2_grpc.StagingStub(channel)
        finally:
            await channel.close()

    async def manifest(self, job_id: str, digest: str) -> Manifest:
        """Return the list of the files that a job takes along."""
        async with self._stub() as stub:
            data = b""
            async for chunk in stub.Get(staging_pb2.GetRequest(job_id=job_id, sha256=[digest])):
                data += chunk.data
        return Manifest.decode(data)

    async def contents(self, job_id: str, files: Sequence[StagedFile]) -> AsyncIterator[tuple[str, bytes]]:
        """Yield the files in pieces, each with its path; the files come in the order of ``files``."""
        waiting = iter(files)
        current: StagedFile | None = None
        left = 0
        async with self._stub() as stub:
            request = staging_pb2.GetRequest(job_id=job_id, sha256=[file.sha256 for file in files])
            async for chunk in stub.Get(request):
                if chunk.sha256:
                    current = next(waiting, None)
                    if left or current is None or (chunk.sha256, chunk.size) != (current.sha256, current.size):
                        raise FarbusError("the scheduler sent other files than were asked for")
                    left = current.size
                if current is None or len(chunk.data) > left:
                    raise FarbusError("the scheduler sent other files than were asked for")
                left -= len(chunk.data)
                yield current.path, chunk.data
            if left or next(waiting, None) is not None:
                raise FarbusError("the scheduler did not send all files")

    async def put_output(self, job_id: str, task: str, pieces: AsyncIterator[tuple[StagedFile, bytes]]) -> None:
        """Send a task's output; the last piece of each file has its digest."""

        async def chunks() -> AsyncIterator[staging_pb2.OutputChunk]:
            yield staging_pb2.OutputChunk(job_id=job_id, task=task)
            whole = True
            async for file, data in pieces:
                chunk = staging_pb2.OutputChunk(data=data, sha256=file.sha256)
                if whole:
                    chunk.path, chunk.size, chunk.executable = file.path, file.size, file.executable
                whole = bool(file.sha256)
                yield chunk
            yield staging_pb2.OutputChunk(end=True)

        failure: list[Exception] = []

        async def watched() -> AsyncIterator[staging_pb2.OutputChunk]:
            # gRPC tells an error of the iterator as a cancelled call: here it is kept.
            try:
                async for chunk in chunks():
                    yield chunk
            except Exception as error:
                failure.append(error)
                raise

        try:
            async with self._stub() as stub:
                await stub.PutOutput(watched())
        except FarbusError:
            if failure:
                raise failure[0] from None
            raise
