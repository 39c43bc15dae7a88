/* The session: frames and the threads that serve them (lead.c says which of them reads). */
#include "../ground/aside.h"
#include "../ground/frames.h"
#include "../ground/hold.h"
#include "../ground/lead.h"
#include "../ground/resolve.h"
#include "../ground/text.h"
#include "../jobs/gather.h"
#include "../memory/in_place.h"
#include "../streams/capture.h"
#include "serve.h"

#include <stdlib.h>
#include <string.h>

#include "../../transport/rings/shm.h"

static void server_end(struct server *server)
{
	server->transport.ops->shutdown(&server->transport);
	pthread_mutex_lock(&server->lock);
	atomic_store(&server->ended, true);
	pthread_cond_broadcast(&server->end);
	pthread_mutex_unlock(&server->lock);
}

/* Find and enter the context that was current in the client's thread. */
static CUresult call_context(struct server_call *call)
{
	uint64_t handle = call->header.argument;

	call->context = handle ? server_find(call, HANDLE_CONTEXT, handle) : NULL;
	if (!call->context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (call->passed && server_hold(call, call->context->base) != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return server_context_enter(call->thread, call->context);
}

static CUresult call_execute(struct server_call *call, const struct wire_op_info *info)
{
	CUresult result = call_context(call);

	if (result != CUDA_SUCCESS && info->context)
		return result;
	if (atomic_load_explicit(&call->server->capture_count, memory_order_relaxed)) {
		result = server_capture_permit(call);
		if (result != CUDA_SUCCESS)
			return result;
	}
	if (call->due && call->header.opcode == WIRE_OP_STREAM_SYNCHRONIZE) {
		call->server->idle.told = true;
		return CUDA_SUCCESS;
	}
	return server_handlers[call->header.opcode](call);
}

static bool call_queries(const struct server_call *call)
{
	return call->header.opcode == WIRE_OP_STREAM_QUERY || call->header.opcode == WIRE_OP_EVENT_QUERY;
}

/* What a software GPU says of it is there before the error is. */
static bool call_is_refused(CUresult result)
{
	return result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
}

/* What kernels have printed is there before a query tells of their end.  Where only queries have
 * come since the same one was answered so, nothing new can have ended: a program that polls
 * would pay for a look each time.  The caller leads. */
static bool query_brings_text(struct server_call *call, CUresult result)
{
	struct server *server = call->server;
	struct server_settled asked = {
		.known = true,
		.opcode = call->header.opcode,
		.lane = call->header.lane,
		.context = call->header.argument,
	};

	if (result == CUDA_ERROR_NOT_READY)
		return false;
	memcpy(&asked.object, call->request, sizeof(asked.object));
	/* What runs beside this one may put something there; an error may come by itself. */
	if (result != CUDA_SUCCESS || !server_is_alone(server))
		return true;
	if (server->settled.known && server->settled.opcode == asked.opcode &&
	    server->settled.lane == asked.lane && server->settled.context == asked.context &&
	    server->settled.object == asked.object)
		return false;
	server->settled = asked;
	return true;
}

/* Execute and answer.  false: the session is over. */
static bool call_serve(struct server_call *call, const struct wire_op_info *info)
{
	struct server *server = call->server;
	uint8_t reply[WIRE_FIXED_BYTES] __attribute__((aligned(8))) = { 0 };
	CUresult result;
	int rc = 0;

	call->reply = reply;
	result = call_execute(call, info);
	if (result == SERVER_MALFORMED) {
		free(call->reply_tail);
		return false;
	}
	if (info->blocking || call_is_refused(result) || (call_queries(call) && query_brings_text(call, result)))
		server_text_flush(server);
	if (info->called) {
		bool good = result == CUDA_SUCCESS;

		rc = server_send(server, call->header.opcode | WIRE_REPLY, call->header.lane,
				 call->header.sequence, (uint64_t)(uint32_t)result, reply,
				 good ? info->reply_size : 0, call->reply_tail,
				 good ? call->reply_tail_bytes : 0);
	} else if (result != CUDA_SUCCESS) {
		const struct wire_failure failure = {
			.context = call->header.argument,
			.sequence = call->header.sequence,
			.status = (int32_t)result,
			.opcode = call->header.opcode,
		};

		rc = server_send(server, WIRE_EVENT_FAILURE, call->header.lane,
				 call->header.sequence, 0, &failure, sizeof(failure), NULL, 0);
	}
	free(call->reply_tail);
	/* These have waited for the whole context, and the client has its answer. */
	if (!rc && result == CUDA_SUCCESS && (call->header.opcode == WIRE_OP_CONTEXT_SYNCHRONIZE ||
					      call->header.opcode == WIRE_OP_MEMORY_FREE))
		server_gather_trim(call);
	return rc == 0;
}

/* Is this a call that might wait, and will not?  Then the lead need not be passed on, which
 * costs as much as a small copy. */
static bool call_is_due(struct server_call *call)
{
	uint64_t handle;
	CUstream stream;

	if (call->header.opcode == WIRE_OP_STREAM_SYNCHRONIZE)
		handle = ((const struct wire_stream_synchronize *)call->request)->stream;
	else if (call->header.opcode == WIRE_OP_COPY_TO_HOST)
		handle = ((const struct wire_copy_to_host *)call->request)->stream;
	else
		return false;
	return server_is_alone(call->server) && call_context(call) == CUDA_SUCCESS &&
	       server_resolve_stream(call, handle, &stream) == CUDA_SUCCESS &&
	       server_stream_is_idle(call, stream);
}

/* Do streams that are idle stay so?  Of copies those in place do, and who serves another says so.  An error comes by
 * itself, of what runs in a stream that nobody waits for: a copy hears of it from the driver, and who only waits, again
 * and again, because it is asked again. */
static bool call_leaves_idle(const struct server_call *call)
{
	switch (call->header.opcode) {
	case WIRE_OP_STREAM_SYNCHRONIZE:
		return !call->server->idle.told;
	case WIRE_OP_COPY_TO_DEVICE:
	case WIRE_OP_COPY_TO_HOST:
		return true;
	default:
		return false;
	}
}

/* These take names away, and pass the lead on by themselves when they have. */
static bool call_takes_names(const struct server_call *call)
{
	switch (call->header.opcode) {
	case WIRE_OP_PRIMARY_RELEASE:
	case WIRE_OP_PRIMARY_RESET:
	case WIRE_OP_CONTEXT_DESTROY:
	case WIRE_OP_GREEN_DESTROY:
	case WIRE_OP_LIBRARY_UNLOAD:
		return true;
	default:
		return false;
	}
}

/* Answers wait for nothing that a frame before them does, nor does what the client asks before it answers. */
static bool call_overtakes(const struct server_call *call)
{
	return call->header.opcode == WIRE_OP_HOST_DONE || call->header.opcode == WIRE_OP_PULL_DATA ||
	       server_is_own(call);
}

/* What the header says that there is; NULL: no client of ours says so. */
static const struct wire_op_info *call_known(const struct server_call *call)
{
	const struct wire_op_info *info;

	if (call->header.opcode >= WIRE_OP_LIMIT || call->header.lane >= WIRE_LANES)
		return NULL;
	info = &wire_op_infos[call->header.opcode];
	if (!info->name || call->header.length < info->request_size ||
	    call->header.length - info->request_size > info->request_tail)
		return NULL;
	return info;
}

/* A call may wait for the device: from now on the session is busy until the last such call ends, however many
 * there are, and whoever looks meanwhile sees since when. */
static void call_wait_begins(struct server_call *call)
{
	struct server *server = call->server;
	uint64_t now;

	pthread_mutex_lock(&server->busy_lock);
	now = transport_now_ns();
	if (!atomic_load_explicit(&server->meter.elsewhere, memory_order_relaxed)) {
		/* Where another thread may read by now, that one counts. */
		if (!call->passed && call->inbox == &server->inbox)
			inbox_busy_until(&server->meter, now);
		atomic_store_explicit(&server->status->waiting_since_ns, now, memory_order_relaxed);
	}
	atomic_fetch_add_explicit(&server->meter.elsewhere, 1, memory_order_relaxed);
	pthread_mutex_unlock(&server->busy_lock);
}

static void call_wait_ends(struct server *server)
{
	uint64_t now, since;

	pthread_mutex_lock(&server->busy_lock);
	now = transport_now_ns();
	if (atomic_load_explicit(&server->meter.elsewhere, memory_order_relaxed) == 1) {
		since = atomic_exchange_explicit(&server->status->waiting_since_ns, 0, memory_order_relaxed);
		atomic_fetch_add_explicit(&server->status->busy_ns, now - since, memory_order_relaxed);
		atomic_store_explicit(&server->meter.counted_ns, now, memory_order_relaxed);
	}
	atomic_fetch_sub_explicit(&server->meter.elsewhere, 1, memory_order_release);
	pthread_mutex_unlock(&server->busy_lock);
}

/* What the status calls it, once the request is there. */
static uint32_t call_operation(const struct server_call *call)
{
	const struct wire_call *request = call->request;
	uint32_t operation = call->header.opcode;

	if (operation == WIRE_OP_CALL || operation == WIRE_OP_CALL_WAITING)
		operation |= (request->function + 1) << 16;
	return operation;
}

/* Serve the frame whose header is there.  The caller serves frames; *leading says whether it still does.
 * false: the session is over. */
static bool call_run(struct server_call *call, const struct wire_op_info *info, bool *leading)
{
	struct server *server = call->server;
	uint8_t fixed[WIRE_FIXED_BYTES] __attribute__((aligned(8)));
	bool good, waits = false;

	call->request = fixed;
	if (inbox_take(call->inbox, fixed, info->request_size))
		return false;
	atomic_store_explicit(&server->status->operation, call_operation(call), memory_order_relaxed);
	call->tail_bytes = call->header.length - info->request_size;
	if (info->request_tail <= sizeof(call->thread->tail)) {
		if (inbox_take(call->inbox, call->thread->tail, call->tail_bytes))
			return false;
		call->tail = call->thread->tail;
	}
	if (!call->passed && !call_queries(call)) {
		server->settled.known = false;
		server->idle.known = server->idle.known && call_leaves_idle(call);
		server->idle.told = server->idle.told && call->header.opcode == WIRE_OP_STREAM_SYNCHRONIZE;
	}
	/* Others, too, are served while an allocation stands. */
	if (call->lent && (call->header.opcode == WIRE_OP_MEMORY_ALLOC ||
			   call->header.opcode == WIRE_OP_MEMORY_ALLOC_PITCH)) {
		call->context = NULL;
		server_pass(call);
	} else if (info->blocking && !(call->due = call_is_due(call))) {
		waits = true;
		call_wait_begins(call);
		if (!call_takes_names(call)) {
			call->context = NULL;
			server_pass(call);
		}
	}
	good = call_serve(call, info);
	server_let_go(call);
	*leading = !call->passed;
	/* The time of other calls is counted where the leader has no more to read. */
	if (waits)
		call_wait_ends(server);
	/* What a handler of a bulk operation left behind when it failed. */
	if (good && !call->tail && call->tail_bytes)
		good = inbox_skip(call->inbox, call->tail_bytes) == 0;
	return good;
}

/* The frame in the inbox, in memory; NULL: the session is over. */
static struct aside_frame *frame_take(struct server_call *call)
{
	struct aside_frame *frame = malloc(sizeof(*frame) + call->header.length);

	if (!frame)
		return NULL;
	frame->header = call->header;
	frame->descriptor = call->descriptor;
	if (inbox_take(call->inbox, frame->payload, call->header.length)) {
		free(frame);
		return NULL;
	}
	return frame;
}

static bool frame_run(struct server_thread *thread, struct aside_frame *frame, bool lent, bool *leading)
{
	struct inbox inbox = {
		.transport = &thread->server->transport,
		.buffer = frame->payload,
		.end = frame->header.length,
	};
	struct server_call call = {
		.server = thread->server,
		.driver = &thread->server->driver,
		.thread = thread,
		.inbox = &inbox,
		.header = frame->header,
		.descriptor = frame->descriptor,
		.lent = lent,
	};

	return call_run(&call, call_known(&call), leading);
}

/* Serve what was kept.  *leading: whether the caller serves frames, and afterwards whether it still does; it does
 * not read them. */
static bool aside_serve(struct server_thread *thread, bool *leading)
{
	struct server *server = thread->server;
	struct aside_frame *frame;
	bool good = true;

	while (*leading && (frame = aside_next(&server->aside))) {
		good = good && !atomic_load(&server->ended) && frame_run(thread, frame, true, leading);
		free(frame);
	}
	return good;
}

/* A thread that serves what was kept. */
static void *aside_thread(void *opaque)
{
	struct server_thread *thread = calloc(1, sizeof(*thread));
	struct server *server = opaque;
	bool leading;

	if (thread)
		thread->server = server;
	do {
		leading = true;
		if (!thread || !aside_serve(thread, &leading))
			server_end(server);
	} while (aside_park(&server->aside));
	free(thread);
	return NULL;
}

/* Read and serve a frame where a stream waits for an answer, or another thread serves. */
static bool aside_read(struct server_call *call, const struct wire_op_info *info, bool *leading)
{
	struct server *server = call->server;
	struct aside_frame *frame;
	bool good = true;

	if (call_overtakes(call)) {
		bool serves;

		/* While nobody else serves they are the reader's; later, of what they put into streams nothing is said. */
		if (!atomic_load(&server->aside.lent))
			server->settled.known = server->idle.known = false;
		/* As a call that has let go of the lead: it takes no names away, and holds what it finds. */
		call->passed = call->beside = true;
		good = call_run(call, info, &serves);
		*leading = call->beside;
		return good;
	}
	frame = frame_take(call);
	if (!frame)
		return false;
	switch (aside_keep(&server->aside, frame)) {
	case ASIDE_KEPT:
		break;
	case ASIDE_FULL:
		free(frame);
		good = false;
		break;
	case ASIDE_LENT:
		server->settled.known = server->idle.known = false;
		server_lead_pass(server);
		good = aside_serve(call->thread, leading);
		*leading = false;
		break;
	case ASIDE_NOT:
		good = frame_run(call->thread, frame, false, leading);
		free(frame);
		break;
	}
	return good;
}

/* Read one frame and serve it; the caller leads.  *leading says whether it still
 * does.  false: the session is over. */
static bool frame_serve(struct server_thread *thread, bool *leading)
{
	struct server *server = thread->server;
	struct server_call call = {
		.server = server,
		.driver = &server->driver,
		.thread = thread,
		.inbox = &server->inbox,
	};
	const struct wire_op_info *info;

	if (server->patient)
		server->inbox.patience_ns = server_is_alone(server) ? INBOX_PATIENCE_PEER_NS
								    : INBOX_PATIENCE_DEVICE_NS;
	if (inbox_header(&server->inbox, &call.header, -1))
		return false;
	info = call_known(&call);
	if (!info)
		return false;
	server_count(&server->status->calls, 1);
	/* Descriptors come in the order of the frames, of which this one may be served later. */
	call.descriptor = call.header.opcode == WIRE_OP_PINNED_OFFER ||
					  call.header.opcode == WIRE_OP_PINNED_OFFER_FILE
				  ? transport_shm_passed(&server->transport)
				  : -1;
	/* What was lent before this thread leads it sees, and with the end of that all that was served meanwhile. */
	if (atomic_load_explicit(&server->aside.lent, memory_order_acquire) ||
	    atomic_load_explicit(&server->host_waits, memory_order_relaxed))
		return aside_read(&call, info, leading);
	return call_run(&call, info, leading);
}

static void *server_thread(void *opaque)
{
	struct server_thread *thread = calloc(1, sizeof(*thread));
	struct server *server = opaque;
	bool leading = false;

	if (!thread)
		server_end(server);
	else
		thread->server = server;
	while (!atomic_load(&server->ended)) {
		if (!leading) {
			atomic_fetch_add(&server->waiting, 1);
			pthread_mutex_lock(&server->leader);
			atomic_fetch_sub(&server->waiting, 1);
			leading = true;
			continue;	/* it may have ended meanwhile */
		}
		if (!frame_serve(thread, &leading))
			server_end(server);
	}
	if (leading)
		pthread_mutex_unlock(&server->leader);
	free(thread);
	atomic_fetch_sub(&server->threads, 1);
	return NULL;
}

int server_run(struct server *server)
{
	int rc;

	server->reads = server_thread;
	server->serves = aside_thread;
	rc = server_thread_start(server, server_thread);
	if (rc)
		return rc;
	pthread_mutex_lock(&server->lock);
	while (!atomic_load(&server->ended))
		pthread_cond_wait(&server->end, &server->lock);
	pthread_mutex_unlock(&server->lock);
	return 0;
}
