/* Requests: posted, called, and the copies whose bytes come later (receive.c). */
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../ground/trace.h"
#include "../handles/events.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "exchange.h"
#include "failure.h"
#include "jobs.h"
#include "outstanding.h"
#include "receive.h"
#include "waits.h"

#include <errno.h>
#include <stdlib.h>

#include "../../transport/ground/thread.h"

static inline void header_fill(struct wire_header *header, enum wire_op op, const struct client_route *route)
{
	header->opcode = (uint16_t)op;
	header->lane = route->own && route->session->own_lane ? WIRE_LANE_OWN : client_thread()->lane;
	header->argument = route->context;
}

/* Has the session's server the operation?  An older one may not; the hello says. */
static CUresult session_offers(struct client_session *session, enum wire_op op)
{
	if (client_session_has(session, op))
		return CUDA_SUCCESS;
	if (!atomic_exchange(&session->missing_said[op], 1))
		client_message("the server at %s does not have %s: it speaks remoting protocol %u.%u, this "
			       "shim %u.%u; install the same version of farbus on both nodes",
			       session->peer, wire_op_infos[op].name, session->major, session->minor,
			       WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR);
	return CUDA_ERROR_NOT_SUPPORTED;
}

static int append(struct client_session *session, struct wire_header *header, const void *fixed,
		  size_t fixed_bytes, const void *tail, size_t tail_bytes, outbox_register on_sequence,
		  void *opaque)
{
	int rc;

	client_trace_note(CLIENT_TRACE_POSTED);
	client_guard_begin();
	rc = outbox_append(&session->outbox, header, fixed, fixed_bytes, tail, tail_bytes, on_sequence,
			   opaque);
	client_guard_end();
	return rc;
}

int client_flush(struct client_session *session)
{
	int rc;

	client_guard_begin();
	rc = outbox_flush(&session->outbox);
	client_guard_end();
	return rc;
}

static CUresult lost(struct client_session *session, int rc)
{
	client_session_fail(session, rc);
	client_end_await();
	return CUDA_ERROR_DEVICE_UNAVAILABLE;
}

static inline CUresult post(const struct client_route *route, enum wire_op op, const void *fixed, size_t fixed_bytes,
			    const void *tail, size_t tail_bytes, outbox_register on_sequence, void *opaque)
{
	struct wire_header header;
	CUresult result = session_offers(route->session, op);
	int rc;

	if (result != CUDA_SUCCESS)
		return result;
	header_fill(&header, op, route);
	rc = append(route->session, &header, fixed, fixed_bytes, tail, tail_bytes, on_sequence, opaque);
	if (rc)
		return lost(route->session, rc);
	return CUDA_SUCCESS;
}

CUresult client_post_on(const struct client_route *route, enum wire_op op, const void *fixed,
			size_t fixed_bytes, const void *tail, size_t tail_bytes)
{
	return post(route, op, fixed, fixed_bytes, tail, tail_bytes, NULL, NULL);
}

CUresult client_post_to(const struct client_route *route, const struct client_request *request)
{
	return post(route, request->op, request->fixed, request->fixed_bytes, request->tail, request->tail_bytes, NULL,
		    NULL);
}

CUresult client_post_registered(const struct client_route *route, const struct client_request *request,
				outbox_register on_sequence, void *opaque)
{
	return post(route, request->op, request->fixed, request->fixed_bytes, request->tail, request->tail_bytes,
		    on_sequence, opaque);
}

CUresult client_post_lent(enum wire_op op, const void *fixed, size_t fixed_bytes, const void *tail,
			  size_t tail_bytes)
{
	struct wire_header header;
	struct client_route route;
	CUresult result = client_route_find(op, fixed, &route);
	int rc;

	if (result == CUDA_SUCCESS)
		result = session_offers(route.session, op);
	if (result != CUDA_SUCCESS)
		return result;
	header_fill(&header, op, &route);
	if (tail_bytes >= OUTBOX_COPY_BYTES)
		session_used(route.session, transport_now_ns());
	client_trace_note(CLIENT_TRACE_POSTED);
	client_guard_begin();
	rc = outbox_lend(&route.session->outbox, &header, fixed, fixed_bytes, tail, tail_bytes);
	client_guard_end();
	if (rc)
		return lost(route.session, rc);
	return client_confirm(&route);
}

void client_settle(const void *at, size_t bytes)
{
	client_guard_begin();
	for (unsigned i = 0; i < farbus_client.session_count; i++)
		outbox_settle(&farbus_client.sessions[i].outbox, at, bytes);
	client_guard_end();
}

