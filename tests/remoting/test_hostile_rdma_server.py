"""A server of RDMA sessions, or who is between it and the program, that does what it likes: the program is not hurt.

Between a program and its server there is one who ends both ones' RDMA and passes on what they say, until he does one
thing that he may not.  He closes the connection when nothing happens behind that: a server may take its time over an
answer, and a program waits for it.  More by hand:
``HOSTILE_SEEDS=100:120 pytest tests/remoting/test_hostile_rdma_server.py``.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from farbus.remoting import session as wire
from farbus.remoting.session import Server, write_session
from tests.remoting.harness import Remote, listening
from tests.remoting.test_hostile_server import PATIENCE_S, STALLED_S, Altering
from tests.verbs.door import FakeDoor
from tests.verbs.peer import (
    DEVICE_BYTES,
    GRANT,
    MESSAGES,
    RESUMED,
    RING_BYTES,
    STEP_BYTES,
    Broken,
    Rings,
    Terms,
    gid_of,
    take,
    word_hear,
    word_say,
)

Build = Callable[[str], Path]
FIRST, _, LAST = os.environ.get("HOSTILE_SEEDS", "0:1").partition(":")

PROGRAMS = {"copies_of_all_sizes": ("9000", "25", "2"), "host_functions": (), "streams_pinned": ()}


class Middle:
    """One who has a program at one side and its server at the other; what he does to the program is a subclass's.

    He does it behind so many messages of the server's, to the first connections alone.
    """

    HARMS = 2
    """Connections to which it is done."""
    NEVER = 1 << 60

    def __init__(self, door: FakeDoor, seed: str) -> None:
        self.chance = random.Random(seed)
        self.door = door
        self.messages = 0  # still to be passed on before he does it; below 0: he has
        self.done = False
        self.harms = 0
        self.lost = False

    def serve(self, listener: socket.socket, target: tuple[str, int]) -> None:
        for number in range(1_000):
            near, _ = listener.accept()
            near.settimeout(PATIENCE_S)
            self.messages = int(2 ** self.chance.uniform(0, 2.5)) if number < self.HARMS else self.NEVER
            self.done = False
            with (
                near,
                contextlib.suppress(Broken, ConnectionError, TimeoutError),
                socket.create_connection(target, timeout=PATIENCE_S) as far,
            ):
                self.join(near, far)
            # What was altered may be what the program waits for, over whichever connection.
            if self.lost:
                return

    def join(self, near: socket.socket, far: socket.socket) -> None:
        hello = take(near, wire.HELLO.size)
        far.sendall(hello)
        reply = take(far, wire.HELLO_REPLY.size)
        fields = wire.HELLO_REPLY.unpack(reply)
        resumed = wire.HELLO.unpack(hello)[6]
        near.sendall(
            reply + take(far, fields[10] + (RESUMED.size if resumed else fields[9] * DEVICE_BYTES + GRANT.size))
        )
        if not fields[5] & wire.CAPABILITY_RDMA:
            self.relay(near, far)
            return
        program, server = Rings(self.door, near), Rings(self.door, far)
        try:
            if self.agree(program):
                server.agree_as_client()
                self.pass_on(program, server)
            else:
                # The other side goes on over TCP, too.
                Terms.take(far)
                far.sendall(server.terms._replace(status=1).pack())
                self.relay(near, far)
        finally:
            program.close()
            server.close()

    def agree(self, program: Rings) -> bool:
        program.agree_as_server()
        return True

    def relay(self, near: socket.socket, far: socket.socket) -> None:
        while True:
            ready, _, _ = select.select([near, far], [], [])
            for one, other in ((near, far), (far, near)):
                if one in ready:
                    data = one.recv(1 << 20)
                    if not data:
                        return
                    other.sendall(data)

    def pass_on(self, program: Rings, server: Rings) -> None:
        while True:
            moved = [self.forward(program, server, hostile=False), self.forward(server, program, hostile=True)]
            if any(moved):
                continue
            both = (program, server)
            lines = [each for rings in both for each in (rings.reader, rings.writer)]
            for line in lines:
                line.arm()
            before = [rings.progress() for rings in both]
            for rings in both:
                rings.pump()
            if [rings.progress() for rings in both] != before:
                continue
            sockets = [rings.connection for rings in both]
            told = [line.descriptor for line in lines if line.descriptor is not None]
            ready, _, _ = select.select([*told, *sockets], [], [], STALLED_S)
            if not ready and self.harms:
                self.lost = not self.done
                return
            if any(each in ready for each in sockets):
                return

    def forward(self, source: Rings, target: Rings, *, hostile: bool) -> bool:
        at = source.taken % RING_BYTES
        count = min(
            source.there - source.taken,
            target.room(),
            STEP_BYTES,
            RING_BYTES - target.written % RING_BYTES,
            RING_BYTES - at,
        )
        if not count:
            return False
        data = source.memory.get(at, count)
        source.taken += count
        if hostile or not self.done:
            source.tell()
        target.put(data)
        if hostile and not self.messages and not self.done:
            self.done = True
            self.harms += 1
            self.harm(target, data)
        else:
            target.message(count)
        if hostile:
            self.messages = max(self.messages - 1, 0)
        return True

    def harm(self, program: Rings, data: bytes) -> None:
        """Do what may not be done, where ``data``, which lies in the mirror, was to be sent."""
        raise NotImplementedError


class Bytes(Middle):
    """Other bytes, more or fewer."""

    def harm(self, program: Rings, data: bytes) -> None:
        altered = Altering(self.chance.randrange(1 << 30)).take(data)[: program.room()]
        altered = altered[: RING_BYTES - program.written % RING_BYTES]
        program.put(altered)
        program.message(len(altered))


class Anew(Middle):
    """Bytes that are written again and again, with others, behind the word that they are there."""

    def harm(self, program: Rings, data: bytes) -> None:
        assert program.theirs
        at = program.written % RING_BYTES
        program.message(len(data))
        for _ in range(100):
            where = at + self.chance.randrange(min(len(data), 64))
            count = min(8, RING_BYTES - where)
            program.memory.put(
                RING_BYTES + where, self.chance.choice([b"\xff" * 8, bytes(8), self.chance.randbytes(8)])[:count]
            )
            program.write(where, count, to=program.theirs.ring + where)


class Length(Middle):
    """A word that says another length."""

    def harm(self, program: Rings, data: bytes) -> None:
        program.message(len(data), counts=self.chance.choice([RING_BYTES, RING_BYTES + 1, 1 << 31, 0xFFFFFFFF]))


class Taken(Middle):
    """A word that says that something was taken which was not written."""

    def harm(self, program: Rings, data: bytes) -> None:
        program.message(len(data))
        more = self.chance.choice([(0, RING_BYTES), (MESSAGES, 0), (0, 0), (1 << 9, 1 << 21)])
        program.credit(program.messages_told + more[0], program.told + more[1])


class Word(Middle):
    """A byte over TCP."""

    def harm(self, program: Rings, data: bytes) -> None:
        program.message(len(data))
        program.connection.sendall(b"x")


class Elsewhere(Middle):
    """What is outside of the ring, or has another key."""

    def harm(self, program: Rings, data: bytes) -> None:
        assert program.theirs
        offset, key = self.chance.choice([(-1, 0), (RING_BYTES - 1, 0), (RING_BYTES, 0), (0, 1), (0, 1 << 31)])
        program.write(0, 8, to=program.theirs.ring + offset, key=program.theirs.key ^ key)
        program.flush()


class Gone(Middle):
    """Queue pairs that are no more, beside a TCP connection that stays."""

    def harm(self, program: Rings, data: bytes) -> None:
        program.reader.stop()
        program.writer.stop()


class Full(Middle):
    """Nothing is taken any more."""

    def harm(self, program: Rings, data: bytes) -> None:
        program.message(len(data))

    def forward(self, source: Rings, target: Rings, *, hostile: bool) -> bool:
        return (hostile or not self.done) and super().forward(source, target, hostile=hostile)


class Silent(Middle):
    """Half of what is to come, and then nothing."""

    def harm(self, program: Rings, data: bytes) -> None:
        program.message(len(data) // 2 + 1)
        raise Broken("he has gone")


class HalfClosed(Middle):
    """One direction of the TCP connection ends."""

    def harm(self, program: Rings, data: bytes) -> None:
        program.message(len(data))
        program.connection.shutdown(socket.SHUT_WR)


class Flood(Middle):
    """Words of nothing."""

    def harm(self, program: Rings, data: bytes) -> None:
        program.message(len(data))
        for _ in range(8 * MESSAGES):
            while not program.room():
                program.wait()
            program.message(0)


class Agreement(Middle):
    """Terms and words that lead nowhere: both sides go on over TCP."""

    def agree(self, program: Rings) -> bool:
        if self.messages == Middle.NEVER:
            return super().agree(program)
        self.harms += 1
        terms, connection = program.terms, program.connection
        spoiled = self.chance.choice([
            terms._replace(ring=self.chance.getrandbits(64)),
            terms._replace(key=terms.key ^ 1),
            terms._replace(gid=gid_of("::1")),
            terms._replace(mtu=self.chance.choice([0, 99, 0xFFFFFFFF])),
            terms._replace(ring_bytes=self.chance.choice([0, 1 << 31])),
            terms._replace(writer=0xFFFFFFFF),
            terms._replace(status=1),
            None,
        ])  # fmt: skip
        connection.sendall((spoiled or terms).pack())
        theirs = Terms.take(connection)
        if theirs.status:
            return False
        program.connect(theirs)
        # That its packet has come, which none has sent, and which it can't send itself; or that none has.
        word_say(connection, 0 if spoiled else 1)
        assert not spoiled or word_hear(connection)
        return False


CUTS: list[type[Middle]] = [Elsewhere, Gone, Full, Silent, HalfClosed, Flood, Agreement]
"""What they say is right, or comes to nothing: the program goes on and computes right."""

LIES: list[type[Middle]] = [Bytes, Anew, Length, Taken, Word]


def run_beside(
    remote: Remote, middle: Middle, program: Path, *arguments: str, grace_s: int
) -> subprocess.CompletedProcess[str]:
    with listening(lambda listener: middle.serve(listener, remote.supervisor.address)) as (address, port):
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret, tls=False, rdma=True)])
        # Nobody of this machine is found, nor is it insisted upon RDMA.
        assert remote.supervisor._local is not None
        remote.supervisor._local.shutdown(socket.SHUT_RDWR)
        done = subprocess.run(
            [program, *arguments],
            env=remote.environment(FARBUS_GRACE_S=str(grace_s)),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            check=False,
        )
    assert middle.harms
    return done


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", CUTS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST)))
def test_what_breaks_a_connection_is_a_cut(
    rdma_lease: Callable[..., Remote], build: Build, door: FakeDoor, name: str, kind: type[Middle], seed: int
) -> None:
    done = run_beside(
        rdma_lease(tls=False), kind(door, f"{name} {seed}"), build(f"remoting/{name}"), *PROGRAMS[name], grace_s=30
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", LIES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST)))
def test_a_lie_hurts_nobody(
    rdma_lease: Callable[..., Remote], build: Build, door: FakeDoor, name: str, kind: type[Middle], seed: int
) -> None:
    done = run_beside(
        rdma_lease(tls=False), kind(door, f"{name} {seed}"), build(f"remoting/{name}"), *PROGRAMS[name], grace_s=4
    )
    assert done.returncode >= 0, done.stdout + done.stderr
