"""Execution: functions, launches, and host functions."""

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import CALLED, LOCAL, POSTED, entry, marshalled, missing
from farbus.remoting.spec.functions.reasons import COOPERATION, NO_HEADER

ENTRIES: Final = (
    entry(
        124,
        "cuFuncGetAttribute",
        2020,
        "cuFuncGetAttribute",
        LOCAL,
        "int *pi, CUfunction_attribute attrib, CUfunction hfunc",
    ),
    entry(125, "cuFuncGetModule", 11000, "cuFuncGetModule", LOCAL, "CUmodule *hmod, CUfunction hfunc"),
    entry(126, "cuFuncGetName", 12030, "cuFuncGetName", LOCAL, "const char **name, CUfunction hfunc"),
    entry(127, "cuFuncGetParamCount", 13020, "cuFuncGetParamCount", LOCAL, "CUfunction func, size_t *paramCount"),
    entry(
        128,
        "cuFuncGetParamInfo",
        12040,
        "cuFuncGetParamInfo",
        LOCAL,
        "CUfunction func, size_t paramIndex, size_t *paramOffset, size_t *paramSize",
    ),
    entry(129, "cuFuncIsLoaded", 12040, "cuFuncIsLoaded", LOCAL, "CUfunctionLoadingState *state, CUfunction hfunc"),
    entry(130, "cuFuncLoad", 12040, "cuFuncLoad", LOCAL, "CUfunction hfunc"),
    entry(
        131,
        "cuFuncSetAttribute",
        9000,
        "cuFuncSetAttribute",
        CALLED,
        "CUfunction hfunc, CUfunction_attribute attrib, int value",
    ),
    entry(132, "cuFuncSetBlockShape", 2000, "cuFuncSetBlockShape", LOCAL, "CUfunction hfunc, int x, int y, int z"),
    entry(133, "cuFuncSetCacheConfig", 3000, "cuFuncSetCacheConfig", LOCAL, "CUfunction hfunc, CUfunc_cache config"),
    entry(
        134,
        "cuFuncSetSharedMemConfig",
        4020,
        "cuFuncSetSharedMemConfig",
        LOCAL,
        "CUfunction hfunc, CUsharedconfig config",
    ),
    entry(135, "cuFuncSetSharedSize", 2000, "cuFuncSetSharedSize", LOCAL, "CUfunction hfunc, unsigned int bytes"),
    entry(285, "cuLaunch", 2000, "cuLaunch", POSTED, "CUfunction f"),
    entry(
        286,
        "cuLaunchCooperativeKernel",
        9000,
        "cuLaunchCooperativeKernel",
        POSTED,
        "CUfunction f, unsigned int gridDimX, unsigned int gridDimY, "
        "unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY, "
        "unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream, "
        "void **kernelParams",
        per_thread=(9000, "_ptsz"),
    ),
    missing(287, "cuLaunchCooperativeKernelMultiDevice", 9000, "cuLaunchCooperativeKernelMultiDevice", COOPERATION),
    entry(288, "cuLaunchGrid", 2000, "cuLaunchGrid", POSTED, "CUfunction f, int grid_width, int grid_height"),
    entry(
        289,
        "cuLaunchGridAsync",
        2000,
        "cuLaunchGridAsync",
        POSTED,
        "CUfunction f, int grid_width, int grid_height, CUstream hStream",
    ),
    entry(
        290,
        "cuLaunchHostFunc",
        10000,
        "cuLaunchHostFunc",
        POSTED,
        "CUstream hStream, CUhostFn fn, void *userData",
        per_thread=(10000, "_ptsz"),
    ),
    entry(
        291,
        "cuLaunchHostFunc",
        13010,
        "cuLaunchHostFunc_v2",
        CALLED,
        "CUstream hStream, CUhostFn fn, void *userData, unsigned int syncMode",
        per_thread=(13010, "_ptsz"),
    ),
    entry(
        292,
        "cuLaunchKernel",
        4000,
        "cuLaunchKernel",
        POSTED,
        "CUfunction f, unsigned int gridDimX, unsigned int gridDimY, "
        "unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY, "
        "unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream, "
        "void **kernelParams, void **extra",
        per_thread=(7000, "_ptsz"),
    ),
    entry(
        293,
        "cuLaunchKernelEx",
        11060,
        "cuLaunchKernelEx",
        POSTED,
        "const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra",
        per_thread=(11060, "_ptsz"),
    ),
    entry(478, "cuParamSetSize", 2000, "cuParamSetSize", LOCAL, "CUfunction hfunc, unsigned int numbytes"),
    marshalled(
        479, "cuParamSetTexRef", 2000, "cuParamSetTexRef", "CUfunction hfunc, int texunit, CUtexref hTexRef", ""
    ),
    entry(480, "cuParamSetf", 2000, "cuParamSetf", LOCAL, "CUfunction hfunc, int offset, float value"),
    entry(481, "cuParamSeti", 2000, "cuParamSeti", LOCAL, "CUfunction hfunc, int offset, unsigned int value"),
    entry(
        482, "cuParamSetv", 2000, "cuParamSetv", LOCAL, "CUfunction hfunc, int offset, void *ptr, unsigned int numbytes"
    ),
    missing(531, "cuSubgridCreate", 13030, "cuSubgridCreate", NO_HEADER),
    missing(532, "cuSubgridWorkerGridCreate", 13030, "cuSubgridWorkerGridCreate", NO_HEADER),
    missing(533, "cuSubgridWorksetCreate", 13030, "cuSubgridWorksetCreate", NO_HEADER),
)
