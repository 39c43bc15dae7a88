"""What the server asks of its driver, seen by a driver that notes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.remoting.harness import Remote, remote_session
from tests.remoting.test_coverage import build_calls

Build = Callable[[str], Path]


@dataclass(kw_only=True)
class Spied:
    remote: Remote
    log: Path

    def calls(self) -> Counter[str]:
        """Lines such as "allocate 0": what was called and its CUresult."""
        return Counter(self.log.read_text().splitlines()) if self.log.exists() else Counter()


@pytest.fixture
def spied(driver_before: Callable[[str], Path], tmp_path: Path) -> Iterator[Spied]:
    driver, log = driver_before("spy_driver"), tmp_path / "calls"
    with remote_session(libcuda=driver, folder=tmp_path, environment={"SPY_DRIVER_LOG": str(log)}) as remote:
        yield Spied(remote=remote, log=log)


def registered(calls: Counter[str]) -> int:
    return sum(count for line, count in calls.items() if line.startswith("register"))


def test_shared_pinned_memory_needs_no_buffers(spied: Spied, build: Build) -> None:
    done = spied.remote.run(build("remoting/spied/pinned_rounds"), FARBUS_TRANSPORT="shm")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
    calls = spied.calls()
    # Once for all rounds; the transport's ring may be registered, too.
    assert 1 <= registered(calls) <= 3
    # Those that are made before a stream waits for a host function.
    assert calls["allocate 0"] == 10


def test_copies_out_of_pinned_memory_reuse_the_driver_s_own(spied: Spied, build: Build) -> None:
    done = spied.remote.run(build("remoting/spied/pinned_rounds"), FARBUS_TRANSPORT="unix")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
    calls = spied.calls()
    assert registered(calls) == 0
    # One buffer serves all rounds; the others are the staging of the copies back.
    assert 1 <= calls["allocate 0"] < 12


def test_memory_that_is_being_freed_makes_way(spied: Spied, build: Build) -> None:
    done = spied.remote.run(build("remoting/spied/taken_while_freed"), SPY_DRIVER_LOG=str(spied.log))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


def test_memory_of_a_context_that_is_being_destroyed_makes_way(spied: Spied, tmp_path: Path) -> None:
    program = build_calls("spied/taken_while_destroyed", tmp_path)
    done = spied.remote.run(program, SPY_DRIVER_LOG=str(spied.log))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


def test_a_context_that_finds_no_room_on_its_thread_s_stack_is_not_made(spied: Spied, tmp_path: Path) -> None:
    done = spied.remote.run(build_calls("spied/full_stack", tmp_path))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
    assert spied.calls()["make context 0"] == 1


def test_what_no_graph_keeps_is_released_and_works(driver_before: Callable[[str], Path], tmp_path: Path) -> None:
    driver, log = driver_before("spy_driver"), tmp_path / "calls"
    environment = {"SPY_DRIVER_LOG": str(log), "SPY_DRIVER_REFUSES_RETAIN": "1"}
    with remote_session(libcuda=driver, folder=tmp_path, environment=environment) as remote:
        done = remote.run(build_calls("spied/called_by_graphs", tmp_path))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
    calls = Spied(remote=remote, log=log).calls()
    assert calls["make object 0"] == calls["release object 0"] == 3


def test_what_ended_with_its_context_is_no_name_any_more(spied: Spied, tmp_path: Path) -> None:
    """Its names took up room for good, and the driver was given objects that it had destroyed."""
    done = spied.remote.run(build_calls("spied/ended_with_context", tmp_path))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
    assert not [line for line in spied.calls() if "Destroy" in line]


def test_a_refused_copy_to_the_host_is_not_waited_for(spied: Spied, build: Build) -> None:
    done = spied.remote.run(build("remoting/spied/refused_copy"), FARBUS_TRANSPORT="unix")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
    calls = spied.calls()
    assert calls["refuse 1"] == 1
    assert calls["synchronize 0"] == 0
