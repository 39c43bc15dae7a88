"""Events."""

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import CALLED, POSTED, entry

ENTRIES: Final = (
    entry(112, "cuEventCreate", 2000, "cuEventCreate", POSTED, "CUevent *phEvent, unsigned int Flags"),
    entry(113, "cuEventDestroy", 2000, "cuEventDestroy", CALLED, "CUevent hEvent", same_as="cuEventDestroy_v2"),
    entry(114, "cuEventDestroy", 4000, "cuEventDestroy_v2", POSTED, "CUevent hEvent"),
    entry(
        115,
        "cuEventElapsedTime",
        2000,
        "cuEventElapsedTime",
        CALLED,
        "float *pMilliseconds, CUevent hStart, CUevent hEnd",
        via="event_elapsed_time(start=hStart, end=hEnd) -> milliseconds=pMilliseconds",
    ),
    entry(
        116,
        "cuEventElapsedTime",
        12080,
        "cuEventElapsedTime_v2",
        CALLED,
        "float *pMilliseconds, CUevent hStart, CUevent hEnd",
        via="event_elapsed_time(start=hStart, end=hEnd) -> milliseconds=pMilliseconds",
    ),
    entry(117, "cuEventQuery", 2000, "cuEventQuery", CALLED, "CUevent hEvent"),
    entry(
        118,
        "cuEventRecord",
        2000,
        "cuEventRecord",
        POSTED,
        "CUevent hEvent, CUstream hStream",
        per_thread=(7000, "_ptsz"),
    ),
    entry(
        119,
        "cuEventRecordWithFlags",
        11010,
        "cuEventRecordWithFlags",
        POSTED,
        "CUevent hEvent, CUstream hStream, unsigned int flags",
        per_thread=(11010, "_ptsz"),
    ),
    entry(
        120,
        "cuEventSynchronize",
        2000,
        "cuEventSynchronize",
        CALLED,
        "CUevent hEvent",
    ),
)
