/* See active.h. */
#include "../exchange/exchange.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "active.h"
#include "home.h"

#include <stdlib.h>

/* Streams that may have work; of more nothing is known but that they are. */
#define ACTIVE_LIMIT 64u
/* A stream that has just come to its end may not be seen to at once. */
#define ASK_ATTEMPTS 4

/* Copies: behind the work in a stream.  Whether that is over it says and the stream does not, which
 * may have to wait for others by then; and a thread's own stream no other thread can name. */
struct mark {
	struct mark *next;
	bool taken;			/* by a stream that may have work */
	CUevent event;
};

struct active {
	struct managed_stream id;
	uint64_t posted;		/* which posting was the last */
	unsigned posting;		/* by threads that are at it */
	bool graph;			/* a graph was launched there */
	bool marked;			/* its mark is behind the last of it */
	struct mark *mark;		/* or NULL; its home's */
};

static struct {
	struct active streams[ACTIVE_LIMIT];
	unsigned count;
	bool others;			/* there were more: until their contexts are quiet */
	uint64_t others_posted;
} active;

static struct active *active_find(uint64_t stream)
{
	const struct managed_stream id = client_managed_stream(stream);

	for (unsigned i = 0; i < active.count; i++)
		if (client_managed_stream_same(&active.streams[i].id, &id))
			return &active.streams[i];
	return NULL;
}

/* Work is about to be posted to the stream, or has been. */
static struct active *active_add(uint64_t stream)
{
	const uint64_t now = atomic_fetch_add(&farbus_client.postings, 1) + 1;
	struct active *at = active_find(stream);

	if (!at && active.count < ACTIVE_LIMIT) {
		at = &active.streams[active.count++];
		*at = (struct active){ .id = client_managed_stream(stream) };
	}
	if (at) {
		at->posted = now;
		at->marked = false;
	} else {
		active.others = true;
		active.others_posted = now;
	}
	return at;
}

void client_active_begin(uint64_t stream, bool graph)
{
	struct active *at = active_add(stream);

	if (at) {
		at->graph |= graph;
		at->posting++;
	}
}

void client_active_end(uint64_t stream)
{
	struct active *at = active_add(stream);

	if (at && at->posting)
		at->posting--;
}

static struct mark *mark_take(const struct active *at)
{
	const struct client_context *context = client_context_get(at->id.context);
	struct managed_home *home = context ? client_home(context) : NULL;
	struct mark *mark = home ? home->marks : NULL;

