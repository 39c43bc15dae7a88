"""The NVML worker: a process of its own that asks the driver about its GPUs.

NVML keeps the driver open, crashes when a GPU vanishes under it and can hang;
so it lives here, where it can be stopped before a GPU is removed and killed
when it hangs.  Which library answers is the caller's choice by
LD_LIBRARY_PATH: NVIDIA's or the software GPU's.

Standard input: lines ``list`` or ``sample``; end of file ends the worker.
Standard output: one JSON line for each: ``{"gpus": [...]}``,
``{"samples": [...]}`` or ``{"error": "...", "absent": bool}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml


def text(value: str | bytes) -> str:
    """Return NVML's strings as text: their type differs between versions of the binding."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def optional(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a query that some GPUs don't support; None then."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None


def handles() -> list[Any]:
    """Return a handle for each GPU.  A GPU that fell off the bus has none."""
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            found.append(pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError:
            continue
    return found


def pci_address(handle: Any) -> str:
    """Return the address as sysfs spells it: NVML's domain has eight digits, and upper case."""
    info = optional(pynvml.nvmlDeviceGetPciInfo, handle)
    if info is None:
        return ""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def describe(handle: Any) -> dict[str, Any]:
    """Return what stays the same about a GPU."""
    capability = optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    numa = optional(pynvml.nvmlDeviceGetNumaNodeId, handle)
    return {
        "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
        "name": text(pynvml.nvmlDeviceGetName(handle)),
        "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        "pci_address": pci_address(handle),
        "compute_capability": "{}.{}".format(*capability) if capability else "",
        "numa_node": -1 if numa is None else int(numa),
    }


def sample(handle: Any) -> dict[str, Any]:
    """Return how busy a GPU is."""
    utilization = optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
    memory = optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return {
        "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
        "busy_fraction": utilization.gpu / 100 if utilization else 0.0,
        "memory_used_bytes": int(memory.used) if memory else 0,
    }


def driver() -> dict[str, str]:
    """Return the versions of the driver and of the CUDA that it supports."""
    version = optional(pynvml.nvmlSystemGetDriverVersion)
    cuda = optional(pynvml.nvmlSystemGetCudaDriverVersion)
    return {
        "driver_version": text(version) if version else "",
        "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
    }


def answer(command: str) -> dict[str, Any]:
    """Answer one command."""
    try:
        if command == "list":
            return {"gpus": [describe(handle) for handle in handles()], **driver()}
        if command == "sample":
            return {"samples": [sample(handle) for handle in handles()]}
    except pynvml.NVMLError as error:
        return {"error": str(error), "absent": False}
    return {"error": f"unknown command {command!r}", "absent": False}


def main() -> None:
    """Serve standard input until it ends."""
    trouble: dict[str, Any] | None = None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = isinstance(
            error,
            pynvml.NVMLError_LibraryNotFound | pynvml.NVMLError_DriverNotLoaded | pynvml.NVMLError_NoPermission,
        )
        trouble = {"error": str(error), "absent": absent}
    for line in sys.stdin:
        reply = trouble or answer(line.strip())
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
