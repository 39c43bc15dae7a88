/* Bytes between the transport's own memory and the device: nothing of ours lies between. */
#include "../../transport/ground/processor.h"
#include "../ground/frames.h"
#include "../ground/lead.h"
#include "copies.h"
#include "in_place.h"
#include "staging.h"

#include <errno.h>
#include <string.h>

/* A stream is idle until something is put into one, which comes as a frame: the thread that reads all of them, being
 * alone, need not ask the driver again before. */
static bool idle_known(const struct server_call *call, CUstream stream)
{
	const struct server_idle *idle = &call->server->idle;

	return idle->known && idle->context == call->context->real && idle->stream == stream;
}

/* Have all streams come to their end that the legacy one waits for? */
static bool blocking_idle(struct server_call *call)
{
	struct server_context *context = call->context->base;
	CUstream streams[SERVER_BLOCKING];
	unsigned count;
	bool idle;

	pthread_mutex_lock(&context->lock);
	count = context->blocking_count;
	/* Another thread may destroy one that is asked about by a call which has passed the lead on. */
	idle = !context->blocking_many && (!count || !call->passed);
	memcpy(streams, context->blocking, count * sizeof(*streams));
	pthread_mutex_unlock(&context->lock);
	for (unsigned i = 0; i < count && idle; i++)
		idle = call->driver->cuStreamQuery(streams[i]) == CUDA_SUCCESS;
	return idle;
}

static bool idle_ask(struct server_call *call, CUstream stream)
{
	const struct server_driver *driver = call->driver;
	CUcontext owner;

	if (!stream && !blocking_idle(call))
		return false;
	/* The legacy stream waits for all others, and they for it: those of this context. */
	if (stream && (!driver->cuStreamGetCtx ||
		       driver->cuStreamGetCtx(stream, &owner) != CUDA_SUCCESS ||
		       owner != call->context->real ||
		       driver->cuStreamQuery(stream) != CUDA_SUCCESS))
		return false;
	return driver->cuStreamQuery(NULL) == CUDA_SUCCESS;
}

bool server_stream_is_idle(struct server_call *call, CUstream stream)
{
	struct server *server = call->server;
	bool alone, idle;

	/* Asking about a stream would end its capture.  While one waits for the client nobody is asked what the program
	 * does not ask, and nothing is made that may have to wait for it. */
	if (atomic_load_explicit(&server->capture_count, memory_order_relaxed) ||
	    atomic_load_explicit(&server->host_waits, memory_order_relaxed))
		return false;
	/* Who has passed the lead on may find itself alone for a moment. */
	alone = !call->passed && server_is_alone(server);
	if (alone && idle_known(call, stream))
		return true;
	idle = idle_ask(call, stream);
	if (alone)
		server->idle = (struct server_idle){ .known = idle, .context = call->context->real, .stream = stream };
	return idle;
}

/* ---- copies under way ---- */

/* Copies in a stream of their own, one behind the other: the first of them is the next to end. */
struct flights {
	const struct server_driver *driver;
	const struct server_flights *of;
	size_t bytes[SERVER_FLIGHTS];
	unsigned first, count;
	size_t held;			/* bytes of all of them */
	bool alone;			/* the one that there is ends with the stream */
	bool over;			/* and has ended */
	CUresult result;		/* of the first that failed */
};