CUresult client_post(enum wire_op op, const void *fixed, size_t fixed_bytes, const void *tail,
		     size_t tail_bytes)
{
	struct client_route route;
	CUresult result = client_route_find(op, fixed, &route);

	return result == CUDA_SUCCESS ? post(&route, op, fixed, fixed_bytes, tail, tail_bytes, NULL, NULL) : result;
}

static void register_wait(void *opaque, uint64_t sequence)
{
	struct client_wait *wait = opaque;
	struct client_session *session = wait->session;

	wait->sequence = sequence;
	if (wait->target)
		wait->target->sequence = sequence;
	pthread_mutex_lock(&session->wait_lock);
	wait->next = session->waits;
	session->waits = wait;
	pthread_mutex_unlock(&session->wait_lock);
}

/* Once it is registered, a target is gone when its bytes have come or the session ends: whoever
 * posts it does not look at it any more. */
struct registration {
	struct client_target *target;
	bool done;
};

static void register_target(void *opaque, uint64_t sequence)
{
	struct registration *registration = opaque;
	struct client_target *target = registration->target;
	struct client_session *session = target->session;

	registration->done = true;
	target->sequence = sequence;
	pthread_mutex_lock(&session->wait_lock);
	target->next = session->targets;
	session->targets = target;
	client_receiver_expects(session);
	pthread_mutex_unlock(&session->wait_lock);
}

/* Calls that wait for work, or put some into a stream, tell what was refused of it before.  All others tell how they
 * went themselves: what they have made, or ended, would be lost with the error of something else. */
static bool tells_late(enum wire_op op)
{
	switch (op) {
	case WIRE_OP_CONTEXT_SYNCHRONIZE:
	case WIRE_OP_COPY_TO_HOST:
	case WIRE_OP_ARRAY_WRITE:
	case WIRE_OP_ARRAY_READ:
	case WIRE_OP_ARRAY_COPY:
	case WIRE_OP_STREAM_QUERY:
	case WIRE_OP_STREAM_SYNCHRONIZE:
	case WIRE_OP_STREAM_REACH:
	case WIRE_OP_EVENT_QUERY:
	case WIRE_OP_EVENT_SYNCHRONIZE:
	case WIRE_OP_LAUNCH_CHECKED:
	case WIRE_OP_GRAPH_LAUNCH_CHECKED:
		return true;
	default:
		return false;
	}
}

CUresult client_call_own(const struct client_route *route, const struct client_request *request,
			 struct client_wait *wait)
{
	struct client_session *session = route->session;
	CUresult result = session_offers(session, request->op);
	struct client_waited waited;
	struct wire_header header;
	const struct client_managed *managed;
	uint64_t posted;
	int rc;

	if (result != CUDA_SUCCESS)
		return result;
	client_trace_note(CLIENT_TRACE_CALLED);
	waited = client_events_before(route, request);
	posted = client_managed_any() ? atomic_load(&farbus_client.postings) : 0;
	atomic_store(&wait->state, WAIT_PENDING);
	wait->asleep = false;
	wait->session = session;
	wait->sequence = 0;
	wait->spins = session->patient &&
		      client_wait_spins((CUcontext)(uintptr_t)route->context, request->op, request->fixed);
	header_fill(&header, request->op, route);
	rc = append(session, &header, request->fixed, request->fixed_bytes, request->tail,
		    request->tail_bytes, register_wait, wait);
	if (rc && !wait->sequence)
		return lost(session, rc);
	/* Once it is registered, it must not be left before it is told. */
	if (!rc)
		rc = client_flush(session);
	if (rc || atomic_load(&session->dead))
		client_session_fail(session, rc ? rc : -EPIPE);
	client_wait_for(session, wait);
	result = client_context_note((CUcontext)(uintptr_t)route->context, wait->result);
	if (waited.number && wait->result == CUDA_SUCCESS)
		client_events_over(&waited);
	managed = atomic_load_explicit(&farbus_client.managed, memory_order_relaxed);
	if (managed && wait->result == CUDA_SUCCESS)
		managed->called(route, request, posted);
	return result;
}

CUresult client_call_to(const struct client_route *route, const struct client_request *request,
			struct client_wait *wait)
{
	CUresult result = client_call_own(route, request, wait);

	return result == CUDA_SUCCESS && tells_late(request->op)
		       ? client_context_late((CUcontext)(uintptr_t)route->context) : result;
}

/* While anything is captured, what puts work into a stream tells at the call what the driver said of it: a program that
 * captures finds by that out what a capture forbids. */
