/* Copies of which one side at least is another server's than the stream's: by way of this process (across.c). */
#include "../addresses/plane.h"
#include "../addresses/ranges.h"
#include "../exchange/exchange.h"
#include "../exchange/jobs.h"
#include "../ground/message.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "../streams/host.h"
#include "across.h"
#include "helpers.h"
#include "relay.h"

#include <stdlib.h>
#include <string.h>

/* Bytes that are read while as many are written: a frame's, so that a copy is not kept
 * waiting by its first piece for long, and the round trip behind each weighs little. */
#define PIECE_BYTES ((size_t)WIRE_BULK_BYTES)

/* What a stopped stream waited for has failed: its context tells at the next call that
 * can, as of any operation that was posted. */
static void across_failed(struct client_context *context, const char *what, CUresult result)
{
	atomic_store(&context->late, result);
	client_message("%s between two servers failed (CUDA error %d)", what, (int)result);
}

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
	const struct client_route route = client_helper_route(helper);

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

	return client_helper_post(helper, WIRE_OP_COPY_TO_DEVICE_2D, &fixed, sizeof(fixed), bytes,
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
	return result == CUDA_SUCCESS ? client_helper_synchronize(target) : result;
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
	return result == CUDA_SUCCESS ? client_helper_synchronize(target) : result;
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
	CUresult result = client_helper_post(helper, WIRE_OP_COPY_ON_DEVICE_2D, &fixed, sizeof(fixed), NULL, 0);

	return result == CUDA_SUCCESS ? client_helper_synchronize(helper) : result;
}

/* The streams that a copy reads and writes by. */
struct copiers {
	struct across_helper *reader, *writer;
};

static void copiers_give(const struct copiers *copiers)
{
	client_copier_give(copiers->reader);
	client_copier_give(copiers->writer);
}

static CUresult copiers_take(const struct client_copy *copy, struct copiers *copiers)
{
	CUresult result;

	copiers->writer = NULL;
	result = client_copier_take(copy->from.context, &copiers->reader);
	if (result == CUDA_SUCCESS)
		result = client_copier_take(copy->to.context, &copiers->writer);
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
