"""Several threads of a program copy what is large, where there are processors for them: nothing but the speed tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remoting.harness import CREW_PROCESSORS, Remote
from tests.remoting.test_transports import PROGRAMS

Build = Callable[[str], Path]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_over_shared_memory(lease_with: Callable[..., Remote], build: Build, name: str) -> None:
    remote = lease_with(1, CREW_PROCESSORS)
    done = remote.run(build(f"remoting/{name}"), FARBUS_TRANSPORT="shm")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.parametrize("seed", range(3))
def test_copies_of_all_sizes_over_shared_memory(lease_with: Callable[..., Remote], build: Build, seed: int) -> None:
    remote = lease_with(1, CREW_PROCESSORS)
    done = remote.run(build("remoting/copies_of_all_sizes"), "20000", "40", str(seed), FARBUS_TRANSPORT="shm")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
