/* See gather.h. */
#include "gather.h"

#include <stdlib.h>

/* Buffers are rounded up to this many bytes, so that they fit more than one copy. */
#define GRAIN_BYTES (64ull << 10)
/* Idle bytes that a context keeps when server_gather_trim has its chance. */
#define KEPT_BYTES (256ull << 20)

void server_gather_give(struct server_context *context, struct server_gathered *gathered)
{
	pthread_mutex_lock(&context->lock);
	gathered->next = context->gathered_idle;
	context->gathered_idle = gathered;
	context->gathered_idle_bytes += gathered->bytes;
	pthread_mutex_unlock(&context->lock);
}

/* Take the smallest idle buffer of at least `bytes`, or the largest of all (bytes 0). */
static struct server_gathered *gather_pick(struct server_context *context, size_t bytes)
{
	struct server_gathered **best = NULL, *gathered = NULL;

	pthread_mutex_lock(&context->lock);
	for (struct server_gathered **link = &context->gathered_idle; *link; link = &(*link)->next) {
		if ((*link)->bytes < bytes)
			continue;
		if (!best || (bytes ? (*link)->bytes < (*best)->bytes
				    : (*link)->bytes > (*best)->bytes))
			best = link;
	}
	if (best) {
		gathered = *best;
		*best = gathered->next;
		context->gathered_idle_bytes -= gathered->bytes;
	}
	pthread_mutex_unlock(&context->lock);
	return gathered;
}

CUresult server_gather_take(struct server_call *call, size_t bytes, struct server_gathered **out)
{
	const struct server_driver *driver = call->driver;
	struct server_gathered *gathered = gather_pick(call->context, bytes);
	CUresult result;

	if (!gathered) {
		void *memory;

		if (!driver->cuMemHostAlloc || !driver->cuMemFreeHost)
			return CUDA_ERROR_NOT_SUPPORTED;
		gathered = malloc(sizeof(*gathered));
		if (!gathered)
			return CUDA_ERROR_OUT_OF_MEMORY;
		gathered->bytes = (bytes + GRAIN_BYTES - 1) & ~(GRAIN_BYTES - 1);
		result = driver->cuMemHostAlloc(&memory, gathered->bytes, 0);
		if (result != CUDA_SUCCESS) {
			free(gathered);
			return result;
		}
		gathered->memory = memory;
	}
	*out = gathered;
	return CUDA_SUCCESS;
}

/* A driver may wait for all that the context still has to do. */
void server_gather_trim(struct server_call *call)
{
	struct server_context *context = call->context;

	for (;;) {
		struct server_gathered *gathered = NULL;
		bool excess;

		pthread_mutex_lock(&context->lock);
		excess = context->gathered_idle_bytes > KEPT_BYTES;
		pthread_mutex_unlock(&context->lock);
		if (excess)
			gathered = gather_pick(context, 0);
		if (!gathered)
			return;
		call->driver->cuMemFreeHost(gathered->memory);
		free(gathered);
	}
}
