"""Commands as processes, against a cluster whose answers are known."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from farbus.cli import main

ROOT = Path(__file__).resolve().parent.parent.parent

Farbus = Callable[..., subprocess.CompletedProcess[str]]


def clean_environment(runtime: Path, **variables: str) -> dict[str, str]:
    """This process's environment without what would lead commands to another cluster."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FARBUS_", "LD_"))}
    return {**kept, "XDG_RUNTIME_DIR": str(runtime), "PYTHONPATH": str(ROOT), **variables}


@pytest.fixture
def tmp_path(short_path: Path) -> Path:
    """Below it lie the sockets of clusters."""
    return short_path


@pytest.fixture
def farbus(tmp_path: Path) -> Farbus:
    """Run ``farbus ARGUMENTS...`` and return how it ended; it finds no cluster unless it is told of one."""

    def run(
        *arguments: str, stdin: str = "", cwd: Path | None = None, environment: Mapping[str, str] = {}
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "farbus.cli", *arguments],
            input=stdin,
            cwd=cwd or tmp_path,
            env=clean_environment(tmp_path, **environment),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Farbus:
    """Run ``farbus ARGUMENTS...`` inside this process: for what prints and returns, and starts nothing."""
    for name in [name for name in os.environ if name.startswith("FARBUS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, environment: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code = main(arguments)
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, printed.out, printed.err)

    return run


class Cluster:
    """The rehearsed cluster as a process: its socket, and what it says."""

    def __init__(self, process: subprocess.Popen[str], socket: str) -> None:
        self.process = process
        self.socket = socket

    def line(self) -> str:
        """Wait for the next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A rehearsed cluster of this test's own."""
    socket = str(tmp_path / "agent.sock")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cli.rehearsed_cluster", socket],
        cwd=ROOT,
        env=clean_environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        cluster = Cluster(process, socket)
        assert cluster.line() == "ready"
        yield cluster
        process.terminate()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A rehearsed cluster for tests that only ask."""
    directory = tmp_path_factory.mktemp("cluster")
    socket = str(directory / "agent.sock")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cli.rehearsed_cluster", socket],
        cwd=ROOT,
        env=clean_environment(directory),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        cluster = Cluster(process, socket)
        assert cluster.line() == "ready"
        yield cluster
        process.terminate()
