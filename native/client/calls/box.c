/* Copies of two and three dimensions, of arrays too, whichever server has them. */
#include "../across/across.h"
#include "../across/helpers.h"
#include "../across/relay.h"
#include "../addresses/plane.h"
#include "../exchange/exchange.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "../managed/managed.h"
#include "array.h"
#include "copy.h"

#include <stdlib.h>

/* What a copy takes of the rows of one side, in bytes, rows and slices. */
struct box {
	size_t x, y, z;
	size_t width, height, depth;
};

/* A side's pitch and the height of its slices as they are meant, where the program left one out;
 * CUDA_ERROR_INVALID_VALUE where rows or slices would lie in each other. */
static CUresult rows_settle(const struct box *box, size_t *pitch, size_t *slice_height)
{
	size_t least, rows;

	if (__builtin_add_overflow(box->x, box->width, &least) || __builtin_add_overflow(box->y, box->height, &rows))
		return CUDA_ERROR_INVALID_VALUE;
	/* Without a pitch where no second row makes it matter. */
	if (!*pitch && box->height <= 1 && box->depth <= 1 && !box->y && !box->z)
		*pitch = least;
	if (!*slice_height)
		*slice_height = rows;
	return *pitch < least || (box->depth > 1 && *slice_height < rows) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* ---- arrays ---- */

/* Between two servers: a slice at a time through this process. */
static CUresult array_copy_staged(const CUDA_MEMCPY3D *copy)
{
	size_t slice = copy->WidthInBytes * copy->Height;
	uint8_t *staged = malloc(slice);
	CUresult result = staged ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	for (size_t z = 0; z < copy->Depth && result == CUDA_SUCCESS; z++) {
		CUDA_MEMCPY3D out = *copy, in = *copy;

		out.Depth = in.Depth = 1;
		out.srcZ += z;
		out.dstMemoryType = in.srcMemoryType = CU_MEMORYTYPE_HOST;
		out.dstHost = staged;
		in.srcHost = staged;
		out.dstPitch = in.srcPitch = copy->WidthInBytes;
		out.dstHeight = in.srcHeight = copy->Height;
		out.dstXInBytes = out.dstY = out.dstZ = 0;
		in.srcXInBytes = in.srcY = in.srcZ = 0;
		in.dstZ += z;
		/* The bytes here are packed, whatever slices look like on the other side. */
		if (!out.srcHeight)
			out.srcHeight = copy->Height;
		if (!in.dstHeight)
			in.dstHeight = copy->Height;
		result = cuMemcpy3D_v2(&out);
		if (result == CUDA_SUCCESS)
			result = cuMemcpy3D_v2(&in);
	}
	free(staged);
	return result;
}

/* In a stream that is not of the arrays' server: when it has come there, and before the
 * call returns. */
static CUresult array_copy_across(const CUDA_MEMCPY3D *copy, uint64_t stream,
				  struct client_session *source, struct client_session *target)
{
	struct client_session *one = source ? source : target;
	struct across_helper *helper;
	CUresult result = client_across_permit(stream, "a copy");

	if (result == CUDA_SUCCESS)
		result = client_across_settle(stream, source ? client_session_context(source) : NULL,
					      target ? client_session_context(target) : NULL);
	if (result != CUDA_SUCCESS)
		return result;
	if (source && target && source != target)
		return array_copy_staged(copy);
	result = client_helper_take(client_session_context(one), &helper);
	if (result != CUDA_SUCCESS)
		return result;
	result = client_array_copy_at(copy, client_helper_wire(helper), false);
	client_helper_give(helper);
	return result;
}

/* Pitches and heights as they are meant; of arrays there are none. */
static CUresult sides_settle(CUDA_MEMCPY3D *copy)
{
	const struct box source = { copy->srcXInBytes, copy->srcY, copy->srcZ, copy->WidthInBytes, copy->Height,
					   copy->Depth };
	const struct box target = { copy->dstXInBytes, copy->dstY, copy->dstZ, copy->WidthInBytes, copy->Height,
					   copy->Depth };
	CUresult result = CUDA_SUCCESS;

	if (copy->srcMemoryType == CU_MEMORYTYPE_ARRAY)
		copy->srcPitch = copy->srcHeight = 0;
	else
		result = rows_settle(&source, &copy->srcPitch, &copy->srcHeight);
	if (result != CUDA_SUCCESS)
		return result;
	if (copy->dstMemoryType == CU_MEMORYTYPE_ARRAY)
		copy->dstPitch = copy->dstHeight = 0;
	else
		result = rows_settle(&target, &copy->dstPitch, &copy->dstHeight);
	return result;
}

static CUresult array_copy(CUDA_MEMCPY3D *copy, CUstream hStream, bool async)
{
	struct client_session *at, *source, *target;
	uint64_t stream;
	CUresult result = client_stream_enter(hStream, &stream);

	if (result == CUDA_SUCCESS)
		result = sides_settle(copy);
	if (result != CUDA_SUCCESS)
		return result;
	if (!copy->WidthInBytes || !copy->Height || !copy->Depth)
		return CUDA_SUCCESS;
	if (copy->WidthInBytes > UINT32_MAX || copy->Height > UINT32_MAX ||
	    copy->Depth > UINT32_MAX || copy->srcPitch > UINT32_MAX || copy->dstPitch > UINT32_MAX ||
	    copy->srcHeight > UINT32_MAX || copy->dstHeight > UINT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	if (client_alone())
		return client_array_copy_at(copy, stream, async);
	at = client_stream_session(stream);
	source = client_side_session(copy->srcMemoryType, copy->srcArray, copy->srcHost, copy->srcDevice);
	target = client_side_session(copy->dstMemoryType, copy->dstArray, copy->dstHost, copy->dstDevice);
	if ((!source || source == at) && (!target || target == at))
		return client_array_copy_at(copy, stream, async);
	return array_copy_across(copy, stream, source, target);
}

/* Managed memory is copied where it is, however it is named. */
static CUresult array_copy_any(const CUDA_MEMCPY3D *given, CUstream stream, bool async)
{
	const uint64_t source = (uint64_t)(uintptr_t)given->srcHost;
	const uint64_t target = (uint64_t)(uintptr_t)given->dstHost;
	CUDA_MEMCPY3D copy = *given;
	CUresult result;
	uint64_t wire;

	if (!client_managed_any() || client_stream_wire(stream, &wire) != CUDA_SUCCESS)
		return array_copy(&copy, stream, async);
	if (copy.srcMemoryType == CU_MEMORYTYPE_HOST && client_managed_at(source)) {
		copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
		copy.srcDevice = source;
	}
	if (copy.dstMemoryType == CU_MEMORYTYPE_HOST && client_managed_at(target)) {
		copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
		copy.dstDevice = target;
	}
	result = client_managed_before(wire, false);
	if (result == CUDA_SUCCESS)
		result = array_copy(&copy, stream, async);
	client_managed_after(wire);
	if (result == CUDA_SUCCESS && !async) {
		const struct wire_stream_synchronize request = { .stream = wire };

		result = client_call(WIRE_OP_STREAM_SYNCHRONIZE, &request, sizeof(request), NULL, 0);
	}
	return result;
}

/* ---- arrays of one dimension ---- */

static CUresult copy_line(const CUDA_MEMCPY3D *ends, size_t bytes, CUstream stream, bool async)
{
	CUDA_MEMCPY3D copy = *ends;

	copy.WidthInBytes = bytes;
	copy.Height = 1;
	copy.Depth = 1;
	return array_copy_any(&copy, stream, async);
}

CUresult cuMemcpyAtoA_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
			 size_t ByteCount)
{
	const CUDA_MEMCPY3D copy = {
		.srcMemoryType = CU_MEMORYTYPE_ARRAY,
		.srcArray = srcArray,
		.srcXInBytes = srcOffset,
		.dstMemoryType = CU_MEMORYTYPE_ARRAY,
		.dstArray = dstArray,
		.dstXInBytes = dstOffset,
	};

	return copy_line(&copy, ByteCount, NULL, false);
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
	const CUDA_MEMCPY3D copy = {
		.srcMemoryType = CU_MEMORYTYPE_ARRAY,
		.srcArray = srcArray,
		.srcXInBytes = srcOffset,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = dstDevice,
	};

	return copy_line(&copy, ByteCount, NULL, false);
}

CUresult cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount)
{
	const CUDA_MEMCPY3D copy = {
		.srcMemoryType = CU_MEMORYTYPE_DEVICE,
		.srcDevice = srcDevice,
		.dstMemoryType = CU_MEMORYTYPE_ARRAY,
		.dstArray = dstArray,
		.dstXInBytes = dstOffset,
	};

	return copy_line(&copy, ByteCount, NULL, false);
}

