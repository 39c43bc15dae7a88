"""Print as JSON all that pynvml tells of the GPUs it finds."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from typing import Any

import pynvml as n

#: What is asked of each device, with the arguments after the handle.
QUESTIONS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("nvmlDeviceGetName", ()),
    ("nvmlDeviceGetUUID", ()),
    ("nvmlDeviceGetIndex", ()),
    ("nvmlDeviceGetPciInfo", ()),
    ("nvmlDeviceGetCudaComputeCapability", ()),
    ("nvmlDeviceGetMemoryInfo", ()),
    ("nvmlDeviceGetMemoryInfo", (n.nvmlMemory_v2,)),
    ("nvmlDeviceGetUtilizationRates", ()),
    ("nvmlDeviceGetComputeMode", ()),
    ("nvmlDeviceGetComputeRunningProcesses", ()),
    ("nvmlDeviceGetComputeRunningProcesses_v2", ()),
    ("nvmlDeviceGetGraphicsRunningProcesses", ()),
    ("nvmlDeviceGetPowerUsage", ()),
    ("nvmlDeviceGetPowerManagementLimit", ()),
    ("nvmlDeviceGetEnforcedPowerLimit", ()),
    ("nvmlDeviceGetTotalEnergyConsumption", ()),
    ("nvmlDeviceGetTemperature", (n.NVML_TEMPERATURE_GPU,)),
    ("nvmlDeviceGetFanSpeed", ()),
    ("nvmlDeviceGetClockInfo", (n.NVML_CLOCK_SM,)),
    ("nvmlDeviceGetMaxClockInfo", (n.NVML_CLOCK_MEM,)),
    ("nvmlDeviceGetPerformanceState", ()),
    ("nvmlDeviceGetPersistenceMode", ()),
    ("nvmlDeviceGetSerial", ()),
    ("nvmlDeviceGetBoardPartNumber", ()),
    ("nvmlDeviceGetVbiosVersion", ()),
    ("nvmlDeviceGetEccMode", ()),
    ("nvmlDeviceGetTotalEccErrors", (0, 0)),
    ("nvmlDeviceGetMemoryErrorCounter", (0, 0, 0)),
    ("nvmlDeviceGetMigMode", ()),
    ("nvmlDeviceGetBAR1MemoryInfo", ()),
    ("nvmlDeviceGetPcieThroughput", (0,)),
    ("nvmlDeviceGetCurrPcieLinkGeneration", ()),
    ("nvmlDeviceGetCurrPcieLinkWidth", ()),
    ("nvmlDeviceGetMaxPcieLinkGeneration", ()),
    ("nvmlDeviceGetMaxPcieLinkWidth", ()),
    ("nvmlDeviceGetEncoderUtilization", ()),
    ("nvmlDeviceGetDecoderUtilization", ()),
    ("nvmlDeviceGetDisplayMode", ()),
    ("nvmlDeviceGetDisplayActive", ()),
    ("nvmlDeviceGetNumaNodeId", ()),
    ("nvmlDeviceGetNvLinkState", (0,)),
)


def plain(value: Any) -> Any:
    """What JSON can hold."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    # pynvml's friendly objects have attributes, its structures have fields.
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    return {name: plain(each) for name, each in vars(value).items()} if hasattr(value, "__dict__") else value


def answer(call: Callable[..., Any], *arguments: Any) -> Any:
    """What it says, or the number of its error."""
    try:
        return plain(call(*arguments))
    except n.NVMLError as error:
        return f"error {error.value}"


def main() -> None:
    n.nvmlInit()
    devices = []
    for index in range(n.nvmlDeviceGetCount()):
        handle = n.nvmlDeviceGetHandleByIndex(index)
        told = {f"{name}{arguments}": answer(getattr(n, name), handle, *arguments) for name, arguments in QUESTIONS}
        uuid, address = n.nvmlDeviceGetUUID(handle), n.nvmlDeviceGetPciInfo(handle).busId
        told["index by uuid"] = n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(uuid))
        bare = uuid.removeprefix("GPU-")
        told["index by cuda uuid"] = n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(bare))
        told["index by address"] = n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(address))
        devices.append(told)
    system = {
        name: answer(getattr(n, name))
        for name in ("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlSystemGetCudaDriverVersion")
    }
    errors = {
        "uuid": answer(n.nvmlDeviceGetHandleByUUID, "GPU-00000000-0000-0000-0000-000000000000"),
        "address": answer(n.nvmlDeviceGetHandleByPciBusId, "0000:00:00.0"),
        "index": answer(n.nvmlDeviceGetHandleByIndex, len(devices)),
    }
    n.nvmlShutdown()
    errors["down"] = answer(n.nvmlDeviceGetCount)
    texts = {number: plain(n.nvmlErrorString(number)) for number in (0, 1, 2, 3, 6, 7, 13, 25, 999, 12345)}
    print(json.dumps({"system": system, "devices": devices, "errors": errors, "texts": texts}))


if __name__ == "__main__":
    main()
