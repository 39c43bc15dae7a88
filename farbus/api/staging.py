"""The Staging service: its servers' end at the scheduler and at agents, and its clients."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc.aio

from farbus.api.authority import Credentials
from farbus.api.client import ClusterClient, open_tls_channel
from farbus.api.conversion import check_elements
from farbus.api.gate import Context, errors_become_status
from farbus.api.identity import Identity
from farbus.api.status import converted
from farbus.api.v1 import staging_pb2, staging_pb2_grpc
from farbus.errors import Conflict, FarbusError, InvalidInput
from farbus.model.staging import Manifest, ReceivedFile, StagedFile
from farbus.model.value import Value

DIGESTS_PER_CALL = 10_000
"""Contents that are asked for at a time: 64 bytes each."""

FILES_PER_CALL = 400_000
"""Files of a job's output that one call asks for: more than a scheduler keeps by default."""

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
    async def missing(self, caller: Identity, digests: Sequence[str]) -> dict[str, int]:
        """Return those of the contents that are not there, with how many bytes there are of each."""

    @abc.abstractmethod
    async def put(self, caller: Identity, chunks: AsyncIterator[staging_pb2.ContentChunk]) -> staging_pb2.PutReply:
        """Take contents."""

    @abc.abstractmethod
    def get(
        self, caller: Identity, job_id: str, digests: Sequence[str], *, offset: int
    ) -> AsyncIterator[staging_pb2.ContentChunk]:
        """Yield contents that belong to a job of the calling node's, the first from ``offset`` on."""

    @abc.abstractmethod
    async def put_output(
        self, caller: Identity, chunks: AsyncIterator[staging_pb2.OutputChunk]
    ) -> staging_pb2.PutReply:
        """Take the output of a task."""

    @abc.abstractmethod
    async def received_output(self, caller: Identity, job_id: str, task: str) -> tuple[ReceivedFile, ...]:
        """Return what has come of a task's output whose sending broke off."""

    @abc.abstractmethod
    async def list_output(self, caller: Identity, job_id: str) -> tuple[OutputFile, ...]:
        """Return what a job has put out."""

    @abc.abstractmethod
    def get_output(
        self, caller: Identity, job_id: str, files: Sequence[int], digests: Sequence[str], *, offset: int
    ) -> AsyncIterator[staging_pb2.OutputChunk]:
        """Yield the files of a job's output that are asked for, or all; the first from ``offset`` on.

        They are told by their contents, and where an older client asks, by where they stand in the list.
        """


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
            missing = await self._handler.missing(caller, request.sha256)
            return staging_pb2.MissingReply(sha256=missing.keys(), received=missing.values())

        return await self._call("Missing", context, answer)

    async def Put(self, request_iterator: Any, context: Any) -> Any:
        return await self._call("Put", context, lambda caller: self._handler.put(caller, aiter(request_iterator)))

    async def Get(self, request: staging_pb2.GetRequest, context: Any) -> AsyncIterator[Any]:
        async for chunk in self._stream(
            "Get",
            context,
            lambda caller: self._handler.get(caller, request.job_id, request.sha256, offset=request.offset),
        ):
            yield chunk

    async def PutOutput(self, request_iterator: Any, context: Any) -> Any:
        return await self._call(
            "PutOutput", context, lambda caller: self._handler.put_output(caller, aiter(request_iterator))
        )

    async def ReceivedOutput(self, request: staging_pb2.ReceivedOutputRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> staging_pb2.ReceivedOutputReply:
            files = await self._handler.received_output(caller, request.job_id, request.task)
            return staging_pb2.ReceivedOutputReply(
                files=[
                    staging_pb2.ReceivedFile(path=file.path, size=file.size, received=file.received, sha256=file.sha256)
                    for file in files
                ]
            )

        return await self._call("ReceivedOutput", context, answer)

    async def ListOutput(self, request: staging_pb2.OutputRequest, context: Any) -> Any:
        async def answer(caller: Identity) -> staging_pb2.ListOutputReply:
            # Thousands of files are no matter for the event loop.
            return await asyncio.to_thread(_list_reply, await self._handler.list_output(caller, request.job_id))

        return await self._call("ListOutput", context, answer)

    async def GetOutput(self, request: staging_pb2.OutputRequest, context: Any) -> AsyncIterator[Any]:
        def answers(caller: Identity) -> AsyncIterator[staging_pb2.OutputChunk]:
            check_elements(request, most=FILES_PER_CALL, what="output")
            return self._handler.get_output(
                caller, request.job_id, request.files, request.sha256, offset=request.offset
            )

        async for chunk in self._stream("GetOutput", context, answers):
            yield chunk


def _list_reply(files: Sequence[OutputFile]) -> staging_pb2.ListOutputReply:
    return staging_pb2.ListOutputReply(
        files=[
            staging_pb2.OutputFile(
                task=file.task, path=file.path, size=file.size, sha256=file.sha256, executable=file.executable
            )
            for file in files
        ]
    )


class StagingClient:
    """Calls to a scheduler or to an agent's socket, over the connection of a :class:`ClusterClient`."""

    def __init__(self, client: ClusterClient) -> None:
        self._stub: Any = staging_pb2_grpc.StagingStub(client.channel)
        self._metadata = client.metadata
        self._peer = client.peer

    async def missing(self, digests: Sequence[str]) -> dict[str, int]:
        """Return those of the contents that the scheduler does not have, with how many bytes it has of each."""
        found: dict[str, int] = {}
        for start in range(0, len(digests), DIGESTS_PER_CALL):
            request = staging_pb2.MissingRequest(sha256=digests[start : start + DIGESTS_PER_CALL])
            with converted(self._peer):
                reply = await self._stub.Missing(request, metadata=self._metadata)
            # One of an earlier version does not say how many.
            received = reply.received or [0] * len(reply.sha256)
            found |= dict(zip(reply.sha256, received, strict=True))
        return found

    async def put(self, chunks: AsyncIterator[staging_pb2.ContentChunk]) -> staging_pb2.PutReply:
        """Send contents."""
        with converted(self._peer):
            reply: staging_pb2.PutReply = await self._stub.Put(chunks, metadata=self._metadata)
            return reply

    async def put_files(self, contents: AsyncIterator[tuple[str, int, int, bytes]]) -> None:
        """Send contents in pieces, each as (digest, size of the whole, where it begins, piece).

        The pieces of one content follow each other; the first begins where
        the scheduler has it up to, or at 0.
        """

        async def chunks() -> AsyncIterator[staging_pb2.ContentChunk]:
            before = ""
            async for sha256, size, offset, data in contents:
                chunk = staging_pb2.ContentChunk(data=data)
                if sha256 != before:
                    chunk.sha256, chunk.size, chunk.offset = sha256, size, offset
                before = sha256
                yield chunk

        await self.put(chunks())

    async def list_output(self, job_id: str) -> tuple[OutputFile, ...]:
        """Return what a job has put out."""
        with converted(self._peer):
            reply = await self._stub.ListOutput(staging_pb2.OutputRequest(job_id=job_id), metadata=self._metadata)
        return tuple(
            OutputFile(task=file.task, path=file.path, size=file.size, sha256=file.sha256, executable=file.executable)
            for file in reply.files
        )

    async def get_output(
        self, job_id: str, files: Mapping[int, OutputFile], *, offset: int = 0
    ) -> AsyncGenerator[staging_pb2.OutputChunk, None]:
        """Yield files of a job's output as they were listed, each with where it stood there.

        The first begins at ``offset``; its first chunk says whether it does.
        """
        indexes = list(files)
        for start in range(0, len(indexes), DIGESTS_PER_CALL):
            asked = indexes[start : start + DIGESTS_PER_CALL]
            request = staging_pb2.OutputRequest(
                # One of an earlier version knows the indexes alone.
                job_id=job_id, files=asked, sha256=[files[index].sha256 for index in asked], offset=offset
            )  # fmt: skip
            offset = 0
            async with contextlib.aclosing(self.stream_output(request)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def stream_output(self, request: staging_pb2.OutputRequest) -> AsyncGenerator[staging_pb2.OutputChunk, None]:
        """Yield what one call brings."""
        with converted(self._peer):
            call = self._stub.GetOutput(request, metadata=self._metadata)
            try:
                async for chunk in call:
                    yield chunk
            finally:
                call.cancel()


class StagingForwarder(StagingHandler):
    """An agent's end: forwards what users of the node ask, message by message."""

    def __init__(self, lend: Callable[[Identity], contextlib.AbstractAsyncContextManager[ClusterClient]]) -> None:
        self._lend = lend

    async def missing(self, caller: Identity, digests: Sequence[str]) -> dict[str, int]:
        """Forward."""
        async with self._lend(caller) as client:
            return await StagingClient(client).missing(digests)

    async def put(self, caller: Identity, chunks: AsyncIterator[staging_pb2.ContentChunk]) -> staging_pb2.PutReply:
        """Forward."""
        async with self._lend(caller) as client:
            return await StagingClient(client).put(chunks)

    async def get(
        self, caller: Identity, job_id: str, digests: Sequence[str], *, offset: int
    ) -> AsyncIterator[staging_pb2.ContentChunk]:
        """Refuse: nodes ask the scheduler."""
        raise InvalidInput("contents are for nodes, which ask the scheduler")
        yield  # makes this a generator

    async def put_output(
        self, caller: Identity, chunks: AsyncIterator[staging_pb2.OutputChunk]
    ) -> staging_pb2.PutReply:
        """Refuse: nodes tell the scheduler."""
        raise InvalidInput("output comes from nodes, which tell the scheduler")

    async def received_output(self, caller: Identity, job_id: str, task: str) -> tuple[ReceivedFile, ...]:
        """Refuse: nodes ask the scheduler."""
        raise InvalidInput("output comes from nodes, which ask the scheduler")

    async def list_output(self, caller: Identity, job_id: str) -> tuple[OutputFile, ...]:
        """Forward."""
        async with self._lend(caller) as client:
            return await StagingClient(client).list_output(job_id)

    async def get_output(
        self, caller: Identity, job_id: str, files: Sequence[int], digests: Sequence[str], *, offset: int
    ) -> AsyncIterator[staging_pb2.OutputChunk]:
        """Forward."""
        request = staging_pb2.OutputRequest(job_id=job_id, files=files, sha256=digests, offset=offset)
        async with (
            self._lend(caller) as client,
            contextlib.aclosing(StagingClient(client).stream_output(request)) as chunks,
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

    async def contents(
        self, job_id: str, files: Sequence[StagedFile], *, offset: int = 0
    ) -> AsyncGenerator[tuple[str, bytes], None]:
        """Yield the files in pieces, each with its path; the files come in the order of ``files``.

        Of the first come the bytes from ``offset`` on.
        """
        waiting = iter(files)
        current: StagedFile | None = None
        left = surplus = 0
        async with self._stub() as stub:
            request = staging_pb2.GetRequest(job_id=job_id, sha256=[file.sha256 for file in files], offset=offset)
            async for chunk in stub.Get(request):
                if chunk.sha256:
                    current = next(waiting, None)
                    if left or current is None or (chunk.sha256, chunk.size) != (current.sha256, current.size):
                        raise FarbusError("the scheduler sent other files than were asked for")
                    if not 0 <= chunk.offset <= offset:
                        raise FarbusError("the scheduler sent another part of a file than was asked for")
                    # A scheduler of an earlier version begins at 0: what is there already is passed over.
                    left, surplus, offset = current.size - chunk.offset, offset - chunk.offset, 0
                if current is None or len(chunk.data) > left:
                    raise FarbusError("the scheduler sent other files than were asked for")
                left -= len(chunk.data)
                yield current.path, chunk.data[surplus:]
                surplus = max(0, surplus - len(chunk.data))
            if left or next(waiting, None) is not None:
                raise FarbusError("the scheduler did not send all files")

    async def received(self, job_id: str, task: str) -> tuple[ReceivedFile, ...]:
        """Return what the scheduler has of a task's output whose sending broke off."""
        async with self._stub() as stub:
            request = staging_pb2.ReceivedOutputRequest(job_id=job_id, task=task)
            try:
                reply = await stub.ReceivedOutput(request)
            except grpc.aio.AioRpcError as error:
                # One of an earlier version has no such method: all of it is sent again.
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return ()
                raise
        return tuple(
            ReceivedFile(path=file.path, size=file.size, received=file.received, sha256=file.sha256)
            for file in reply.files
        )

    async def put_output(
        self,
        job_id: str,
        task: str,
        pieces: AsyncIterator[tuple[StagedFile, bytes]],
        received: Sequence[ReceivedFile] = (),
    ) -> None:
        """Send a task's output but for what was ``received``; the last piece of each file has its digest.

        Raises :class:`Conflict` where what was received is not what is here now.
        """

        # Written one by one: gRPC would take from an iterator by itself, and also when the call has failed.
        async with self._stub() as stub, contextlib.aclosing(rest_of(pieces, received)) as rest:
            call = stub.PutOutput()
            try:
                with contextlib.suppress(asyncio.InvalidStateError):
                    # The scheduler has ended the call: it said why.
                    await call.write(staging_pb2.OutputChunk(job_id=job_id, task=task))
                    async for chunk in rest:
                        await call.write(chunk)
                    await call.write(staging_pb2.OutputChunk(end=True))
                    await call.done_writing()
                await call
            finally:
                call.cancel()


async def rest_of(
    pieces: AsyncIterator[tuple[StagedFile, bytes]], received: Sequence[ReceivedFile]
) -> AsyncGenerator[staging_pb2.OutputChunk, None]:
    """Yield what is to be sent of files when some of them, or the beginnings of some, have been received.

    Raises :class:`Conflict` where what was received is not what is here now.
    """
    known = {file.path: file for file in received}
    there: ReceivedFile | None = None
    at = begin = 0
    begun = told = False
    found = hashlib.sha256()
    async for file, data in pieces:
        if not begun:
            there, at, begun, told = known.get(file.path), 0, True, False
            begin = there.received if there is not None and there.size == file.size else 0
            found = hashlib.sha256()
        known_part = data[: max(0, begin - at)]
        if there is not None and known_part:
            found.update(known_part)
            at += len(known_part)
            if at == begin and found.hexdigest() != there.sha256:
                raise Conflict(f"{file.path}: it changed since a part of it was sent")
        rest = data[len(known_part) :]
        if rest or file.sha256:
            chunk = staging_pb2.OutputChunk(data=rest, sha256=file.sha256)
            if not told:
                chunk.path, chunk.size, chunk.executable, chunk.offset = file.path, file.size, file.executable, begin
            told = True
            yield chunk
        begun = not file.sha256
