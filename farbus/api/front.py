"""An agent's socket: who is at the other end by the kernel's word, and limits that no one user can use up for all.

gRPC does not tell a handler who is at the other end of a Unix socket
(docs/decisions/0002).  So the socket is accepted here, the kernel is asked for
the peer's (uid, gid, pid), and the bytes are passed on to a private socket
whose server knows that one identity.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import socket as sockets
import stat
import struct
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import grpc
import grpc.aio

from farbus.api.gate import Context
from farbus.api.identity import Identity, resolve_caller
from farbus.api.private import PrivateDirectory
from farbus.errors import Conflict, FarbusError, InvalidInput, NotPermitted, Unavailable

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 512
"""Connections to the socket at one time, over all users."""

MAX_USER_CONNECTIONS = 128
"""Connections of one user at one time: a program in a terminal has one."""

ROOT_CONNECTIONS = 16
"""Connections that root has beside those: who administers the node gets in when its users have taken all."""

MAX_CALLERS = 256
"""Users that have a private server at one time; one whose user has no connection makes room."""

MAX_REFUSED = 32
"""Refused connections that are open to be told why; those beyond are hung up on."""

REFUSED_S = 10.0
"""How long a refused connection may stay: its caller asks at once, and has his answer."""

REFUSALS_TOLD_S = 60.0
"""Refusals are a line in the log at most this often: whoever is refused may try as often as he likes."""

Caller = Callable[[Context, str], Identity]
AddService = Callable[[Caller, grpc.aio.Server], None]
"""Adds a service to a server: like :func:`farbus.api.staging.add_staging`, with its handler bound."""


class _Refusal(enum.Enum):
    """Why a connection is refused, as its caller hears it."""

    UNKNOWN = (NotPermitted, "this node does not serve your user id", "ask for an account; the agent's log says more")
    FULL = (
        Unavailable,
        "too many connections are open on the agent's socket",
        "end some of your programs, or try again later",
    )

    def error(self) -> FarbusError:
        """Return what a call is answered with."""
        kind: type[FarbusError]
        kind, message, hint = self.value
        return kind(message, hint=hint)


class _Private:
    """The server behind the front for one caller, or one reason to refuse."""

    def __init__(self, server: grpc.aio.Server, path: str) -> None:
        self.server = server
        self.path = path
        self.connections = 0


class LocalFront:
    """Accepts on the public socket and passes bytes on to one private server for each caller.

    Nothing is kept of those that are refused: one server tells all of them.
    """

    def __init__(
        self,
        path: str,
        identify: Callable[[int, int, int], Identity],
        services: Sequence[AddService],
        *,
        options: Sequence[tuple[str, int]],
    ) -> None:
        self._path = Path(path)
        self._identify = identify
        self._services = services
        self._options = options
        self._servers: OrderedDict[Identity | _Refusal, _Private] = OrderedDict()
        """The one that was used last is last."""
        self._made = 0
        self._starting = asyncio.Lock()
        self._users: Counter[int] = Counter()
        """Connections by user id."""
        self._refused = 0
        """Refused connections that are open."""
        self._refusals = 0
        """Since the last line in the log."""
        self._told_at = float("-inf")
        self._connections: set[asyncio.Task[None]] = set()
        self._directory: PrivateDirectory | None = None
        self._front: asyncio.Server | None = None

    async def start(self) -> None:
        """Serve; raise :class:`Conflict` where another process does, :class:`InvalidInput` for an impossible path."""
        if len(os.fsencode(self._path)) > 100:
            raise InvalidInput(f"{self._path}: too long for a Unix socket", hint="choose a path under 100 bytes")
        await self._clear_stale_socket()
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._directory = PrivateDirectory(self._path.parent)
            self._front = await asyncio.start_unix_server(self._accept, str(self._path))
        except OSError as error:
            raise self._impossible(error) from error
        self._path.chmod(0o666)

    def _impossible(self, error: OSError) -> InvalidInput:
        return InvalidInput(
            f"{self._path}: can't make the socket: {error.strerror}", hint="choose a path where this user may write"
        )

    async def _clear_stale_socket(self) -> None:
        try:
            if not stat.S_ISSOCK(self._path.stat().st_mode):
                # Somebody's file: a wrong path is not to cost it.
                raise InvalidInput(
                    f"{self._path}: is there, and no socket", hint="choose another path, or remove what is there"
                )
        except FileNotFoundError:
            if self._path.is_symlink():
                raise InvalidInput(f"{self._path}: is a link that leads nowhere", hint="remove it") from None
            return
        except OSError as error:
            raise self._impossible(error) from error
        try:
            _, writer = await asyncio.open_unix_connection(str(self._path))
        except OSError:
            # Nobody listens: its process was killed.
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        else:
            writer.close()
            raise Conflict(f"{self._path}: another agent serves this socket", hint="stop it or choose another path")

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            uid, gid, pid = _peer_credentials(writer)
        except OSError:
            writer.close()
            return
        caller = self._admit(uid, gid, pid)
        refused = isinstance(caller, _Refusal)
        if refused and self._refused >= MAX_REFUSED:
            writer.close()
            return
        if refused:
            self._refused += 1
        else:
            self._users[uid] += 1

        def end(task: asyncio.Task[None]) -> None:
            self._connections.discard(task)
            writer.close()
            if refused:
                self._refused -= 1
            else:
                self._users[uid] -= 1
                # Counted at 0 it would be kept.
                self._users += Counter()

        task = asyncio.create_task(self._pass_on(caller, reader, writer), name="local connection")
        self._connections.add(task)
        task.add_done_callback(end)

    def _admit(self, uid: int, gid: int, pid: int) -> Identity | _Refusal:
        """Return who connects, or why he may not."""
        limit = MAX_CONNECTIONS + (ROOT_CONNECTIONS if uid == 0 else 0)
        if self._users.total() >= limit or self._users[uid] >= MAX_USER_CONNECTIONS:
            self._note(f"user id {uid}: has {self._users[uid]} connections, all users {self._users.total()}")
            return _Refusal.FULL
        try:
            return self._identify(uid, gid, pid)
        except FarbusError as error:
            self._note(str(error))
            return _Refusal.UNKNOWN

    def _note(self, reason: str) -> None:
        self._refusals += 1
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= REFUSALS_TOLD_S:
            _log.error("refused a local connection: %s (%d since the last line)", reason, self._refusals)
            self._told_at, self._refusals = now, 0

    async def _pass_on(
        self, caller: Identity | _Refusal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry bytes between a caller and his private server, until either of them ends."""
        try:
            async with asyncio.timeout(REFUSED_S if isinstance(caller, _Refusal) else None):
                async with self._private(caller) as path:
                    inner_reader, inner_writer = await asyncio.open_unix_connection(path)
                    with contextlib.closing(inner_writer):
                        # Either end closing ends both: the caller's end of stream is what releases a lease.
                        directions = [
                            asyncio.create_task(_pump(reader, inner_writer)),
                            asyncio.create_task(_pump(inner_reader, writer)),
                        ]
                        try:
                            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
                        finally:
                            for direction in directions:
                                direction.cancel()
                            await asyncio.gather(*directions, return_exceptions=True)
        except TimeoutError:
            # He was told, and has stayed.
            pass
        except (FarbusError, OSError) as error:
            self._note(str(error))

    @contextlib.asynccontextmanager
    async def _private(self, caller: Identity | _Refusal) -> AsyncIterator[str]:
        """Lend the path of the socket whose server knows ``caller``, or tells why it refuses."""
        async with self._starting:
            private = self._servers.get(caller)
            if private is None:
                await self._make_room()
                private = self._servers[caller] = await self._start(caller)
            self._servers.move_to_end(caller)
            private.connections += 1
        try:
            yield private.path
        finally:
            private.connections -= 1

    async def _make_room(self) -> None:
        """Stop the server that has been idle longest, if there are too many."""
        if len(self._servers) < MAX_CALLERS:
            return
        idle = next((caller for caller, private in self._servers.items() if not private.connections), None)
        if idle is None:
            raise Unavailable(f"{MAX_CALLERS} users are connected to {self._path}")
        await self._servers.pop(idle).server.stop(None)

    async def _start(self, caller: Identity | _Refusal) -> _Private:
        if self._directory is None:
            raise Conflict("the agent is stopping")
        self._made += 1
        path = self._directory.path(str(self._made))

        def identity_for(_: Context, method: str) -> Identity:
            if isinstance(caller, _Refusal):
                raise caller.error()
            return resolve_caller(caller, {}, method)

        server = grpc.aio.server(options=self._options)
        for add in self._services:
            add(identity_for, server)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        return _Private(server, path)

    async def stop(self, grace_s: float) -> None:
        """Accept no more, give calls under way ``grace_s`` seconds, then cancel them; leave nothing behind."""
        if self._front is not None:
            self._front.close()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        await asyncio.gather(*(private.server.stop(grace_s) for private in self._servers.values()))
        for connection in tuple(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._directory is not None:
            self._directory.remove()
            self._directory = None


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()


def _peer_credentials(writer: asyncio.StreamWriter) -> tuple[int, int, int]:
    """Return the peer's uid, gid and pid; see SO_PEERCRED in unix(7)."""
    with _borrowed(writer.get_extra_info("socket").fileno()) as borrowed:
        data = borrowed.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", data)
    return uid, gid, pid


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[sockets.socket]:
    """Make a socket of a descriptor that somebody else closes: uvloop's own lacks getsockopt."""
    borrowed = sockets.socket(fileno=os.dup(descriptor))
    try:
        yield borrowed
    finally:
        borrowed.close()
