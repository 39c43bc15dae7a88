"""A peer in the same machine that has the rings of a session, and writes there what it likes: nobody else is hurt.

It may be the server of a program, or the program of a server, or be between the two, which shows both at once
(``rings.py``).  More by hand: ``HOSTILE_SEEDS=1000:1200 pytest tests/remoting/test_hostile_rings.py``.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farbus.remoting import session as wire
from farbus.remoting.spec import EVENTS, OPERATIONS
from tests.remoting.harness import SANITIZED, Remote, hello
from tests.remoting.rings import (
    DEVICE_BYTES,
    FRAME,
    LIBC,
    MEMORY_BYTES,
    RING_BYTES,
    SEALS,
    TAKEN,
    WRITTEN,
    Frames,
    Memory,
    Middle,
    Ring,
    Scribbler,
    between,
    exactly,
    make_memory,
    target_of,
)
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import wait_until
from tests.remoting.test_hostile_server import Altering

Build = Callable[[str], Path]

PROGRAMS: dict[str, tuple[str, ...]] = {
    "copies_of_all_sizes": ("3000", "12", "1"),
    "streams_pinned": (),
    "symbols": (),
    "host_functions": (),
    "managed/copies": (),
}
FIRST, _, LAST = os.environ.get("HOSTILE_SEEDS", "0:2").partition(":")
SEEDS = range(int(FIRST), int(LAST))

PATIENCE_S = 300 if SANITIZED else 60
"""What of a program and its server hangs is not over by then; each of what is written may cost a second."""

RINGS = {"FARBUS_TRANSPORT": "shm"}


def run(remote: Remote, *command: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=remote.environment(**RINGS, **changes),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE_S,
        check=False,
    )


def unhurt(remote: Remote, name: str, done: subprocess.CompletedProcess[str]) -> None:
    """Neither the program nor its server was ended by a signal, and nothing is left of them."""
    told = done.stdout + done.stderr
    # Managed memory that was on a GPU which is lost can't be read: that ends the program (docs/wire.md).
    if name.startswith("managed/") and done.returncode == -signal.SIGSEGV:
        assert any(line in done.stderr for line in ("the connection to the GPU at ", "which can't be reached")), told
    else:
        assert done.returncode >= 0, told
    wait_until(lambda: not remote.supervisor.sessions.sessions, "the server has ended")
    assert not [line for line in remote.lines if "killed by signal" in line], remote.lines


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_between_passes_on(lease: Callable[..., Remote], build: Build, name: str) -> None:
    remote = lease()
    middle = Middle(target=target_of(remote))
    with between(remote, middle):
        done = run(remote, build(f"remoting/{name}"), *PROGRAMS[name])
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert middle.sessions == 1
    unhurt(remote, name, done)


def hurt_frames(seed: int) -> Frames:
    """Says frames twice, not at all, later, with another header or other bytes: one in eight, of the first hundreds."""
    chance = random.Random(f"frames {seed}")
    held: list[bytes] = []

    def change(frame: bytes) -> list[bytes]:
        if chance.random() > 0.125:
            passed = [frame, *held]
            held.clear()
            return passed
        length, opcode, lane, sequence, argument = FRAME.unpack_from(frame)
        rest = frame[FRAME.size :]
        match chance.randrange(7):
            case 0:
                return [frame] * chance.randint(2, 4)
            case 1:
                return []
            case 2:
                held.append(frame)
                return []
            case 3:
                opcode = chance.choice([opcode ^ 0x8000, opcode + 1, 0x100 + chance.randrange(6)])
            case 4:
                sequence += chance.choice([-2, -1, 1, 2, 1 << 63])
            case 5:
                argument = chance.choice([argument ^ 1, 0, 2, 700, 719, (1 << 64) - 1])
            case _:
                at = chance.randrange(len(rest) or 1)
                rest = (rest[:at] + chance.randbytes(8) + rest[at + 8 :])[: len(rest)]
        return [FRAME.pack(length, opcode % (1 << 16), lane, sequence % (1 << 64), argument) + rest]

    return Frames(change)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("who", ["server", "program"])
def test_what_is_altered_in_rings_hurts_nobody(
    lease: Callable[..., Remote], build: Build, name: str, seed: int, who: str
) -> None:
    remote = lease()
    altering = Altering(seed + 1000 * (who == "program"))
    changes = {"back" if who == "server" else "out": altering.take}
    middle = Middle(target=target_of(remote), harmed=lambda: altering.altered, **changes)
    with between(remote, middle):
        done = run(remote, build(f"remoting/{name}"), *PROGRAMS[name])
    assert middle.sessions == 1
    unhurt(remote, name, done)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_server_whose_frames_are_out_of_place_hurts_nobody(
    lease: Callable[..., Remote], build: Build, name: str, seed: int
) -> None:
    remote = lease()
    middle = Middle(target=target_of(remote), harmed=lambda: True, back=hurt_frames(seed).take)
    with between(remote, middle):
        done = run(remote, build(f"remoting/{name}"), *PROGRAMS[name])
    unhurt(remote, name, done)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", SEEDS)
def test_who_writes_into_rings_while_they_are_used_hurts_nobody(
    lease: Callable[..., Remote], build: Build, name: str, seed: int
) -> None:
    remote = lease()
    # Few writes leave a session alive for long, many end it soon.
    scribbler = Scribbler(
        target=target_of(remote), seed=seed, writes=int(10 ** random.Random(seed).uniform(0, 6)), steers=seed % 3 != 0
    )
    with between(remote, scribbler):
        done = run(remote, build(f"remoting/{name}"), *PROGRAMS[name])
    assert scribbler.sessions == 1
    unhurt(remote, name, done)


EVENT = {name: opcode for opcode, name, *_ in EVENTS}
HOST_CALL = struct.Struct("<Qi4x")
FORGOTTEN = -(1 << 31)  # wire/frame.h


def host_call(token: int, status: int) -> bytes:
    return FRAME.pack(HOST_CALL.size, EVENT["host_call"], 0, 0, 0) + HOST_CALL.pack(token, status)


def asked_again(way: str) -> Frames:
    """Asks for each host function and each copy of pinned memory in a way that it may not."""
    told: list[bytes] = []

    def change(frame: bytes) -> list[bytes]:
        _, opcode, *_ = FRAME.unpack_from(frame)
        if opcode not in (EVENT["host_call"], EVENT["pull"]):
            return [frame]
        (token,) = struct.unpack_from("<Q", frame, FRAME.size)
        forgotten = host_call(token, FORGOTTEN)
        match way:
            case "many times":
                return [frame] * 8
            case "and forgets it":
                return [frame, forgotten, forgotten]
            case "and forgets it first":
                return [forgotten, frame, frame]
            case "and those before":
                told.append(frame)
                return [*told[-8:], frame]
            case _:
                # The next ones to be named, of which nobody has been told yet.
                return [host_call(token + (slot << 4), 0) for slot in range(1, 9)] + [frame]

    return Frames(change)


WAYS = ["many times", "and forgets it", "and forgets it first", "and those before", "and those to come"]


@pytest.mark.parametrize("name", ["call_captures", "call_callbacks", "call_graphs", "host_functions"])
@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_asks_when_it_may_not_hurts_nobody(
    lease: Callable[..., Remote], build: Build, tmp_path: Path, name: str, way: str
) -> None:
    remote = lease()
    program = build_calls(name, tmp_path) if name.startswith("call_") else build(f"remoting/{name}")
    with between(remote, Middle(target=target_of(remote), harmed=lambda: True, back=asked_again(way).take)):
        done = run(remote, program)
    unhurt(remote, name, done)


KEEP_SIZE, PUNCH_HOLE = 1, 2  # fallocate(2)
CONTEXT = 1 << 43 | 1 << 4  # a context's handle: kind 1, first slot
OPCODE = {op.name: op.opcode for op in OPERATIONS}


class Raw:
    """A program of the lease's that speaks bytes, through a ring that it has made."""

    def __init__(self, remote: Remote, memory: int, *, capabilities: int = wire.CAPABILITY_SHARED_MEMORY) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(target_of(remote))
        said = hello(remote.secret, capabilities=capabilities)
        socket.send_fds(self.socket, [said], [memory])
        reply = wire.HELLO_REPLY.unpack(exactly(self.socket, wire.HELLO_REPLY.size))
        assert reply[3] == wire.HELLO_OK
        exactly(self.socket, reply[9] * DEVICE_BYTES)
        self.granted = bool(reply[5] & wire.CAPABILITY_SHARED_MEMORY)
        if self.granted:
            self.memory = Memory(memory)
        self._sequence = 0
        self._said = self.payload = b""

    def frame(self, name: str, fixed: bytes = b"", tail: bytes = b"") -> bytes:
        self._sequence += 1
        return FRAME.pack(len(fixed) + len(tail), OPCODE[name], 1, self._sequence, CONTEXT) + fixed + tail

    def ring(self) -> None:
        # A server that is awake may have seen what it is woken for, and have ended.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.send(b"\0")

    def say(self, data: bytes) -> None:
        assert not self.memory.to_server.put(data)
        self.ring()

    def answer(self) -> tuple[int, int]:
        """The next frame: opcode and result; ``payload`` is the rest."""
        while True:
            self._said += self.memory.to_client.take()
            if len(self._said) >= FRAME.size:
                length, opcode, _, _, result = FRAME.unpack_from(self._said)
                if len(self._said) >= FRAME.size + length:
                    self.payload = self._said[FRAME.size : FRAME.size + length]
                    self._said = self._said[FRAME.size + length :]
                    return opcode, result
            if not self.memory.to_client.sleep():
                assert self.socket.recv(64), "the server has hung up"

    def begin(self) -> Raw:
        self.say(self.frame("primary_retain", struct.pack("<IIQ", 0, 0, CONTEXT)))
        assert self.answer() == (OPCODE["primary_retain"] | 0x8000, 0)
        return self

    def ended(self) -> None:
        """Wait until the server has hung up."""
        with contextlib.suppress(ConnectionResetError):
            while self.socket.recv(1 << 10):
                pass

    def close(self) -> None:
        if self.granted:
            self.memory.close()
        self.socket.close()


