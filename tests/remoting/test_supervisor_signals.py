"""A supervisor's process serves at the sockets that it is given, and ends when it is told to, by whichever thread."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import AF_UNIX, MSG_WAITALL, SOCK_STREAM, socket

import pytest

from farbus.linux.unix_sockets import bind_file
from farbus.remoting import session as wire
from tests.remoting.harness import hello
from tests.remoting.test_failures import PATIENCE_S

LIBC = ctypes.CDLL(None, use_errno=True)
SYS_TGKILL = {"x86_64": 234, "aarch64": 131}.get(os.uname().machine)


@pytest.fixture
def supervisor(libcuda: Path, short_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """One that listens, also at ``short_path/socket``, and the pipe that it lives by."""
    secret, secret_end = os.pipe()
    life, life_end = os.pipe()
    os.write(secret_end, bytes(32))
    os.close(secret_end)
    with bind_file(short_path, "socket") as file:
        options = ["--libcuda", str(libcuda), "--secret-fd", str(secret), "--life-fd", str(life)]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "farbus.remoting.supervisor", *options, "--socket-fd", str(file.fileno())],
            pass_fds=(secret, life, file.fileno()),
            stdout=subprocess.PIPE,
        )
    os.close(secret)
    os.close(life)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"listening ")
        yield process, life_end
    finally:
        process.kill()
        process.communicate()
        os.close(life_end)


def test_any_thread_may_be_told(supervisor: tuple[subprocess.Popen[bytes], int]) -> None:
    process, _ = supervisor
    threads = sorted(int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir())
    other = next(thread for thread in threads if thread != process.pid)
    if SYS_TGKILL is None:
        pytest.skip("the number of tgkill(2) is not known here")
    assert LIBC.syscall(SYS_TGKILL, process.pid, other, int(signal.SIGTERM)) == 0
    assert process.wait(PATIENCE_S) == 0


def test_it_ends_with_who_it_lives_by(supervisor: tuple[subprocess.Popen[bytes], int]) -> None:
    process, life_end = supervisor
    other = os.open(os.devnull, os.O_RDONLY)
    os.dup2(other, life_end)
    os.close(other)
    assert process.wait(PATIENCE_S) == 0


def test_it_serves_at_the_socket_that_it_was_given(
    supervisor: tuple[subprocess.Popen[bytes], int], short_path: Path
) -> None:
    process, _ = supervisor
    with socket(AF_UNIX, SOCK_STREAM) as client:
        client.settimeout(PATIENCE_S)
        client.connect(str(short_path / "socket"))
        # Within a machine there is no TLS, so this is refused, and no server started for it.
        client.sendall(hello(bytes(32), capabilities=wire.CAPABILITY_TLS))
        reply = wire.HELLO_REPLY.unpack(client.recv(wire.HELLO_REPLY.size, MSG_WAITALL))
    assert reply[3] == wire.HELLO_TLS
    process.terminate()
    assert process.wait(PATIENCE_S) == 0
    # The file is its maker's.
    assert (short_path / "socket").is_socket()
