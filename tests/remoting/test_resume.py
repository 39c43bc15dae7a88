"""A session outlives its connection: the program notices nothing, or hears of the end."""

from __future__ import annotations

import contextlib
import random
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farbus.remoting import session as wire
from farbus.remoting.session import Server, write_session
from tests.remoting.cutter import DEVICE_BYTES, GRANT_BYTES, RECORD, Cutter, Decide, Kind, Side
from tests.remoting.harness import Remote, lines_of_shim, remote_session
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import PATIENCE_S, alive, wait_until
from tests.remoting.test_hostile import HEADER, OPCODE

Build = Callable[[str], Path]

#: Order between threads, copies in both directions and in pieces, host functions, errors that come late.
PROGRAMS = (
    "behind_host_function",
    "copy_arrives_alone",
    "events",
    "fault",
    "handed_over",
    "host_functions",
    "pageable_source",
    "rows",
    "streams_pinned",
    "symbols",
)
#: Frames of one side behind which every connection is cut; of later ones, every so many.
CUTS_EACH = 60
CUTS_LATER = 40
DATA_BYTES = 16  # struct wire_data
#: How long a server waits for a program whose connection was closed (native/server/session/resume.c).
CLOSED_GRACE_S = 5.0


def at_frames(side: Side, inside: Callable[[int], int]) -> Decide:
    """Cut once in every frame of that side, where ``inside`` says for its length."""

    def decide(where: Side, number: int, length: int) -> int | None:
        if where is not side or (number > CUTS_EACH and number % CUTS_LATER):
            return None
        return inside(length)

    return decide


def at_random(seed: int, mean_bytes: int) -> Decide:
    """Cut somewhere, on an average once in so many bytes."""
    chance = random.Random(seed)

    def decide(where: Side, number: int, length: int) -> int | None:
        return chance.randint(1, length) if chance.random() < length / mean_bytes else None

    return decide


@pytest.fixture
def remote(lease: Callable[..., Remote]) -> Remote:
    """What travels can be read, by the network that cuts between what it reads."""
    return lease(tls=False)


def run_cut(
    remote: Remote, program: Path, decide: Decide, kind: Kind = Kind.RESET, **changes: str
) -> tuple[int, str, str, int]:
    with Cutter(remote.supervisor.address, decide, kind) as network:
        address, port = network.address
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret, tls=False)])
        done = remote.run(program, FARBUS_TRANSPORT="tcp", **changes)
        return done.returncode, done.stdout, done.stderr, network.cuts


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("name", PROGRAMS)
def test_cut_behind_every_frame(remote: Remote, build: Build, name: str, side: Side) -> None:
    code, out, err, cuts = run_cut(remote, build(f"remoting/{name}"), at_frames(side, lambda length: length))
    assert (code, out) == (0, "ok\n"), out + err
    assert lines_of_shim(err) == []
    assert cuts >= 5


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("name", ["handed_over", "rows", "streams_pinned"])
def test_cut_within_every_frame(remote: Remote, build: Build, name: str, side: Side) -> None:
    code, out, err, cuts = run_cut(remote, build(f"remoting/{name}"), at_frames(side, lambda length: length // 2))
    assert (code, out, err) == (0, "ok\n", "")
    assert cuts >= 5


@pytest.mark.parametrize("kind", [Kind.END, Kind.HALF])
@pytest.mark.parametrize("name", ["behind_host_function", "rows"])
def test_cut_that_looks_otherwise(remote: Remote, build: Build, name: str, kind: Kind) -> None:
    """An orderly end, as of a relay that is stopped; and one that the server doesn't hear of."""
    code, out, err, cuts = run_cut(
        remote, build(f"remoting/{name}"), at_frames(Side.CLIENT, lambda length: length), kind
    )
    assert (code, out, err) == (0, "ok\n", "")
    assert cuts >= 5


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["streams_pinned", "threads"])
def test_cut_at_random(remote: Remote, build: Build, name: str, seed: int) -> None:
    code, out, err, cuts = run_cut(
        remote, build(f"remoting/{name}"), at_random(seed, mean_bytes=20_000), random.Random(seed).choice(list(Kind))
    )
    assert (code, out, err) == (0, "ok\n", "")
    assert cuts > 0


def test_a_small_copy_to_the_host_and_its_reply_are_one_message(remote: Remote, build: Build) -> None:
    data, reply, copies = HEADER.size + DATA_BYTES + 4, HEADER.size, 100
    with Cutter(remote.supervisor.address, lambda *_: None) as network:
        address, port = network.address
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret, tls=False)])
        done = remote.run(build("remoting/small_copies"), FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    records = network.records(Side.SERVER)
    assert (records.count(data + reply), records.count(data)) == (copies, 0)


@pytest.mark.parametrize("seed", range(4))
def test_copies_of_all_sizes_cut_at_random(remote: Remote, build: Build, seed: int) -> None:
    code, out, err, cuts = run_cut(
        remote,
        build("remoting/copies_of_all_sizes"),
        at_random(seed, mean_bytes=1 << 20),
        random.Random(seed).choice(list(Kind)),
    )
    assert (code, out, err) == (0, "ok\n", "")
    assert cuts > 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["behind_host_function", "rows", "streams_pinned"])
