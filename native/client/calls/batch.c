/* Batches of copies, and copies between contexts: the same as the copies one by one.  CUDA
 * leaves the order within a batch open. */
#include "../ground/thread.h"
#include "../ground/trace.h"
#include "../handles/streams.h"
#include "array.h"
#include "copy.h"
#include "details.h"

/* What CUDA checks of a batch before it begins with any of it. */
static CUresult batch_check(const CUmemcpyAttributes *attrs, const size_t *attrIdxs, size_t numAttrs,
			    size_t count)
{
	if (!numAttrs || numAttrs > count || !attrs || !attrIdxs || attrIdxs[0])
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < numAttrs; i++) {
		if (i && (attrIdxs[i] <= attrIdxs[i - 1] || attrIdxs[i] >= count))
			return CUDA_ERROR_INVALID_VALUE;
		if (attrs[i].srcAccessOrder <= CU_MEMCPY_SRC_ACCESS_ORDER_INVALID ||
		    attrs[i].srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY)
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
			    CUmemcpyAttributes *attrs, size_t *attrIdxs, size_t numAttrs,
			    size_t *failIdx, CUstream hStream)
{
	CUresult result = client_enter_stream(hStream);

	if (failIdx)
		*failIdx = SIZE_MAX;
	if (result != CUDA_SUCCESS)
		return result;
	/* Neither of the streams without a name. */
	if (!dsts || !srcs || !sizes || !count || !hStream || hStream == CU_STREAM_LEGACY)
		return CUDA_ERROR_INVALID_VALUE;
	result = batch_check(attrs, attrIdxs, numAttrs, count);
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		if (!dsts[i] || !srcs[i] || !sizes[i])
			result = CUDA_ERROR_INVALID_VALUE;
		else
			result = cuMemcpyAsync(dsts[i], srcs[i], sizes[i], hStream);
		if (result != CUDA_SUCCESS && failIdx)
			*failIdx = i;
	}
	return result;
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
			       CUmemcpyAttributes *attrs, size_t *attrIdxs, size_t numAttrs,
			       CUstream hStream)
{
	return cuMemcpyBatchAsync(dsts, srcs, sizes, count, attrs, attrIdxs, numAttrs, NULL, hStream);
}

static CUresult texel_bytes(CUarray array, size_t *bytes)
{
	CUDA_ARRAY3D_DESCRIPTOR descriptor;
	CUresult result = cuArray3DGetDescriptor_v2(&descriptor, array);

	if (result != CUDA_SUCCESS)
		return result;
	*bytes = client_texel_bytes(descriptor.Format, descriptor.NumChannels);
	return *bytes ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult copy_box(const CUDA_MEMCPY3D_BATCH_OP *op, CUstream stream)
{
	const CUmemcpy3DOperand *from = &op->src, *to = &op->dst;
	CUDA_MEMCPY3D copy = {
		.WidthInBytes = op->extent.width,
		.Height = op->extent.height,
		.Depth = op->extent.depth,
	};
	size_t texel = 1;
	CUresult result = CUDA_SUCCESS;

	if (from->type == CU_MEMCPY_OPERAND_TYPE_ARRAY)
		result = texel_bytes(from->op.array.array, &texel);
	else if (to->type == CU_MEMCPY_OPERAND_TYPE_ARRAY)
		result = texel_bytes(to->op.array.array, &texel);
	if (result != CUDA_SUCCESS)
		return result;
	/* Lengths are in texels where an array takes part, in bytes where none does. */
	copy.WidthInBytes *= texel;
	if (from->type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
		copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
		copy.srcArray = from->op.array.array;
		copy.srcXInBytes = from->op.array.offset.x * texel;
		copy.srcY = from->op.array.offset.y;
		copy.srcZ = from->op.array.offset.z;
	} else {
		copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
		copy.srcDevice = from->op.ptr.ptr;
		/* Without a length rows lie packed, and so do layers. */
		copy.srcPitch = from->op.ptr.rowLength ? from->op.ptr.rowLength * texel : copy.WidthInBytes;
		copy.srcHeight = from->op.ptr.layerHeight ? from->op.ptr.layerHeight : copy.Height;
	}
	if (to->type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
		copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
		copy.dstArray = to->op.array.array;
		copy.dstXInBytes = to->op.array.offset.x * texel;
		copy.dstY = to->op.array.offset.y;
		copy.dstZ = to->op.array.offset.z;
	} else {
		copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
		copy.dstDevice = to->op.ptr.ptr;
		copy.dstPitch = to->op.ptr.rowLength ? to->op.ptr.rowLength * texel : copy.WidthInBytes;
		copy.dstHeight = to->op.ptr.layerHeight ? to->op.ptr.layerHeight : copy.Height;
	}
	result = cuMemcpy3DAsync_v2(&copy, stream);
	if (result == CUDA_SUCCESS && !client_trace_is_off())
		client_trace_part(copy.dstMemoryType == CU_MEMORYTYPE_ARRAY ? CLIENT_TRACE_ARRAY : copy.dstDevice,
				  copy.srcMemoryType == CU_MEMORYTYPE_ARRAY ? CLIENT_TRACE_ARRAY : copy.srcDevice,
				  copy.WidthInBytes, copy.Height, copy.Depth);
	return result;
}

CUresult cuMemcpy3DBatchAsync(size_t numParams, CUDA_MEMCPY3D_BATCH_OP *opList, size_t *failIdx,
			      unsigned long long flags, CUstream hStream)
{
	CUresult result = client_enter_stream(hStream);

	if (failIdx)
		*failIdx = SIZE_MAX;
	if (result != CUDA_SUCCESS)
		return result;
	if (!numParams || !opList || flags || !hStream || hStream == CU_STREAM_LEGACY)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < numParams && result == CUDA_SUCCESS; i++) {
		result = copy_box(&opList[i], hStream);
		if (result != CUDA_SUCCESS && failIdx)
			*failIdx = i;
	}
	return result;
}

