/* Copies: what they are of, and which way their bytes go. */
#include "../ground/frames.h"
#include "../ground/named.h"
#include "../ground/resolve.h"
#include "copies.h"
#include "in_place.h"
#include "staging.h"

#include <stdlib.h>

/* ---- rows ---- */

/* Copies to the device are given to the driver in pieces of this size: while the device copies one, the next one
 * comes, and one that has come is still in the processor's cache.  Where several threads read, they are to have something to
 * share. */
#define SERVER_PIECE_BYTES (128u << 10)
/* And those to the host that are waited for, which leave so: larger ones cost fewer messages, smaller ones let a device
 * copy more of one while the one before it is on its way.  Others hold a buffer for each piece, which
 * clients count by WIRE_BULK_BYTES (CLIENT_BEHIND_PIECES): theirs are as large as may be. */
#define SERVER_SENT_BYTES (256u << 10)
_Static_assert(SERVER_PIECE_BYTES <= WIRE_BULK_BYTES && SERVER_SENT_BYTES <= WIRE_BULK_BYTES,
	       "a piece fits a staging buffer");

CUDA_MEMCPY2D server_rows(bool to_device, void *host, size_t host_pitch, CUdeviceptr device, size_t pitch, size_t width,
			  size_t height)
{
	CUDA_MEMCPY2D rows = { .WidthInBytes = width, .Height = height };

	if (height <= 1)
		pitch = host_pitch = width;
	if (to_device) {
		rows.srcMemoryType = CU_MEMORYTYPE_HOST;
		rows.srcHost = host;
		rows.srcPitch = host_pitch;
		rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
		rows.dstDevice = device;
		rows.dstPitch = pitch;
	} else {
		rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
		rows.srcDevice = device;
		rows.srcPitch = pitch;
		rows.dstMemoryType = CU_MEMORYTYPE_HOST;
		rows.dstHost = host;
		rows.dstPitch = host_pitch;
	}
	return rows;
}

/* Copy rows between packed host memory and the device, in stream order. */
static CUresult rows_copy(const struct server_driver *driver, uint64_t device, size_t pitch,
			  void *host, size_t width, size_t height, bool to_device, CUstream stream)
{
	CUDA_MEMCPY2D rows;

	if (height == 1 || pitch == width)
		return to_device ? driver->cuMemcpyHtoDAsync_v2(device, host, width * height, stream)
				 : driver->cuMemcpyDtoHAsync_v2(host, device, width * height, stream);
	rows = server_rows(to_device, host, width, device, pitch, width, height);
	return driver->cuMemcpy2DAsync_v2(&rows, stream);
}

/* The next piece of a plane of rows: as many whole rows as fit `most` bytes,
 * or a part of one row.  `at` counts packed bytes. */
struct piece {
	uint64_t device;
	size_t width;
	size_t height;
};

static struct piece piece_at(uint64_t device, size_t pitch, size_t width, size_t height, size_t at,
			     size_t most)
{
	size_t row = at / width, column = at % width;
	struct piece piece = { .device = device + row * pitch + column };

	if (width >= most || column) {
		size_t left = width - column;

		piece.width = left < most ? left : most;
		piece.height = 1;
	} else {
		size_t rows = most / width;

		piece.width = width;
		piece.height = rows < height - row ? rows : height - row;
	}
	return piece;
}

/* Sizes as the client sends them: no product may overflow. */
bool server_plane_sane(uint64_t pitch, uint64_t width, uint64_t height)
{
	const uint64_t most = 1ull << 47;

	return width && height && width <= most && height <= most && pitch <= most &&
	       width <= most / height && (height == 1 || pitch >= width);
}

/* A plane without gaps is one row. */
static void plane_flatten(size_t *pitch, size_t *width, size_t *height)
{
	if (*height > 1 && *pitch == *width) {
		*width *= *height;
		*height = 1;
		*pitch = *width;
	}
}

/* ---- to the device ---- */

/* The device copies what is there while the rest comes.  Where it is as quick, each piece takes
 * the place of the one before, which is in the processor's cache. */
static CUresult receive_line(struct server_call *call, uint64_t device,
			     const struct server_staging *staging, size_t bytes, CUstream stream)
{
	const struct server_driver *driver = call->driver;
	size_t most = transport_is_wide(&call->server->transport) ? WIRE_BULK_BYTES : SERVER_PIECE_BYTES;
	uint8_t *memory = staging->memory;
	CUresult result = CUDA_SUCCESS;

	for (size_t at = 0; at < bytes && result == CUDA_SUCCESS; at += most) {
		size_t now = bytes - at < most ? bytes - at : most;

		if (at) {
			result = driver->cuEventRecord(staging->event, stream);
			if (result != CUDA_SUCCESS)
				break;
			memory = driver->cuEventQuery(staging->event) == CUDA_SUCCESS
					 ? staging->memory : memory + most;
		}
		result = server_take(call, memory, now);
		if (result == CUDA_SUCCESS)
			result = driver->cuMemcpyHtoDAsync_v2(device + at, memory, now, stream);
	}
	return result;
}

