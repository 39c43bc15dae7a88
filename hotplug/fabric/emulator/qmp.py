"""QEMU's monitor (QMP): one connection to one guest, its replies and its events.

A monitor serves one client at a time: the socket that is used here has to be
one that nobody else uses (``-qmp`` can be given several times).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from farbus.errors import FarbusError, Unavailable

MAX_LINE_BYTES = 1 << 20
ANSWER_S = 20.0
"""A QEMU that runs greets and answers at once, a busy machine in seconds; none comes from one that is stopped, and no
greeting from a monitor that somebody else has."""

MAX_WATCHERS = 256


class QmpError(FarbusError):
    """QEMU refused a command; ``kind`` is its class of error, such as ``DeviceNotFound``."""

    def __init__(self, message: str, *, kind: str = "GenericError") -> None:
        super().__init__(message)
        self.kind = kind


class GuestOff(Unavailable):
    """Nobody listens at the socket: there is no QEMU, so nothing is plugged into it."""


class GuestLost(Unavailable):
    """QEMU does not answer, or the connection broke: what it has is not known."""


class Qmp:
    """An open monitor. ``on_event`` is called with each event: its name and data."""

    def __init__(
        self,
        path: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_event: Callable[[str, Any], None],
        answer_s: float,
    ) -> None:
        self._path = path
        self._reader = reader
        self._writer = writer
        self._on_event = on_event
        self._answer_s = answer_s
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self.closed = asyncio.Event()
        """Set once nothing more will come."""
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, path: str, *, on_event: Callable[[str, Any], None], answer_s: float = ANSWER_S) -> Qmp:
        """Connect and shake hands; raise :class:`GuestOff` or :class:`GuestLost`."""
        try:
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_LINE_BYTES)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise GuestOff(f"{path}: no QEMU listens there") from error
        except OSError as error:
            raise GuestLost(f"{path}: {error.strerror or error}") from error
        qmp = cls(path, reader, writer, on_event, answer_s)
        try:
            async with asyncio.timeout(answer_s):
                greeting = await qmp._line()
            if "QMP" not in greeting:
                raise GuestLost(f"{path}: what listens there is no QEMU")
            qmp._reading = asyncio.create_task(qmp._read(), name=f"qmp {path}")
            await qmp.run("qmp_capabilities")
        except TimeoutError as error:
            await qmp.close()
            raise GuestLost(
                f"{path}: QEMU does not greet",
                hint="is its monitor used by somebody else? Give the fabric one of its own",
            ) from error
        except FarbusError:
            await qmp.close()
            raise
        return qmp

    async def run(self, command: str, **arguments: Any) -> Any:
        """Run one command and return what it returns; raise :class:`QmpError` or :class:`GuestLost`."""
        if self.closed.is_set():
            raise GuestLost(f"{self._path}: connection to QEMU broke")
        self._number += 1
        number = self._number
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        try:
            line = msgspec.json.encode({"execute": command, "arguments": arguments, "id": number})
            self._writer.write(line + b"\r\n")
            async with asyncio.timeout(self._answer_s):
                return await reply
        except TimeoutError as error:
            raise GuestLost(f"{self._path}: {command}: no answer after {self._answer_s:.0f} s") from error
        finally:
            self._replies.pop(number, None)

    async def _line(self) -> dict[str, Any]:
        try:
            line = await self._reader.readline()
            if not line.endswith(b"\n"):
                raise GuestLost(f"{self._path}: connection to QEMU broke")
            return msgspec.json.decode(line, type=dict[str, Any])
        except (OSError, ValueError, msgspec.DecodeError) as error:
            raise GuestLost(f"{self._path}: {error}") from error

    async def _read(self) -> None:
        try:
            while True:
                self._take(await self._line())
        except GuestLost as error:
            for reply in self._replies.values():
                if not reply.done():
                    reply.set_exception(GuestLost(error.message))
        finally:
            self.closed.set()
            self._writer.close()

    def _take(self, message: dict[str, Any]) -> None:
        if "event" in message:
            self._on_event(str(message["event"]), message.get("data") or {})
            return
        reply = self._replies.get(message.get("id", 0))
        if reply is None or reply.done():
            return
        if "error" in message:
            error = message["error"]
            reply.set_exception(QmpError(str(error.get("desc", error)), kind=str(error.get("class", ""))))
        else:
            reply.set_result(message.get("return"))

    async def close(self) -> None:
        """End the connection; the guest goes on."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
