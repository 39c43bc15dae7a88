"""What make asan and make tsan test is what they mean to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remoting.harness import ROOT, SANITIZED, SANITIZER, Remote

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


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(SANITIZED), reason="runs the others of this file")
@pytest.mark.parametrize(("target", "tests"), [("asan-remoting", "REMOTING_TESTS"), ("tsan", "TSAN_TESTS")])
def test_few_programs_with(target: str, tests: str) -> None:
    """Build with sanitizers and run this file's other tests; all of remoting's run by make asan and make tsan."""
    if any(shutil.which(tool) is None for tool in ("make", "cc", "nvcc")):
        pytest.skip("make, a C compiler and nvcc are not installed")
    done = subprocess.run(
        [
            "make",
            "-C",
            ROOT / "native",
            target,
            f"PYTHON={sys.executable}",
            f"{tests}=tests/remoting/test_sanitized.py",
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