/* A buffer that the device reads from now on, also where a copy was refused: a part of it may be on its way. */
static CUresult staging_lend(struct server_call *call, struct server_staging *staging, CUstream stream, CUresult result)
{
	CUresult fenced;

	if (result == SERVER_MALFORMED)
		return result;
	fenced = server_staging_fence(call, staging, stream);
	return result == CUDA_SUCCESS ? fenced : result;
}

static CUresult receive_rows(struct server_call *call, uint64_t device, size_t pitch, size_t width,
			     size_t height, uint64_t stream_handle)
{
	struct server_staging *staging;
	CUstream stream;
	CUresult result = server_resolve_stream(call, stream_handle, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (height == 1) {
		bool taken;

		result = server_receive_in_place(call, device, stream, &taken);
		if (taken)
			return result;
	}
	if (!call->passed)
		call->server->idle.known = false;
	result = server_staging_take(call, &staging);
	if (result != CUDA_SUCCESS)
		return result;
	if (height == 1)
		result = receive_line(call, device, staging, width, stream);
	else
		result = server_take(call, staging->memory, width * height);
	if (result == CUDA_SUCCESS && height > 1)
		result = rows_copy(call->driver, device, pitch, staging->memory, width, height, true,
				   stream);
	return staging_lend(call, staging, stream, result);
}

CUresult serve_copy_to_device(struct server_call *call)
{
	const struct wire_copy_to_device *request = call->request;

	if (!call->tail_bytes)
		return SERVER_MALFORMED;
	return receive_rows(call, request->device, call->tail_bytes, call->tail_bytes, 1,
			    request->stream);
}

CUresult serve_copy_to_device_2d(struct server_call *call)
{
	const struct wire_copy_to_device_2d *request = call->request;

	if (!server_plane_sane(request->pitch, request->width, request->height) ||
	    request->width * request->height != call->tail_bytes)
		return SERVER_MALFORMED;
	return receive_rows(call, request->device, request->pitch, request->width, request->height,
			    request->stream);
}

/* ---- to the host ---- */

/* A buffer that was waited for; where something went wrong it was not, and the device may yet write it. */
static void staging_give(struct server_call *call, struct server_staging *staging, CUstream stream, CUresult result)
{
	if (result == CUDA_SUCCESS || result == SERVER_MALFORMED) {
		server_staging_idle(call->context, staging);
		return;
	}
	(void)server_staging_fence(call, staging, stream);
	if (!call->passed)
		call->server->idle.known = false;
}

/* Two buffers take turns: one is filled by the device while the other is sent. */
CUresult serve_copy_to_host(struct server_call *call)
{
	const struct wire_copy_to_host *request = call->request;
	size_t pitch = request->pitch, width = request->width, height = request->height;
	struct server_staging *filled = NULL, *staging = NULL;
	size_t most = transport_is_wide(&call->server->transport) ? WIRE_BULK_BYTES : SERVER_SENT_BYTES;
	size_t total, at = 0, sent = 0, filled_bytes = 0;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (!server_plane_sane(pitch, width, height))
		return SERVER_MALFORMED;
	if (result != CUDA_SUCCESS)
		return result;
	plane_flatten(&pitch, &width, &height);
	total = width * height;
	if (height == 1) {
		bool in_place;

		result = server_send_in_place(call, request->device, total, stream, &in_place);
		if (in_place)
			return result;
	}
	while (result == CUDA_SUCCESS && (at < total || filled)) {
		size_t bytes = 0;

		if (at < total) {
			result = filled ? server_staging_take_more(call, &staging)
					: server_staging_take(call, &staging);
			if (result != CUDA_SUCCESS)
				break;
		}
		if (staging) {
			struct piece piece = piece_at(request->device, pitch, width, height, at, most);

			bytes = piece.width * piece.height;
			result = rows_copy(call->driver, piece.device, pitch, staging->memory,
					   piece.width, piece.height, false, stream);
			if (result == CUDA_SUCCESS)
				result = call->driver->cuEventRecord(staging->event, stream);
			at += bytes;
		}
		if (result == CUDA_SUCCESS && filled) {
			result = call->driver->cuEventSynchronize(filled->event);
			if (result == CUDA_SUCCESS &&
			    server_send_data(call->server, call->header.lane, call->header.sequence, sent,
					     filled->memory, filled_bytes, sent + filled_bytes == total))
				result = SERVER_MALFORMED;
			sent += filled_bytes;
		}
		if (filled)
			staging_give(call, filled, stream, result);
		filled = staging;
		filled_bytes = bytes;
		staging = NULL;
	}
	if (filled)
		staging_give(call, filled, stream, result);
	return result;
}

/* What a callback in a stream needs to know; the driver calls it on a thread of
 * its own, where no CUDA call is allowed. */
struct stream_data {
	struct server_context *context;
	struct server_staging *staging;
	uint16_t lane;
	uint64_t sequence;
	uint64_t offset;
	size_t bytes;
};

static void stream_data_send(void *opaque)
{
	struct stream_data *data = opaque;

	(void)server_send_data(data->context->server, data->lane, data->sequence, data->offset,
			       data->staging->memory, data->bytes, false);
	server_staging_idle(data->context, data->staging);
	free(data);
}

/* The bytes leave from within the stream: whatever completes behind the copy is
 * reported on the same connection after them. */
CUresult serve_copy_to_host_async(struct server_call *call)
{
	const struct wire_copy_to_host_async *request = call->request;
	size_t pitch = request->pitch, width = request->width, height = request->height;
	size_t total;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (!server_plane_sane(pitch, width, height))
		return SERVER_MALFORMED;
	if (result != CUDA_SUCCESS)
		return result;
	plane_flatten(&pitch, &width, &height);
	total = width * height;
	for (size_t at = 0; at < total && result == CUDA_SUCCESS;) {
		struct piece piece = piece_at(request->device, pitch, width, height, at,
						      WIRE_BULK_BYTES);
		struct stream_data *data = malloc(sizeof(*data));
		struct server_staging *staging;

		if (!data)
			return CUDA_ERROR_OUT_OF_MEMORY;
		result = server_staging_take(call, &staging);
		if (result != CUDA_SUCCESS) {
			free(data);
			return result;
		}
		*data = (struct stream_data){
			.context = call->context,
			.staging = staging,
			.lane = call->header.lane,
			.sequence = call->header.sequence,
			.offset = at,
			.bytes = piece.width * piece.height,
		};
		at += data->bytes;
		result = rows_copy(call->driver, piece.device, pitch, staging->memory, piece.width,
				   piece.height, false, stream);
		if (result == CUDA_SUCCESS)
			result = call->driver->cuLaunchHostFunc(stream, stream_data_send, data);
		if (result != CUDA_SUCCESS) {
			staging_give(call, staging, stream, result);
			free(data);
		}
	}
	return result;
}

/* ---- on the device ---- */

CUresult serve_copy_on_device_2d(struct server_call *call)
{
	const struct wire_copy_on_device_2d *request = call->request;
	const CUDA_MEMCPY2D rows = {
		.srcMemoryType = CU_MEMORYTYPE_DEVICE,
		.srcDevice = request->source,
		.srcPitch = request->source_pitch,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = request->target,
		.dstPitch = request->target_pitch,
		.WidthInBytes = request->width,
		.Height = request->height,
	};
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	return result == CUDA_SUCCESS ? call->driver->cuMemcpy2DAsync_v2(&rows, stream) : result;
}

CUresult serve_fill(struct server_call *call)
{
	const struct wire_fill *request = call->request;
	const struct server_driver *driver = call->driver;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);
	bool rows = request->height > 1;

	if (result != CUDA_SUCCESS)
		return result;
	switch (request->element) {
	case 1:
		return rows ? driver->cuMemsetD2D8Async(request->device, request->pitch,
							(unsigned char)request->value, request->width,
							request->height, stream)
			    : driver->cuMemsetD8Async(request->device, (unsigned char)request->value,
						      request->width, stream);
	case 2:
		if (!rows)
			return driver->cuMemsetD16Async(request->device,
							(unsigned short)request->value,
							request->width, stream);
		return driver->cuMemsetD2D16Async ? driver->cuMemsetD2D16Async(
			       request->device, request->pitch, (unsigned short)request->value,
			       request->width, request->height, stream)
						  : CUDA_ERROR_NOT_SUPPORTED;
	case 4:
		if (!rows)
			return driver->cuMemsetD32Async(request->device, request->value,
							request->width, stream);
		return driver->cuMemsetD2D32Async
			       ? driver->cuMemsetD2D32Async(request->device, request->pitch,
							    request->value, request->width,
							    request->height, stream)
			       : CUDA_ERROR_NOT_SUPPORTED;
	default:
		return SERVER_MALFORMED;
	}
}

