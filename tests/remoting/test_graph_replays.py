"""Launches of a graph behind the first: posted, and right all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.remoting.harness import Remote, lines_of_shim, remote_session
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import wait_until

TRANSPORTS = ["shm", "unix", "tcp"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_program(lease: Callable[..., Remote], tmp_path: Path, transport: str) -> None:
    done = lease().run(build_calls("call_graph_replays", tmp_path), FARBUS_TRANSPORT=transport)
    assert (done.returncode, lines_of_shim(done.stderr)) == (0, [])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_replays_bring_no_answers(remote: Remote, tmp_path: Path, transport: str) -> None:
    program = build_calls("posting/replays", tmp_path)

    def answered(times: int) -> int:
        before = remote.supervisor.sessions.ended
        done = remote.run(program, str(times), "0", FARBUS_TRANSPORT=transport)
        assert (done.returncode, done.stderr) == (0, "")
        wait_until(lambda: remote.supervisor.sessions.ended.sessions > before.sessions, "the session has ended")
        return remote.supervisor.sessions.ended.sent_bytes - before.sent_bytes

    assert answered(1) == answered(200)


@pytest.fixture
def refusing(driver_before: Callable[[str], Path], tmp_path: Path) -> Iterator[Remote]:
    """On a driver that refuses the third launch of a graph."""
    environment = {"SPY_DRIVER_REFUSES_LAUNCH": "3"}
    with remote_session(libcuda=driver_before("spy_driver"), folder=tmp_path, environment=environment) as remote:
        yield remote


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_refused_replay_is_told_late_and_once(refusing: Remote, tmp_path: Path, transport: str) -> None:
    done = refusing.run(build_calls("posting/replays", tmp_path), "4", "2", FARBUS_TRANSPORT=transport)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "farbus: the GPU's driver refused a posted graph_launch (CUDA error 2)\n"
