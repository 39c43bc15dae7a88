/* The session: frames and threads.
 *
 * All threads are alike.  One of them leads: it reads frames in the session's
 * order and executes what does not wait for the device at once.  Before a call
 * that may wait, it lets go of the lead, so that such a call holds nobody else;
 * no later frame of the same lane can be there, because the lane's thread waits
 * for the reply.
 */
#include "server.h"
#include "server_ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../transport/zerocopy.h"

/* Add to a counter that has one writer at a time: no lock, and readers see whole numbers. */
static void count(_Atomic uint64_t *counter, uint64_t more)
{
	uint64_t before = atomic_load_explicit(counter, memory_order_relaxed);

	atomic_store_explicit(counter, before + more, memory_order_relaxed);
}

int server_send(struct server *server, uint16_t opcode, uint16_t lane, uint64_t sequence,
		uint64_t argument, const void *fixed, size_t fixed_bytes, const void *tail,
		size_t tail_bytes)
{
	struct wire_header header = {
		.length = (uint32_t)(fixed_bytes + tail_bytes),
		.opcode = opcode,
		.lane = lane,
		.sequence = sequence,
		.argument = argument,
	};
	struct iovec vector[3] = { { .iov_base = &header, .iov_len = sizeof(header) } };
	int parts = 1, rc;

	if (fixed_bytes)
		vector[parts++] = (struct iovec){ .iov_base = (void *)fixed, .iov_len = fixed_bytes };
	if (tail_bytes)
		vector[parts++] = (struct iovec){ .iov_base = (void *)tail, .iov_len = tail_bytes };
	pthread_mutex_lock(&server->write);
	rc = server->transport.ops->write(&server->transport, vector, parts);
	count(&server->status->sent_bytes, sizeof(header) + header.length);
	atomic_store_explicit(&server->status->uncopied_mib, (uint32_t)(zerocopy_bytes(false) >> 20), memory_order_relaxed);
	pthread_mutex_unlock(&server->write);
	return rc;
}

int server_send_begin(struct server *server, uint16_t opcode, uint16_t lane, uint64_t sequence,
		      const void *fixed, size_t fixed_bytes, size_t tail_bytes)
{
	struct wire_header header = {
		.length = (uint32_t)(fixed_bytes + tail_bytes),
		.opcode = opcode,
		.lane = lane,
		.sequence = sequence,
	};
	struct iovec vector[2] = {
		{ .iov_base = &header, .iov_len = sizeof(header) },
		{ .iov_base = (void *)fixed, .iov_len = fixed_bytes },
	};

	const struct transport_ops *ops = server->transport.ops;

	pthread_mutex_lock(&server->write);
	count(&server->status->sent_bytes, sizeof(header) + header.length);
	return (ops->append ? ops->append : ops->write)(&server->transport, vector, 2);
}

CUresult server_take(struct server_call *call, void *target, size_t bytes)
{
	if (bytes > call->tail_bytes)
		return SERVER_MALFORMED;
	if (inbox_take(call->inbox, target, bytes))
		return SERVER_MALFORMED;
	call->tail_bytes -= bytes;
	return CUDA_SUCCESS;
}

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
		server_pinned_trim(call);
	return rc == 0;
}

static void *server_thread(void *opaque);

static int server_thread_start(struct server *server, void *(*run)(void *))
{
	pthread_attr_t detached;
	pthread_t thread;
	int rc;

	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	atomic_fetch_add(&server->threads, 1);
	rc = pthread_create(&thread, &detached, run, server);
	if (rc)
		atomic_fetch_sub(&server->threads, 1);
	pthread_attr_destroy(&detached);
	return -rc;
}

/* Let another thread read. */
static void lead_pass(struct server *server)
{
	if (!atomic_load(&server->waiting) && atomic_load(&server->threads) < SERVER_THREADS)
		(void)server_thread_start(server, server_thread);
	pthread_mutex_unlock(&server->leader);
}

/* ---- reading aside ----
 *
 * NVIDIA's driver lets memory be allocated or pinned, code be loaded and full queues be filled only when what runs on the
 * device is over.  A stream that waits for an answer of the client never is, until the answer is read.  So where a
 * stream waits, another thread reads while a frame is served: answers are served there and then, all else is kept and
 * served in its order by who served before. */

/* Beyond it nobody reads until some of it has been served; clients stop before (CLIENT_BEHIND_PIECES). */
#define ASIDE_BYTES_LIMIT ((size_t)1 << 30)
/* Then the answer that would let it be served is among what is not read: the session ends. */
#define ASIDE_PATIENCE_S 30
/* Threads that stay for the next call that waits. */
#define ASIDE_PARKED_MOST 16u

struct server_frame {
	struct server_frame *next;
	struct wire_header header;
	int descriptor;			/* as a call's */
	uint8_t payload[] __attribute__((aligned(8)));
};

static void *aside_thread(void *opaque);

/* What keeping it takes, with malloc's own. */
static size_t aside_cost(const struct server_frame *frame)
{
	return sizeof(*frame) + frame->header.length + 32;
}

