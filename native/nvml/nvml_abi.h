/* nvml_abi.h - the part of NVIDIA's management library (NVML) interface that is used here:
 * by the software GPU's libnvidia-ml, by the one that programs with remote GPUs get, and
 * by the remoting server, which asks a driver's.  Numbers, names and layouts as in nvml.h
 * of the CUDA toolkit 13.0 and in pynvml of the package nvidia-ml-py 13; texts of errors as
 * that package has them. */
#ifndef FARBUS_NVML_NVML_ABI_H
#define FARBUS_NVML_NVML_ABI_H

#include <stddef.h>

#define NVML_EXPORT __attribute__((visibility("default")))

/* X(name, number, text) */
#define NVML_RETURNS(X) \
	X(NVML_SUCCESS, 0, "Success") \
	X(NVML_ERROR_UNINITIALIZED, 1, "Uninitialized") \
	X(NVML_ERROR_INVALID_ARGUMENT, 2, "Invalid Argument") \
	X(NVML_ERROR_NOT_SUPPORTED, 3, "Not Supported") \
	X(NVML_ERROR_NO_PERMISSION, 4, "Insufficient Permissions") \
	X(NVML_ERROR_ALREADY_INITIALIZED, 5, "Already Initialized") \
	X(NVML_ERROR_NOT_FOUND, 6, "Not Found") \
	X(NVML_ERROR_INSUFFICIENT_SIZE, 7, "Insufficient Size") \
	X(NVML_ERROR_INSUFFICIENT_POWER, 8, "Insufficient External Power") \
	X(NVML_ERROR_DRIVER_NOT_LOADED, 9, "Driver Not Loaded") \
	X(NVML_ERROR_TIMEOUT, 10, "Timeout") \
	X(NVML_ERROR_IRQ_ISSUE, 11, "Interrupt Request Issue") \
	X(NVML_ERROR_LIBRARY_NOT_FOUND, 12, "NVML Shared Library Not Found") \
	X(NVML_ERROR_FUNCTION_NOT_FOUND, 13, "Function Not Found") \
	X(NVML_ERROR_CORRUPTED_INFOROM, 14, "Corrupted infoROM") \
	X(NVML_ERROR_GPU_IS_LOST, 15, "GPU is lost") \
	X(NVML_ERROR_RESET_REQUIRED, 16, "GPU requires restart") \
	X(NVML_ERROR_OPERATING_SYSTEM, 17, "The operating system has blocked the request.") \
	X(NVML_ERROR_LIB_RM_VERSION_MISMATCH, 18, "RM has detected an NVML/RM version mismatch.") \
	X(NVML_ERROR_IN_USE, 19, "In Use") \
	X(NVML_ERROR_MEMORY, 20, "Insufficient Memory") \
	X(NVML_ERROR_NO_DATA, 21, "No data") \
	X(NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, 22, "Vgpu Ecc Not Supported") \
	X(NVML_ERROR_INSUFFICIENT_RESOURCES, 23, "Insufficient Resources") \
	X(NVML_ERROR_FREQ_NOT_SUPPORTED, 24, "Frequency Not Supported") \
	X(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, 25, "Argument Version Mismatch") \
	X(NVML_ERROR_DEPRECATED, 26, "Deprecated") \
	X(NVML_ERROR_NOT_READY, 27, "Not Ready") \
	X(NVML_ERROR_GPU_NOT_FOUND, 28, "GPU Not Found") \
	X(NVML_ERROR_INVALID_STATE, 29, "Invalid State") \
	X(NVML_ERROR_RESET_TYPE_NOT_SUPPORTED, 30, "Reset Type Not Supported") \
	X(NVML_ERROR_UNKNOWN, 999, "Unknown Error")

typedef enum {
#define ROW(name, number, text) name = number,
	NVML_RETURNS(ROW)
#undef ROW
} nvmlReturn_t;

/* What nvmlErrorString says. */
static inline const char *nvml_return_text(nvmlReturn_t result)
{
	switch ((int)result) {
#define ROW(name, number, text) \
	case number: \
		return text;
		NVML_RETURNS(ROW)
#undef ROW
	}
	return "Unknown Error";
}

typedef struct nvmlDevice_st *nvmlDevice_t;

/* The version that a structure of that layout begins with. */
#define NVML_VERSION_OF(type, version) ((unsigned)(sizeof(type) | (unsigned)(version) << 24))
/* The size in such a version. */
#define NVML_VERSION_BYTES(version) ((version) & 0xffffffu)

typedef struct {
	unsigned long long total, free, used;		/* bytes */
} nvmlMemory_t;

typedef struct {
	unsigned int version;
	unsigned long long total, reserved, free, used;	/* bytes */
} nvmlMemory_v2_t;

#define NVML_MEMORY_V2 NVML_VERSION_OF(nvmlMemory_v2_t, 2)

typedef struct {
	unsigned int gpu, memory;			/* percent of the last second */
} nvmlUtilization_t;

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;		/* bytes */
} nvmlProcessInfo_v1_t;

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;		/* bytes; ~0: not known */
	unsigned int gpuInstanceId, computeInstanceId;	/* ~0: not split */
} nvmlProcessInfo_t;

/* Up to pciSubSystemId the same in all versions; v1 and v2 have 16 more bytes, reserved,
 * and no busId. */
typedef struct {
	char busIdLegacy[16];				/* dddd:bb:dd.f */
	unsigned int domain, bus, device;
	unsigned int pciDeviceId, pciSubSystemId;	/* device << 16 | vendor */
	char busId[32];					/* dddddddd:bb:dd.f */
} nvmlPciInfo_t;

#define NVML_PCI_INFO_V2_BYTES offsetof(nvmlPciInfo_t, busId)

typedef struct {
	unsigned int version;
	unsigned int domain, bus, device;
	unsigned int pciDeviceId, pciSubSystemId;
	unsigned int baseClass, subClass;
	char busId[32];
} nvmlPciInfoExt_t;

typedef struct {
	unsigned int version;
	unsigned int type;				/* enum nvml_uuid_type */
	union {
		char text[41];
		unsigned char bytes[16];
	} value;
} nvmlUUID_t;

enum nvml_uuid_type { NVML_UUID_TYPE_ASCII = 1, NVML_UUID_TYPE_BINARY = 2 };

typedef struct {
	unsigned int fieldId, scopeId;
	long long timestamp, latencyUsec;		/* microseconds */
	unsigned int valueType;
	unsigned int nvmlReturn;
	unsigned long long value;			/* a union of numbers */
} nvmlFieldValue_t;

enum {
	NVML_P2P_STATUS_OK = 0,
	NVML_P2P_STATUS_NOT_SUPPORTED = 5,
	NVML_P2P_CAPS_INDEX_NVLINK = 2,
	NVML_P2P_CAPS_INDEX_UNKNOWN = 5,		/* behind READ, WRITE, NVLINK, ATOMICS, PROP */
	NVML_GPU_VIRTUALIZATION_MODE_NONE = 0,
	NVML_PCI_CLASS_DISPLAY = 3,			/* PCI Code and ID Assignment, 03h */
	NVML_PCI_SUBCLASS_3D = 2,
};

_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "layout of NVML");
_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16, "layout of NVML");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "layout of NVML");
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "layout of NVML");
_Static_assert(NVML_PCI_INFO_V2_BYTES == 36, "layout of NVML");
_Static_assert(sizeof(nvmlPciInfoExt_t) == 64, "layout of NVML");
_Static_assert(sizeof(nvmlUUID_t) == 52, "layout of NVML");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "layout of NVML");

#endif
