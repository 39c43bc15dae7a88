"""Memory: of devices and pinned, managed, and shared between processes."""

# ruff: noqa: E501 - a prototype is one string

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import CALLED, LOCAL, entry, marshalled, missing
from farbus.remoting.spec.functions.reasons import BATCH, DMABUF, NARROW

ENTRIES: Final = (
    marshalled(271, "cuIpcCloseMemHandle", 4010, "cuIpcCloseMemHandle", "CUdeviceptr dptr", "wait hand"),
    entry(272, "cuIpcGetEventHandle", 4010, "cuIpcGetEventHandle", CALLED, "CUipcEventHandle *pHandle, CUevent event"),
    marshalled(
        273, "cuIpcGetMemHandle", 4010, "cuIpcGetMemHandle", "CUipcMemHandle *pHandle, CUdeviceptr dptr", "pass"
    ),
    entry(
        274, "cuIpcOpenEventHandle", 4010, "cuIpcOpenEventHandle", CALLED, "CUevent *phEvent, CUipcEventHandle handle"
    ),
    entry(
        275,
        "cuIpcOpenMemHandle",
        4010,
        "cuIpcOpenMemHandle",
        CALLED,
        "CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags",
    ),
    entry(
        276,
        "cuIpcOpenMemHandle",
        11000,
        "cuIpcOpenMemHandle_v2",
        CALLED,
        "CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags",
    ),
    entry(321, "cuMemAlloc", 2000, "cuMemAlloc", CALLED, "CUdeviceptr_v1 *dptr, unsigned int bytesize"),
    entry(322, "cuMemAlloc", 3020, "cuMemAlloc_v2", CALLED, "CUdeviceptr *dptr, size_t bytesize"),
    entry(325, "cuMemAllocHost", 2000, "cuMemAllocHost", LOCAL, "void **pp, unsigned int bytesize"),
    entry(326, "cuMemAllocHost", 3020, "cuMemAllocHost_v2", LOCAL, "void **pp, size_t bytesize"),
    marshalled(
        327,
        "cuMemAllocManaged",
        6000,
        "cuMemAllocManaged",
        "CUdeviceptr_v2 *dptr, size_t bytesize, unsigned int flags",
        "hand",
    ),
    entry(
        328,
        "cuMemAllocPitch",
        2000,
        "cuMemAllocPitch",
        CALLED,
        "CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes, unsigned int Height, unsigned int ElementSizeBytes",
    ),
    entry(
        329,
        "cuMemAllocPitch",
        3020,
        "cuMemAllocPitch_v2",
        CALLED,
        "CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height, unsigned int ElementSizeBytes",
    ),
    missing(330, "cuMemBatchDecompressAsync", 12060, "cuMemBatchDecompressAsync", BATCH),
    entry(335, "cuMemFree", 2000, "cuMemFree", CALLED, "CUdeviceptr_v1 dptr"),
    entry(336, "cuMemFree", 3020, "cuMemFree_v2", CALLED, "CUdeviceptr dptr"),
    entry(338, "cuMemFreeHost", 2000, "cuMemFreeHost", LOCAL, "void *p"),
    entry(
        340,
        "cuMemGetAddressRange",
        2000,
        "cuMemGetAddressRange",
        LOCAL,
        "CUdeviceptr_v1 *pbase, unsigned int *psize, CUdeviceptr_v1 dptr",
    ),
    entry(
        341,
        "cuMemGetAddressRange",
        3020,
        "cuMemGetAddressRange_v2",
        LOCAL,
        "CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr",
    ),
    missing(345, "cuMemGetHandleForAddressRange", 11070, "cuMemGetHandleForAddressRange", DMABUF),
    entry(346, "cuMemGetInfo", 2000, "cuMemGetInfo", CALLED, "unsigned int *free, unsigned int *total"),
    entry(347, "cuMemGetInfo", 3020, "cuMemGetInfo_v2", CALLED, "size_t *free, size_t *total"),
    entry(350, "cuMemHostAlloc", 2020, "cuMemHostAlloc", LOCAL, "void **pp, size_t bytesize, unsigned int Flags"),
    missing(351, "cuMemHostGetDevicePointer", 2020, "cuMemHostGetDevicePointer", NARROW),
    entry(
        352,
        "cuMemHostGetDevicePointer",
        3020,
        "cuMemHostGetDevicePointer_v2",
        LOCAL,
        "CUdeviceptr *pdptr, void *p, unsigned int Flags",
    ),
    entry(353, "cuMemHostGetFlags", 2030, "cuMemHostGetFlags", LOCAL, "unsigned int *pFlags, void *p"),
    entry(
        354,
        "cuMemHostRegister",
        4000,
        "cuMemHostRegister",
        LOCAL,
        "void *p, size_t bytesize, unsigned int Flags",
        same_as="cuMemHostRegister_v2",
    ),
    entry(
        355, "cuMemHostRegister", 6050, "cuMemHostRegister_v2", LOCAL, "void *p, size_t bytesize, unsigned int Flags"
    ),
    entry(356, "cuMemHostUnregister", 4000, "cuMemHostUnregister", LOCAL, "void *p"),
)
