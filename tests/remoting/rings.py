"""Somebody between a program and its server on one machine, who has the memory that both share.

``Middle`` ends neither's session: each has a ring of its own with him, and what one says he passes on to the other, or
what he makes of it.  ``Scribbler`` lets both have the same memory, and writes into it what he likes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
import random
import select
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from farbus.remoting import session as wire
from farbus.remoting.session import Server, write_session
from tests.remoting.harness import Remote

RING_BYTES = 512 << 10
HEAD_BYTES, BYTES_AT = 256, 4096
"""What steers one ring, and where the first ring's bytes begin."""
MEMORY_BYTES = BYTES_AT + 2 * RING_BYTES
WRITTEN, TAKEN, READER_ASLEEP, WRITER_ASLEEP, ROOM = 0, 64, 128, 192, 196
DEVICE_BYTES = 1392
DESCRIPTOR = struct.Struct("i")

FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
FUTEX_WAKE = 1
LIBC = ctypes.CDLL(None)

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

STALLED_MS = 1_000
"""Nothing comes any more, for nobody knows what was asked: he hangs up, as one who was killed."""


class Broken(Exception):
    """A side says what nobody may say."""


class Memory:
    """What a program and its server share."""

    def __init__(self, descriptor: int) -> None:
        self.map = mmap.mmap(descriptor, MEMORY_BYTES)
        self.bytes = memoryview(self.map)
        #: An index is read and written at once, as the other side reads it.
        self.words = self.bytes.cast("Q")
        self.flags = self.bytes.cast("I")
        self.to_server, self.to_client = Ring(self, 0), Ring(self, 1)
        start = ctypes.c_char.from_buffer(self.map)
        self.address = ctypes.addressof(start)
        del start
        self._lock = threading.Lock()

    def wake(self, at: int) -> None:
        """Wake who sleeps on that word (futex(2))."""
        LIBC.syscall(FUTEX, ctypes.c_void_p(self.address + at), FUTEX_WAKE, 1, None, None, 0)

    def fence(self) -> None:
        """What was written before is seen before what is read behind it: a lock's instruction sees to that."""
        with self._lock:
            pass

    def close(self) -> None:
        for view in (self.words, self.flags, self.bytes):
            view.release()
        self.map.close()


