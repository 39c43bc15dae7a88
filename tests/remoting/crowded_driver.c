/* A driver that has reserved, as it starts, the upper 6 TiB of its process's addresses: where clients have their memory.
 * With FARBUS_TEST_APART devices have memory of the host at other addresses than the host.
 *
 * Linked to the driver: what is not defined here is found there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define FIRST 0x7a0000000000ull
#define END 0x7ffffffff000ull
#define CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM 91

static void reserve(uint64_t low, uint64_t high)
{
	if (low < high)
		mmap((void *)(uintptr_t)low, high - low, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
}

int cuInit(unsigned flags)
{
	int (*next)(unsigned) = (int (*)(unsigned))dlsym(RTLD_NEXT, "cuInit");
	static uint64_t low[4096], high[4096];
	uint64_t free = FIRST;
	unsigned count = 0;
	FILE *maps;

	if (getenv("FARBUS_TEST_APART"))
		return next(flags);
	maps = fopen("/proc/self/maps", "r");
	while (maps && count < 4096 && fscanf(maps, "%lx-%lx%*[^\n]", &low[count], &high[count]) == 2)
		count++;
	if (maps)
		fclose(maps);
	for (unsigned i = 0; i < count; i++) {
		/* The stack grows downwards. */
		uint64_t end = i + 1 < count && high[i] < END ? low[i] : low[i] - (64ull << 20);

		if (low[i] < FIRST || low[i] >= END)
			continue;
		reserve(free, end);
		free = high[i];
	}
	return next(flags);
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	int (*next)(int *, int, int) = (int (*)(int *, int, int))dlsym(RTLD_NEXT, "cuDeviceGetAttribute");
	int result = next(value, attribute, device);

	if (result == 0 && attribute == CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM && getenv("FARBUS_TEST_APART"))
		*value = 0;
	return result;
}
