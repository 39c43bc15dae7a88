#include "../driver/copy.h"

#include "../driver/capture.h"
#include "../driver/stream.h"

#define HOST CU_MEMORYTYPE_HOST
#define DEVICE CU_MEMORYTYPE_DEVICE
#define UNIFIED CU_MEMORYTYPE_UNIFIED

static CUresult copy_places(CUstream handle, const struct copy_box *box, const struct copy_place *to,
			    const struct copy_place *from, bool async)
{
	struct copy_sides sides;
	struct CUstream_st *stream;
	bool capturing;
	CUresult result = driver_stream_enter_or_capture(handle, &stream, &capturing);

	if (!result && !async)
		result = capturing ? driver_capture_refuse(stream) : driver_capture_unsafe();
	if (!result)
		result = driver_copy_settle(box, to, from, &sides);
	if (result || sides.is_empty)
		return result;
	if (capturing) {
		CUDA_MEMCPY3D copy;

		driver_copy_describe(box, to, from, &copy);
		return driver_capture_copy(stream, &copy);
	}
	return driver_copy_submit(stream, box, &sides, async);
}

static struct copy_place in_array(CUarray array, size_t offset)
{
	return (struct copy_place){ .type = CU_MEMORYTYPE_ARRAY, .array = array, .x = offset };
}

static struct copy_place in_memory(CUmemorytype type, uintptr_t address)
{
	return (struct copy_place){ .type = type, .host = (const void *)address, .device = address };
}

static CUresult copy_row(CUstream stream, struct copy_place to, struct copy_place from, size_t bytes, bool async)
{
	struct copy_box box = { bytes, 1, 1 };

	return copy_places(stream, &box, &to, &from, async);
}

static CUresult copy_line(CUstream stream, uintptr_t to, CUmemorytype to_type, uintptr_t from,
			  CUmemorytype from_type, size_t bytes, bool async)
{
	return copy_row(stream, in_memory(to_type, to), in_memory(from_type, from), bytes, async);
}

static CUresult copy_2d(const CUDA_MEMCPY2D *copy, CUstream stream, bool async)
{
	struct copy_place to, from;
	struct copy_box box;

	if (!copy)
		return CUDA_ERROR_INVALID_VALUE;
	box = (struct copy_box){ copy->WidthInBytes, copy->Height, 1 };
	from = (struct copy_place){ copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcArray,
			       copy->srcXInBytes, copy->srcY, 0, copy->srcPitch, 0 };
	to = (struct copy_place){ copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray,
			     copy->dstXInBytes, copy->dstY, 0, copy->dstPitch, 0 };
	return copy_places(stream, &box, &to, &from, async);
}

static CUresult copy_3d(const CUDA_MEMCPY3D *copy, CUstream stream, bool async)
{
	struct copy_place to, from;
	struct copy_box box;
	CUresult result = driver_copy_read(copy, &box, &to, &from);

	return result ? result : copy_places(stream, &box, &to, &from, async);
}

/* ---- one dimension ---- */

