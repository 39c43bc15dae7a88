"""Objects that come and go: neither program nor server grows.

``make check-programs`` makes and destroys 100,000 of each kind (FARBUS_CHURN); without it a few, where what is seen is
a descriptor or a page for each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.remoting.harness import Remote

Build = Callable[[str], Path]

KINDS = [
    "stream", "event", "module", "allocation", "ordered", "pinned", "managed", "pool", "graph", "array", "texture",
    "host-function", "copy",
]  # fmt: skip

CYCLES = int(os.environ.get("FARBUS_CHURN", "2000"))

BYTES_PER_CYCLE = 32
"""Less than any object that is kept takes."""

SLACK_BYTES = 6 << 20
"""Allocators keep some; and stacks, rings and tables grow to what they need once."""


class Size(NamedTuple):
    """What a process has."""

    resident_bytes: int
    descriptors: int


def size_of(pid: int) -> Size:
    process = psutil.Process(pid)
    return Size(process.memory_info().rss, process.num_fds())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_destroyed_leaves_nothing(lease: Callable[..., Remote], build: Build, kind: str) -> None:
    remote = lease(tls=False)
    program = remote.start(build("remoting/churn/objects"), kind, str(CYCLES))
    assert program.stdin is not None
    assert program.stdout is not None
    sizes = []
    for _ in range(2):
        assert program.stdout.readline(), program.communicate()[1]
        (server,) = remote.supervisor.pids
        sizes.append((size_of(program.pid), size_of(server)))
        program.stdin.write("\n")
        program.stdin.flush()
    out, err = program.communicate()
    assert (program.returncode, out, err) == (0, "ok\n", "")
    for before, after in zip(*sizes, strict=True):
        assert after.descriptors <= before.descriptors
        assert after.resident_bytes - before.resident_bytes <= SLACK_BYTES + BYTES_PER_CYCLE * CYCLES
