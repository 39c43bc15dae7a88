#include "driver_stream.h"

#include "driver_capture.h"
#include "driver_graph.h"
#include "driver_green.h"
#include "driver_handle.h"
#include "driver_memory.h"

#include <stdlib.h>

/* ---- which stream ---- */

/* The per-thread default streams of the calling thread, one per context it
 * used.  They end with the thread, or with their context. */
struct thread_stream {
	struct thread_stream *next;
	struct CUctx_st *context;	/* held through the stream */
	struct CUstream_st *stream;	/* held */
};

static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

static void thread_streams_end(void *first)
{
	struct thread_stream *entry = first, *next;

	for (; entry; entry = next) {
		next = entry->next;
		driver_capture_leave(entry->stream);
		driver_stream_end(entry->stream);
		driver_stream_drop(entry->stream);
		free(entry);
	}
}

static void thread_make_key(void)
{
	pthread_key_create(&thread_key, thread_streams_end);
}

static CUresult stream_of_thread(struct CUctx_st *context, struct CUstream_st **stream)
{
	struct CUgreenCtx_st *green = driver_context_top_green();
	struct thread_stream *entry, **link;
	struct thread_stream *first;

	pthread_once(&thread_once, thread_make_key);
	first = pthread_getspecific(thread_key);
	for (link = &first; (entry = *link); ) {
		if (driver_stream_has_ended(entry->stream)) {
			/* Its context was destroyed or reset. */
			driver_stream_drop(entry->stream);
			*link = entry->next;
			free(entry);
			continue;
		}
		if (entry->context == context && entry->stream->green == green) {
			pthread_setspecific(thread_key, first);
			*stream = entry->stream;
			return CUDA_SUCCESS;
		}
		link = &entry->next;
	}
	entry = malloc(sizeof *entry);
	if (!entry)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*entry = (struct thread_stream){ .next = first, .context = context };
	entry->stream = driver_stream_make(context, 0);
	if (!entry->stream) {
		pthread_setspecific(thread_key, first);
		free(entry);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	driver_green_hold(green);
	entry->stream->green = green;
	entry->stream->per_thread = true;
	/* One reference is the context's, one the thread's. */
	driver_stream_hold(entry->stream);
	driver_stream_link(entry->stream);
	pthread_setspecific(thread_key, entry);
	*stream = entry->stream;
	return CUDA_SUCCESS;
}

CUresult driver_stream_of(CUstream handle, struct CUstream_st **stream)
{
	struct CUctx_st *context;
	CUresult result;

	if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
		result = driver_context_current(&context);
		if (result)
			return result;
		if (handle == CU_STREAM_PER_THREAD)
			return stream_of_thread(context, stream);
		*stream = context->legacy;
		if (driver_context_top_green()) {
			*stream = driver_context_top_green()->stream;
			if (driver_stream_has_ended(*stream))
				return CUDA_ERROR_CONTEXT_IS_DESTROYED;
		}
		return CUDA_SUCCESS;
	}
	result = driver_ready();
	if (result)
		return result;
	if (!driver_handle_is(handle, DRIVER_KIND_STREAM))
		return CUDA_ERROR_INVALID_HANDLE;
	if (handle->green && __atomic_load_n(&handle->green->ended, __ATOMIC_ACQUIRE))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*stream = handle;
	return CUDA_SUCCESS;
}

CUresult driver_stream_enter(CUstream handle, struct CUstream_st **stream)
{
	CUresult result = driver_stream_of(handle, stream);

	if (!result)
		result = driver_context_state((*stream)->context);
	return result ? result : driver_capture_forbid(*stream);
}

CUresult driver_stream_enter_or_capture(CUstream handle, struct CUstream_st **stream,
					bool *capturing)
{
	CUresult result = driver_stream_of(handle, stream);

	if (!result)
		result = driver_context_state((*stream)->context);
	return result ? result : driver_capture_enter(*stream, capturing);
}

/* ---- the API ---- */

