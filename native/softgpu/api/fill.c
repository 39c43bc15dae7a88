#include "../driver/fill.h"

#include "../driver/capture.h"
#include "../driver/stream.h"

static CUresult fill(CUstream handle, CUdeviceptr to, size_t pitch, unsigned element,
		     uint32_t value, size_t width, size_t height, bool async)
{
	const CUDA_MEMSET_NODE_PARAMS params = { to, pitch, value, element, width, height };
	struct CUstream_st *stream;
	bool capturing;
	CUresult result = driver_stream_enter_or_capture(handle, &stream, &capturing);

	if (!result && capturing && !async)
		result = driver_capture_refuse(stream);
	if (result)
		return result;
	if (!width || !height)
		return CUDA_SUCCESS;
	result = driver_fill_check(&params);
	if (result)
		return result;
	return capturing ? driver_capture_fill(stream, &params) :
			   driver_fill_submit(stream, &params, async);
}

/* The four forms of each width: legacy and per-thread default stream, in the
 * order the API has them. */
#define DEFINE_FILL(bits, type)									\
DRIVER_EXPORT CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count)		\
{												\
	DRIVER_CALL;										\
	return fill(NULL, to, 0, (bits) / 8, value, count, 1, false);				\
}												\
DRIVER_EXPORT CUresult cuMemsetD##bits##_v2_ptds(CUdeviceptr to, type value, size_t count)	\
{												\
	DRIVER_CALL;										\
	return fill(CU_STREAM_PER_THREAD, to, 0, (bits) / 8, value, count, 1, false);		\
}												\
DRIVER_EXPORT CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count,	\
					      CUstream stream)					\
{												\
	DRIVER_CALL;										\
	return fill(stream, to, 0, (bits) / 8, value, count, 1, true);				\
}												\
DRIVER_EXPORT CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value,	\
					      size_t width, size_t height)			\
{												\
	DRIVER_CALL;										\
	return fill(NULL, to, pitch, (bits) / 8, value, width, height, false);			\
}												\
DRIVER_EXPORT CUresult cuMemsetD2D##bits##_v2_ptds(CUdeviceptr to, size_t pitch, type value,	\
						   size_t width, size_t height)			\
{												\
	DRIVER_CALL;										\
	return fill(CU_STREAM_PER_THREAD, to, pitch, (bits) / 8, value, width, height, false);	\
}												\
DRIVER_EXPORT CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value,	\
						size_t width, size_t height, CUstream stream)	\
{												\
	DRIVER_CALL;										\
	return fill(stream, to, pitch, (bits) / 8, value, width, height, true);		\
}

DEFINE_FILL(8, unsigned char)
DEFINE_FILL(16, unsigned short)
DEFINE_FILL(32, unsigned int)
