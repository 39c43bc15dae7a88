"""Memory that is allocated in the order of a stream, and its pools."""

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import CALLED, POSTED, entry, marshalled, missing
from farbus.remoting.spec.functions.reasons import POOLS

ENTRIES: Final = (
    entry(
        323,
        "cuMemAllocAsync",
        11020,
        "cuMemAllocAsync",
        CALLED,
        "CUdeviceptr *dptr, size_t bytesize, CUstream hStream",
        per_thread=(11020, "_ptsz"),
    ),
    marshalled(
        324,
        "cuMemAllocFromPoolAsync",
        11020,
        "cuMemAllocFromPoolAsync",
        "CUdeviceptr_v2 *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream",
        "hand",
        per_thread=(11020, "_ptsz"),
    ),
    entry(
        337,
        "cuMemFreeAsync",
        11020,
        "cuMemFreeAsync",
        POSTED,
        "CUdeviceptr dptr, CUstream hStream",
        per_thread=(11020, "_ptsz"),
    ),
    marshalled(
        344,
        "cuMemGetDefaultMemPool",
        13000,
        "cuMemGetDefaultMemPool",
        "CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type",
        "in:location",
    ),
    marshalled(
        349,
        "cuMemGetMemPool",
        13000,
        "cuMemGetMemPool",
        "CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type",
        "in:location",
    ),
    marshalled(
        360,
        "cuMemPoolCreate",
        11020,
        "cuMemPoolCreate",
        "CUmemoryPool *pool, const CUmemPoolProps_v1 *poolProps",
        "hand",
    ),
    marshalled(361, "cuMemPoolDestroy", 11020, "cuMemPoolDestroy", "CUmemoryPool pool", "drop:pool wait"),
    missing(362, "cuMemPoolExportPointer", 11020, "cuMemPoolExportPointer", POOLS),
    missing(363, "cuMemPoolExportToShareableHandle", 11020, "cuMemPoolExportToShareableHandle", POOLS),
    marshalled(
        364,
        "cuMemPoolGetAccess",
        11020,
        "cuMemPoolGetAccess",
        "CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation_v1 *location",
        "in:location",
    ),
    marshalled(
        365,
        "cuMemPoolGetAttribute",
        11020,
        "cuMemPoolGetAttribute",
        "CUmemoryPool pool, CUmemPool_attribute attr, void *value",
        "out8:value hand",
    ),
    missing(366, "cuMemPoolImportFromShareableHandle", 11020, "cuMemPoolImportFromShareableHandle", POOLS),
    missing(367, "cuMemPoolImportPointer", 11020, "cuMemPoolImportPointer", POOLS),
    marshalled(
        368,
        "cuMemPoolSetAccess",
        11020,
        "cuMemPoolSetAccess",
        "CUmemoryPool pool, const CUmemAccessDesc_v1 *map, size_t count",
        "in:map[count]",
    ),
    marshalled(
        369,
        "cuMemPoolSetAttribute",
        11020,
        "cuMemPoolSetAttribute",
        "CUmemoryPool pool, CUmemPool_attribute attr, void *value",
        "in8:value hand",
    ),
    marshalled(370, "cuMemPoolTrimTo", 11020, "cuMemPoolTrimTo", "CUmemoryPool pool, size_t minBytesToKeep", "wait"),
    marshalled(
        379,
        "cuMemSetMemPool",
        13000,
        "cuMemSetMemPool",
        "CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool",
        "in:location",
    ),
)