DRIVER_EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	DRIVER_CALL;
	return copy_line(NULL, to, UNIFIED, from, UNIFIED, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	DRIVER_CALL;
	return copy_line(CU_STREAM_PER_THREAD, to, UNIFIED, from, UNIFIED, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
				     CUstream stream)
{
	DRIVER_CALL;
	return copy_line(stream, to, UNIFIED, from, UNIFIED, bytes, true);
}

DRIVER_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
	DRIVER_CALL;
	return copy_line(NULL, to, DEVICE, (uintptr_t)from, HOST, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes)
{
	DRIVER_CALL;
	return copy_line(CU_STREAM_PER_THREAD, to, DEVICE, (uintptr_t)from, HOST, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes,
					    CUstream stream)
{
	DRIVER_CALL;
	return copy_line(stream, to, DEVICE, (uintptr_t)from, HOST, bytes, true);
}

DRIVER_EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
	DRIVER_CALL;
	return copy_line(NULL, (uintptr_t)to, HOST, from, DEVICE, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes)
{
	DRIVER_CALL;
	return copy_line(CU_STREAM_PER_THREAD, (uintptr_t)to, HOST, from, DEVICE, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes,
					    CUstream stream)
{
	DRIVER_CALL;
	return copy_line(stream, (uintptr_t)to, HOST, from, DEVICE, bytes, true);
}

DRIVER_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	DRIVER_CALL;
	return copy_line(NULL, to, DEVICE, from, DEVICE, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	DRIVER_CALL;
	return copy_line(CU_STREAM_PER_THREAD, to, DEVICE, from, DEVICE, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
					    CUstream stream)
{
	DRIVER_CALL;
	return copy_line(stream, to, DEVICE, from, DEVICE, bytes, true);
}

/* ---- one dimension of an array ---- */

/* The forms of each direction: legacy and per-thread default stream. */
#define DEFINE_ARRAY_COPY(name, parameters, to, from)						\
DRIVER_EXPORT CUresult name##_v2 parameters							\
{												\
	DRIVER_CALL;										\
	return copy_row(NULL, to, from, bytes, false);						\
}												\
DRIVER_EXPORT CUresult name##_v2_ptds parameters						\
{												\
	DRIVER_CALL;										\
	return copy_row(CU_STREAM_PER_THREAD, to, from, bytes, false);				\
}

DEFINE_ARRAY_COPY(cuMemcpyAtoA, (CUarray to, size_t at, CUarray from, size_t offset, size_t bytes),
		  in_array(to, at), in_array(from, offset))
DEFINE_ARRAY_COPY(cuMemcpyAtoD, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes),
		  in_memory(DEVICE, to), in_array(from, offset))
DEFINE_ARRAY_COPY(cuMemcpyDtoA, (CUarray to, size_t at, CUdeviceptr from, size_t bytes),
		  in_array(to, at), in_memory(DEVICE, from))
DEFINE_ARRAY_COPY(cuMemcpyAtoH, (void *to, CUarray from, size_t offset, size_t bytes),
		  in_memory(HOST, (uintptr_t)to), in_array(from, offset))
DEFINE_ARRAY_COPY(cuMemcpyHtoA, (CUarray to, size_t at, const void *from, size_t bytes),
		  in_array(to, at), in_memory(HOST, (uintptr_t)from))

DRIVER_EXPORT CUresult cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t offset, size_t bytes,
					    CUstream stream)
{
	DRIVER_CALL;
	return copy_row(stream, in_memory(HOST, (uintptr_t)to), in_array(from, offset), bytes, true);
}

DRIVER_EXPORT CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t at, const void *from, size_t bytes,
					    CUstream stream)
{
	DRIVER_CALL;
	return copy_row(stream, in_array(to, at), in_memory(HOST, (uintptr_t)from), bytes, true);
}

/* ---- boxes ---- */

DRIVER_EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy)
{
	DRIVER_CALL;
	return copy_2d(copy, NULL, false);
}

DRIVER_EXPORT CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *copy)
{
	DRIVER_CALL;
	return copy_2d(copy, CU_STREAM_PER_THREAD, false);
}

DRIVER_EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy)
{
	DRIVER_CALL;
	return copy_2d(copy, NULL, false);
}

DRIVER_EXPORT CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *copy)
{
	DRIVER_CALL;
	return copy_2d(copy, CU_STREAM_PER_THREAD, false);
}

DRIVER_EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream)
{
	DRIVER_CALL;
	return copy_2d(copy, stream, true);
}

DRIVER_EXPORT CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy)
{
	DRIVER_CALL;
	return copy_3d(copy, NULL, false);
}

DRIVER_EXPORT CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *copy)
{
	DRIVER_CALL;
	return copy_3d(copy, CU_STREAM_PER_THREAD, false);
}

DRIVER_EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream)
{
	DRIVER_CALL;
	return copy_3d(copy, stream, true);
}
