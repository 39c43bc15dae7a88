/* The per-thread default stream forms (_ptsz) of functions that take a stream:
 * a NULL stream means the calling thread's own there, not the legacy one.
 * (cuda.h, CUDA_API_PER_THREAD_DEFAULT_STREAM) */
#include "../driver/abi.h"

#include <stddef.h>

/* The forms that they stand on, each in the file of its noun. */
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags);
CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
		unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z,
		unsigned int shared, CUstream stream, void **params, void **extra);
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int
		grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int
		block_z, unsigned int shared, CUstream stream, void **params);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument);
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *argument,
		unsigned int flags);
CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t length,
		unsigned int flags);
CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations,
		unsigned int flags);
CUresult cuStreamGetAttribute(CUstream stream, CUlaunchAttributeID id,
		CUlaunchAttributeValue *value);
CUresult cuStreamSetAttribute(CUstream stream, CUlaunchAttributeID id,
		const CUlaunchAttributeValue *value);
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
		unsigned int flags);
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
		unsigned int flags);
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
		unsigned int flags);
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
		unsigned int flags);
CUresult cuStreamCopyAttributes(CUstream to, CUstream from);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags);
CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags);
CUresult cuStreamGetPriority(CUstream stream, int *priority);
CUresult cuStreamGetId(CUstream stream, unsigned long long *id);
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, CUgreenCtx *green);
CUresult cuStreamGetDevice(CUstream stream, CUdevice *ordinal);
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status);
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id);
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
		cuuint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, size_t *count);
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status,
		cuuint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, const
		CUgraphEdgeData **edges, size_t *count);
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream
		stream);
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream
		stream);
CUresult cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t offset, size_t bytes, CUstream
		stream);
CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t at, const void *from, size_t bytes, CUstream
		stream);
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
		CUcontext from_context, size_t bytes, CUstream stream);
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream);
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream);
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *copy, CUstream stream);
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream
		stream);
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream
		stream);
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream
		stream);
CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t
		width, size_t height, CUstream stream);
CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t
		width, size_t height, CUstream stream);
CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t
		width, size_t height, CUstream stream);
CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool,
		CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream);
CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream
		stream);
CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location,
		unsigned int flags, CUstream stream);
CUresult cuStreamGetDevResource(CUstream stream, CUdevResource *resource, CUdevResourceType type);
CUresult cuEventRecord(CUevent event, CUstream stream);

static CUstream own(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

DRIVER_EXPORT CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags)
{
	return cuEventRecordWithFlags(event, own(stream), flags);
}

DRIVER_EXPORT CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
		unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z,
		unsigned int shared, CUstream stream, void **params, void **extra)
{
	return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
		own(stream), params, extra);
}

DRIVER_EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int
		grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int
		block_z, unsigned int shared, CUstream stream, void **params)
{
	return cuLaunchCooperativeKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
		shared, own(stream), params);
}

DRIVER_EXPORT CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *argument)
{
	return cuLaunchHostFunc(own(stream), function, argument);
}

DRIVER_EXPORT CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void *argument,
		unsigned int flags)
{
	return cuStreamAddCallback(own(stream), callback, argument, flags);
}

DRIVER_EXPORT CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr address, size_t length,
		unsigned int flags)
{
	return cuStreamAttachMemAsync(own(stream), address, length, flags);
}

DRIVER_EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	return cuStreamSynchronize(own(stream));
}

DRIVER_EXPORT CUresult cuStreamQuery_ptsz(CUstream stream)
{
	return cuStreamQuery(own(stream));
}

DRIVER_EXPORT CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags)
{
	return cuStreamWaitEvent(own(stream), event, flags);
}

DRIVER_EXPORT CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned int *flags)
{
	return cuStreamGetFlags(own(stream), flags);
}

DRIVER_EXPORT CUresult cuStreamGetPriority_ptsz(CUstream stream, int *priority)
{
	return cuStreamGetPriority(own(stream), priority);
}

DRIVER_EXPORT CUresult cuStreamGetId_ptsz(CUstream stream, unsigned long long *id)
{
	return cuStreamGetId(own(stream), id);
}

DRIVER_EXPORT CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *context)
{
	return cuStreamGetCtx(own(stream), context);
}

DRIVER_EXPORT CUresult cuStreamGetDevResource_ptsz(CUstream stream, CUdevResource *resource,
		CUdevResourceType type)
{
	return cuStreamGetDevResource(own(stream), resource, type);
}

DRIVER_EXPORT CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
	return cuStreamGetCtx_v2(own(stream), context, green);
}

DRIVER_EXPORT CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice *ordinal)
{
	return cuStreamGetDevice(own(stream), ordinal);
}

DRIVER_EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status)
{
	return cuStreamIsCapturing(own(stream), status);
}

DRIVER_EXPORT CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream,
		CUstreamCaptureStatus *status, cuuint64_t *id)
{
	return cuStreamGetCaptureInfo(own(stream), status, id);
}

DRIVER_EXPORT CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus *status,
		cuuint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
	return cuStreamGetCaptureInfo_v2(own(stream), status, id, graph, dependencies, count);
}

DRIVER_EXPORT CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus *status,
		cuuint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, const
		CUgraphEdgeData **edges, size_t *count)
{
	return cuStreamGetCaptureInfo_v3(own(stream), status, id, graph, dependencies, edges, count);
}

DRIVER_EXPORT CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return cuMemcpyAsync(to, from, bytes, own(stream));
}

DRIVER_EXPORT CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void *from, size_t bytes, CUstream
		stream)
{
	return cuMemcpyHtoDAsync_v2(to, from, bytes, own(stream));
}

