"""Pinned memory that program and server share where both are on one node, and what happens where they don't."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.remoting.harness import Remote
from tests.remoting.test_failures import PATIENCE_S, alive, wait_until

Build = Callable[[str], Path]

#: What a program does, as tests/programs/remoting/pinned_steps.cu says it, and whether it then has shared memory.
STEPS = {"begun": 0, "allocated": 1, "copying": 1, "freed": 0, "forked": 1, "stuck": 1}


def shared(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("farbus-remoting-pinned")


def descriptors(pid: int) -> int:
    return sum(
        "farbus-remoting-pinned" in os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()
    )


@pytest.mark.parametrize("transport", ["shm", "unix", "tcp"])
@pytest.mark.parametrize("name", ["pinned_shared", "pinned_after_reset"])
def test_program(remote: Remote, build: Build, name: str, transport: str) -> None:
    done = remote.run(build(f"remoting/{name}"), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


class Steps:
    """A program that goes a step further whenever it is told to."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self.program = program

    def go_to(self, step: str) -> None:
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        for name in STEPS:
            if name != "begun":
                self.program.stdin.write("\n")
                self.program.stdin.flush()
            assert self.program.stdout.readline() == f"{name}\n"
            if name == step:
                return


@contextlib.contextmanager
def stepping(remote: Remote, build: Build, *arguments: str, **changes: str) -> Iterator[Steps]:
    program = remote.start(build("remoting/pinned_steps"), *arguments, **changes)
    try:
        yield Steps(program)
    finally:
        program.kill()
        program.communicate()


@pytest.mark.parametrize("step", STEPS)
def test_both_have_it_while_it_is_allocated(remote: Remote, build: Build, step: str) -> None:
    with stepping(remote, build, FARBUS_TRANSPORT="shm") as steps:
        steps.go_to(step)
        (server,) = remote.supervisor.pids
        assert shared(steps.program.pid) == shared(server) == STEPS[step]
        assert descriptors(steps.program.pid) == descriptors(server) == 0


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_program_leaves_nothing(remote: Remote, build: Build, step: str) -> None:
    with stepping(remote, build, FARBUS_TRANSPORT="shm") as steps:
        steps.go_to(step)
        (server,) = remote.supervisor.pids
        steps.program.kill()
        steps.program.communicate()
        wait_until(lambda: not alive(server), "the server has ended")
    assert not [name for name in os.listdir("/dev/shm") if "pinned" in name]


def test_a_killed_server_leaves_the_program_its_memory(remote: Remote, build: Build) -> None:
    with stepping(remote, build, FARBUS_TRANSPORT="shm") as steps:
        steps.go_to("allocated")
        (server,) = remote.supervisor.pids
        os.kill(server, 9)
        out, err = steps.program.communicate("\n\n\n", timeout=PATIENCE_S)
        assert steps.program.returncode == 1, out + err
        assert "cudaErrorDevicesUnavailable" in out


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_elsewhere_it_is_the_program_s_alone(remote: Remote, build: Build, transport: str) -> None:
    with stepping(remote, build, FARBUS_TRANSPORT=transport) as steps:
        steps.go_to("allocated")
        (server,) = remote.supervisor.pids
        assert shared(steps.program.pid) == shared(server) == 0


def test_small_memory_is_the_program_s_alone(remote: Remote, build: Build) -> None:
    with stepping(remote, build, "60", FARBUS_TRANSPORT="shm") as steps:
        steps.go_to("allocated")
        assert shared(steps.program.pid) == 0


def test_beyond_the_limit_of_files_it_is_the_program_s_alone(remote: Remote, build: Build) -> None:
    """The ring fits 4 MiB, the 8 MiB of pinned memory do not; the kernel would end the program with SIGXFSZ."""
    command = f"ulimit -f 4096; exec {build('remoting/pinned_steps')} 8192"
    program = remote.start("bash", "-c", command, FARBUS_TRANSPORT="shm")
    try:
        Steps(program).go_to("copying")
        assert shared(program.pid) == 0
    finally:
        program.kill()
        program.communicate()
