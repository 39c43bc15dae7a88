"""Errors, initialization, version, and how entry points are found."""

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import LOCAL, entry

ENTRIES: Final = (
    entry(102, "cuDriverGetVersion", 2020, "cuDriverGetVersion", LOCAL, "int *driverVersion"),
    entry(146, "cuGetErrorName", 6000, "cuGetErrorName", LOCAL, "CUresult error, const char **pStr"),
    entry(147, "cuGetErrorString", 6000, "cuGetErrorString", LOCAL, "CUresult error, const char **pStr"),
    entry(
        148,
        "cuGetExportTable",
        3000,
        "cuGetExportTable",
        LOCAL,
        "const void **ppExportTable, const CUuuid *pExportTableId",
    ),
    entry(
        149,
        "cuGetProcAddress",
        11030,
        "cuGetProcAddress",
        LOCAL,
        "const char *symbol, void **pfn, int driverVersion, cuuint64_t flags",
    ),
    entry(
        150,
        "cuGetProcAddress",
        12000,
        "cuGetProcAddress_v2",
        LOCAL,
        "const char *symbol, void **pfn, int driverVersion, cuuint64_t flags, "
        "CUdriverProcAddressQueryResult *symbolFound",
    ),
    entry(270, "cuInit", 2000, "cuInit", LOCAL, "unsigned int Flags"),
)
