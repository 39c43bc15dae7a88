"""A peer of remoting over RDMA that is none of ours: docs/wire.md in Python, from hello to calls and resumed streams.

It does what the page says, so that it shows whether the page says enough, and each of its steps can be taken alone, and
wrongly.  Verbs are behind a :class:`Door`: the tests' own device by :mod:`tests.verbs.door`, a kernel's by pyverbs
(:mod:`tests.verbs.pyverbs_door`).
"""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from farbus.remoting import session as wire
from farbus.remoting.spec import EVENTS, OPERATIONS

RING_BYTES = 1 << 20
MESSAGES = 256
"""Receives of a reader: messages that may be under way to it."""
CREDITS = 32
STEP_BYTES = 128 << 10

CREDIT_BYTES_BITS = 22
CREDIT_BYTES_MASK = (1 << CREDIT_BYTES_BITS) - 1
CREDIT_MESSAGES_MASK = (1 << 32 - CREDIT_BYTES_BITS) - 1

DEVICE_BYTES = 1392
GRANT = struct.Struct("<32sII")
RESUMED = struct.Struct("<Q")
RECORD = struct.Struct("<II")
RECORD_END = 0xFFFFFFFF
FRAME = struct.Struct("<IHHQQ")
REPLY = 0x8000
OPCODE = {op.name: op.opcode for op in OPERATIONS}
DATA = next(opcode for opcode, name, *_ in EVENTS if name == "data")
BULK_BYTES = 1 << 20
ACKNOWLEDGE_BYTES = 1 << 20
"""What is read before that is said; a window is never less than twice as much."""

LOOK_S = 0.001
"""Between two looks where nobody is told."""
PATIENCE_S = 60.0
"""How long anything may take that has to come; a guest of the lab is slow."""


class Opcode(IntEnum):
    """Requests (enum ibv_wr_opcode)."""

    WRITE = 0
    WRITE_WITH_IMMEDIATE = 1
    SEND = 2
    SEND_WITH_IMMEDIATE = 3
    READ = 4


class Done(NamedTuple):
    """A completion."""

    id: int
    status: int  # enum ibv_wc_status
    heard: bool  # of a receive
    immediate: int


class Region(Protocol):
    """Registered memory."""

    address: int
    remote_key: int

    def put(self, at: int, data: bytes) -> None: ...

    def get(self, at: int, count: int) -> bytes: ...

    def close(self) -> None: ...


class Line(Protocol):
    """A reliable connected queue pair, with the completion queue that is its alone."""

    number: int
    descriptor: int | None  # of who is told of completions; None: nobody is

    def connect(self, number: int, *, theirs: int, ours: int, mtu: int, gid: bytes) -> None: ...

    def receive(self, count: int) -> None: ...

    def post(
        self, opcode: Opcode, region: Region | None, at: int, count: int, *, to: int, key: int, immediate: int
    ) -> None: ...

    def poll(self) -> Sequence[Done]: ...

    def arm(self) -> None: ...

    def stop(self) -> None:
        """Answer nothing any more."""

    def close(self) -> None: ...


class Door(Protocol):
    """An open device of RDMA with the address that was asked for."""

    gid: bytes
    mtu: int  # enum ibv_mtu

    def region(self, count: int) -> Region: ...

    def line(self, *, sends: int, receives: int) -> Line: ...

    def close(self) -> None: ...


class Broken(Exception):
    """A request has failed, or the peer is gone."""


def gid_of(address: str) -> bytes:
    """Return an address as RoCE v2 writes it."""
    if ":" in address:
        return socket.inet_pton(socket.AF_INET6, address)
    return bytes(10) + b"\xff\xff" + socket.inet_pton(socket.AF_INET, address)


def take(connection: socket.socket, count: int) -> bytes:
    """Receive exactly so many bytes."""
    taken = b""
    while len(taken) < count:
        got = connection.recv(count - len(taken))
        if not got:
            raise Broken(f"the connection ended behind {len(taken)} of {count} bytes")
        taken += got
    return taken


class Terms(NamedTuple):
    """What each side tells the other before they go on by RDMA."""

    status: int
    mtu: int
    reader: int
    reader_first: int
    writer: int
    writer_first: int
    ring: int
    key: int
    ring_bytes: int
    gid: bytes

    LAYOUT = struct.Struct("<II4IQII16s")
    WORD = struct.Struct("<I")

    def pack(self) -> bytes:
        return self.LAYOUT.pack(*self)

    @classmethod
    def take(cls, connection: socket.socket) -> Terms:
        return cls(*cls.LAYOUT.unpack(take(connection, cls.LAYOUT.size)))


