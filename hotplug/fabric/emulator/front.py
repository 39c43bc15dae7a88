"""What both dialects' servers share: how a reply is made of an outcome and of what shall go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from farbus.errors import FarbusError
from farbus.hotplug.fabric.emulator.chassis import Dropped, Hanging, raise_fault
from farbus.hotplug.fabric.emulator.faults import Fault, FaultKind
from farbus.hotplug.fabric.errors import ChassisUnavailable
from farbus.hotplug.fabric.http import Reply, Request

MAX_BODY_BYTES = 1 << 20
"""Largest request: what names a few devices is a thousandth of it."""

T = TypeVar("T")


@dataclass(frozen=True)
class CutReply(Reply):
    """A reply of which only the first half is sent, before the connection ends."""


class Front(Protocol):
    """A dialect over an emulated chassis."""

    async def exchange(self, request: Request) -> Reply:
        """Answer one request; raise :class:`Dropped` or :class:`Hanging` where it is not to be answered."""
        ...


def json_reply(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
    """Return a reply with ``body`` as JSON."""
    return Reply(status, {"content-type": "application/json", **(headers or {})}, msgspec.json.encode(body))


def faulty(reply: Reply, fault: Fault | None) -> Reply:
    """Return ``reply`` as ``fault`` leaves it; raise where nothing is left of it."""
    raise_fault(fault, after=True)
    if fault is not None and fault.kind is FaultKind.ERROR:
        return Reply(500, {"content-type": "text/plain"}, b"internal error")
    if fault is not None and fault.kind is FaultKind.CUT:
        return CutReply(reply.status, reply.headers, reply.body)
    return reply


class Running:
    """Work that goes on when its asker leaves, as a chassis' does."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin ``work``."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns; it is not cancelled with the caller, and :class:`Dropped` when it is ended."""
        task = self.start(work)
        await asyncio.wait([task])
        if task.cancelled():
            raise Dropped
        return task.result()

    async def stop(self) -> None:
        """End all of it, as a power cut does."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class LocalTransport:
    """A :class:`farbus.hotplug.fabric.http.Transport` to an emulated chassis in the same process, without a network."""

    def __init__(self, chassis: str, front: Front) -> None:
        self._chassis = chassis
        self._front = front

    async def exchange(self, request: Request) -> Reply:
        """Ask the front as a connection would."""
        # As bytes, so that what a network could not carry does not pass here either.
        body = None if request.body is None else msgspec.json.decode(msgspec.json.encode(request.body))
        try:
            reply = await self._front.exchange(Request(request.method, request.path, body, request.headers))
        except Dropped:
            raise ChassisUnavailable(f"chassis {self._chassis}: {request}: connection broke: end of file") from None
        except Hanging:
            await asyncio.get_running_loop().create_future()
            raise FarbusError("a future that nobody sets is done") from None
        if isinstance(reply, CutReply) and reply.body:
            raise ChassisUnavailable(f"chassis {self._chassis}: {request}: connection broke: half a reply")
        return reply

    async def close(self) -> None:
        """Nothing is open."""
