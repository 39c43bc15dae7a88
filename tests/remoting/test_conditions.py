"""Conditional nodes of graphs through the shim: over each transport, posted, and refused.

What they do is in calls/call_condition*.c, which run without a shim, too (test_coverage.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remoting.harness import Remote
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import wait_until

TRANSPORTS = ["shm", "unix", "tcp"]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ["call_conditions", "call_condition_loops", "call_condition_errors"])
def test_program(lease: Callable[..., Remote], tmp_path: Path, name: str, transport: str) -> None:
    done = lease().run(build_calls(name, tmp_path), FARBUS_TRANSPORT=transport)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_launches_behind_the_first_bring_no_answers(remote: Remote, tmp_path: Path, transport: str) -> None:
    program = build_calls("conditions/replays", tmp_path)

    def answered(times: int) -> int:
        before = remote.supervisor.sessions.ended
        done = remote.run(program, str(times), FARBUS_TRANSPORT=transport)
        assert (done.returncode, done.stderr) == (0, "")
        wait_until(lambda: remote.supervisor.sessions.ended.sessions > before.sessions, "the session has ended")
        return remote.supervisor.sessions.ended.sent_bytes - before.sent_bytes

    assert answered(1) == answered(200)


def test_memory_that_both_have_is_copied_in_bodies(remote: Remote, tmp_path: Path) -> None:
    done = remote.run(build_calls("conditions/copies", tmp_path), "shared", FARBUS_TRANSPORT="shm")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_copies_that_this_process_takes_part_in_are_refused_in_bodies(
    remote: Remote, tmp_path: Path, transport: str
) -> None:
    done = remote.run(build_calls("conditions/copies", tmp_path), FARBUS_TRANSPORT=transport)
    assert done.returncode == 0, done.stderr
    assert set(done.stderr.splitlines()) == {
        "farbus: a copy between the GPU and memory of this process in a body of a conditional node is not supported "
        "over remoting: put it ahead of the node or behind it, or with pinned memory set FARBUS_MAPPED_MEMORY=managed"
    }
