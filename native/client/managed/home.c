/* See home.h. */
#include "../exchange/exchange.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "home.h"
#include "regions.h"

#include <stdlib.h>
#include <string.h>

/* One frame's bytes, as of large copies. */
#define PIECE_BYTES (256u << 10)

static struct managed_home *homes;

/* Streams that are known to come behind a home's generation. */
static struct ordered {
	struct managed_stream stream;
	const struct managed_home *home;
	unsigned long long generation;
} ordered[64];

/* ---- what travels ---- */

static struct client_route home_route(const struct managed_home *home)
{
	return client_route_made_in(home->context, true);
}

static uint64_t home_stream(const struct managed_home *home)
{
	return (uint64_t)(uintptr_t)home->stream;
}

static CUresult home_post(const struct managed_home *home, enum wire_op op, const void *fixed,
			  size_t fixed_bytes, const void *tail, size_t tail_bytes)
{
	const struct client_route route = home_route(home);

	return client_post_on(&route, op, fixed, fixed_bytes, tail, tail_bytes);
}

/* The home's stream is behind nothing of the program's, so nothing of it is paced. */
CUresult client_home_send(struct managed_home *home, uint64_t address, uint64_t bytes)
{
	CUresult result = CUDA_SUCCESS;

	while (bytes && result == CUDA_SUCCESS) {
		size_t now = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
		const struct wire_copy_to_device fixed = { .device = address,
							    .stream = home_stream(home) };

		result = home_post(home, WIRE_OP_COPY_TO_DEVICE, &fixed, sizeof(fixed),
				   (void *)(uintptr_t)address, now);
		home->sent = true;
		address += now;
		bytes -= now;
	}
	return result;
}

