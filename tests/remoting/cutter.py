"""A network that cuts: passes connections of one session on, and cuts them where it is told to.

It reads what it passes on: hello, records (native/transport/resumed/resume_stream.h) and the frames in them, in both
directions, so that a cut can be put at any byte of the session's two streams.  What it has
taken in and not passed on is lost with the connection, as in a real network.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import select
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from farbus.remoting import session as wire

RECORD = struct.Struct("<II")
RECORD_END = 0xFFFFFFFF
HEADER_BYTES = 24
DEVICE_BYTES = 1392
GRANT_BYTES = 40
PIECE_BYTES = 1 << 16
CHUNK_BYTES = 8  # length, number of the connection that carries the next, three zeros


class Kind(enum.Enum):
    """What the two sides notice of a cut."""

    RESET = "reset"  # both are reset
    END = "end"  # both see the connection's end
    HALF = "half"  # the client is reset; to the server the connection looks alive


class Side(enum.Enum):
    CLIENT = "to_server"
    SERVER = "to_client"


#: Asked once for every frame of a side's stream, when its first bytes come: its number, counted from 1, and
#: its length.  Answers behind how many of its bytes to cut, or None.
Decide = Callable[[Side, int, int], int | None]


class Stream:
    """One side's stream, over all connections."""

    def __init__(self, side: Side, decide: Decide) -> None:
        self.offset = 0  # of the first byte that was never passed on
        self._side = side
        self._decide = decide
        self._number = 0
        self._header = b""
        self._left = 0  # bytes of the frame behind its header
        self._cut: int | None = None  # how many bytes on

    def add(self, data: bytes) -> int | None:
        """Take in new bytes; return how many are to be passed on, if a cut comes behind them."""
        at = 0
        while at < len(data):
            if self._left:
                now = min(self._left, len(data) - at)
                self._left -= now
            else:
                now = min(HEADER_BYTES - len(self._header), len(data) - at)
                self._header += data[at : at + now]
            if self._cut is not None and self._cut <= now:
                # Behind a whole header its payload is still to come.
                self._left += now - self._cut
                now, self._cut = self._cut, None
                self.offset += now
                self._begin()
                return at + now
            if self._cut is not None:
                self._cut -= now
            at += now
            self.offset += now
            if self._begin():
                length = HEADER_BYTES + self._left
                cut = self._decide(self._side, self._number, length)
                if cut is not None and cut <= HEADER_BYTES:
                    return at
                self._cut = None if cut is None else min(cut, length) - HEADER_BYTES
        return None

    def _begin(self) -> bool:
        if self._left or len(self._header) < HEADER_BYTES:
            return False
        self._left = int.from_bytes(self._header[:4], "little")
        self._header = b""
        self._number += 1
        return True


class Way:
    """One direction of one connection: finds the stream in what travels."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.start: int | None = None  # the stream's offset at which this connection begins
        self.records: list[int] = []  # bytes of the stream in each
        self._greeting = b""
        self._record = b""
        self._left = 0
        self._at = 0

    def take(self, data: bytes, begins: Callable[[bytes], int | None]) -> tuple[bytes, bool]:
        """Return what to pass on, and whether the connection is cut behind it."""
        passed = 0
        while passed < len(data):
            if self.start is None:
                self._greeting += data[passed : passed + 1]
                passed += 1
                self.start = begins(self._greeting)
                self._at = self.start or 0
            elif not self._left:
                self._record += data[passed : passed + 1]
                passed += 1
                if len(self._record) == RECORD.size:
                    (self._left, _) = RECORD.unpack(self._record)
                    self._record = b""
                    if self._left == RECORD_END:
                        return data, False
                    self.records.append(self._left)
            else:
                piece = data[passed : passed + self._left]
                known = max(0, min(len(piece), self.stream.offset - self._at))
                cut = self.stream.add(piece[known:])
                taken = len(piece) if cut is None else known + cut
                passed += taken
                self._left -= taken
                self._at += taken
                if cut is not None:
                    return data[:passed], True
        return data, False


def _close(connection: socket.socket, *, reset: bool) -> None:
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class Network(abc.ABC):
    """Listens on the loopback, for connections to ``target``."""

    def __init__(self, target: tuple[str, int], kind: Kind) -> None:
        self._target = target
        self._kind = kind
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._half_open: list[socket.socket] = []
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.cuts = 0

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Cut for good: nobody gets through any more, though nobody is refused."""
        self._wake.close()
        self._thread.join()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        for each in (self._listener, self._woken, *self._half_open):
            each.close()

    @abc.abstractmethod
    def _run(self) -> None:
        """Pass connections on until there is something to read at ``_woken``."""

    def _accept(self) -> tuple[socket.socket, socket.socket] | None:
        """Accept a connection; return it and one to the target, if that is there."""
        client, _ = self._listener.accept()
        try:
            return client, socket.create_connection(self._target)
        except OSError:
            client.close()
            return None

    def _cut(self, client: socket.socket, server: socket.socket) -> None:
        _close(client, reset=self._kind is not Kind.END)
        if self._kind is Kind.HALF:
            self._half_open.append(server)
        else:
            _close(server, reset=self._kind is Kind.RESET)


