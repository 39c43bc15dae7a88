/* Green contexts.  What cuCtxFromGreenCtx gives is one more handle of the device's primary
 * context: on this side all belongs to that; which multiprocessors are meant, the server tells
 * from the handle. */
#include "../exchange/captures.h"
#include "../exchange/exchange.h"
#include "../ground/thread.h"
#include "../handles/greens.h"
#include "../handles/route.h"

#include <stdlib.h>

#include "../../generated/client_raw.h"

/* To the server that has it. */
static CUresult green_call(struct client_session *session, enum wire_op op, const void *fixed,
			   size_t bytes)
{
	const struct client_route route = client_route_session(session);
	const struct client_request request = { .op = op, .fixed = fixed, .fixed_bytes = bytes };
	struct client_wait wait = { 0 };

	return client_call_to(&route, &request, &wait);
}

CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
	struct client_green *green;
	CUcontext primary;
	CUresult result = cuDevicePrimaryCtxRetain(&primary, dev);

	if (result != CUDA_SUCCESS)
		return result;
	green = phCtx ? calloc(1, sizeof(*green)) : NULL;
	if (!green)
		result = phCtx ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
	else
		result = client_raw_cuGreenCtxCreate(&green->handle, desc, dev, flags);
	if (result != CUDA_SUCCESS) {
		free(green);
		cuDevicePrimaryCtxRelease_v2(dev);
		return result;
	}
	green->device = dev;
	green->references = 1;
	*phCtx = green->handle;
	client_green_add(green);
	return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx)
{
	struct wire_green_destroy request = { 0 };
	struct client_session *session;
	struct client_green *green;
	CUresult result = client_enter_any();
	CUdevice device;

	if (result != CUDA_SUCCESS)
		return result;
	green = client_green_end(hCtx);
	if (!green)
		return CUDA_ERROR_INVALID_CONTEXT;
	device = green->device;
	request.context = (uint64_t)(uintptr_t)green->context;
	client_captures_end_green(green);
	client_green_release(green);
	if (request.context)
		handle_close(&farbus_client.handles, HANDLE_CONTEXT, request.context);
	request.green = client_named_wire(hCtx, &session);
	result = green_call(session, WIRE_OP_GREEN_DESTROY, &request, sizeof(request));
	cuDevicePrimaryCtxRelease_v2(device);
	return result;
}

/* With the lock: the context is made when it is first asked for. */
static CUresult green_context(struct client_green *green)
{
	const struct client_device *device = &farbus_client.devices[green->device];
	struct client_session *session;
	struct wire_green_enter request = {
		.green = client_named_wire(green->handle, &session),
		.device = device->server_ordinal,
	};
	CUresult result;

	if (green->context)
		return CUDA_SUCCESS;
	if (handle_open(&farbus_client.handles, HANDLE_CONTEXT, device->primary, &request.context))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = green_call(session, WIRE_OP_GREEN_ENTER, &request, sizeof(request));
	if (result == CUDA_SUCCESS)
		green->context = (CUcontext)(uintptr_t)request.context;
	else
		handle_close(&farbus_client.handles, HANDLE_CONTEXT, request.context);
	return result;
}

CUresult cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx)
{
	struct client_green *green;
	CUresult result = client_enter_any();

	if (result != CUDA_SUCCESS)
		return result;
	if (!pContext)
		return CUDA_ERROR_INVALID_VALUE;
	client_greens_lock();
	green = client_green_find(hCtx);
	result = green ? green_context(green) : CUDA_ERROR_INVALID_CONTEXT;
	if (result == CUDA_SUCCESS)
		*pContext = green->context;
	client_greens_unlock();
	return result;
}

/* A stream that is made while the green context is current is one of its. */
CUresult cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags,
				int priority)
{
	CUcontext context;
	CUresult result = cuCtxFromGreenCtx(&context, greenCtx);

	if (result != CUDA_SUCCESS)
		return result;
	if (flags != CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	result = cuCtxPushCurrent_v2(context);
	if (result != CUDA_SUCCESS)
		return result;
	result = cuStreamCreateWithPriority(phStream, flags, priority);
	cuCtxPopCurrent_v2(NULL);
	return result;
}

/* ---- resources ---- */

/* Resources of other kinds have parts that a program writes; none are known here. */
#define RESOURCE_OF(function, parameters, ...)					\
	CUresult function parameters						\
	{									\
		if (type != CU_DEV_RESOURCE_TYPE_SM)				\
			return CUDA_ERROR_INVALID_RESOURCE_TYPE;		\
		return client_raw_##function(__VA_ARGS__);			\
	}

RESOURCE_OF(cuCtxGetDevResource, (CUcontext hCtx, CUdevResource *resource, CUdevResourceType type),
	    hCtx, resource, type)
RESOURCE_OF(cuDeviceGetDevResource, (CUdevice device, CUdevResource *resource,
				     CUdevResourceType type), device, resource, type)
RESOURCE_OF(cuGreenCtxGetDevResource, (CUgreenCtx hCtx, CUdevResource *resource,
				       CUdevResourceType type), hCtx, resource, type)
RESOURCE_OF(cuStreamGetDevResource, (CUstream hStream, CUdevResource *resource,
				     CUdevResourceType type), hStream, resource, type)
