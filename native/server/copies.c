/* Bytes between the socket and the device, through pinned staging buffers. */
#include "server_ops.h"
#include "../transport/processor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- staging ---- */

static void staging_busy(struct server_context *context, struct server_staging *staging)
{
	pthread_mutex_lock(&context->lock);
	staging->next = NULL;
	*context->busy_last = staging;
	context->busy_last = &staging->next;
	pthread_mutex_unlock(&context->lock);
}

static void staging_idle(struct server_context *context, struct server_staging *staging)
{
	pthread_mutex_lock(&context->lock);
	staging->next = context->idle;
	context->idle = staging;
	pthread_cond_signal(&context->returned);
	pthread_mutex_unlock(&context->lock);
}

/* Fails with the driver's own result: in a context that a kernel has broken, that is
 * what the program must be told. */
static CUresult staging_make(const struct server_driver *driver, struct server_staging **out)
{
	struct server_staging *staging = calloc(1, sizeof(*staging));
	void *memory = NULL;
	CUresult result;

	if (!staging)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver->cuEventCreate(&staging->event, CU_EVENT_DISABLE_TIMING);
	if (result != CUDA_SUCCESS) {
		free(staging);
		return result;
	}
	if (!driver->cuMemHostAlloc ||
	    driver->cuMemHostAlloc(&memory, WIRE_BULK_BYTES, CU_MEMHOSTALLOC_PORTABLE) !=
		    CUDA_SUCCESS)
		memory = malloc(WIRE_BULK_BYTES);
	if (!memory) {
		driver->cuEventDestroy_v2(staging->event);
		free(staging);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	staging->memory = memory;
	*out = staging;
	return CUDA_SUCCESS;
}

/* Take the oldest busy buffer whose copy is over; the lock is held. */
static struct server_staging *staging_reap(struct server_context *context,
					   const struct server_driver *driver)
{
	struct server_staging *oldest = context->busy_first;

	if (!oldest || driver->cuEventQuery(oldest->event) == CUDA_ERROR_NOT_READY)
		return NULL;
	context->busy_first = oldest->next;
	if (!context->busy_first)
		context->busy_last = &context->busy_first;
	return oldest;
}

/* Wait until a buffer is idle that a copy to the host holds; there is none of those
 * that only an event tells of.  A context that a kernel has broken gives none back. */
static CUresult staging_await(struct server_call *call)
{
	struct server_context *context = call->context;
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&context->lock);
	while (!context->idle && !context->busy_first && result == CUDA_SUCCESS) {
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec++;
		if (!context->staging_count) {
			result = CUDA_ERROR_OUT_OF_MEMORY;
		} else if (pthread_cond_timedwait(&context->returned, &context->lock, &until)) {
			pthread_mutex_unlock(&context->lock);
			result = call->driver->cuStreamQuery(NULL);
			if (result == CUDA_ERROR_NOT_READY)
				result = CUDA_SUCCESS;
			pthread_mutex_lock(&context->lock);
		}
	}
	pthread_mutex_unlock(&context->lock);
	return result;
}

/* A buffer that nothing uses.  Waits for the oldest copy when there are as many
 * as may be. */
static CUresult staging_take(struct server_call *call, struct server_staging **out)
{
	struct server_context *context = call->context;
	struct server_staging *staging;
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	CUevent oldest = NULL;

	for (;;) {
		bool make = false;

		pthread_mutex_lock(&context->lock);
		staging = context->idle;
		if (staging) {
			context->idle = staging->next;
		} else {
			staging = staging_reap(context, call->driver);
			if (!staging && context->staging_count < SERVER_STAGING_LIMIT) {
				context->staging_count++;
				make = true;
			}
			oldest = context->busy_first ? context->busy_first->event : NULL;
		}
		pthread_mutex_unlock(&context->lock);
		if (staging) {
			*out = staging;
			return CUDA_SUCCESS;
		}
		if (make) {
			result = staging_make(call->driver, out);
			if (result == CUDA_SUCCESS)
				return CUDA_SUCCESS;
			pthread_mutex_lock(&context->lock);
			context->staging_count--;
			pthread_mutex_unlock(&context->lock);
		}
		if (make && result != CUDA_ERROR_OUT_OF_MEMORY)
			return result;
		if (oldest) {
			call->driver->cuEventSynchronize(oldest);
			continue;
		}
		result = staging_await(call);
		if (result != CUDA_SUCCESS)
			return result;
	}
}

/* What a host function of the client needs of managed memory comes through one or two of them. */
#define STAGING_RESERVED 8u

