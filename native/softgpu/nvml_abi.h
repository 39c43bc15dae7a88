/* nvml_abi.h - the part of NVIDIA's management library (NVML) interface that
 * the software GPU has: numbers and layouts as in nvml.h of the CUDA toolkit
 * and in pynvml of the nvidia-ml-py package. */
#ifndef FARBUS_SOFTGPU_NVML_ABI_H
#define FARBUS_SOFTGPU_NVML_ABI_H

#include <stddef.h>

#define NVML_EXPORT __attribute__((visibility("default")))

typedef enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct nvmlDevice_st *nvmlDevice_t;

typedef struct {
	unsigned long long total, free, used;		/* bytes */
} nvmlMemory_t;

typedef struct {
	unsigned int version;
	unsigned long long total, reserved, free, used;	/* bytes */
} nvmlMemory_v2_t;

#define NVML_MEMORY_V2 (sizeof(nvmlMemory_v2_t) | 2u << 24)

typedef struct {
	unsigned int gpu, memory;			/* percent of the last second */
} nvmlUtilization_t;

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;		/* bytes */
} nvmlProcessInfo_v1_t;

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;		/* bytes */
	unsigned int gpuInstanceId, computeInstanceId;	/* ~0: not split */
} nvmlProcessInfo_t;

typedef struct {
	char busIdLegacy[16];				/* dddd:bb:dd.f */
	unsigned int domain, bus, device;
	unsigned int pciDeviceId, pciSubSystemId;	/* device << 16 | vendor */
	char busId[32];					/* dddddddd:bb:dd.f */
} nvmlPciInfo_t;

_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "layout of NVML");
_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16, "layout of NVML");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "layout of NVML");
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "layout of NVML");

#endif
