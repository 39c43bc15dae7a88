"""RDMA beside TCP: who lets a session have it, what is said where it has none, and what becomes of it when it breaks.

What every transport has to do is in test_transports.py, the rings themselves in native/tests/rdma_test.c.  The
device is the tests' own (tests/verbs); a real kernel's is in tests/lab/test_rdma.py.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from farbus.remoting import session as wire
from farbus.remoting.session import Server, write_session
from tests.remoting.cutter import DEVICE_BYTES, GRANT_BYTES
from tests.remoting.harness import Remote, hello, listening
from tests.remoting.test_failures import PATIENCE_S, alive, wait_until

Build = Callable[[str], Path]

#: native/transport/rings/rdma.c: status, MTU, reader's and writer's number and first packet, ring, key, its size, GID.
TERMS = struct.Struct("<II4IQII16s")
WORD = struct.Struct("<I")
MTU_1024 = 3

HELLO_BYTES = 20_000


def transport_of(remote: Remote) -> str:
    (session,) = remote.supervisor.sessions.sessions
    return session.transport


def rewrite(remote: Remote, *, rdma: bool, address: tuple[str, int] | None = None) -> None:
    host, port = address or remote.supervisor.address
    write_session(remote.session, [Server(address=host, port=port, secret=remote.secret, rdma=rdma)])


def assert_waits_over(remote: Remote, program: Path, transport: str, **changes: str) -> None:
    """Run a program that says "waiting" over what it finds, and see what that is."""
    process = remote.start(program, **changes)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        assert transport_of(remote) == transport
    finally:
        process.kill()
        _, err = process.communicate(timeout=PATIENCE_S)
    assert err == ""


@pytest.mark.parametrize(("asked", "used"), [("rdma", "rdma"), ("", "shm"), ("tcp", "tls")])
def test_the_choice_is_what_the_status_says(
    rdma_lease: Callable[..., Remote], build: Build, asked: str, used: str
) -> None:
    """Within a machine there is what is faster."""
    assert_waits_over(rdma_lease(), build("remoting/wait_forever"), used, FARBUS_TRANSPORT=asked)


def test_who_finds_no_supervisor_of_this_machine_takes_it(rdma_lease: Callable[..., Remote], build: Build) -> None:
    remote = rdma_lease()
    assert remote.supervisor._local is not None
    remote.supervisor._local.shutdown(socket.SHUT_RDWR)
    assert_waits_over(remote, build("remoting/wait_forever"), "rdma")


def test_nothing_but_the_hello_goes_over_tcp(rdma_lease: Callable[..., Remote], build: Build) -> None:
    remote = rdma_lease()
    with contextlib.ExitStack() as stack:
        passed: list[int] = []
        address = stack.enter_context(listening(lambda listener: relay(listener, remote.supervisor.address, passed)))
        rewrite(remote, rdma=True, address=address)
        for transport in ("rdma", "tcp"):
            done = remote.run(build("remoting/copies_of_all_sizes"), "9000", "25", "2", FARBUS_TRANSPORT=transport)
            assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
        wait_until(lambda: len(passed) == 2, "both connections have ended")
    by_rdma, by_tcp = passed
    # Handshake, snapshot and agreement; the copies are megabytes.
    assert by_rdma < HELLO_BYTES
    assert by_tcp > 20 * HELLO_BYTES


def relay(listener: socket.socket, target: tuple[str, int], passed: list[int]) -> None:
    """Pass connections on, one after the other, and count their bytes."""

    def pass_on(one: socket.socket, other: socket.socket) -> int:
        count = 0
        with contextlib.suppress(OSError):
            while got := one.recv(1 << 16):
                count += len(got)
                other.sendall(got)
            other.shutdown(socket.SHUT_WR)
        return count

    while True:
        near, _ = listener.accept()
        with near, socket.create_connection(target) as far, ThreadPoolExecutor(1) as back:
            answered = back.submit(pass_on, far, near)
            passed.append(pass_on(near, far) + answered.result())


@pytest.mark.parametrize("tls", [True, False])
def test_many_sessions_one_behind_the_other_leave_nothing(
    rdma_lease: Callable[..., Remote], build: Build, tmp_path: Path, tls: bool
) -> None:
    log = tmp_path / "log"
    remote = rdma_lease(tls=tls, FAKE_VERBS_LOG=str(log))
    for _ in range(3):
        done = remote.run(build("remoting/no_cleanup"), FARBUS_TRANSPORT="rdma", FAKE_VERBS_LOG=str(log))
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    words = Counter(line.split()[1] for line in log.read_text().splitlines())
    assert words["may"] == 3 * 2  # fork
    assert words["ready"] == 3 * 4  # two pairs a side
    assert not words["failed"]
    assert not words["refused"]


@pytest.mark.parametrize(
    ("server", "program", "line"),
    [
        ({}, {"FAKE_VERBS_GIDS": ""}, "no RDMA device with RoCE v2 has this end's address, 127.0.0.1; "),
        ({}, {"FAKE_VERBS_GIDS": "none"}, "no RDMA device with RoCE v2 has this end's address, 127.0.0.1; "),
        ({}, {"FAKE_VERBS_GIDS": "192.0.2.1"}, "no RDMA device with RoCE v2 has this end's address, 127.0.0.1; "),
        ({}, {"FAKE_VERBS_REG_MR_FAILS": "1"}, "register memory for RDMA: Cannot allocate memory; let this process "),
        (
            {},
            {"FAKE_VERBS_MAX_LOCKED": "1500000"},
            "register memory for RDMA: Cannot allocate memory; let this process ",
        ),
        ({}, {"FARBUS_GRACE_S": "0"}, "that needs a session that can be resumed: leave out FARBUS_GRACE_S=0"),
        ({"FAKE_VERBS_GIDS": ""}, {}, "its node has none for that address, as the log of its agent then says, or "),
        (
            {"FAKE_VERBS_REG_MR_FAILS": "2"},
            {},
            "its node has none for that address, as the log of its agent then says, or ",
        ),
        ({"FAKE_VERBS_POST_FAILS": "1+"}, {}, "the network between carries none (UDP port 4791, or packets of the "),
        ({}, {"FAKE_VERBS_POST_FAILS": "1+"}, "the network between carries none (UDP port 4791, or packets of the "),
        ({}, {"FAKE_VERBS_MAX_MR_SIZE": "65536"}, "register memory for RDMA: "),
    ],
)
def test_what_is_missing_is_said_to_who_insists_and_goes_over_tcp_for_others(
    rdma_lease: Callable[..., Remote], build: Build, server: dict[str, str], program: dict[str, str], line: str
) -> None:
    remote = rdma_lease(**server)
    done = remote.run(build("remoting/rows"), FARBUS_TRANSPORT="rdma", **program)
    assert done.returncode
    assert f"FARBUS_TRANSPORT asks for RDMA to {wire_name(remote)}: {line}" in done.stderr
    assert done.stderr.count("farbus: ") == 1
    # No supervisor of this machine is found by a program of another: it takes what there is.
    done = remote.run(build("remoting/rows"), **program | {"FARBUS_TRANSPORT": "tcp"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ({"FAKE_VERBS_GIDS": "192.0.2.1"}, "no RDMA device with RoCE v2 has this end's address, 127.0.0.1; "),
        ({"FAKE_VERBS_POST_FAILS": "1+"}, "the client's adapter, or the network between, carries none"),
    ],
)
def test_the_server_s_operator_hears_what_is_missing_from_its_log(
    rdma_lease: Callable[..., Remote],
    build: Build,
    capfd: pytest.CaptureFixture[str],
    fault: dict[str, str],
    line: str,
) -> None:
    """Also of a program that does not insist, and hears nothing."""
    remote = rdma_lease(**fault)
    assert remote.supervisor._local is not None
    remote.supervisor._local.shutdown(socket.SHUT_RDWR)
    done = remote.run(build("remoting/rows"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    assert f"farbus remoting server: a session that could go by RDMA goes over TCP: {line}" in capfd.readouterr().err


def wire_name(remote: Remote) -> str:
    host, port = remote.supervisor.address
    return f"{host}:{port}"


def test_only_operators_turn_it_on(lease: Callable[..., Remote], fake_verbs: Path, build: Build) -> None:
    """A session file without it, and a server without it, though both sides have a device."""
    remote = lease(LD_LIBRARY_PATH=str(fake_verbs))
    remote.with_library_path(fake_verbs)
    done = remote.run(build("remoting/rows"), FARBUS_TRANSPORT="rdma")
    assert 'its node and this one don\'t let it: set remoting_rdma = "on" for the agents of both' in done.stderr
    rewrite(remote, rdma=True)
    done = remote.run(build("remoting/rows"), FARBUS_TRANSPORT="rdma")
    assert 'or its agent is without remoting_rdma = "on"' in done.stderr


def test_management_does_without(rdma_lease: Callable[..., Remote]) -> None:
    remote = rdma_lease()
    script = "import ctypes; print(ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())"
    done = remote.run(sys.executable, "-c", script, FARBUS_TRANSPORT="rdma")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.mark.parametrize("name", ["copies_of_all_sizes", "handed_over", "host_functions", "streams_pinned"])
@pytest.mark.parametrize("who", ["server", "program"])
def test_what_breaks_is_resumed(
    rdma_lease: Callable[..., Remote], build: Build, tmp_path: Path, who: str, name: str
) -> None:
    """A request that the network does not answer cuts the connection; the next one is by RDMA again."""
    log = tmp_path / "log"
    fault = {"FAKE_VERBS_POST_FAILS": "5"}
    remote = rdma_lease(FAKE_VERBS_LOG=str(log), **fault if who == "server" else {})
    changes = fault if who == "program" else {}
    done = remote.run(build(f"remoting/{name}"), FARBUS_TRANSPORT="rdma", FAKE_VERBS_LOG=str(log), **changes)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    words = Counter(line.split()[1] for line in log.read_text().splitlines())
    assert words["failed"] >= 1
    assert words["ready"] == 2 * 4
    assert any("goes on from" in line for line in remote.lines)


def test_what_breaks_each_time_stays_with_tcp(rdma_lease: Callable[..., Remote], build: Build, tmp_path: Path) -> None:
    """Each connection is tried, and fails with its third request."""
    log = tmp_path / "log"
    remote = rdma_lease()
    done = remote.run(
        build("remoting/copies_of_all_sizes"),
        "9000",
        "25",
        "3",
        FARBUS_TRANSPORT="rdma",
        FAKE_VERBS_LOG=str(log),
        FAKE_VERBS_POST_FAILS="3+",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    assert sum("goes on from" in line for line in remote.lines) >= 1


def added(remote: Remote) -> int:
    """How many connections sessions have had added to their first one."""
    return sum("has another connection" in line for line in remote.lines)


def test_who_finds_no_rdma_has_several_connections(rdma_lease: Callable[..., Remote], build: Build) -> None:
    """Whether the network carries any is known once both sides have said that they could."""
    remote = rdma_lease()
    assert remote.supervisor._local is not None
    remote.supervisor._local.shutdown(socket.SHUT_RDWR)
    changes = {"FARBUS_CONNECTIONS": "4", "FAKE_VERBS_POST_FAILS": "1+"}
    process = remote.start(build("remoting/wait_forever"), **changes)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    assert transport_of(remote) == "tls"
    wait_until(lambda: added(remote) == 3, "there are four")
    process.kill()
    assert process.communicate(timeout=PATIENCE_S)[1] == ""
    done = remote.run(build("remoting/copies_of_all_sizes"), "9000", "25", "3", **changes)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_who_loses_rdma_has_several_connections(
    rdma_lease: Callable[..., Remote], build: Build, tmp_path: Path
) -> None:
    """By RDMA there is one; what follows it over TCP has all that were asked for, and goes on right."""
    control, enough = tmp_path / "control", tmp_path / "enough"
    os.mkfifo(control)
    remote = rdma_lease()
    changes = {"FARBUS_CONNECTIONS": "4", "FAKE_VERBS_CONTROL": str(control)}
    process = remote.start(build("cluster/vectors"), enough, "4", FARBUS_TRANSPORT="rdma", **changes)
    assert process.stdout is not None
    assert "is right" in process.stdout.readline()
    assert (transport_of(remote), added(remote)) == ("rdma", 0)
    with control.open("w") as orders:
        orders.write("g")
    wait_until(lambda: added(remote) == 3, "there are four")
    enough.touch()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, ""), out


def test_what_is_left_of_rdma_is_what_the_status_says(
    rdma_lease: Callable[..., Remote], build: Build, tmp_path: Path
) -> None:
    """The program's device goes, and it waits for its next call over TCP."""
    control = tmp_path / "control"
    os.mkfifo(control)
    remote = rdma_lease()
    with control.open("r+b", buffering=0) as orders:
        process = remote.start(build("remoting/wait_forever"), FARBUS_TRANSPORT="rdma", FAKE_VERBS_CONTROL=str(control))
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        assert transport_of(remote) == "rdma"
        orders.write(b"g")
        wait_until(lambda: transport_of(remote) == "tls", "the session goes on over TCP")
    process.kill()
    assert process.communicate(timeout=PATIENCE_S)[1] == ""