class Cutter(Network):
    """Passes connections on one after the other."""

    def __init__(
        self,
        target: tuple[str, int],
        decide: Decide,
        kind: Kind = Kind.RESET,
        hello_cut: Callable[[int], bool] = lambda _: False,
        cut_bytes: Callable[[], int] | None = None,
    ) -> None:
        """``hello_cut``: is the connection of that number, from 1, to be cut behind its hello?

        ``cut_bytes``: what travels can't be read, and each connection is cut behind so many bytes of both directions.
        """
        super().__init__(target, kind)
        self._hello_cut = hello_cut
        self._cut_bytes = cut_bytes
        self._streams = {side: Stream(side, decide) for side in Side}
        self._received = 0
        self.connections = 0

    def records(self, side: Side) -> list[int]:
        """How much of a side's stream came in each of its records, over the last connection."""
        return self._ways[side].records

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._woken in ready:
                    return
                accepted = self._accept()
                if not accepted:
                    continue
                self.connections += 1
                if not self._pass(*accepted):
                    return

    def _begins_to_server(self, greeting: bytes) -> int | None:
        if len(greeting) < wire.HELLO.size:
            return None
        fields = wire.HELLO.unpack(greeting)
        self._resumed = bool(fields[6])
        self._received = fields[7]
        return 0 if not self._resumed else -1  # told by the answer

    def _begins_to_client(self, greeting: bytes) -> int | None:
        if len(greeting) < wire.HELLO_REPLY.size:
            return None
        fields = wire.HELLO_REPLY.unpack(greeting[: wire.HELLO_REPLY.size])
        tail = fields[10] + (8 if self._resumed else fields[9] * DEVICE_BYTES + GRANT_BYTES)
        if len(greeting) < wire.HELLO_REPLY.size + tail:
            return None
        if self._resumed:
            self._ways[Side.CLIENT]._at = int.from_bytes(greeting[-8:], "little")
        return self._received

    def _pass(self, client: socket.socket, server: socket.socket) -> bool:
        """Pass bytes on until the connection ends or is cut; False: this network is to end."""
        self._ways = {side: Way(stream) for side, stream in self._streams.items()}
        left = self._cut_bytes() if self._cut_bytes else 0
        begins = {Side.CLIENT: self._begins_to_server, Side.SERVER: self._begins_to_client}
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(client, selectors.EVENT_READ, (Side.CLIENT, server))
            selector.register(server, selectors.EVENT_READ, (Side.SERVER, client))
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        self._cut(client, server)
                        return False
                    side, other = key.data
                    assert isinstance(key.fileobj, socket.socket)
                    try:
                        data = key.fileobj.recv(PIECE_BYTES)
                    except OSError:
                        data = b""
                    if self._cut_bytes:
                        passed, cut = data[:left], len(data) > left
                        left -= len(passed)
                    else:
                        passed, cut = self._ways[side].take(data, begins[side])
                    if side is Side.SERVER and self._hello_cut(self.connections):
                        passed, cut = b"", True
                    try:
                        other.sendall(passed)
                    except OSError:
                        data = b""
                    if cut:
                        self.cuts += 1
                        self._cut(client, server)
                        return True
                    if not data:
                        with contextlib.suppress(OSError):
                            client.close()
                            server.close()
                        return True


