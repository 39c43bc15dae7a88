"""Unified addressing: what a pointer is, and where managed memory lies."""

# ruff: noqa: E501 - a prototype is one string

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import LOCAL, POSTED, entry, marshalled, missing
from farbus.remoting.spec.functions.reasons import LOCATION

ENTRIES: Final = (
    marshalled(
        319,
        "cuMemAdvise",
        8000,
        "cuMemAdvise",
        "CUdeviceptr_v2 devPtr, size_t count, CUmem_advise advice, CUdevice_v1 device",
        "hand",
    ),
    marshalled(
        320,
        "cuMemAdvise",
        12020,
        "cuMemAdvise_v2",
        "CUdeviceptr_v2 devPtr, size_t count, CUmem_advise advice, CUmemLocation_v1 location",
        "hand",
    ),
    entry(
        332,
        "cuMemDiscardAndPrefetchBatchAsync",
        13000,
        "cuMemDiscardAndPrefetchBatchAsync",
        POSTED,
        "CUdeviceptr *dptrs, size_t *sizes, size_t count, CUmemLocation *prefetchLocs, size_t *prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags, CUstream hStream",
        per_thread=(13000, "_ptsz"),
    ),
    entry(
        333,
        "cuMemDiscardBatchAsync",
        13000,
        "cuMemDiscardBatchAsync",
        LOCAL,
        "CUdeviceptr *dptrs, size_t *sizes, size_t count, unsigned long long flags, CUstream hStream",
        per_thread=(13000, "_ptsz"),
    ),
    missing(348, "cuMemGetLocationInfo", 13040, "cuMemGetLocationInfo", LOCATION),
    marshalled(
        371,
        "cuMemPrefetchAsync",
        8000,
        "cuMemPrefetchAsync",
        "CUdeviceptr_v2 devPtr, size_t count, CUdevice_v1 dstDevice, CUstream hStream",
        "hand",
        per_thread=(8000, "_ptsz"),
    ),
    marshalled(
        372,
        "cuMemPrefetchAsync",
        12020,
        "cuMemPrefetchAsync_v2",
        "CUdeviceptr_v2 devPtr, size_t count, CUmemLocation_v1 location, unsigned int flags, CUstream hStream",
        "hand",
        per_thread=(12020, "_ptsz"),
    ),
    entry(
        373,
        "cuMemPrefetchBatchAsync",
        13000,
        "cuMemPrefetchBatchAsync",
        POSTED,
        "CUdeviceptr *dptrs, size_t *sizes, size_t count, CUmemLocation *prefetchLocs, size_t *prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags, CUstream hStream",
        per_thread=(13000, "_ptsz"),
    ),
    entry(
        374,
        "cuMemRangeGetAttribute",
        8000,
        "cuMemRangeGetAttribute",
        LOCAL,
        "void *data, size_t dataSize, CUmem_range_attribute attribute, CUdeviceptr devPtr, size_t count",
    ),
    entry(
        375,
        "cuMemRangeGetAttributes",
        8000,
        "cuMemRangeGetAttributes",
        LOCAL,
        "void **data, size_t *dataSizes, CUmem_range_attribute *attributes, size_t numAttributes, CUdeviceptr devPtr, size_t count",
    ),
    entry(
        483,
        "cuPointerGetAttribute",
        4000,
        "cuPointerGetAttribute",
        LOCAL,
        "void *data, CUpointer_attribute attribute, CUdeviceptr ptr",
    ),
    entry(
        484,
        "cuPointerGetAttributes",
        7000,
        "cuPointerGetAttributes",
        LOCAL,
        "unsigned int numAttributes, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr",
    ),
    entry(
        485,
        "cuPointerSetAttribute",
        6000,
        "cuPointerSetAttribute",
        LOCAL,
        "const void *value, CUpointer_attribute attribute, CUdeviceptr_v2 ptr",
    ),
)
