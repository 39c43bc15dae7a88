/* abi.h - types and numbers of the CUDA driver API, from one place.
 *
 * Everything in native/softgpu that needs a type, an enumerator or a structure
 * of the driver API includes this file and nothing else for it.  The API's
 * functions are wanted by their exported names (cuMemAlloc_v2, never the
 * cuMemAlloc that cuda.h maps to it), which is what the internal switch does.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_ABI_H
#define FARBUS_SOFTGPU_DRIVER_ABI_H

#define __CUDA_API_VERSION_INTERNAL
#if __has_include("../../generated/cuda_abi.h")
#include "../../generated/cuda_abi.h"
#else
#include <cuda.h>
#endif

typedef struct CUlinkState_st *CUlinkState;	/* remoting has no linking, so the file lacks it */

/* The version of the API that this driver implements. */
#define DRIVER_API_VERSION 13000

#define DRIVER_EXPORT __attribute__((visibility("default")))

/* A function under the name that it had first, too, with the same parameters: libraries that open the driver look for some so. */
#define DRIVER_FIRST_NAME(name) DRIVER_EXPORT __typeof__(name##_v2) name __attribute__((alias(#name "_v2")))

#endif
