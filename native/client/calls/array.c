/* Copies to and from arrays, whose layout only the driver knows: the server is told which
 * rows, and the bytes of this process travel packed. */
#include "../addresses/pinned.h"
#include "../addresses/ranges.h"
#include "../exchange/captures.h"
#include "../exchange/exchange.h"
#include "../exchange/jobs.h"
#include "../handles/route.h"
#include "../streams/stream.h"
#include "array.h"

#include <stdlib.h>
#include <string.h>

unsigned client_texel_bytes(CUarray_format format, unsigned channels)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return channels;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 2 * channels;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 4 * channels;
	default:
		return 0;
	}
}

static bool on_host(CUmemorytype type, const void *host, CUdeviceptr *address)
{
	if (type == CU_MEMORYTYPE_HOST)
		*address = (uint64_t)(uintptr_t)host;
	return client_memory_is_host(type, *address);
}

static CUresult write_slice(const CUDA_MEMCPY3D *copy, const uint8_t *from, size_t pitch, size_t z,
			    uint64_t stream)
{
	size_t width = copy->WidthInBytes, rows = WIRE_BULK_BYTES / width;
	CUresult result = CUDA_SUCCESS;
	uint8_t *packed;

	/* No array has rows of more than a mebibyte: 131,072 texels of 16 bytes are two. */
	if (rows == 0) {
		for (size_t y = 0; y < copy->Height; y++) {
			for (size_t x = 0; x < width && result == CUDA_SUCCESS; x += WIRE_BULK_BYTES) {
				size_t now = width - x < WIRE_BULK_BYTES ? width - x : WIRE_BULK_BYTES;
				const struct wire_array_write part = {
					.array = (uint64_t)(uintptr_t)copy->dstArray,
					.x = copy->dstXInBytes + x,
					.y = copy->dstY + y,
					.z = copy->dstZ + z,
					.width = now,
					.height = 1,
					.stream = stream,
				};
				const struct client_request request = {
					.op = WIRE_OP_ARRAY_WRITE,
					.fixed = &part,
					.fixed_bytes = sizeof(part),
					.tail = from + y * pitch + x,
					.tail_bytes = now,
				};
				struct client_wait wait = { 0 };

				result = client_call_wide(&request, &wait);
			}
		}
		return result;
	}
	if (rows > copy->Height)
		rows = copy->Height;
	packed = malloc(rows * width);
	if (!packed)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t y = 0; y < copy->Height && result == CUDA_SUCCESS; y += rows) {
		const struct wire_array_write part = {
			.array = (uint64_t)(uintptr_t)copy->dstArray,
			.x = copy->dstXInBytes,
			.y = copy->dstY + y,
			.z = copy->dstZ + z,
			.width = width,
			.height = rows < copy->Height - y ? rows : copy->Height - y,
			.stream = stream,
		};
		const struct client_request request = {
			.op = WIRE_OP_ARRAY_WRITE,
			.fixed = &part,
			.fixed_bytes = sizeof(part),
			.tail = packed,
			.tail_bytes = part.width * part.height,
		};
		struct client_wait wait = { 0 };

		for (size_t row = 0; row < part.height; row++)
			memcpy(packed + row * width, from + (y + row) * pitch, width);
		result = client_call_wide(&request, &wait);
	}
	free(packed);
	return result;
}

