"""Figures for Prometheus: its text format, and the endpoint that serves it.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text-based
format, version 0.0.4).  The endpoint runs in its owner's event loop, so that
what it shows is of one moment, and is deaf to everything but GET /metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from farbus.errors import Conflict
from farbus.model.address import split_address

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

EXAMPLE_ADDRESS = "127.0.0.1:9465"

MAX_REQUEST_BYTES = 8192
"""A scraper's request head; Prometheus sends some 500 bytes."""

REQUEST_TIMEOUT_S = 10.0
"""Longest that a scraper may take to ask and to read, each."""

MAX_CONNECTIONS = 16
"""Scrapers at one time; further ones are closed at once."""


class Family(NamedTuple):
    """All series of one metric; each sample has its labels and its value."""

    name: str
    help: str
    kind: str
    samples: Sequence[tuple[Mapping[str, str], float]]


Collect = Callable[[], Iterable[Family]]


def render(families: Iterable[Family]) -> str:
    """Write families in Prometheus's text format; those without a sample are left out."""
    lines = []
    for family in families:
        if not family.samples:
            continue
        text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {family.name} {text}\n# TYPE {family.name} {family.kind}\n")
        for labels, value in family.samples:
            inner = ",".join(f'{name}="{_escape(label)}"' for name, label in labels.items())
            lines.append(
                f"{family.name}{{{inner}}} {_number(value)}\n" if inner else f"{family.name} {_number(value)}\n"
            )
    return "".join(lines)


def _escape(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class MetricsEndpoint:
    """Serves ``/metrics``, without authentication: choose the address accordingly."""

    def __init__(self, collect: Collect) -> None:
        self._collect = collect
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, address: str, *, field: str) -> None:
        """Listen on ``address``; raise :class:`Conflict` where it can't be had."""
        host, port = split_address(address, field=field, example=EXAMPLE_ADDRESS)
        try:
            # Not by the event loop, which starts four threads to look up even a number.
            listener = socket.create_server((host, port), family=_family(host))
            self._server = await asyncio.start_server(self._accept, sock=listener, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            # What create_server and a look-up of a name say has more in it than is worth reading.
            reason = str(error.strerror or error).partition(" (while")[0]
            raise Conflict(
                f"can't serve metrics on {address}: {reason}", hint=f"choose another {field}"
            ) from error  # fmt: skip
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and cut the scrapers that are being served; may be called twice."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in tuple(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.create_task(self._serve(reader, writer), name="scrape")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(self._answer(head))
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await writer.drain()
        except (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError):
            # A scraper that went away, or none: nothing is owed to it.
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "only GET\n", extra="Allow: GET, HEAD\r\n")
        if path != b"/metrics":
            return _response("404 Not Found", "the figures are at /metrics\n", send_body=method == b"GET")
        return _response("200 OK", render(self._collect()), send_body=method == b"GET")


def _response(status: str, body: str, *, extra: str = "", send_body: bool = True) -> bytes:
    data = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(data)}\r\n"
        f"Connection: close\r\n{extra}\r\n"
    )
    return head.encode() + (data if send_body else b"")
