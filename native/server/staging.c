/* Pinned memory of the server's, which bytes pass through between the socket and the device. */
#include "copies.h"

#include <stdlib.h>
#include <time.h>

static void staging_busy(struct server_context *context, struct server_staging *staging)
{
	pthread_mutex_lock(&context->lock);
	staging->next = NULL;
	*context->busy_last = staging;
	context->busy_last = &staging->next;
	pthread_mutex_unlock(&context->lock);
}

void server_staging_idle(struct server_context *context, struct server_staging *staging)
{
	pthread_mutex_lock(&context->lock);
	staging->next = context->idle;
	context->idle = staging;
	pthread_cond_signal(&context->returned);
	pthread_mutex_unlock(&context->lock);
}

/* Fails with the driver's own result: in a context that a kernel has broken, that is
 * what the program must be told. */
static CUresult staging_make(const struct server_driver *driver, struct server_staging **out)
{
	struct server_staging *staging = calloc(1, sizeof(*staging));
	void *memory = NULL;
	CUresult result;

	if (!staging)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver->cuEventCreate(&staging->event, CU_EVENT_DISABLE_TIMING);
	if (result != CUDA_SUCCESS) {
		free(staging);
		return result;
	}
	if (!driver->cuMemHostAlloc ||
	    driver->cuMemHostAlloc(&memory, WIRE_BULK_BYTES, CU_MEMHOSTALLOC_PORTABLE) !=
		    CUDA_SUCCESS)
		memory = malloc(WIRE_BULK_BYTES);
	if (!memory) {
		driver->cuEventDestroy_v2(staging->event);
		free(staging);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	staging->memory = memory;
	*out = staging;
	return CUDA_SUCCESS;
}

/* Take the oldest busy buffer whose copy is over; the lock is held. */
static struct server_staging *staging_reap(struct server_context *context,
					   const struct server_driver *driver)
{
	struct server_staging *oldest = context->busy_first;

	if (!oldest || driver->cuEventQuery(oldest->event) == CUDA_ERROR_NOT_READY)
		return NULL;
	context->busy_first = oldest->next;
	if (!context->busy_first)
		context->busy_last = &context->busy_first;
	return oldest;
}

/* Wait until a buffer is idle that a copy to the host holds; there is none of those
 * that only an event tells of.  A context that a kernel has broken gives none back. */
static CUresult staging_await(struct server_call *call)
{
	struct server_context *context = call->context;
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&context->lock);
	while (!context->idle && !context->busy_first && result == CUDA_SUCCESS) {
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec++;
		if (!context->staging_count) {
			result = CUDA_ERROR_OUT_OF_MEMORY;
		} else if (pthread_cond_timedwait(&context->returned, &context->lock, &until)) {
			pthread_mutex_unlock(&context->lock);
			result = call->driver->cuStreamQuery(NULL);
			if (result == CUDA_ERROR_NOT_READY)
				result = CUDA_SUCCESS;
			pthread_mutex_lock(&context->lock);
		}
	}
	pthread_mutex_unlock(&context->lock);
	return result;
}

CUresult server_staging_take(struct server_call *call, struct server_staging **out)
{
	struct server_context *context = call->context;
	struct server_staging *staging;
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	CUevent oldest = NULL;

	for (;;) {
		bool make = false;

		pthread_mutex_lock(&context->lock);
		staging = context->idle;
		if (staging) {
			context->idle = staging->next;
		} else {
			staging = staging_reap(context, call->driver);
			if (!staging && context->staging_count < SERVER_STAGING_LIMIT) {
				context->staging_count++;
				make = true;
			}
			oldest = context->busy_first ? context->busy_first->event : NULL;
		}
		pthread_mutex_unlock(&context->lock);
		if (staging) {
			*out = staging;
			return CUDA_SUCCESS;
		}
		if (make) {
			result = staging_make(call->driver, out);
			if (result == CUDA_SUCCESS)
				return CUDA_SUCCESS;
			pthread_mutex_lock(&context->lock);
			context->staging_count--;
			pthread_mutex_unlock(&context->lock);
		}
		if (make && result != CUDA_ERROR_OUT_OF_MEMORY)
			return result;
		if (oldest) {
			call->driver->cuEventSynchronize(oldest);
			continue;
		}
		result = staging_await(call);
		if (result != CUDA_SUCCESS)
			return result;
	}
}

/* What a host function of the client needs of managed memory comes through one or two of them. */
#define STAGING_RESERVED 8u

void server_staging_reserve(struct server_call *call)
{
	struct server_context *context = call->context;
	struct server_staging *staging;
	bool make = true;

	while (make) {
		pthread_mutex_lock(&context->lock);
		make = context->staging_count < STAGING_RESERVED;
		context->staging_count += make;
		pthread_mutex_unlock(&context->lock);
		if (!make)
			return;
		if (staging_make(call->driver, &staging) == CUDA_SUCCESS) {
			server_staging_idle(context, staging);
			continue;
		}
		pthread_mutex_lock(&context->lock);
		context->staging_count--;
		pthread_mutex_unlock(&context->lock);
		return;
	}
}

CUresult server_staging_fence(struct server_call *call, struct server_staging *staging,
			      CUstream stream)
{
	CUresult result = call->driver->cuEventRecord(staging->event, stream);

	if (result == CUDA_SUCCESS)
		staging_busy(call->context, staging);
	else
		server_staging_idle(call->context, staging);
	return result;
}
