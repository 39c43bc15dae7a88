"""A peer that is gone without a word: the server's connection to it ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from farbus.api.server import SERVER_OPTIONS

LIMIT_S = 50.0
"""For a machine that is busy; what is waited for takes a second or two, and took a minute."""

TIMES = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
QUICKLY = [(name, 200 if name in TIMES else value) for name, value in SERVER_OPTIONS]
"""The server's own options, with short times."""

PING_BYTES = 17
"""A frame's head and what it carries (RFC 9113, 4.1 and 6.7)."""


class Line:
    """A connection through which bytes go until it is cut without a word."""

    def __init__(self, port: int) -> None:
        self.cut = False
        self.pings = asyncio.Semaphore(0)
        self._port = port

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer, from_server=True))

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, from_server: bool = False
    ) -> None:
        while data := await reader.read(2**16):
            if from_server and len(data) == PING_BYTES:
                self.pings.release()
            if not self.cut:
                writer.write(data)


async def cut_an_idle_session() -> None:
    ended = asyncio.Event()

    async def echo(incoming: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        try:
            async for message in incoming:
                yield message
        finally:
            ended.set()

    server = grpc.aio.server(options=QUICKLY)
    handler = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"Echo": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    line = Line(port)
    relay = await asyncio.start_server(line.carry, "127.0.0.1", 0)
    where = relay.sockets[0].getsockname()[1]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{where}") as channel:
        call = channel.stream_stream("/test/Echo")()
        await call.write(b"hello")
        assert await call.read() == b"hello"
        # Pings that are answered keep it.
        for _ in range(3):
            await line.pings.acquire()
        assert not ended.is_set()
        line.cut = True
        await ended.wait()
        call.cancel()
    relay.close()
    await server.stop(None)


def test_an_idle_session_ends_when_its_peer_is_gone() -> None:
    asyncio.run(asyncio.wait_for(cut_an_idle_session(), LIMIT_S))
