"""NCCL between two devices (collectives.py): over shared memory, where kernels have this machine's memory, over TCP,
where they have not, and on the software GPU itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pytorch.conftest import HERE, SOFTWARE_GPU, PyTorch
from tests.remoting.harness import BUILD, remote_session

pytestmark = [
    pytest.mark.slow,
    pytest.mark.pytorch,
    pytest.mark.skipif("FARBUS_TEST_LIBCUDA" in os.environ, reason="wants two devices"),
]

COLLECTIVES = HERE / "collectives.py"
DEVICES = f"count=2,{SOFTWARE_GPU}"
#: How ranks reach each other.
WAYS = {"shared memory": {}, "registered memory": {"NCCL_CUMEM_ENABLE": "0"}, "sockets": {"NCCL_SHM_DISABLE": "1"}}


@pytest.fixture(scope="module")
def two_devices(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PyTorch]:
    folder = tmp_path_factory.mktemp("nccl")
    environment = dict(os.environ, FARBUS_SOFTGPU=DEVICES, FARBUS_SOFTGPU_NODE=f"nccl{os.getpid()}")
    libcuda = BUILD / "softgpu" / "libcuda.so.1"
    with remote_session(libcuda=libcuda, folder=folder, environment=environment) as remote:
        yield PyTorch(python=python, caches=folder, remote=remote)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", ["processes", "one"])
def test_over_shared_memory(two_devices: PyTorch, monkeypatch: pytest.MonkeyPatch, case: str, way: str) -> None:
    monkeypatch.setenv("FARBUS_TRANSPORT", "shm")
    for name, value in WAYS[way].items():
        monkeypatch.setenv(name, value)
    done = two_devices.run(COLLECTIVES, case)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_over_tcp_it_is_refused(two_devices: PyTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARBUS_TRANSPORT", "tcp")
    done = two_devices.run(COLLECTIVES, "one")
    assert done.returncode == 1
    assert "pinned memory is not mapped: " in done.stderr


@pytest.mark.parametrize("case", ["processes", "one"])
def test_on_the_software_gpu_itself(
    native: PyTorch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(BUILD / "softgpu"))
    monkeypatch.setenv("FARBUS_SOFTGPU", DEVICES)
    monkeypatch.setenv("FARBUS_SOFTGPU_NODE", str(tmp_path))
    done = native.run(COLLECTIVES, case)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
