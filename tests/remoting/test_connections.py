"""One session over several connections: nothing but the speed tells the difference."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from farbus.remoting import session as wire
from farbus.remoting.session import Server, write_session
from tests.remoting.cutter import RECORD, BundleCutter, Kind, Network, Relay, Side
from tests.remoting.harness import CREW_PROCESSORS, Remote
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import PATIENCE_S, wait_until
from tests.remoting.test_hostile import HEADER, OPCODE
from tests.remoting.test_resume import Resumer, at_frames
from tests.remoting.test_transports import PROGRAMS as TRANSPORT_PROGRAMS

Build = Callable[[str], Path]

CHUNK = struct.Struct("<IB3x")
MOST = wire.CONNECTIONS_LIMIT
#: Programs that send so much that one of three connections is sure to be cut, and behind how many bytes it is at the
#: latest: often, and not so often that a busy machine takes minutes.
CUT_BYTES = {
    "behind_host_function": 60_000,
    "copy_arrives_alone": 1 << 20,  # within ten seconds
    "handed_over": 60_000,
    "pageable_source": 4 << 20,
    "rows": 60_000,
    "streams_pinned": 500_000,
    "threads": 500_000,
}
#: Programs that are cut at each frame.
CUT_AT_FRAMES = ("behind_host_function", "handed_over", "pageable_source", "rows", "streams_pinned")
CAPABILITIES = wire.CAPABILITY_RESUME | wire.CAPABILITY_CONNECTIONS


@pytest.fixture(params=["tls", "tcp", "tls by several threads", "tcp by several threads"])
def remote(lease_with: Callable[..., Remote], request: pytest.FixtureRequest) -> Remote:
    count = CREW_PROCESSORS if "threads" in request.param else 1
    return lease_with(count, count, tls=request.param.startswith("tls"))


@pytest.fixture
def plain(lease: Callable[..., Remote]) -> Remote:
    return lease(tls=False)


def run_through(
    remote: Remote, network: Network, connections: int, *command: str | Path, **changes: str
) -> tuple[int, str, str]:
    address, port = network.address
    tls = "tls" in remote.session.read_text()
    write_session(remote.session, [Server(address=address, port=port, secret=remote.secret, tls=tls)])
    done = remote.run(*command, FARBUS_TRANSPORT="tcp", FARBUS_CONNECTIONS=str(connections), **changes)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("connections", [2, 5, MOST])
def test_copies_of_all_sizes(remote: Remote, build: Build, connections: int) -> None:
    with Relay(remote.supervisor.address) as network:
        result = run_through(remote, network, connections, build("remoting/copies_of_all_sizes"), "20000", "40", "3")
        assert result == (0, "ok\n", "")
        assert len(network.carried) == connections
        # Beyond the hello, each has carried large pieces.
        assert min(network.carried) > 1 << 20


@pytest.mark.parametrize("name", TRANSPORT_PROGRAMS)
def test_program(remote: Remote, build: Build, name: str) -> None:
    done = remote.run(build(f"remoting/{name}"), FARBUS_TRANSPORT="tcp", FARBUS_CONNECTIONS="3")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(("name", "most"), CUT_BYTES.items(), ids=CUT_BYTES)
def test_cut_at_random(remote: Remote, build: Build, name: str, most: int, kind: Kind) -> None:
    """Any of the connections is cut, also while it is made."""
    chance = random.Random(f"{name} {kind}")
    with Relay(
        remote.supervisor.address, lambda number: chance.randint(1, most) if number > 1 else most // 3, kind
    ) as network:
        assert run_through(remote, network, 3, build(f"remoting/{name}")) == (0, "ok\n", "")
        assert network.cuts > 0


@pytest.mark.parametrize("seed", range(4))
def test_copies_of_all_sizes_cut_at_random(remote: Remote, build: Build, seed: int) -> None:
    chance = random.Random(seed)
    with Relay(
        remote.supervisor.address,
        lambda number: chance.randint(1, 2 << 20) if number > 1 else 1 << 20,
        chance.choice(list(Kind)),
    ) as network:
        assert run_through(remote, network, 3, build("remoting/copies_of_all_sizes")) == (0, "ok\n", "")
        assert network.cuts > 0


def test_a_network_that_keeps_the_order_of_chunks_changes_nothing(plain: Remote, build: Build) -> None:
    with BundleCutter(plain.supervisor.address, lambda *_: None) as network:
        result = run_through(plain, network, 3, build("remoting/copies_of_all_sizes"), "20000", "40", "3")
        assert result == (0, "ok\n", "")
        assert network.used == {0, 1, 2}


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("name", CUT_AT_FRAMES)
@pytest.mark.parametrize("inside", [lambda length: length, lambda length: length // 2], ids=["behind", "within"])
def test_cut_at_every_frame(plain: Remote, build: Build, name: str, side: Side, inside: Callable[[int], int]) -> None:
    """Whichever connection has carried it, and while others are being added."""
    with BundleCutter(plain.supervisor.address, at_frames(side, inside)) as network:
        assert run_through(plain, network, 3, build(f"remoting/{name}")) == (0, "ok\n", "")
        assert network.cuts >= 5


class Session(Resumer):
    """A session of our own, with chunks."""

    def __init__(self, remote: Remote) -> None:
        super().__init__(remote, capabilities=CAPABILITIES)

    def hello(self, *, capabilities: int, session: int = 0, received: int = 0, **fields: bytes) -> bytes:  # type: ignore[override]
        said = super().hello(capabilities=capabilities, session=session, received=received, **fields)
        if not session:
            #: What names the connection that others are added to.
            self.beginning = int.from_bytes(wire.HELLO.unpack(said)[10][:8], "little")
        return said

    def another(self, **changes: int | bytes) -> tuple[int, int, socket.socket]:
        """Ask to add a connection; return the status, its number and the connection."""
        fields = {"session": self.session, "received": self.beginning, "program": self.token, **changes}
        connection = socket.create_connection(self.remote.supervisor.address, timeout=PATIENCE_S)
        connection.sendall(self.hello(capabilities=CAPABILITIES, **fields))  # type: ignore[arg-type]
        reply = wire.HELLO_REPLY.unpack(self.exactly(connection, wire.HELLO_REPLY.size))
        told = self.exactly(connection, 8 if reply[3] == wire.HELLO_OK else reply[10])
        return reply[3], int.from_bytes(told, "little") if reply[3] == wire.HELLO_OK else 0, connection

    def ended(self) -> bool:
        """Is the connection closed by the server?"""
        try:
            while self.connection.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True


def question(number: int) -> bytes:
    frame = HEADER.pack(0, OPCODE["memory_info"], 1, number, 0)
    return RECORD.pack(len(frame), 0) + frame


def test_a_connection_is_added_for_the_session_s_client_alone(plain: Remote) -> None:
    client = Session(plain)
    refused: list[tuple[int, dict[str, int | bytes]]] = [
        (wire.HELLO_SESSION, {"program": bytes(wire.TOKEN_BYTES)}),
        (wire.HELLO_SESSION, {"program": client.token[:-1] + bytes([client.token[-1] ^ 1])}),
        (wire.HELLO_SECRET, {"secret": bytes(32)}),
        (wire.HELLO_SECRET, {"key": wire.resume_key(plain.secret, client.session + 1)}),
        (wire.HELLO_SESSION, {"session": client.session + 1}),
        (wire.HELLO_SESSION, {"received": client.beginning ^ 1}),  # to a connection before this one
        (wire.HELLO_SESSION, {"received": 0}),
    ]
    for status, changes in refused:
        assert client.another(**changes)[0] == status
    foreign = Session(plain)
    assert client.another(session=foreign.session, received=foreign.beginning)[0] == wire.HELLO_SESSION
    # None of which has done the session any harm, nor taken a place in it.
    assert client.another()[:2] == (wire.HELLO_OK, 1)
    client.connection.sendall(CHUNK.pack(len(question(1)), 0) + question(1))
    assert CHUNK.unpack(client.exactly(client.connection, CHUNK.size))[0] > RECORD.size


def test_there_are_only_so_many_connections(plain: Remote) -> None:
    client = Session(plain)
    added = [client.another() for _ in range(1, MOST)]
    assert [each[:2] for each in added] == [(wire.HELLO_OK, number) for number in range(1, MOST)]
    assert client.another()[0] == wire.HELLO_SESSION


def test_the_client_names_a_connection_before_the_server_uses_it(plain: Remote) -> None:
    client = Session(plain)
    _, number, other = client.another()
    first, second = question(1), question(2)
    client.connection.sendall(CHUNK.pack(len(first), number) + first)
    other.sendall(CHUNK.pack(len(second), 0) + second)
    for _ in range(2):
        length, following = CHUNK.unpack(client.exactly(client.connection, CHUNK.size))
        assert following == 0
        client.exactly(client.connection, length)
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        other.recv(1)


def test_who_was_granted_one_connection_has_one(plain: Remote) -> None:
    client = Resumer(plain)
    said = client.hello(capabilities=CAPABILITIES, session=client.session, program=client.token, received=0)
    with socket.create_connection(plain.supervisor.address, timeout=PATIENCE_S) as connection:
        connection.sendall(said)
        assert wire.HELLO_REPLY.unpack(client.exactly(connection, wire.HELLO_REPLY.size))[3] == wire.HELLO_SESSION


@pytest.mark.parametrize(
    ("what", "chunk"),
    [
        ("nothing", CHUNK.pack(0, 0)),
        ("more than there may be", CHUNK.pack(1 << 20, 0)),
        ("a connection that is not there", CHUNK.pack(8, 2)),
        ("no number of one", CHUNK.pack(8, MOST)),
        ("more than a number", struct.pack("<IBBBB", 8, 0, 0, 0, 1)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("over", [0, 1])
def test_a_chunk_that_lies_ends_the_session(plain: Remote, what: str, chunk: bytes, over: int) -> None:
    client = Session(plain)
    connection = client.connection
    if over:
        _, number, connection = client.another()
        client.connection.sendall(CHUNK.pack(len(question(1)), number) + question(1))
    connection.sendall(chunk)
    assert client.ended()
    wait_until(lambda: plain.supervisor.pids == (), "the server has ended")
    assert client.another()[0] == wire.HELLO_SESSION


def test_connections_that_say_nothing_do_no_harm(plain: Remote) -> None:
    """Held half open: each costs a thread of the server for some seconds, and there are only so many."""
    client = Session(plain)
    silent = [client.another(program=bytes(48))[2] for _ in range(40)]
    assert client.another()[:2] == (wire.HELLO_OK, 1)
    for each in silent:
        each.close()


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_connections_of_a_cut_session_are_closed(plain: Remote) -> None:
    client = Session(plain)
    (server,) = plain.supervisor.pids
    # It answers when it has opened what it needs itself.
    client.connection.sendall(CHUNK.pack(len(question(1)), 0) + question(1))
    client.exactly(client.connection, CHUNK.size)
    before = descriptors(server)
    others = [client.another() for _ in range(3)]
    assert descriptors(server) == before + 3
    assert client.again() == wire.HELLO_OK
    wait_until(lambda: descriptors(server) == before, "the server has closed them")
    del others


def test_the_child_of_a_fork_has_no_copy_of_any_connection(plain: Remote, tmp_path: Path) -> None:
    done = plain.run(
        build_calls("resume/forked_connections", tmp_path), FARBUS_TRANSPORT="tcp", FARBUS_CONNECTIONS=str(MOST)
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize("setting", ["0", "9", "-1", "two", "1x"])
def test_a_setting_that_is_none(plain: Remote, build: Build, setting: str) -> None:
    done = plain.run(build("remoting/rows"), FARBUS_TRANSPORT="tcp", FARBUS_CONNECTIONS=setting)
    assert done.returncode == 1
    assert f'FARBUS_CONNECTIONS is "{setting}": set it to a number from 1 to 8' in done.stderr


@pytest.mark.parametrize(
    ("server", "program", "name", "count"),
    [
        (CREW_PROCESSORS, CREW_PROCESSORS, "copies_of_all_sizes", 4),
        (CREW_PROCESSORS, CREW_PROCESSORS, "handed_over", 1),  # nothing large
        (CREW_PROCESSORS - 1, CREW_PROCESSORS, "copies_of_all_sizes", 1),
        (CREW_PROCESSORS, CREW_PROCESSORS - 1, "copies_of_all_sizes", 1),
    ],
)
def test_by_itself_a_program_has_several_where_both_sides_have_processors_for_them(
    lease_with: Callable[..., Remote], build: Build, server: int, program: int, name: str, count: int
) -> None:
    remote = lease_with(server, program)
    with Relay(remote.supervisor.address) as network:
        address, port = network.address
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret, tls=False)])
        done = remote.run(build(f"remoting/{name}"), FARBUS_TRANSPORT="tcp")
        assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
        assert len(network.carried) == count


@pytest.mark.parametrize(("told", "changes", "count"), [(2, {}, 2), (2, {"FARBUS_CONNECTIONS": "3"}, 3), (None, {}, 1)])
def test_the_session_file_s_word_counts_where_the_program_has_none(
    lease_with: Callable[..., Remote], build: Build, told: int | None, changes: dict[str, str], count: int
) -> None:
    plain = lease_with(1, 1)
    with Relay(plain.supervisor.address) as network:
        address, port = network.address
        server = Server(address=address, port=port, secret=plain.secret, tls=False, connections=told)
        write_session(plain.session, [server])
        done = plain.run(build("remoting/copies_of_all_sizes"), FARBUS_TRANSPORT="tcp", **changes)
        assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
        assert len(network.carried) == count


def test_a_session_has_no_more_connections_than_there_may_be() -> None:
    with pytest.raises(ValueError, match="connections: 9 is not from 1 to 8"):
        Server(address="127.0.0.1", port=1, secret=bytes(wire.SECRET_BYTES), connections=9)
