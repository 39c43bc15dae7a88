"""Copies over shared memory on a driver that makes them as late as it may (late_driver.c)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.remoting.harness import Remote, remote_session
from tests.remoting.test_hostile import CONTEXT, raw_session, with_context

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


def test_a_buffer_of_a_copy_that_is_under_way_is_nobody_else_s(driver_before: Callable[[str], Path]) -> None:
    """Also where the driver refuses the rest of that copy."""
    stream, piece = 2 << 43 | 9 << 4, 256 << 10
    with raw_session(driver_before("late_driver"), LATE_FAILS="2") as session:
        with_context(session)
        session.send("stream_create", struct.pack("<QIi", stream, 1, 0), context=CONTEXT)
        session.send("memory_alloc", struct.pack("<Q", 2 * piece), context=CONTEXT)
        (device,) = struct.unpack("<Q", session.receive()[2])
        copy = struct.pack("<QQQQQ", device, 2 * piece, 2 * piece, 1, stream)
        assert session.call("copy_to_host", copy, context=CONTEXT) == 1
        for at in range(2):
            here = struct.pack("<QQ", device + 8 * at, stream)
            session.send("copy_to_device", here, b"ab"[at : at + 1] * 8, context=CONTEXT)
        session.send("copy_to_host", struct.pack("<QQQQQ", device, 16, 16, 1, stream), context=CONTEXT)
        assert session.receive()[2][-16:] == b"a" * 8 + b"b" * 8
        assert session.receive()[1] == 0