/* Those outside the range are clamped, says cuda.h. */
int driver_stream_priority(int wanted)
{
	return wanted > DRIVER_PRIORITY_LEAST ? DRIVER_PRIORITY_LEAST :
	       wanted < DRIVER_PRIORITY_GREATEST ? DRIVER_PRIORITY_GREATEST : wanted;
}

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
	if (driver_handle_add(stream, DRIVER_KIND_STREAM)) {
		driver_stream_drop(stream);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	driver_stream_link(stream);
	*out = stream;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
	return stream_create(out, flags, DRIVER_PRIORITY_LEAST);
}

DRIVER_EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority)
{
	return stream_create(out, flags, priority);
}

/* Returns at once; what is queued still runs. */
DRIVER_EXPORT CUresult cuStreamDestroy_v2(CUstream handle)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!driver_handle_remove(handle, DRIVER_KIND_STREAM))
		return CUDA_ERROR_INVALID_HANDLE;
	result = driver_context_state(handle->context);
	driver_capture_leave(handle);
	driver_stream_end(handle);
	return result;
}

DRIVER_FIRST_NAME(cuStreamDestroy);

static CUresult nothing(struct driver_operation *operation, CUresult state)
{
	(void)operation, (void)state;
	return CUDA_SUCCESS;
}

static void release_plain(struct driver_operation *operation)
{
	free(operation);
}

static struct driver_operation *marker_make(void)
{
	struct driver_operation *marker = calloc(1, sizeof *marker);

	if (marker) {
		marker->run = nothing;
		marker->release = release_plain;
	}
	return marker;
}

DRIVER_EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
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
		marker = marker_make();
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
	struct CUstream_st *stream;
	CUresult result = driver_stream_enter(handle, &stream);

	if (result)
		return result;
	return driver_stream_is_quiet(stream) ? driver_context_state(stream->context) :
						CUDA_ERROR_NOT_READY;
}

DRIVER_EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags)
{
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

struct host_operation {
	struct driver_operation base;
	CUstream stream;
	CUstreamCallback callback;	/* cuStreamAddCallback, else */
	CUhostFn function;		/* cuLaunchHostFunc */
	void *argument;
};

static CUresult run_host(struct driver_operation *operation, CUresult state)
{
	struct host_operation *host = (struct host_operation *)operation;

	driver_in_host_function = true;
	if (host->callback)
		host->callback(host->stream, state, host->argument);
	else
		host->function(host->argument);
	driver_in_host_function = false;
	return CUDA_SUCCESS;
}

CUresult driver_host_prepare(CUhostFn function, void *argument, struct driver_operation **operation)
{
	struct host_operation *host;

	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	host = calloc(1, sizeof *host);
	if (!host)
		return CUDA_ERROR_OUT_OF_MEMORY;
	host->base.run = run_host;
	host->base.release = release_plain;
	host->function = function;
	host->argument = argument;
	*operation = &host->base;
	return CUDA_SUCCESS;
}

static CUresult submit_callback(CUstream handle, CUstreamCallback callback, void *argument)
{
	struct host_operation *host;
	struct CUstream_st *stream;
	CUresult result = driver_stream_enter(handle, &stream);

	if (result)
		return result;
	if (!callback)
		return CUDA_ERROR_INVALID_VALUE;
	host = calloc(1, sizeof *host);
	if (!host)
		return CUDA_ERROR_OUT_OF_MEMORY;
	host->base.run = run_host;
	host->base.release = release_plain;
	/* A callback is told of the error; a host function is not called then. */
	host->base.run_when_failed = true;
	host->stream = handle;
	host->callback = callback;
	host->argument = argument;
	return driver_stream_submit(stream, &host->base, 0, NULL);
}

DRIVER_EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *argument)
{
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

DRIVER_EXPORT CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback,
					   void *argument, unsigned int flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return submit_callback(stream, callback, argument);
}

/* ---- attributes ---- */

DRIVER_EXPORT CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t length,
					      unsigned int flags)
{
	struct CUstream_st *stream;

	/* Managed memory is always coherent here: attaching changes nothing. */
	(void)address, (void)length, (void)flags;
	return driver_stream_enter(handle, &stream);
}
