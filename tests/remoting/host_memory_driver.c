/* A driver that gives memory of its host, as NVIDIA's does: it says so in each attribute of that, and gives it to
 * whoever asks.
 *
 * Linked to the driver: what is not defined here is found there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

enum { NUMA_CONFIG = 130, NUMA_ID, HOST_NUMA_ID = 134, FIRST = 141, LAST = 147 };

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	int (*next)(int *, int, int) = (int (*)(int *, int, int))dlsym(RTLD_NEXT, "cuDeviceGetAttribute");
	int result = next(value, attribute, device);

	if (result == 0 && (attribute == NUMA_CONFIG || attribute == NUMA_ID || attribute == HOST_NUMA_ID ||
			    (attribute >= FIRST && attribute <= LAST)))
		*value = 1;
	return result;
}

int cuMemCreate(unsigned long long *handle, size_t bytes, const void *properties, unsigned long long flags)
{
	(void)bytes, (void)properties, (void)flags;
	*handle = 4096;
	return 0;
}

/* 4096 of devices, which are location 1. */
int cuMemGetAllocationGranularity(size_t *granularity, const int *properties, int option)
{
	(void)option;
	*granularity = properties[2] == 1 ? 4096 : 8192;
	return 0;
}

int cuMemPoolCreate(void **pool, const void *properties)
{
	(void)properties;
	*pool = (void *)4096;
	return 0;
}
