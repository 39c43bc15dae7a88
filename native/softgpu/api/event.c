#include "../driver/event.h"

#include "../driver/context_stack.h"
#include "../driver/event_share.h"
#include "../driver/green.h"
#include "../driver/handle.h"
#include "../driver/pool.h"
#include "../driver/stream.h"

#include <stdlib.h>

DRIVER_EXPORT CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
	DRIVER_CALL;
	struct driver_shared_event *shared = NULL;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);

	if (result)
		return result;
	if (!out || flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING |
					CU_EVENT_INTERPROCESS))
		return CUDA_ERROR_INVALID_VALUE;
	if (flags & CU_EVENT_INTERPROCESS) {
		if (!(flags & CU_EVENT_DISABLE_TIMING))
			return CUDA_ERROR_INVALID_VALUE;
		shared = driver_shared_event_make();
		if (!shared)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return driver_event_make(context, flags, shared, out);
}

DRIVER_EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!driver_handle_remove(event, DRIVER_KIND_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	result = driver_context_state(event->context);
	driver_event_free(event);
	return result;
}

DRIVER_FIRST_NAME(cuEventDestroy);

/* ---- recording ---- */

static CUresult event_record(CUevent event, CUstream handle, unsigned flags)
{
	struct CUstream_st *stream;
	bool capturing;
	CUresult result = driver_event_of(event);

	if (!result)
		result = driver_stream_enter_or_capture(handle, &stream, &capturing);
	if (result)
		return result;
	if (!capturing) {
		/* "This flag is invalid when used outside of capture." */
		return flags ? CUDA_ERROR_INVALID_VALUE : driver_event_submit_record(event, stream);
	}
	if (stream->context != event->context)
		return CUDA_ERROR_INVALID_HANDLE;
	return flags ? driver_capture_event_node(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event) :
		       driver_event_capture(event, stream);
}

DRIVER_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
	DRIVER_CALL;
	return event_record(event, stream, 0);
}

DRIVER_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
	DRIVER_CALL;
	if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	return event_record(event, stream, flags);
}

/* ---- waiting ---- */

DRIVER_EXPORT CUresult cuEventQuery(CUevent event)
{
	DRIVER_CALL;
	CUresult result = driver_event_of(event);
	bool reached;

	if (!result)
		result = driver_capture_check_event(&event->captured);
	if (result)
		return result;
	reached = driver_event_is_reached(event);
	result = driver_context_state(event->context);
	return result ? result : reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

DRIVER_EXPORT CUresult cuEventSynchronize(CUevent event)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_event_of(event);

	if (!result)
		result = driver_capture_check_event(&event->captured);
	if (result)
		return result;
	/* The event may be destroyed while we wait, and its context. */
	context = event->context;
	driver_context_hold(context);
	driver_event_wait(event);
	driver_pool_settle();
	result = driver_context_state(context);
	driver_context_drop(context);
	return result;
}

DRIVER_EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	bool capturing, taken;
	CUresult result = driver_stream_enter_or_capture(handle, &stream, &capturing);

	if (!result)
		result = driver_event_of(event);
	if (result)
		return result;
	if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL || (flags && !capturing))
		return CUDA_ERROR_INVALID_VALUE;
	if (flags)
		return driver_capture_event_node(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
	/* A captured event takes the stream into its capture. */
	result = driver_capture_wait(stream, &event->captured, driver_event_is_recorded(event),
				     &taken);
	return result || taken ? result : driver_event_submit_wait(event, stream);
}

/* ---- timing ---- */

static CUresult event_elapsed(float *milliseconds, CUevent start, CUevent end)
{
	CUresult result = driver_event_of(start);

	if (!result)
		result = driver_event_of(end);
	if (result)
		return result;
	if (!milliseconds)
		return CUDA_ERROR_INVALID_VALUE;
	if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING ||
	    start->context != end->context)
		return CUDA_ERROR_INVALID_HANDLE;
	result = driver_context_state(start->context);
	if (!result)
		result = driver_capture_check_event(&start->captured);
	if (!result)
		result = driver_capture_check_event(&end->captured);
	return result ? result : driver_event_elapsed(milliseconds, start, end);
}

DRIVER_EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	DRIVER_CALL;
	return event_elapsed(milliseconds, start, end);
}

DRIVER_EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
	DRIVER_CALL;
	return event_elapsed(milliseconds, start, end);
}

/* ---- events of whole contexts ---- */

/* Recorded behind all that the context's streams have been given, by an operation of a
 * stream of its own that waits for them; of a green context, its own streams. */
DRIVER_EXPORT CUresult cuCtxRecordEvent(CUcontext handle, CUevent event)
{
	DRIVER_CALL;
	struct CUgreenCtx_st *green;
	struct CUctx_st *context;
	struct CUstream_st *stream, **streams;
	CUresult result = driver_event_of(event);
	size_t count;

	if (result)
		return result;
	result = driver_context_named(handle, &context, &green);
	if (result)
		return result;
	if (event->context != context)
		return CUDA_ERROR_INVALID_HANDLE;
	result = driver_context_state(context);
	if (!result)
		result = driver_capture_forbid_context(context, green);
	if (result)
		return result;
	streams = driver_stream_list(context, &count);
	stream = streams ? driver_stream_make(context, CU_STREAM_NON_BLOCKING) : NULL;
	if (stream)
		driver_stream_link(stream);
	else
		result = CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t k = 0; streams && k < count; k++) {
		struct driver_point point;

		if (!green || streams[k]->green == green) {
			driver_stream_point(streams[k], &point);
			if (!result)
				result = driver_stream_follow(stream, &point);
			driver_point_drop(&point);
		}
		driver_stream_drop(streams[k]);
	}
	free(streams);
	if (!result)
		result = driver_event_submit_record(event, stream);
	if (stream)
		driver_stream_end(stream);
	return result;
}

/* What the context's streams are given from now on waits for the event. */
DRIVER_EXPORT CUresult cuCtxWaitEvent(CUcontext handle, CUevent event)
{
	DRIVER_CALL;
	struct CUgreenCtx_st *green;
	struct CUctx_st *context;
	struct CUstream_st **streams;
	CUresult result = driver_event_of(event);
	size_t count;

	if (result)
		return result;
	result = driver_context_named(handle, &context, &green);
	if (!result)
		result = driver_context_state(context);
	if (!result)
		result = driver_capture_forbid_context(context, green);
	if (!result)
		result = driver_capture_forbid_event(&event->captured);
	if (result)
		return result;
	streams = driver_stream_list(context, &count);
	if (!streams)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t k = 0; k < count; k++) {
		if (!result && !streams[k]->capture && !driver_stream_has_ended(streams[k]) &&
		    (!green || streams[k]->green == green))
			result = driver_event_submit_wait(event, streams[k]);
		driver_stream_drop(streams[k]);
	}
	free(streams);
	return result;
}
