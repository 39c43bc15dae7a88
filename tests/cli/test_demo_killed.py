"""A demo that is ended, once or twice, leaves nothing; what one that was killed has left the next one removes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farbus.cli import demo, embedded, runtime
from farbus.cli.commands import down, up
from farbus.errors import FarbusError
from farbus.linux.children import Finished, start_detached

SLEEPS = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where demos make their directories."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(demo, "PLACES", Path(directory))
        yield Path(directory)


def starting(place: Path) -> subprocess.Popen[bytes]:
    """A process of a cluster that has no lock yet."""
    return subprocess.Popen(SLEEPS, env={**os.environ, "XDG_RUNTIME_DIR": str(place)})


def test_a_second_signal_does_not_end_the_removal(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tour = demo.Tour()

    def interrupted(*_arguments: Any, **_options: Any) -> Finished:
        os.kill(os.getpid(), signal.SIGTERM)
        return Finished(0, "", "")

    monkeypatch.setattr(demo, "run_tool", interrupted)
    monkeypatch.setattr(runtime, "lock_holder", lambda _: 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    tour._remove(force=True)
    assert list(places.iterdir()) == []


@pytest.mark.parametrize(("lender", "right"), [("beta", True), ("gamma", False)])
def test_a_job_that_is_over_when_it_is_looked_at_goes_by_where_it_was_placed(
    places: Path, monkeypatch: pytest.MonkeyPatch, lender: str, right: bool
) -> None:
    tour = demo.Tour()
    tour._work.mkdir()
    placed = [{"node": "gamma", "devices": [{"node": lender}]}]
    listings = {"jobs": [{"state": "succeeded", "placements": placed}], "leases": []}
    monkeypatch.setattr(tour, "_ask", lambda name, *_: listings[name])
    monkeypatch.setattr(tour, "_farbus", lambda *_: Finished(0, "CORRECT: all\n", ""))
    with contextlib.nullcontext() if right else pytest.raises(FarbusError, match="not placed on gamma with one device"):
        tour._run_job()
    tour._remove(force=False)


def test_a_cluster_that_only_starts_is_ended(places: Path) -> None:
    tour = demo.Tour()
    with starting(tour._place) as process:
        tour._remove(force=True)
        assert process.wait() == -signal.SIGKILL
    assert list(places.iterdir()) == []


def test_the_next_demo_ends_what_a_killed_one_has_left(places: Path) -> None:
    running, killed = demo.Tour(), demo.Tour()
    os.close(killed._lock)
    with starting(killed._place) as process:
        assert demo.end_killed_demos() == [killed._place]
        assert process.wait() == -signal.SIGKILL
    assert list(places.iterdir()) == [running._place]
    running._remove(force=False)


def test_down_ends_what_a_killed_demo_has_left(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    running, killed = demo.Tour(), demo.Tour()
    os.close(killed._lock)
    with starting(killed._place) as process:
        assert down.down() == 0
        assert process.wait() == -signal.SIGKILL
    assert capsys.readouterr().out.splitlines() == [
        "no farbus up of yours runs",
        f"ended what a killed farbus demo had left, and removed {killed._place}",
    ]
    assert list(places.iterdir()) == [running._place]
    running._remove(force=False)


def test_a_demos_own_down_ends_no_other_demo(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, killed = demo.Tour(), demo.Tour()
    os.close(killed._lock)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own._place))
    assert down.down() == 0
    assert killed._place.is_dir()
    own._remove(force=False)


def test_what_is_no_directory_of_a_demo_is_left_alone(places: Path, tmp_path: Path) -> None:
    (places / f"{demo.PREFIX}link").symlink_to(tmp_path)
    (places / f"{demo.PREFIX}file").touch()
    assert demo.end_killed_demos() == []
    assert tmp_path.is_dir()
    assert len(list(places.iterdir())) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_up_that_is_killed_while_it_waits_ends_what_it_started(
    places: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    started = []

    def start(_arguments: list[str], **options: Any) -> int:
        started.append(start_detached(SLEEPS, **options))
        return started[0]

    monkeypatch.setattr(up, "start_detached", start)
    monkeypatch.setattr(up, "_wait_for", lambda *_: os.kill(os.getpid(), number))
    plan = embedded.Plan(nodes=embedded.parse_nodes("left:0"), gpu_memory_bytes=2**30)
    with pytest.raises(SystemExit):
        up._detach(plan, places / "farbus", [], "")
    assert os.waitstatus_to_exitcode(os.waitpid(started[0], 0)[1]) == -signal.SIGTERM
    shutil.rmtree(places / "farbus", ignore_errors=True)


def test_what_a_detached_up_says_is_heard_however_long_it_took(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its own time runs from when it is loaded: on a busy machine that is long after it was started."""
    now = [0.0]
    monkeypatch.setattr(up.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(up.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(up.runtime, "find_running_cluster", lambda: None)
    # Loaded after 25 s, it gives up 60 s later and has stopped what it had started 5 s after that.
    monkeypatch.setattr(up, "process_exists", lambda _: now[0] < 25 + 60 + 5)
    monkeypatch.setattr(up.os, "kill", lambda *_: None)
    with open(tmp_path / "said", "w+") as said:
        said.write("farbus: not ready after 60 s: node beta: no socket yet\n")
        with pytest.raises(FarbusError, match="node beta: no socket yet"):
            up._wait_for(0, said)