@pytest.mark.parametrize("order", ["g", "s"])
def test_a_device_that_goes_leaves_tcp(
    rdma_lease: Callable[..., Remote], build: Build, tmp_path: Path, order: str
) -> None:
    """Whether requests that are under way fail (g) or nothing more is heard of them than that it has gone (s)."""
    control, enough = tmp_path / "control", tmp_path / "enough"
    os.mkfifo(control)
    remote = rdma_lease()
    program = build("cluster/vectors")
    process = remote.start(program, enough, "1", FARBUS_TRANSPORT="rdma", FAKE_VERBS_CONTROL=str(control))
    assert process.stdout is not None
    assert "is right" in process.stdout.readline()
    assert transport_of(remote) == "rdma"
    with control.open("w") as orders:
        orders.write(order)
    wait_until(lambda: transport_of(remote) == "tls", "it goes on over TCP")
    enough.touch()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, ""), out


@pytest.mark.parametrize("who", ["server", "program"])
@pytest.mark.parametrize("order", [b"g", b"s"])
def test_a_device_that_goes_is_a_cut(
    rdma_lease: Callable[..., Remote], build: Build, tmp_path: Path, who: str, order: bytes
) -> None:
    """Also one of which nothing tells but its own event; what is to come then goes over TCP."""
    control = tmp_path / "control"
    os.mkfifo(control)
    fault = {"FAKE_VERBS_CONTROL": str(control)}
    remote = rdma_lease(**fault if who == "server" else {})
    changes = fault if who == "program" else {}
    process = remote.start(build("remoting/wait_forever"), FARBUS_TRANSPORT="rdma", **changes)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        with control.open("r+b", buffering=0) as orders:
            orders.write(order)
            wait_until(lambda: any("goes on from" in line for line in remote.lines), "the session goes on")
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def test_a_server_hears_of_a_program_that_was_killed(rdma_lease: Callable[..., Remote], build: Build) -> None:
    remote = rdma_lease()
    process = remote.start(build("remoting/wait_forever"), FARBUS_TRANSPORT="rdma")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    (server,) = remote.supervisor.pids
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    wait_until(lambda: not alive(server), "its server has ended")


