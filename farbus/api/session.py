"""An agent's end of its session with the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from farbus.api.authority import Credentials
from farbus.api.client import open_tls_channel
from farbus.api.status import converted
from farbus.api.v1 import session_pb2, session_pb2_grpc
from farbus.errors import Unavailable

PROTOCOL_VERSION = 1
"""Version of the session protocol that this agent speaks (NodeHello.protocol)."""


class NodeStream:
    """Messages up by :meth:`send`, messages down by iteration, which ends with the stream."""

    def __init__(self, call: Any, peer: str) -> None:
        self._call = call
        self._peer = peer
        self._lock = asyncio.Lock()

    async def send(self, message: session_pb2.NodeMessage) -> None:
        """Send ``message``; waits while the scheduler does not read.  Raises :class:`Unavailable` when cut."""
        async with self._lock:
            with converted(self._peer):
                try:
                    await self._call.write(message)
                except asyncio.InvalidStateError as error:
                    raise Unavailable(f"{self._peer}: the session has ended") from error

    async def __aiter__(self) -> AsyncIterator[session_pb2.SchedulerMessage]:
        with converted(self._peer):
            while (message := await self._call.read()) is not grpc.aio.EOF:
                yield message


@contextlib.asynccontextmanager
async def open_session(*, address: str, credentials: Credentials) -> AsyncIterator[NodeStream]:
    """Dial the scheduler at ``address`` and open the session; leaving the block ends it."""
    channel = open_tls_channel(address, credentials)
    try:
        stub: Any = session_pb2_grpc.NodeSessionStub(channel)
        call = stub.Session()
        try:
            yield NodeStream(call, f"scheduler at {address}")
        finally:
            call.cancel()
    finally:
        await channel.close()