void server_staging_reserve(struct server_call *call)
{
	struct server_context *context = call->context;
	struct server_staging *staging;
	bool make = true;

	while (make) {
		pthread_mutex_lock(&context->lock);
		make = context->staging_count < STAGING_RESERVED;
		context->staging_count += make;
		pthread_mutex_unlock(&context->lock);
		if (!make)
			return;
		if (staging_make(call->driver, &staging) == CUDA_SUCCESS) {
			staging_idle(context, staging);
			continue;
		}
		pthread_mutex_lock(&context->lock);
		context->staging_count--;
		pthread_mutex_unlock(&context->lock);
		return;
	}
}

/* Mark a buffer as used by what `stream` holds now. */
static CUresult staging_fence(struct server_call *call, struct server_staging *staging,
			      CUstream stream)
{
	CUresult result = call->driver->cuEventRecord(staging->event, stream);

	if (result == CUDA_SUCCESS)
		staging_busy(call->context, staging);
	else
		staging_idle(call->context, staging);
	return result;
}

/* ---- rows ---- */

/* Copies to the device are given to the driver in pieces of this size: while the device copies one, the next one
 * comes, and one that has come is still in the processor's cache. */
#define SERVER_PIECE_BYTES (128u << 10)
/* And those to the host that are waited for, which leave so: larger ones cost fewer messages, smaller ones let a device
 * copy more of one while the one before it is on its way.  Others hold a buffer for each piece, which
 * clients count by WIRE_BULK_BYTES (CLIENT_BEHIND_PIECES): theirs are as large as may be. */
#define SERVER_SENT_BYTES (256u << 10)
/* And in pieces of this size what is written in memory that the peer reads at the same time. */
#define SERVER_SHARED_BYTES (64u << 10)
/* What a system call sends is copied by the device first: larger pieces cost fewer calls and headers, behind which the kernel's
 * copies are slower the more there are, and smaller ones stay in the processor's cache and leave the network something to do
 * meanwhile (docs/performance.md).  A copy that is one frame goes at once, and on AMD's processors each frame does. */
#define SERVER_CALL_BYTES (512u << 10)
_Static_assert(SERVER_PIECE_BYTES <= WIRE_BULK_BYTES && SERVER_SENT_BYTES <= WIRE_BULK_BYTES,
	       "a piece fits a staging buffer");

