#include "green.h"

#include "handle.h"

_Thread_local const struct CUgreenCtx_st *driver_green_running;

void driver_green_hold(struct CUgreenCtx_st *green)
{
	if (green)
		__atomic_add_fetch(&green->references, 1, __ATOMIC_RELAXED);
}

void driver_green_drop(struct CUgreenCtx_st *green)
{
	if (!green || __atomic_sub_fetch(&green->references, 1, __ATOMIC_ACQ_REL))
		return;
	driver_context_drop(green->primary);
	driver_handle_retire(green, sizeof *green);
}

CUresult driver_context_named(CUcontext handle, struct CUctx_st **context,
			      struct CUgreenCtx_st **green)
{
	*green = NULL;
	if (driver_handle_is(handle, DRIVER_KIND_CONTEXT)) {
		*context = handle;
		return CUDA_SUCCESS;
	}
	if (!driver_handle_is(handle, DRIVER_KIND_GREEN_AS_CONTEXT))
		return CUDA_ERROR_INVALID_CONTEXT;
	*green = (struct CUgreenCtx_st *)((char *)handle -
					  offsetof(struct CUgreenCtx_st, as_context));
	*context = (*green)->primary;
	return CUDA_SUCCESS;
}

unsigned driver_partition_count(const struct driver_partition *partition)
{
	unsigned count = 0;

	for (unsigned k = 0; k < DRIVER_PARTITION_WORDS; k++)
		count += (unsigned)__builtin_popcountll(partition->bits[k]);
	return count;
}

unsigned driver_green_multiprocessors(const struct CUgreenCtx_st *green,
				      const struct driver_device *device)
{
	return green ? driver_partition_count(&green->partition) : device->model->multiprocessors;
}
