"""A whole cluster on this machine: scheduler, agents, software GPUs, real CUDA programs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from farbus.cli.embedded import MARK
from farbus.cli.toolchain import find_toolchain
from farbus.errors import FarbusError
from farbus.linux.children import processes_naming

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAMS = ROOT / "tests" / "programs"
GPUS = 3
"""Software GPUs of the default cluster: two of alpha, one of beta."""

NODES = ("alpha", "beta", "gamma")

COMMAND_LIMIT_S = 120
LOOKS_LIMIT = 40
"""Most looks at a cluster that comes back; one takes about a second."""


class Cluster:
    """A running ``farbus up`` and the commands that speak to it."""

    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FARBUS_", "LD_"))}
        self.environment = {**kept, "XDG_RUNTIME_DIR": str(runtime), "PYTHONPATH": str(ROOT)}

    def arguments(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, "-P", "-m", "farbus.cli", *map(str, arguments)]

    def run(self, *arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run ``farbus ARGUMENTS...`` to its end."""
        return subprocess.run(
            self.arguments(*arguments),
            input=stdin,
            env=self.environment,
            cwd=self.runtime,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )

    def ask(self, *arguments: str | Path) -> Any:
        """Run a listing and return its JSON."""
        done = self.run(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start ``farbus ARGUMENTS...`` with its output to be read line by line."""
        return subprocess.Popen(
            self.arguments(*arguments),
            env=self.environment,
            cwd=self.runtime,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def socket(self, node: str) -> Path:
        """Return the path of a node's socket."""
        return self.runtime / "farbus" / "up" / "sockets" / f"{node}.sock"

    def wait_until_whole(self) -> None:
        """Wait until the scheduler and every agent answer again; each look is a process of its own, so none is idle."""
        told = ""
        for _ in range(LOOKS_LIMIT):
            looks = [self.run("nodes", "--socket", self.socket(node), "-o", "json") for node in NODES]
            told = "".join(look.stderr for look in looks)
            if all(look.returncode == 0 for look in looks):
                states = {status["node"]["name"]: status["state"] for status in json.loads(looks[0].stdout)}
                told = str(states)
                if states == dict.fromkeys(NODES, "ready"):
                    return
        raise AssertionError(f"not whole after {LOOKS_LIMIT} looks: {told}")

    def assert_all_devices_usable(self) -> None:
        """Run a job that needs every GPU of the cluster: it starts once all of them are free."""
        self.wait_until_whole()
        job = ["--count", str(GPUS), "--gpus", "1", "--cpus", "0.1", "--time-limit", "60s", "--", "true"]
        done = self.run("submit", "--wait", *job)
        assert done.returncode == 0, done.stderr
        assert self.ask("leases") == []

    def processes(self, *words: str) -> list[int]:
        """Return the processes of this cluster whose command line has all ``words``."""
        found = []
        # Not all are children of ``farbus up``: programs and remoting servers outlive their agents.
        for pid in processes_naming(f"{MARK}={self.runtime / 'farbus' / 'up' / 'state'}"):
            with contextlib.suppress(psutil.NoSuchProcess):
                command = " ".join(psutil.Process(pid).cmdline())
                if all(word in command for word in words):
                    found.append(pid)
        return found

    def kill(self, *words: str) -> None:
        """Kill -9 the processes of this cluster whose command line has all ``words``; there must be one."""
        found = self.processes(*words)
        assert found, f"no process with {words}"
        for pid in found:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile a CUDA program of tests/programs with nvcc's default flags; the same binary for all tests."""
    directory = tmp_path_factory.mktemp("compiled")
    try:
        toolchain = find_toolchain()
    except FarbusError as error:
        pytest.skip(f"needs nvcc: {error}")

    def compile_program(source: str, *flags: str) -> Path:
        binary = directory / "-".join([Path(source).stem, *(flag.strip("-") for flag in flags)])
        if not binary.exists():
            toolchain.compile(PROGRAMS / source, binary, flags)
        return binary

    return compile_program


@pytest.fixture
def tmp_path(short_path: Path) -> Path:
    """Below it lie the sockets of clusters."""
    return short_path


def described_if_running(process: psutil.Process) -> str:
    """What is known of a process; empty where it has ended, also if whoever inherited it has not reaped it yet."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            return f"{process.pid} {process.status()} {process.cmdline()}"
    return ""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One ``farbus up`` for all tests here; at its end nothing may be left."""
    cluster = Cluster(tmp_path_factory.mktemp("up"))
    cluster.runtime.chmod(0o700)
    up = cluster.run("up", "--detach")
    assert up.returncode == 0, up.stderr
    boards = [device["device"]["id"].removeprefix("GPU-") for device in cluster.ask("devices")]
    try:
        yield cluster
    finally:
        before = [psutil.Process(pid) for pid in cluster.processes()]
        down = cluster.run("down")
    assert down.returncode == 0, down.stderr
    assert [said for said in map(described_if_running, before) if said] == []
    assert [board for board in boards if Path(f"/dev/shm/farbus-softgpu-{board}").exists()] == []
    assert list((cluster.runtime / "farbus").glob("up/*")) == []


def lines(text: str) -> Sequence[str]:
    """Return the lines of a command's standard error that are not empty."""
    return [line for line in text.splitlines() if line.strip()]
