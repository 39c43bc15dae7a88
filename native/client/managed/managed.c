/* Managed memory: who may use what of it, and what the program's calls mean for it. */
#include "../addresses/ranges.h"
#include "../exchange/captures.h"
#include "../exchange/mapping.h"
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "active.h"
#include "home.h"
#include "managed.h"
#include "pages.h"
#include "regions.h"

#include <stdlib.h>

bool client_managed_at(uint64_t address)
{
	struct client_range range;

	return client_managed_any() && client_memory_find(address, &range) && range.managed;
}

bool client_managed_offered(void)
{
	return client_alone() && client_pages_fit() &&
	       client_session_has(farbus_client.sessions, WIRE_OP_LIBRARY_VARIABLE);
}

CUresult client_mapped_check(void)
{
	/* Memory that both have is right for whatever a kernel does with it. */
	if (client_pinned_maps())
		farbus_client.mapping = MAPPING_SHARED;
	if (farbus_client.mapping != MAPPING_MANAGED || client_managed_offered())
		return CUDA_SUCCESS;
	client_message("FARBUS_MAPPED_MEMORY=managed needs %s: unset it",
		       client_pages_fit() ? "GPUs of one server alone, of the same version of farbus"
					  : "a machine whose pages have 4 KiB");
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult client_managed_refuse(void)
{
	static _Atomic bool said;
	const struct client_session *session = farbus_client.sessions;

	if (atomic_exchange(&said, true))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!client_pages_fit())
		client_message("managed memory is not supported over remoting on a machine whose pages do not have "
			       "4 KiB; the attribute MANAGED_MEMORY is 0");
	else if (client_alone())
		client_message("managed memory is not supported over remoting by the server at %s: it "
			       "speaks remoting protocol %u.%u, this shim %u.%u; install the same "
			       "version of farbus on both nodes", session->peer, session->major,
			       session->minor, WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR);
	else
		client_message("managed memory is not supported over remoting for a program with GPUs "
			       "of %u servers: it would be on all of them at once; the attribute "
			       "MANAGED_MEMORY is 0", farbus_client.session_count);
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- who may use what ---- */

/* Memory that is attached to a stream which is no more is everybody's. */
static bool stream_there(uint64_t stream)
{
	return (uint32_t)stream == (uint64_t)(uintptr_t)CU_STREAM_PER_THREAD ||
	       stream == (uint64_t)(uintptr_t)CU_STREAM_LEGACY ||
	       client_stream_find(stream);
}

static bool visible(const struct managed_block *block, uint64_t stream)
{
	if (block->attach == ATTACH_HOST)
		return false;
	if (block->attach == ATTACH_GLOBAL)
		return true;
	if (!stream_there(block->stream))
		return true;
	if (!stream)
		return client_active_behind(block->stream, 0);
	return block->stream == stream;
}

/* Variables have no block: every stream may use them.  `attached`: what is attached to the
 * stream alone. */
static CUresult flush_region(struct managed_region *region, uint64_t stream, bool attached)
{
	CUresult result = CUDA_SUCCESS;

	if (!region->block_count)
		return attached ? CUDA_SUCCESS
				: client_pages_flush(region, 0, region->pages, false);
	for (size_t i = 0; i < region->block_count && result == CUDA_SUCCESS; i++) {
		const struct managed_block *block = &region->blocks[i];

		if (visible(block, stream) && (!attached || block->attach == ATTACH_STREAM))
			result = client_pages_flush(region, block->first, block->count, false);
	}
	return result;
}

static CUresult flush_all(uint64_t stream, bool attached)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; i < client_pages_count() && result == CUDA_SUCCESS; i++) {
		struct managed_region *region = client_pages_at(i);

		if (region->warm)
			result = flush_region(region, stream, attached);
	}
	return result == CUDA_SUCCESS ? client_homes_sent() : result;
}

/* Host functions that run, by their streams: memory is theirs meanwhile.  Work that comes
 * behind one gets what it leaves when it ends. */
static struct {
	uint64_t *streams;
	size_t count, room;
} running;

static CUresult flush_for(uint64_t stream)
{
	bool behind = false;

	for (size_t i = 0; i < running.count; i++) {
		if (running.streams[i] == stream)
			return CUDA_SUCCESS;
		behind = behind || client_active_behind(stream, running.streams[i]);
	}
	return flush_all(stream, behind);
}

CUresult client_managed_before(uint64_t stream, bool graph)
{
	CUresult result;

	/* A captured stream runs nothing now; when its graph is launched, this is asked again. */
	if (client_stream_captured(stream))
		return CUDA_SUCCESS;
	client_pages_lock();
	client_active_begin(stream, graph);
	result = flush_for(client_managed_key(stream));
	if (result == CUDA_SUCCESS)
		result = client_homes_order(stream);
	client_pages_unlock();
	return result;
}

void client_managed_after(uint64_t stream)
{
	if (client_stream_captured(stream))
		return;
	client_pages_lock();
	client_active_end(stream);
	if (!client_paging()) {
		client_active_mark(stream);
		flush_for(client_managed_key(stream));
	}
	client_pages_doubt();
	client_pages_unlock();
}

/* Copies: is what is posted to the stream behind a host function that runs?  Its memory is taken from it when it ends. */
static bool behind_running(uint64_t stream)
{
	bool behind = false;

	for (size_t i = 0; i < running.count && !client_paging() && !behind; i++)
		behind = client_active_behind(client_managed_key(stream), running.streams[i]);
	return behind;
}