@pytest.fixture
def agreeing(rdma_lease: Callable[..., Remote]) -> Callable[[bytes], tuple[bytes, int]]:
    """Say hello by hand and answer a server's terms: what follows them, and the server's process."""

    def answer(terms: bytes) -> tuple[bytes, int]:
        remote = rdma_lease(tls=False)
        with socket.create_connection(remote.supervisor.address) as connection:
            connection.settimeout(PATIENCE_S)
            asked = wire.CAPABILITY_RESUME | wire.CAPABILITY_RDMA
            connection.sendall(hello(remote.secret, capabilities=asked, nonce=secrets.token_bytes(16)))
            reply = wire.HELLO_REPLY.unpack(take(connection, wire.HELLO_REPLY.size))
            assert reply[3] == wire.HELLO_OK
            assert reply[5] & asked == asked
            take(connection, reply[9] * DEVICE_BYTES + GRANT_BYTES)
            offered = TERMS.unpack(take(connection, TERMS.size))
            assert offered[0] == 0
            (server,) = remote.supervisor.pids
            connection.sendall(terms)
            connection.shutdown(socket.SHUT_WR)
            answered = b""
            while got := connection.recv(4096):
                answered += got
        wait_until(lambda: not alive(server), "its server has ended")
        return answered, server

    return answer


