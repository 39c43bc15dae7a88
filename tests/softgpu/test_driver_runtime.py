"""Programs of the CUDA runtime, as nvcc makes them, directly on the software GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.softgpu.driver_programs import PROGRAMS, TIMEOUT_S, environment, require_library

BUILD_TIMEOUT_S = 180
CUDART = Path(__file__).parents[2] / "native" / "cudart" / "tables.c"


@pytest.fixture(scope="module")
def nvcc() -> str:
    found = shutil.which("nvcc")
    if not found:
        pytest.skip("no nvcc")
    if not CUDART.exists():
        pytest.skip("native/cudart is not there")
    require_library()
    return found


def build_and_run(nvcc: str, name: str, flags: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    program = folder / name
    subprocess.run(
        [nvcc, *flags, "-o", str(program), str(PROGRAMS / f"{name}.cu")], check=True, timeout=BUILD_TIMEOUT_S
    )
    settings = environment(str(folder), "cc=9.0")
    shared = Path(nvcc).resolve().parents[1] / "lib64"
    settings["LD_LIBRARY_PATH"] += f":{shared}:/usr/local/cuda/lib64"
    return subprocess.run([str(program)], env=settings, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.mark.parametrize(
    "flags",
    [[], ["-arch=sm_75"], ["-arch=sm_90", "-rdc=true"], ["-cudart", "shared"]],
    ids="".join,
)
def test_runtime_program(nvcc: str, flags: list[str], tmp_path: Path) -> None:
    done = build_and_run(nvcc, "runtime_features", flags, tmp_path)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stdout == "hello from thread 0\n"


@pytest.mark.parametrize(
    ("loading", "said"), [("", "0 2 7 209 7\n"), ("LAZY", "0 2 7 209 7\n"), ("EAGER", "209 0\n")], ids=str.lower
)
def test_code_for_other_devices_fails_where_it_is_used(nvcc: str, tmp_path: Path, loading: str, said: str) -> None:
    program, other = tmp_path / "lazy", tmp_path / "elsewhere.o"
    for command in (
        [nvcc, "-gencode", "arch=compute_75,code=sm_75", "-c", PROGRAMS / "runtime_elsewhere.cu", "-o", other],
        [nvcc, "-arch=sm_75", PROGRAMS / "runtime_lazy.cu", other, "-o", program],
    ):
        subprocess.run(command, check=True, timeout=BUILD_TIMEOUT_S)
    settings = environment(str(tmp_path), "cc=9.0,count=2", CUDA_MODULE_LOADING=loading)
    done = subprocess.run([program], env=settings, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout) == (0, said), done.stderr


@pytest.mark.parametrize("flags", [[], ["-rdc=true"]], ids="".join)
def test_graphs_of_the_runtime(nvcc: str, flags: list[str], tmp_path: Path) -> None:
    done = build_and_run(nvcc, "runtime_graphs", ["--default-stream", "per-thread", *flags], tmp_path)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stderr.count("launching a graph from a kernel is not implemented") == 1