static bool flights_make(const struct server_driver *driver, struct server_flights *of)
{
	unsigned made = 0;

	if (driver->cuStreamCreate(&of->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
		return false;
	while (made < SERVER_FLIGHTS &&
	       driver->cuEventCreate(&of->ends[made], CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS)
		made++;
	if (made == SERVER_FLIGHTS)
		return true;
	while (made)
		driver->cuEventDestroy_v2(of->ends[--made]);
	driver->cuStreamDestroy_v2(of->stream);
	return false;
}

/* false: the driver has none. */
static bool flights_begin(struct flights *flights, struct server_call *call, struct server_flights *of)
{
	const struct transport_ops *ops = call->server->transport.ops;
	const struct server_driver *driver = call->driver;
	size_t bytes;
	void *at;

	if (!atomic_load_explicit(&of->made, memory_order_acquire)) {
		pthread_mutex_lock(&call->context->making);
		if (!of->made && flights_make(driver, of)) {
			/* Where the driver can't pin it, it copies through memory of its own.  It may be
			 * so already, for the other way or another context. */
			ops->memory(&call->server->transport, &at, &bytes);
			if (driver->cuMemHostRegister_v2)
				(void)driver->cuMemHostRegister_v2(at, bytes, CU_MEMHOSTREGISTER_PORTABLE);
			atomic_store_explicit(&of->made, true, memory_order_release);
		}
		pthread_mutex_unlock(&call->context->making);
	}
	*flights = (struct flights){ .driver = driver, .of = of, .result = CUDA_SUCCESS };
	return of->made;
}

/* One more, of whose start the driver has said `result`.  `last`: no other is to go beside it. */
static void flights_add(struct flights *flights, size_t bytes, CUresult result, bool last)
{
	const struct server_driver *driver = flights->driver;
	unsigned at = (flights->first + flights->count++) % SERVER_FLIGHTS;

	flights->bytes[at] = bytes;
	flights->held += bytes;
	if (flights->result == CUDA_SUCCESS)
		flights->result = result;
	/* Where it has been made at once, as by a software GPU, others gain nothing from going beside it. */
	flights->over = flights->count == 1 && !last && flights->result == CUDA_SUCCESS &&
			driver->cuStreamQuery(flights->of->stream) == CUDA_SUCCESS;
	flights->alone = flights->count == 1 && (last || flights->result != CUDA_SUCCESS || flights->over);
	if (!flights->alone && flights->result == CUDA_SUCCESS)
		flights->result = driver->cuEventRecord(flights->of->ends[at], flights->of->stream);
}

/* Is the first to be waited for now, rather than another one to be added? */
static bool flights_full(const struct flights *flights)
{
	return flights->alone || flights->count == SERVER_FLIGHTS;
}

/* Wait for the first, and say how many bytes it was. */
static size_t flights_land(struct flights *flights)
{
	const struct server_driver *driver = flights->driver;
	unsigned at = flights->first;

	if (flights->result == CUDA_SUCCESS && !flights->over)
		flights->result = flights->alone ? driver->cuStreamSynchronize(flights->of->stream)
						 : driver->cuEventSynchronize(flights->of->ends[at]);
	/* What is under way may go on using the memory. */
	if (flights->result != CUDA_SUCCESS)
		(void)driver->cuStreamSynchronize(flights->of->stream);
	flights->alone = false;
	flights->first = (at + 1) % SERVER_FLIGHTS;
	flights->count--;
	flights->held -= flights->bytes[at];
	return flights->bytes[at];
}

/* ---- to the device ---- */

/* Through a buffer, as one copy: what lies in two pieces, or partly in the inbox's own buffer, and is so small that
 * a copy's start and end are what takes time. */
static CUresult receive_gathered(struct server_call *call, uint64_t device, CUstream stream)
{
	struct server_staging *staging;
	size_t bytes = call->tail_bytes;
	CUresult result = server_staging_take(call, &staging);

	if (result != CUDA_SUCCESS)
		return result;
	result = server_take(call, staging->memory, bytes);
	if (result == CUDA_SUCCESS)
		result = call->driver->cuMemcpyHtoDAsync_v2(device, staging->memory, bytes, stream);
	if (result == CUDA_SUCCESS)
		result = call->driver->cuStreamSynchronize(stream);
	server_staging_idle(call->context, staging);
	return result;
}

CUresult server_receive_in_place(struct server_call *call, uint64_t device, CUstream stream, bool *taken)
{
	struct transport *transport = &call->server->transport;
	size_t left = call->tail_bytes;		/* that no copy has begun with */
	struct flights flights;
	const void *at;

	*taken = transport->ops->peek && !call->passed && server_stream_is_idle(call, stream) &&
		 flights_begin(&flights, call, &call->context->to_device);
	if (!*taken)
		return CUDA_SUCCESS;
	if (left <= SERVER_SHARED_BYTES && inbox_peek(call->inbox, &at, left) < (ssize_t)left)
		return receive_gathered(call, device, flights.of->stream);
	while ((left && flights.result == CUDA_SUCCESS) || flights.count) {
		bool buffered = inbox_buffered(call->inbox);
		ssize_t bytes = 0;

		if (left && flights.result == CUDA_SUCCESS && !flights_full(&flights)) {
			bytes = flights.count ? transport->ops->peek_behind(transport, flights.held, &at, left)
					      : inbox_peek(call->inbox, &at, left);
			if (bytes < 0)
				return SERVER_MALFORMED;
		}
		if (bytes) {
			left -= (size_t)bytes;
			flights_add(&flights, (size_t)bytes,
				    call->driver->cuMemcpyHtoDAsync_v2(device, at, (size_t)bytes, flights.of->stream),
				    !left || buffered);
			device += (size_t)bytes;
		}
		if (!bytes || flights_full(&flights)) {
			size_t landed = flights_land(&flights);

			inbox_taken(call->inbox, landed);
			call->tail_bytes -= landed;
		}
	}
	return flights.result;
}

/* ---- to the host ---- */

/* One frame.  It goes on also where the driver refuses: its length has been said.  `more` follow. */
static int send_frame(struct server_call *call, struct flights *flights, uint64_t device, size_t offset, size_t bytes,
		      bool more)
{
	struct transport *transport = &call->server->transport;
	const struct transport_ops *ops = transport->ops;
	const struct wire_data data = { .sequence = call->header.sequence, .offset = offset };
	bool halves = (offset || more) && !processor_is_amd() && !transport_is_wide(transport);
	size_t shared = bytes < SERVER_SHARED_MANY * SERVER_SHARED_BYTES ? SERVER_SHARED_BYTES : 2 * SERVER_SHARED_BYTES;
	size_t most = ops->direct ? shared : halves ? SERVER_CALL_BYTES : WIRE_BULK_BYTES;
	int rc = server_send_begin(call->server, WIRE_EVENT_DATA, call->header.lane,
				   call->header.sequence, &data, sizeof(data), bytes);

	while (!rc && (bytes || flights->count)) {
		size_t now = bytes < most ? bytes : most;
		ssize_t room = 0;
		void *at;

		if (bytes && !flights_full(flights))
			room = flights->count ? ops->room_behind(transport, flights->held, &at, now)
					      : ops->room(transport, &at, now);
		if (room < 0 || (!room && !flights->count)) {
			rc = -EPIPE;
			break;
		}
		if (room) {
			CUresult result = flights->result;

			if (result == CUDA_SUCCESS)
				result = call->driver->cuMemcpyDtoHAsync_v2(at, device, (size_t)room, flights->of->stream);
			device += (size_t)room;
			bytes -= (size_t)room;
			flights_add(flights, (size_t)room, result, !bytes || !ops->room_behind);
		}
		if (!room || flights_full(flights)) {
			size_t landed = flights_land(flights);

			/* What follows at once is more of it, or the reply, with which little leaves in one message. */
			rc = ops->written(transport, landed, true);
		}
	}
	pthread_mutex_unlock(&call->server->write);
	return rc;
}

CUresult server_send_in_place(struct server_call *call, uint64_t device, size_t total, CUstream stream, bool *sent)
{
	struct flights flights;
	int rc = 0;

	*sent = call->server->transport.ops->room && server_stream_is_idle(call, stream) &&
		flights_begin(&flights, call, &call->context->to_host);
	if (!*sent)
		return CUDA_SUCCESS;
	for (size_t at = 0; at < total && !rc && flights.result == CUDA_SUCCESS; at += WIRE_BULK_BYTES) {
		size_t bytes = total - at < WIRE_BULK_BYTES ? total - at : WIRE_BULK_BYTES;

		rc = send_frame(call, &flights, device + at, at, bytes, total - at > bytes);
	}
	return rc ? SERVER_MALFORMED : flights.result;
}
