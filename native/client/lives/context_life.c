/* Contexts begin and end: handles here, lives on the server. */
#include "../across/helpers.h"
#include "../addresses/ranges.h"
#include "../exchange/captures.h"
#include "../exchange/exchange.h"
#include "../exchange/failure.h"
#include "../exchange/jobs.h"
#include "../ground/thread.h"
#include "../handles/events.h"
#include "../handles/graphs.h"
#include "../handles/route.h"
#include "../libraries/library.h"
#include "../managed/managed_alloc.h"
#include "../streams/context.h"
#include "../streams/current.h"
#include "context_life.h"

#include <stdlib.h>

#include "../../cudart/cudart.h"

static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;

static struct client_context *context_make(int device, struct client_session *session)
{
	struct client_context *context = calloc(1, sizeof(*context));
	uint64_t handle;

	if (!context)
		return NULL;
	context->device = device;
	context->session = session;
	context->id = atomic_fetch_add(&farbus_client.next_id, 1) + 1;
	if (handle_open(&farbus_client.handles, HANDLE_CONTEXT, context, &handle)) {
		free(context);
		return NULL;
	}
	context->handle = (CUcontext)(uintptr_t)handle;
	return context;
}

CUresult client_context_make_primary(struct client_device *device)
{
	device->primary = context_make((int)(device - farbus_client.devices), device->session);
	if (!device->primary)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (device != farbus_client.devices)
		atomic_store(&farbus_client.several, true);
	device->primary->primary = true;
	device->primary->flags = device->snapshot.primary_flags;
	return CUDA_SUCCESS;
}

/* What a context leaves behind when it ends: its objects are gone with it.  Its addresses were
 * forgotten before the server was asked: another thread may get them before this one hears. */
static void context_forget(struct client_context *context)
{
	atomic_fetch_add(&farbus_client.contexts_ended, 1);
	atomic_fetch_add(&context->ends, 1);
	client_captures_end_context(context);
	client_jobs_uncount(context, true);
	cudart_context_destroyed(context->handle);
	client_libraries_forget(context);
	client_helpers_forget(context);
	client_events_forget(context);
	client_graphs_changed();
}

static CUresult device_get(CUdevice ordinal, struct client_device **device)
{
	CUresult result = client_enter_any();

	if (result != CUDA_SUCCESS)
		return result;
	if (ordinal < 0 || ordinal >= farbus_client.device_count)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = &farbus_client.devices[ordinal];
	return CUDA_SUCCESS;
}

/* A call about a device rather than a context. */
static CUresult device_call(const struct client_device *device, enum wire_op op, const void *fixed,
			    size_t fixed_bytes)
{
	const struct client_route route = client_route_session(device->session);
	const struct client_request request = {
		.op = op,
		.fixed = fixed,
		.fixed_bytes = fixed_bytes,
	};
	struct client_wait wait = { 0 };

	return client_call_to(&route, &request, &wait);
}

/* ---- primary contexts ---- */

static CUresult primary_activate(struct client_device *device)
{
	const struct wire_primary_retain request = {
		.device = device->server_ordinal,
		.context = (uint64_t)(uintptr_t)device->primary->handle,
	};
	const struct client_route route = client_route_session(device->session);
	const struct client_request call = {
		.op = WIRE_OP_PRIMARY_RETAIN,
		.fixed = &request,
		.fixed_bytes = sizeof(request),
	};
	struct client_wait wait = { .result = CUDA_ERROR_DEVICE_UNAVAILABLE };
	/* Whether the server has it this call says alone: it can't be asked for twice. */
	CUresult result = client_call_own(&route, &call, &wait);

	if (result == CUDA_SUCCESS) {
		/* What went wrong in its life before is over. */
		atomic_store(&device->primary->sticky, CUDA_SUCCESS);
		atomic_store(&device->primary->late, CUDA_SUCCESS);
		device->primary->active = true;
	}
	return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	struct client_device *device;
	CUresult result = device_get(dev, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&context_lock);
	if (!device->primary->active)
		result = primary_activate(device);
	if (result == CUDA_SUCCESS) {
		device->primary->references++;
		*pctx = device->primary->handle;
	}
	pthread_mutex_unlock(&context_lock);
	return result;
}

