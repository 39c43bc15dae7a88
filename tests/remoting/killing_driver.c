/* A driver whose calls about memory of the host, launches and waits killing.c may end the process at.
 *
 * Linked to the driver: what is not defined here is found there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

static void reached(const char *call, int behind)
{
	void (*reached)(const char *, int) = (void (*)(const char *, int))dlsym(RTLD_DEFAULT, "killing_reached");

	if (reached)
		reached(call, behind);
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	int (*next)(void **, int) = (int (*)(void **, int))dlsym(RTLD_NEXT, "cuDevicePrimaryCtxRetain");
	void (*begin)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "killing_begin");

	if (begin)
		begin();
	return next(context, device);
}

#define POINT(name, arguments, ...)							\
	int name arguments								\
	{										\
		int (*next) arguments = (int (*) arguments)dlsym(RTLD_NEXT, #name);	\
		int result;								\
											\
		reached(#name, 0);							\
		result = next(__VA_ARGS__);						\
		reached(#name, 1);							\
		return result;								\
	}

POINT(cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags), memory, bytes, flags)
POINT(cuMemHostUnregister, (void *memory), memory)
POINT(cuMemHostGetDevicePointer_v2, (uint64_t *device, void *memory, unsigned flags), device, memory, flags)
POINT(cuCtxSynchronize, (void))
POINT(cuStreamSynchronize, (void *stream), stream)
POINT(cuMemcpyHtoD_v2, (uint64_t device, const void *memory, size_t bytes), device, memory, bytes)
POINT(cuMemcpyDtoHAsync_v2, (void *memory, uint64_t device, size_t bytes, void *stream), memory, device, bytes, stream)
POINT(cuMemsetD32Async, (uint64_t device, unsigned value, size_t count, void *stream), device, value, count, stream)
POINT(cuLaunchKernel,
      (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
       void *stream, void **parameters, void **extra),
      function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra)
