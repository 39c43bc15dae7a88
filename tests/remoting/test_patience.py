"""Who spins while it waits: a program for its GPU, as CUDA does, and a server for its program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remoting.harness import SANITIZED, Remote
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import wait_until

pytestmark = pytest.mark.skipif(bool(SANITIZED), reason="the sanitizer is what is preloaded")

ENOUGH = "4"
TOO_FEW = "3"
SPIN, YIELD, BLOCKING_SYNC = "1", "2", "4"


@pytest.fixture
def processors(shared_library: Callable[..., Path]) -> Path:
    return shared_library("processors")


@pytest.mark.parametrize("transport", ["shm", "unix", "tcp"])
@pytest.mark.parametrize(
    ("flags", "count", "waits"),
    [
        ("0", ENOUGH, "spins spins sleeps"),
        (SPIN, ENOUGH, "spins spins sleeps"),
        (YIELD, ENOUGH, "sleeps sleeps sleeps"),
        (BLOCKING_SYNC, ENOUGH, "sleeps sleeps sleeps"),
        (SPIN, TOO_FEW, "sleeps sleeps sleeps"),
    ],
)
def test_a_program_spins_where_cuda_does(
    remote: Remote, processors: Path, tmp_path: Path, transport: str, flags: str, count: str, waits: str
) -> None:
    """By default, unless the context or the event says otherwise, and not without processors for it."""
    preloaded = f"{remote.environment()['LD_PRELOAD']}:{processors}"
    wanted = {"PROCESSORS": count, "PROCESSORS_WANTED": str(tmp_path / "wanted"), "LD_PRELOAD": preloaded}
    program = build_calls("listing/patience", tmp_path)
    tries = "1000" if "spins" in waits else "3"
    done = remote.run(program, flags, tries, FARBUS_TRANSPORT=transport, **wanted)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, waits.split(), "")


@pytest.mark.parametrize(("count", "spins"), [(ENOUGH, True), (TOO_FEW, False)])
def test_a_server_spins_where_there_are_processors_for_it(
    lease: Callable[..., Remote], processors: Path, tmp_path: Path, count: str, spins: bool
) -> None:
    """Over shared memory it does at the latest when the program ends, of which the ring tells nothing."""
    wanted = tmp_path / "wanted"
    remote = lease(LD_PRELOAD=str(processors), PROCESSORS=count, PROCESSORS_WANTED=str(wanted))
    before = remote.supervisor.sessions.ended.sessions
    done = remote.run(build_calls("posting/replays", tmp_path), "1", "0", FARBUS_TRANSPORT="shm")
    assert (done.returncode, done.stderr) == (0, "")
    wait_until(lambda: remote.supervisor.sessions.ended.sessions > before, "the session has ended")
    assert wanted.exists() == spins
