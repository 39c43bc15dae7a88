/* Green contexts: making and ending them, and what is done with one. */
#include "../driver/green.h"

#include "../driver/capture.h"
#include "../driver/context_life.h"
#include "../driver/context_stack.h"
#include "../driver/handle.h"
#include "../driver/stream.h"
#include "resource.h"

#include <stdlib.h>

CUresult cuCtxRecordEvent(CUcontext context, CUevent event);
CUresult cuCtxWaitEvent(CUcontext context, CUevent event);

/* ---- life ---- */

/* A stream of a green context, with one reference, which its context has. */
static struct CUstream_st *add_stream(struct CUgreenCtx_st *green, unsigned flags)
{
	struct CUstream_st *stream = driver_stream_make(green->primary, flags);

	if (!stream)
		return NULL;
	driver_green_hold(green);
	stream->green = green;
	driver_stream_link(stream);
	return stream;
}

static CUresult name_both(struct CUgreenCtx_st *green)
{
	if (driver_handle_add(green, DRIVER_KIND_GREEN, NULL))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (driver_handle_add(&green->as_context, DRIVER_KIND_GREEN_AS_CONTEXT, NULL)) {
		driver_handle_remove(green, DRIVER_KIND_GREEN);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

/* Without a handle any more, or yet. */
static void end(struct CUgreenCtx_st *green)
{
	/* A reset of the primary context has taken its streams, and all that retained it. */
	bool retains = !green->stream || !driver_stream_has_ended(green->stream);
	struct CUctx_st *primary = green->primary;
	struct CUstream_st **streams;
	size_t count;

	__atomic_store_n(&green->ended, true, __ATOMIC_RELEASE);
	streams = driver_stream_list(green->primary, &count);
	for (size_t k = 0; streams && k < count; k++) {
		if (streams[k]->green == green)
			driver_capture_leave(streams[k]);
		driver_stream_drop(streams[k]);
	}
	free(streams);
	if (green->stream) {
		driver_stream_end(green->stream);
		driver_stream_drop(green->stream);
	}
	driver_green_drop(green);
	if (retains)
		driver_context_release(primary);
}

DRIVER_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc resources,
					CUdevice ordinal, unsigned int flags)
{
	DRIVER_CALL;
	static uint64_t last_id;
	struct driver_device *device;
	struct CUgreenCtx_st *green;
	struct CUctx_st *primary;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	if (!out || flags != CU_GREEN_CTX_DEFAULT_STREAM ||
	    !driver_handle_is(resources, DRIVER_KIND_RESOURCES) || resources->device != ordinal)
		return CUDA_ERROR_INVALID_VALUE;
	primary = device->primary;
	result = driver_context_retain(primary);
	if (result)
		return result;
	green = driver_handle_allocate(sizeof *green);
	if (!green) {
		driver_context_release(primary);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	green->references = 1;
	green->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
	green->primary = primary;
	driver_context_hold(primary);
	green->partition = resources->partition;
	green->stream = add_stream(green, 0);
	if (green->stream)
		driver_stream_hold(green->stream);
	result = green->stream ? name_both(green) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result) {
		end(green);
		return result;
	}
	*out = green;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!driver_handle_remove(green, DRIVER_KIND_GREEN))
		return CUDA_ERROR_INVALID_CONTEXT;
	driver_handle_remove(&green->as_context, DRIVER_KIND_GREEN_AS_CONTEXT);
	end(green);
	return CUDA_SUCCESS;
}

/* ---- what is done with one ---- */

static CUresult enter(CUgreenCtx green)
{
	CUresult result = driver_ready();

	if (!result && !driver_handle_is(green, DRIVER_KIND_GREEN))
		result = CUDA_ERROR_INVALID_CONTEXT;
	return result ? result : driver_context_state(green->primary);
}

DRIVER_EXPORT CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx green)
{
	DRIVER_CALL;
	CUresult result = enter(green);

	if (result)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUcontext)(void *)&green->as_context;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *resource,
						CUdevResourceType type)
{
	DRIVER_CALL;
	CUresult result = enter(green);

	return result ? result : api_resource_tell(green->primary->device, green, resource, type);
}

DRIVER_EXPORT CUresult cuGreenCtxGetId(CUgreenCtx green, unsigned long long *id)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (!result && !green)
		green = driver_context_top_green();
	if (!result)
		result = enter(green);
	if (result)
		return result;
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	*id = green->id;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned int flags,
					      int priority)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUresult result = enter(green);

	if (result)
		return result;
	if (!out || flags != CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	stream = add_stream(green, flags);
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream->priority = driver_stream_priority(priority);
	if (driver_handle_add(stream, DRIVER_KIND_STREAM, &stream->context->users)) {
		driver_stream_end(stream);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = stream;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx *out)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUresult result = driver_stream_of(handle, &stream);

	if (result)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = stream->green;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event)
{
	DRIVER_CALL;
	CUresult result = enter(green);

	return result ? result : cuCtxRecordEvent((CUcontext)(void *)&green->as_context, event);
}

DRIVER_EXPORT CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event)
{
	DRIVER_CALL;
	CUresult result = enter(green);

	return result ? result : cuCtxWaitEvent((CUcontext)(void *)&green->as_context, event);
}
