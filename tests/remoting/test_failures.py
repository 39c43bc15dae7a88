"""What goes wrong: each a message that says what to do, the right error, no hang, nothing left."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from farbus.remoting import session as wire
from farbus.remoting.launcher import UnusableProgram, check_program
from farbus.remoting.session import Server, write_session
from tests.remoting.harness import Remote, hello, listening, remote_session

Build = Callable[[str], Path]

#: Long enough for a loaded machine, far below any time-out of the code under test.
PATIENCE_S = 10.0
#: The fixed part of an event that carries a copy's bytes.
WIRE_DATA_BYTES = 16


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"not so after {PATIENCE_S} s: {what}")
        os.sched_yield()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second between open and read
        return False


def waiting_program(remote: Remote, build: Build, name: str = "wait_forever") -> subprocess.Popen[str]:
    program = remote.start(build(f"remoting/{name}"))
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    return program


def failure(remote: Remote, build: Build, **changes: str) -> str:
    """Run a program that cannot work and return what it said on stderr."""
    done = remote.run(build("remoting/events"), **changes)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr


def test_killed_server_is_an_error_and_no_hang(remote: Remote, build: Build) -> None:
    program = waiting_program(remote, build)
    (server,) = remote.supervisor.pids
    os.kill(server, signal.SIGKILL)
    out, err = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 3
    assert "cudaErrorDevicesUnavailable" in out
    assert err.count("the connection to the GPU at ") == 1


def test_killed_server_in_the_midst_of_copies_is_heard_of_by_all_threads(remote: Remote, build: Build) -> None:
    program = waiting_program(remote, build, "copies_until_lost")
    (server,) = remote.supervisor.pids
    os.kill(server, signal.SIGKILL)
    out, err = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 3, out + err
    assert err.count("the connection to the GPU at ") == 1


def pass_on(client: socket.socket, server: socket.socket, alter: Callable[[bytes], bytes]) -> None:
    """Pass bytes both ways until one side ends; what the server says is altered."""
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ, (server, bytes))
        selector.register(server, selectors.EVENT_READ, (client, alter))
        while True:
            for key, _ in selector.select():
                to, change = key.data
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(1 << 20)
                if not data:
                    return
                to.sendall(change(data))


def run_without_bytes(remote: Remote, program: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """The server sends the first bytes that are all Z for a copy that nobody asked for."""
    altered: list[int] = []

    def alter(data: bytes) -> bytes:
        at = data.find(b"Z" * 64) - WIRE_DATA_BYTES
        if at < 0 or altered:
            return data
        altered.append(at)
        return data[:at] + b"\xff" * 8 + data[at + 8 :]

    def serve(listener: socket.socket) -> None:
        while True:
            client, _ = listener.accept()
            with client, socket.create_connection(remote.supervisor.address) as server:
                pass_on(client, server, alter)

    with listening(serve) as (address, port):
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret, tls=False)])
        done = remote.run(program, FARBUS_TRANSPORT="tcp", **changes)
    assert len(altered) == 1
    return done


def test_copy_whose_bytes_do_not_come_is_an_error(lease: Callable[..., Remote], build: Build) -> None:
    done = run_without_bytes(lease(tls=False), build("remoting/short_copy"))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.parametrize("mode", ["paging", "copies"])
def test_managed_memory_whose_bytes_do_not_come_is_no_zero(
    lease: Callable[..., Remote], build: Build, mode: str
) -> None:
    done = run_without_bytes(lease(tls=False), build("remoting/unmanaged/short"), FARBUS_MANAGED_MEMORY=mode)
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "touching\n"), done.stdout + done.stderr
    # It may have died before who reads the connection came to say what is wrong with that.
    assert done.stderr.count("the connection to the GPU at ") <= 1
    assert "the connection to the GPU at " in done.stderr or "touching it ends the program" in done.stderr


def test_killed_program_ends_its_server(remote: Remote, build: Build) -> None:
    program = waiting_program(remote, build)
    (server,) = remote.supervisor.pids
    program.kill()
    program.communicate()
    wait_until(lambda: not alive(server), "the server has ended")


def test_the_end_of_the_lease_ends_the_servers(remote: Remote, build: Build) -> None:
    program = waiting_program(remote, build)
    (server,) = remote.supervisor.pids
    remote.supervisor.stop()
    assert not alive(server)
    program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 3


def test_wrong_secret(remote: Remote, build: Build, tmp_path: Path) -> None:
    address, port = remote.supervisor.address
    write_session(tmp_path / "other", [Server(address=address, port=port, secret=bytes(32))])
    said = failure(remote, build, FARBUS_SESSION=str(tmp_path / "other"))
    assert f"farbus: {address}:{port} refuses the secret of this session" in said
    assert remote.supervisor.pids == ()


def test_server_away(remote: Remote, build: Build) -> None:
    remote.supervisor.stop()
    said = failure(remote, build)
    assert "Connection refused" in said
    assert said.count("\n") == 1


def test_a_program_without_descriptors_hears_what_it_lacks(lease: Callable[..., Remote], build: Build) -> None:
    command = ("sh", "-c", 'ulimit -n 4; exec "$0"', build("remoting/devices"))
    done = lease(tls=False).run(*command, FARBUS_TRANSPORT="tcp")
    assert done.stderr.endswith(": Too many open files; let this program have more descriptors (ulimit -n)\n")


def test_no_session(remote: Remote, build: Build) -> None:
    assert "cannot" not in failure(remote, build, FARBUS_SESSION="/nowhere/at/all")
    assert "start the program with farbus run" in failure(remote, build, FARBUS_SESSION="/nowhere/at/all")


def test_session_file_that_others_can_read(remote: Remote, build: Build) -> None:
    remote.session.chmod(0o644)
    assert "chmod 600" in failure(remote, build)


def test_malformed_session_file(remote: Remote, build: Build, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch(mode=0o600)
    broken.write_bytes(b"farbus-session 1\nserver tcp 127.0.0.1\x00\nsecret zz\n")
    assert "malformed" in failure(remote, build, FARBUS_SESSION=str(broken))


def test_other_protocol_version(remote: Remote) -> None:
    with socket.create_connection(remote.supervisor.address, timeout=PATIENCE_S) as connection:
        connection.sendall(hello(remote.secret, major=99))
        reply = wire.HELLO_REPLY.unpack(connection.recv(wire.HELLO_REPLY.size, socket.MSG_WAITALL))
    assert reply[:4] == (wire.HELLO_MAGIC, wire.PROTOCOL_MAJOR, wire.PROTOCOL_MINOR, wire.HELLO_VERSION)


def test_no_client_at_all(remote: Remote) -> None:
    with socket.create_connection(remote.supervisor.address, timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: somebody\r\n" + b"x" * 200 + b"\r\n\r\n")
        try:
            assert connection.recv(1) == b""
        except ConnectionResetError:
            pass
    assert remote.supervisor.pids == ()


def test_wrong_architecture(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x02\x00\x28\x00" + bytes(100))
    program.chmod(0o755)
    with pytest.raises(UnusableProgram, match="a 32-bit arm program; remote GPUs need one for x86_64"):
        check_program(str(program), machine="x86_64")


def test_program_that_is_not_there() -> None:
    with pytest.raises(UnusableProgram, match="no such program"):
        check_program("/no/such/program")


def test_script_is_judged_by_its_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho hello\n")
    script.chmod(0o755)
    assert check_program(str(script)) == script


def test_a_kernel_image_that_does_not_fit_is_named_with_the_cure(remote: Remote, build: Build) -> None:
    done = remote.run(build("remoting/refused/machine_code"))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert "refused/machine_code can't run on Farbus Software GPU" in line
    assert "machine code for sm_80; compile with -arch=compute_" in line


def test_the_cure_names_an_architecture_that_nvcc_has(libcuda: Path, build: Build, tmp_path: Path) -> None:
    environment = {"FARBUS_SOFTGPU": "cc=13.0", "FARBUS_SOFTGPU_NODE": str(tmp_path)}
    with remote_session(libcuda=libcuda, folder=tmp_path, environment=environment) as remote:
        done = remote.run(build("remoting/refused/machine_code"))
    assert done.returncode == 0, done.stderr
    assert "compile with -arch=compute_120, or -gencode arch=compute_120,code=compute_120 beside" in done.stderr
