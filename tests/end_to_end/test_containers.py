"""A program in a container, which knows nothing of Farbus, uses a remote GPU by CDI: with podman, and with Docker."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from farbus.remoting import paths
from tests.end_to_end.conftest import COMMAND_LIMIT_S, PROGRAMS, Cluster
from tests.end_to_end.engines import SPECIFICATIONS, Engine, docker, podman

LIBRARIES = "/libraries"


def bare(root: Path) -> Path:
    """Make the directories that an engine wants of an image."""
    for name in ("proc", "sys", "dev", "run", "etc", "tmp"):
        (root / name).mkdir(parents=True)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, compiled: Callable[..., Path]) -> Path:
    """A container's whole file system: a CUDA program and the system's libraries that it and the shim need.

    They lie where LD_LIBRARY_PATH alone leads, as in many an image.
    """
    root = bare(tmp_path_factory.mktemp("container") / "root")
    shutil.copy2(compiled("cluster/stay.cu"), root / "program")
    needs = subprocess.run(
        ["ldd", root / "program", paths.shim_library()], capture_output=True, text=True, check=True
    ).stdout
    (root / LIBRARIES[1:]).mkdir()
    for library in set(re.findall(r"=> (/\S+) \(0x", needs)):
        shutil.copy(library, root / LIBRARIES[1:])
    for loader in set(re.findall(r"^\s*(/\S+) \(0x", needs, re.MULTILINE)):
        (root / loader[1:]).parent.mkdir(parents=True)
        shutil.copy(loader, root / loader[1:])
    return root


@pytest.fixture(scope="module")
def musl_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A container's whole file system: a program that looks for a driver, and musl, as in an image of Alpine."""
    if shutil.which("musl-gcc") is None:
        pytest.skip("needs musl-gcc: make check-containers installs it")
    root = bare(tmp_path_factory.mktemp("musl") / "root")
    subprocess.run(["musl-gcc", "-o", root / "program", PROGRAMS / "finds_driver.c"], check=True)
    loader = Path(f"/lib/ld-musl-{platform.machine()}.so.1")
    (root / "lib").mkdir()
    shutil.copy(loader, root / "lib")
    return root


@pytest.fixture(scope="module", params=[podman, docker])
def musl(request: pytest.FixtureRequest, musl_root: Path) -> Iterator[Engine]:
    """A container engine that works here, with an image that has musl."""
    with request.param(musl_root) as engine:
        yield engine


@pytest.fixture(scope="module", params=[podman, docker])
def engine(request: pytest.FixtureRequest, root: Path) -> Iterator[Engine]:
    """A container engine that works here."""
    with request.param(root, "--env", f"LD_LIBRARY_PATH={LIBRARIES}") as engine:
        yield engine


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("up"))
    cluster.runtime.chmod(0o700)
    up = cluster.run("up", "--detach", "--nodes", "alpha:1,beta:0", "--cdi", SPECIFICATIONS)
    assert up.returncode == 0, up.stderr
    try:
        yield cluster
    finally:
        down = cluster.run("down")
        assert down.returncode == 0, down.stderr


@pytest.fixture
def name(engine: Engine) -> Iterator[str]:
    """How a container may be called that is not removed when it ends."""
    yield "stays"
    engine.ask("rm", "--force", "stays")


def asking(engine: Engine, *options: str, command: str, network: str = "host") -> tuple[str, ...]:
    """Return the command that is a container with the remote GPUs of its task, as docs/install.md has it."""
    # The engine itself has no use for the shim, and the container gets it by the specification.
    start = engine.run('--device "$FARBUS_CDI_DEVICE"', *options, network=network)
    return ("sh", "-c", f"echo engine $$; unset LD_PRELOAD LD_LIBRARY_PATH; exec {start} {command}")


def read_until(stream: IO[str], line: str) -> list[str]:
    """Read lines up to one."""
    read = []
    for told in stream:
        read.append(told)
        if told == line:
            return read
    raise AssertionError(f"no {line!r} in {read}")


def nothing_is_held(cluster: Cluster) -> bool:
    """Say whether neither a lease nor what engines were told of one is there, nor a socket for its containers."""
    sockets = cluster.runtime / "farbus/up/state/sockets"
    return cluster.ask("leases") == [] and not [*SPECIFICATIONS.glob("farbus.beta.*"), *sockets.iterdir()]


@pytest.mark.parametrize("network", ["host", "none"])
def test_a_container_finds_the_gpu_that_its_engine_is_asked_for(engine: Engine, cluster: Cluster, network: str) -> None:
    """Without a network it has one of its own all the same, in which the supervisor is found by its file alone."""
    command = asking(engine, "--rm", "--env FARBUS_TRANSPORT=shm", command="/program /dev/null", network=network)
    done = cluster.run("run", "--quiet", "--", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "using 1 device(s)\nright throughout\n" in done.stdout
    assert nothing_is_held(cluster)


def test_a_program_of_musl_runs_and_finds_no_gpu(musl: Engine, cluster: Cluster) -> None:
    done = cluster.run("run", "--quiet", "--", *asking(musl, "--rm", command="/program"))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.endswith("\nError loading shared library libcuda.so.1: No such file or directory\n")


def test_a_container_whose_client_is_killed_loses_its_gpu(engine: Engine, cluster: Cluster, name: str) -> None:
    running = cluster.start("run", "--quiet", "--", *asking(engine, f"--name {name}", command="/program /never"))
    assert running.stdout
    told = "".join(read_until(running.stdout, "using 1 device(s)\n"))
    (client,) = re.findall(r"^engine (\d+)$", told, re.MULTILINE)
    os.kill(int(client), signal.SIGKILL)
    running.communicate(timeout=COMMAND_LIMIT_S)
    assert running.returncode == 128 + signal.SIGKILL
    assert nothing_is_held(cluster)
    # It is its engine's, and has met the error that it would meet on a GPU that is lost.
    assert engine.ask("wait", name).stdout == "1\n"
    logs = engine.ask("logs", name)
    assert "CUDA-capable device(s) is/are busy or unavailable" in logs.stdout
    assert "its lease has ended" in logs.stderr
    again = engine.ask("start", "--attach", name)
    assert again.returncode != 0
    assert "unresolvable CDI devices farbus.io/gpu=" in again.stderr


def test_a_job_that_is_cancelled_ends_its_container(engine: Engine, cluster: Cluster, name: str) -> None:
    if trouble := engine.trouble("--init"):
        pytest.skip(f"needs an init for containers: {trouble}")
    command = asking(engine, "--rm", "--init", f"--name {name}", command="/program /never")
    job = cluster.run("submit", "--gpus", "1", "--node", "beta", "--", *command).stdout.strip()
    with cluster.start("logs", "--follow", job) as following:
        assert following.stdout
        read_until(following.stdout, "using 1 device(s)\n")
        assert cluster.run("cancel", job).returncode == 0
        following.communicate(timeout=COMMAND_LIMIT_S)
    (status,) = (status for status in cluster.ask("jobs", "--all") if status["job"]["id"] == job)
    assert status["state"] == "cancelled"
    assert [task["exit_code"] for task in status["tasks"]] == [128 + signal.SIGTERM], status
    assert name not in engine.ask("ps", "--all").stdout
    assert nothing_is_held(cluster)
