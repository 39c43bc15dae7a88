"""A server that crashes is named by its signal: to the operator in the supervisor's log, to its program on stderr."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farbus.remoting import servers
from farbus.remoting import session as wire
from farbus.remoting.servers import ERROR_PREFIX, describe_code
from tests.remoting.harness import Remote, remote_session
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import PATIENCE_S, wait_until

Build = Callable[[str], Path]


def started(remote: Remote, build: Build, transport: str) -> tuple[subprocess.Popen[str], int]:
    """A program that waits for its device, and its server."""
    program = remote.start(build("remoting/wait_forever"), FARBUS_TRANSPORT=transport)
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    (server,) = remote.supervisor.pids
    return program, server


def crash_lines(remote: Remote) -> list[str]:
    return [line for line in remote.lines if line.startswith(ERROR_PREFIX)]


@pytest.mark.parametrize("killed_by", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL], ids=lambda each: each.name)
@pytest.mark.parametrize("transport", ["shm", "unix", "tcp"])
def test_a_killed_server_is_named_with_its_signal(
    remote: Remote, build: Build, transport: str, killed_by: signal.Signals
) -> None:
    program, server = started(remote, build, transport)
    os.kill(server, killed_by)
    out, err = program.communicate(timeout=PATIENCE_S)
    how = f"was killed by signal {killed_by.value} ({killed_by.name})"
    assert program.returncode == 3
    assert "cudaErrorDevicesUnavailable" in out
    assert err.count("\n") == 1
    assert f"is lost (its server, process {server} there, {how}); every CUDA call now fails" in err
    wait_until(lambda: bool(crash_lines(remote)), "the supervisor has named it")
    assert crash_lines(remote) == [
        f"error: server {server} {how}; it served wait_forever (process {program.pid} of its machine)"
    ]


@pytest.mark.parametrize(("how", "name"), [("fault", "SIGSEGV"), ("abort", "SIGABRT")])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_driver_that_crashes_is_told_as_that(
    driver_before: Callable[[str], Path], tmp_path: Path, build: Build, transport: str, how: str, name: str
) -> None:
    driver = driver_before("crashing_driver")
    with remote_session(libcuda=driver, folder=tmp_path, environment={"FARBUS_TEST_CRASH": how}) as remote:
        done = remote.run(build("remoting/wait_forever"), FARBUS_TRANSPORT=transport)
        assert done.returncode == 3
        assert f"({name})); every CUDA call now fails" in done.stderr
        wait_until(lambda: bool(crash_lines(remote)), "the supervisor has named it")
        assert f"({name}); it served wait_forever" in crash_lines(remote)[0]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_a_supervisor_tells_does_nothing_to_a_terminal(
    remote: Remote, build: Build, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    program, server = started(remote, build, transport)
    monkeypatch.setattr(servers, "describe_code", lambda _: "turned\x1b[31m red\n" + "x" * 600)
    os.kill(server, signal.SIGKILL)
    _, err = program.communicate(timeout=PATIENCE_S)
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert f"process {server} there, turned?[31m red?xxx" in err
    assert err.endswith("start the program again\n")


def test_a_server_whose_kernels_have_run_ends_by_the_signal_that_is_sent(remote: Remote, tmp_path: Path) -> None:
    """The software GPU serves the faults of kernels."""
    program = remote.start(build_calls("lost/after_kernel", tmp_path), FARBUS_TRANSPORT="shm")
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    (server,) = remote.supervisor.pids
    os.kill(server, signal.SIGSEGV)
    _, err = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 3, err
    assert f"process {server} there, was killed by signal 11 (SIGSEGV)" in err


def test_a_killed_reserve_is_named(remote: Remote) -> None:
    wait_until(lambda: remote.supervisor.reserve is not None, "a server is in reserve")
    reserve = remote.supervisor.reserve
    assert reserve is not None
    os.kill(reserve, signal.SIGSEGV)
    wait_until(lambda: bool(crash_lines(remote)), "the supervisor has named it")
    assert crash_lines(remote) == [f"error: server {reserve} in reserve was killed by signal 11 (SIGSEGV)"]


def test_a_program_that_ends_leaves_no_error(remote: Remote, build: Build) -> None:
    assert remote.run(build("remoting/rows"), FARBUS_TRANSPORT="shm").returncode == 0
    wait_until(lambda: remote.supervisor.pids == (), "the server has ended")
    assert crash_lines(remote) == []


def question(secret: bytes, number: int, *, key: bytes | None = None) -> bytes:
    """A hello that asks how the session of that number has ended."""
    said = (wire.HELLO_MAGIC, wire.PROTOCOL_MAJOR, wire.PROTOCOL_MINOR, 0x01020304, 1, 0, number, 0, 1, 0)
    return wire.prove(wire.HELLO.pack(*said, secrets.token_bytes(16), b"", b""), key or wire.resume_key(secret, number))


@pytest.fixture
def asked(remote: Remote) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(wire.local_name(remote.secret))
        yield connection


def answer(connection: socket.socket) -> tuple[int, str]:
    """The status and the text of a refusal."""
    data = b""
    while piece := connection.recv(4096):
        data += piece
    return wire.HELLO_REPLY.unpack_from(data)[3], data[wire.HELLO_REPLY.size :].decode()


def test_of_a_session_that_nobody_had_nothing_is_told(remote: Remote, asked: socket.socket) -> None:
    asked.sendall(question(remote.secret, 7))
    assert answer(asked) == (wire.HELLO_SESSION, "the server or its lease has ended")


def test_who_has_not_the_secret_is_told_nothing(remote: Remote, asked: socket.socket) -> None:
    asked.sendall(question(remote.secret, 7, key=bytes(32)))
    assert answer(asked) == (wire.HELLO_SECRET, "")


def test_who_asks_too_early_is_answered_when_it_has_ended(remote: Remote, build: Build, asked: socket.socket) -> None:
    program, server = started(remote, build, "shm")
    (number,) = remote.supervisor._started._channels
    asked.sendall(question(remote.secret, number))
    wait_until(lambda: bool(remote.supervisor._asking), "the question has been heard")
    os.kill(server, signal.SIGABRT)
    status, text = answer(asked)
    program.communicate(timeout=PATIENCE_S)
    assert (status, text) == (
        wire.HELLO_SESSION,
        f"its server, process {server} there, was killed by signal 6 (SIGABRT)",
    )


@pytest.mark.parametrize(
    ("code", "text"),
    [(1, "ended with exit code 1"), (-9, "was killed by signal 9 (SIGKILL)"), (-40, "was killed by signal 40")],
)
def test_codes_in_words(code: int, text: str) -> None:
    assert describe_code(code) == text
