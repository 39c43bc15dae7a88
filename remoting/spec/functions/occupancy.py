"""Occupancy."""

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import CALLED, entry, marshalled

ENTRIES: Final = (
    entry(
        471,
        "cuOccupancyAvailableDynamicSMemPerBlock",
        10020,
        "cuOccupancyAvailableDynamicSMemPerBlock",
        CALLED,
        "size_t *dynamicSmemSize, CUfunction func, int numBlocks, int blockSize",
    ),
    entry(
        472,
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        6050,
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        CALLED,
        "int *numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize",
    ),
    entry(
        473,
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        7000,
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        CALLED,
        "int *numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize, unsigned int flags",
    ),
    marshalled(
        474,
        "cuOccupancyMaxActiveClusters",
        11070,
        "cuOccupancyMaxActiveClusters",
        "int *numClusters, CUfunction func, const CUlaunchConfig *config",
        "",
    ),
    entry(
        475,
        "cuOccupancyMaxPotentialBlockSize",
        6050,
        "cuOccupancyMaxPotentialBlockSize",
        CALLED,
        "int *minGridSize, int *blockSize, CUfunction func, "
        "CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize, "
        "int blockSizeLimit",
    ),
    entry(
        476,
        "cuOccupancyMaxPotentialBlockSizeWithFlags",
        7000,
        "cuOccupancyMaxPotentialBlockSizeWithFlags",
        CALLED,
        "int *minGridSize, int *blockSize, CUfunction func, "
        "CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize, "
        "int blockSizeLimit, unsigned int flags",
    ),
    marshalled(
        477,
        "cuOccupancyMaxPotentialClusterSize",
        11070,
        "cuOccupancyMaxPotentialClusterSize",
        "int *clusterSize, CUfunction func, const CUlaunchConfig *config",
        "",
    ),
)
