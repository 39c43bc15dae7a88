/* Copies.
 *
 * Bytes for the device are taken when the call is made, except from pinned memory
 * that something still to run may write first: the server asks for those when the
 * stream gets there.  Bytes for the host are written by whoever reads the inbox,
 * before the reply or event that tells of the copy's end.
 */
#include "../across/relay.h"
#include "../addresses/pinned.h"
#include "../addresses/plane.h"
#include "../addresses/ranges.h"
#include "../exchange/captures.h"
#include "../exchange/exchange.h"
#include "../exchange/jobs.h"
#include "../exchange/pace.h"
#include "../ground/thread.h"
#include "../handles/conditional.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "../managed/managed.h"
#include "../streams/host.h"
#include "../streams/stream.h"
#include "copy.h"

#include <stdlib.h>
#include <string.h>

/* SIZE_MAX, which nothing is as large as, where the sum is beyond it. */
static size_t plane_span(const struct client_plane *plane, const struct client_extent *extent)
{
	size_t span;

	if (__builtin_mul_overflow(extent->height - 1, plane->pitch, &span) ||
	    __builtin_add_overflow(span, extent->width, &span))
		return SIZE_MAX;
	return span;
}

static CUresult plane_check(const struct client_plane *plane, const struct client_extent *extent)
{
	if (plane->kind != MEMORY_DEVICE)
		return plane->address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	return client_memory_check(plane->address, plane_span(plane, extent));
}

enum client_memory_kind client_kind_at(uint64_t address)
{
	struct client_range range;

	return client_memory_find(address, &range) ? range.kind : MEMORY_PAGEABLE;
}

/* Does the server reach it by its address? */
static bool plane_is_there(const struct client_plane *plane, const struct client_extent *extent)
{
	return plane->kind == MEMORY_DEVICE ||
	       (plane->kind == MEMORY_PINNED && client_pinned_mapped(plane->address, plane_span(plane, extent)));
}

/* Is it memory of the host, as a program sees it? */
static bool host_at(uint64_t address)
{
	struct client_range range;

	return !client_memory_find(address, &range) || range.kind != MEMORY_DEVICE || range.mapped;
}

static CUresult stream_wait(uint64_t stream)
{
	const struct wire_stream_synchronize request = { .stream = stream };

	return client_call(WIRE_OP_STREAM_SYNCHRONIZE, &request, sizeof(request), NULL, 0);
}

/* ---- to the device ---- */

/* Copies travel in frames as large as may be: each costs system calls and a packet of what is left over.
 * The server hands the bytes to the driver as they come (SERVER_PIECE_BYTES). */
#define COPY_PIECE_BYTES WIRE_BULK_BYTES

/* The caller settles what is lent here. */
static CUresult send_linear(uint64_t device, const uint8_t *host, size_t bytes, uint64_t stream)
{
	while (bytes) {
		size_t now = bytes < COPY_PIECE_BYTES ? bytes : COPY_PIECE_BYTES;
		const struct wire_copy_to_device request = { .device = device, .stream = stream };
		CUresult result;

		client_stream_pace(stream, CLIENT_WEIGHT_WORK, 1);
		result = client_post_lent(WIRE_OP_COPY_TO_DEVICE, &request, sizeof(request), host, now);

		if (result != CUDA_SUCCESS)
			return result;
		device += now;
		host += now;
		bytes -= now;
	}
	return CUDA_SUCCESS;
}

static CUresult send_rows(const struct client_plane *device, const struct client_plane *host,
			  const struct client_extent *extent, uint64_t stream)
{
	size_t rows = WIRE_BULK_BYTES / extent->width;
	const uint8_t *from = (const uint8_t *)(uintptr_t)host->address;
	CUresult result = CUDA_SUCCESS;
	uint8_t *packed;

	if (rows == 0) {
		for (size_t y = 0; y < extent->height && result == CUDA_SUCCESS; y++)
			result = send_linear(device->address + y * device->pitch,
					     from + y * host->pitch, extent->width, stream);
		return result;
	}
	if (rows > extent->height)
		rows = extent->height;
	packed = malloc(rows * extent->width);
	if (!packed)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t y = 0; y < extent->height && result == CUDA_SUCCESS; y += rows) {
		struct wire_copy_to_device_2d request = {
			.device = device->address + y * device->pitch,
			.pitch = device->pitch,
			.width = extent->width,
			.height = rows < extent->height - y ? rows : extent->height - y,
			.stream = stream,
		};

		for (size_t row = 0; row < request.height; row++)
			memcpy(packed + row * extent->width, from + (y + row) * host->pitch,
			       extent->width);
		client_stream_pace(stream, CLIENT_WEIGHT_WORK, 1);
		result = client_post_work(WIRE_OP_COPY_TO_DEVICE_2D, &request, sizeof(request), packed,
				     request.height * extent->width);
	}
	free(packed);
	return result;
}

