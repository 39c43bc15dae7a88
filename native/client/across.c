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
 * T is the stream's server, S the event's.  Helpers are streams of this file's own, so
 * that nothing else which is on its way there is waited for.
 */
#include "across.h"
#include "capture.h"
#include "host.h"

#include <stdlib.h>
#include <string.h>

/* Bytes that are read while as many are written: a frame's, so that a copy is not kept
 * waiting by its first piece for long, and the round trip behind each weighs little. */
#define PIECE_BYTES ((size_t)WIRE_BULK_BYTES)

static pthread_mutex_t across_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- helpers ---- */

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

/* Its own context's, whatever is current to the thread.  Copies go by the shim's own lane: they wait for nothing that is
 * before them in the session, and what stands there may wait for them. */
static struct client_route helper_route(const struct across_helper *helper)
{
	return client_route_made_in(helper->context, helper->copies);
}

static CUresult helper_post(const struct across_helper *helper, enum wire_op op, const void *fixed,
			    size_t fixed_bytes, const void *tail, size_t tail_bytes)
{
	const struct client_route route = helper_route(helper);

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
	result = helper_post(helper, WIRE_OP_STREAM_CREATE, &fixed, sizeof(fixed), NULL, 0);
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
	pthread_mutex_lock(&across_lock);
	helper = context->helpers;
	epoch = context->epoch;
	if (helper)
		context->helpers = helper->next;
	pthread_mutex_unlock(&across_lock);
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

	pthread_mutex_lock(&across_lock);
	if (helper->epoch == context->epoch) {
		helper->next = context->helpers;
		context->helpers = helper;
		helper = NULL;
	}
	pthread_mutex_unlock(&across_lock);
	if (helper)
		helper_free(helper);
}

void client_across_forget(struct client_context *context)
{
	struct across_helper *helpers, *copier;

	pthread_mutex_lock(&across_lock);
	helpers = context->helpers;
	context->helpers = NULL;
	copier = context->copier;
	context->copier = NULL;
	if (copier && copier->users)
		copier = NULL;
	context->epoch++;
	pthread_mutex_unlock(&across_lock);
	if (copier)
		helper_free(copier);
	while (helpers) {
		struct across_helper *next = helpers->next;

		helper_free(helpers);
		helpers = next;
	}
}

/* The context's stream for copies, which is there when this returns; NULL for no context.  To be had before its server
 * waits for a copy. */
static CUresult copier_take(struct client_context *context, struct across_helper **out)
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
		pthread_mutex_lock(&across_lock);
		if (!context->copier && made && made->epoch == context->epoch) {
			made->copies = true;
			context->copier = made;
			made = NULL;
		}
		*out = context->copier;
		if (*out)
			(*out)->users++;
		pthread_mutex_unlock(&across_lock);
		if (made)
			client_helper_give(made);
		if (*out)
			return CUDA_SUCCESS;
		result = client_helper_take(context, &made);
		if (result != CUDA_SUCCESS)
			return result;
		fixed.stream = client_helper_wire(made);
		route = helper_route(made);
		result = client_call_own(&route, &request, &wait);
		if (result != CUDA_SUCCESS) {
			client_helper_give(made);
			return result;
		}
	}
}

static void copier_give(struct across_helper *copier)
{
	bool last;

	if (!copier)
		return;
	pthread_mutex_lock(&across_lock);
	last = --copier->users == 0 && copier->context->copier != copier;
	pthread_mutex_unlock(&across_lock);
	if (last)
		helper_free(copier);
}

