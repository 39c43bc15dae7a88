"""Programs whose threads, processes and copies race, again and again: FARBUS_STRESS=50 times in make check-programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remoting.harness import Remote

TIMES = int(os.environ.get("FARBUS_STRESS", "1"))
RACING = [
    "blocked_thread",
    "cancelled_thread",
    "copy_before_query",
    "fork_child",
    "fork_during_start",
    "handed_over",
    "host_functions",
    "many_blocked_threads",
    "no_cleanup",
    "pageable_source",
    "streams_pinned",
    "threads",
]


@pytest.mark.parametrize("transport", ["shm", "unix", "tcp"])
@pytest.mark.parametrize("name", RACING)
def test_again_and_again(remote: Remote, build: Callable[[str], Path], name: str, transport: str) -> None:
    program = build(f"remoting/{name}")
    for time in range(TIMES):
        done = remote.run(program, FARBUS_TRANSPORT=transport)
        assert (done.returncode, done.stdout) == (0, "ok\n"), f"the {time}th time: {done.stdout}{done.stderr}"
