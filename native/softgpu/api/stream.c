#include "../driver/stream.h"

#include "../driver/capture.h"
#include "../driver/context_stack.h"
#include "../driver/green.h"
#include "../driver/handle.h"
#include "../driver/host.h"
#include "../driver/pool.h"

static CUresult stream_create(CUstream *out, unsigned flags, int priority)
{
	struct CUctx_st *context;
	struct CUstream_st *stream;
	CUresult result = driver_context_enter(&context);

	if (result)
		return result;
	if (!out || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	stream = driver_stream_make(context, flags);
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream->green = driver_context_top_green();
	driver_green_hold(stream->green);
	stream->priority = driver_stream_priority(priority);
	if (driver_handle_add(stream, DRIVER_KIND_STREAM, &context->users)) {
		driver_stream_drop(stream);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	driver_stream_link(stream);
	*out = stream;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
	DRIVER_CALL;
	return stream_create(out, flags, DRIVER_PRIORITY_LEAST);
}

DRIVER_EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority)
{
	DRIVER_CALL;
	return stream_create(out, flags, priority);
}

/* Returns at once; what is queued still runs. */
DRIVER_EXPORT CUresult cuStreamDestroy_v2(CUstream handle)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!driver_handle_is(handle, DRIVER_KIND_STREAM) || !driver_handle_remove(handle, DRIVER_KIND_STREAM))
		return CUDA_ERROR_INVALID_HANDLE;
	result = driver_context_state(handle->context);
	driver_capture_leave(handle);
	driver_stream_end(handle);
	return result;
}

DRIVER_FIRST_NAME(cuStreamDestroy);

DRIVER_EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
	DRIVER_CALL;
	struct driver_operation *marker;
	struct CUstream_st *stream;
	struct driver_point point;
	struct CUctx_st *context;
	CUresult result = driver_stream_of(handle, &stream);

	if (!result)
		result = driver_capture_forbid(stream);
	if (result)
		return result;
	/* Also with an error, wait: callbacks are still told of it. */
	context = stream->context;
	if (stream->legacy) {
		/* An empty operation waits for just what the stream waits for. */
		marker = driver_operation_make_empty();
		if (!marker)
			return CUDA_ERROR_OUT_OF_MEMORY;
		result = driver_stream_submit(stream, marker, DRIVER_SUBMIT_WAIT, NULL);
		driver_pool_settle();
		return result;
	}
	driver_stream_point(stream, &point);
	driver_point_wait(&point);
	driver_point_drop(&point);
	driver_pool_settle();
	return driver_context_state(context);
}

DRIVER_EXPORT CUresult cuStreamQuery(CUstream handle)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUresult result = driver_stream_enter(handle, &stream);

	if (result)
		return result;
	return driver_stream_is_quiet(stream) ? driver_context_state(stream->context) :
						CUDA_ERROR_NOT_READY;
}

DRIVER_EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUresult result = driver_stream_of(handle, &stream);

	if (result)
		return result;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = stream->flags;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUresult result = driver_stream_of(handle, &stream);

	if (result)
		return result;
	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	*priority = stream->priority;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUresult result = driver_stream_of(handle, &stream);

	if (result)
		return result;
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	*id = stream->id;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUresult result = driver_stream_of(handle, &stream);

	if (result)
		return result;
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	*context = stream->green ? (CUcontext)(void *)&stream->green->as_context : stream->context;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUresult result = driver_stream_of(handle, &stream);

	if (result)
		return result;
	if (handle == CU_STREAM_PER_THREAD && stream->green)
		return CUDA_ERROR_INVALID_HANDLE;
	if (green)
		*green = stream->green;
	if (context)
		*context = stream->context;
	return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuStreamGetDevice(CUstream handle, CUdevice *ordinal)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUresult result = driver_stream_of(handle, &stream);

	if (result)
		return result;
	if (!ordinal)
		return CUDA_ERROR_INVALID_VALUE;
	*ordinal = stream->context->device->ordinal;
	return CUDA_SUCCESS;
}

/* ---- host functions ---- */

DRIVER_EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *argument)
{
	DRIVER_CALL;
	struct driver_operation *host;
	struct CUstream_st *stream;
	bool capturing;
	CUresult result = driver_stream_enter_or_capture(handle, &stream, &capturing);

	if (result)
		return result;
	if (capturing) {
		CUDA_HOST_NODE_PARAMS params = { function, argument };

		return driver_capture_host(stream, &params);
	}
	result = driver_host_prepare(function, argument, &host);
	return result ? result : driver_stream_submit(stream, host, 0, NULL);
}

DRIVER_EXPORT CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback,
					   void *argument, unsigned int flags)
{
	DRIVER_CALL;
	struct driver_operation *operation;
	struct CUstream_st *stream;
	CUresult result = flags ? CUDA_ERROR_INVALID_VALUE : driver_stream_enter(handle, &stream);

	if (!result)
		result = driver_callback_prepare(handle, callback, argument, &operation);
	return result ? result : driver_stream_submit(stream, operation, 0, NULL);
}

/* ---- managed memory ---- */

DRIVER_EXPORT CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t length,
					      unsigned int flags)
{
	DRIVER_CALL;
	struct CUstream_st *stream;

	/* Managed memory is always coherent here: attaching changes nothing. */
	(void)address, (void)length, (void)flags;
	return driver_stream_enter(handle, &stream);
}

/* ---- attributes of streams ---- */

static CUlaunchAttributeValue *attribute_of(struct CUstream_st *stream, CUlaunchAttributeID id)
{
	switch (id) {
	case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
		return &stream->attributes[0];
	case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
		return &stream->attributes[1];
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
		return &stream->attributes[2];
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
		return &stream->attributes[3];
	default:
		return NULL;
	}
}

DRIVER_EXPORT CUresult cuStreamGetAttribute(CUstream handle, CUlaunchAttributeID id,
					    CUlaunchAttributeValue *value)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUresult result = driver_stream_of(handle, &stream);

	if (result)
		return result;
	if (value && id == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
		*value = (CUlaunchAttributeValue){ .priority = stream->priority };
		return CUDA_SUCCESS;
	}
	if (!value || !attribute_of(stream, id))
		return CUDA_ERROR_INVALID_VALUE;
	*value = *attribute_of(stream, id);
	return CUDA_SUCCESS;
}

/* Hints, which change nothing here; a priority is chosen when a stream is made. */
DRIVER_EXPORT CUresult cuStreamSetAttribute(CUstream handle, CUlaunchAttributeID id,
					    const CUlaunchAttributeValue *value)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUresult result = driver_stream_of(handle, &stream);

	if (result)
		return result;
	if (!value || !attribute_of(stream, id) ||
	    (id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN && (unsigned)value->memSyncDomain > 1))
		return CUDA_ERROR_INVALID_VALUE;
	*attribute_of(stream, id) = *value;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuStreamCopyAttributes(CUstream to, CUstream from)
{
	DRIVER_CALL;
	struct CUstream_st *target, *source;
	CUresult result = driver_stream_of(to, &target);

	if (!result)
		result = driver_stream_of(from, &source);
	if (result)
		return result;
	for (size_t k = 0; k < sizeof target->attributes / sizeof *target->attributes; k++)
		target->attributes[k] = source->attributes[k];
	return CUDA_SUCCESS;
}
