/* Streams of the shim's own, for what must not wait for anything that a program has put into its streams. */
#include "../exchange/exchange.h"
#include "../handles/route.h"
#include "helpers.h"

#include <stdlib.h>

/* Held with no other. */
static pthread_mutex_t helpers_lock = PTHREAD_MUTEX_INITIALIZER;

struct across_helper {
	struct across_helper *next;
	struct client_context *context;
	unsigned epoch;			/* of the context: it may end and begin again */
	bool copies;			/* the one of all copies, which nothing else is put in */
	unsigned users;			/* then: copies that may use it */
	struct client_stream stream;
};

uint64_t client_helper_wire(const struct across_helper *helper)
{
	return (uint64_t)(uintptr_t)helper->stream.handle;
}

struct client_route client_helper_route(const struct across_helper *helper)
{
	return client_route_made_in(helper->context, helper->copies);
}

CUresult client_helper_post(const struct across_helper *helper, enum wire_op op, const void *fixed,
			    size_t fixed_bytes, const void *tail, size_t tail_bytes)
{
	const struct client_route route = client_helper_route(helper);

	return client_post_on(&route, op, fixed, fixed_bytes, tail, tail_bytes);
}

static CUresult helper_make(struct client_context *context, unsigned epoch, struct across_helper **out)
{
	struct wire_stream_create fixed = { .flags = CU_STREAM_NON_BLOCKING };
	struct across_helper *helper = calloc(1, sizeof(*helper));
	CUresult result;

	if (!helper)
		return CUDA_ERROR_OUT_OF_MEMORY;
	helper->context = context;
	helper->epoch = epoch;
	helper->stream.context = context;
	helper->stream.ends = atomic_load(&context->ends);
	if (handle_open(&farbus_client.handles, HANDLE_STREAM, &helper->stream, &fixed.stream)) {
		free(helper);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	helper->stream.handle = (CUstream)(uintptr_t)fixed.stream;
	result = client_helper_post(helper, WIRE_OP_STREAM_CREATE, &fixed, sizeof(fixed), NULL, 0);
	if (result != CUDA_SUCCESS) {
		handle_close(&farbus_client.handles, HANDLE_STREAM, fixed.stream);
		free(helper);
		return result;
	}
	*out = helper;
	return CUDA_SUCCESS;
}

/* Made at once where there is none: NVIDIA's driver may make none while a host function runs. */
#define HELPERS_MADE 8u

CUresult client_helper_take(struct client_context *context, struct across_helper **out)
{
	struct across_helper *helper;
	CUresult result = CUDA_SUCCESS;
	unsigned epoch;

	if (!context || !context->active)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	pthread_mutex_lock(&helpers_lock);
	helper = context->helpers;
	epoch = context->epoch;
	if (helper)
		context->helpers = helper->next;
	pthread_mutex_unlock(&helpers_lock);
	if (!helper) {
		struct across_helper *spare;

		result = helper_make(context, epoch, &helper);
		for (unsigned made = 1; made < HELPERS_MADE && result == CUDA_SUCCESS; made++)
			if (helper_make(context, epoch, &spare) == CUDA_SUCCESS)
				client_helper_give(spare);
	}
	*out = helper;
	return result;
}

static void helper_free(struct across_helper *helper)
{
	handle_close(&farbus_client.handles, HANDLE_STREAM, client_helper_wire(helper));
	free(helper);
}

/* Nothing is on its way in it any more. */
void client_helper_give(struct across_helper *helper)
{
	struct client_context *context = helper->context;

	pthread_mutex_lock(&helpers_lock);
	if (helper->epoch == context->epoch) {
		helper->next = context->helpers;
		context->helpers = helper;
		helper = NULL;
	}
	pthread_mutex_unlock(&helpers_lock);
	if (helper)
		helper_free(helper);
}

void client_helpers_forget(struct client_context *context)
{
	struct across_helper *helpers, *copier;

	pthread_mutex_lock(&helpers_lock);
	helpers = context->helpers;
	context->helpers = NULL;
	copier = context->copier;
	context->copier = NULL;
	if (copier && copier->users)
		copier = NULL;
	context->epoch++;
	pthread_mutex_unlock(&helpers_lock);
	if (copier)
		helper_free(copier);
	while (helpers) {
		struct across_helper *next = helpers->next;

		helper_free(helpers);
		helpers = next;
	}
}

CUresult client_copier_take(struct client_context *context, struct across_helper **out)
{
	struct wire_stream_query fixed;
	const struct client_request request = {
		.op = WIRE_OP_STREAM_QUERY,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_wait wait = { .result = CUDA_ERROR_DEVICE_UNAVAILABLE };
	struct across_helper *made = NULL;
	struct client_route route;
	CUresult result;

	*out = NULL;
	if (!context)
		return CUDA_SUCCESS;
	for (;;) {
		pthread_mutex_lock(&helpers_lock);
		if (!context->copier && made && made->epoch == context->epoch) {
			made->copies = true;
			context->copier = made;
			made = NULL;
		}
		*out = context->copier;
		if (*out)
			(*out)->users++;
		pthread_mutex_unlock(&helpers_lock);
		if (made)
			client_helper_give(made);
		if (*out)
			return CUDA_SUCCESS;
		result = client_helper_take(context, &made);
		if (result != CUDA_SUCCESS)
			return result;
		fixed.stream = client_helper_wire(made);
		route = client_helper_route(made);
		result = client_call_own(&route, &request, &wait);
		if (result != CUDA_SUCCESS) {
			client_helper_give(made);
			return result;
		}
	}
}

void client_copier_give(struct across_helper *copier)
{
	bool last;

	if (!copier)
		return;
	pthread_mutex_lock(&helpers_lock);
	last = --copier->users == 0 && copier->context->copier != copier;
	pthread_mutex_unlock(&helpers_lock);
	if (last)
		helper_free(copier);
}

CUresult client_helper_synchronize(const struct across_helper *helper)
{
	const struct wire_stream_synchronize fixed = { .stream = client_helper_wire(helper) };
	const struct client_route route = client_helper_route(helper);
	const struct client_request request = {
		.op = WIRE_OP_STREAM_SYNCHRONIZE,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_wait wait = { 0 };

	return client_call_to(&route, &request, &wait);
}
