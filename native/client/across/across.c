/* What a stream of one server needs of another: an event of its, or bytes.
 *
 * The servers do not know each other; this process stands between them.  A stream that
 * has to wait is stopped with a gate, and goes on when this process
 * lets it: when the other server has told of the event, or when the bytes are there.
 * Nobody's call waits for that, and the stream's order is kept on both sides.
 *
 *	wait:	T: ... gate(g) ...		S: helper: wait event, gate(n)
 *		n reached -> open n, and g if it is reached; g reached -> open it if n was
 *
 *	copy:	T: ... gate(g) ...		g reached -> source to here, here to target,
 *						target's helper done -> open g
 *	in the legacy stream: both devices waited for, the copy, and only then the return
 *
 * T is the stream's server, S the event's.  Helpers (helpers.c) are streams of the shim's own, so
 * that nothing else which is on its way there is waited for.  Copies are in relay.c.
 */
#include "../exchange/captures.h"
#include "../exchange/exchange.h"
#include "../exchange/jobs.h"
#include "../ground/message.h"
#include "../handles/events.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "../streams/host.h"
#include "across.h"
#include "helpers.h"

#include <stdlib.h>

CUresult client_across_permit(uint64_t stream, const char *what)
{
	if (!client_stream_captured(stream))
		return CUDA_SUCCESS;
	client_message("%s between two servers can't be captured: a graph's work is on one server",
		       what);
	return CUDA_ERROR_NOT_SUPPORTED;
}

struct across_wait {
	struct across_wait *next;	/* of those whose event has not been heard of */
	struct client_session *source;
	struct client_context *target;
	struct across_helper *helper;
	struct host_job *gate;		/* of the stream that waits */
	bool reached;			/* that stream has come to it */
	bool heard;			/* of the event, or of its server's end */
};

/* Held with no other. */
static pthread_mutex_t waits_lock = PTHREAD_MUTEX_INITIALIZER;
static struct across_wait *waits;

/* Both sides have come: the stream goes on. */
static void wait_finish(struct across_wait *wait)
{
	client_gate_open(wait->gate);
	free(wait);
}

static void wait_reached(struct host_job *gate, void *opaque)
{
	struct across_wait *wait = opaque;
	bool finish;

	(void)gate;
	pthread_mutex_lock(&waits_lock);
	wait->reached = true;
	finish = wait->heard;
	pthread_mutex_unlock(&waits_lock);
	if (finish)
		wait_finish(wait);
}

/* With the lock: take it from those that are not heard of, and return its helper; NULL: somebody has. */
static struct across_helper *wait_hear(struct across_wait *wait, bool *finish)
{
	struct across_wait **link = &waits;

	while (*link && *link != wait)
		link = &(*link)->next;
	if (!*link)
		return NULL;
	*link = wait->next;
	wait->heard = true;
	*finish = wait->reached;
	return wait->helper;
}

/* Without the lock, with what wait_hear gave. */
static void wait_heard(struct across_wait *wait, struct across_helper *helper, bool finish)
{
	if (!helper)
		return;
	client_helper_give(helper);
	if (finish)
		wait_finish(wait);
}

static void event_reached(struct host_job *gate, void *opaque)
{
	struct across_wait *wait = opaque;
	struct across_helper *helper = NULL;
	bool finish = false;

	client_gate_open(gate);
	pthread_mutex_lock(&waits_lock);
	helper = wait_hear(wait, &finish);
	pthread_mutex_unlock(&waits_lock);
	wait_heard(wait, helper, finish);
}

void client_across_lost(struct client_session *session)
{
	for (;;) {
		struct across_helper *helper = NULL;
		struct across_wait *wait;
		bool finish = false;

		pthread_mutex_lock(&waits_lock);
		for (wait = waits; wait && wait->source != session; wait = wait->next)
			;
		/* Told before the stream can go on; said when the lock is free, since who
		 * listens to messages may call CUDA. */
		if (wait) {
			atomic_store(&wait->target->late, CUDA_ERROR_DEVICE_UNAVAILABLE);
			helper = wait_hear(wait, &finish);
		}
		pthread_mutex_unlock(&waits_lock);
		if (!wait)
			return;
		client_message("a stream waited for an event of %s, which is lost", session->peer);
		wait_heard(wait, helper, finish);
	}
}

/* Has the event been recorded in a stream that is captured? */
static CUresult event_captured(CUevent event)
{
	if (!client_captures() ||
	    cuEventQuery(event) != CUDA_ERROR_CAPTURED_EVENT)
		return CUDA_SUCCESS;
	client_message("waiting for an event between two servers can't be captured: a graph's work "
		       "is on one server");
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* The other server tells when all is done that is recorded now. */
static CUresult event_watch(struct across_wait *wait, uint64_t event)
{
	const struct wire_stream_wait_event request = {
		.stream = client_helper_wire(wait->helper),
		.event = event,
	};
	CUresult result = client_helper_post(wait->helper, WIRE_OP_STREAM_WAIT_EVENT, &request,
				      sizeof(request), NULL, 0);

	return result == CUDA_SUCCESS
		       ? client_gate_close(client_helper_wire(wait->helper), false, event_reached, wait, NULL)
		       : result;
}

/* Let a stream wait for an event of another server: what is recorded when this is called. */
static CUresult across_wait(uint64_t stream, uint64_t event)
{
	struct client_context *source = client_event_context(event);
	struct across_wait *wait;
	CUresult result = client_across_permit(stream, "waiting for an event");
	struct across_helper *helper = NULL;
	bool finish;

	if (result == CUDA_SUCCESS)
		result = event_captured((CUevent)(uintptr_t)event);
	if (result != CUDA_SUCCESS)
		return result;
	wait = calloc(1, sizeof(*wait));
	if (!wait)
		return CUDA_ERROR_OUT_OF_MEMORY;
	wait->source = source->session;
	wait->target = client_stream_context(stream);
	result = client_helper_take(source, &wait->helper);
	if (result != CUDA_SUCCESS) {
		free(wait);
		return result;
	}
	/* The stream is stopped first: then there is somebody to tell. */
	result = client_gate_close(stream, true, wait_reached, wait, &wait->gate);
	if (result != CUDA_SUCCESS) {
		client_helper_give(wait->helper);
		free(wait);
		return result;
	}
	pthread_mutex_lock(&waits_lock);
	wait->next = waits;
	waits = wait;
	pthread_mutex_unlock(&waits_lock);
	result = event_watch(wait, event);
	if (result != CUDA_SUCCESS) {
		pthread_mutex_lock(&waits_lock);
		helper = wait_hear(wait, &finish);
		pthread_mutex_unlock(&waits_lock);
		wait_heard(wait, helper, finish);
	} else if (atomic_load(&source->session->dead)) {
		client_across_lost(source->session);
	}
	return result;
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
	struct wire_stream_wait_event request = { .flags = Flags };
	const struct client_context *recorded;
	CUresult result = client_stream_enter(hStream, &request.stream);

	if (result == CUDA_SUCCESS && Flags > 1)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		result = client_event_wire(hEvent, &request.event);
	if (result == CUDA_SUCCESS && Flags & CU_EVENT_WAIT_EXTERNAL && !client_stream_captured(request.stream))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return result;
	recorded = client_event_context(request.event);
	if (recorded && recorded->session != client_stream_session(request.stream))
		return across_wait(request.stream, request.event);
	return client_post_work(WIRE_OP_STREAM_WAIT_EVENT, &request, sizeof(request), NULL, 0);
}
