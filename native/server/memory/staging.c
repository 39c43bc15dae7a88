/* Pinned memory of the server's, which bytes pass through between the socket and the device. */
#include "../ground/lead.h"
#include "staging.h"

#include <stdlib.h>

#include "../../transport/ground/thread.h"

/* How often who waits for a buffer asks whether the context is broken. */
#define AWAIT_ROUND_NS 1000000000u

static void pool_init(struct server_staging_pool *pool)
{
	pool->busy_last = &pool->busy_first;
	transport_cond_init(&pool->returned);
}

void server_staging_init(struct server_context *context)
{
	pool_init(&context->staging);
	pool_init(&context->reserve);
}

static struct server_staging_pool *staging_pool(const struct server_call *call)
{
	return server_is_own(call) ? &call->context->reserve : &call->context->staging;
}

static void staging_busy(struct server_context *context, struct server_staging *staging)
{
	struct server_staging_pool *pool = staging->pool;

	pthread_mutex_lock(&context->lock);
	staging->next = NULL;
	*pool->busy_last = staging;
	pool->busy_last = &staging->next;
	pthread_mutex_unlock(&context->lock);
}

/* With the lock. */
static void staging_return(struct server_staging *staging)
{
	struct server_staging_pool *pool = staging->pool;

	staging->next = pool->idle;
	pool->idle = staging;
	pthread_cond_signal(&pool->returned);
}

void server_staging_idle(struct server_context *context, struct server_staging *staging)
{
	pthread_mutex_lock(&context->lock);
	staging_return(staging);
	pthread_mutex_unlock(&context->lock);
}

/* Fails with the driver's own result: in a context that a kernel has broken, that is
 * what the program must be told. */
static CUresult staging_make(const struct server_driver *driver, struct server_staging_pool *pool,
			     struct server_staging **out)
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
	staging->pool = pool;
	*out = staging;
	return CUDA_SUCCESS;
}

/* Take the oldest busy buffer if its copy is over.  It is asked for while nobody else has it, and without the lock. */
static struct server_staging *staging_reap(struct server_context *context, struct server_staging_pool *pool,
					   const struct server_driver *driver)
{
	struct server_staging *oldest;
	bool over;

	pthread_mutex_lock(&context->lock);
	oldest = pool->busy_first;
	if (oldest) {
		pool->busy_first = oldest->next;
		if (!pool->busy_first)
			pool->busy_last = &pool->busy_first;
	}
	pthread_mutex_unlock(&context->lock);
	if (!oldest)
		return NULL;
	over = driver->cuEventQuery(oldest->event) != CUDA_ERROR_NOT_READY;
	if (over)
		return oldest;
	pthread_mutex_lock(&context->lock);
	oldest->next = pool->busy_first;
	if (!pool->busy_first)
		pool->busy_last = &oldest->next;
	pool->busy_first = oldest;
	pthread_cond_signal(&pool->returned);
	pthread_mutex_unlock(&context->lock);
	return NULL;
}

/* Wait until a buffer is idle that a copy to the host holds; there is none of those
 * that only an event tells of.  A context that a kernel has broken gives none back. */
static CUresult staging_await(struct server_call *call, struct server_staging_pool *pool)
{
	struct server_context *context = call->context;
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&context->lock);
	while (!pool->idle && !pool->busy_first && result == CUDA_SUCCESS) {
		if (!pool->count) {
			result = CUDA_ERROR_OUT_OF_MEMORY;
		} else if (transport_cond_wait_until(&pool->returned, &context->lock,
						     transport_now_ns() + AWAIT_ROUND_NS)) {
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

/* Those that other streams use meanwhile, and those through which comes what a host function needs of managed memory. */
#define STAGING_RESERVED 8u
#define STAGING_RESERVED_OWN 2u

/* While a stream waits for the client, none is made for what it may wait for: that would wait for the stream. */
static unsigned staging_limit(const struct server_call *call)
{
	return server_is_own(call) && atomic_load(&call->server->host_waits) ? STAGING_RESERVED_OWN
									       : SERVER_STAGING_LIMIT;
}

static struct server_staging *staging_there(struct server_call *call, struct server_staging_pool *pool)
{
	struct server_context *context = call->context;
	struct server_staging *staging;

	pthread_mutex_lock(&context->lock);
	staging = pool->idle;
	if (staging)
		pool->idle = staging->next;
	pthread_mutex_unlock(&context->lock);
	return staging ? staging : staging_reap(context, pool, call->driver);
}

/* One more, as long as there are fewer than `limit`.  false: there are as many. */
static bool staging_add(struct server_call *call, struct server_staging_pool *pool, unsigned limit,
			struct server_staging **out, CUresult *result)
{
	struct server_context *context = call->context;
	bool make;

	pthread_mutex_lock(&context->lock);
	make = pool->count < limit;
	pool->count += make;
	pthread_mutex_unlock(&context->lock);
	if (!make)
		return false;
	*result = staging_make(call->driver, pool, out);
	if (*result != CUDA_SUCCESS) {
		pthread_mutex_lock(&context->lock);
		pool->count--;
		pthread_mutex_unlock(&context->lock);
	}
	return true;
}

CUresult server_staging_take(struct server_call *call, struct server_staging **out)
{
	struct server_staging_pool *pool = staging_pool(call);
	struct server_context *context = call->context;

	for (;;) {
		CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
		CUevent oldest;

		*out = staging_there(call, pool);
		if (*out)
			return CUDA_SUCCESS;
		if (staging_add(call, pool, staging_limit(call), out, &result) &&
		    result != CUDA_ERROR_OUT_OF_MEMORY)
			return result;
		pthread_mutex_lock(&context->lock);
		oldest = pool->busy_first ? pool->busy_first->event : NULL;
		pthread_mutex_unlock(&context->lock);
		if (oldest) {
			call->driver->cuEventSynchronize(oldest);
			continue;
		}
		result = staging_await(call, pool);
		if (result != CUDA_SUCCESS)
			return result;
	}
}

CUresult server_staging_take_more(struct server_call *call, struct server_staging **out)
{
	if (!server_is_own(call))
		return server_staging_take(call, out);
	*out = staging_there(call, &call->context->reserve);
	return CUDA_SUCCESS;
}

static void pool_fill(struct server_call *call, struct server_staging_pool *pool, unsigned count)
{
	struct server_staging *staging;
	CUresult result = CUDA_SUCCESS;

	while (result == CUDA_SUCCESS && staging_add(call, pool, count, &staging, &result))
		if (result == CUDA_SUCCESS)
			server_staging_idle(call->context, staging);
}

void server_staging_reserve(struct server_call *call)
{
	pool_fill(call, &call->context->staging, STAGING_RESERVED);
	if (call->server->own_lane)
		pool_fill(call, &call->context->reserve, STAGING_RESERVED_OWN);
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