@pytest.fixture
def raw(remote: Remote) -> Iterator[Callable[..., Raw]]:
    """Programs of one lease, whose servers all end by themselves when they do."""
    with contextlib.ExitStack() as stack:

        def start(memory: int = -1, **changes: int) -> Raw:
            descriptor = make_memory() if memory < 0 else memory
            stack.callback(os.close, descriptor)
            made = Raw(remote, descriptor, **changes)
            stack.callback(made.close)
            return made

        yield start
    wait_until(lambda: not remote.supervisor.sessions.sessions, "the server has ended")
    assert not [line for line in remote.lines if "killed by signal" in line], remote.lines


def set_word(session: Raw, ring: Ring, at: int, value: int) -> None:
    session.memory.words[(ring.head + at) // 8] = value % (1 << 64)
    session.ring()


INDICES: dict[str, Callable[[Raw], None]] = {
    "more written than fits": lambda it: set_word(it, it.memory.to_server, WRITTEN, RING_BYTES << 20),
    "one more than fits": lambda it: set_word(it, it.memory.to_server, WRITTEN, read(it) + RING_BYTES + 1),
    "less written than was taken": lambda it: set_word(it, it.memory.to_server, WRITTEN, read(it) - 1),
    "nothing written": lambda it: set_word(it, it.memory.to_server, WRITTEN, 0),
    "all written": lambda it: set_word(it, it.memory.to_server, WRITTEN, -1),
    "a frame and a length beyond all": lambda it: it.say(struct.pack("<IHHQQ", 0xFFFFFFFF, 0x20, 1, 9, CONTEXT)),
    "a ring full of zeros": lambda it: set_word(it, it.memory.to_server, WRITTEN, read(it) + RING_BYTES),
    "more taken than was written": lambda it: taken_wrong(it, 1 << 30),
    "less taken than fits": lambda it: taken_wrong(it, -RING_BYTES - 1),
}


def read(session: Raw) -> int:
    return session.memory.to_server.word(TAKEN)


def taken_wrong(session: Raw, by: int) -> None:
    ring = session.memory.to_client
    set_word(session, ring, TAKEN, ring.word(WRITTEN) + by)
    # It is looked at where the room that was known has been used up.
    session.say(session.frame("memory_info") * (RING_BYTES // FRAME.size))


@pytest.mark.parametrize("what", INDICES)
def test_an_impossible_index_ends_the_session_and_no_other(raw: Callable[..., Raw], what: str) -> None:
    other, session = raw().begin(), raw().begin()
    INDICES[what](session)
    session.ended()
    for _ in range(3):
        other.say(other.frame("memory_info"))
        assert other.answer() == (OPCODE["memory_info"] | 0x8000, 0)


def test_bytes_that_are_taken_back_in_the_midst_of_a_copy_end_the_session(raw: Callable[..., Raw]) -> None:
    """The driver reads them where they lie, and they are asked for again behind those that are under way."""
    session = raw().begin()
    session.say(session.frame("memory_alloc", struct.pack("<Q", 1 << 20)))
    assert session.answer()[1] == 0
    copy = session.frame("copy_to_device", session.payload[:8] + struct.pack("<Q", 1), bytes(900 << 10))
    session.say(copy[: 200 << 10])
    for step in range(200):
        set_word(session, session.memory.to_server, WRITTEN, read(session) + 4096 * (step % 2))
    set_word(session, session.memory.to_server, WRITTEN, read(session) + RING_BYTES + 1)
    session.ended()


SHAPES = {
    "not sealed": lambda: make_memory(seals=0),
    "may shrink": lambda: make_memory(seals=fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL),
    "may grow": lambda: make_memory(seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL),
    "may be sealed": lambda: make_memory(seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW),
    "may not be written": lambda: make_memory(seals=SEALS | fcntl.F_SEAL_WRITE),
    "larger": lambda: make_memory(size=MEMORY_BYTES + 4096),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_memory_that_somebody_may_cut_off_is_not_taken(raw: Callable[..., Raw], shape: str) -> None:
    session = raw(SHAPES[shape]())
    assert not session.granted
    # It goes on over the socket.
    session.socket.sendall(session.frame("primary_retain", struct.pack("<IIQ", 0, 0, CONTEXT)))
    _, opcode, _, _, result = FRAME.unpack(exactly(session.socket, FRAME.size))
    assert (opcode, result) == (OPCODE["primary_retain"] | 0x8000, 0)


def test_more_descriptors_than_anybody_offers_end_the_session(raw: Callable[..., Raw]) -> None:
    session = raw().begin()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError), open("/dev/null") as null:
        while True:
            socket.send_fds(session.socket, [b"\0"], [null.fileno()])
    session.ended()


def test_pinned_memory_that_loses_its_pages_is_zero(raw: Callable[..., Raw]) -> None:
    """Its length is sealed, its pages are not: they are made anew."""
    size, pinned = 1 << 20, 9 << 43 | 2 << 4
    session, memory = raw().begin(), make_memory(size=size)
    with os.fdopen(memory, "r+b") as file:
        file.write(b"\7" * size)
        file.flush()
        socket.send_fds(session.socket, [b"\0"], [memory])
        session.say(session.frame("pinned_offer", struct.pack("<QQ", pinned, size)))
        session.say(session.frame("pinned_register", struct.pack("<Q", pinned)))
        opcode, result = session.answer()
        assert (opcode, result) == (OPCODE["pinned_register"] | 0x8000, 0)
        session.say(session.frame("memory_alloc", struct.pack("<Q", size)))
        assert session.answer()[1] == 0
        (device,) = struct.unpack("<Q", session.payload)
        LIBC.fallocate(memory, PUNCH_HOLE | KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size))
    copy = struct.pack("<7QIIQ", pinned, 0, size, device, size, size, 1, 1, 1, 1)
    session.say(session.frame("copy_pinned", copy) + session.frame("stream_synchronize", struct.pack("<Q", 1)))
    assert session.answer() == (OPCODE["stream_synchronize"] | 0x8000, 0)
    session.say(session.frame("copy_to_host", struct.pack("<5Q", device, 8, 8, 1, 1)))
    session.answer()
    assert session.payload[-8:] == bytes(8)


def test_who_cuts_off_a_file_that_is_registered_ends_its_own_server_alone(
    remote: Remote, raw: Callable[..., Raw]
) -> None:
    size, pinned = 1 << 20, 9 << 43 | 2 << 4
    other, session, memory = raw().begin(), raw().begin(), make_memory(size=size, seals=0)
    with os.fdopen(memory, "r+b") as file:
        file.write(b"\7" * size)
        file.flush()
        socket.send_fds(session.socket, [b"\0"], [memory])
        session.say(session.frame("pinned_offer_file", struct.pack("<QQQ", pinned, 0, size)))
        session.say(session.frame("pinned_register", struct.pack("<Q", pinned)))
        assert session.answer() == (OPCODE["pinned_register"] | 0x8000, 0)
        session.say(session.frame("memory_alloc", struct.pack("<Q", size)))
        assert session.answer()[1] == 0
        (device,) = struct.unpack("<Q", session.payload)
        file.truncate(0)
    copy = struct.pack("<7QIIQ", pinned, 0, size, device, size, size, 1, 1, 1, 1)
    session.say(session.frame("copy_pinned", copy) + session.frame("stream_synchronize", struct.pack("<Q", 1)))
    session.ended()
    wait_until(lambda: bool(remote.lines), "the supervisor says how it has ended")
    assert "SIGBUS" in remote.lines.pop()
    other.say(other.frame("memory_info"))
    assert other.answer() == (OPCODE["memory_info"] | 0x8000, 0)
