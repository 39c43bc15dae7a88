/* Fills: checked here, posted; CUDA's own return before the device is done. */
#include "client.h"

static CUresult fill(CUdeviceptr device, size_t pitch, uint32_t element, uint32_t value,
		     size_t width, size_t height, CUstream stream)
{
	struct wire_fill request = {
		.device = device,
		.pitch = pitch,
		.width = width,
		.height = height,
		.element = element,
		.value = value,
	};
	CUresult result = client_enter();

	if (result == CUDA_SUCCESS)
		result = client_stream_wire(stream, &request.stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (!width || !height)
		return CUDA_SUCCESS;
	if (device % element || pitch % element || width > SIZE_MAX / element ||
	    (height > 1 && pitch < width * element))
		return CUDA_ERROR_INVALID_VALUE;
	result = client_memory_check(device, (height - 1) * pitch + width * element);
	if (result != CUDA_SUCCESS)
		return result;
	client_stream_pace(request.stream, CLIENT_WEIGHT_WORK, 0);
	return client_post(WIRE_OP_FILL, &request, sizeof(request), NULL, 0);
}

#define FILL_1D(name, type, bytes) \
	CUresult cuMemset##name##_v2(CUdeviceptr dst, type value, size_t n) \
	{ \
		return fill(dst, 0, bytes, value, n, 1, NULL); \
	} \
	CUresult cuMemset##name##Async(CUdeviceptr dst, type value, size_t n, CUstream stream) \
	{ \
		return fill(dst, 0, bytes, value, n, 1, stream); \
	}

#define FILL_2D(name, type, bytes) \
	CUresult cuMemset##name##_v2(CUdeviceptr dst, size_t pitch, type value, size_t width, \
				     size_t height) \
	{ \
		return fill(dst, pitch, bytes, value, width, height, NULL); \
	} \
	CUresult cuMemset##name##Async(CUdeviceptr dst, size_t pitch, type value, size_t width, \
				       size_t height, CUstream stream) \
	{ \
		return fill(dst, pitch, bytes, value, width, height, stream); \
	}

FILL_1D(D8, unsigned char, 1)
FILL_1D(D16, unsigned short, 2)
FILL_1D(D32, unsigned int, 4)
FILL_2D(D2D8, unsigned char, 1)
FILL_2D(D2D16, unsigned short, 2)
FILL_2D(D2D32, unsigned int, 4)
