/* What is asked of contexts, and what waits for them. */
#include "../exchange/exchange.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "context.h"

#include "../../generated/client_raw.h"

static pthread_mutex_t limits_lock = PTHREAD_MUTEX_INITIALIZER;

void client_limits_forget(struct client_context *context)
{
	pthread_mutex_lock(&limits_lock);
	context->limits_epoch++;
	atomic_store(&context->limits_known, 0);
	pthread_mutex_unlock(&limits_lock);
}

/* The context a caller means: `handle`, or the current one. */
static CUresult context_meant(CUcontext handle, struct client_context **context)
{
	CUresult result = client_enter_any();

	if (result != CUDA_SUCCESS)
		return result;
	if (handle) {
		*context = client_context_get(handle);
		return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	}
	*context = client_context_current();
	if (*context)
		return CUDA_SUCCESS;
	return client_thread()->depth ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
	struct client_context *context;
	CUresult result = context_meant(ctx, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = context->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	return cuCtxGetDevice_v2(device, NULL);
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
	struct client_context *context;
	CUresult result = context_meant(NULL, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = context->flags;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
	struct client_context *context;
	CUresult result = context_meant(ctx, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = 3020;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
	struct client_context *context;
	CUresult result = context_meant(ctx, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!ctxId)
		return CUDA_ERROR_INVALID_VALUE;
	*ctxId = context->id;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *pconfig)
{
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!pconfig)
		return CUDA_ERROR_INVALID_VALUE;
	*pconfig = atomic_load(&client_context_current()->cache);
	return CUDA_SUCCESS;
}

/* A preference that no GPU since Volta takes notice of: kept, not sent. */
CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (config > CU_FUNC_CACHE_PREFER_EQUAL)
		return CUDA_ERROR_INVALID_VALUE;
	atomic_store(&client_context_current()->cache, config);
	return CUDA_SUCCESS;
}

/* Bank sizes were a choice on Kepler only. */
CUresult cuCtxGetSharedMemConfig(CUsharedconfig *pConfig)
{
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!pConfig)
		return CUDA_ERROR_INVALID_VALUE;
	*pConfig = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	return config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE
								  : CUDA_SUCCESS;
}

/* Asked once: the driver changes a limit by cuCtxSetLimit alone. */
CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit)
{
	const struct wire_context_get_limit request = { .limit = limit };
	struct wire_context_get_limit_reply reply;
	struct client_context *context;
	CUresult result = client_enter_context(&context);
	uint32_t bit = (unsigned)limit < CLIENT_LIMITS ? 1u << limit : 0;
	unsigned epoch;

	if (result != CUDA_SUCCESS)
		return result;
	if (!pvalue)
		return CUDA_ERROR_INVALID_VALUE;
	if (atomic_load(&context->limits_known) & bit) {
		*pvalue = context->limits[limit];
		return CUDA_SUCCESS;
	}
	epoch = atomic_load(&context->limits_epoch);
	result = client_call(WIRE_OP_CONTEXT_GET_LIMIT, &request, sizeof(request), &reply, sizeof(reply));
	if (result != CUDA_SUCCESS)
		return result;
	*pvalue = reply.value;
	pthread_mutex_lock(&limits_lock);
	/* Another thread may have set it meanwhile. */
	if (bit && context->limits_epoch == epoch) {
		context->limits[limit] = reply.value;
		atomic_fetch_or(&context->limits_known, bit);
	}
	pthread_mutex_unlock(&limits_lock);
	return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	const struct wire_context_set_limit request = { .limit = limit, .value = value };
	struct client_context *context;
	CUresult result = client_enter_context(&context);

	if (result != CUDA_SUCCESS)
		return result;
	result = client_call(WIRE_OP_CONTEXT_SET_LIMIT, &request, sizeof(request), NULL, 0);
	/* The driver may have rounded it. */
	client_limits_forget(context);
	return result;
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
	struct wire_context_stream_priorities_reply reply;
	struct client_context *context;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	context = client_context_current();
	if (!atomic_load(&context->priorities_known)) {
		result = client_call(WIRE_OP_CONTEXT_STREAM_PRIORITIES, NULL, 0, &reply,
				     sizeof(reply));
		if (result != CUDA_SUCCESS)
			return result;
		context->least_priority = reply.least;
		context->greatest_priority = reply.greatest;
		atomic_store(&context->priorities_known, 1);
	}
	if (leastPriority)
		*leastPriority = context->least_priority;
	if (greatestPriority)
		*greatestPriority = context->greatest_priority;
	return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
	const struct client_request request = { .op = WIRE_OP_CONTEXT_SYNCHRONIZE };
	struct client_wait wait = { 0 };
	struct client_context *context;
	struct client_route route;
	CUresult result;

	if (!ctx)
		return cuCtxSynchronize();
	result = context_meant(ctx, &context);
	if (result == CUDA_SUCCESS)
		result = atomic_load(&context->sticky);
	if (result != CUDA_SUCCESS)
		return result;
	route = (struct client_route){ .session = context->session, .context = (uint64_t)(uintptr_t)ctx };
	return client_call_to(&route, &request, &wait);
}

CUresult client_contexts_synchronize(void)
{
	const struct client_context *current = client_context_current();
	CUresult result = cuCtxSynchronize();

	for (int i = 0; i < farbus_client.device_count && result == CUDA_SUCCESS; i++) {
		const struct client_device *device = &farbus_client.devices[i];

		if (device->primary->active && current && device->session != current->session &&
		    !atomic_load(&device->session->dead))
			result = cuCtxSynchronize_v2(device->primary->handle);
	}
	return result;
}

CUresult cuCtxSetFlags(unsigned int flags)
{
	CUresult result = client_enter();

	if (result == CUDA_SUCCESS)
		result = client_raw_cuCtxSetFlags(flags);
	if (result == CUDA_SUCCESS)
		client_context_current()->flags = flags;
	return result;
}
