"""Virtual memory, and multicast objects."""

# ruff: noqa: E501 - a prototype is one string

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import CALLED, entry, marshalled, missing
from farbus.remoting.spec.functions.reasons import TEXTURES

ENTRIES: Final = (
    marshalled(317, "cuMemAddressFree", 10020, "cuMemAddressFree", "CUdeviceptr_v2 ptr, size_t size", "hand wait"),
    marshalled(
        318,
        "cuMemAddressReserve",
        10020,
        "cuMemAddressReserve",
        "CUdeviceptr_v2 *ptr, size_t size, size_t alignment, CUdeviceptr_v2 addr, unsigned long long flags",
        "hand",
    ),
    marshalled(
        331,
        "cuMemCreate",
        10020,
        "cuMemCreate",
        "CUmemGenericAllocationHandle_v1 *handle, size_t size, const CUmemAllocationProp_v1 *prop, unsigned long long flags",
        "hand",
    ),
    entry(
        334,
        "cuMemExportToShareableHandle",
        10020,
        "cuMemExportToShareableHandle",
        CALLED,
        "void *shareableHandle, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType handleType, unsigned long long flags",
    ),
    marshalled(
        339,
        "cuMemGetAccess",
        10020,
        "cuMemGetAccess",
        "unsigned long long *flags, const CUmemLocation_v1 *location, CUdeviceptr_v2 ptr",
        "",
    ),
    marshalled(
        342,
        "cuMemGetAllocationGranularity",
        10020,
        "cuMemGetAllocationGranularity",
        "size_t *granularity, const CUmemAllocationProp_v1 *prop, CUmemAllocationGranularity_flags option",
        "hand",
    ),
    marshalled(
        343,
        "cuMemGetAllocationPropertiesFromHandle",
        10020,
        "cuMemGetAllocationPropertiesFromHandle",
        "CUmemAllocationProp_v1 *prop, CUmemGenericAllocationHandle_v1 handle",
        "",
    ),
    entry(
        357,
        "cuMemImportFromShareableHandle",
        10020,
        "cuMemImportFromShareableHandle",
        CALLED,
        "CUmemGenericAllocationHandle *handle, void *osHandle, CUmemAllocationHandleType shHandleType",
    ),
    marshalled(
        358,
        "cuMemMap",
        10020,
        "cuMemMap",
        "CUdeviceptr_v2 ptr, size_t size, size_t offset, CUmemGenericAllocationHandle_v1 handle, unsigned long long flags",
        "hand pass",
    ),
    missing(359, "cuMemMapArrayAsync", 11010, "cuMemMapArrayAsync", TEXTURES, per_thread=(11010, "_ptsz")),
    marshalled(
        376, "cuMemRelease", 10020, "cuMemRelease", "CUmemGenericAllocationHandle_v1 handle", "drop:handle hand"
    ),
    marshalled(
        377,
        "cuMemRetainAllocationHandle",
        11000,
        "cuMemRetainAllocationHandle",
        "CUmemGenericAllocationHandle_v1 *handle, void *addr",
        "opaque:addr",
    ),
    marshalled(
        378,
        "cuMemSetAccess",
        10020,
        "cuMemSetAccess",
        "CUdeviceptr_v2 ptr, size_t size, const CUmemAccessDesc_v1 *desc, size_t count",
        "in:desc[count] hand pass",
    ),
    marshalled(380, "cuMemUnmap", 10020, "cuMemUnmap", "CUdeviceptr_v2 ptr, size_t size", "wait hand"),
    marshalled(
        465,
        "cuMulticastAddDevice",
        12010,
        "cuMulticastAddDevice",
        "CUmemGenericAllocationHandle mcHandle, CUdevice dev",
        "",
    ),
    marshalled(
        466,
        "cuMulticastBindAddr",
        12010,
        "cuMulticastBindAddr",
        "CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr, size_t size, unsigned long long flags",
        "pass",
    ),
    marshalled(
        467,
        "cuMulticastBindMem",
        12010,
        "cuMulticastBindMem",
        "CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size, unsigned long long flags",
        "pass",
    ),
    marshalled(
        468,
        "cuMulticastCreate",
        12010,
        "cuMulticastCreate",
        "CUmemGenericAllocationHandle *mcHandle, const CUmulticastObjectProp *prop",
        "hand",
    ),
    marshalled(
        469,
        "cuMulticastGetGranularity",
        12010,
        "cuMulticastGetGranularity",
        "size_t *granularity, const CUmulticastObjectProp *prop, CUmulticastGranularity_flags option",
        "",
    ),
    marshalled(
        470,
        "cuMulticastUnbind",
        12010,
        "cuMulticastUnbind",
        "CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, size_t size",
        "pass",
    ),
)