DRIVER_EXPORT CUresult cuMemcpyDtoHAsync_v2_ptsz(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return cuMemcpyDtoHAsync_v2(to, from, bytes, own(stream));
}

DRIVER_EXPORT CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream
		stream)
{
	return cuMemcpyDtoDAsync_v2(to, from, bytes, own(stream));
}

DRIVER_EXPORT CUresult cuMemcpyAtoHAsync_v2_ptsz(void *to, CUarray from, size_t offset, size_t bytes,
						 CUstream stream)
{
	return cuMemcpyAtoHAsync_v2(to, from, offset, bytes, own(stream));
}

DRIVER_EXPORT CUresult cuMemcpyHtoAAsync_v2_ptsz(CUarray to, size_t at, const void *from, size_t bytes,
						 CUstream stream)
{
	return cuMemcpyHtoAAsync_v2(to, at, from, bytes, own(stream));
}

DRIVER_EXPORT CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
		CUcontext from_context, size_t bytes, CUstream stream)
{
	return cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, own(stream));
}

DRIVER_EXPORT CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *copy, CUstream stream)
{
	return cuMemcpy2DAsync_v2(copy, own(stream));
}

DRIVER_EXPORT CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *copy, CUstream stream)
{
	return cuMemcpy3DAsync_v2(copy, own(stream));
}

DRIVER_EXPORT CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER *copy, CUstream stream)
{
	return cuMemcpy3DPeerAsync(copy, own(stream));
}

DRIVER_EXPORT CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t count, CUstream
		stream)
{
	return cuMemsetD8Async(to, value, count, own(stream));
}

DRIVER_EXPORT CUresult cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t count, CUstream
		stream)
{
	return cuMemsetD16Async(to, value, count, own(stream));
}

DRIVER_EXPORT CUresult cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned int value, size_t count, CUstream
		stream)
{
	return cuMemsetD32Async(to, value, count, own(stream));
}

DRIVER_EXPORT CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr to, size_t pitch, unsigned char value, size_t
		width, size_t height, CUstream stream)
{
	return cuMemsetD2D8Async(to, pitch, value, width, height, own(stream));
}

DRIVER_EXPORT CUresult cuMemsetD2D16Async_ptsz(CUdeviceptr to, size_t pitch, unsigned short value, size_t
		width, size_t height, CUstream stream)
{
	return cuMemsetD2D16Async(to, pitch, value, width, height, own(stream));
}

DRIVER_EXPORT CUresult cuMemsetD2D32Async_ptsz(CUdeviceptr to, size_t pitch, unsigned int value, size_t
		width, size_t height, CUstream stream)
{
	return cuMemsetD2D32Async(to, pitch, value, width, height, own(stream));
}

DRIVER_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream stream)
{
	return cuMemAllocAsync(out, bytes, own(stream));
}

DRIVER_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t bytes, CUmemoryPool pool,
		CUstream stream)
{
	return cuMemAllocFromPoolAsync(out, bytes, pool, own(stream));
}

DRIVER_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
	return cuMemFreeAsync(address, own(stream));
}

DRIVER_EXPORT CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr address, size_t bytes, CUdevice device, CUstream
		stream)
{
	return cuMemPrefetchAsync(address, bytes, device, own(stream));
}

DRIVER_EXPORT CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr address, size_t bytes, CUmemLocation location,
		unsigned int flags, CUstream stream)
{
	return cuMemPrefetchAsync_v2(address, bytes, location, flags, own(stream));
}

DRIVER_EXPORT CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	return cuEventRecord(event, own(stream));
}

DRIVER_EXPORT CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations,
		unsigned int flags)
{
	return cuStreamBatchMemOp_v2(own(stream), count, operations, flags);
}

DRIVER_EXPORT CUresult cuStreamGetAttribute_ptsz(CUstream stream, CUlaunchAttributeID id,
		CUlaunchAttributeValue *value)
{
	return cuStreamGetAttribute(own(stream), id, value);
}

DRIVER_EXPORT CUresult cuStreamSetAttribute_ptsz(CUstream stream, CUlaunchAttributeID id,
		const CUlaunchAttributeValue *value)
{
	return cuStreamSetAttribute(own(stream), id, value);
}

DRIVER_EXPORT CUresult cuStreamWaitValue32_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint32_t value,
		unsigned int flags)
{
	return cuStreamWaitValue32_v2(own(stream), address, value, flags);
}

DRIVER_EXPORT CUresult cuStreamWaitValue64_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint64_t value,
		unsigned int flags)
{
	return cuStreamWaitValue64_v2(own(stream), address, value, flags);
}

DRIVER_EXPORT CUresult cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint32_t value,
		unsigned int flags)
{
	return cuStreamWriteValue32_v2(own(stream), address, value, flags);
}

DRIVER_EXPORT CUresult cuStreamWriteValue64_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint64_t value,
		unsigned int flags)
{
	return cuStreamWriteValue64_v2(own(stream), address, value, flags);
}

#define FIRST_NAME(name) \
	DRIVER_EXPORT __typeof__(name##_v2_ptsz) name##_ptsz __attribute__((alias(#name "_v2_ptsz")))

FIRST_NAME(cuStreamBatchMemOp);
FIRST_NAME(cuStreamWaitValue32);
FIRST_NAME(cuStreamWaitValue64);
FIRST_NAME(cuStreamWriteValue32);
FIRST_NAME(cuStreamWriteValue64);

DRIVER_EXPORT CUresult cuStreamCopyAttributes_ptsz(CUstream to, CUstream from)
{
	return cuStreamCopyAttributes(own(to), own(from));
}
