"""Somebody in the middle who alters, repeats, reorders, leaves out and makes up records of TLS.

A session goes on over another connection as if nothing had been, or ends with an error; nothing of it is taken for the
peer's.  At other records: ``HOSTILE_RECORDS=0:40 pytest tests/remoting/test_hostile_tls.py``.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from farbus.remoting import session as wire
from farbus.remoting.session import Server, write_session
from tests.remoting.harness import Remote, lines_of_shim, listening
from tests.remoting.test_failures import wait_until

Build = Callable[[str], Path]

FIRST, _, LAST = os.environ.get("HOSTILE_RECORDS", "").partition(":")
HANDSHAKE = [("program", 0), ("program", 2), ("server", 0), ("server", 2)]
"""Records in which either side still says who it is; a program whose first connection is harmed there has none."""
SESSION = range(int(FIRST), int(LAST)) if LAST else [8]

RECORD = struct.Struct(">BHH")
CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE_TYPE, DATA = 20, 21, 22, 23
TLS_1_2 = 0x0303
STALLED_S = 1.0
"""Nothing comes behind what was harmed: he hangs up, since who waits can't tell him from a slow network."""

MOST_BYTES = (16 << 10) + 256


def record(kind: int, payload: bytes, version: int = TLS_1_2) -> bytes:
    return RECORD.pack(kind, version, len(payload)) + payload


def flipped(data: bytes, at: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def essence(data: bytes) -> bytes:
    """Without records that mean nothing wherever they are said: changes of ciphers (RFC 8446, 5), and requests to begin
    anew, which clients of OpenSSL pass over while they begin."""
    meant = b""
    while len(data) >= RECORD.size:
        kind, _, length = RECORD.unpack_from(data)
        one, data = data[: RECORD.size + length], data[RECORD.size + length :]
        if kind != CHANGE_CIPHER_SPEC and one != HELLO_REQUEST:
            meant += one
    return meant + data


HELLO_REQUEST = record(HANDSHAKE_TYPE, bytes(4))

Harm = Callable[["Way", bytes], bytes]


def swapped(way: Way, one: bytes) -> bytes:
    way.held = one
    return b""


HARMS: dict[str, Harm] = {
    "another type": lambda _, one: flipped(one, 0),
    "another version": lambda _, one: flipped(one, 1),
    "longer by its header": lambda _, one: one[:3] + struct.pack(">H", len(one) - RECORD.size + 1) + one[5:],
    "shorter by its header": lambda _, one: one[:3] + struct.pack(">H", len(one) - RECORD.size - 1) + one[5:],
    "of no length": lambda _, one: one[:3] + bytes(2) + one[5:],
    "of the largest length": lambda _, one: one[:3] + b"\xff\xff" + one[5:],
    "its first byte": lambda _, one: flipped(one, RECORD.size),
    "a byte in the midst": lambda _, one: flipped(one, (RECORD.size + len(one)) // 2),
    "its last byte": lambda _, one: flipped(one, -1),
    "cut off": lambda _, one: one[:-1],
    "cut off with its length": lambda _, one: record(one[0], one[RECORD.size : -1]),
    "left out": lambda _, one: b"",
    "said twice": lambda _, one: one + one,
    "behind the next": swapped,
    "an earlier one again": lambda way, one: way.records[-2 if len(way.records) > 1 else -1] + one,
    "the peer's own": lambda way, one: (way.other.records[-1] if way.other.records else one) + one,
    "plain bytes": lambda _, one: b"GET / HTTP/1.0\r\n\r\n" + one,
    "a plain frame": lambda _, one: record(DATA, bytes(24)) + one,
    "a plain close_notify": lambda _, one: record(ALERT, b"\1\0") + one,
    "a plain fatal alert": lambda _, one: record(ALERT, b"\2\50") + one,
    "a plain hello request": lambda _, one: HELLO_REQUEST + one,
    "a plain key update": lambda _, one: record(HANDSHAKE_TYPE, b"\x18\0\0\1\1") + one,
    "a record of 64 KiB": lambda _, one: record(DATA, bytes((64 << 10) - 1)) + one,
    "a record of the most bytes": lambda _, one: record(DATA, bytes(MOST_BYTES)) + one,
    "a plain change of ciphers": lambda _, one: record(CHANGE_CIPHER_SPEC, b"\1") + one,
    "an empty record": lambda _, one: record(DATA, b"") + one,
}


@dataclass
class Way:
    """One direction of a connection: its records, of which one is harmed."""

    ahead: int
    at: int
    harm: Harm
    records: list[bytes] = field(default_factory=list)
    held: bytes = b""
    harmed: bool = False
    meant: bool = False
    other: Way = field(init=False)
    _rest: bytes = b""

    def take(self, data: bytes) -> bytes:
        self._rest += data
        passed, self._rest = self._rest[: self.ahead], self._rest[self.ahead :]
        self.ahead -= len(passed)
        while not self.ahead and len(self._rest) >= RECORD.size:
            size = RECORD.size + RECORD.unpack_from(self._rest)[2]
            if len(self._rest) < size:
                break
            one, self._rest = self._rest[:size], self._rest[size:]
            passed += self._record(one)
        return passed

    def _record(self, one: bytes) -> bytes:
        held, self.held = self.held, b""
        self.records.append(one)
        if len(self.records) - 1 != self.at:
            return one + held
        harmed = self.harm(self, one)
        self.harmed, self.meant = True, essence(harmed) != essence(one)
        return harmed + held


NOTHING: Harm = lambda _, one: one  # noqa: E731


@dataclass(kw_only=True)
class Between:
    """Harms record ``at`` of what the program says, or of what the server does, in the first ``connections``."""

    target: tuple[str, int]
    harm: Harm
    at: int
    who: str
    connections: int = 1
    made: int = 0
    harmed: int = 0
    meant: bool = False

    def serve(self, listener: socket.socket) -> None:
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(self.target)
            self.made += 1
            harm = self.harm if self.made <= self.connections else NOTHING
            out = Way(wire.HELLO.size, self.at if self.who == "program" else -1, harm)
            back = Way(0, self.at if self.who == "server" else -1, harm)
            out.other, back.other = back, out
            for each in ((client, server, out), (server, client, back)):
                threading.Thread(target=self._pass, args=each, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, way: Way) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                before = way.harmed
                passed = way.take(data)
                # First: what it does may be over before this thread goes on.
                self.harmed += way.harmed and not before and way.harm is not NOTHING
                self.meant = self.meant or way.meant
                target.sendall(passed)
                source.settimeout(STALLED_S if way.harmed and way.harm is not NOTHING else None)
        # What was harmed may be what the other side waits for.
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def between(remote: Remote, **changes: object) -> Iterator[Between]:
    middle = Between(target=remote.supervisor.address, **changes)  # type: ignore[arg-type]
    with listening(middle.serve) as (address, port):
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret)])
        yield middle


