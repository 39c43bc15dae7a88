"""NCCL between two devices (collectives.py): by peers, and by this machine's memory where kernels have that, over
shared memory, over TCP, and on the software GPU itself."""

from __future__ import annotations

import os
import re
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
#: How ranks of two processes reach each other, in NCCL's own words (NCCL_DEBUG), and what it is told for that.
WAYS = {
    "P2P/CUMEM": {},
    "P2P/IPC": {"NCCL_CUMEM_ENABLE": "0"},
    "SHM/direct/direct": {"NCCL_P2P_DISABLE": "1"},
    "SHM without cuMemCreate": {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_ENABLE": "0"},
    "NET/Socket": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
}


@pytest.fixture(scope="module")
def two_devices(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PyTorch]:
    folder = tmp_path_factory.mktemp("nccl")
    environment = dict(os.environ, FARBUS_SOFTGPU=DEVICES, FARBUS_SOFTGPU_NODE=f"nccl{os.getpid()}")
    libcuda = BUILD / "softgpu" / "libcuda.so.1"
    with remote_session(libcuda=libcuda, folder=folder, environment=environment) as remote:
        yield PyTorch(python=python, caches=folder, remote=remote)


def assert_right(pytorch: PyTorch, folder: Path, monkeypatch: pytest.MonkeyPatch, case: str, way: str) -> None:
    """All ranks have what they should, and NCCL says that they went that way."""
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(folder / "nccl.%p"))
    done = pytorch.run(COLLECTIVES, case)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    said = "".join(path.read_text() for path in folder.glob("nccl.*"))
    ways = set(re.findall(r" via (\S+)", said))
    # In one process peers need no handles.
    assert ways == {"P2P/direct" if case == "one" and way.startswith("P2P") else way.partition(" ")[0]} or (
        way.startswith(("SHM", "NET")) and all(each.startswith(way[:3]) for each in ways)
    ), ways


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", ["processes", "one"])
def test_over_shared_memory(
    two_devices: PyTorch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str, way: str
) -> None:
    monkeypatch.setenv("FARBUS_TRANSPORT", "shm")
    for name, value in WAYS[way].items():
        monkeypatch.setenv(name, value)
    assert_right(two_devices, tmp_path, monkeypatch, case, way)


@pytest.mark.parametrize("way", ["P2P/CUMEM", "P2P/IPC"])
@pytest.mark.parametrize("case", ["processes", "one"])
def test_over_tcp_by_peers_where_pinned_memory_is_managed_memory(
    two_devices: PyTorch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str, way: str
) -> None:
    monkeypatch.setenv("FARBUS_TRANSPORT", "tcp")
    monkeypatch.setenv("FARBUS_MAPPED_MEMORY", "managed")
    for name, value in WAYS[way].items():
        monkeypatch.setenv(name, value)
    assert_right(two_devices, tmp_path, monkeypatch, case, way)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("case", ["symmetric", "multicast"])
def test_symmetric_memory_needs_no_nccl(
    two_devices: PyTorch, monkeypatch: pytest.MonkeyPatch, transport: str, case: str
) -> None:
    monkeypatch.setenv("FARBUS_TRANSPORT", transport)
    done = two_devices.run(COLLECTIVES, case)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_over_tcp_without_that_it_is_refused(two_devices: PyTorch, monkeypatch: pytest.MonkeyPatch) -> None:
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
