"""The driver that computes nothing takes programs whose code a software GPU does not, and answers as a GPU would."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.model import build
from tests.gpu.ways import environments
from tests.remoting.harness import BUILD

#: Copies of 4 KiB and a few kernels.
DIVISOR = "4096"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("cc is not in PATH")
    if not (BUILD / "softgpu" / "libcuda.so.1").exists():
        pytest.skip("the software GPU is not built: run make build")
    return build(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("way", ["native", "shm", "tcp", "tcp-far"])
def test_a_program_with_machine_code_alone_runs_to_its_end(
    model: Path, compiled: Callable[..., Path], way: str
) -> None:
    program = compiled("kernels", "-O2", "-gencode", "arch=compute_90,code=sm_90")
    with environments(model, [way]) as made:
        done = subprocess.run(
            [program, DIVISOR], env=made[way], capture_output=True, text=True, timeout=120, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert "launch and wait" in {one["name"] for one in told}
    assert all(one["seconds"] for one in told if "at" not in one)