/* The next of what was kept; NULL: there is nothing, and who reads serves again. */
static struct server_frame *aside_next(struct server *server)
{
	struct server_frame *frame;

	pthread_mutex_lock(&server->aside_lock);
	frame = server->aside;
	if (frame) {
		server->aside = frame->next;
		server->aside_bytes -= aside_cost(frame);
		if (!server->aside)
			server->aside_last = &server->aside;
	} else {
		server->lent = false;
	}
	pthread_cond_broadcast(&server->aside_less);
	pthread_mutex_unlock(&server->aside_lock);
	return frame;
}

enum aside { ASIDE_KEPT, ASIDE_LENT, ASIDE_NOT, ASIDE_FULL };

/* Keep it for who serves.  Where nobody does: ASIDE_LENT: that is the caller now, who lets another thread read and
 * serves what is kept; ASIDE_NOT: it is not kept, since no stream waits.  ASIDE_FULL: nothing has been served for long. */
static enum aside aside_keep(struct server *server, struct server_frame *frame)
{
	enum aside kept = ASIDE_KEPT;
	struct timespec until;

	pthread_mutex_lock(&server->aside_lock);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += ASIDE_PATIENCE_S;
	while (server->lent && server->aside_bytes > ASIDE_BYTES_LIMIT)
		if (pthread_cond_timedwait(&server->aside_less, &server->aside_lock, &until)) {
			pthread_mutex_unlock(&server->aside_lock);
			return ASIDE_FULL;
		}
	if (!server->lent)
		kept = atomic_load(&server->host_waits) ? ASIDE_LENT : ASIDE_NOT;
	if (kept != ASIDE_NOT) {
		server->lent = true;
		*server->aside_last = frame;
		server->aside_last = &frame->next;
		server->aside_bytes += aside_cost(frame);
	}
	pthread_mutex_unlock(&server->aside_lock);
	return kept;
}

/* Who serves will wait: what is kept is another thread's to serve, or, if there is nothing, who reads serves.
 * false: there is no such thread. */
static bool aside_pass(struct server *server)
{
	bool passed;

	pthread_mutex_lock(&server->aside_lock);
	passed = !server->aside;
	if (passed) {
		server->lent = false;
	} else if (server->aside_parked) {
		passed = true;
		server->aside_parked--;
		server->aside_woken++;
		atomic_fetch_add(&server->threads, 1);
		pthread_cond_signal(&server->aside_wake);
	}
	pthread_mutex_unlock(&server->aside_lock);
	return passed || (atomic_load(&server->threads) < SERVER_THREADS &&
			  server_thread_start(server, aside_thread) == 0);
}

/* Without another thread, the frames wait until this call is over. */
void server_pass(struct server_call *call)
{
	struct server *server = call->server;

	if (call->beside) {
		call->beside = false;
		lead_pass(server);
	}
	if (call->passed)
		return;
	/* Whoever leads next may end it. */
	if (call->context && (server_hold(call, call->context) != CUDA_SUCCESS ||
			      server_hold(call, call->context->base) != CUDA_SUCCESS))
		return;
	if (call->lent && !aside_pass(server))
		return;
	call->passed = true;
	if (!call->lent)
		lead_pass(server);
}

/* Nothing is put into a stream meanwhile: whoever does that leads, or has led and is not yet
 * back, and there is no such thread. */
bool server_is_alone(const struct server *server)
{
	return atomic_load(&server->threads) - atomic_load(&server->waiting) == 1;
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

bool server_is_own(const struct server_call *call)
{
	return call->header.lane == WIRE_LANE_OWN && call->server->own_lane;
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
static struct server_frame *frame_take(struct server_call *call)
{
	struct server_frame *frame = malloc(sizeof(*frame) + call->header.length);

	if (!frame)
		return NULL;
	frame->next = NULL;
	frame->header = call->header;
	frame->descriptor = call->descriptor;
	if (inbox_take(call->inbox, frame->payload, call->header.length)) {
		free(frame);
		return NULL;
	}
	return frame;
}

static bool frame_run(struct server_thread *thread, struct server_frame *frame, bool lent, bool *leading)
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
	struct server_frame *frame;
	bool good = true;

	while (*leading && (frame = aside_next(server))) {
		good = good && !atomic_load(&server->ended) && frame_run(thread, frame, true, leading);
		free(frame);
	}
	return good;
}

/* Wait to be needed again; it is none of the server's threads meanwhile.  false: enough others do. */
static bool aside_park(struct server *server)
{
	bool parks;

	atomic_fetch_sub(&server->threads, 1);
	pthread_mutex_lock(&server->aside_lock);
	parks = server->aside_parked < ASIDE_PARKED_MOST;
	if (parks) {
		server->aside_parked++;
		while (!server->aside_woken)
			pthread_cond_wait(&server->aside_wake, &server->aside_lock);
		server->aside_woken--;
	}
	pthread_mutex_unlock(&server->aside_lock);
	return parks;
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
	} while (aside_park(server));
	free(thread);
	return NULL;
}

