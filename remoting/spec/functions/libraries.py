"""Libraries, and their kernels."""

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import CALLED, LOCAL, entry, marshalled, missing
from farbus.remoting.spec.functions.reasons import UNIFIED

ENTRIES: Final = (
    entry(
        277,
        "cuKernelGetAttribute",
        12000,
        "cuKernelGetAttribute",
        LOCAL,
        "int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev",
    ),
    entry(278, "cuKernelGetFunction", 12000, "cuKernelGetFunction", LOCAL, "CUfunction *pFunc, CUkernel kernel"),
    entry(279, "cuKernelGetLibrary", 12050, "cuKernelGetLibrary", LOCAL, "CUlibrary *pLib, CUkernel kernel"),
    entry(280, "cuKernelGetName", 12030, "cuKernelGetName", LOCAL, "const char **name, CUkernel hfunc"),
    entry(281, "cuKernelGetParamCount", 13020, "cuKernelGetParamCount", LOCAL, "CUkernel kernel, size_t *paramCount"),
    entry(
        282,
        "cuKernelGetParamInfo",
        12040,
        "cuKernelGetParamInfo",
        LOCAL,
        "CUkernel kernel, size_t paramIndex, size_t *paramOffset, size_t *paramSize",
    ),
    marshalled(
        283,
        "cuKernelSetAttribute",
        12000,
        "cuKernelSetAttribute",
        "CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev",
        "hand",
    ),
    entry(
        284,
        "cuKernelSetCacheConfig",
        12000,
        "cuKernelSetCacheConfig",
        LOCAL,
        "CUkernel kernel, CUfunc_cache config, CUdevice dev",
    ),
    entry(
        294,
        "cuLibraryEnumerateKernels",
        12040,
        "cuLibraryEnumerateKernels",
        LOCAL,
        "CUkernel *kernels, unsigned int numKernels, CUlibrary lib",
    ),
    entry(
        295,
        "cuLibraryGetGlobal",
        12000,
        "cuLibraryGetGlobal",
        CALLED,
        "CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name",
    ),
    entry(
        296,
        "cuLibraryGetKernel",
        12000,
        "cuLibraryGetKernel",
        LOCAL,
        "CUkernel *pKernel, CUlibrary library, const char *name",
    ),
    entry(
        297, "cuLibraryGetKernelCount", 12040, "cuLibraryGetKernelCount", LOCAL, "unsigned int *count, CUlibrary lib"
    ),
    entry(
        298,
        "cuLibraryGetManaged",
        12000,
        "cuLibraryGetManaged",
        CALLED,
        "CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name",
    ),
    entry(299, "cuLibraryGetModule", 12000, "cuLibraryGetModule", LOCAL, "CUmodule *pMod, CUlibrary library"),
    missing(300, "cuLibraryGetUnifiedFunction", 12000, "cuLibraryGetUnifiedFunction", UNIFIED),
    entry(
        301,
        "cuLibraryLoadData",
        12000,
        "cuLibraryLoadData",
        CALLED,
        "CUlibrary *library, const void *code, CUjit_option *jitOptions, "
        "void **jitOptionsValues, unsigned int numJitOptions, "
        "CUlibraryOption *libraryOptions, void** libraryOptionValues, "
        "unsigned int numLibraryOptions",
    ),
    entry(
        302,
        "cuLibraryLoadFromFile",
        12000,
        "cuLibraryLoadFromFile",
        CALLED,
        "CUlibrary *library, const char *fileName, CUjit_option *jitOptions, "
        "void **jitOptionsValues, unsigned int numJitOptions, "
        "CUlibraryOption *libraryOptions, void **libraryOptionValues, "
        "unsigned int numLibraryOptions",
    ),
    entry(303, "cuLibraryUnload", 12000, "cuLibraryUnload", CALLED, "CUlibrary library"),
)