def take(connection: socket.socket, count: int) -> bytes:
    taken = b""
    while len(taken) < count:
        got = connection.recv(count - len(taken))
        assert got, f"the connection ended behind {len(taken)} of {count} bytes"
        taken += got
    return taken


def terms(*, mtu: int = MTU_1024, ring: int = 1 << 20, number: int = 0x123456, gid: bytes = bytes(16)) -> bytes:
    return TERMS.pack(0, mtu, number, 1, number, 2, 1 << 40, 7, ring, gid)


LOOPBACK = bytes(10) + b"\xff\xff\x7f\0\0\1"


@pytest.mark.parametrize(
    "hostile",
    [
        terms(mtu=0),
        terms(mtu=99),
        terms(mtu=0xFFFFFFFF),
        terms(ring=0),
        terms(ring=1 << 31),
        terms(),
        terms(gid=LOOPBACK),
        terms(number=0xFFFFFFFF, gid=LOOPBACK),
    ],
)
def test_terms_that_lead_nowhere_are_refused(agreeing: Callable[[bytes], tuple[bytes, int]], hostile: bytes) -> None:
    answered, _ = agreeing(hostile)
    (word,) = WORD.unpack(answered[: WORD.size])
    assert word == 1


@pytest.mark.parametrize("half", [b"", terms()[:20], struct.pack("<I", 1)])
def test_a_client_that_breaks_off_ends_its_server(agreeing: Callable[[bytes], tuple[bytes, int]], half: bytes) -> None:
    assert agreeing(half)[0] == b""
