"""What must be so over every transport, and what is shared memory's own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from farbus.remoting import bench
from farbus.remoting import session as wire
from farbus.remoting.session import Server, write_session
from farbus.remoting.supervisor import Supervisor
from tests.remoting.harness import Remote, hello, lines_of_shim
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import PATIENCE_S, alive, wait_until

Build = Callable[[str], Path]

#: One of each kind: order between threads, copies in both directions and in pieces, host functions,
#: errors that come late, fork, and what ends without cleaning up.
PROGRAMS = (
    "behind_host_function",
    "copies_of_all_sizes",
    "copy_arrives_alone",
    "fault",
    "fork_child",
    "handed_over",
    "low_descriptors",
    "many_launches",
    "no_cleanup",
    "rows",
    "streams_pinned",
    "threads",
)


@dataclass(frozen=True)
class Over:
    """A session's transport: what a program asks for, and whether TCP is encrypted."""

    asked: str
    tls: bool = True


@pytest.fixture(
    params=[Over("shm"), Over("unix"), Over("tcp"), Over("tcp", tls=False), Over("rdma")],
    ids=["shm", "unix", "tls", "tcp", "rdma"],
)
def over(request: pytest.FixtureRequest) -> Over:
    assert isinstance(request.param, Over)
    return request.param


@pytest.fixture
def transport(over: Over) -> str:
    return over.asked