static CUresult copy_to_device(const struct client_plane *device, const struct client_plane *host,
			       const struct client_extent *extent, uint64_t stream)
{
	bool linear = extent->height == 1 ||
		      (device->pitch == extent->width && host->pitch == extent->width);

	/* Also one that is waited for may be behind a copy to the same memory. */
	if (host->kind == MEMORY_PINNED && client_host_busy())
		return client_host_copy(device->address, device->pitch,
					(const void *)(uintptr_t)host->address, host->pitch,
					extent->width, extent->height, stream);
	if (linear)
		return send_linear(device->address, (const uint8_t *)(uintptr_t)host->address,
				   extent->width * extent->height, stream);
	return send_rows(device, host, extent, stream);
}

/* ---- to the host ---- */

static void target_fill(struct client_target *target, const struct client_plane *host,
			const struct client_extent *extent)
{
	memset(target, 0, sizeof(*target));
	target->host = (uint8_t *)(uintptr_t)host->address;
	target->width = extent->width;
	target->height = extent->height;
	target->pitch = extent->height == 1 ? extent->width : host->pitch;
	target->missing = extent->width * extent->height;
}

static CUresult copy_to_host(const struct client_plane *host, const struct client_plane *device,
			     const struct client_extent *extent, uint64_t stream, bool async)
{
	const struct wire_copy_to_host fixed = {
		.device = device->address,
		.pitch = device->pitch,
		.width = extent->width,
		.height = extent->height,
		.stream = stream,
	};
	struct client_request request = {
		.op = WIRE_OP_COPY_TO_HOST,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_target target;
	struct client_wait wait = { .target = &target };

	_Static_assert(sizeof(struct wire_copy_to_host) == sizeof(struct wire_copy_to_host_async),
		       "the two travel alike");
	/* CUDA completes a copy to pageable memory before it returns. */
	if (async && host->kind == MEMORY_PINNED) {
		struct client_target *kept = malloc(sizeof(*kept));

		if (!kept)
			return CUDA_ERROR_OUT_OF_MEMORY;
		target_fill(kept, host, extent);
		kept->owned = true;
		request.op = WIRE_OP_COPY_TO_HOST_ASYNC;
		client_stream_pace(stream, CLIENT_WEIGHT_WORK,
				   extent->width * extent->height / WIRE_BULK_BYTES + 1);
		return client_post_target(&request, kept);
	}
	target_fill(&target, host, extent);
	return client_call_wide(&request, &wait);
}

/* ---- on the device ---- */

static CUresult copy_on_device(const struct client_plane *to, const struct client_plane *from,
			       const struct client_extent *extent, uint64_t stream)
{
	client_stream_pace(stream, CLIENT_WEIGHT_WORK, 0);
	if (extent->height == 1 || (to->pitch == extent->width && from->pitch == extent->width)) {
		const struct wire_copy_on_device request = {
			.target = to->address,
			.source = from->address,
			.bytes = extent->width * extent->height,
			.stream = stream,
		};

		return client_post_work(WIRE_OP_COPY_ON_DEVICE, &request, sizeof(request), NULL, 0);
	}
	const struct wire_copy_on_device_2d request = {
		.target = to->address,
		.target_pitch = to->pitch,
		.source = from->address,
		.source_pitch = from->pitch,
		.width = extent->width,
		.height = extent->height,
		.stream = stream,
	};

	return client_post_work(WIRE_OP_COPY_ON_DEVICE_2D, &request, sizeof(request), NULL, 0);
}

/* CUDA makes copies within host memory itself, after the stream's work. */
static CUresult copy_on_host(const struct client_plane *to, const struct client_plane *from,
			     const struct client_extent *extent, uint64_t stream)
{
	CUresult result = client_stream_reach(stream);

	for (size_t y = 0; y < extent->height && result == CUDA_SUCCESS; y++)
		memmove((uint8_t *)(uintptr_t)to->address + y * to->pitch,
			(const uint8_t *)(uintptr_t)from->address + y * from->pitch, extent->width);
	return result;
}

/* ---- in a captured stream ---- */

/* Each run of the graph reads or writes host memory then; nothing of it travels now. */
static CUresult copy_captured(const struct client_plane *to, const struct client_plane *from,
			      const struct client_extent *extent, uint64_t stream)
{
	struct client_target *kept;
	struct wire_capture_copy_to_host fixed = {
		.device = from->address,
		.pitch = extent->height == 1 ? extent->width : from->pitch,
		.width = extent->width,
		.height = extent->height,
		.stream = stream,
	};
	const struct client_request request = {
		.op = WIRE_OP_CAPTURE_COPY_TO_HOST,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};

	if (client_conditional_any() && client_graph_is_body(client_stream_capture_graph(stream)))
		return client_body_refuse();
	if (to->kind == MEMORY_DEVICE)
		return client_host_copy_captured(to->address,
						 extent->height == 1 ? extent->width : to->pitch,
						 (const void *)(uintptr_t)from->address, from->pitch,
						 extent->width, extent->height, stream);
	if (from->kind != MEMORY_DEVICE)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	kept = malloc(sizeof(*kept));
	if (!kept)
		return CUDA_ERROR_OUT_OF_MEMORY;
	target_fill(kept, to, extent);
	kept->owned = true;
	kept->kept = true;
	return client_post_target(&request, kept);
}

/* ---- the one way all copies go ---- */

/* Whose the plane's memory is; NULL: this process's. */
static struct client_context *plane_context(const struct client_plane *plane)
{
	struct client_range range;

	return plane->kind == MEMORY_DEVICE && client_memory_find(plane->address, &range)
		       ? client_memory_context(&range)
		       : NULL;
}

/* Does the stream have nothing to do with one of the sides?  Then *across is the copy. */
static bool copy_crosses(const struct client_plane *to, const struct client_plane *from,
			 const struct client_extent *extent, uint64_t stream,
			 struct client_copy *across)
{
	const struct client_session *session;

	if (client_alone())
		return false;
	session = client_stream_session(stream);
	*across = (struct client_copy){ .to = *to, .from = *from, .extent = *extent };
	across->to.context = plane_context(to);
	across->from.context = plane_context(from);
	return (across->to.context && across->to.context->session != session) ||
	       (across->from.context && across->from.context->session != session);
}

static CUresult copy_plain(const struct client_plane *to, const struct client_plane *from,
			   const struct client_extent *extent, uint64_t stream, bool async)
{
	struct client_copy across;
	CUresult result;

	if (!extent->width || !extent->height)
		return CUDA_SUCCESS;
	result = plane_check(to, extent);
	if (result == CUDA_SUCCESS)
		result = plane_check(from, extent);
	if (result != CUDA_SUCCESS)
		return result;
	if (copy_crosses(to, from, extent, stream, &across))
		return client_across_copy(&across, stream, async);
	if (to->kind == MEMORY_DEVICE && from->kind == MEMORY_DEVICE)
		return copy_on_device(to, from, extent, stream);
	if (async && client_stream_captured(stream))
		return plane_is_there(to, extent) && plane_is_there(from, extent)
			       ? copy_on_device(to, from, extent, stream)
			       : copy_captured(to, from, extent, stream);
	if (client_pinned_copy(to, from, extent,
			       plane_span(to->kind == MEMORY_DEVICE ? from : to, extent), stream, async,
			       &result))
		return result == CUDA_SUCCESS && !async ? stream_wait(stream) : result;
	if (to->kind == MEMORY_DEVICE) {
		result = copy_to_device(to, from, extent, stream);
		/* A synchronous copy reports what went wrong before it. */
		if (result == CUDA_SUCCESS && !async)
			result = stream_wait(stream);
		/* Behind the answer there is nothing left that could be asked for again. */
		client_settle((const void *)(uintptr_t)from->address, plane_span(from, extent));
		return result;
	}
	if (from->kind == MEMORY_DEVICE)
		return copy_to_host(to, from, extent, stream, async);
	return copy_on_host(to, from, extent, stream);
}

CUresult client_copy_rows(const struct client_plane *to, const struct client_plane *from,
			  const struct client_extent *extent, uint64_t stream, bool async)
{
	bool reads = client_managed_at(from->address), writes = client_managed_at(to->address);
	size_t to_span, from_span;
	CUresult result = CUDA_SUCCESS;

	if ((!reads && !writes) || !extent->width || !extent->height)
		return copy_plain(to, from, extent, stream, async);
	/* CUDA's copies within host memory have ended when they return. */
	async = async && (!host_at(to->address) || !host_at(from->address) || client_stream_captured(stream));
	to_span = plane_span(to, extent);
	from_span = plane_span(from, extent);
	if (reads)
		result = client_managed_before_range(stream, from->address, from_span, false);
	if (writes && result == CUDA_SUCCESS)
		result = client_managed_before_range(stream, to->address, to_span, true);
	if (result == CUDA_SUCCESS)
		result = copy_plain(to, from, extent, stream, async);
	if (writes)
		client_managed_after_range(stream, to->address, to_span, true);
	/* The program may touch it as soon as this returns. */
	if (result == CUDA_SUCCESS && !async)
		result = stream_wait(stream);
	return result;
}

static CUresult copy_linear(uint64_t to, enum client_memory_kind to_kind, uint64_t from,
			    enum client_memory_kind from_kind, size_t bytes, CUstream stream,
			    bool async)
{
	const struct client_plane target = { .address = to, .pitch = bytes, .kind = to_kind };
	const struct client_plane source = { .address = from, .pitch = bytes, .kind = from_kind };
	const struct client_extent extent = { .width = bytes, .height = 1 };
	uint64_t wire;
	CUresult result = client_stream_enter(stream, &wire);

	if (result != CUDA_SUCCESS)
		return result;
	return client_copy_rows(&target, &source, &extent, wire, async);
}

static uint64_t address_of(const void *pointer)
{
	return (uint64_t)(uintptr_t)pointer;
}

enum client_memory_kind client_host_kind(const void *pointer)
{
	enum client_memory_kind kind = client_kind_at(address_of(pointer));

	if (kind == MEMORY_DEVICE && client_managed_at(address_of(pointer)))
		return MEMORY_DEVICE;
	return kind == MEMORY_PINNED ? MEMORY_PINNED : MEMORY_PAGEABLE;
}

enum client_memory_kind client_device_kind(CUdeviceptr address)
{
	return client_kind_at(address) == MEMORY_PINNED ? MEMORY_PINNED : MEMORY_DEVICE;
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
	return copy_linear(dst, client_kind_at(dst), src, client_kind_at(src), ByteCount, NULL, false);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
	return copy_linear(dst, client_kind_at(dst), src, client_kind_at(src), ByteCount, hStream, true);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
	return copy_linear(dstDevice, client_device_kind(dstDevice), address_of(srcHost), client_host_kind(srcHost),
			   ByteCount, NULL, false);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
			      CUstream hStream)
{
	return copy_linear(dstDevice, client_device_kind(dstDevice), address_of(srcHost), client_host_kind(srcHost),
			   ByteCount, hStream, true);
}

CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
	return copy_linear(address_of(dstHost), client_host_kind(dstHost), srcDevice, client_device_kind(srcDevice),
			   ByteCount, NULL, false);
}

CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
			      CUstream hStream)
{
	return copy_linear(address_of(dstHost), client_host_kind(dstHost), srcDevice, client_device_kind(srcDevice),
			   ByteCount, hStream, true);
}

/* May the program look at it as soon as a copy without Async returns? */
static bool is_looked_at(uint64_t address)
{
	return host_at(address) || client_managed_at(address);
}

/* CUDA's waits for nothing between memory of devices; it takes pinned memory, too. */
CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
	return copy_linear(dstDevice, client_device_kind(dstDevice), srcDevice, client_device_kind(srcDevice), ByteCount, NULL,
			   !is_looked_at(dstDevice) && !is_looked_at(srcDevice));
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
			      CUstream hStream)
{
	return copy_linear(dstDevice, client_device_kind(dstDevice), srcDevice, client_device_kind(srcDevice), ByteCount,
			   hStream, true);
}

/* All devices share one address space, so the contexts say nothing that the addresses do
 * not; they are checked as CUDA checks them. */
CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
			   CUcontext srcContext, size_t ByteCount, CUstream hStream)
{
	if (!client_context_get(dstContext) || !client_context_get(srcContext))
		return CUDA_ERROR_INVALID_CONTEXT;
	return cuMemcpyDtoDAsync_v2(dstDevice, srcDevice, ByteCount, hStream);
}

static bool peer_is_elsewhere(CUcontext side)
{
	const struct client_context *context = client_context_get(side);

	return context && context != client_context_current();
}

CUresult client_peer_settle(CUcontext target, CUcontext source)
{
	CUresult result = peer_is_elsewhere(target) ? cuCtxSynchronize_v2(target) : CUDA_SUCCESS;

	return result == CUDA_SUCCESS && source != target && peer_is_elsewhere(source) ? cuCtxSynchronize_v2(source) :
											    result;
}

CUresult client_peer_complete(CUcontext target, CUcontext source)
{
	return peer_is_elsewhere(target) || peer_is_elsewhere(source) ? cuStreamSynchronize(NULL) : CUDA_SUCCESS;
}

CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
		      CUcontext srcContext, size_t ByteCount)
{
	CUresult result = client_peer_settle(dstContext, srcContext);

	if (result == CUDA_SUCCESS)
		result = cuMemcpyPeerAsync(dstDevice, dstContext, srcDevice, srcContext, ByteCount,
					   NULL);
	return result == CUDA_SUCCESS ? client_peer_complete(dstContext, srcContext) : result;
}