class Line(NamedTuple):
    """One connection through a relay."""

    client: socket.socket
    server: socket.socket
    number: int
    end: int | None  # behind how many bytes it is cut

    def across(self, side: socket.socket) -> socket.socket:
        return self.server if side is self.client else self.client


class Relay(Network):
    """Passes any number of connections on at once, and cuts each by itself.

    None of them waits for another, nor one direction for the other.  ``cut_bytes``: behind how many bytes of both
    directions the connection of that number, from 1, is cut; None: never.
    """

    def __init__(
        self,
        target: tuple[str, int],
        cut_bytes: Callable[[int], int | None] = lambda _: None,
        kind: Kind = Kind.RESET,
    ) -> None:
        super().__init__(target, kind)
        self._cut_bytes = cut_bytes
        self._lines: dict[socket.socket, Line] = {}
        self._held: dict[socket.socket, bytes] = {}  # what each side has sent and the other has not taken
        #: Bytes that each connection has carried.
        self.carried: list[int] = []

    def _run(self) -> None:
        while True:
            readable, writable, _ = select.select(
                [self._woken, self._listener, *(side for side in self._lines if not self._held[side])],
                [side for side, line in self._lines.items() if self._held[line.across(side)]],
                [],
            )
            if self._woken in readable:
                for side in self._lines:
                    side.close()
                return
            if self._listener in readable:
                accepted = self._accept()
                if accepted:
                    self._begin(*accepted)
            for sides, take in ((readable, True), (writable, False)):
                for side in sides:
                    line = self._lines.get(side)
                    if line:
                        self._pass(line, side, take=take)

    def _begin(self, client: socket.socket, server: socket.socket) -> None:
        self.carried.append(0)
        number = len(self.carried)
        line = Line(client, server, number, self._cut_bytes(number))
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            side.setblocking(False)
            self._lines[side] = line
            self._held[side] = b""

    def _pass(self, line: Line, side: socket.socket, *, take: bool) -> None:
        """Take what a side has sent, or give it what the other has sent."""
        at = line.number - 1
        try:
            if take:
                self._held[side] = side.recv(PIECE_BYTES)
                ended = not self._held[side]
            else:
                data = self._held[line.across(side)]
                sent = side.send(data if line.end is None else data[: line.end - self.carried[at]])
                self._held[line.across(side)] = data[sent:]
                self.carried[at] += sent
                ended = False
        except OSError:
            ended = True
        if ended or self.carried[at] == line.end:
            for each in (line.client, line.server):
                del self._lines[each], self._held[each]
            if ended:
                line.client.close()
                line.server.close()
            else:
                self.cuts += 1
                self._cut(line.client, line.server)


class Branch:
    """One connection of a bundle."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.ends = {Side.CLIENT: client, Side.SERVER: server}
        self.greeting = dict.fromkeys(Side, b"")
        self.greeted = dict.fromkeys(Side, False)
        self.number = -1  # not known before the server has answered

    def missing(self, side: Side) -> int:
        """Return how many bytes of that side's greeting are certainly still to come."""
        said = self.greeting[side]
        if side is Side.CLIENT:
            return wire.HELLO.size - len(said)
        if len(said) < wire.HELLO_REPLY.size:
            return wire.HELLO_REPLY.size - len(said)
        fields = wire.HELLO_REPLY.unpack(said[: wire.HELLO_REPLY.size])
        resumed = wire.HELLO.unpack(self.greeting[Side.CLIENT])[6]
        tail = fields[10] + (8 if resumed else fields[9] * DEVICE_BYTES + GRANT_BYTES)
        return wire.HELLO_REPLY.size + int(tail) - len(said)


class Order:
    """One direction of a bundle: over which connection the stream goes on, and where in a chunk it is."""

    def __init__(self, way: Way, at: int) -> None:
        self.way = way
        way.start = way._at = at
        self.reading = 0
        self.header = b""
        self.left = 0


