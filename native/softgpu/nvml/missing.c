#include "device.h"

#include "../../generated/nvml_names.h"

/* What a software GPU has nothing to say about: each function that programs with remote GPUs find and device.c
 * lacks, whose definitions go before these.  All have to be there by name: hashcat does not start without those that
 * it looks for, and PyTorch tells of memory that has run out by way of NVLink's. */
#define MISSING(name) \
	__attribute__((weak)) NVML_EXPORT nvmlReturn_t name(void); \
	__attribute__((weak)) NVML_EXPORT nvmlReturn_t name(void) \
	{ \
		nvmlReturn_t result = nvml_device_ready(); \
\
		return result ? result : NVML_ERROR_NOT_SUPPORTED; \
	}

NVML_NAMES(MISSING)