def test_cut_at_random_under_encryption(lease: Callable[..., Remote], build: Build, name: str, seed: int) -> None:
    """A handshake, and the hellos, travel too: some connections get no further."""
    remote, chance = lease(), random.Random(seed)
    with Cutter(
        remote.supervisor.address,
        lambda *_: None,
        chance.choice(list(Kind)),
        cut_bytes=lambda: chance.randint(1, 60_000) if network.connections > 1 else 30_000,
    ) as network:
        address, port = network.address
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret)])
        done = remote.run(build(f"remoting/{name}"), FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    assert network.cuts > 0


def test_cut_again_before_the_resume_is_answered(remote: Remote, build: Build) -> None:
    """Every second connection gets no further than its hello."""
    with Cutter(
        remote.supervisor.address, at_frames(Side.CLIENT, lambda length: length), hello_cut=lambda n: n % 2 == 0
    ) as network:
        address, port = network.address
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret, tls=False)])
        done = remote.run(build("remoting/rows"), FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    assert network.cuts > 10


def started(remote: Remote, program: Path, **changes: str) -> subprocess.Popen[str]:
    running = remote.start(program, FARBUS_TRANSPORT="tcp", **changes)
    assert running.stdout is not None
    assert running.stdout.readline() == "waiting\n"
    return running


@contextlib.contextmanager
def cut_off(remote: Remote, program: Path, **changes: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A program at work whose network has gone, and does not come back; and its server, which may end at once."""
    with Cutter(remote.supervisor.address, lambda *_: None) as network:
        address, port = network.address
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret, tls=False)])
        running = started(remote, program, **changes)
        (server,) = remote.supervisor.pids
        try:
            network.stop()
            yield running, server
        finally:
            running.kill()
            running.communicate()


@pytest.mark.parametrize("name", ["wait_forever", "copies_until_lost"])
def test_after_the_grace_time_every_thread_gets_an_error_and_the_server_goes(
    libcuda: Path, tmp_path: Path, build: Build, name: str
) -> None:
    with (
        remote_session(libcuda=libcuda, folder=tmp_path, environment={}, grace_s=1, tls=False) as remote,
        cut_off(remote, build(f"remoting/{name}")) as (program, server),
    ):
        _, err = program.communicate(timeout=PATIENCE_S)
        assert program.returncode == 3
        assert err.count("it was cut and did not come back in time") == 1
        wait_until(lambda: not alive(server), "the server has ended")


def test_the_program_may_have_less_patience_than_the_server(remote: Remote, build: Build) -> None:
    with cut_off(remote, build("remoting/wait_forever"), FARBUS_GRACE_S="1") as (program, _):
        program.communicate(timeout=PATIENCE_S)
        assert program.returncode == 3


@pytest.mark.parametrize("setting", ["soon", "-1", "+1", " 1", "1.5", "86401", "9" * 30])
def test_a_grace_time_that_is_none_is_refused(remote: Remote, build: Build, setting: str) -> None:
    done = remote.run(build("remoting/rows"), FARBUS_TRANSPORT="tcp", FARBUS_GRACE_S=setting)
    assert done.returncode == 1
    assert done.stderr == f'farbus: FARBUS_GRACE_S is "{setting}": set it to seconds, at most 86400\n'
    assert "cudaErrorInvalidValue" in done.stdout


def test_without_grace_a_cut_is_the_end(remote: Remote, build: Build) -> None:
    with cut_off(remote, build("remoting/wait_forever"), FARBUS_GRACE_S="0") as (program, server):
        _, err = program.communicate(timeout=PATIENCE_S)
        assert program.returncode == 3
        assert "the server or its lease has ended" in err
        assert err.endswith("; start the program again\n")
        wait_until(lambda: not alive(server), "the server has ended")


def test_a_program_that_ends_while_it_is_cut_ends(remote: Remote, build: Build) -> None:
    with cut_off(remote, build("remoting/wait_forever")) as (program, _):
        program.terminate()
        program.communicate(timeout=PATIENCE_S)
        assert program.returncode == -signal.SIGTERM


def test_the_end_of_the_lease_is_the_end_of_a_session_that_is_cut(remote: Remote, build: Build) -> None:
    program = started(remote, build("remoting/wait_forever"))
    try:
        remote.supervisor.stop()
        _, err = program.communicate(timeout=PATIENCE_S)
        assert program.returncode == 3
        assert "the server or its lease has ended" in err
    finally:
        program.kill()
        program.communicate()


def test_a_program_that_ends_well_leaves_no_server(remote: Remote, build: Build) -> None:
    """It says that it ends: the server need not wait whether it was only cut."""
    done = remote.run(build("remoting/no_cleanup"), FARBUS_TRANSPORT="tcp")
    began = time.monotonic()
    wait_until(lambda: remote.supervisor.pids == (), "the server has ended")
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began < CLOSED_GRACE_S


def run_late(remote: Remote, *command: str | Path) -> tuple[int, str, str]:
    """Run a program whose connections are each cut behind 100 kB."""
    with Cutter(remote.supervisor.address, lambda *_: None, cut_bytes=lambda: 100_000) as network:
        address, port = network.address
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret)])
        done = remote.run(*command, FARBUS_TRANSPORT="tcp")
    assert network.cuts > 0
    return done.returncode, done.stdout, done.stderr


def test_a_program_that_is_cut_while_it_exits_is_resumed(lease: Callable[..., Remote], tmp_path: Path) -> None:
    """OpenSSL tears itself down in an exit handler; programs free their memory behind that."""
    assert run_late(lease(), build_calls("resume/late", tmp_path)) == (0, "ok\n", "")


def test_where_openssl_has_ended_with_the_program_a_cut_is_the_end(
    lease: Callable[..., Remote], tmp_path: Path
) -> None:
    """The program used OpenSSL before CUDA did: it ends before the program does."""
    code, out, err = run_late(lease(), build_calls("resume/late", tmp_path), "libcrypto.so.3")
    assert (code, out) == (0, "error 46\n")
    assert err.count("the connection to the GPU at ") == 1
    assert "it was cut and did not come back in time" not in err


def test_the_child_of_a_fork_has_no_copy_of_a_connection_that_is_dialled(remote: Remote, tmp_path: Path) -> None:
    """Or the server would not hear that its client has ended."""
    with Cutter(remote.supervisor.address, lambda *_: None) as network:
        address, port = network.address
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret, tls=False)])
        program = remote.start(build_calls("resume/forked_dial", tmp_path), FARBUS_TRANSPORT="tcp")
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "1\n"
            network.stop()
            out, err = program.communicate(timeout=PATIENCE_S)
        finally:
            program.kill()
            program.communicate()
    assert (out, err) == ("0\n", "")


@pytest.mark.parametrize("transport", ["shm", "unix", "tcp"])
def test_the_child_of_a_fork_has_nothing_of_what_is_just_made(
    lease: Callable[..., Remote], tmp_path: Path, transport: str
) -> None:
    done = lease().run(build_calls("resume/forked_start", tmp_path), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stderr) == (0, "")
    told = [line.split() for line in done.stdout.splitlines()]
    made = ["file", "fallocate", "mapping", "sendmsg"] if transport == "shm" else []
    assert sorted(words[1] for words in told if words[0] == "start") == sorted(["socket", "connect", *made, "end"])
    assert sorted(words[1] for words in told if words[0] == "pinned") == sorted([*made, "end"])
    # Neither sockets, nor files in memory, nor those mapped.
    assert [words for words in told if words[2:] != ["0", "0", "0"]] == []


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_the_child_of_a_fork_has_nothing_of_a_session_of_nvml_s(
    lease: Callable[..., Remote], tmp_path: Path, transport: str
) -> None:
    done = lease().run(build_calls("resume/forked_start", tmp_path), "libnvidia-ml.so.1", FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [f"nvml {where} 0 0 0" for where in ("connect", "end", "socket")]


def test_a_server_with_a_long_name_is_resumed(remote: Remote, build: Build) -> None:
    with Cutter(remote.supervisor.address, at_random(1, mean_bytes=20_000)) as network:
        name = "0" * 200 + "177.0.0.1"  # an octal number
        write_session(remote.session, [Server(address=name, port=network.address[1], secret=remote.secret, tls=False)])
        done = remote.run(build("remoting/rows"), FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    assert network.cuts > 0


class Resumer:
    """A session of our own, to come again with."""

    def __init__(self, remote: Remote, *, capabilities: int = wire.CAPABILITY_RESUME) -> None:
        self.remote = remote
        self.connection = socket.create_connection(remote.supervisor.address, timeout=PATIENCE_S)
        self.connection.sendall(self.hello(capabilities=capabilities))
        reply = wire.HELLO_REPLY.unpack(self.exactly(self.connection, wire.HELLO_REPLY.size))
        assert reply[3] == wire.HELLO_OK
        assert reply[5] == capabilities
        self.session = reply[6]
        self.exactly(self.connection, reply[9] * DEVICE_BYTES)
        self.token = self.exactly(self.connection, GRANT_BYTES)[: wire.TOKEN_BYTES]

    @staticmethod
    def exactly(connection: socket.socket, count: int) -> bytes:
        data = connection.recv(count, socket.MSG_WAITALL) if count else b""
        assert len(data) == count
        return data

    def hello(
        self,
        *,
        capabilities: int,
        session: int = 0,
        received: int = 0,
        secret: bytes = b"",
        key: bytes = b"",
        program: bytes = b"test",
    ) -> bytes:
        said = wire.HELLO.pack(
            *(wire.HELLO_MAGIC, wire.PROTOCOL_MAJOR, wire.PROTOCOL_MINOR, 0x01020304, 1),
            *(capabilities, session, received, 1, 0, secrets.token_bytes(16), b"", program),
        )
        secret = secret or self.remote.secret
        return wire.prove(said, key or (wire.resume_key(secret, session) if session else secret))

    def again(self, **changes: int | bytes) -> int:
        """Ask to go on; return the status."""
        fields: dict[str, Any] = {"session": self.session, "program": self.token, **changes}
        with socket.create_connection(self.remote.supervisor.address, timeout=PATIENCE_S) as connection:
            connection.sendall(self.hello(capabilities=wire.CAPABILITY_RESUME, **fields))
            status = wire.HELLO_REPLY.unpack(self.exactly(connection, wire.HELLO_REPLY.size))[3]
            return int(status)


def test_a_session_goes_on_for_its_client_alone(remote: Remote) -> None:
    client = Resumer(remote)
    first = bytes([client.token[0] ^ 1]) + client.token[1:]
    last = client.token[:-1] + bytes([client.token[-1] ^ 1])
    assert client.again(program=first) == wire.HELLO_SESSION
    assert client.again(program=last) == wire.HELLO_SESSION
    assert client.again(program=bytes(wire.TOKEN_BYTES)) == wire.HELLO_SESSION
    assert client.again(secret=bytes(32)) == wire.HELLO_SECRET
    assert client.again(key=remote.secret) == wire.HELLO_SECRET
    assert client.again(key=wire.resume_key(remote.secret, client.session + 1)) == wire.HELLO_SECRET
    assert client.again(session=client.session + 1) == wire.HELLO_SESSION
    assert client.again(received=1) == wire.HELLO_SESSION  # more than was ever sent
    assert client.again(received=(1 << 64) - 1) == wire.HELLO_SESSION
    # None of which has done the session any harm.
    length, _ = RECORD.unpack(ask(client.connection))
    assert length
    assert client.again() == wire.HELLO_SESSION  # less than was acknowledged
    assert client.again(received=length) == wire.HELLO_OK


def ask(connection: socket.socket) -> bytes:
    """Call an operation, and acknowledge its reply; return the header of the reply's record."""
    frame = HEADER.pack(0, OPCODE["memory_info"], 1, 1, 0)
    connection.sendall(RECORD.pack(len(frame), 0) + frame)
    header = Resumer.exactly(connection, RECORD.size)
    length, acknowledged = RECORD.unpack(header)
    assert acknowledged == len(frame)
    Resumer.exactly(connection, length)
    frame = HEADER.pack(0, OPCODE["memory_info"], 1, 2, 0)
    connection.sendall(RECORD.pack(len(frame), length) + frame)
    Resumer.exactly(connection, RECORD.size + length)
    return header


@pytest.mark.parametrize(
    ("what", "record", "also"),
    [
        ("longer than the window", RECORD.pack((16 << 20) + 1, 0), 0),
        ("longer than any window", RECORD.pack((128 << 20) + 1, 0), wire.CAPABILITY_WINDOWS),
        ("an acknowledgement of what was not sent", RECORD.pack(0, 1), 0),
        ("an acknowledgement that goes back", RECORD.pack(0, 0xFFFFFFFF), wire.CAPABILITY_WINDOWS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_impossible_record_ends_the_session(remote: Remote, what: str, record: bytes, also: int) -> None:
    client = Resumer(remote, capabilities=wire.CAPABILITY_RESUME | also)
    client.connection.sendall(record)
    with contextlib.suppress(ConnectionResetError):
        while client.connection.recv(1 << 16):
            pass
    wait_until(lambda: remote.supervisor.pids == (), "the server has ended")
    assert client.again() == wire.HELLO_SESSION


@pytest.mark.parametrize("also", [0, wire.CAPABILITY_WINDOWS, wire.CAPABILITY_WINDOWS | wire.CAPABILITY_PROMPT])
def test_clients_of_every_age_are_granted_what_they_know_of_windows(remote: Remote, also: int) -> None:
    client = Resumer(remote, capabilities=wire.CAPABILITY_RESUME | also)  # compares
    assert RECORD.unpack(ask(client.connection))[0]


def test_connections_without_end_for_one_session_do_no_harm(remote: Remote) -> None:
    client = Resumer(remote)
    for _ in range(100):
        with socket.create_connection(remote.supervisor.address, timeout=PATIENCE_S) as connection:
            connection.sendall(client.hello(capabilities=4, session=client.session, program=bytes(48)))
    assert RECORD.unpack(ask(client.connection))[0]
