"""Modules, and the linker."""

# ruff: noqa: E501 - a prototype is one string

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import CALLED, LOCAL, entry, marshalled

ENTRIES: Final = (
    entry(
        304,
        "cuLinkAddData",
        5050,
        "cuLinkAddData",
        CALLED,
        "CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name, unsigned int numOptions, CUjit_option *options, void **optionValues",
    ),
    entry(
        305,
        "cuLinkAddData",
        6050,
        "cuLinkAddData_v2",
        CALLED,
        "CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name, unsigned int numOptions, CUjit_option *options, void **optionValues",
    ),
    entry(
        306,
        "cuLinkAddFile",
        5050,
        "cuLinkAddFile",
        CALLED,
        "CUlinkState state, CUjitInputType type, const char *path, unsigned int numOptions, CUjit_option *options, void **optionValues",
    ),
    entry(
        307,
        "cuLinkAddFile",
        6050,
        "cuLinkAddFile_v2",
        CALLED,
        "CUlinkState state, CUjitInputType type, const char *path, unsigned int numOptions, CUjit_option *options, void **optionValues",
    ),
    entry(308, "cuLinkComplete", 5050, "cuLinkComplete", CALLED, "CUlinkState state, void **cubinOut, size_t *sizeOut"),
    entry(
        309,
        "cuLinkCreate",
        5050,
        "cuLinkCreate",
        CALLED,
        "unsigned int numOptions, CUjit_option *options, void **optionValues, CUlinkState *stateOut",
    ),
    entry(
        310,
        "cuLinkCreate",
        6050,
        "cuLinkCreate_v2",
        CALLED,
        "unsigned int numOptions, CUjit_option *options, void **optionValues, CUlinkState *stateOut",
    ),
    marshalled(311, "cuLinkDestroy", 5050, "cuLinkDestroy", "CUlinkState state", "drop:state hand"),
    entry(
        452,
        "cuModuleEnumerateFunctions",
        12040,
        "cuModuleEnumerateFunctions",
        LOCAL,
        "CUfunction *functions, unsigned int numFunctions, CUmodule mod",
    ),
    entry(
        453,
        "cuModuleGetFunction",
        2000,
        "cuModuleGetFunction",
        LOCAL,
        "CUfunction *hfunc, CUmodule hmod, const char *name",
    ),
    entry(
        454, "cuModuleGetFunctionCount", 12040, "cuModuleGetFunctionCount", LOCAL, "unsigned int *count, CUmodule hmod"
    ),
    entry(
        455,
        "cuModuleGetGlobal",
        2000,
        "cuModuleGetGlobal",
        LOCAL,
        "CUdeviceptr_v1 *dptr, unsigned int *bytes, CUmodule hmod, const char *name",
    ),
    entry(
        456,
        "cuModuleGetGlobal",
        3020,
        "cuModuleGetGlobal_v2",
        CALLED,
        "CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name",
    ),
    entry(457, "cuModuleGetLoadingMode", 11070, "cuModuleGetLoadingMode", LOCAL, "CUmoduleLoadingMode *mode"),
    marshalled(
        458,
        "cuModuleGetSurfRef",
        3000,
        "cuModuleGetSurfRef",
        "CUsurfref *pSurfRef, CUmodule hmod, const char *name",
        "",
    ),
    marshalled(
        459, "cuModuleGetTexRef", 2000, "cuModuleGetTexRef", "CUtexref *pTexRef, CUmodule hmod, const char *name", ""
    ),
    entry(460, "cuModuleLoad", 2000, "cuModuleLoad", CALLED, "CUmodule *module, const char *fname"),
    entry(461, "cuModuleLoadData", 2000, "cuModuleLoadData", CALLED, "CUmodule *module, const void *image"),
    entry(
        462,
        "cuModuleLoadDataEx",
        2010,
        "cuModuleLoadDataEx",
        CALLED,
        "CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options, void **optionValues",
    ),
    entry(
        463, "cuModuleLoadFatBinary", 2000, "cuModuleLoadFatBinary", CALLED, "CUmodule *module, const void *fatCubin"
    ),
    entry(464, "cuModuleUnload", 2000, "cuModuleUnload", CALLED, "CUmodule hmod"),
)
