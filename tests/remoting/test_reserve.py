"""A supervisor keeps one server ready: the program that comes next does not wait for a process to start."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remoting.harness import Remote, remote_session
from tests.remoting.test_failures import alive, failure, wait_until, waiting_program

Build = Callable[[str], Path]


def reserved(remote: Remote) -> int:
    """The process id of the server in reserve, once there is one."""
    wait_until(lambda: remote.supervisor.reserve is not None, "a server is in reserve")
    pid = remote.supervisor.reserve
    assert pid is not None
    return pid


def test_a_program_gets_the_server_in_reserve_and_the_next_one_is_made_ready(remote: Remote, build: Build) -> None:
    first = reserved(remote)
    assert remote.supervisor.pids == ()
    program = waiting_program(remote, build)
    assert remote.supervisor.pids == (first,)
    assert reserved(remote) != first
    program.kill()
    program.communicate()


def test_two_programs_never_share_a_server(remote: Remote, build: Build) -> None:
    programs = [waiting_program(remote, build) for _ in range(3)]
    assert len(set(remote.supervisor.pids)) == 3
    for program in programs:
        program.kill()
        program.communicate()


def test_a_killed_reserve_keeps_nobody_out(remote: Remote, build: Build) -> None:
    os.kill(reserved(remote), signal.SIGKILL)
    done = remote.run(build("remoting/rows"), FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_without_descriptors_a_client_is_refused_and_its_server_goes(
    remote: Remote, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = reserved(remote)

    def none_left(_: int) -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr("farbus.remoting.supervisor.os.pipe2", none_left)
        assert "Too many open files" in failure(remote, build)
        assert remote.supervisor.pids == ()
        assert not alive(first)
    done = remote.run(build("remoting/rows"), FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_who_comes_before_or_after_a_reserve_fails_is_told_why(tmp_path: Path, build: Build) -> None:
    fake = tmp_path / "libcuda.so.1"
    fake.write_text("not a library")
    with remote_session(libcuda=fake, folder=tmp_path, environment={}) as remote:
        assert "open the driver" in failure(remote, build)
        wait_until(lambda: remote.supervisor.reserve is None and not remote.supervisor.pids, "none is left")
        assert "open the driver" in failure(remote, build)


def test_the_end_of_the_lease_ends_the_reserve(remote: Remote) -> None:
    reserve = reserved(remote)
    remote.supervisor.stop()
    assert not alive(reserve)
