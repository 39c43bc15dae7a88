/* Contexts: primary and created ones, and the calling thread's stack of them. */
#include "../driver/context.h"

#include "../driver/context_life.h"
#include "../driver/context_stack.h"
#include "../driver/green.h"
#include "../driver/handle.h"

/* ---- primary contexts ---- */

static CUresult primary_of(CUdevice ordinal, struct CUctx_st **context)
{
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (!result)
		*context = device->primary;
	return result;
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = primary_of(ordinal, &context);

	if (result)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_context_retain(context);
	if (!result)
		*out = context;
	return result;
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = primary_of(ordinal, &context);

	return result ? result : driver_context_release(context);
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = primary_of(ordinal, &context);

	if (!result)
		driver_context_reset(context);
	return result;
}

/* The versions before CUDA 11 differ in nothing that is left. */
DRIVER_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
	return cuDevicePrimaryCtxRelease_v2(ordinal);
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice ordinal)
{
	return cuDevicePrimaryCtxReset_v2(ordinal);
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int flags)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = primary_of(ordinal, &context);

	if (result)
		return result;
	if (!driver_context_flags_are_valid(flags))
		return CUDA_ERROR_INVALID_VALUE;
	driver_context_set_flags(context, flags);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned int flags)
{
	return cuDevicePrimaryCtxSetFlags_v2(ordinal, flags);
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags,
						  int *active)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	bool is_active;
	CUresult result = primary_of(ordinal, &context);

	if (result)
		return result;
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	driver_context_look(context, flags, &is_active);
	*active = is_active;
	return CUDA_SUCCESS;
}

/* ---- created contexts ---- */

static CUresult context_create(CUcontext *out, unsigned flags, CUdevice ordinal)
{
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	if (!out || !driver_context_flags_are_valid(flags))
		return CUDA_ERROR_INVALID_VALUE;
	return driver_context_create(device, flags, out);
}

DRIVER_EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice ordinal)
{
	DRIVER_CALL;
	return context_create(out, flags, ordinal);
}

DRIVER_EXPORT CUresult cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *affinity, int count,
				      unsigned int flags, CUdevice ordinal)
{
	DRIVER_CALL;
	if (affinity || count)
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	return context_create(out, flags, ordinal);
}

DRIVER_EXPORT CUresult cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *params,
				      unsigned int flags, CUdevice ordinal)
{
	DRIVER_CALL;
	if (params && (params->execAffinityParams || params->numExecAffinityParams))
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	if (params && params->cigParams)
		return driver_unsupported("cuCtxCreate_v4 with cigParams");
	return context_create(out, flags, ordinal);
}

DRIVER_EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!driver_handle_is(context, DRIVER_KIND_CONTEXT) || context->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	return driver_context_destroy(context);
}

DRIVER_FIRST_NAME(cuCtxDestroy);

/* Usage counts of contexts ended with CUDA 4; what remains of these two is
 * "create's reference" (cuda.h, "Deprecated Context Management"). */
DRIVER_EXPORT CUresult cuCtxAttach(CUcontext *out, unsigned int flags)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_current(&context);

	if (result)
		return result;
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	__atomic_add_fetch(&context->retained, 1, __ATOMIC_RELAXED);
	*out = context;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxDetach(CUcontext context)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!driver_handle_is(context, DRIVER_KIND_CONTEXT) || context->primary ||
	    driver_context_top() != context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (__atomic_sub_fetch(&context->retained, 1, __ATOMIC_RELAXED))
		return CUDA_SUCCESS;
	return driver_context_destroy(context);
}

/* ---- the stack ---- */

DRIVER_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
	DRIVER_CALL;
	struct CUgreenCtx_st *green;
	struct CUctx_st *context;
	CUresult result = driver_ready();

	if (!result)
		result = driver_context_named(handle, &context, &green);
	return result ? result : driver_context_push(context, green);
}

DRIVER_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!driver_context_top())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (out)
		*out = driver_context_top_handle();
	driver_context_pop();
	return CUDA_SUCCESS;
}

/* By which cuDNN looks for these, as for the linker's. */
DRIVER_FIRST_NAME(cuCtxPushCurrent);
DRIVER_FIRST_NAME(cuCtxPopCurrent);

DRIVER_EXPORT CUresult cuCtxSetCurrent(CUcontext handle)
{
	DRIVER_CALL;
	struct CUgreenCtx_st *green = NULL;
	struct CUctx_st *context = NULL;
	CUresult result = driver_ready();

	if (!result && handle)
		result = driver_context_named(handle, &context, &green);
	if (result)
		return result;
	if (handle == driver_context_top_handle())
		return CUDA_SUCCESS;
	if (driver_context_top())
		driver_context_pop();
	return context ? driver_context_push(context, green) : CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxGetCurrent(CUcontext *out)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = driver_context_top_handle();
	return CUDA_SUCCESS;
}
