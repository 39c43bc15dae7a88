"""Green contexts, and the resources that they are made of."""

# ruff: noqa: E501 - a prototype is one string

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import CALLED, LOCAL, entry, marshalled

ENTRIES: Final = (
    entry(33, "cuCtxFromGreenCtx", 12040, "cuCtxFromGreenCtx", CALLED, "CUcontext *pContext, CUgreenCtx hCtx"),
    marshalled(
        37,
        "cuCtxGetDevResource",
        12040,
        "cuCtxGetDevResource",
        "CUcontext hCtx, CUdevResource *resource, CUdevResourceType type",
        "hand",
    ),
    marshalled(
        62,
        "cuDevResourceGenerateDesc",
        12040,
        "cuDevResourceGenerateDesc",
        "CUdevResourceDesc *phDesc, CUdevResource *resources, unsigned int nbResources",
        "in:resources[nbResources]",
    ),
    marshalled(
        63,
        "cuDevSmResourceSplit",
        13010,
        "cuDevSmResourceSplit",
        "CUdevResource *results, unsigned int nbGroups, const CUdevResource *input, CUdevResource *remainder, unsigned int flags, CU_DEV_SM_RESOURCE_GROUP_PARAMS *groupParams",
        "out:results[nbGroups] inout:groupParams[nbGroups]",
    ),
    marshalled(
        64,
        "cuDevSmResourceSplitByCount",
        12040,
        "cuDevSmResourceSplitByCount",
        "CUdevResource *results, unsigned int *nbGroups, const CUdevResource *input, CUdevResource *remainder, unsigned int flags, unsigned int minCount",
        "list:results[nbGroups]",
    ),
    marshalled(
        72,
        "cuDeviceGetDevResource",
        12040,
        "cuDeviceGetDevResource",
        "CUdevice device, CUdevResource *resource, CUdevResourceType type",
        "hand",
    ),
    marshalled(
        261,
        "cuGreenCtxCreate",
        12040,
        "cuGreenCtxCreate",
        "CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags",
        "hand",
    ),
    entry(262, "cuGreenCtxDestroy", 12040, "cuGreenCtxDestroy", CALLED, "CUgreenCtx hCtx"),
    marshalled(
        263,
        "cuGreenCtxGetDevResource",
        12040,
        "cuGreenCtxGetDevResource",
        "CUgreenCtx hCtx, CUdevResource *resource, CUdevResourceType type",
        "hand",
    ),
    marshalled(
        264, "cuGreenCtxGetId", 12090, "cuGreenCtxGetId", "CUgreenCtx greenCtx, unsigned long long *greenCtxId", ""
    ),
    marshalled(265, "cuGreenCtxRecordEvent", 12040, "cuGreenCtxRecordEvent", "CUgreenCtx hCtx, CUevent hEvent", ""),
    entry(
        266,
        "cuGreenCtxStreamCreate",
        12050,
        "cuGreenCtxStreamCreate",
        CALLED,
        "CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags, int priority",
    ),
    marshalled(267, "cuGreenCtxWaitEvent", 12040, "cuGreenCtxWaitEvent", "CUgreenCtx hCtx, CUevent hEvent", ""),
    marshalled(
        510,
        "cuStreamGetDevResource",
        13010,
        "cuStreamGetDevResource",
        "CUstream hStream, CUdevResource *resource, CUdevResourceType type",
        "hand",
        per_thread=(13010, "_ptsz"),
    ),
    entry(513, "cuStreamGetGreenCtx", 12040, "cuStreamGetGreenCtx", LOCAL, "CUstream hStream, CUgreenCtx *phCtx"),
)