class Ring:
    def __init__(self, memory: Memory, number: int) -> None:
        self.memory = memory
        self.head = number * HEAD_BYTES
        self.begin = BYTES_AT + number * RING_BYTES

    def word(self, at: int) -> int:
        return self.memory.words[(self.head + at) // 8]

    def take(self) -> bytes:
        """All that is there."""
        written, taken = self.word(WRITTEN), self.word(TAKEN)
        if not 0 <= written - taken <= RING_BYTES:
            raise Broken
        there = b""
        while taken < written:
            at = taken % RING_BYTES
            now = min(written - taken, RING_BYTES - at)
            there += bytes(self.memory.bytes[self.begin + at : self.begin + at + now])
            taken += now
        self.memory.words[(self.head + TAKEN) // 8] = taken
        if there:
            self.memory.flags[(self.head + ROOM) // 4] = (self.memory.flags[(self.head + ROOM) // 4] + 1) % (1 << 32)
            self.memory.wake(self.head + ROOM)
        return there

    def put(self, data: bytes) -> bytes:
        """As much as there is room for; the rest."""
        written = self.word(WRITTEN)
        now = min(len(data), RING_BYTES - (written - self.word(TAKEN)))
        if not 0 <= now <= RING_BYTES:
            raise Broken
        at = written % RING_BYTES
        straight = min(now, RING_BYTES - at)
        self.memory.bytes[self.begin + at : self.begin + at + straight] = data[:straight]
        self.memory.bytes[self.begin : self.begin + now - straight] = data[straight:now]
        self.memory.words[(self.head + WRITTEN) // 8] = written + now
        return data[now:]

    def sleep(self) -> bool:
        """Have the writer wake this side; says whether there is something by now."""
        self.memory.flags[(self.head + READER_ASLEEP) // 4] = 1
        self.memory.fence()
        return self.word(WRITTEN) != self.word(TAKEN)


def make_memory(*, seals: int = SEALS, size: int = MEMORY_BYTES, flags: int = 0) -> int:
    descriptor = os.memfd_create("farbus-remoting-session", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    os.posix_fallocate(descriptor, 0, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise Broken
        data += more
    return data


def pass_reply(near: socket.socket, far: socket.socket) -> bool:
    """Pass on the answer to a hello; says whether a session begins with it."""
    reply = exactly(far, wire.HELLO_REPLY.size)
    fields = wire.HELLO_REPLY.unpack(reply)
    granted = fields[3] == wire.HELLO_OK
    near.sendall(reply + exactly(far, fields[9] * DEVICE_BYTES if granted else fields[10]))
    return granted and bool(fields[5] & wire.CAPABILITY_SHARED_MEMORY)


def hang_up(*connections: socket.socket) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def bells(source: socket.socket, target: socket.socket) -> int:
    """Pass on what wakes the other side, and descriptors; how many bytes there were, -1: the end."""
    heard = 0
    while True:
        try:
            data, ancillary, _, _ = source.recvmsg(1, socket.CMSG_LEN(DESCRIPTOR.size), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return heard
        except OSError:
            return -1
        if not data:
            return -1
        heard += 1
        try:
            target.sendmsg([data], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            pass  # it is full of what wakes
        except OSError:
            return -1
        finally:
            for _, _, descriptor in ancillary:
                os.close(*DESCRIPTOR.unpack(descriptor))


def unaltered(data: bytes) -> bytes:
    return data


@dataclass(kw_only=True)
class Middle:
    """Passes on what both sides say, as ``out`` (of the program's) and ``back`` (of the server's) make it.

    ``harmed`` says whether anything was made of it; from then on silence is an end.
    """

    target: str
    out: Callable[[bytes], bytes] = unaltered
    back: Callable[[bytes], bytes] = unaltered
    harmed: Callable[[], bool] = lambda: False
    sessions: int = 0

    def serve(self, near: socket.socket) -> None:
        hello, descriptors, _, _ = socket.recv_fds(near, wire.HELLO.size, 4)
        with contextlib.ExitStack() as stack:
            for descriptor in descriptors:
                stack.callback(os.close, descriptor)
            far = stack.enter_context(socket.socket(socket.AF_UNIX))
            far.connect(self.target)
            # Who asks how a session has ended has none.
            if not descriptors:
                far.sendall(hello)
                with contextlib.suppress(Broken, OSError):
                    pass_reply(near, far)
                return
            theirs, ours = descriptors[0], make_memory()
            stack.callback(os.close, ours)
            socket.send_fds(far, [hello], [self.given(theirs, ours)])
            if pass_reply(near, far):
                self.sessions += 1
                with contextlib.suppress(Broken, OSError):
                    self.join(near, far, theirs, ours)
            hang_up(near, far)

    def given(self, theirs: int, ours: int) -> int:
        """The memory that the server gets."""
        return ours

    def join(self, near: socket.socket, far: socket.socket, theirs: int, ours: int) -> None:
        client, server = Memory(theirs), Memory(ours)
        waits = {"out": b"", "back": b""}
        ended = False
        try:
            while not ended or any(waits.values()):
                moved = False
                for way, source, target, peer, change in (
                    ("out", client.to_server, server.to_server, far, self.out),
                    ("back", server.to_client, client.to_client, near, self.back),
                ):
                    taken = source.take()
                    # A descriptor comes ahead of the frame that it is of.
                    if way == "out":
                        ended = bells(near, far) < 0 or ended
                    says = waits[way] + (change(taken) if taken else b"")
                    waits[way] = target.put(says)
                    moved = moved or bool(taken) or len(waits[way]) < len(says)
                    if len(waits[way]) < len(says):
                        peer.send(b"\0", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                ended = bells(far, near) < 0 or ended
                if moved:
                    continue
                # Who writes looks for a sleeper behind writing.
                if client.to_server.sleep() or server.to_client.sleep():
                    continue
                if not self._waits(near, far, bool(waits["out"] or waits["back"])) and self.harmed():
                    return
                if ended:
                    return
        except BlockingIOError:
            pass
        finally:
            client.close()
            server.close()

    @staticmethod
    def _waits(near: socket.socket, far: socket.socket, full: bool) -> bool:
        """Whether anything happens."""
        poll = select.poll()
        for each in (near, far):
            poll.register(each, select.POLLIN)
        return bool(poll.poll(20 if full else STALLED_MS)) or full


@dataclass(kw_only=True)
class Scribbler(Middle):
    """Lets both have the same memory, in which a thread writes as long as the session lasts."""

    seed: int
    writes: int
    #: What there is to write: of indices and flags, of bytes.
    steers: bool = True
    stop: threading.Event = field(default_factory=threading.Event)

    def given(self, theirs: int, ours: int) -> int:
        return theirs

    def join(self, near: socket.socket, far: socket.socket, theirs: int, ours: int) -> None:
        memory = Memory(theirs)
        done = threading.Event()
        thread = threading.Thread(target=self._scribble, args=(memory, done))
        thread.start()
        try:
            while True:
                poll = select.poll()
                for each in (near, far):
                    poll.register(each, select.POLLIN)
                quiet = not poll.poll(STALLED_MS)
                if quiet and done.is_set():
                    return
                if bells(near, far) < 0 or bells(far, near) < 0:
                    return
        finally:
            self.stop.set()
            thread.join()
            memory.close()

    def _scribble(self, memory: Memory, done: threading.Event) -> None:
        chance = random.Random(self.seed)
        for _ in range(self.writes):
            if self.stop.is_set():
                break
            self._write(memory, chance)
        done.set()

    def _write(self, memory: Memory, chance: random.Random) -> None:
        ring = chance.choice([memory.to_server, memory.to_client])
        if not self.steers or chance.random() < 0.5:
            # Near what is being written or read.
            at = (ring.word(chance.choice([WRITTEN, TAKEN])) + chance.randint(-64, 4096)) % RING_BYTES
            memory.bytes[ring.begin + at] = chance.randrange(256)
            return
        match chance.randrange(5):
            case 0:
                at = (ring.head + chance.choice([WRITTEN, TAKEN])) // 8
                memory.words[at] = (memory.words[at] + chance.randint(-(64 << 10), 64 << 10)) % (1 << 64)
            case 1:
                memory.words[(ring.head + chance.choice([WRITTEN, TAKEN])) // 8] = chance.getrandbits(64)
            case 2:
                memory.words[(ring.head + chance.choice([WRITTEN, TAKEN])) // 8] = 1 << chance.randrange(64)
            case 3:
                at = ring.head + chance.choice([READER_ASLEEP, WRITER_ASLEEP, ROOM])
                memory.flags[at // 4] = chance.getrandbits(2)
            case _:
                memory.words[(ring.head + 8 * chance.randrange(HEAD_BYTES // 8)) // 8] = chance.getrandbits(64)


@contextlib.contextmanager
def between(remote: Remote, middle: Middle) -> Iterator[None]:
    """Have the lease's programs find ``middle`` where their supervisor is."""
    with tempfile.TemporaryDirectory(prefix="farbus-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / "socket"
        listener.bind(str(path))
        listener.listen()
        write_session(remote.session, [Server(address=str(path), port=None, secret=remote.secret, tls=False)])
        threads: list[threading.Thread] = []
        connections: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, _ = listener.accept()
                    thread = threading.Thread(target=serve, args=(near,))
                    threads.append(thread)
                    connections.append(near)
                    thread.start()

        def serve(near: socket.socket) -> None:
            with near, contextlib.suppress(OSError, Broken):
                middle.serve(near)

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield
        finally:
            hang_up(listener)
            accepting.join()
            hang_up(*connections)
            for thread in threads:
                thread.join()


def target_of(remote: Remote) -> str:
    return wire.local_name(remote.secret)


FRAME = struct.Struct("<IHHQQ")


class Frames:
    """A stream of frames, each as ``change`` makes it: a list of frames in its place."""

    def __init__(self, change: Callable[[bytes], list[bytes]]) -> None:
        self._change = change
        self._rest = b""

    def take(self, data: bytes) -> bytes:
        self._rest += data
        changed = []
        while len(self._rest) >= FRAME.size:
            size = FRAME.size + FRAME.unpack_from(self._rest)[0]
            if len(self._rest) < size:
                break
            changed += self._change(self._rest[:size])
            self._rest = self._rest[size:]
        return b"".join(changed)