static CUresult flush_range(uint64_t address, uint64_t bytes, bool keep)
{
	uint64_t end = address + bytes;
	CUresult result = CUDA_SUCCESS;

	while (address < end && result == CUDA_SUCCESS) {
		struct managed_region *region = client_pages_find(address);
		size_t first, last;

		if (!region)
			break;
		first = (address - region->base) / PAGE_BYTES;
		last = (end - 1 - region->base) / PAGE_BYTES + 1;
		last = last < region->pages ? last : region->pages;
		result = client_pages_flush(region, first, last - first, keep);
		address = region->base + region->pages * PAGE_BYTES;
	}
	return result == CUDA_SUCCESS ? client_homes_sent() : result;
}

CUresult client_managed_before_range(uint64_t stream, uint64_t address, uint64_t bytes, bool writes)
{
	CUresult result;

	if (client_stream_captured(stream))
		return CUDA_SUCCESS;
	client_pages_lock();
	if (writes)
		client_active_begin(stream, false);
	result = writes && behind_running(stream) ? CUDA_SUCCESS : flush_range(address, bytes, !writes);
	if (result == CUDA_SUCCESS)
		result = client_homes_order(stream);
	client_pages_unlock();
	return result;
}

void client_managed_after_range(uint64_t stream, uint64_t address, uint64_t bytes, bool writes)
{
	if (!writes || client_stream_captured(stream))
		return;
	client_pages_lock();
	client_active_end(stream);
	if (!client_paging()) {
		client_active_mark(stream);
		if (!behind_running(stream))
			flush_range(address, bytes, false);
	}
	client_pages_doubt();
	client_pages_unlock();
}

/* ---- when the program has waited ---- */

/* Copies: bring back all that nothing runs on, but what waits for a host function (0, or its
 * stream; CLIENT_ACTIVE_NONE: for none). */
static void bring_all(uint64_t but)
{
	bool away = false, quiet;

	for (size_t i = 0; i < client_pages_count() && !away; i++)
		away = client_pages_at(i)->away;
	if (!away)
		return;
	quiet = !client_active_ask(but);
	for (size_t i = 0; i < client_pages_count(); i++) {
		struct managed_region *region = client_pages_at(i);

		if (!region->away)
			continue;
		if (!region->block_count && quiet)
			client_pages_bring(region, 0, region->pages);
		for (size_t n = 0; n < region->block_count; n++) {
			const struct managed_block *block = &region->blocks[n];
			bool own = block->attach != ATTACH_GLOBAL && stream_there(block->stream);

			if (quiet || (own && !client_active_is(block->stream)))
				client_pages_bring(region, block->first, block->count);
		}
	}
	client_pages_bring_finish();
}

static void waited(void)
{
	if (!client_paging()) {
		bring_all(CLIENT_ACTIVE_NONE);
		return;
	}
	for (size_t i = 0; i < client_pages_count(); i++)
		if (client_pages_at(i)->provisional)
			client_pages_drop(client_pages_at(i));
}

static void called(const struct client_route *route, const struct client_request *request, uint64_t since)
{
	const struct client_context *context;
	uint64_t stream = 0;

	if (client_thread()->managed)
		return;
	context = client_context_get((CUcontext)(uintptr_t)route->context);
	switch (request->op) {
	case WIRE_OP_STREAM_SYNCHRONIZE:
	case WIRE_OP_STREAM_REACH:
		stream = ((const struct wire_stream_synchronize *)request->fixed)->stream;
		break;
	case WIRE_OP_STREAM_QUERY:
		stream = ((const struct wire_stream_query *)request->fixed)->stream;
		break;
	case WIRE_OP_COPY_TO_HOST:
		stream = ((const struct wire_copy_to_host *)request->fixed)->stream;
		break;
	case WIRE_OP_CONTEXT_SYNCHRONIZE:
	case WIRE_OP_EVENT_SYNCHRONIZE:
	case WIRE_OP_EVENT_QUERY:
	case WIRE_OP_EVENT_ELAPSED_TIME:
	case WIRE_OP_MEMORY_FREE:
		break;
	default:
		return;
	}
	client_pages_lock();
	if (stream || request->op == WIRE_OP_CONTEXT_SYNCHRONIZE)
		client_active_quiet(context, stream, since);
	waited();
	client_pages_unlock();
}

/* CUDA lets a host function use managed memory while nothing else runs. */
static void host_begin(uint64_t stream)
{
	client_pages_lock();
	if (running.count == running.room) {
		size_t room = running.room ? 2 * running.room : 16;
		uint64_t *grown = realloc(running.streams, room * sizeof(*grown));

		/* Without it, pages go while the function runs: they come back with paging. */
		if (grown) {
			running.streams = grown;
			running.room = room;
		}
	}
	if (running.count < running.room)
		running.streams[running.count++] = stream;
	if (client_paging())
		waited();
	else
		bring_all(stream);
	client_pages_unlock();
}

/* What is behind it in the stream was posted long ago, and can't be told to wait. */
static void host_end(uint64_t stream)
{
	client_pages_lock();
	for (size_t i = 0; i < running.count; i++) {
		if (running.streams[i] == stream) {
			running.streams[i] = running.streams[--running.count];
			break;
		}
	}
	flush_for(stream);
	client_homes_settle();
	client_pages_unlock();
}

static const struct client_managed hooks = {
	.called = called,
	.host_begin = host_begin,
	.host_end = host_end,
};

void client_managed_begin(void)
{
	atomic_store(&farbus_client.managed, &hooks);
}

void client_managed_bring(void)
{
	if (!client_paging())
		bring_all(CLIENT_ACTIVE_NONE);
}
