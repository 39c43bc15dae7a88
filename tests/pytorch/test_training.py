"""What training programs do beside operations (training.py), over each transport and on the software GPU itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pytorch.conftest import HERE, SOFTWARE_GPU, PyTorch
from tests.remoting.harness import BUILD

pytestmark = [pytest.mark.slow, pytest.mark.pytorch]

TRAINING = HERE / "training.py"
CASES = ("loader-fork", "loader-spawn", "shared", "fork", "gloo", "threads", "memory")
ALLOCATORS = ("expandable_segments:True", "backend:cudaMallocAsync", "pinned_use_cuda_host_register:True")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("case", CASES)
def test_case(pytorch: PyTorch, monkeypatch: pytest.MonkeyPatch, case: str, transport: str) -> None:
    monkeypatch.setenv("FARBUS_TRANSPORT", transport)
    done = pytorch.run(TRAINING, case)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_allocator(pytorch: PyTorch, monkeypatch: pytest.MonkeyPatch, allocator: str) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", allocator)
    for case in ("memory", "threads"):
        done = pytorch.run(TRAINING, case)
        assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_tensors_of_expandable_segments_are_shared_by_descriptors(
    pytorch: PyTorch, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("FARBUS_TRANSPORT", transport)
    done = pytorch.run(TRAINING, "shared")
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


@pytest.mark.skipif("FARBUS_TEST_LIBCUDA" in os.environ, reason="is about the software GPU")
@pytest.mark.parametrize("case", CASES)
def test_case_on_the_software_gpu_itself(
    native: PyTorch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(BUILD / "softgpu"))
    monkeypatch.setenv("FARBUS_SOFTGPU", SOFTWARE_GPU)
    monkeypatch.setenv("FARBUS_SOFTGPU_NODE", str(tmp_path))
    done = native.run(TRAINING, case)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