def word_say(connection: socket.socket, status: int = 0) -> None:
    connection.sendall(Terms.WORD.pack(status))


def word_hear(connection: socket.socket) -> int:
    (status,) = Terms.WORD.unpack(take(connection, Terms.WORD.size))
    return int(status)


def completions(line: Line) -> Iterator[Done]:
    """Yield all that there are."""
    while done := line.poll():
        yield from done


class Rings:
    """Both rings of one connection: what has been agreed upon, and how far either side has come."""

    def __init__(self, door: Door, connection: socket.socket) -> None:
        self.door = door
        self.connection = connection
        # The ring that the peer writes, and behind it the mirror of the peer's.
        self.memory = door.region(2 * RING_BYTES)
        self.reader = door.line(sends=CREDITS, receives=MESSAGES)
        self.writer = door.line(sends=MESSAGES, receives=CREDITS)
        self.reader.receive(MESSAGES)
        self.writer.receive(CREDITS)
        self.terms = Terms(
            status=0,
            mtu=door.mtu,
            reader=self.reader.number,
            reader_first=secrets.randbits(24),
            writer=self.writer.number,
            writer_first=secrets.randbits(24),
            ring=self.memory.address,
            key=self.memory.remote_key,
            ring_bytes=RING_BYTES,
            gid=door.gid,
        )
        self.theirs: Terms | None = None
        self.written = self.written_taken = self.sent = self.sent_taken = 0
        self.under_way = 0  # requests of the writer that are not complete
        self.telling = 0  # and of the reader
        self.there = self.taken = self.told = self.messages = self.messages_told = 0
        self.ended = False

    # ---- agreeing ----

    def connect(self, theirs: Terms) -> None:
        """Let the peer's queue pairs in."""
        self.theirs = theirs
        mtu = min(theirs.mtu, self.terms.mtu)
        self.reader.connect(
            theirs.writer, theirs=theirs.writer_first, ours=self.terms.reader_first, mtu=mtu, gid=theirs.gid
        )
        self.writer.connect(
            theirs.reader, theirs=theirs.reader_first, ours=self.terms.writer_first, mtu=mtu, gid=theirs.gid
        )

    def probe(self) -> None:
        """Have a packet of the path's full size arrive."""
        assert self.theirs
        self.message(128 << min(self.theirs.mtu, self.terms.mtu), counts=0)
        self.flush()

    def flush(self) -> None:
        """Wait until what was written has arrived."""
        while self.under_way:
            self.wait()

    def agree_as_client(self) -> None:
        self.connect(Terms.take(self.connection))
        self.connection.sendall(self.terms.pack())
        if word_hear(self.connection):
            raise Broken("the server can't")
        self.probe()
        word_say(self.connection)

    def agree_as_server(self) -> None:
        self.connection.sendall(self.terms.pack())
        self.connect(Terms.take(self.connection))
        self.probe()
        word_say(self.connection)
        if word_hear(self.connection):
            raise Broken("the client can't")

    # ---- what has happened ----

    def pump(self) -> None:
        """Take in completions."""
        for done in completions(self.reader):
            if done.status:
                raise Broken(f"status {done.status} of a reader")
            if done.heard:
                self.there += done.immediate
                self.messages += 1
                self.reader.receive(1)
            else:
                self.telling -= 1
        for done in completions(self.writer):
            if done.status:
                raise Broken(f"status {done.status} of a writer")
            if done.heard:
                self.written_taken += (done.immediate - self.written_taken) & CREDIT_BYTES_MASK
                self.sent_taken += ((done.immediate >> CREDIT_BYTES_BITS) - self.sent_taken) & CREDIT_MESSAGES_MASK
                self.writer.receive(1)
            else:
                self.under_way -= 1

    def progress(self) -> tuple[int, ...]:
        """Return what changes with every completion."""
        return self.there, self.messages, self.written_taken, self.sent_taken, self.under_way, self.telling

    def wait(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until something has happened; raises :class:`Broken` where nothing does, or the peer is gone."""
        end = time.monotonic() + timeout_s
        lines = [each for each in (self.reader.descriptor, self.writer.descriptor) if each is not None]
        while True:
            self.reader.arm()
            self.writer.arm()
            before = self.progress()
            self.pump()
            if self.progress() != before:
                return
            if self.ended or self.connection.fileno() < 0:
                raise Broken("the connection has ended")
            left_s = max(end - time.monotonic(), 0)
            ready, _, _ = select.select([*lines, self.connection], [], [], left_s if lines else min(left_s, LOOK_S))
            if self.connection in ready:
                with contextlib.suppress(ConnectionResetError):
                    if self.connection.recv(1, socket.MSG_PEEK):
                        raise Broken("a byte over TCP")
                # What it had said before may have come.
                self.ended = True
            elif not ready and not left_s:
                raise Broken("nothing happens")

    # ---- writing ----

    def room(self) -> int:
        if self.sent - self.sent_taken >= MESSAGES or self.under_way >= MESSAGES:
            return 0
        # Less than none where it was said that more is there than can be.
        return max(RING_BYTES - (self.written - self.written_taken), 0)

    def message(self, count: int, *, counts: int | None = None) -> None:
        """Have so many bytes of the mirror written to the ring, and say that ``counts`` of them are there."""
        assert self.theirs
        at = self.written % RING_BYTES
        counts = count if counts is None else counts
        self.write(at, count, immediate=counts & 0xFFFFFFFF, to=self.theirs.ring + at)
        self.written += counts
        self.sent += 1

    def write(self, at: int, count: int, *, to: int, key: int | None = None, immediate: int | None = None) -> None:
        """Have bytes of the mirror written anywhere, with a word or without."""
        assert self.theirs
        opcode = Opcode.WRITE if immediate is None else Opcode.WRITE_WITH_IMMEDIATE
        key = self.theirs.key if key is None else key
        self.writer.post(opcode, self.memory, RING_BYTES + at, count, to=to, key=key, immediate=immediate or 0)
        self.under_way += 1

    def put(self, data: bytes) -> None:
        """Have the mirror hold what the next message brings."""
        self.memory.put(RING_BYTES + self.written % RING_BYTES, data)

    def send(self, data: bytes) -> None:
        while data:
            count = min(self.room(), STEP_BYTES, RING_BYTES - self.written % RING_BYTES, len(data))
            if not count:
                self.wait()
                continue
            self.put(data[:count])
            self.message(count)
            data = data[count:]

    # ---- reading ----

    def tell(self, *, least_bytes: int = RING_BYTES // 4, least_messages: int = MESSAGES // 4) -> None:
        """Give room back, where that is worth a word."""
        if self.telling >= CREDITS:
            return
        if self.taken - self.told < least_bytes and self.messages - self.messages_told < least_messages:
            return
        self.credit(self.messages, self.taken)
        self.told, self.messages_told = self.taken, self.messages

    def credit(self, messages: int, taken: int) -> None:
        """Say that so much has been taken."""
        word = (messages & CREDIT_MESSAGES_MASK) << CREDIT_BYTES_BITS | taken & CREDIT_BYTES_MASK
        self.reader.post(Opcode.WRITE_WITH_IMMEDIATE, None, 0, 0, to=0, key=0, immediate=word)
        self.telling += 1

    def read(self) -> bytes:
        """Return what is there, at least a byte."""
        while self.there == self.taken:
            self.wait()
        at = self.taken % RING_BYTES
        data = self.memory.get(at, min(self.there - self.taken, RING_BYTES - at))
        self.taken += len(data)
        self.tell()
        return data

    def close(self) -> None:
        self.reader.close()
        self.writer.close()
        self.memory.close()


class Tcp:
    """The same over TCP."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def read(self) -> bytes:
        data = self._connection.recv(1 << 20)
        if not data:
            raise Broken("the connection has ended")
        return data


class Frame(NamedTuple):
    opcode: int
    sequence: int
    result: int
    payload: bytes


class Client:
    """A session, as a program's shim has it."""

    def __init__(self, address: tuple[str, int], secret: bytes, door: Door | None = None) -> None:
        """Say hello, ask for RDMA where there is a door, and go on by it as soon as :meth:`begin` is called."""
        self.address = address
        self.secret = secret
        self.door = door
        self._connections: list[socket.socket] = []
        self.connection = self._connect()
        self.rings: Rings | None = None
        self.carrier: Rings | Tcp = Tcp(self.connection)
        asked = wire.CAPABILITY_RESUME | wire.CAPABILITY_WINDOWS | (wire.CAPABILITY_RDMA if door else 0)
        self.connection.sendall(self._hello(secret, asked))
        reply = wire.HELLO_REPLY.unpack(take(self.connection, wire.HELLO_REPLY.size))
        if reply[3] != wire.HELLO_OK:
            raise Broken(f"the hello is refused with status {reply[3]}")
        self.granted, self.number = reply[5], reply[6]
        take(self.connection, reply[10] + reply[9] * DEVICE_BYTES)
        self.token, self.grace_ms, _ = GRANT.unpack(take(self.connection, GRANT.size))
        self.has_rdma = bool(self.granted & wire.CAPABILITY_RDMA)
        # Streams, each from byte 0.
        self.kept = b""  # of ours, what was not acknowledged
        self.acknowledged = 0
        self.received = self.told = 0
        self._pending = b""  # of the connection, what is no whole record yet
        self._stream = b""  # of theirs, what is no whole frame yet
        self._left = 0
        self._sequence = 0

    def _connect(self) -> socket.socket:
        self._connections.append(socket.create_connection(self.address, timeout=PATIENCE_S))
        return self._connections[-1]

    @staticmethod
    def _hello(key: bytes, asked: int, *, session: int = 0, received: int = 0, program: bytes = b"peer") -> bytes:
        said = (
            wire.HELLO_MAGIC,
            wire.PROTOCOL_MAJOR,
            wire.PROTOCOL_MINOR,
            0x01020304,
            1,
            asked,
            session,
            received,
            1,
            0,
        )
        return wire.prove(wire.HELLO.pack(*said, secrets.token_bytes(16), b"", program), key)

    def begin(self) -> None:
        """Go on by RDMA, which the server has granted."""
        assert self.door
        assert self.has_rdma
        self.rings = Rings(self.door, self.connection)
        self.rings.agree_as_client()
        self.carrier = self.rings

    # ---- another connection ----

    def dial(self, *, rdma: bool = False, received: int | None = None, token: bytes | None = None) -> int | None:
        """Say over another connection that the session goes on there; how much of ours the server has, or None."""
        self.connection = self._connect()
        asked = wire.CAPABILITY_RESUME | (wire.CAPABILITY_RDMA if rdma else 0)
        hello = self._hello(
            wire.resume_key(self.secret, self.number),
            asked,
            session=self.number,
            received=self.received if received is None else received,
            program=self.token if token is None else token,
        )
        self.connection.sendall(hello)
        reply = wire.HELLO_REPLY.unpack(take(self.connection, wire.HELLO_REPLY.size))
        take(self.connection, reply[10])
        if reply[3] != wire.HELLO_OK:
            return None
        self.has_rdma = bool(reply[5] & wire.CAPABILITY_RDMA)
        (has,) = RESUMED.unpack(take(self.connection, RESUMED.size))
        return int(has)

    def resume(self, has: int) -> None:
        """Go on over the connection that was dialled, or by the RDMA that was agreed upon there."""
        self.carrier = self.rings if self.rings and self.rings.connection is self.connection else Tcp(self.connection)
        self._pending, self._left = b"", 0
        self.kept = self.kept[has - self.acknowledged :]
        self.acknowledged = has
        if self.kept:
            self._record(self.kept)

    def dial_and_resume(self, *, rdma: bool = False) -> None:
        """Go on, by RDMA if that is wanted."""
        has = self.dial(rdma=rdma)
        assert has is not None, "the server refuses to go on"
        if rdma:
            self.begin()
        self.resume(has)

    # ---- records, frames, calls ----

    def _record(self, data: bytes) -> None:
        self.told = self.received
        self.carrier.send(RECORD.pack(len(data), self.received & 0xFFFFFFFF) + data)

    def sendall(self, data: bytes) -> None:
        """Add to the stream."""
        self.kept += data
        self._record(data)

    def recv(self, count: int) -> bytes:
        """Return the stream's next bytes, at least one and at most so many."""
        while True:
            if self._left and self._pending:
                data = self._pending[: min(self._left, count)]
                self._pending = self._pending[len(data) :]
                self._left -= len(data)
                self.received += len(data)
                if self.received - self.told >= ACKNOWLEDGE_BYTES:
                    self._record(b"")
                return data
            if not self._left and len(self._pending) >= RECORD.size:
                length, acknowledged = RECORD.unpack(self._pending[: RECORD.size])
                self._pending = self._pending[RECORD.size :]
                if length == RECORD_END:
                    raise Broken("the server has ended the session")
                self._left = length
                fresh = (acknowledged - self.acknowledged) & 0xFFFFFFFF
                assert fresh <= len(self.kept), "the server acknowledges what was never sent"
                self.kept = self.kept[fresh:]
                self.acknowledged += fresh
                continue
            self._pending += self.carrier.read()

    def send(self, name: str | int, fixed: bytes = b"", tail: bytes = b"", *, context: int = 0, lane: int = 1) -> None:
        self.sendall(self.frame(name, fixed, tail, context=context, lane=lane))

    def frame(
        self, name: str | int, fixed: bytes = b"", tail: bytes = b"", *, context: int = 0, lane: int = 1
    ) -> bytes:
        """Return what a request is on the wire."""
        self._sequence += 1
        opcode = OPCODE[name] if isinstance(name, str) else name
        return FRAME.pack(len(fixed) + len(tail), opcode, lane, self._sequence, context) + fixed + tail

    def receive(self) -> Frame:
        while len(self._stream) < FRAME.size or len(self._stream) < FRAME.size + FRAME.unpack_from(self._stream)[0]:
            self._stream += self.recv(1 << 20)
        length, opcode, _, sequence, result = FRAME.unpack_from(self._stream)
        payload = self._stream[FRAME.size : FRAME.size + length]
        self._stream = self._stream[FRAME.size + length :]
        return Frame(opcode, sequence, result, payload)

    def answer(self, name: str) -> Frame:
        """Wait for the reply to a request."""
        frame = self.receive()
        assert frame.opcode == OPCODE[name] | REPLY, f"{frame.opcode:#x} instead of the reply to {name}"
        return frame

    def call(self, name: str, fixed: bytes = b"", *, context: int = 0) -> Frame:
        self.send(name, fixed, context=context)
        return self.answer(name)

    # ---- what a program does ----

    CONTEXT = 1 << 43 | 1 << 4  # a context's handle: kind 1, first slot
    STREAM = 1  # the legacy stream

    def open_context(self) -> None:
        assert self.call("primary_retain", struct.pack("<IIQ", 0, 0, self.CONTEXT)).result == 0

    def works(self) -> bool:
        """Whether a call is answered as it should be."""
        return self.call("memory_info", context=self.CONTEXT).result == 0

    def allocate(self, count: int) -> int:
        frame = self.call("memory_alloc", struct.pack("<Q", count), context=self.CONTEXT)
        assert frame.result == 0
        (address,) = struct.unpack("<Q", frame.payload)
        return int(address)

    def pieces(self, address: int, data: bytes) -> Iterator[bytes]:
        """Return the frames that copy to the device."""
        for at in range(0, len(data), BULK_BYTES // 2):
            piece = data[at : at + BULK_BYTES // 2]
            fixed = struct.pack("<QQ", address + at, self.STREAM)
            yield self.frame("copy_to_device", fixed, piece, context=self.CONTEXT)

    def to_device(self, address: int, data: bytes) -> None:
        for frame in self.pieces(address, data):
            self.sendall(frame)

    def ask_for(self, address: int, count: int) -> None:
        fixed = struct.pack("<QQQQQ", address, count, count, 1, self.STREAM)
        self.send("copy_to_host", fixed, context=self.CONTEXT)

    def to_host(self, address: int, count: int) -> bytes:
        self.ask_for(address, count)
        return self.copied(count)

    def copied(self, count: int) -> bytes:
        """Wait for what was asked for."""
        data = bytearray(count)
        while (frame := self.receive()).opcode == DATA:
            _, at = struct.unpack_from("<QQ", frame.payload)
            data[at : at + len(frame.payload) - 16] = frame.payload[16:]
        assert (frame.opcode, frame.result) == (OPCODE["copy_to_host"] | REPLY, 0)
        return bytes(data)

    def end(self) -> None:
        """Say that the session has ended, where that is still heard."""
        with contextlib.suppress(Broken, OSError):
            if isinstance(self.carrier, Tcp) or self.carrier.room():
                self.carrier.send(RECORD.pack(RECORD_END, self.received & 0xFFFFFFFF))
            while isinstance(self.carrier, Rings) and self.carrier.under_way:
                self.carrier.wait(1.0)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        if self.rings:
            self.rings.close()
