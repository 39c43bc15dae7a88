"""The driver API: one entry per function and version, with a number for ever.

The modules are the chapters of the CUDA driver API reference; ``forms`` says how an entry
is written, ``reasons`` why some are not there.  Names, versions and parameters are facts of
cuda.h and cudaTypedefs.h (CUDA 13.0) and of what cudart 11.8 to 13.5 look up.

A new entry stands in its chapter, by its name, and takes the number behind the highest of all;
numbers are never given twice.
"""

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions import (
    arrays,
    contexts,
    copies,
    devices,
    diagnostics,
    driver,
    events,
    execution,
    external,
    graph_nodes,
    graphics,
    graphs,
    green_contexts,
    libraries,
    memory,
    modules,
    occupancy,
    peers,
    pools,
    stream_memory,
    streams,
    textures,
    unified_addressing,
    virtual_memory,
)

#: Of all chapters, by number.
ENTRIES: Final = tuple(
    sorted(
        (
            *driver.ENTRIES,
            *devices.ENTRIES,
            *contexts.ENTRIES,
            *modules.ENTRIES,
            *libraries.ENTRIES,
            *memory.ENTRIES,
            *arrays.ENTRIES,
            *copies.ENTRIES,
            *virtual_memory.ENTRIES,
            *pools.ENTRIES,
            *unified_addressing.ENTRIES,
            *streams.ENTRIES,
            *events.ENTRIES,
            *external.ENTRIES,
            *stream_memory.ENTRIES,
            *execution.ENTRIES,
            *graphs.ENTRIES,
            *graph_nodes.ENTRIES,
            *occupancy.ENTRIES,
            *textures.ENTRIES,
            *peers.ENTRIES,
            *graphics.ENTRIES,
            *green_contexts.ENTRIES,
            *diagnostics.ENTRIES,
        ),
        key=lambda entry: entry.number,
    )
)
