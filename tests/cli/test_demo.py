"""The guided tour from beginning to end, and programs with GPUs while a scheduler or a farbus up is killed.

What killing each other part does is in tests/end_to_end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from farbus.cli.diagnosis import _native_parts
from farbus.cli.embedded import SHARED_MEMORY
from farbus.cli.findings import Verdict
from farbus.cli.toolchain import find_toolchain
from farbus.errors import NotFound
from tests.cli.conftest import ROOT, Farbus, clean_environment

try:
    TOOLCHAIN = find_toolchain()
except NotFound:
    TOOLCHAIN = None

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(TOOLCHAIN is None, reason="no nvcc"),
    pytest.mark.skipif(any(f.verdict is Verdict.BROKEN for f in _native_parts()), reason="native parts are not built"),
]

DEMO = ROOT / "tests" / "programs" / "demo"

STEPS = "1000000"
"""More than any test waits for."""


def test_the_tour_ends_well_and_leaves_nothing(farbus: Farbus, tmp_path: Path) -> None:
    done = farbus("demo")
    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout.count("CORRECT: all") == 2
    assert "no process, no socket, no shared memory, no file is left" in done.stdout
    assert os.listdir(tmp_path) == []


@pytest.fixture(scope="module")
def saxpy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The saxpy program, compiled."""
    program = tmp_path_factory.mktemp("programs") / "saxpy"
    assert TOOLCHAIN is not None
    TOOLCHAIN.compile(DEMO / "saxpy.cu", program)
    return str(program)


@pytest.fixture(scope="module")
def heat(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The heat program, compiled."""
    program = tmp_path_factory.mktemp("programs") / "heat"
    assert TOOLCHAIN is not None
    TOOLCHAIN.compile(DEMO / "heat.cu", program)
    return str(program)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The runtime directory of a cluster: node ``far`` with one software GPU, ``near`` without."""
    directory = tmp_path_factory.mktemp("up")

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "farbus.cli", *arguments],
            env=clean_environment(directory), cwd=directory, capture_output=True, text=True, check=False,
        )  # fmt: skip

    started = command("up", "--detach", "--nodes", "far:1,near:0")
    assert started.returncode == 0, started.stderr
    yield directory
    mine = boards(command("devices", "-o", "json"))
    assert command("down").returncode == 0
    assert not [board for board in mine if board.exists()]
    assert os.listdir(directory) == []


@pytest.fixture
def ask(farbus: Farbus, runtime: Path) -> Farbus:
    """Run a command that finds the cluster."""

    def run(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
        return farbus(*arguments, environment={"XDG_RUNTIME_DIR": str(runtime)}, **options)

    return run


def running(runtime: Path, matches: Callable[[list[str]], bool]) -> psutil.Process:
    """The process of this cluster whose command line matches."""
    up = psutil.Process(json.loads((runtime / "farbus" / "up.json").read_text())["pid"])
    for process in up.children(recursive=True):
        if matches(process.cmdline()):
            return process
    raise AssertionError("no such process")


def daemon(name: str) -> Callable[[list[str]], bool]:
    return lambda command: bool(command) and command[-1].endswith(f"{name}/config.json")


def test_a_program_goes_on_while_the_scheduler_is_started_again(runtime: Path, saxpy: str, ask: Farbus) -> None:
    script = f"{saxpy} && read line && {saxpy}"
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "farbus.cli", "run", "--gpus", "1", "--", "sh", "-c", script],
        env=clean_environment(runtime), cwd=runtime, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        while "CORRECT" not in process.stdout.readline():
            assert process.poll() is None
        running(runtime, daemon("scheduler")).send_signal(signal.SIGKILL)
        for _ in range(200):
            nodes = ask("nodes", "-o", "json")
            if nodes.returncode == 0 and all(node["state"] == "ready" for node in json.loads(nodes.stdout)):
                break
        output, errors = process.communicate("\n", timeout=60)
    assert "CORRECT: all" in output, errors
    assert process.returncode == 0


def boards(devices: subprocess.CompletedProcess[str]) -> list[Path]:
    """The shared memory of the software GPUs in a listing."""
    return [SHARED_MEMORY / f"farbus-softgpu-{d['device']['id'][4:]}" for d in json.loads(devices.stdout)]


def test_a_killed_farbus_up_ends_programs_and_the_next_one_removes_the_rest(
    farbus: Farbus, heat: str, tmp_path: Path
) -> None:
    up = ("up", "--detach", "--quiet", "--nodes", "distant:1,here:0")
    assert farbus(*up).returncode == 0
    mine = boards(farbus("devices", "-o", "json"))
    job_id = farbus("submit", "--gpus", "1", "--", heat, STEPS).stdout.strip()
    process = psutil.Process(json.loads((tmp_path / "farbus" / "up.json").read_text())["pid"])
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "farbus.cli", "logs", "-f", job_id],
        env=clean_environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as logs:  # fmt: skip
        assert logs.stdout is not None
        assert logs.stdout.readline() == "running on Farbus Software GPU\n"
        family = process.children(recursive=True)
        process.kill()
        # Who follows waits for a scheduler that is gone.
        logs.kill()
    assert psutil.wait_procs(family, timeout=60)[1] == []
    assert farbus(*up).returncode == 0
    assert farbus("jobs", "--all", "-o", "json").stdout == "[]\n"
    assert farbus("down").returncode == 0
    assert not [board for board in mine if board.exists()]
    assert os.listdir(tmp_path) == []
