"""The software GPU's libnvidia-ml.so.1, through pynvml in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farbus.remoting.codegen.management import exported
from tests.softgpu.driver_programs import TIMEOUT_S, build, environment, require_library

pytest.importorskip("pynvml")

OPTIONS = "count=2,cc=8.6,mem=64MiB"
P2P_OK, P2P_NOT_SUPPORTED = 0, 5  # of reading, and of NVLink
LOOK = """
import json, pynvml as n
n.nvmlInit()
devices = []
for index in range(n.nvmlDeviceGetCount()):
    handle = n.nvmlDeviceGetHandleByIndex(index)
    uuid = n.nvmlDeviceGetUUID(handle)
    pci = n.nvmlDeviceGetPciInfo(handle)
    try:
        power = n.nvmlDeviceGetPowerUsage(handle)
    except n.NVMLError_NotSupported:
        power = None
    try:
        n.nvmlDeviceGetNvLinkRemoteDeviceType(handle, 0)
        linked = True
    except n.NVMLError_NotSupported:
        linked = False
    devices.append({
        "uuid": uuid,
        "index_by_uuid": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(uuid)),
        "index_by_cuda_uuid": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(uuid.removeprefix("GPU-"))),
        "index_by_pci": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(pci.busId)),
        "name": n.nvmlDeviceGetName(handle),
        "used": n.nvmlDeviceGetMemoryInfo(handle).used,
        "total": n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2).total,
        "capability": n.nvmlDeviceGetCudaComputeCapability(handle),
        "architecture": n.nvmlDeviceGetArchitecture(handle) == n.NVML_DEVICE_ARCH_AMPERE,
        "processes": [[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(handle)],
        "utilization": n.nvmlDeviceGetUtilizationRates(handle).gpu,
        "power": power,
        "linked": linked,
        "peers": [n.nvmlDeviceGetP2PStatus(handle, n.nvmlDeviceGetHandleByIndex(other), caps)
                  for other in range(n.nvmlDeviceGetCount())
                  for caps in (0, 2)],
    })
print(json.dumps({"cuda": n.nvmlSystemGetCudaDriverVersion(), "driver": n.nvmlSystemGetDriverVersion(),
                  "devices": devices}))
n.nvmlShutdown()
"""


def look(node: str) -> dict[str, Any]:
    require_library("libnvidia-ml.so.1")
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        env=environment(node, OPTIONS),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def test_idle_devices(tmp_path: Path) -> None:
    seen = look(str(tmp_path))
    assert seen["cuda"] == 13000
    assert all(part.isdigit() for part in seen["driver"].split("."))  # XLA and packaging read it as a version
    for index, device in enumerate(seen["devices"]):
        assert device["index_by_uuid"] == device["index_by_cuda_uuid"] == device["index_by_pci"] == index
        assert device["capability"] == [8, 6]
        assert device["architecture"]
        assert (device["used"], device["total"]) == (0, 64 << 20)
        assert device["processes"] == []
        assert device["utilization"] == 0
        assert device["power"] is None
        assert not device["linked"]
        assert device["peers"] == [P2P_OK, P2P_NOT_SUPPORTED] * 2


def test_same_identity_as_the_driver(tmp_path: Path) -> None:
    program = build("driver_list_devices", tmp_path)
    listed = subprocess.run(
        [str(program)],
        env=environment(str(tmp_path), OPTIONS),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert [device["uuid"] for device in look(str(tmp_path))["devices"]] == listed.stdout.split()


def test_processes_come_and_go(tmp_path: Path) -> None:
    program = build("driver_hold_memory", tmp_path)
    process = subprocess.Popen(
        [str(program), "8"],
        env=environment(str(tmp_path), OPTIONS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        busy, idle = look(str(tmp_path))["devices"]
        assert busy["processes"] == [[process.pid, 8 << 20]]
        assert busy["used"] == 8 << 20
        assert idle["processes"] == []
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
    after = look(str(tmp_path))["devices"][0]
    assert after["processes"] == []
    assert after["used"] == 0


def test_every_function_is_there_by_name(tmp_path: Path) -> None:
    library = require_library("libnvidia-ml.so.1") / "libnvidia-ml.so.1"
    program = f"""
import ctypes
import pynvml as n
library = ctypes.CDLL({str(library)!r})
print([name for name in {exported()!r} if not hasattr(library, name)])
print(library.nvmlDeviceGetTemperatureThreshold(None, 0, None) == n.NVML_ERROR_UNINITIALIZED)
n.nvmlInit()
device = n.nvmlDeviceGetHandleByIndex(0)
for ask in n.nvmlDeviceGetTemperatureThreshold, n.nvmlDeviceGetProcessUtilization:
    try:
        ask(device, 0)
    except n.NVMLError_NotSupported:
        print("not supported")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(str(tmp_path), OPTIONS),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stdout.splitlines() == ["[]", "True", "not supported", "not supported"], done.stderr
