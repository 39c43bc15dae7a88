"""Copies over shared memory on a driver that makes them as late as it may (late_driver.c)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.remoting.harness import Remote, remote_session

Build = Callable[[str], Path]


@pytest.fixture
def fails(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", "0"))


@pytest.fixture
def late(driver_before: Callable[[str], Path], fails: str, tmp_path: Path) -> Iterator[Remote]:
    driver = driver_before("late_driver")
    with remote_session(libcuda=driver, folder=tmp_path, environment={"LATE_FAILS": fails}) as remote:
        yield remote


@pytest.mark.parametrize("seed", range(4))
def test_copies_of_all_sizes(late: Remote, build: Build, seed: int) -> None:
    """No place of a ring is given back before the device has read it, none is shown before it has written it."""
    done = late.run(build("remoting/copies_of_all_sizes"), "5000", "60", str(seed), FARBUS_TRANSPORT="shm")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.parametrize("fails", range(1, 60, 4), indirect=True)
def test_a_copy_that_the_driver_refuses(late: Remote, build: Build) -> None:
    """It is that copy's error, whatever is under way beside it, and the session goes on."""
    done = late.run(build("remoting/copies_of_all_sizes"), "5000", "60", "1", FARBUS_TRANSPORT="shm")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "cudaErrorInvalidValue" in done.stdout, done.stdout + done.stderr
