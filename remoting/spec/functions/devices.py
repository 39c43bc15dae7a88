"""Devices."""

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import LOCAL, entry, marshalled, missing
from farbus.remoting.spec.functions.reasons import DIAGNOSTICS, EXTERNAL, RDMA, WINDOWS

ENTRIES: Final = (
    entry(
        66,
        "cuDeviceComputeCapability",
        2000,
        "cuDeviceComputeCapability",
        LOCAL,
        "int *major, int *minor, CUdevice dev",
    ),
    entry(67, "cuDeviceGet", 2000, "cuDeviceGet", LOCAL, "CUdevice *device, int ordinal"),
    entry(
        68,
        "cuDeviceGetAttribute",
        2000,
        "cuDeviceGetAttribute",
        LOCAL,
        "int *pi, CUdevice_attribute attrib, CUdevice dev",
    ),
    entry(69, "cuDeviceGetByPCIBusId", 4010, "cuDeviceGetByPCIBusId", LOCAL, "CUdevice *dev, const char *pciBusId"),
    entry(70, "cuDeviceGetCount", 2000, "cuDeviceGetCount", LOCAL, "int *count"),
    marshalled(
        71,
        "cuDeviceGetDefaultMemPool",
        11020,
        "cuDeviceGetDefaultMemPool",
        "CUmemoryPool *pool_out, CUdevice_v1 dev",
        "",
    ),
    marshalled(
        73,
        "cuDeviceGetExecAffinitySupport",
        11040,
        "cuDeviceGetExecAffinitySupport",
        "int *pi, CUexecAffinityType type, CUdevice dev",
        "",
    ),
    marshalled(
        75,
        "cuDeviceGetHostAtomicCapabilities",
        13000,
        "cuDeviceGetHostAtomicCapabilities",
        "unsigned int *capabilities, const CUatomicOperation *operations, unsigned int count, CUdevice dev",
        "out:capabilities[count] in:operations[count]",
    ),
    missing(76, "cuDeviceGetLuid", 10000, "cuDeviceGetLuid", WINDOWS),
    marshalled(77, "cuDeviceGetMemPool", 11020, "cuDeviceGetMemPool", "CUmemoryPool *pool, CUdevice_v1 dev", ""),
    entry(78, "cuDeviceGetName", 2000, "cuDeviceGetName", LOCAL, "char *name, int len, CUdevice dev"),
    missing(79, "cuDeviceGetNvSciSyncAttributes", 10020, "cuDeviceGetNvSciSyncAttributes", EXTERNAL),
    entry(82, "cuDeviceGetPCIBusId", 4010, "cuDeviceGetPCIBusId", LOCAL, "char *pciBusId, int len, CUdevice dev"),
    entry(83, "cuDeviceGetProperties", 2000, "cuDeviceGetProperties", LOCAL, "CUdevprop_v1 *prop, CUdevice dev"),
    marshalled(
        84,
        "cuDeviceGetTexture1DLinearMaxWidth",
        11010,
        "cuDeviceGetTexture1DLinearMaxWidth",
        "size_t *maxWidthInElements, CUarray_format format, unsigned numChannels, CUdevice_v1 dev",
        "",
    ),
    entry(85, "cuDeviceGetUuid", 9020, "cuDeviceGetUuid", LOCAL, "CUuuid *uuid, CUdevice dev"),
    entry(86, "cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2", LOCAL, "CUuuid *uuid, CUdevice dev"),
    missing(96, "cuDeviceRegisterAsyncNotification", 12040, "cuDeviceRegisterAsyncNotification", DIAGNOSTICS),
    marshalled(98, "cuDeviceSetMemPool", 11020, "cuDeviceSetMemPool", "CUdevice_v1 dev, CUmemoryPool pool", ""),
    entry(99, "cuDeviceTotalMem", 2000, "cuDeviceTotalMem", LOCAL, "unsigned int *bytes, CUdevice dev"),
    entry(100, "cuDeviceTotalMem", 3020, "cuDeviceTotalMem_v2", LOCAL, "size_t *bytes, CUdevice dev"),
    missing(101, "cuDeviceUnregisterAsyncNotification", 12040, "cuDeviceUnregisterAsyncNotification", DIAGNOSTICS),
    missing(123, "cuFlushGPUDirectRDMAWrites", 11030, "cuFlushGPUDirectRDMAWrites", RDMA),
)