CUresult cuMemcpy3DBatchAsync_v2(size_t numParams, CUDA_MEMCPY3D_BATCH_OP *opList,
				 unsigned long long flags, CUstream hStream)
{
	return cuMemcpy3DBatchAsync(numParams, opList, NULL, flags, hStream);
}

/* ---- between contexts: addresses say which device, the contexts are checked ---- */

static CUresult copy_peer(const CUDA_MEMCPY3D_PEER *peer, CUstream stream, bool async)
{
	CUDA_MEMCPY3D copy;
	CUresult result;

	if (!peer)
		return CUDA_ERROR_INVALID_VALUE;
	if ((peer->srcContext && !client_context_get(peer->srcContext)) ||
	    (peer->dstContext && !client_context_get(peer->dstContext)))
		return CUDA_ERROR_INVALID_CONTEXT;
	copy = (CUDA_MEMCPY3D){
		.srcXInBytes = peer->srcXInBytes,
		.srcY = peer->srcY,
		.srcZ = peer->srcZ,
		.srcLOD = peer->srcLOD,
		.srcMemoryType = peer->srcMemoryType,
		.srcHost = peer->srcHost,
		.srcDevice = peer->srcDevice,
		.srcArray = peer->srcArray,
		.srcPitch = peer->srcPitch,
		.srcHeight = peer->srcHeight,
		.dstXInBytes = peer->dstXInBytes,
		.dstY = peer->dstY,
		.dstZ = peer->dstZ,
		.dstLOD = peer->dstLOD,
		.dstMemoryType = peer->dstMemoryType,
		.dstHost = peer->dstHost,
		.dstDevice = peer->dstDevice,
		.dstArray = peer->dstArray,
		.dstPitch = peer->dstPitch,
		.dstHeight = peer->dstHeight,
		.WidthInBytes = peer->WidthInBytes,
		.Height = peer->Height,
		.Depth = peer->Depth,
	};
	if (async)
		return cuMemcpy3DAsync_v2(&copy, stream);
	result = client_peer_settle(peer->dstContext, peer->srcContext);
	if (result == CUDA_SUCCESS)
		result = cuMemcpy3D_v2(&copy);
	return result == CUDA_SUCCESS ? client_peer_complete(peer->dstContext, peer->srcContext) : result;
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy)
{
	return copy_peer(pCopy, NULL, false);
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream)
{
	return copy_peer(pCopy, hStream, true);
}

/* ---- one copy with what a batch says of each: hints for the driver, which stay hints ---- */

CUresult cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t size,
				     CUmemcpyAttributes *attr, CUstream hStream)
{
	size_t first = 0;

	return cuMemcpyBatchAsync(&dst, &src, &size, 1, attr, &first, 1, NULL, hStream);
}

CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags,
				       CUstream hStream)
{
	return cuMemcpy3DBatchAsync(1, op, NULL, flags, hStream);
}