/* Read and serve a frame where a stream waits for an answer, or another thread serves. */
static bool aside_read(struct server_call *call, const struct wire_op_info *info, bool *leading)
{
	struct server *server = call->server;
	struct server_frame *frame;
	bool good = true;

	if (call_overtakes(call)) {
		bool serves;

		/* While nobody else serves they are the reader's; later, of what they put into streams nothing is said. */
		if (!atomic_load(&server->lent))
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
	switch (aside_keep(server, frame)) {
	case ASIDE_KEPT:
		break;
	case ASIDE_FULL:
		free(frame);
		good = false;
		break;
	case ASIDE_LENT:
		server->settled.known = server->idle.known = false;
		lead_pass(server);
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
	count(&server->status->calls, 1);
	/* Descriptors come in the order of the frames, of which this one may be served later. */
	call.descriptor = call.header.opcode == WIRE_OP_PINNED_OFFER ||
					  call.header.opcode == WIRE_OP_PINNED_OFFER_FILE
				  ? transport_shm_passed(&server->transport)
				  : -1;
	/* What was lent before this thread leads it sees, and with the end of that all that was served meanwhile. */
	if (atomic_load_explicit(&server->lent, memory_order_acquire) ||
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

void server_status_carried(struct server *server, const struct transport *transport)
{
	uint64_t name = 0;

	/* The last byte stays 0. */
	memcpy(&name, transport->ops->name, strnlen(transport->ops->name, sizeof(name) - 1));
	atomic_store_explicit(&server->status->transport, name, memory_order_relaxed);
}

static struct server *server_make(void)
{
	struct server *server = calloc(1, sizeof(*server));

	if (!server)
		return NULL;
	server->names = server_names_make();
	if (!server->names) {
		free(server);
		return NULL;
	}
	return server;
}

struct server *server_prepare(const struct server_options *options)
{
	struct server *server = server_make();
	char why[WIRE_HELLO_TEXT_BYTES];
	CUresult result;

	/* Not freed: the driver is open, and the process ends. */
	if (!server || server_driver_start(server, options, why, sizeof(why), &result) ||
	    result != CUDA_SUCCESS)
		return NULL;
	return server;
}

int server_serve(const struct server_options *options, char *why, int bytes)
{
	struct server *server = options->prepared ? options->prepared : server_make();
	int rc;

	if (!server)
		return server_fail(why, bytes, -ENOMEM, "out of memory");
	server->text_read = server->said_read = -1;
	server->status = options->status ? options->status : &server->unseen;
	server->libcuda = options->libcuda;
	server->sessions = options->sessions;
	server->exchange = options->exchange;
	server->session_count = options->sessions ? options->session_count : 0;
	server->meter.received_bytes = &server->status->received_bytes;
	server->meter.busy_ns = &server->status->busy_ns;
	server->meter.reading_since_ns = &server->status->reading_since_ns;
	pthread_mutex_init(&server->busy_lock, NULL);
	pthread_mutex_init(&server->leader, NULL);
	pthread_mutex_init(&server->write, NULL);
	pthread_mutex_init(&server->lock, NULL);
	pthread_mutex_init(&server->exchange_lock, NULL);
	pthread_mutex_init(&server->exports_lock, NULL);
	pthread_mutex_init(&server->shared_end, NULL);
	pthread_mutex_init(&server->shared_lock, NULL);
	pthread_mutex_init(&server->holds_lock, NULL);
	pthread_cond_init(&server->let_go, NULL);
	pthread_cond_init(&server->end, NULL);
	pthread_mutex_init(&server->objects.lock, NULL);
	pthread_mutex_init(&server->functions.lock, NULL);
	pthread_mutex_init(&server->held_lock, NULL);
	pthread_mutex_init(&server->aside_lock, NULL);
	pthread_cond_init(&server->aside_less, NULL);
	pthread_cond_init(&server->aside_wake, NULL);
	server->aside_last = &server->aside;
	rc = transport_socket_init(&server->transport, options->descriptor);
	if (rc) {
		free(server);
		return server_fail(why, bytes, rc, "take over descriptor %d: %s", options->descriptor,
			    strerror(-rc));
	}
	rc = server_hello(server, options, why, bytes);
	if (!rc)
		rc = inbox_init(&server->inbox, &server->transport);
	server->inbox.meter = &server->meter;
	/* Its first frames may be there already, so that it waits for none. */
	atomic_store_explicit(&server->status->reading_since_ns, transport_now_ns(), memory_order_relaxed);
	/* Our threads may be moved; a program's are its own. */
	server->inbox.parts = true;
	server->patient = inbox_has_processors();
	if (!rc)
		rc = server_text_start(server);
	if (!rc)
		rc = server_thread_start(server, server_thread);
	if (!rc) {
		/* This thread never enters the driver, so that nothing in there can
		 * keep the process from ending. */
		pthread_mutex_lock(&server->lock);
		while (!atomic_load(&server->ended))
			pthread_cond_wait(&server->end, &server->lock);
		pthread_mutex_unlock(&server->lock);
	}
	server->transport.ops->shutdown(&server->transport);
	/* Not freed: other threads may be inside the driver, and the process ends. */
	return rc;
}