@pytest.fixture
def remote(lease: Callable[..., Remote], request: pytest.FixtureRequest) -> Remote:
    """A running supervisor with a session file for it."""
    over = request.getfixturevalue("over") if "over" in request.fixturenames else Over("auto")
    rdma_lease: Callable[..., Remote] = request.getfixturevalue("rdma_lease") if over.asked == "rdma" else lease
    return rdma_lease(tls=over.tls)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(remote: Remote, build: Build, transport: str, name: str) -> None:
    done = remote.run(build(f"remoting/{name}"), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.parametrize("seed", range(2, 5))
def test_copies_of_all_sizes(remote: Remote, build: Build, transport: str, seed: int) -> None:
    done = remote.run(build("remoting/copies_of_all_sizes"), "9000", "25", str(seed), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


def test_a_program_that_only_posts_copies_hears_of_errors(remote: Remote, transport: str, tmp_path: Path) -> None:
    done = remote.run(build_calls("posting/copies_alone", tmp_path), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout, lines_of_shim(done.stderr)) == (0, "ok\n", [])


def test_copies_through_windows_that_grow(remote: Remote, build: Build) -> None:
    """A network that holds more than the server has pinned of what it sends from."""
    network = bench.Network(rtt_us=60_000)
    with network.to(remote.supervisor.address) as (address, port):
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret)])
        program = build("remoting/copies_of_all_sizes")
        done = remote.run(program, "48000", "16", "1", FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


def shared_mappings(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("farbus-remoting-session")


def assert_killed_server_is_an_error(remote: Remote, transport: str, program_path: Path) -> None:
    """Run a program that says "waiting", ends with 3 when its server is lost, and hangs otherwise."""
    program = remote.start(program_path, FARBUS_TRANSPORT=transport)
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    (server,) = remote.supervisor.pids
    os.kill(server, signal.SIGKILL)
    out, err = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 3, out + err
    assert err.count("the connection to the GPU at ") == 1


@pytest.mark.parametrize("name", ["wait_forever", "copies_until_lost"])
def test_killed_server_is_an_error_and_no_hang(remote: Remote, build: Build, transport: str, name: str) -> None:
    assert_killed_server_is_an_error(remote, transport, build(f"remoting/{name}"))


def test_a_log_s_callback_may_call_cuda_when_the_server_is_lost(remote: Remote, transport: str, tmp_path: Path) -> None:
    assert_killed_server_is_an_error(remote, transport, build_calls("lost/logged", tmp_path))


@pytest.mark.parametrize("name", ["exit_elsewhere", "exit_beside"])
def test_a_program_ends_as_it_says_whatever_other_threads_do(
    remote: Remote, transport: str, tmp_path: Path, name: str
) -> None:
    program = build_calls(f"lost/{name}", tmp_path)
    done = [remote.run(program, FARBUS_TRANSPORT=transport) for _ in range(5)]
    assert {(each.returncode, each.stderr) for each in done} == {(5, "")}


def test_memory_whose_faults_the_program_serves(remote: Remote, transport: str, tmp_path: Path) -> None:
    done = remote.run(build_calls("copies/served", tmp_path), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_nothing_is_left_of_nodes_that_copy_a_program_s_memory(remote: Remote, transport: str, tmp_path: Path) -> None:
    done = remote.run(build_calls("copies/nodes_gone", tmp_path), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize("name", ["wait_forever", "copies_until_lost"])
def test_killed_program_ends_its_server_and_leaves_nothing(
    remote: Remote, build: Build, transport: str, name: str
) -> None:
    before = set(os.listdir("/dev/shm"))
    program = remote.start(build(f"remoting/{name}"), FARBUS_TRANSPORT=transport)
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    (server,) = remote.supervisor.pids
    program.kill()
    program.communicate()
    wait_until(lambda: not alive(server), "the server has ended")
    assert not {entry for entry in set(os.listdir("/dev/shm")) - before if "session" in entry}


@contextlib.contextmanager
def waiting(remote: Remote, build: Build, **changes: str) -> Iterator[tuple[int, int]]:
    """Process ids of a program at work and of its server."""
    program = remote.start(build("remoting/wait_forever"), **changes)
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    try:
        yield program.pid, remote.supervisor.pids[0]
    finally:
        program.kill()
        program.communicate()


@pytest.mark.parametrize(
    ("asked", "used"), [("", "shm"), ("auto", "shm"), ("shm", "shm"), ("unix", "unix"), ("tcp", "tls")]
)
def test_the_choice_is_what_the_status_says(remote: Remote, build: Build, asked: str, used: str) -> None:
    with waiting(remote, build, FARBUS_TRANSPORT=asked) as (program, server):
        (session,) = remote.supervisor.sessions.sessions
        assert session.transport == used
        assert shared_mappings(program) == shared_mappings(server) == (used == "shm")


def test_without_a_supervisor_of_this_machine_it_is_tcp(remote: Remote, build: Build) -> None:
    assert remote.supervisor._local is not None
    remote.supervisor._local.shutdown(socket.SHUT_RDWR)
    with waiting(remote, build) as (program, _):
        assert shared_mappings(program) == 0


def test_shared_memory_that_was_asked_for_and_is_not_there_is_an_error(remote: Remote, build: Build) -> None:
    assert remote.supervisor._local is not None
    remote.supervisor._local.shutdown(socket.SHUT_RDWR)
    done = remote.run(build("remoting/events"), FARBUS_TRANSPORT="shm")
    assert done.returncode == 1
    assert "no supervisor of this lease listens here" in done.stderr


def test_an_unknown_transport_is_named(remote: Remote, build: Build) -> None:
    done = remote.run(build("remoting/events"), FARBUS_TRANSPORT="pigeon")
    assert done.returncode == 1
    assert 'FARBUS_TRANSPORT is "pigeon": set it to auto, shm, unix, tcp or rdma' in done.stderr


def test_the_local_socket_asks_for_the_secret_too(remote: Remote) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(wire.local_name(remote.secret))
        connection.sendall(hello(bytes(32), capabilities=wire.CAPABILITY_SHARED_MEMORY))
        reply = wire.HELLO_REPLY.unpack(connection.recv(wire.HELLO_REPLY.size, socket.MSG_WAITALL))
    assert reply[3] == wire.HELLO_SECRET
    assert any(f"refused process {os.getpid()} of user {os.getuid()}: wrong secret" in line for line in remote.lines)


def test_another_supervisor_of_the_same_secret_serves_by_tcp_alone(remote: Remote, libcuda: Path) -> None:
    lines: list[str] = []
    with Supervisor(libcuda=str(libcuda), secret=remote.secret, log=lines.append):
        assert any("no transport within this machine" in line for line in lines)


def test_an_emulated_network_takes_its_time(remote: Remote, build: Build) -> None:
    network = bench.Network(rtt_us=20_000, gbps=1)
    with network.to(remote.supervisor.address) as (address, port):
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret)])
        done = remote.run(build("remoting/rows"), FARBUS_TRANSPORT="tcp")
        with socket.create_connection((address, port), timeout=PATIENCE_S) as connection:
            began = time.monotonic()
            connection.sendall(hello(bytes(32), major=99))
            connection.recv(wire.HELLO_REPLY.size, socket.MSG_WAITALL)
            assert time.monotonic() - began >= network.rtt_us * 1e-6
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
