"""Lets Triton compile for another architecture than the device's, where TRITON_OVERRIDE_ARCH asks for it.

Triton 3.9 goes by that variable in all stages but the last two, which hand the device's own architecture to LLVM.  A
software GPU that plays a device newer than Triton's LLVM needs the older one there too: PTX for it runs on the newer.
"""

from __future__ import annotations

import os
from typing import Any


def install() -> None:
    """Put the named architecture into the last stages.  Nothing happens without the variable, or without Triton."""
    wanted = os.environ.get("TRITON_OVERRIDE_ARCH")
    if not wanted:
        return
    try:
        from triton import knobs
    except ImportError:
        return

    def stages(*arguments: Any) -> tuple[str, str] | None:
        if not arguments:  # asked for what distinguishes its code in caches
            return "override", wanted
        backend, table, options, _, capability = arguments
        table["ptx"] = lambda source, metadata: backend.make_ptx(source, metadata, options, capability)
        table["cubin"] = lambda source, metadata: backend.make_cubin(source, metadata, options, capability)
        return None

    knobs.runtime.add_stages_inspection_hook = stages
