"""The driver and the compiler of the tests beside it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs.manifest import nvcc
from tests.remoting.harness import BUILD

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def libcuda() -> Path:
    """NVIDIA's driver where FARBUS_TEST_LIBCUDA names it, or the software GPU's."""
    if named := os.environ.get("FARBUS_TEST_LIBCUDA"):
        return Path(named)
    built = BUILD / "softgpu" / "libcuda.so.1"
    if not built.exists():
        pytest.skip("the software GPU is not built: run make build")
    return built


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile a CUDA program of this directory, by its name and nvcc's flags, into an executable."""
    compiler, _ = nvcc()

    def compile_program(name: str, *flags: str) -> Path:
        program = tmp_path_factory.mktemp(name) / name
        command = [compiler, *flags, "-o", program, HERE / f"{name}.cu"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.fail(f"nvcc can't compile {name}.cu:\n{done.stdout}{done.stderr}", pytrace=False)
        return program

    return compile_program
