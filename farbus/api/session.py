"""An agent's end of its session with the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from farbus.api.authority import Credentials
from farbus.api.client import open_tls_channel
from farbus.api.status import converted
from farbus.api.trust import receive_authorities, receive_revocations
from farbus.api.v1 import session_pb2, session_pb2_grpc
from farbus.errors import FarbusError, Unavailable

_log = logging.getLogger(__name__)

PROTOCOL_VERSION = 1
"""Version of the session protocol that this agent speaks (NodeHello.protocol)."""


def _heard(writing: asyncio.Task[None]) -> None:
    """Take a write's error: nobody may be left who waits for it."""
    if not writing.cancelled():
        writing.exception()


class NodeStream:
    """Messages up by :meth:`send`, messages down by iteration, which ends with the stream."""

    def __init__(self, call: Any, peer: str, credentials: Credentials) -> None:
        self._credentials = credentials
        self._call = call
        self._peer = peer
        self._lock = asyncio.Lock()

    async def send(self, message: session_pb2.NodeMessage) -> None:
        """Send ``message``; waits while the scheduler does not read.  Raises :class:`Unavailable` when cut."""
        # In a task of its own: gRPC ends the whole call where a write is cancelled, and who gives up
        # waiting (the task of a log that nobody reads any more) must not take the session along.
        writing = asyncio.create_task(self._write(message), name="session write")
        writing.add_done_callback(_heard)
        await asyncio.shield(writing)

    async def _write(self, message: session_pb2.NodeMessage) -> None:
        async with self._lock:
            with converted(self._peer):
                try:
                    await self._call.write(message)
                except asyncio.InvalidStateError as error:
                    raise Unavailable(f"{self._peer}: the session has ended") from error

    async def __aiter__(self) -> AsyncIterator[session_pb2.SchedulerMessage]:
        with converted(self._peer):
            while (message := await self._call.read()) is not grpc.aio.EOF:
                if message.HasField("trust_changed"):
                    self._take_trust(message.trust_changed)
                else:
                    yield message

    def _take_trust(self, changed: session_pb2.TrustChanged) -> None:
        """Keep what was passed on; what is no good is told, and ends no session."""
        try:
            if changed.authorities:
                receive_authorities(self._credentials, changed.authorities)
            if changed.revocations:
                receive_revocations(self._credentials, changed.revocations)
        except (FarbusError, OSError) as error:
            _log.error("authorities or revocations not kept: %s", error)

    def cancel(self) -> None:
        """End the session: its reader hears Unavailable."""
        self._call.cancel()


class SessionDialer:
    """Opens sessions one after another, and ends the present one when it should be dialled again."""

    def __init__(self, *, address: str, credentials: Credentials) -> None:
        self._address = address
        self._credentials = credentials
        self._stream: NodeStream | None = None
        self._certificate = b""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[NodeStream]:
        """Dial the scheduler and open the session; leaving the block ends it."""
        async with open_session(address=self._address, credentials=self._credentials) as stream:
            self._certificate = self._credentials.read().certificate
            self._stream = stream
            try:
                yield stream
            finally:
                self._stream = None

    def redial_if_renewed(self) -> bool:
        """End the session if it was dialled with another certificate than there is now; say whether it was."""
        if self._stream is None or self._credentials.read().certificate == self._certificate:
            return False
        self._stream.cancel()
        return True


@contextlib.asynccontextmanager
async def open_session(*, address: str, credentials: Credentials) -> AsyncIterator[NodeStream]:
    """Dial the scheduler at ``address`` and open the session; leaving the block ends it."""
    channel = open_tls_channel(address, credentials)
    try:
        stub: Any = session_pb2_grpc.NodeSessionStub(channel)
        call = stub.Session()
        try:
            yield NodeStream(call, f"scheduler at {address}", credentials)
        finally:
            call.cancel()
    finally:
        await channel.close()
