/* Fills: checked here, posted; CUDA's own return before the device is done. */
#include "../addresses/pinned.h"
#include "../addresses/ranges.h"
#include "../exchange/exchange.h"
#include "../exchange/pace.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "../managed/managed.h"
#include "../streams/stream.h"

#include <string.h>

/* Pinned memory that is this process's alone is filled here, after the stream's work. */
static CUresult fill_here(const struct wire_fill *fill)
{
	CUresult result = client_stream_reach(fill->stream);

	for (size_t y = 0; y < fill->height && result == CUDA_SUCCESS; y++) {
		uint8_t *row = (uint8_t *)(uintptr_t)fill->device + y * fill->pitch;

		for (size_t x = 0; x < fill->width; x++)
			memcpy(row + x * fill->element, &fill->value, fill->element);
	}
	return result;
}

static CUresult fill_wait(const struct wire_fill *fill)
{
	const struct wire_stream_synchronize wait = { .stream = fill->stream };

	return client_call(WIRE_OP_STREAM_SYNCHRONIZE, &wait, sizeof(wait), NULL, 0);
}

/* CUDA's own waits for what it does to memory of the host and managed memory, unless it is asynchronous. */
static CUresult fill_mapped(const struct wire_fill *fill, bool async)
{
	CUresult result = client_post_work(WIRE_OP_FILL, fill, sizeof(*fill), NULL, 0);

	return result == CUDA_SUCCESS && !async ? fill_wait(fill) : result;
}

static CUresult fill_managed(const struct wire_fill *fill, size_t span, bool async)
{
	CUresult result = client_managed_before_range(fill->stream, fill->device, span, true);

	if (result == CUDA_SUCCESS)
		result = client_post_work(WIRE_OP_FILL, fill, sizeof(*fill), NULL, 0);
	client_managed_after_range(fill->stream, fill->device, span, true);
	return result == CUDA_SUCCESS && !async ? fill_wait(fill) : result;
}

static CUresult fill(CUdeviceptr device, size_t pitch, uint32_t element, uint32_t value,
		     size_t width, size_t height, CUstream stream, bool async)
{
	struct wire_fill request = {
		.device = device,
		.pitch = pitch,
		.width = width,
		.height = height,
		.element = element,
		.value = value,
	};
	CUresult result = client_stream_enter(stream, &request.stream);
	struct client_range range;
	size_t span;
	bool known;

	if (result != CUDA_SUCCESS)
		return result;
	if (!width || !height)
		return CUDA_SUCCESS;
	if (device % element || pitch % element || width > SIZE_MAX / element ||
	    (height > 1 && pitch < width * element) ||
	    __builtin_mul_overflow(height - 1, pitch, &span) ||
	    __builtin_add_overflow(span, width * element, &span))
		return CUDA_ERROR_INVALID_VALUE;
	known = client_memory_find(device, &range);
	if (known && range.kind == MEMORY_PINNED && client_pinned_mapped(device, span)) {
		client_stream_pace(request.stream, CLIENT_WEIGHT_WORK, 0);
		return fill_mapped(&request, async);
	}
	if (known && range.kind == MEMORY_PINNED)
		return span <= range.base + range.bytes - device ? fill_here(&request)
								 : CUDA_ERROR_INVALID_VALUE;
	/* As of another device's memory that no peer access leads to. */
	if (known && !client_alone() && range.session != client_stream_session(request.stream))
		return CUDA_ERROR_INVALID_VALUE;
	result = client_memory_check(device, span);
	if (result != CUDA_SUCCESS)
		return result;
	client_stream_pace(request.stream, CLIENT_WEIGHT_WORK, 0);
	if (known && range.managed)
		return fill_managed(&request, span, async);
	return client_post_work(WIRE_OP_FILL, &request, sizeof(request), NULL, 0);
}

#define FILL_1D(name, type, bytes) \
	CUresult cuMemset##name##_v2(CUdeviceptr dst, type value, size_t n) \
	{ \
		return fill(dst, 0, bytes, value, n, 1, NULL, false); \
	} \
	CUresult cuMemset##name##Async(CUdeviceptr dst, type value, size_t n, CUstream stream) \
	{ \
		return fill(dst, 0, bytes, value, n, 1, stream, true); \
	}

#define FILL_2D(name, type, bytes) \
	CUresult cuMemset##name##_v2(CUdeviceptr dst, size_t pitch, type value, size_t width, \
				     size_t height) \
	{ \
		return fill(dst, pitch, bytes, value, width, height, NULL, false); \
	} \
	CUresult cuMemset##name##Async(CUdeviceptr dst, size_t pitch, type value, size_t width, \
				       size_t height, CUstream stream) \
	{ \
		return fill(dst, pitch, bytes, value, width, height, stream, true); \
	}

FILL_1D(D8, unsigned char, 1)
FILL_1D(D16, unsigned short, 2)
FILL_1D(D32, unsigned int, 4)
FILL_2D(D2D8, unsigned char, 1)
FILL_2D(D2D16, unsigned short, 2)
FILL_2D(D2D32, unsigned int, 4)