CUresult client_home_fetch(struct managed_home *home, uint64_t address, uint64_t bytes, uint8_t *to)
{
	const struct client_route route = home_route(home);
	const struct wire_copy_to_host fixed = {
		.device = address,
		.pitch = bytes,
		.width = bytes,
		.height = 1,
		.stream = home_stream(home),
	};
	const struct client_request request = {
		.op = WIRE_OP_COPY_TO_HOST,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_target target = {
		.host = to, .pitch = bytes, .width = bytes, .height = 1, .missing = bytes,
	};
	struct client_wait wait = {
		.target = &target,
		.result = CUDA_ERROR_DEVICE_UNAVAILABLE,
	};
	unsigned long long generation = home->generation;
	CUresult result = client_call_own(&route, &request, &wait);

	if (result == CUDA_SUCCESS && !home->sent)
		home->done = generation;
	return result;
}

CUresult client_home_fetch_later(struct managed_home *home, uint64_t address, uint64_t bytes,
				 uint8_t *to)
{
	const struct client_route route = home_route(home);
	const struct wire_copy_to_host_async fixed = {
		.device = address,
		.pitch = bytes,
		.width = bytes,
		.height = 1,
		.stream = home_stream(home),
	};
	const struct client_request request = {
		.op = WIRE_OP_COPY_TO_HOST_ASYNC,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_target *target = calloc(1, sizeof(*target));

	if (!target)
		return CUDA_ERROR_OUT_OF_MEMORY;
	target->host = to;
	target->pitch = target->width = target->missing = bytes;
	target->height = 1;
	target->owned = true;
	return client_post_target_to(&route, &request, target);
}

CUresult client_home_clear(struct managed_home *home, uint64_t address, uint64_t bytes)
{
	const struct wire_fill fixed = {
		.device = address,
		.width = bytes / 4,
		.height = 1,
		.element = 4,
		.stream = home_stream(home),
	};

	home->sent = true;
	return home_post(home, WIRE_OP_FILL, &fixed, sizeof(fixed), NULL, 0);
}

/* ---- order ---- */

struct managed_stream client_managed_stream(uint64_t stream)
{
	const struct client_context *context = client_stream_context(stream);

	return (struct managed_stream){
		.stream = stream,
		.context = context ? context->handle : NULL,
		.lane = stream == (uint64_t)(uintptr_t)CU_STREAM_PER_THREAD ? client_thread()->lane : 0,
	};
}

bool client_managed_stream_same(const struct managed_stream *a, const struct managed_stream *b)
{
	return a->stream == b->stream && a->lane == b->lane && a->context == b->context;
}

CUresult client_homes_sent(void)
{
	CUresult result = CUDA_SUCCESS;

	for (struct managed_home *home = homes; home; home = home->next) {
		const struct wire_event_record fixed = {
			.event = (uint64_t)(uintptr_t)home->event,
			.stream = home_stream(home),
		};

		if (!home->sent || result != CUDA_SUCCESS)
			continue;
		result = home_post(home, WIRE_OP_EVENT_RECORD, &fixed, sizeof(fixed), NULL, 0);
		home->generation++;
		home->sent = false;
	}
	return result;
}

CUresult client_homes_order(uint64_t stream)
{
	const struct managed_stream key = client_managed_stream(stream);
	struct ordered *known = &ordered[(stream >> 4 ^ stream ^ key.lane) % 64];
	CUresult result = CUDA_SUCCESS;

	for (struct managed_home *home = homes; home && result == CUDA_SUCCESS; home = home->next) {
		const struct wire_stream_wait_event fixed = {
			.stream = stream,
			.event = (uint64_t)(uintptr_t)home->event,
		};
		const struct client_route route = client_route_stream(stream);
		const struct client_request request = {
			.op = WIRE_OP_STREAM_WAIT_EVENT,
			.fixed = &fixed,
			.fixed_bytes = sizeof(fixed),
		};

		if (home->done == home->generation ||
		    (known->home == home && known->generation == home->generation &&
		     client_managed_stream_same(&known->stream, &key)))
			continue;
		result = client_post_to(&route, &request);
		*known = (struct ordered){ key, home, home->generation };
	}
	return result;
}

CUresult client_homes_settle(void)
{
	CUresult result = client_homes_sent();

	for (struct managed_home *home = homes; home && result == CUDA_SUCCESS; home = home->next) {
		const struct client_route route = home_route(home);
		const struct wire_stream_synchronize fixed = { .stream = home_stream(home) };
		const struct client_request request = {
			.op = WIRE_OP_STREAM_SYNCHRONIZE,
			.fixed = &fixed,
			.fixed_bytes = sizeof(fixed),
		};
		struct client_wait wait = { .result = CUDA_ERROR_DEVICE_UNAVAILABLE };

		result = client_call_own(&route, &request, &wait);
		home->done = home->generation;
	}
	return result;
}

/* ---- homes ---- */

struct managed_home *client_home(const struct client_context *context)
{
	struct managed_home *home = homes;

	while (home && home->context != context)
		home = home->next;
	return home;
}

CUresult client_home_make(struct client_context *context)
{
	struct managed_home *home;
	CUcontext pushed;
	CUresult result;

	client_pages_lock();
	home = client_home(context);
	client_pages_unlock();
	if (home)
		return CUDA_SUCCESS;
	home = calloc(1, sizeof(*home));
	result = home ? cuCtxPushCurrent_v2(context->handle) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result != CUDA_SUCCESS) {
		free(home);
		return result;
	}
	result = cuStreamCreate(&home->stream, CU_STREAM_NON_BLOCKING);
	if (result == CUDA_SUCCESS)
		result = cuEventCreate(&home->event, CU_EVENT_DISABLE_TIMING);
	/* Both are there before the own lane names them. */
	if (result == CUDA_SUCCESS)
		result = cuStreamQuery(home->stream);
	if (result == CUDA_SUCCESS) {
		client_pages_lock();
		home->context = context;
		if (!client_home(context)) {
			home->next = homes;
			homes = home;
			home = NULL;
		}
		client_pages_unlock();
	}
	/* It failed, or another thread was quicker. */
	if (home && home->event)
		cuEventDestroy_v2(home->event);
	if (home && home->stream)
		cuStreamDestroy_v2(home->stream);
	free(home);
	cuCtxPopCurrent_v2(&pushed);
	return result;
}

/* Its stream and events go with the context. */
void client_home_forget(const struct client_context *context)
{
	struct managed_home **link = &homes;

	while (*link && (*link)->context != context)
		link = &(*link)->next;
	if (*link) {
		struct managed_home *home = *link;

		*link = home->next;
		memset(ordered, 0, sizeof(ordered));
		free(home);
	}
}
