"""Core dumps, logs, checkpoints and the profiler."""

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import LOCAL, entry, missing
from farbus.remoting.spec.functions.reasons import DEPRECATED, DIAGNOSTICS

ENTRIES: Final = (
    missing(13, "cuCheckpointProcessCheckpoint", 12080, "cuCheckpointProcessCheckpoint", DIAGNOSTICS),
    missing(14, "cuCheckpointProcessGetRestoreThreadId", 12080, "cuCheckpointProcessGetRestoreThreadId", DIAGNOSTICS),
    missing(15, "cuCheckpointProcessGetState", 12080, "cuCheckpointProcessGetState", DIAGNOSTICS),
    missing(16, "cuCheckpointProcessLock", 12080, "cuCheckpointProcessLock", DIAGNOSTICS),
    missing(17, "cuCheckpointProcessRestore", 12080, "cuCheckpointProcessRestore", DIAGNOSTICS),
    missing(18, "cuCheckpointProcessUnlock", 12080, "cuCheckpointProcessUnlock", DIAGNOSTICS),
    entry(
        19,
        "cuCoredumpGetAttribute",
        12010,
        "cuCoredumpGetAttribute",
        LOCAL,
        "CUcoredumpSettings attrib, void *value, size_t *size",
    ),
    entry(
        20,
        "cuCoredumpGetAttributeGlobal",
        12010,
        "cuCoredumpGetAttributeGlobal",
        LOCAL,
        "CUcoredumpSettings attrib, void *value, size_t *size",
    ),
    entry(
        21,
        "cuCoredumpSetAttribute",
        12010,
        "cuCoredumpSetAttribute",
        LOCAL,
        "CUcoredumpSettings attrib, void *value, size_t *size",
    ),
    entry(
        22,
        "cuCoredumpSetAttributeGlobal",
        12010,
        "cuCoredumpSetAttributeGlobal",
        LOCAL,
        "CUcoredumpSettings attrib, void *value, size_t *size",
    ),
    entry(312, "cuLogsCurrent", 12090, "cuLogsCurrent", LOCAL, "CUlogIterator *iterator_out, unsigned int flags"),
    entry(
        313,
        "cuLogsDumpToFile",
        12090,
        "cuLogsDumpToFile",
        LOCAL,
        "CUlogIterator *iterator, const char *pathToFile, unsigned int flags",
    ),
    entry(
        314,
        "cuLogsDumpToMemory",
        12090,
        "cuLogsDumpToMemory",
        LOCAL,
        "CUlogIterator *iterator, char *buffer, size_t *size, unsigned int flags",
    ),
    entry(
        315,
        "cuLogsRegisterCallback",
        12090,
        "cuLogsRegisterCallback",
        LOCAL,
        "CUlogsCallback callbackFunc, void *userData, CUlogsCallbackHandle *callback_out",
    ),
    entry(316, "cuLogsUnregisterCallback", 12090, "cuLogsUnregisterCallback", LOCAL, "CUlogsCallbackHandle callback"),
    missing(486, "cuProfilerInitialize", 4000, "cuProfilerInitialize", DEPRECATED),
    entry(487, "cuProfilerStart", 4000, "cuProfilerStart", LOCAL, "void"),
    entry(488, "cuProfilerStop", 4000, "cuProfilerStop", LOCAL, "void"),
)