/* ---- arrays ---- */

CUresult serve_array_write(struct server_call *call)
{
	const struct wire_array_write *request = call->request;
	CUDA_MEMCPY3D rows = {
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcPitch = request->width,
		.srcHeight = request->height,
		.dstMemoryType = CU_MEMORYTYPE_ARRAY,
		.dstXInBytes = request->x,
		.dstY = request->y,
		.dstZ = request->z,
		.WidthInBytes = request->width,
		.Height = request->height,
		.Depth = 1,
	};
	struct server_staging *staging;
	CUstream stream;
	CUresult result;

	if (!server_plane_sane(request->width, request->width, request->height) ||
	    request->width * request->height != call->tail_bytes)
		return SERVER_MALFORMED;
	result = server_resolve_stream(call, request->stream, &stream);
	rows.dstArray = server_object(call, SERVER_CUarray, request->array);
	if (result == CUDA_SUCCESS && !rows.dstArray)
		result = CUDA_ERROR_INVALID_HANDLE;
	if (result == CUDA_SUCCESS)
		result = server_staging_take(call, &staging);
	if (result != CUDA_SUCCESS)
		return result;
	result = server_take(call, staging->memory, call->tail_bytes);
	rows.srcHost = staging->memory;
	if (result == CUDA_SUCCESS)
		result = call->driver->cuMemcpy3DAsync_v2(&rows, stream);
	return staging_lend(call, staging, stream, result);
}

