"""Unmodified PyTorch, in an environment of its own, through shim, server and software GPU."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.environment import python_of
from tests.remoting.harness import BUILD, SHIM, Remote, remote_session

HERE = Path(__file__).parent

#: Newer than every GPU that the wheels' libraries know, so that they take their PTX (docs/pytorch.md).
SOFTWARE_GPU = "cc=13.0,mem=8GiB"


@dataclass(kw_only=True)
class PyTorch:
    """A Python with PyTorch whose GPU is behind the session of `remote`, or this machine's own."""

    python: Path
    caches: Path
    remote: Remote | None

    def environment(self) -> dict[str, str]:
        if self.remote is None:
            return dict(os.environ)
        compilers = BUILD / "softgpu" / "compilers"
        changes = {
            "TRITON_CACHE_DIR": str(self.caches / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.caches / "inductor"),
            # In the process itself, where override_arch.py is.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        if "FARBUS_TEST_LIBCUDA" in os.environ:
            return self.remote.environment(**changes)
        (nvrtc,) = self.python.parents[1].glob("lib/python*/site-packages/nvidia/*/lib/libnvrtc.so.*[0-9]")
        changes |= {
            "TRITON_PTXAS_PATH": str(compilers / "ptxas"),
            "TRITON_PTXAS_BLACKWELL_PATH": str(compilers / "ptxas"),
            "TRITON_OVERRIDE_ARCH": "sm120",
            "FARBUS_NVRTC": str(nvrtc),
            "LD_PRELOAD": f"{SHIM / 'libcuda.so.1'}:{compilers / nvrtc.name}",
        }
        return self.remote.environment(**changes)

    def run(self, *arguments: str | Path, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, "-W", "ignore", *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def operations(self, mode: str, folder: Path, *, timeout_s: float) -> dict[str, Any]:
        """What operations.py reports for one mode."""
        report = folder / f"{mode}.json"
        done = self.run(HERE / "operations.py", "--mode", mode, "--quiet", "-o", report, timeout_s=timeout_s)
        assert done.returncode in {0, 1}, done.stderr[-4000:]
        print(done.stdout, end="")
        modes: dict[str, Any] = json.loads(report.read_text())["modes"]
        mode_report: dict[str, Any] = modes[mode]
        return mode_report


@pytest.fixture(scope="session")
def python() -> Path:
    directory = os.environ.get("FARBUS_PYTORCH")
    found = python_of(Path(directory).absolute()) if directory else None
    if found is None:
        pytest.skip("FARBUS_PYTORCH names no environment with PyTorch: make check-pytorch makes one (5.5 GB)")
    return found


@pytest.fixture(scope="session")
def pytorch(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PyTorch]:
    """PyTorch with a remote GPU: a software GPU, or what the driver that FARBUS_TEST_LIBCUDA names has."""
    named = os.environ.get("FARBUS_TEST_LIBCUDA")
    libcuda = Path(named) if named else BUILD / "softgpu" / "libcuda.so.1"
    if not libcuda.exists() or not (SHIM / "libcuda.so.1").exists():
        pytest.skip("shim or software GPU are not built: run make build")
    folder = tmp_path_factory.mktemp("pytorch")
    environment = dict(os.environ, FARBUS_SOFTGPU=SOFTWARE_GPU, FARBUS_SOFTGPU_NODE=f"pytorch{os.getpid()}")
    with remote_session(libcuda=libcuda, folder=folder, environment=environment) as remote:
        yield PyTorch(python=python, caches=folder, remote=remote)


@pytest.fixture(scope="session")
def native(python: Path, tmp_path_factory: pytest.TempPathFactory) -> PyTorch:
    """PyTorch with this machine's own GPU."""
    return PyTorch(python=python, caches=tmp_path_factory.mktemp("native"), remote=None)
