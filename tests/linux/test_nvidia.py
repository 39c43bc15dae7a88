"""What is asked of NVIDIA's driver before a GPU goes, by a binding that does what NVML's documentation says."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import NoReturn

import pytest

from farbus.errors import Unavailable
from farbus.linux import nvidia

GPU = "0000:17:00.0"
BUS_ID = b"00000000:17:00.0"


class NVMLError(Exception):
    """NVML's own."""


@dataclass
class PciInfo:
    """As far as it is filled in."""

    domain: int = 0
    bus: int = 0
    device: int = 0
    busId: bytes = b""


@dataclass
class Binding:
    """One GPU, seen by a process that comes now: while it drains NVML gives no handle of it, nor counts it."""

    draining: bool = False
    persistent: bool = False
    driver: bool = True
    NVML_INIT_FLAG_NO_GPUS: int = 1
    NVMLError: type[Exception] = NVMLError
    nvmlPciInfo_t: type[PciInfo] = PciInfo

    def nvmlInitWithFlags(self, flags: int) -> None:
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        if self.draining and not flags & self.NVML_INIT_FLAG_NO_GPUS:
            raise NVMLError("Not Found")

    def nvmlInit(self) -> None:
        self.nvmlInitWithFlags(0)

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus_id: bytes) -> str:
        if self.draining or bus_id != BUS_ID:
            raise NVMLError("Not Found")
        return "handle"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return "GPU-1"

    def nvmlDeviceGetPersistenceMode(self, handle: str) -> int:
        return int(self.persistent)

    def nvmlDeviceSetPersistenceMode(self, handle: str, mode: int) -> None:
        self.persistent = bool(mode)

    def nvmlDeviceQueryDrainState(self, info: PciInfo) -> int:
        assert info.busId == BUS_ID
        return int(self.draining)

    def nvmlDeviceModifyDrainState(self, info: PciInfo, state: int) -> None:
        if state and self.persistent:
            raise NVMLError("In use by another client")
        self.draining = bool(state)


@pytest.fixture
def binding(monkeypatch: pytest.MonkeyPatch) -> Binding:
    found = Binding(persistent=True)
    monkeypatch.setitem(sys.modules, "pynvml", found)
    return found


def test_a_gpu_is_known_by_its_driver(binding: Binding) -> None:
    assert nvidia.read_gpu(GPU) == {"uuid": "GPU-1", "persistent": True}
    binding.driver = False
    assert nvidia.read_gpu(GPU) == {}


def test_a_gpu_that_drains_is_seen_to_drain_and_can_be_let_go_of_it(binding: Binding) -> None:
    nvidia.set_persistent(GPU, False)
    nvidia.set_draining(GPU, True)
    assert nvidia.read_gpu(GPU) == {"draining": True}
    nvidia.set_draining(GPU, False)
    nvidia.set_persistent(GPU, True)
    assert nvidia.read_gpu(GPU) == {"uuid": "GPU-1", "persistent": True}


def test_where_the_driver_tells_of_no_draining_there_is_none(binding: Binding, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(info: PciInfo) -> NoReturn:
        raise NVMLError("Not Supported")

    monkeypatch.setattr(binding, "nvmlDeviceQueryDrainState", refuse)
    assert nvidia.read_gpu(GPU) == {"uuid": "GPU-1", "persistent": True}


def test_what_the_driver_refuses_is_told(binding: Binding) -> None:
    with pytest.raises(Unavailable, match=f"drain state of GPU {GPU}: In use by another client; it takes root"):
        nvidia.set_draining(GPU, True)
    binding.driver = False
    with pytest.raises(Unavailable, match=f"persistence mode of GPU {GPU}: Driver Not Loaded"):
        nvidia.set_persistent(GPU, False)
