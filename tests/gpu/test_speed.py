"""speed.py works: every program runs each way and computes the same; how fast is not asked."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.remoting.harness import BUILD, ROOT

#: Copies of 4 KiB and a few kernels.
DIVISOR = "4096"


@pytest.fixture(scope="session")
def libcuda() -> Path:
    library = BUILD / "softgpu" / "libcuda.so.1"
    if not library.exists():
        pytest.skip("the software GPU is not built: run make build")
    return library


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not in PATH")
    program = tmp_path_factory.mktemp("speed") / "kernels"
    subprocess.run([nvcc, "-O2", "-o", program, ROOT / "tests" / "gpu" / "kernels.cu"], check=True, capture_output=True)
    return program


def speed(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.gpu.speed", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_each_way_gives_the_same(libcuda: Path, kernels: Path, tmp_path: Path) -> None:
    output = tmp_path / "speed.json"
    ways = ("native", "shm", "tcp")
    options = [option for way in ways for option in ("--way", way)]
    sizes = ("--divisor", DIVISOR, "--rounds", "1")
    done = speed("--libcuda", libcuda, "--kernels", kernels, *sizes, *options, "-o", output)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(output.read_text())
    assert "vectorAdd, kernel" in told
    assert all(one["agrees"] and set(one["seconds"]) == set(ways) for one in told.values())


def test_a_program_that_fails_is_told(libcuda: Path, tmp_path: Path) -> None:
    broken = tmp_path / "kernels"
    broken.write_text("#!/bin/sh\necho no GPU here >&2\nexit 3\n")
    broken.chmod(0o755)
    done = speed("--libcuda", libcuda, "--kernels", broken, "--rounds", "1", "--way", "native")
    assert done.returncode == 1
    assert "status 3: no GPU here" in done.stdout
