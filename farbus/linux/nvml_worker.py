"""The NVML worker: a process of its own that asks the driver about its GPUs.

NVML keeps the driver open, crashes when a GPU vanishes under it and can hang;
so it lives here, where it can be stopped before a GPU is removed and killed
when it hangs.  Which library answers is the caller's choice by
LD_LIBRARY_PATH: NVIDIA's or the software GPU's.

Standard input: lines ``list`` or ``sample``; end of file ends the worker.
Standard output: one JSON line for each: ``{"gpus": [...], "troubles": [...]}``,
``{"samples": [...]}`` or ``{"error": "...", "absent": bool}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
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


def memory_bytes(handle: Any) -> int:
    """Return a GPU's memory; 0 for one that has none of its own, but the machine's."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError_NotSupported:
        return 0


def describe(handle: Any) -> dict[str, Any]:
    """Return what stays the same about a GPU."""
    capability = optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    numa = optional(pynvml.nvmlDeviceGetNumaNodeId, handle)
    return {
        "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
        "name": text(pynvml.nvmlDeviceGetName(handle)),
        "memory_bytes": memory_bytes(handle),
        "pci_address": pci_address(handle),
        "compute_capability": "{}.{}".format(*capability) if capability else "",
        "numa_node": -1 if numa is None else int(numa),
    }


def described() -> dict[str, Any]:
    """Return the GPUs there are, and why the driver can't tell of others: one that is broken hides no other."""
    gpus, troubles = [], []
    for handle in handles():
        try:
            gpus.append(describe(handle))
        except pynvml.NVMLError as error:
            troubles.append(f"GPU at {pci_address(handle) or 'an unknown address'}: {error}")
    return {"gpus": gpus, "troubles": troubles}


def scaled(value: Any, factor: float) -> float | None:
    """Return a figure in our unit; None for one that the GPU does not have."""
    return None if value is None else value * factor


def sample(handle: Any) -> dict[str, Any]:
    """Return how a GPU is (:class:`farbus.linux.nvml.GpuSample`)."""
    utilization = optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
    memory = optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
    busy = utilization.gpu / 100 if utilization else 0.0
    # The driver counts for 20 ms, once for each direction: not worth it for a GPU that does nothing.
    pcie = [
        scaled(optional(pynvml.nvmlDeviceGetPcieThroughput, handle, direction), 1000) if busy else None
        for direction in (pynvml.NVML_PCIE_UTIL_RX_BYTES, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    ]
    ecc = [
        optional(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC)
        for kind in (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    ]
    clock = pynvml.nvmlDeviceGetClockInfo
    return {
        "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
        "busy_fraction": busy,
        "memory_used_bytes": int(memory.used) if memory else 0,
        "memory_bytes": int(memory.total) if memory else None,
        "memory_busy_fraction": utilization.memory / 100 if utilization else None,
        "power_watts": scaled(optional(pynvml.nvmlDeviceGetPowerUsage, handle), 1e-3),
        "temperature_celsius": scaled(
            optional(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU), 1.0
        ),
        "sm_clock_hz": scaled(optional(clock, handle, pynvml.NVML_CLOCK_SM), 1e6),
        "memory_clock_hz": scaled(optional(clock, handle, pynvml.NVML_CLOCK_MEM), 1e6),
        "energy_joules": scaled(optional(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle), 1e-3),
        "ecc_corrected_errors": ecc[0],
        "ecc_uncorrected_errors": ecc[1],
        "pcie_replays": optional(pynvml.nvmlDeviceGetPcieReplayCounter, handle),
        "pcie_receive_bytes_per_s": pcie[0],
        "pcie_send_bytes_per_s": pcie[1],
        "processes": [
            {"pid": process.pid, "memory_bytes": process.usedGpuMemory}
            for process in optional(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
        ],
    }


SAID_BYTES = 4096
"""Most that is looked at of what the library says on standard error."""

MAX_XIDS = 64
"""XID events taken in for one sample; a GPU that tells of more is broken, and says so with these."""


class XidEvents:
    """XID errors as the driver tells of them, for the GPUs that can (nvmlEventTypeXidCriticalError)."""

    def __init__(self) -> None:
        self._events: Any = None

    def watch(self) -> None:
        """Begin to listen."""
        self._events = optional(pynvml.nvmlEventSetCreate)
        if self._events is None:
            return
        for handle in handles():
            optional(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, self._events)

    def take(self) -> dict[str, list[int]]:
        """Return what came since the last time, by UUID; does not wait."""
        found: dict[str, list[int]] = {}
        for _ in range(MAX_XIDS):
            event = optional(pynvml.nvmlEventSetWait_v2, self._events, 0) if self._events is not None else None
            if event is None:
                break
            uuid = optional(pynvml.nvmlDeviceGetUUID, event.device)
            if uuid is not None:
                found.setdefault(text(uuid), []).append(int(event.eventData))
        return found


def samples(events: XidEvents) -> list[dict[str, Any]]:
    """Return how all GPUs are."""
    xids = events.take()
    found = [one for handle in handles() if (one := optional(sample, handle)) is not None]
    for one in found:
        one["xids"] = xids.get(one["uuid"], [])
    return found


def driver() -> dict[str, str]:
    """Return the versions of the driver and of the CUDA that it supports."""
    version = optional(pynvml.nvmlSystemGetDriverVersion)
    cuda = optional(pynvml.nvmlSystemGetCudaDriverVersion)
    return {
        "driver_version": text(version) if version else "",
        "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
    }


def answer(command: str, events: XidEvents) -> dict[str, Any]:
    """Answer one command."""
    try:
        if command == "list":
            return {**described(), **driver()}
        if command == "sample":
            return {"samples": samples(events)}
    except pynvml.NVMLError as error:
        return {"error": str(error), "absent": False}
    return {"error": f"unknown command {command!r}", "absent": False}


@contextlib.contextmanager
def listened_to() -> Iterator[Callable[[], str]]:
    """Catch what the library says on standard error within the block: the last line of it, when it is asked for.

    Its number for what is wrong says less: of a wrong setting a software GPU has no more than "unknown error".
    """
    before = os.dup(2)
    said = os.memfd_create("nvml")
    os.dup2(said, 2)

    def last_line() -> str:
        lines = os.pread(said, SAID_BYTES, max(0, os.fstat(said).st_size - SAID_BYTES)).split(b"\n")
        return next((line.decode(errors="replace").strip() for line in reversed(lines) if line.strip()), "")

    try:
        yield last_line
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(said)


def initialise() -> dict[str, Any] | None:
    """Open the library and the driver; return what every question is answered with where that can't be."""
    with listened_to() as last_line:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            absent = isinstance(
                error,
                pynvml.NVMLError_LibraryNotFound | pynvml.NVMLError_DriverNotLoaded | pynvml.NVMLError_NoPermission,
            )
            return {"error": ": ".join(filter(None, [str(error), last_line()])), "absent": absent}
    return None


def main() -> None:
    """Serve standard input until it ends."""
    trouble = initialise()
    events = XidEvents()
    if trouble is None:
        events.watch()
    for line in sys.stdin:
        reply = trouble or answer(line.strip(), events)
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