static CUresult read_slice(const CUDA_MEMCPY3D *copy, uint8_t *to, size_t pitch, size_t z,
			   uint64_t stream)
{
	const struct wire_array_read fixed = {
		.array = (uint64_t)(uintptr_t)copy->srcArray,
		.x = copy->srcXInBytes,
		.y = copy->srcY,
		.z = copy->srcZ + z,
		.width = copy->WidthInBytes,
		.height = copy->Height,
		.stream = stream,
	};
	const struct client_request request = {
		.op = WIRE_OP_ARRAY_READ,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_target target = {
		.host = to,
		.width = copy->WidthInBytes,
		.height = copy->Height,
		.pitch = copy->Height == 1 ? copy->WidthInBytes : pitch,
		.missing = copy->WidthInBytes * copy->Height,
	};
	struct client_wait wait = { .target = &target };

	return client_call_wide(&request, &wait);
}

static CUresult copy_there(const CUDA_MEMCPY3D *copy, uint64_t stream)
{
	const bool from_array = copy->srcMemoryType == CU_MEMORYTYPE_ARRAY;
	const bool to_array = copy->dstMemoryType == CU_MEMORYTYPE_ARRAY;
	const struct wire_array_copy request = {
		.source = from_array ? (uint64_t)(uintptr_t)copy->srcArray : copy->srcDevice,
		.source_is_array = from_array,
		.source_pitch = copy->srcPitch | (uint64_t)copy->srcHeight << 32,
		.source_x = copy->srcXInBytes,
		.source_y = copy->srcY,
		.source_z = copy->srcZ,
		.target = to_array ? (uint64_t)(uintptr_t)copy->dstArray : copy->dstDevice,
		.target_is_array = to_array,
		.target_pitch = copy->dstPitch | (uint64_t)copy->dstHeight << 32,
		.target_x = copy->dstXInBytes,
		.target_y = copy->dstY,
		.target_z = copy->dstZ,
		.width = copy->WidthInBytes,
		.height = copy->Height,
		.depth = copy->Depth,
		.stream = stream,
	};

	return client_call(WIRE_OP_ARRAY_COPY, &request, sizeof(request), NULL, 0);
}

CUresult client_array_copy_at(const CUDA_MEMCPY3D *given, uint64_t stream, bool async)
{
	CUDA_MEMCPY3D copy = *given;
	CUresult result = CUDA_SUCCESS;
	struct client_session *session;
	struct client_range range;
	CUdeviceptr address;
	size_t pitch, slice;

	client_pinned_sides(&copy);
	if (copy.srcMemoryType == CU_MEMORYTYPE_ARRAY)
		copy.srcArray = (CUarray)(uintptr_t)client_named_wire(copy.srcArray, &session);
	if (copy.dstMemoryType == CU_MEMORYTYPE_ARRAY)
		copy.dstArray = (CUarray)(uintptr_t)client_named_wire(copy.dstArray, &session);
	address = copy.srcDevice;
	if (copy.srcMemoryType != CU_MEMORYTYPE_ARRAY &&
	    on_host(copy.srcMemoryType, copy.srcHost, &address)) {
		if (!address)
			return CUDA_ERROR_INVALID_VALUE;
		/* A copy ahead in the stream may be still to write there: one whose bytes are to come, or
		 * the server's own. */
		if (client_memory_find(address, &range) && range.kind == MEMORY_PINNED &&
		    (range.shared || client_host_busy()) && !client_stream_captured(stream))
			result = client_stream_reach(stream);
		pitch = copy.srcPitch;
		slice = pitch * copy.srcHeight;
		for (size_t z = 0; z < copy.Depth && result == CUDA_SUCCESS; z++)
			result = write_slice(&copy,
					     (const uint8_t *)(uintptr_t)address + copy.srcXInBytes +
						     copy.srcY * pitch + (copy.srcZ + z) * slice,
					     pitch, z, stream);
	} else {
		address = copy.dstDevice;
		if (copy.dstMemoryType != CU_MEMORYTYPE_ARRAY &&
		    on_host(copy.dstMemoryType, copy.dstHost, &address)) {
			if (!address)
				return CUDA_ERROR_INVALID_VALUE;
			pitch = copy.dstPitch;
			slice = pitch * copy.dstHeight;
			for (size_t z = 0; z < copy.Depth && result == CUDA_SUCCESS; z++)
				result = read_slice(&copy,
						    (uint8_t *)(uintptr_t)address + copy.dstXInBytes +
							    copy.dstY * pitch +
							    (copy.dstZ + z) * slice,
						    pitch, z, stream);
			return result;
		}
		result = copy_there(&copy, stream);
	}
	if (result == CUDA_SUCCESS && !async) {
		const struct wire_stream_synchronize request = { .stream = stream };

		result = client_call(WIRE_OP_STREAM_SYNCHRONIZE, &request, sizeof(request), NULL, 0);
	}
	return result;
}

struct client_session *client_side_session(CUmemorytype type, CUarray array, const void *host,
					   CUdeviceptr device)
{
	struct client_session *session = NULL;
	struct client_range range;

	if (type == CU_MEMORYTYPE_ARRAY)
		client_named_wire(array, &session);
	else if (!on_host(type, host, &device) && client_memory_find(device, &range))
		session = range.session;
	return session;
}
