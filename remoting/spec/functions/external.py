"""Memory and semaphores of other APIs."""

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import missing
from farbus.remoting.spec.functions.reasons import EXTERNAL, TEXTURES

ENTRIES: Final = (
    missing(60, "cuDestroyExternalMemory", 10000, "cuDestroyExternalMemory", EXTERNAL),
    missing(61, "cuDestroyExternalSemaphore", 10000, "cuDestroyExternalSemaphore", EXTERNAL),
    missing(121, "cuExternalMemoryGetMappedBuffer", 10000, "cuExternalMemoryGetMappedBuffer", EXTERNAL),
    missing(122, "cuExternalMemoryGetMappedMipmappedArray", 10000, "cuExternalMemoryGetMappedMipmappedArray", TEXTURES),
    missing(268, "cuImportExternalMemory", 10000, "cuImportExternalMemory", EXTERNAL),
    missing(269, "cuImportExternalSemaphore", 10000, "cuImportExternalSemaphore", EXTERNAL),
    missing(
        489,
        "cuSignalExternalSemaphoresAsync",
        10000,
        "cuSignalExternalSemaphoresAsync",
        EXTERNAL,
        per_thread=(10000, "_ptsz"),
    ),
    missing(
        585,
        "cuWaitExternalSemaphoresAsync",
        10000,
        "cuWaitExternalSemaphoresAsync",
        EXTERNAL,
        per_thread=(10000, "_ptsz"),
    ),
)