static CUresult array_to_host(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
			      CUstream stream, bool async)
{
	const CUDA_MEMCPY3D copy = {
		.srcMemoryType = CU_MEMORYTYPE_ARRAY,
		.srcArray = srcArray,
		.srcXInBytes = srcOffset,
		.dstMemoryType = CU_MEMORYTYPE_HOST,
		.dstHost = dstHost,
	};

	return copy_line(&copy, ByteCount, stream, async);
}

static CUresult host_to_array(CUarray dstArray, size_t dstOffset, const void *srcHost,
			      size_t ByteCount, CUstream stream, bool async)
{
	const CUDA_MEMCPY3D copy = {
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = srcHost,
		.dstMemoryType = CU_MEMORYTYPE_ARRAY,
		.dstArray = dstArray,
		.dstXInBytes = dstOffset,
	};

	return copy_line(&copy, ByteCount, stream, async);
}

CUresult cuMemcpyAtoH_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
	return array_to_host(dstHost, srcArray, srcOffset, ByteCount, NULL, false);
}

CUresult cuMemcpyAtoHAsync_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
			      CUstream hStream)
{
	return array_to_host(dstHost, srcArray, srcOffset, ByteCount, hStream, true);
}

CUresult cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount)
{
	return host_to_array(dstArray, dstOffset, srcHost, ByteCount, NULL, false);
}

CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void *srcHost,
			      size_t ByteCount, CUstream hStream)
{
	return host_to_array(dstArray, dstOffset, srcHost, ByteCount, hStream, true);
}

/* ---- memory ---- */

/* One side of CUDA_MEMCPY3D, before its offsets are applied. */
struct side {
	CUmemorytype type;
	const void *host;
	CUdeviceptr device;
	size_t x;
	size_t y;
	size_t z;
	size_t pitch;
	size_t slice_height;
};

static CUresult side_plane(struct side *side, size_t width, size_t height, size_t depth,
			   struct client_plane *plane)
{
	CUresult result;
	uint64_t base;

	switch (side->type) {
	case CU_MEMORYTYPE_HOST:
		base = (uint64_t)(uintptr_t)side->host;
		plane->kind = client_host_kind(side->host);
		break;
	case CU_MEMORYTYPE_DEVICE:
		base = side->device;
		plane->kind = client_device_kind(side->device);
		break;
	case CU_MEMORYTYPE_UNIFIED:
		base = side->device;
		plane->kind = client_kind_at(side->device);
		break;
	case CU_MEMORYTYPE_ARRAY:
		return CUDA_ERROR_NOT_SUPPORTED;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	plane->pitch = side->pitch;
	result = rows_settle(&(struct box){ side->x, side->y, side->z, width, height, depth },
				    &plane->pitch, &side->slice_height);
	plane->address = base +
			 (side->z * side->slice_height + side->y) * plane->pitch + side->x;
	return result;
}

static CUresult copy_box(struct side *to, struct side *from, size_t width, size_t height,
			 size_t depth, CUstream stream, bool async)
{
	const struct client_extent extent = { .width = width, .height = height };
	struct client_plane target, source;
	uint64_t wire;
	CUresult result = client_stream_enter(stream, &wire);

	if (result == CUDA_SUCCESS)
		result = side_plane(to, width, height, depth, &target);
	if (result == CUDA_SUCCESS)
		result = side_plane(from, width, height, depth, &source);
	for (size_t z = 0; z < depth && result == CUDA_SUCCESS; z++) {
		/* Only the last slice of a synchronous copy has to wait. */
		result = client_copy_rows(&target, &source, &extent, wire, async || z + 1 < depth);
		target.address += to->slice_height * target.pitch;
		source.address += from->slice_height * source.pitch;
	}
	return result;
}

static CUresult copy_3d(const CUDA_MEMCPY3D *copy, CUstream stream, bool async)
{
	if (!copy || copy->srcLOD || copy->dstLOD)
		return CUDA_ERROR_INVALID_VALUE;
	if (copy->srcMemoryType == CU_MEMORYTYPE_ARRAY || copy->dstMemoryType == CU_MEMORYTYPE_ARRAY)
		return array_copy_any(copy, stream, async);
	struct side to = {
		.type = copy->dstMemoryType,
		.host = copy->dstHost,
		.device = copy->dstDevice,
		.x = copy->dstXInBytes,
		.y = copy->dstY,
		.z = copy->dstZ,
		.pitch = copy->dstPitch,
		.slice_height = copy->dstHeight,
	};
	struct side from = {
		.type = copy->srcMemoryType,
		.host = copy->srcHost,
		.device = copy->srcDevice,
		.x = copy->srcXInBytes,
		.y = copy->srcY,
		.z = copy->srcZ,
		.pitch = copy->srcPitch,
		.slice_height = copy->srcHeight,
	};

	return copy_box(&to, &from, copy->WidthInBytes, copy->Height, copy->Depth, stream, async);
}

/* As one slice. */
static CUresult copy_2d(const CUDA_MEMCPY2D *copy, CUstream stream, bool async)
{
	CUDA_MEMCPY3D box;

	if (!copy)
		return CUDA_ERROR_INVALID_VALUE;
	box = (CUDA_MEMCPY3D){
		.srcXInBytes = copy->srcXInBytes,
		.srcY = copy->srcY,
		.srcMemoryType = copy->srcMemoryType,
		.srcHost = copy->srcHost,
		.srcDevice = copy->srcDevice,
		.srcArray = copy->srcArray,
		.srcPitch = copy->srcPitch,
		.dstXInBytes = copy->dstXInBytes,
		.dstY = copy->dstY,
		.dstMemoryType = copy->dstMemoryType,
		.dstHost = copy->dstHost,
		.dstDevice = copy->dstDevice,
		.dstArray = copy->dstArray,
		.dstPitch = copy->dstPitch,
		.WidthInBytes = copy->WidthInBytes,
		.Height = copy->Height,
		.Depth = 1,
	};
	return copy_3d(&box, stream, async);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
	return copy_2d(pCopy, NULL, false);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
	return copy_2d(pCopy, NULL, false);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
	return copy_2d(pCopy, hStream, true);
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
	return copy_3d(pCopy, NULL, false);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
	return copy_3d(pCopy, hStream, true);
}