CUresult serve_array_read(struct server_call *call)
{
	const struct wire_array_read *request = call->request;
	CUDA_MEMCPY3D rows = {
		.srcMemoryType = CU_MEMORYTYPE_ARRAY,
		.srcZ = request->z,
		.dstMemoryType = CU_MEMORYTYPE_HOST,
		.Depth = 1,
	};
	struct server_staging *staging;
	CUstream stream;
	CUresult result;

	if (!server_plane_sane(request->width, request->width, request->height))
		return SERVER_MALFORMED;
	result = server_resolve_stream(call, request->stream, &stream);
	rows.srcArray = server_object(call, SERVER_CUarray, request->array);
	if (result == CUDA_SUCCESS && !rows.srcArray)
		result = CUDA_ERROR_INVALID_HANDLE;
	if (result == CUDA_SUCCESS)
		result = server_staging_take(call, &staging);
	if (result != CUDA_SUCCESS)
		return result;
	rows.dstHost = staging->memory;
	for (size_t at = 0, total = request->width * request->height;
	     at < total && result == CUDA_SUCCESS;) {
		struct piece piece = piece_at(0, request->width, request->width, request->height, at,
						      WIRE_BULK_BYTES);
		size_t bytes = piece.width * piece.height;

		rows.srcXInBytes = request->x + at % request->width;
		rows.srcY = request->y + at / request->width;
		rows.dstPitch = piece.width;
		rows.dstHeight = piece.height;
		rows.WidthInBytes = piece.width;
		rows.Height = piece.height;
		result = call->driver->cuMemcpy3DAsync_v2(&rows, stream);
		if (result == CUDA_SUCCESS)
			result = call->driver->cuEventRecord(staging->event, stream);
		if (result == CUDA_SUCCESS)
			result = call->driver->cuEventSynchronize(staging->event);
		if (result == CUDA_SUCCESS &&
		    server_send_data(call->server, call->header.lane, call->header.sequence, at, staging->memory, bytes,
				     at + bytes == total))
			result = SERVER_MALFORMED;
		at += bytes;
	}
	staging_give(call, staging, stream, result);
	return result;
}

CUresult serve_array_copy(struct server_call *call)
{
	const struct wire_array_copy *request = call->request;
	CUDA_MEMCPY3D copy = {
		.srcMemoryType = request->source_is_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE,
		.srcXInBytes = request->source_x,
		.srcY = request->source_y,
		.srcZ = request->source_z,
		.dstMemoryType = request->target_is_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE,
		.dstXInBytes = request->target_x,
		.dstY = request->target_y,
		.dstZ = request->target_z,
		.WidthInBytes = request->width,
		.Height = request->height,
		.Depth = request->depth,
	};
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (request->source_is_array) {
		copy.srcArray = server_object(call, SERVER_CUarray, request->source);
		if (result == CUDA_SUCCESS && !copy.srcArray)
			result = CUDA_ERROR_INVALID_HANDLE;
	} else {
		copy.srcDevice = request->source;
		copy.srcPitch = request->source_pitch & UINT32_MAX;
		copy.srcHeight = request->source_pitch >> 32;
	}
	if (request->target_is_array) {
		copy.dstArray = server_object(call, SERVER_CUarray, request->target);
		if (result == CUDA_SUCCESS && !copy.dstArray)
			result = CUDA_ERROR_INVALID_HANDLE;
	} else {
		copy.dstDevice = request->target;
		copy.dstPitch = request->target_pitch & UINT32_MAX;
		copy.dstHeight = request->target_pitch >> 32;
	}
	return result == CUDA_SUCCESS ? call->driver->cuMemcpy3DAsync_v2(&copy, stream) : result;
}