static CUresult helper_synchronize(const struct across_helper *helper)
{
	const struct wire_stream_synchronize fixed = { .stream = client_helper_wire(helper) };
	const struct client_route route = helper_route(helper);
	const struct client_request request = {
		.op = WIRE_OP_STREAM_SYNCHRONIZE,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_wait wait = { 0 };

	return client_call_to(&route, &request, &wait);
}

/* What a stopped stream waited for has failed: its context tells at the next call that
 * can, as of any operation that was posted. */
static void across_failed(struct client_context *context, const char *what, CUresult result)
{
	atomic_store(&context->late, result);
	client_message("%s between two servers failed (CUDA error %d)", what, (int)result);
}

CUresult client_across_permit(uint64_t stream, const char *what)
{
	if (!client_stream_captured(stream))
		return CUDA_SUCCESS;
	client_message("%s between two servers can't be captured: a graph's work is on one server",
		       what);
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- events ---- */

struct across_wait {
	struct across_wait *next;	/* of those whose event has not been heard of */
	struct client_session *source;
	struct client_context *target;
	struct across_helper *helper;
	struct host_job *gate;		/* of the stream that waits */
	bool reached;			/* that stream has come to it */
	bool heard;			/* of the event, or of its server's end */
};

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
	pthread_mutex_lock(&across_lock);
	wait->reached = true;
	finish = wait->heard;
	pthread_mutex_unlock(&across_lock);
	if (finish)
		wait_finish(wait);
}

/* Take it from those that are not heard of; false: somebody has. */
static bool wait_hear(struct across_wait *wait, bool *finish)
{
	struct across_wait **link = &waits;

	while (*link && *link != wait)
		link = &(*link)->next;
	if (!*link)
		return false;
	*link = wait->next;
	wait->heard = true;
	*finish = wait->reached;
	return true;
}

static void event_reached(struct host_job *gate, void *opaque)
{
	struct across_wait *wait = opaque;
	struct across_helper *helper = NULL;
	bool finish = false;

	client_gate_open(gate);
	pthread_mutex_lock(&across_lock);
	if (wait_hear(wait, &finish))
		helper = wait->helper;
	pthread_mutex_unlock(&across_lock);
	if (helper)
		client_helper_give(helper);
	if (finish)
		wait_finish(wait);
}

void client_across_lost(struct client_session *session)
{
	for (;;) {
		struct across_wait *wait;
		bool finish = false;

		pthread_mutex_lock(&across_lock);
		for (wait = waits; wait && wait->source != session; wait = wait->next)
			;
		/* Told before the stream can go on; said when the lock is free, since who
		 * listens to messages may call CUDA. */
		if (wait) {
			atomic_store(&wait->target->late, CUDA_ERROR_DEVICE_UNAVAILABLE);
			wait_hear(wait, &finish);
		}
		pthread_mutex_unlock(&across_lock);
		if (!wait)
			return;
		client_message("a stream waited for an event of %s, which is lost", session->peer);
		if (finish)
			wait_finish(wait);
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
	CUresult result = helper_post(wait->helper, WIRE_OP_STREAM_WAIT_EVENT, &request,
				      sizeof(request), NULL, 0);

	return result == CUDA_SUCCESS
		       ? client_gate_close(client_helper_wire(wait->helper), false, event_reached, wait, NULL)
		       : result;
}

CUresult client_across_wait(uint64_t stream, uint64_t event)
{
	struct client_context *source = client_event_context(event);
	struct across_wait *wait;
	CUresult result = client_across_permit(stream, "waiting for an event");
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
	pthread_mutex_lock(&across_lock);
	wait->next = waits;
	waits = wait;
	pthread_mutex_unlock(&across_lock);
	result = event_watch(wait, event);
	if (result != CUDA_SUCCESS) {
		pthread_mutex_lock(&across_lock);
		if (!wait_hear(wait, &finish))
			finish = false;
		pthread_mutex_unlock(&across_lock);
		if (finish)
			wait_finish(wait);
	} else if (atomic_load(&source->session->dead)) {
		client_across_lost(source->session);
	}
	return result;
}

/* ---- copies ---- */

/* Rows of `width` bytes, one side in memory of a device or here, as client_copy has it. */
static uint8_t *row_here(const struct client_plane *plane, size_t x, size_t y)
{
	return (uint8_t *)(uintptr_t)plane->address + y * plane->pitch + x;
}

/* A part of a copy: its first byte and row, its width and height. */
struct piece {
	size_t x, y, width, height;
};

/* The part behind this one; false: there is none. */
static bool piece_next(const struct client_extent *extent, struct piece *piece)
{
	size_t rows = extent->width <= PIECE_BYTES ? PIECE_BYTES / extent->width : 1;

	if (piece->height && piece->x + piece->width < extent->width) {
		piece->x += piece->width;
	} else {
		piece->x = 0;
		piece->y += piece->height;
	}
	if (piece->y >= extent->height)
		return false;
	piece->height = rows < extent->height - piece->y ? rows : extent->height - piece->y;
	piece->width = extent->width - piece->x < PIECE_BYTES ? extent->width - piece->x : PIECE_BYTES;
	return true;
}

/* Rows of the source's, packed or not, to here. */
static CUresult rows_read(const struct client_plane *from, const struct piece *piece, uint8_t *to, size_t pitch,
			  const struct across_helper *helper)
{
	const bool line = piece->height == 1;
	const struct wire_copy_to_host fixed = {
		.device = from->address + piece->y * from->pitch + piece->x,
		.pitch = line ? piece->width : from->pitch,
		.width = piece->width,
		.height = piece->height,
		.stream = client_helper_wire(helper),
	};
	const struct client_request request = {
		.op = WIRE_OP_COPY_TO_HOST,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_target target = {
		.host = to,
		.width = piece->width,
		.height = piece->height,
		.pitch = line ? piece->width : pitch,
		.missing = piece->width * piece->height,
	};
	struct client_wait wait = { .target = &target };
	const struct client_route route = helper_route(helper);

	return client_call_to(&route, &request, &wait);
}

/* Packed bytes for the target.  No client_stream_pace: the gate that this copy is to open
 * would be among what is waited for, and the helper is behind none. */
static CUresult piece_write(const struct piece *piece, const uint8_t *bytes,
			    const struct client_plane *to, struct across_helper *helper)
{
	const struct wire_copy_to_device_2d fixed = {
		.device = to->address + piece->y * to->pitch + piece->x,
		.pitch = piece->height == 1 ? piece->width : to->pitch,
		.width = piece->width,
		.height = piece->height,
		.stream = client_helper_wire(helper),
	};

	return helper_post(helper, WIRE_OP_COPY_TO_DEVICE_2D, &fixed, sizeof(fixed), bytes,
			   piece->width * piece->height);
}

/* From device to device: what was written last is on its way while the next piece is read.  Nothing comes by a function
 * that the source's driver would call, which may have to wait there for others. */
static CUresult relay(const struct client_copy *copy, struct across_helper *source,
		      struct across_helper *target)
{
	struct piece piece = { 0 };
	uint8_t *packed = malloc(PIECE_BYTES);
	CUresult result = packed ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	while (result == CUDA_SUCCESS && piece_next(&copy->extent, &piece)) {
		result = rows_read(&copy->from, &piece, packed, piece.width, source);
		if (result == CUDA_SUCCESS)
			result = piece_write(&piece, packed, &copy->to, target);
	}
	free(packed);
	return result == CUDA_SUCCESS ? helper_synchronize(target) : result;
}

/* From memory of this process. */
static CUresult send(const struct client_copy *copy, struct across_helper *target)
{
	struct piece piece = { 0 };
	uint8_t *packed = malloc(PIECE_BYTES);
	CUresult result = packed ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	while (result == CUDA_SUCCESS && piece_next(&copy->extent, &piece)) {
		for (size_t y = 0; y < piece.height; y++)
			memcpy(packed + y * piece.width, row_here(&copy->from, piece.x, piece.y + y),
			       piece.width);
		result = piece_write(&piece, packed, &copy->to, target);
	}
	free(packed);
	return result == CUDA_SUCCESS ? helper_synchronize(target) : result;
}

/* To memory of this process. */
static CUresult receive(const struct client_copy *copy, struct across_helper *source)
{
	const struct piece all = { .width = copy->extent.width, .height = copy->extent.height };

	return rows_read(&copy->from, &all, row_here(&copy->to, 0, 0), copy->to.pitch, source);
}

/* Within one server, but not that of the stream. */
static CUresult shift(const struct client_copy *copy, struct across_helper *helper)
{
	const struct wire_copy_on_device_2d fixed = {
		.target = copy->to.address,
		.target_pitch = copy->extent.height == 1 ? copy->extent.width : copy->to.pitch,
		.source = copy->from.address,
		.source_pitch = copy->extent.height == 1 ? copy->extent.width : copy->from.pitch,
		.width = copy->extent.width,
		.height = copy->extent.height,
		.stream = client_helper_wire(helper),
	};
	CUresult result = helper_post(helper, WIRE_OP_COPY_ON_DEVICE_2D, &fixed, sizeof(fixed), NULL, 0);

	return result == CUDA_SUCCESS ? helper_synchronize(helper) : result;
}

/* The streams that a copy reads and writes by. */
struct copiers {
	struct across_helper *reader, *writer;
};

static void copiers_give(const struct copiers *copiers)
{
	copier_give(copiers->reader);
	copier_give(copiers->writer);
}

static CUresult copiers_take(const struct client_copy *copy, struct copiers *copiers)
{
	CUresult result;

	copiers->writer = NULL;
	result = copier_take(copy->from.context, &copiers->reader);
	if (result == CUDA_SUCCESS)
		result = copier_take(copy->to.context, &copiers->writer);
	if (result != CUDA_SUCCESS)
		copiers_give(copiers);
	return result;
}

/* Do all of a copy, now. */
static CUresult transfer(const struct client_copy *copy, const struct copiers *copiers)
{
	const struct client_context *source = copy->from.context, *target = copy->to.context;

	if (!source)
		return send(copy, copiers->writer);
	if (!target)
		return receive(copy, copiers->reader);
	return source->session == target->session ? shift(copy, copiers->writer)
						  : relay(copy, copiers->reader, copiers->writer);
}

/* A copy that its stream will come to. */
struct across_copy {
	struct client_copy copy;
	struct copiers copiers;
	struct client_context *context;	/* of the stream */
	uint8_t *taken;			/* what was in pageable memory at the call */
};

static void copy_reached(struct host_job *gate, void *opaque)
{
	struct across_copy *pending = opaque;
	CUresult result = transfer(&pending->copy, &pending->copiers);

	if (result != CUDA_SUCCESS)
		across_failed(pending->context, "a copy", result);
	client_gate_open(gate);
	copiers_give(&pending->copiers);
	free(pending->taken);
	free(pending);
}

/* CUDA has read pageable memory when the call returns. */
static CUresult pageable_take(struct across_copy *pending)
{
	struct client_copy *copy = &pending->copy;
	const struct client_plane from = copy->from;

	pending->taken = malloc(copy->extent.width * copy->extent.height);
	if (!pending->taken)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t y = 0; y < copy->extent.height; y++)
		memcpy(pending->taken + y * copy->extent.width, row_here(&from, 0, y),
		       copy->extent.width);
	copy->from.address = (uint64_t)(uintptr_t)pending->taken;
	copy->from.pitch = copy->extent.width;
	return CUDA_SUCCESS;
}

CUresult client_across_settle(uint64_t stream, const struct client_context *one,
			      const struct client_context *other)
{
	const struct wire_stream_synchronize wait = { .stream = stream };
	const struct client_session *session = client_stream_session(stream);
	CUresult result = client_call(WIRE_OP_STREAM_SYNCHRONIZE, &wait, sizeof(wait), NULL, 0);

	if (stream != (uint64_t)(uintptr_t)CU_STREAM_LEGACY)
		return result;
	if (result == CUDA_SUCCESS && one && one->session != session)
		result = cuCtxSynchronize_v2(one->handle);
	if (result == CUDA_SUCCESS && other && other != one && other->session != session)
		result = cuCtxSynchronize_v2(other->handle);
	return result;
}

CUresult client_across_copy(const struct client_copy *copy, uint64_t stream, bool async)
{
	const bool legacy = stream == (uint64_t)(uintptr_t)CU_STREAM_LEGACY;
	struct across_copy *pending;
	struct copiers copiers;
	CUresult result = client_across_permit(stream, "a copy");

	if (result != CUDA_SUCCESS)
		return result;
	/* CUDA completes a copy to pageable memory before it returns.  What comes behind one in
	 * the legacy stream waits for it on every device that has a part in it: where it is
	 * done, nothing has to. */
	if (!async || legacy || copy->to.kind == MEMORY_PAGEABLE) {
		result = client_across_settle(stream, copy->from.context, copy->to.context);
		if (result == CUDA_SUCCESS)
			result = copiers_take(copy, &copiers);
		if (result != CUDA_SUCCESS)
			return result;
		result = transfer(copy, &copiers);
		copiers_give(&copiers);
		return result;
	}
	/* Before its stream waits, and perhaps with it its server's driver. */
	result = copiers_take(copy, &copiers);
	if (result != CUDA_SUCCESS)
		return result;
	pending = calloc(1, sizeof(*pending));
	if (!pending) {
		copiers_give(&copiers);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	pending->copy = *copy;
	pending->copiers = copiers;
	pending->context = client_stream_context(stream);
	if (copy->from.kind == MEMORY_PAGEABLE)
		result = pageable_take(pending);
	if (result == CUDA_SUCCESS)
		result = client_gate_close(stream, true, copy_reached, pending, NULL);
	if (result != CUDA_SUCCESS) {
		copiers_give(&copiers);
		free(pending->taken);
		free(pending);
	}
	return result;
}
