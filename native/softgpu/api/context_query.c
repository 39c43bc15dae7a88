/* What a program can ask of a context, and the switches that it has. */
#include "../driver/context.h"

#include "../driver/capture.h"
#include "../driver/context_stack.h"
#include "../driver/pool.h"
#include "../driver/stream.h"

DRIVER_EXPORT CUresult cuCtxGetDevice(CUdevice *ordinal)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!ordinal)
		return CUDA_ERROR_INVALID_VALUE;
	/* A primary context that is not active yet has its device already. */
	if (!driver_context_top())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!driver_context_top()->active && !driver_context_top()->primary)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*ordinal = driver_context_top()->device->ordinal;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxGetDevice_v2(CUdevice *ordinal, CUcontext wanted)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result;

	if (!wanted)
		return cuCtxGetDevice(ordinal);
	result = driver_context_wanted(wanted, &context);
	if (result)
		return result;
	if (!ordinal)
		return CUDA_ERROR_INVALID_VALUE;
	*ordinal = context->device->ordinal;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxGetFlags(unsigned int *flags)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_current(&context);

	if (result)
		return result;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = context->flags;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxSetFlags(unsigned int flags)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_current(&context);

	if (result)
		return result;
	if (!driver_context_flags_are_valid(flags))
		return CUDA_ERROR_INVALID_VALUE;
	context->flags = flags;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxGetId(CUcontext wanted, unsigned long long *id)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_wanted(wanted, &context);

	if (result)
		return result;
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	*id = context->id;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxGetApiVersion(CUcontext wanted, unsigned int *version)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_wanted(wanted, &context);

	if (result)
		return result;
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = 3020;	/* of the context's interface, not of the driver */
	return CUDA_SUCCESS;
}

static CUresult context_synchronize(CUcontext wanted)
{
	struct CUctx_st *context;
	CUresult result = driver_context_wanted(wanted, &context);

	if (!result)
		result = driver_capture_unsafe();
	if (result)
		return result;
	/* Also with an error, wait: callbacks are still told of it. */
	if (driver_context_state(context) != CUDA_ERROR_CONTEXT_IS_DESTROYED)
		driver_stream_drain(context);
	driver_pool_settle();
	return driver_context_state(context);
}

DRIVER_EXPORT CUresult cuCtxSynchronize(void)
{
	DRIVER_CALL;
	return context_synchronize(NULL);
}

DRIVER_EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
	DRIVER_CALL;
	return context_synchronize(context);
}

DRIVER_EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_current(&context);

	if (result)
		return result;
	if (least)
		*least = DRIVER_PRIORITY_LEAST;
	if (greatest)
		*greatest = DRIVER_PRIORITY_GREATEST;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_current(&context);

	if (result)
		return result;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if ((unsigned)limit >= DRIVER_LIMIT_COUNT)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	*value = context->limits[limit];
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_current(&context);

	if (result)
		return result;
	if ((unsigned)limit >= DRIVER_LIMIT_COUNT)
		return CUDA_ERROR_INVALID_VALUE;
	/* "only applicable to devices of compute capability < 9.0" */
	if (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH && context->device->capability->sm >= 90)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	context->limits[limit] = value;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_current(&context);

	if (result)
		return result;
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = context->cache_config;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_current(&context);

	if (result)
		return result;
	if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL)
		return CUDA_ERROR_INVALID_VALUE;
	context->cache_config = config;
	return CUDA_SUCCESS;
}

/* Shared memory banks have had one size since Maxwell. */
DRIVER_EXPORT CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_current(&context);

	if (result)
		return result;
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_current(&context);

	if (result)
		return result;
	return (unsigned)config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ?
		CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxResetPersistingL2Cache(void)
{
	DRIVER_CALL;
	struct CUctx_st *context;

	return driver_context_current(&context);
}