	while (mark && mark->taken)
		mark = mark->next;
	if (!mark && home) {
		mark = calloc(1, sizeof(*mark));
		if (!mark || cuEventCreate(&mark->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
			free(mark);
			return NULL;
		}
		mark->next = home->marks;
		home->marks = mark;
	}
	if (mark)
		mark->taken = true;
	return mark;
}

/* The stream is not one that may have work any more. */
static void active_over(const struct active *at)
{
	if (at->mark)
		at->mark->taken = false;
}

void client_active_mark(uint64_t stream)
{
	struct active *at = active_find(stream);

	if (!at)
		return;
	if (!at->mark)
		at->mark = mark_take(at);
	if (at->mark)
		at->marked = cuEventRecord(at->mark->event, (CUstream)(uintptr_t)stream) == CUDA_SUCCESS;
}

static uint64_t active_key(const struct active *at)
{
	return at->id.stream | (uint64_t)at->id.lane << 32;
}

bool client_active_is(uint64_t key)
{
	for (unsigned i = 0; i < active.count; i++)
		if (active_key(&active.streams[i]) == key)
			return true;
	return active.others;
}

bool client_active_any(void)
{
	return active.count || active.others;
}

/* Does CUDA's legacy stream wait for that one, and the other way round? */
static bool blocking(uint64_t stream)
{
	const struct client_stream *found = client_stream_find(stream);

	return (uint32_t)stream == (uint64_t)(uintptr_t)CU_STREAM_PER_THREAD ||
	       (found && !(found->flags & CU_STREAM_NON_BLOCKING));
}

bool client_active_behind(uint64_t stream, uint64_t other)
{
	const uint64_t legacy = (uint64_t)(uintptr_t)CU_STREAM_LEGACY;

	if (!other) {
		for (unsigned i = 0; i < active.count; i++)
			if (active.streams[i].graph && active_key(&active.streams[i]) == stream)
				return true;
		return false;
	}
	return stream == other || (other == legacy && blocking(stream)) ||
	       (stream == legacy && blocking(other));
}

/* Another thread may have posted more while this one waited, and be waited for by nobody. */
void client_active_quiet(const struct client_context *context, uint64_t stream, uint64_t since)
{
	struct managed_stream id = { .context = context ? context->handle : NULL };
	unsigned kept = 0;

	if (stream)
		id = client_managed_stream(stream);
	for (unsigned i = 0; i < active.count; i++) {
		const struct active *at = &active.streams[i];
		bool quiet = at->id.context == id.context;

		if (stream)
			quiet = client_managed_stream_same(&at->id, &id) ||
				(quiet && stream == (uint64_t)(uintptr_t)CU_STREAM_LEGACY &&
				 blocking(at->id.stream));
		if (quiet && !at->posting && at->posted <= since)
			active_over(at);
		else
			active.streams[kept++] = *at;
	}
	active.count = kept;
	if (!stream && !kept && active.others_posted <= since)
		active.others = false;
}

void client_active_forget(const struct client_context *context)
{
	struct managed_home *home = client_home(context);

	for (unsigned i = 0; i < active.count; i++)
		if (active.streams[i].id.context == context->handle)
			active.streams[i].posting = 0;
	client_active_quiet(context, 0, UINT64_MAX);
	while (home && home->marks) {
		struct mark *mark = home->marks;

		home->marks = mark->next;
		free(mark);
	}
}

/* Has the stream's work come to its end?  Of a thread's own stream only the mark can be asked. */
static CUresult active_ask(const struct active *at, const struct client_context *context)
{
	const struct client_route route = {
		.session = context->session,
		.context = (uint64_t)(uintptr_t)at->id.context,
	};
	const struct wire_stream_query query = { .stream = at->id.stream };
	const struct wire_event_query event = {
		.event = at->mark ? (uint64_t)(uintptr_t)at->mark->event : 0,
	};
	struct client_request request = {
		.op = WIRE_OP_STREAM_QUERY,
		.fixed = &query,
		.fixed_bytes = sizeof(query),
	};
	CUresult result = CUDA_ERROR_NOT_READY;

	if (at->marked) {
		request.op = WIRE_OP_EVENT_QUERY;
		request.fixed = &event;
		request.fixed_bytes = sizeof(event);
	} else if (at->id.lane && at->id.lane != client_thread()->lane) {
		return result;
	}
	for (int n = 0; n < ASK_ATTEMPTS && result == CUDA_ERROR_NOT_READY; n++) {
		struct client_wait wait = { .result = CUDA_ERROR_DEVICE_UNAVAILABLE };

		result = client_call_own(&route, &request, &wait);
	}
	return result;
}

bool client_active_ask(uint64_t but)
{
	unsigned kept = 0;
	bool busy = active.others;

	for (unsigned i = 0; i < active.count; i++) {
		const struct active at = active.streams[i];
		const struct client_context *context = client_context_get(at.id.context);
		CUresult result = CUDA_ERROR_NOT_READY;
		bool waits = but != CLIENT_ACTIVE_NONE && client_active_behind(active_key(&at), but);

		if (context && !waits)
			result = active_ask(&at, context);
		if (result == CUDA_SUCCESS && !at.posting) {
			active_over(&at);
			continue;
		}
		active.streams[kept++] = at;
		busy = busy || !waits;
	}
	active.count = kept;
	return busy;
}
