/* Copies between contexts.  Addresses say which devices they are of. */
#include "../driver/context_stack.h"
#include "../driver/green.h"
#include "../driver/queue.h"

#include <stdbool.h>

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy);
CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *copy);
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);

/* The contexts of both sides, to wait for. */
struct sides {
	struct CUctx_st *to, *from;	/* NULL: of arrays and memory of the host that say none */
};

static CUresult side_of(CUcontext handle, struct CUctx_st **context)
{
	struct CUgreenCtx_st *green;

	return driver_context_named(handle, context, &green);
}

static CUresult sides_of(CUcontext to, CUcontext from, struct sides *sides)
{
	CUresult result = driver_ready();

	if (!result)
		result = side_of(to, &sides->to);
	return result ? result : side_of(from, &sides->from);
}

/* "Serialized with all pending and future asynchronous work into the current context, the copy's source
 * context, and the copy's destination context": behind theirs, where they are not the current one, whose
 * stream has its own order. */
static void sides_settle(const struct sides *sides)
{
	const struct CUctx_st *current = driver_context_top();

	if (sides->to && sides->to != current)
		driver_stream_drain(sides->to);
	if (sides->from && sides->from != current && sides->from != sides->to)
		driver_stream_drain(sides->from);
}

/* And before what they are given later. */
static CUresult sides_complete(const struct sides *sides, CUresult copied, CUstream stream)
{
	const struct CUctx_st *current = driver_context_top();
	bool elsewhere = (sides->to && sides->to != current) || (sides->from && sides->from != current);

	return copied || !elsewhere ? copied : cuStreamSynchronize(stream);
}

/* In the legacy stream, or in the thread's own. */
static CUresult copy_bytes(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
			   size_t bytes, CUstream stream)
{
	struct sides sides;
	CUresult result = sides_of(to_context, from_context, &sides);

	if (result)
		return result;
	sides_settle(&sides);
	result = stream == CU_STREAM_LEGACY ? cuMemcpyDtoD_v2(to, from, bytes) : cuMemcpyDtoD_v2_ptds(to, from, bytes);
	return sides_complete(&sides, result, stream);
}

DRIVER_EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
				    CUcontext from_context, size_t bytes)
{
	DRIVER_CALL;
	return copy_bytes(to, to_context, from, from_context, bytes, CU_STREAM_LEGACY);
}

DRIVER_EXPORT CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
					 CUcontext from_context, size_t bytes)
{
	DRIVER_CALL;
	return copy_bytes(to, to_context, from, from_context, bytes, CU_STREAM_PER_THREAD);
}

DRIVER_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
					 CUcontext from_context, size_t bytes, CUstream stream)
{
	DRIVER_CALL;
	struct sides sides;
	CUresult result = sides_of(to_context, from_context, &sides);

	return result ? result : cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}

/* ---- boxes ---- */

static CUresult read_box(const CUDA_MEMCPY3D_PEER *peer, CUDA_MEMCPY3D *copy, struct sides *sides)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!peer)
		return CUDA_ERROR_INVALID_VALUE;
	*sides = (struct sides){ NULL, NULL };
	if (peer->dstContext)
		result = side_of(peer->dstContext, &sides->to);
	if (!result && peer->srcContext)
		result = side_of(peer->srcContext, &sides->from);
	if (result)
		return result;
	*copy = (CUDA_MEMCPY3D){
		.srcXInBytes = peer->srcXInBytes, .srcY = peer->srcY, .srcZ = peer->srcZ,
		.srcLOD = peer->srcLOD, .srcMemoryType = peer->srcMemoryType, .srcHost = peer->srcHost,
		.srcDevice = peer->srcDevice, .srcArray = peer->srcArray, .srcPitch = peer->srcPitch,
		.srcHeight = peer->srcHeight,
		.dstXInBytes = peer->dstXInBytes, .dstY = peer->dstY, .dstZ = peer->dstZ,
		.dstLOD = peer->dstLOD, .dstMemoryType = peer->dstMemoryType, .dstHost = peer->dstHost,
		.dstDevice = peer->dstDevice, .dstArray = peer->dstArray, .dstPitch = peer->dstPitch,
		.dstHeight = peer->dstHeight,
		.WidthInBytes = peer->WidthInBytes, .Height = peer->Height, .Depth = peer->Depth,
	};
	return CUDA_SUCCESS;
}

static CUresult copy_box(const CUDA_MEMCPY3D_PEER *peer, CUstream stream)
{
	CUDA_MEMCPY3D copy;
	struct sides sides;
	CUresult result = read_box(peer, &copy, &sides);

	if (result)
		return result;
	sides_settle(&sides);
	result = stream == CU_STREAM_LEGACY ? cuMemcpy3D_v2(&copy) : cuMemcpy3D_v2_ptds(&copy);
	return sides_complete(&sides, result, stream);
}

DRIVER_EXPORT CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *peer)
{
	DRIVER_CALL;
	return copy_box(peer, CU_STREAM_LEGACY);
}

DRIVER_EXPORT CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER *peer)
{
	DRIVER_CALL;
	return copy_box(peer, CU_STREAM_PER_THREAD);
}

DRIVER_EXPORT CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *peer, CUstream stream)
{
	DRIVER_CALL;
	CUDA_MEMCPY3D copy;
	struct sides sides;
	CUresult result = read_box(peer, &copy, &sides);

	return result ? result : cuMemcpy3DAsync_v2(&copy, stream);
}
