/* Which stream a handle means, and whether it captures. */
#include "stream.h"

#include "capture.h"
#include "context_stack.h"
#include "green.h"
#include "handle.h"

#include <stdlib.h>

/* ---- the thread's own ---- */

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

/* ---- of a handle ---- */

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

/* Those outside the range are clamped, says cuda.h. */
int driver_stream_priority(int wanted)
{
	return wanted > DRIVER_PRIORITY_LEAST ? DRIVER_PRIORITY_LEAST :
	       wanted < DRIVER_PRIORITY_GREATEST ? DRIVER_PRIORITY_GREATEST : wanted;
}