class BundleCutter(Network):
    """Passes a session's several connections on in the order of its streams, and cuts all at once.

    What has come over a connection that the stream has not reached waits there, as a network may let it wait: so a
    cut can be put behind any byte of the streams, as :class:`Cutter` does with one connection.
    """

    def __init__(self, target: tuple[str, int], decide: Decide, kind: Kind = Kind.RESET) -> None:
        super().__init__(target, kind)
        self._streams = {side: Stream(side, decide) for side in Side}
        self._orders: dict[Side, Order] = {}
        self._branches: list[Branch] = []
        self._beginning = -1
        #: Connections that have carried something of a stream, by number.
        self.used: set[int] = set()

    def _run(self) -> None:
        while True:
            sources = {
                branch.ends[side]: (branch, side)
                for branch in self._branches
                for side in Side
                if not branch.greeted[side] or (side in self._orders and branch.number == self._orders[side].reading)
            }
            readable, _, _ = select.select([self._woken, self._listener, *sources], [], [])
            if self._woken in readable:
                self._drop()
                return
            for ready in readable:
                if ready is self._listener:
                    accepted = self._accept()
                    if accepted:
                        for each in accepted:
                            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        self._branches.append(Branch(*accepted))
                    continue
                branch, side = sources[ready]
                if branch in self._branches and not self._pass(branch, side):
                    self._drop()

    def _drop(self) -> None:
        for branch in self._branches:
            for end in branch.ends.values():
                end.close()
        self._branches.clear()
        self._orders.clear()

    def _pass(self, branch: Branch, side: Side) -> bool:
        """Pass on what has come there; False: a side has ended."""
        other = branch.ends[Side.SERVER if side is Side.CLIENT else Side.CLIENT]
        order = None if not branch.greeted[side] else self._orders[side]
        if order is None:
            most = branch.missing(side)
        else:
            most = min(order.left, PIECE_BYTES) or len_missing(order.header)
        try:
            data = branch.ends[side].recv(most)
            if not data:
                return False
            if order is None or not order.left:
                other.sendall(data)
        except OSError:
            return False
        if order is None:
            branch.greeting[side] += data
            if not branch.missing(side):
                branch.greeted[side] = True
                self._greeted(branch, side)
            return True
        if not order.left:
            order.header += data
            if not len_missing(order.header):
                order.left = int.from_bytes(order.header[:4], "little")
            return True
        self.used.add(branch.number)
        passed, cut = order.way.take(data, lambda _: None)
        with contextlib.suppress(OSError):
            other.sendall(passed)
        if cut:
            self.cuts += 1
            for each in self._branches:
                self._cut(each.ends[Side.CLIENT], each.ends[Side.SERVER])
            self._branches.clear()
            self._orders.clear()
            return True
        order.left -= len(data)
        if not order.left:
            order.reading = order.header[4]
            order.header = b""
        return True

    def _greeted(self, branch: Branch, side: Side) -> None:
        hello = wire.HELLO.unpack(branch.greeting[Side.CLIENT])
        session, received = hello[6], hello[7]
        added = bool(session) and received == self._beginning
        if side is Side.CLIENT:
            if not added:
                # The session begins, or goes on with what was not lost: nothing of before counts any more.
                self._branches.remove(branch)
                self._drop()
                self._branches.append(branch)
                self._beginning = int.from_bytes(hello[10][:8], "little")
            return
        reply = branch.greeting[Side.SERVER]
        if wire.HELLO_REPLY.unpack(reply[: wire.HELLO_REPLY.size])[3] != wire.HELLO_OK:
            return
        told = int.from_bytes(reply[-8:], "little")
        branch.number = told if added else 0
        if not added:
            self._orders = {
                Side.CLIENT: Order(Way(self._streams[Side.CLIENT]), told if session else 0),
                Side.SERVER: Order(Way(self._streams[Side.SERVER]), received),
            }


def len_missing(header: bytes) -> int:
    """Return how many bytes of a chunk's header (native/transport/sockets/bundle.c) are still to come."""
    return CHUNK_BYTES - len(header)