CUresult client_confirm(const struct client_route *route)
{
	const struct wire_context_get_limit fixed = { .limit = CU_LIMIT_STACK_SIZE };
	const struct client_request request = {
		.op = WIRE_OP_CONTEXT_GET_LIMIT,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct wire_context_get_limit_reply reply;
	struct client_wait wait = {
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.result = CUDA_ERROR_DEVICE_UNAVAILABLE,
	};
	CUresult result;

	if (!client_captures())
		return CUDA_SUCCESS;
	result = client_call_own(route, &request, &wait);
	return result == CUDA_SUCCESS ? client_context_late((CUcontext)(uintptr_t)route->context) : result;
}

CUresult client_post_work(enum wire_op op, const void *fixed, size_t fixed_bytes, const void *tail, size_t tail_bytes)
{
	struct client_route route;
	CUresult result = client_route_find(op, fixed, &route);

	if (result == CUDA_SUCCESS)
		result = post(&route, op, fixed, fixed_bytes, tail, tail_bytes, NULL, NULL);
	return result == CUDA_SUCCESS ? client_confirm(&route) : result;
}

void client_query_legacy(const struct client_route *route)
{
	const struct wire_stream_query fixed = { .stream = (uint64_t)(uintptr_t)CU_STREAM_LEGACY };
	const struct client_request request = {
		.op = WIRE_OP_STREAM_QUERY,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_wait wait = { .result = CUDA_ERROR_DEVICE_UNAVAILABLE };

	client_call_own(route, &request, &wait);
}

void client_session_unlead(struct client_session *session)
{
	const struct client_route route = { .session = session, .context = client_route_current().context };
	bool led = true;

	/* Whoever leads steps down behind the next frame, which this is answered with. */
	while (led && !atomic_load(&session->dead)) {
		client_query_legacy(&route);
		wait_lock(session);
		led = session->leader_wait;
		wait_unlock(session);
	}
}

/* Before a call that waits reports what ended the current context: callbacks behind it have been told. */
static void callbacks_settle(void)
{
	const struct client_context *context = client_context_current();
	const struct client_request request = { .op = WIRE_OP_CONTEXT_SYNCHRONIZE };
	struct client_wait wait = { 0 };
	struct client_route route;

	if (!client_jobs_have_callbacks() || !context || client_thread()->host_function)
		return;
	/* With its answer all that was posted before is known to be accepted or refused. */
	route = (struct client_route){ .session = context->session, .context = (uint64_t)(uintptr_t)context->handle };
	client_call_own(&route, &request, &wait);
	client_jobs_await_refused();
}

static bool waits_for_work(enum wire_op op)
{
	return op == WIRE_OP_CONTEXT_SYNCHRONIZE || op == WIRE_OP_STREAM_SYNCHRONIZE || op == WIRE_OP_EVENT_SYNCHRONIZE;
}

CUresult client_call_wide(const struct client_request *request, struct client_wait *wait)
{
	struct client_route route;
	CUresult result = client_route_find(request->op, request->fixed, &route);

	if (result == CUDA_SUCCESS)
		result = client_call_to(&route, request, wait);
	if (client_result_is_sticky(result) && waits_for_work(request->op))
		callbacks_settle();
	return result;
}

CUresult client_call(enum wire_op op, const void *fixed, size_t fixed_bytes, void *reply,
		     size_t reply_bytes)
{
	const struct client_request request = {
		.op = op,
		.fixed = fixed,
		.fixed_bytes = fixed_bytes,
	};
	struct client_wait wait = { .reply = reply, .reply_bytes = reply_bytes };

	return client_call_wide(&request, &wait);
}

/* It was never registered: nobody else knows it. */
static CUresult target_refused(struct client_target *target, CUresult result)
{
	if (target->owned)
		free(target);
	return result;
}

CUresult client_post_target(const struct client_request *request, struct client_target *target)
{
	struct client_route route;
	CUresult result = client_route_find(request->op, request->fixed, &route);

	if (result != CUDA_SUCCESS)
		return target_refused(target, result);
	result = client_post_target_to(&route, request, target);
	return result == CUDA_SUCCESS ? client_confirm(&route) : result;
}

CUresult client_post_target_to(const struct client_route *route, const struct client_request *request,
			       struct client_target *target)
{
	CUresult result = session_offers(route->session, request->op);
	struct registration registration = { .target = target };
	struct wire_header header;
	int rc;

	if (result != CUDA_SUCCESS)
		return target_refused(target, result);
	target->session = route->session;
	header_fill(&header, request->op, route);
	client_targets_free(route->session);
	rc = append(route->session, &header, request->fixed, request->fixed_bytes, request->tail,
		    request->tail_bytes, register_target, &registration);
	if (!rc)
		rc = client_flush(route->session);
	/* Whoever gave up what waits may have done so before this was registered. */
	if (!rc && !atomic_load(&route->session->dead))
		return CUDA_SUCCESS;
	result = lost(route->session, rc ? rc : -EPIPE);
	return registration.done ? result : target_refused(target, result);
}
