"""Programs whose devices sit at several servers: one list of devices, copies and events between them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from farbus.remoting.session import Server, write_session
from tests.remoting.conftest import require
from tests.remoting.test_coverage import build_calls
from tests.remoting.harness import SHIM, Remote, remote_session

Build = Callable[[str], Path]


@dataclass(kw_only=True)
class Servers:
    """Supervisors of several nodes, and one session file that names them all."""

    remotes: tuple[Remote, ...]
    session: Path

    def run(self, program: Path, **changes: str) -> tuple[int, str, str]:
        done = self.remotes[0].run(program, FARBUS_SESSION=str(self.session), **changes)
        return done.returncode, done.stdout, done.stderr


Start = Callable[..., Servers]


@pytest.fixture
def start(libcuda: Path, tmp_path: Path) -> Iterator[Start]:
    """Start supervisors, each of a node of its own: by their servers' FARBUS_SOFTGPU."""
    require(SHIM / "libcuda.so.1", "run make -C native")
    pytest.importorskip("farbus.remoting._server", reason="run python native/ffi_build.py")
    with contextlib.ExitStack() as stack:

        def start_servers(*gpus: str) -> Servers:
            remotes = tuple(
                stack.enter_context(
                    remote_session(
                        libcuda=libcuda,
                        folder=tmp_path,
                        environment={"FARBUS_SOFTGPU_NODE": f"node-{number}", "FARBUS_SOFTGPU": gpu},
                    )
                )
                for number, gpu in enumerate(gpus)
            )
            blocks = []
            for remote in remotes:
                address, port = remote.supervisor.address
                blocks.append(Server(address=address, port=port, secret=remote.secret))
            session = tmp_path / "session"
            write_session(session, blocks)
            return Servers(remotes=remotes, session=session)

        yield start_servers


@pytest.fixture
def two(start: Start) -> Servers:
    return start("count=1", "count=1")


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("name", ["copies", "events", "threads"])
def test_program_of_two_servers(two: Servers, build: Build, name: str, transport: str) -> None:
    code, out, err = two.run(build(f"remoting/servers/{name}"), FARBUS_TRANSPORT=transport)
    assert (code, out) == (0, "ok\n"), out + err


def test_objects_of_two_servers_do_not_mix(two: Servers, tmp_path: Path) -> None:
    (tmp_path / "servers").mkdir()
    code, out, err = two.run(build_calls("servers/mixed", tmp_path))
    assert code == 0, out + err
    assert "a graph whose work is on the devices of two servers is not supported over remoting" in err
    assert "waiting for an event between two servers can't be captured" in err
    assert "freeing memory of " in err
    assert "mapping memory of " in err


def test_the_end_of_one_server_leaves_the_other(two: Servers, build: Build) -> None:
    program = two.remotes[0].start(build("remoting/servers/one_lost"), FARBUS_SESSION=str(two.session))
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    (server,) = two.remotes[1].supervisor.pids
    os.kill(server, signal.SIGKILL)
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out) == (0, "ok\n"), out + err
    assert err.count("the connection to the GPU at ") == 1


def listed(servers: Servers, build: Build, **changes: str) -> str:
    code, out, err = servers.run(build("remoting/servers/listed"), **changes)
    assert code == 0, out + err
    return out.splitlines()[0]


def test_devices_run_over_the_servers_in_the_file_s_order(start: Start, build: Build) -> None:
    servers = start("count=2,cc=8.0,sms=4", "count=1,cc=9.0,sms=8", "count=1,cc=7.5,sms=2")
    names = listed(servers, build)
    assert names.split()[:-1] == ["8.0", "4", "8.0", "4", "9.0", "8", "7.5", "2"]
    assert listed(servers, build, CUDA_DEVICE_ORDER="PCI_BUS_ID") == names
    chosen = listed(servers, build, CUDA_VISIBLE_DEVICES="2,0")
    assert chosen.split()[:-1] == ["9.0", "8", "8.0", "4"]
