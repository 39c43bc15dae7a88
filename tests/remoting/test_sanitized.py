"""What make asan and make tsan test is what they mean to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remoting.harness import SANITIZED, SANITIZER, Remote

Build = Callable[[str], Path]

sanitized = pytest.mark.skipif(not SANITIZED, reason="make asan and make tsan run it")


def mapped(pid: int) -> set[str]:
    """Files that a process has mapped."""
    return {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}


@sanitized
def test_program_and_server_run_the_sanitized_build(remote: Remote, build: Build) -> None:
    runtimes = {str(Path(runtime).resolve()) for runtime in SANITIZER.split(":")}
    with remote.start(build("remoting/wait_forever")) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "waiting\n"
        (server,) = remote.supervisor.pids
        try:
            assert {f"{SANITIZED}/shim/libcuda.so.1", *runtimes} <= mapped(program.pid)
            assert {f"{SANITIZED}/ffi/farbus/remoting/_server.abi3.so", *runtimes} <= mapped(server)
        finally:
            program.kill()


@sanitized
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("name", ["threads", "behind_host_function"])
def test_program(remote: Remote, build: Build, name: str, transport: str) -> None:
    done = remote.run(build(f"remoting/{name}"), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
