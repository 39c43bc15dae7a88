"""Random calls of the whole driver API, with what is right and what is not: on a driver itself and through the shim."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remoting.harness import PROGRAM_TIMEOUT_S, ROOT, Remote
from tests.remoting.random_calls.compare import difference, natively, remotely
from tests.softgpu import driver_programs
from tests.softgpu.document import missing_names

#: First and behind the last; others and more by hand: RANDOM_CALLS=100:200.
FIRST, LAST = (int(seed) for seed in os.environ.get("RANDOM_CALLS", "1000:1006").split(":"))
STEPS = 180
OPTIONS = "count=2,mem=1GiB"


@pytest.fixture(scope="session")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not driver_programs.COMPILER:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("keeper") / "keeper.so"
    source = Path(__file__).parent / "random_calls" / "keeper.c"
    subprocess.run([driver_programs.COMPILER, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def served(library: Path) -> list[str]:
    """What a software GPU exports and does."""
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    exported = [line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()]
    return sorted(set(exported) - set(missing_names()))


@pytest.mark.skipif("FARBUS_TEST_LIBCUDA" in os.environ, reason="wrong handles end NVIDIA's driver")
@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_a_driver_and_the_shim_say_the_same(
    lease: Callable[..., Remote], libcuda: Path, keeper: Path, tmp_path: Path, seed: int
) -> None:
    (tmp_path / "functions").write_text(" ".join(served(libcuda)))
    native = natively(seed, STEPS, tmp_path, keeper, OPTIONS)
    assert len(native.lines) > 20, native.error
    for transport in ("shm", "unix", "tcp"):
        remote = lease(FARBUS_SOFTGPU=OPTIONS, FARBUS_SOFTGPU_NODE=str(tmp_path))
        found = difference(native, remotely(seed, STEPS, tmp_path, remote, transport))
        assert not found, f"{transport}: {found}"


GRAPHS = 20
TRANSPORTS = ("shm", "unix", "tcp")


def graphs(seed: int) -> list[str]:
    return [sys.executable, "-m", "tests.remoting.random_calls.graphs", str(seed), str(GRAPHS)]


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_random_graphs(remote: Remote, seed: int) -> None:
    transport = TRANSPORTS[seed % len(TRANSPORTS)]
    done = remote.run(*graphs(seed), FARBUS_TRANSPORT=transport, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 1))
def test_random_graphs_on_the_software_gpu_itself(tmp_path: Path, seed: int) -> None:
    environment = driver_programs.environment(str(tmp_path), OPTIONS, LD_BIND_NOW="", PYTHONPATH=str(ROOT))
    done = subprocess.run(
        graphs(seed), env=environment, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
