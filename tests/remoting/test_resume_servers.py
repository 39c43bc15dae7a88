"""Sessions with several servers, each of which is cut and goes on by itself."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farbus.remoting.session import Server, write_session
from tests.remoting.cutter import Cutter, Decide, Kind, Side
from tests.remoting.harness import Remote, remote_session
from tests.remoting.test_failures import PATIENCE_S, wait_until
from tests.remoting.test_resume import CLOSED_GRACE_S, CUTS_EACH, at_frames, at_random

Build = Callable[[str], Path]


@contextlib.contextmanager
def two_servers(libcuda: Path, folder: Path, *, tls: bool, grace_s: float = 30) -> Iterator[tuple[Remote, Remote]]:
    """Two supervisors, each of a node of its own."""
    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(
                remote_session(
                    libcuda=libcuda,
                    folder=folder,
                    environment={"FARBUS_SOFTGPU_NODE": f"{folder}/{number}", "FARBUS_SOFTGPU": "count=1"},
                    grace_s=grace_s,
                    tls=tls,
                )
            )
            for number in range(2)
        )
        yield first, second


def write_sessions(path: Path, remotes: tuple[Remote, ...], addresses: list[tuple[str, int]], *, tls: bool) -> None:
    servers = [
        Server(address=address, port=port, secret=remote.secret, tls=tls)
        for remote, (address, port) in zip(remotes, addresses, strict=True)
    ]
    write_session(path, servers)


@pytest.mark.parametrize("cut", [(True, False), (False, True), (True, True)], ids=["first", "second", "both"])
@pytest.mark.parametrize("name", ["copies", "events", "threads"])
def test_servers_are_cut_each_by_itself(
    libcuda: Path, tmp_path: Path, build: Build, name: str, cut: tuple[bool, bool]
) -> None:
    def decide(index: int) -> Decide:
        return at_random(index, mean_bytes=20_000) if cut[index] else lambda *_: None

    with two_servers(libcuda, tmp_path, tls=False) as remotes, contextlib.ExitStack() as stack:
        networks = [
            stack.enter_context(
                Cutter(remote.supervisor.address, decide(index), random.Random(index).choice(list(Kind)))
            )
            for index, remote in enumerate(remotes)
        ]
        session = tmp_path / "session"
        write_sessions(session, remotes, [network.address for network in networks], tls=False)
        done = remotes[0].run(build(f"remoting/servers/{name}"), FARBUS_SESSION=str(session), FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    assert [network.cuts > 0 for network in networks] == list(cut)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("index", [0, 1])
def test_copies_between_servers_are_cut_behind_every_frame(
    libcuda: Path, tmp_path: Path, build: Build, index: int, side: Side
) -> None:
    """One of the two; the other's frames of the same copies come meanwhile."""
    with (
        two_servers(libcuda, tmp_path, tls=False) as remotes,
        Cutter(remotes[index].supervisor.address, at_frames(side, lambda length: length)) as network,
    ):
        addresses = [remote.supervisor.address for remote in remotes]
        addresses[index] = network.address
        session = tmp_path / "session"
        write_sessions(session, remotes, addresses, tls=False)
        done = remotes[0].run(build("remoting/servers/copies"), FARBUS_SESSION=str(session), FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    assert network.cuts >= CUTS_EACH


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["copies", "events", "threads"])
def test_encrypted_servers_are_cut_at_random(libcuda: Path, tmp_path: Path, build: Build, name: str, seed: int) -> None:
    chance = random.Random(seed)
    with two_servers(libcuda, tmp_path, tls=True) as remotes, contextlib.ExitStack() as stack:

        def network(remote: Remote) -> Cutter:
            made = Cutter(
                remote.supervisor.address,
                lambda *_: None,
                chance.choice(list(Kind)),
                cut_bytes=lambda: chance.randint(1, 4_000_000) if made.connections > 1 else 30_000,
            )
            return stack.enter_context(made)

        networks = [network(remote) for remote in remotes]
        session = tmp_path / "session"
        write_sessions(session, remotes, [each.address for each in networks], tls=True)
        done = remotes[0].run(build(f"remoting/servers/{name}"), FARBUS_SESSION=str(session), FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    assert all(each.cuts > 0 for each in networks)


def test_a_server_is_told_where_the_program_does_not_begin_because_of_another(
    libcuda: Path, tmp_path: Path, build: Build
) -> None:
    with two_servers(libcuda, tmp_path, tls=True) as (first, second):
        address, port = second.supervisor.address
        session = tmp_path / "session"
        blocks = [(first.supervisor.address, first.secret), ((address, port), bytes(32))]
        write_session(session, [Server(address=at[0], port=at[1], secret=secret) for at, secret in blocks])
        done = first.run(build("remoting/servers/events"), FARBUS_SESSION=str(session), FARBUS_TRANSPORT="tcp")
        began = time.monotonic()
        wait_until(lambda: first.supervisor.pids == (), "the first server has ended")
        assert done.returncode == 1
        assert "refuses the secret" in done.stderr
        assert time.monotonic() - began < CLOSED_GRACE_S


def test_one_server_is_cut_for_good_and_the_other_again_and_again(libcuda: Path, tmp_path: Path, build: Build) -> None:
    """Behind the grace time what waited for the lost one goes on, in a session that was resumed."""
    with (
        two_servers(libcuda, tmp_path, tls=False) as remotes,
        Cutter(remotes[0].supervisor.address, at_random(1, mean_bytes=500)) as kept,
        Cutter(remotes[1].supervisor.address, lambda *_: None) as lost,
    ):
        session = tmp_path / "session"
        write_sessions(session, remotes, [kept.address, lost.address], tls=False)
        program = remotes[0].start(
            build("remoting/servers/one_lost"),
            FARBUS_SESSION=str(session),
            FARBUS_TRANSPORT="tcp",
            FARBUS_GRACE_S="1",
        )
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "waiting\n"
            lost.stop()
            out, err = program.communicate(timeout=PATIENCE_S)
        finally:
            program.kill()
            program.communicate()
    assert (program.returncode, out) == (0, "ok\n"), out + err
    assert err.count("the connection to the GPU at ") == 1
    assert "a stream waited for an event of 127.0.0.1" in err
    assert kept.cuts > 0
