"""A way between two peers that a test can cut without either of them noticing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Proxy:
    """Passes TCP connections on to ``target``; use :func:`proxy_to`."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.address = ""
        self._cut_after_bytes = 0

    def freeze(self) -> None:
        """Pass on nothing more, close nothing: each side sees a peer that vanished.  New connections are accepted."""
        self._open.clear()

    def thaw(self) -> None:
        """Pass on again, what was held back first."""
        self._open.set()

    def cut_after(self, size: int) -> None:
        """Close the connections once, when so many bytes have passed, both ways together."""
        self._cut_after_bytes = size

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner: asyncio.StreamWriter | None = None
        try:
            await self._open.wait()
            inner_reader, inner = await asyncio.open_connection(*self._target)
            directions = {
                asyncio.create_task(self._pump(reader, inner)),
                asyncio.create_task(self._pump(inner_reader, writer)),
            }
            try:
                await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for direction in directions:
                    direction.cancel()
                await asyncio.gather(*directions, return_exceptions=True)
        except OSError:
            pass
        finally:
            writer.close()
            if inner is not None:
                inner.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(2**16):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
                if self._cut_after_bytes:
                    self._cut_after_bytes = max(0, self._cut_after_bytes - len(data))
                    if not self._cut_after_bytes:
                        for task in self._tasks:
                            task.cancel()

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def proxy_to(target: str) -> AsyncIterator[Proxy]:
    """Keep a proxy to ``HOST:PORT`` for the block; its own is ``address``."""
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    proxy.address = f"{host}:{port}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
