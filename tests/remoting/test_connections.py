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
from tests.remoting.cutter import RECORD, Kind, Relay
from tests.remoting.harness import Remote
from tests.remoting.test_failures import PATIENCE_S, wait_until
from tests.remoting.test_hostile import HEADER, OPCODE
from tests.remoting.test_resume import PROGRAMS, Resumer
from tests.remoting.test_transports import PROGRAMS as TRANSPORT_PROGRAMS

Build = Callable[[str], Path]

CHUNK = struct.Struct("<IB3x")
#: Most connections of one session (native/transport/bundle.h).
MOST = 8
CAPABILITIES = wire.CAPABILITY_RESUME | wire.CAPABILITY_CONNECTIONS


@pytest.fixture(params=[True, False], ids=["tls", "tcp"])
def remote(lease: Callable[..., Remote], request: pytest.FixtureRequest) -> Remote:
    return lease(tls=request.param)


@pytest.fixture
def plain(lease: Callable[..., Remote]) -> Remote:
    return lease(tls=False)


def run_through(
    remote: Remote, network: Relay, connections: int, *command: str | Path, **changes: str
) -> tuple[int, str, str]:
    address, port = network.address
    tls = "tls" in remote.session.read_text()
    write_session(remote.session, [Server(address=address, port=port, secret=remote.secret, tls=tls)])
    done = remote.run(*command, FARBUS_TRANSPORT="tcp", FARBUS_CONNECTIONS=str(connections), **changes)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("connections", range(2, MOST + 1))
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
@pytest.mark.parametrize("name", [*PROGRAMS, "threads"])
def test_cut_at_random(remote: Remote, build: Build, name: str, kind: Kind) -> None:
    """Any of the connections is cut, also while it is made."""
    chance = random.Random(f"{name} {kind}")
    with Relay(
        remote.supervisor.address, lambda number: chance.randint(1, 60_000) if number > 1 else 20_000, kind
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