@pytest.mark.parametrize("who", ["program", "server"])
@pytest.mark.parametrize("at", SESSION)
@pytest.mark.parametrize("harm", HARMS)
def test_a_session_goes_on_over_another_connection(remote: Remote, build: Build, harm: str, at: int, who: str) -> None:
    with between(remote, harm=HARMS[harm], at=at, who=who) as middle:
        done = remote.run(build("remoting/streams_pinned"), FARBUS_TRANSPORT="tcp")
    assert middle.harmed == 1
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    assert middle.made == 2


@pytest.mark.parametrize("who", ["program", "server"])
@pytest.mark.parametrize("harm", HARMS)
def test_a_session_that_is_not_resumed_ends_with_an_error(remote: Remote, build: Build, harm: str, who: str) -> None:
    with between(remote, harm=HARMS[harm], at=SESSION[0], who=who) as middle:
        done = remote.run(build("remoting/streams_pinned"), FARBUS_TRANSPORT="tcp", FARBUS_GRACE_S="0")
    assert middle.harmed == 1
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = [each for each in lines_of_shim(done.stderr) if each.startswith("farbus:")]
    assert "the connection to the GPU at " in line
    wait_until(lambda: not remote.supervisor.sessions.sessions, "the server has ended")
    assert not [each for each in remote.lines if "killed by signal" in each], remote.lines


@pytest.mark.parametrize(("who", "at"), HANDSHAKE)
@pytest.mark.parametrize("harm", HARMS)
def test_a_handshake_gives_the_session_that_it_would_or_none(
    remote: Remote, build: Build, harm: str, at: int, who: str
) -> None:
    with between(remote, harm=HARMS[harm], at=at, who=who, connections=100) as middle:
        done = remote.run(build("remoting/rows"), FARBUS_TRANSPORT="tcp", FARBUS_GRACE_S="0")
    if done.returncode == 0:
        assert (middle.meant, done.stdout, done.stderr) == (False, "ok\n", "")
    else:
        assert done.returncode == 1, done.stdout + done.stderr
        assert len([each for each in done.stderr.splitlines() if each.startswith("farbus:")]) == 1, done.stderr
    assert middle.harmed
    wait_until(lambda: remote.supervisor.pids == (), "the server has ended")
    assert not [each for each in remote.lines if "killed by signal" in each], remote.lines