/* Copy rows between packed host memory and the device, in stream order. */
static CUresult rows_copy(const struct server_driver *driver, uint64_t device, size_t pitch,
			  void *host, size_t width, size_t height, bool to_device, CUstream stream)
{
	CUDA_MEMCPY2D rows = {
		.srcMemoryType = to_device ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
		.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
		.WidthInBytes = width,
		.Height = height,
	};

	if (height == 1 || pitch == width)
		return to_device ? driver->cuMemcpyHtoDAsync_v2(device, host, width * height, stream)
				 : driver->cuMemcpyDtoHAsync_v2(host, device, width * height, stream);
	if (to_device) {
		rows.srcHost = host;
		rows.srcPitch = width;
		rows.dstDevice = device;
		rows.dstPitch = pitch;
	} else {
		rows.srcDevice = device;
		rows.srcPitch = pitch;
		rows.dstHost = host;
		rows.dstPitch = width;
	}
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

/* ---- between the transport's memory and the device ----
 *
 * Where the transport's bytes lie in memory, the driver copies from there and to there, on a
 * stream that nothing else is put in: such a copy ends whatever the program's streams wait
 * for, so it may be waited for by the thread that reads for all of them, and by one that
 * keeps others from writing.  It is only for streams that have come to the copy. */

bool server_stream_is_idle(struct server_call *call, CUstream stream)
{
	const struct server_driver *driver = call->driver;
	CUcontext owner;

	/* Asking about a stream would end its capture. */
	if (atomic_load_explicit(&call->server->capture_count, memory_order_relaxed))
		return false;
	/* The legacy stream waits for all others, and they for it: those of this context. */
	if (stream && (!driver->cuStreamGetCtx ||
		       driver->cuStreamGetCtx(stream, &owner) != CUDA_SUCCESS ||
		       owner != call->context->real ||
		       driver->cuStreamQuery(stream) != CUDA_SUCCESS))
		return false;
	return driver->cuStreamQuery(NULL) == CUDA_SUCCESS;
}

/* NULL: the driver has none. */
static CUstream bulk_stream(struct server_call *call)
{
	struct server_context *context = call->context;
	CUstream stream;
	size_t bytes;
	void *at;

	pthread_mutex_lock(&context->lock);
	if (!context->bulk) {
		if (call->driver->cuStreamCreate(&context->bulk, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
			context->bulk = NULL;
		/* Where the driver can't pin it, it copies through memory of its own.  It may be
		 * so already, for another context. */
		call->server->transport.ops->memory(&call->server->transport, &at, &bytes);
		if (context->bulk && call->driver->cuMemHostRegister_v2)
			(void)call->driver->cuMemHostRegister_v2(at, bytes, CU_MEMHOSTREGISTER_PORTABLE);
	}
	stream = context->bulk;
	pthread_mutex_unlock(&context->lock);
	return stream;
}

static CUresult receive_in_place(struct server_call *call, uint64_t device, CUstream stream)
{
	const struct server_driver *driver = call->driver;
	CUresult result = CUDA_SUCCESS;

	while (call->tail_bytes && result == CUDA_SUCCESS) {
		const void *at;
		ssize_t bytes = inbox_peek(call->inbox, &at, call->tail_bytes);

		if (bytes <= 0)
			return SERVER_MALFORMED;
		result = driver->cuMemcpyHtoDAsync_v2(device, at, (size_t)bytes, stream);
		if (result == CUDA_SUCCESS)
			result = driver->cuStreamSynchronize(stream);
		inbox_taken(call->inbox, (size_t)bytes);
		call->tail_bytes -= (size_t)bytes;
		device += (size_t)bytes;
	}
	return result;
}

/* The frame goes on also where the driver refuses: its length has been said.  `more` frames follow. */
static CUresult send_in_place(struct server_call *call, uint64_t device, size_t offset, size_t bytes,
			      bool more, CUstream stream)
{
	const struct server_driver *driver = call->driver;
	struct transport *transport = &call->server->transport;
	const struct wire_data data = { .sequence = call->header.sequence, .offset = offset };
	bool halves = (offset || more) && !processor_is_amd();
	size_t most = transport->ops->direct ? SERVER_SHARED_BYTES : halves ? SERVER_CALL_BYTES : WIRE_BULK_BYTES;
	CUresult result = CUDA_SUCCESS;
	int rc = server_send_begin(call->server, WIRE_EVENT_DATA, call->header.lane,
				   call->header.sequence, &data, sizeof(data), bytes);

	while (!rc && bytes) {
		void *at;
		ssize_t room = transport->ops->room(transport, &at, bytes < most ? bytes : most);

		if (room <= 0) {
			rc = -EPIPE;
			break;
		}
		if (result == CUDA_SUCCESS)
			result = driver->cuMemcpyDtoHAsync_v2(at, device, (size_t)room, stream);
		if (result == CUDA_SUCCESS)
			result = driver->cuStreamSynchronize(stream);
		device += (size_t)room;
		bytes -= (size_t)room;
		rc = transport->ops->written(transport, (size_t)room, bytes || more);
	}
	pthread_mutex_unlock(&call->server->write);
	return rc ? SERVER_MALFORMED : result;
}

/* ---- to the device ---- */

/* The device copies what is there while the rest comes.  Where it is as quick, each piece takes
 * the place of the one before, which is in the processor's cache. */
static CUresult receive_line(struct server_call *call, uint64_t device,
			     const struct server_staging *staging, size_t bytes, CUstream stream)
{
	const struct server_driver *driver = call->driver;
	uint8_t *memory = staging->memory;
	CUresult result = CUDA_SUCCESS;

	for (size_t at = 0; at < bytes && result == CUDA_SUCCESS; at += SERVER_PIECE_BYTES) {
		size_t now = bytes - at < SERVER_PIECE_BYTES ? bytes - at : SERVER_PIECE_BYTES;

		if (at) {
			result = driver->cuEventRecord(staging->event, stream);
			if (result != CUDA_SUCCESS)
				break;
			memory = driver->cuEventQuery(staging->event) == CUDA_SUCCESS
					 ? staging->memory : memory + SERVER_PIECE_BYTES;
		}
		result = server_take(call, memory, now);
		if (result == CUDA_SUCCESS)
			result = driver->cuMemcpyHtoDAsync_v2(device + at, memory, now, stream);
	}
	return result;
}

static CUresult receive_rows(struct server_call *call, uint64_t device, size_t pitch, size_t width,
			     size_t height, uint64_t stream_handle)
{
	struct server_staging *staging;
	CUstream stream;
	CUresult result = server_resolve_stream(call, stream_handle, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (height == 1 && call->server->transport.ops->peek && server_stream_is_idle(call, stream)) {
		CUstream bulk = bulk_stream(call);

		if (bulk)
			return receive_in_place(call, device, bulk);
	}
	result = staging_take(call, &staging);
	if (result != CUDA_SUCCESS)
		return result;
	if (height == 1)
		result = receive_line(call, device, staging, width, stream);
	else
		result = server_take(call, staging->memory, width * height);
	if (result == CUDA_SUCCESS && height > 1)
		result = rows_copy(call->driver, device, pitch, staging->memory, width, height, true,
				   stream);
	if (result != CUDA_SUCCESS && result != SERVER_MALFORMED)
		/* A part of it may be on its way all the same. */
		(void)staging_fence(call, staging, stream);
	return result == CUDA_SUCCESS ? staging_fence(call, staging, stream) : result;
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

static CUresult send_data(struct server *server, uint16_t lane, uint64_t sequence, uint64_t offset,
			  const void *bytes, size_t count)
{
	const struct wire_data data = { .sequence = sequence, .offset = offset };

	return server_send(server, WIRE_EVENT_DATA, lane, sequence, 0, &data, sizeof(data), bytes,
			   count)
		       ? SERVER_MALFORMED
		       : CUDA_SUCCESS;
}

/* Two buffers take turns: one is filled by the device while the other is sent. */
CUresult serve_copy_to_host(struct server_call *call)
{
	const struct wire_copy_to_host *request = call->request;
	size_t pitch = request->pitch, width = request->width, height = request->height;
	struct server_staging *filled = NULL, *staging = NULL;
	size_t total, at = 0, sent = 0, filled_bytes = 0;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (!server_plane_sane(pitch, width, height))
		return SERVER_MALFORMED;
	if (result != CUDA_SUCCESS)
		return result;
	plane_flatten(&pitch, &width, &height);
	total = width * height;
	if (height == 1 && call->server->transport.ops->room && server_stream_is_idle(call, stream)) {
		CUstream bulk = bulk_stream(call);

		for (; bulk && at < total && result == CUDA_SUCCESS; at += WIRE_BULK_BYTES)
			result = send_in_place(call, request->device + at, at,
					       total - at < WIRE_BULK_BYTES ? total - at : WIRE_BULK_BYTES,
					       total - at > WIRE_BULK_BYTES, bulk);
		if (bulk)
			return result;
	}
	while (result == CUDA_SUCCESS && (at < total || filled)) {
		size_t bytes = 0;

		if (at < total) {
			struct piece piece = piece_at(request->device, pitch, width, height, at,
						      SERVER_SENT_BYTES);

			result = staging_take(call, &staging);
			if (result != CUDA_SUCCESS)
				break;
			bytes = piece.width * piece.height;
			result = rows_copy(call->driver, piece.device, pitch, staging->memory,
					   piece.width, piece.height, false, stream);
			if (result == CUDA_SUCCESS)
				result = call->driver->cuEventRecord(staging->event, stream);
			at += bytes;
		}
		if (result == CUDA_SUCCESS && filled) {
			result = call->driver->cuEventSynchronize(filled->event);
			if (result == CUDA_SUCCESS)
				result = send_data(call->server, call->header.lane,
						   call->header.sequence, sent, filled->memory,
						   filled_bytes);
			sent += filled_bytes;
		}
		if (filled)
			staging_idle(call->context, filled);
		filled = staging;
		filled_bytes = bytes;
		staging = NULL;
	}
	if (filled)
		staging_idle(call->context, filled);
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

	send_data(data->context->server, data->lane, data->sequence, data->offset,
		  data->staging->memory, data->bytes);
	staging_idle(data->context, data->staging);
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
		result = staging_take(call, &staging);
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
			staging_idle(call->context, staging);
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
		result = staging_take(call, &staging);
	if (result != CUDA_SUCCESS)
		return result;
	result = server_take(call, staging->memory, call->tail_bytes);
	rows.srcHost = staging->memory;
	if (result == CUDA_SUCCESS)
		result = call->driver->cuMemcpy3DAsync_v2(&rows, stream);
	if (result != CUDA_SUCCESS && result != SERVER_MALFORMED)
		/* A part of it may be on its way all the same. */
		(void)staging_fence(call, staging, stream);
	return result == CUDA_SUCCESS ? staging_fence(call, staging, stream) : result;
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
		result = staging_take(call, &staging);
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
		if (result == CUDA_SUCCESS)
			result = send_data(call->server, call->header.lane, call->header.sequence,
					   at, staging->memory, bytes);
		at += bytes;
	}
	staging_idle(call->context, staging);
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
