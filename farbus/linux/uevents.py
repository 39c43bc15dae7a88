"""The uevent door: what the kernel tells of its objects that come and go (netlink(7), NETLINK_KOBJECT_UEVENT).

Read with the standard library: a message is a line of text, and pyroute2 would
add 21 MB to an agent for it (:mod:`farbus.linux.links`).  A contract test
compares the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from farbus.errors import Unavailable
from farbus.model.pci import Lost, Uevent, parse_uevent

_NETLINK_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1
"""Multicast group of the kernel's own messages; those of udev are in group 2."""

_SO_RCVBUFFORCE = 33
RECEIVE_BUFFER_BYTES = 8 << 20
"""As large as systemd's is in proportion: a switch of 64 functions that comes or goes is some thousand messages."""

MESSAGE_BYTES = 8192
"""The kernel's own limit is 2048 for the variables (UEVENT_BUFFER_SIZE) and a path."""

QUEUE_LENGTH = 4096
"""Messages kept for a reader who is slow; what is beyond is told as lost, as the kernel does."""


class Uevents(Protocol):
    """The kernel's messages from now on."""

    def listen(self) -> contextlib.AbstractAsyncContextManager[AsyncIterator[Uevent | Lost]]:
        """Yield messages in their order, and :class:`Lost` where some were lost before the next.

        Raises :class:`Unavailable` where the kernel does not let us listen.
        """
        ...


class KernelUevents:
    """Listens to the kernel.  ``buffer_bytes`` is what the kernel keeps for us, in bytes."""

    def __init__(self, *, buffer_bytes: int = RECEIVE_BUFFER_BYTES) -> None:
        self._buffer_bytes = buffer_bytes

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[AsyncIterator[Uevent | Lost]]:
        """Open a socket for the block.  Everybody may listen; only root gets the whole buffer."""
        try:
            receiver = socket.socket(
                socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC,
                _NETLINK_KOBJECT_UEVENT,
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(f"uevents: {error.strerror}") from error
        with receiver:
            try:
                receiver.bind((0, _KERNEL_GROUP))
            except OSError as error:
                raise Unavailable(f"uevents: listen: {error.strerror}") from error
            try:
                receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, self._buffer_bytes)
            except OSError:
                receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer_bytes)
            queue = _Queue()
            loop = asyncio.get_running_loop()
            loop.add_reader(receiver, _receive, receiver, queue)
            try:
                yield queue.messages()
            finally:
                loop.remove_reader(receiver)


def _receive(receiver: socket.socket, queue: _Queue) -> None:
    while True:
        try:
            data, _, _, sender = receiver.recvmsg(MESSAGE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                queue.put(Lost(reason=f"uevents: {os.strerror(error.errno or 0)}"))
                return
            queue.put(Lost(reason="the kernel had more uevents than there was room for (ENOBUFS)"))
            continue
        # A port number other than zero is some process that calls itself the kernel.
        if sender[0] == 0 and (event := parse_uevent(data)) is not None:
            queue.put(event)


class News:
    """The next message of those that ``following`` returns one by one, or a time that passes."""

    def __init__(self, following: Callable[[], Awaitable[Uevent | Lost]]) -> None:
        self._following = following
        self._next: asyncio.Task[None] | None = None

    async def _follow(self) -> None:
        await self._following()

    async def wait(self, time_out: Awaitable[None]) -> None:
        """Return when one of the two has come; a message that comes later is not lost."""
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._follow(), name="next uevent")
        timer = asyncio.create_task(_passing(time_out), name="next look")
        try:
            await asyncio.wait({self._next, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

    def close(self) -> None:
        """Stop listening."""
        if self._next is not None:
            self._next.cancel()


async def _passing(time: Awaitable[None]) -> None:
    await time


class _Queue:
    def __init__(self) -> None:
        self._queue: asyncio.Queue[Uevent | Lost] = asyncio.Queue()

    def put(self, message: Uevent | Lost) -> None:
        if self._queue.qsize() < QUEUE_LENGTH:
            self._queue.put_nowait(message)
            return
        # Whoever has fallen so far behind has to list anyway: one note stands for all.
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(Lost(reason=f"{QUEUE_LENGTH} uevents were not looked at in time"))

    async def messages(self) -> AsyncIterator[Uevent | Lost]:
        while True:
            yield await self._queue.get()


class FakeUevents:
    """Messages that a test sends to all who listen."""

    def __init__(self) -> None:
        self._listeners: list[_Queue] = []
        self.seqnum = 100

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[AsyncIterator[Uevent | Lost]]:
        """Listen for the block."""
        queue = _Queue()
        self._listeners.append(queue)
        try:
            yield queue.messages()
        finally:
            self._listeners.remove(queue)

    def send(self, action: str, devpath: str, *, subsystem: str = "pci") -> None:
        """Tell of an object."""
        self.seqnum += 1
        event = Uevent(action=action, devpath=devpath, subsystem=subsystem, seqnum=self.seqnum)
        for listener in self._listeners:
            listener.put(event)

    def lose(self) -> None:
        """Let the kernel run out of room."""
        for listener in self._listeners:
            listener.put(Lost(reason="the kernel had more uevents than there was room for (ENOBUFS)"))
