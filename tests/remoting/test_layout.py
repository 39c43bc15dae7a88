"""Where multiprocessors lie: what cuBLASLt asks the driver by a private table, and the shim the server's."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from farbus.remoting import session as wire
from farbus.remoting.session import Server, write_session
from tests.remoting.harness import PROGRAM_TIMEOUT_S, Remote, listening
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import wait_until
from tests.remoting.test_hostile import CONTEXT, DEVICE_BYTES, HEADER, OPCODE, raw_session, with_context
from tests.remoting.test_servers import Start, start
from tests.softgpu import driver_programs

__all__ = ["start"]

Directly = Callable[..., str]

NOT_SUPPORTED = 801
NOT_PERMITTED = 800
UNKNOWN = 999


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    return build_calls("listing/layout", tmp_path)


@pytest.fixture
def directly(libcuda: Path, layout: Path) -> Directly:
    """Run the program on the driver itself; return what it printed."""

    def run(options: str, *arguments: str) -> str:
        done = subprocess.run(
            [layout, *arguments],
            env=driver_programs.environment(str(layout.parent), options, LD_LIBRARY_PATH=str(libcuda.parent)),
            capture_output=True,
            text=True,
            timeout=PROGRAM_TIMEOUT_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("options", ["sms=1", "sms=7,count=2", "sms=132", "sms=255"])
def test_it_is_as_the_driver_says(lease: Callable[..., Remote], layout: Path, directly: Directly, options: str) -> None:
    remote = lease(FARBUS_SOFTGPU=options, FARBUS_SOFTGPU_NODE=str(layout.parent))
    told = directly(options)
    for transport in ("shm", "unix", "tcp"):
        done = remote.run(layout, FARBUS_TRANSPORT=transport)
        assert (done.returncode, done.stdout, done.stderr) == (0, told, ""), transport


def test_the_software_gpu_s_lie_in_gpcs_of_nine_pairs(directly: Directly) -> None:
    pairs = directly("sms=132").split()
    assert len(pairs) == 66
    assert pairs[:9] == ["0.0", "1.0", "2.0", "3.0", "4.0", "5.0", "6.0", "7.0", "0.1"]
    assert pairs[-1] == "1.8"


def test_without_a_context_there_is_nothing_to_tell(remote: Remote, layout: Path, directly: Directly) -> None:
    assert directly("", "0") == ""
    done = remote.run(layout, "0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_each_device_s_is_asked_for_once(lease: Callable[..., Remote], layout: Path) -> None:
    remote = lease(FARBUS_SOFTGPU="count=2", FARBUS_SOFTGPU_NODE=str(layout.parent))

    def calls(rounds: int) -> int:
        before = remote.supervisor.sessions.ended
        done = remote.run(layout, str(rounds))
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        wait_until(lambda: remote.supervisor.sessions.ended.sessions > before.sessions, "the session has ended")
        return remote.supervisor.sessions.ended.calls - before.calls

    never, once, often = (calls(rounds) for rounds in (0, 1, 20))
    assert (once - never, often - once) == (2, 0)


def test_each_server_tells_its_own(start: Start, layout: Path, directly: Directly) -> None:
    gpus = ("sms=4", "sms=19")
    told = "".join(directly(gpu) for gpu in gpus)
    assert start(*gpus).run(layout) == (0, told, "")


# Drivers that do not tell it, or not so.


@pytest.fixture
def layout_driver(driver_before: Callable[[str], Path]) -> Path:
    return driver_before("layout_driver")


@pytest.mark.parametrize(
    ("kind", "result"),
    [("missing", NOT_SUPPORTED), ("short", NOT_SUPPORTED), ("nothing", NOT_SUPPORTED), ("refuses", NOT_PERMITTED)],
)
def test_what_the_driver_does_not_tell_is_an_error_without_a_word(
    start: Start, layout_driver: Path, layout: Path, monkeypatch: pytest.MonkeyPatch, kind: str, result: int
) -> None:
    monkeypatch.setenv("LAYOUT_DRIVER", kind)
    assert start("count=1", drivers=(layout_driver,)).run(layout, "2", str(result)) == (0, "", "")


def test_no_more_travels_than_a_byte_for_each_multiprocessor(layout_driver: Path, tmp_path: Path) -> None:
    environment = {"LAYOUT_DRIVER": "large", "FARBUS_SOFTGPU": "sms=7", "FARBUS_SOFTGPU_NODE": str(tmp_path)}
    with raw_session(layout_driver, **environment) as session:
        with_context(session)
        for _ in range(2):
            session.send("device_layout", context=CONTEXT)
            assert session.receive() == (OPCODE["device_layout"] | 0x8000, 0, b"g" * 7 + b"n" * 7)


# Servers that say nonsense.


def relay(listener: socket.socket, target: tuple[str, int], payload: bytes) -> None:
    """Pass one connection on to a server, but answer with `payload` where the layout is asked for."""

    def exactly(size: int) -> bytes:
        data = server.recv(size, socket.MSG_WAITALL) if size else b""
        if len(data) < size:
            raise EOFError
        return data

    def ask() -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    client, _ = listener.accept()
    with client, socket.create_connection(target) as server, contextlib.suppress(EOFError, ConnectionError):
        asking = threading.Thread(target=ask)
        asking.start()
        try:
            hello = exactly(wire.HELLO_REPLY.size)
            client.sendall(hello + exactly(DEVICE_BYTES * int(wire.HELLO_REPLY.unpack(hello)[9])))
            while True:
                length, opcode, *rest = HEADER.unpack(exactly(HEADER.size))
                body = exactly(length)
                if opcode == OPCODE["device_layout"] | 0x8000:
                    body = payload
                client.sendall(HEADER.pack(len(body), opcode, *rest) + body)
        finally:
            asking.join()


def run_relayed(remote: Remote, payload: bytes, *command: str | Path) -> subprocess.CompletedProcess[str]:
    with listening(lambda listener: relay(listener, remote.supervisor.address, payload)) as (address, port):
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret, tls=False)])
        return remote.run(*command, FARBUS_TRANSPORT="tcp", FARBUS_GRACE_S="0")


@pytest.mark.parametrize("size", [0, 1, 7, 10, 1 << 20])
def test_a_layout_of_a_length_that_can_t_be_is_an_error(lease: Callable[..., Remote], layout: Path, size: int) -> None:
    """Two arrays of one length, and no more bytes than multiprocessors in each."""
    remote = lease(tls=False, FARBUS_SOFTGPU="sms=4", FARBUS_SOFTGPU_NODE=str(layout.parent))
    done = run_relayed(remote, bytes(size), layout, "1", str(UNKNOWN))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_a_server_leaves_out_of_a_layout_is_zero(lease: Callable[..., Remote], layout: Path) -> None:
    """The program reads as much as its device should have."""
    remote = lease(tls=False, FARBUS_SOFTGPU="sms=4", FARBUS_SOFTGPU_NODE=str(layout.parent))
    done = run_relayed(remote, bytes([9, 0]), layout)
    assert (done.returncode, done.stdout, done.stderr) == (0, "9.0 0.0 \n", "")