static CUresult primary_end(struct client_device *device, enum wire_op op)
{
	const struct wire_primary_release request = { .device = device->server_ordinal };
	CUresult result;

	device->primary->active = false;
	client_limits_forget(device->primary);
	device->primary->references = 0;
	client_managed_forget_context(device->primary);
	client_memory_forget_context(device->primary);
	result = device_call(device, op, &request, sizeof(request));
	context_forget(device->primary);
	/* The error that the context died of is not this call's. */
	return client_result_is_sticky(result) ? CUDA_SUCCESS : result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	struct client_device *device;
	CUresult result = device_get(dev, &device);

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&context_lock);
	if (device->primary->references == 0)
		result = CUDA_ERROR_INVALID_CONTEXT;
	else if (--device->primary->references == 0)
		result = primary_end(device, WIRE_OP_PRIMARY_RELEASE);
	pthread_mutex_unlock(&context_lock);
	return result;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	struct client_device *device;
	CUresult result = device_get(dev, &device);
	unsigned references;

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&context_lock);
	references = device->primary->references;
	if (device->primary->active) {
		result = primary_end(device, WIRE_OP_PRIMARY_RESET);
		/* The references stay; the next one revives the context. */
		device->primary->references = references;
	}
	pthread_mutex_unlock(&context_lock);
	return result;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	struct wire_primary_set_flags request = { .flags = flags };
	struct client_device *device;
	CUresult result = device_get(dev, &device);

	if (result != CUDA_SUCCESS)
		return result;
	request.device = device->server_ordinal;
	result = device_call(device, WIRE_OP_PRIMARY_SET_FLAGS, &request, sizeof(request));
	if (result == CUDA_SUCCESS)
		device->primary->flags = flags;
	return result;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	struct client_device *device;
	CUresult result = device_get(dev, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&context_lock);
	*flags = device->primary->flags;
	*active = device->primary->active;
	pthread_mutex_unlock(&context_lock);
	return CUDA_SUCCESS;
}

/* ---- other contexts ---- */

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	struct wire_context_create request = { .flags = flags };
	struct client_device *device;
	struct client_context *context;
	CUresult result = device_get(dev, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	/* Before the server has made it for nobody. */
	if (client_thread()->depth == CLIENT_CONTEXT_STACK)
		return CUDA_ERROR_INVALID_VALUE;
	context = context_make(dev, device->session);
	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	atomic_store(&farbus_client.several, true);
	context->flags = flags;
	request.device = device->server_ordinal;
	request.context = (uint64_t)(uintptr_t)context->handle;
	result = device_call(device, WIRE_OP_CONTEXT_CREATE, &request, sizeof(request));
	if (result == CUDA_SUCCESS) {
		context->active = true;
		result = client_context_push(context->handle);
	}
	if (result != CUDA_SUCCESS) {
		handle_close(&farbus_client.handles, HANDLE_CONTEXT, request.context);
		free(context);
		return result;
	}
	*pctx = context->handle;
	return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
			unsigned int flags, CUdevice dev)
{
	if (numParams || paramsArray)
		return CUDA_ERROR_NOT_SUPPORTED;
	return cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
			CUdevice dev)
{
	if (ctxCreateParams &&
	    (ctxCreateParams->numExecAffinityParams || ctxCreateParams->cigParams))
		return CUDA_ERROR_NOT_SUPPORTED;
	return cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	const struct wire_context_destroy request = { .context = (uint64_t)(uintptr_t)ctx };
	struct client_thread *thread;
	struct client_context *context;
	CUresult result = client_enter_any();

	if (result != CUDA_SUCCESS)
		return result;
	context = client_context_get(ctx);
	if (!context || context->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	/* Nothing is made in it from here on. */
	context->active = false;
	client_managed_forget_context(context);
	client_memory_forget_context(context);
	result = client_call(WIRE_OP_CONTEXT_DESTROY, &request, sizeof(request), NULL, 0);
	context_forget(context);
	/* The handle stays known to other threads that have it current: they are
	 * told that it is destroyed, so the object is not freed. */
	handle_close(&farbus_client.handles, HANDLE_CONTEXT, request.context);
	thread = client_thread();
	if (thread->depth && thread->contexts[thread->depth - 1] == ctx)
		thread->depth--;
	return client_result_is_sticky(result) ? CUDA_SUCCESS : result;
}

/* ---- CUDA 2's way of sharing a context: an older name for counting its users ---- */

CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
	struct client_context *context;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!pctx || flags)
		return CUDA_ERROR_INVALID_VALUE;
	context = client_context_current();
	context->attached++;
	*pctx = context->handle;
	return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext ctx)
{
	struct client_context *context;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	context = client_context_get(ctx);
	if (!context || context != client_context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (context->attached) {
		context->attached--;
		return CUDA_SUCCESS;
	}
	return cuCtxDestroy_v2(ctx);
}
