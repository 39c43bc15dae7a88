/* Functions of CUDA 2 that later ones have taken the place of: lengths of 32 bits, and
 * launches whose geometry and parameters are set one by one.  Addresses of 32 bits: narrow.c. */
#include "../ground/thread.h"
#include "../libraries/kernel.h"
#include "../libraries/library.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- lengths of 32 bits ---- */

static unsigned narrow(size_t bytes)
{
	return bytes > UINT_MAX ? UINT_MAX : (unsigned)bytes;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	size_t all;
	CUresult result;

	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	result = cuDeviceTotalMem_v2(&all, dev);
	if (result == CUDA_SUCCESS)
		*bytes = narrow(all);
	return result;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
	size_t free_bytes, total_bytes;
	CUresult result = cuMemGetInfo_v2(&free_bytes, &total_bytes);

	if (result == CUDA_SUCCESS && free)
		*free = narrow(free_bytes);
	if (result == CUDA_SUCCESS && total)
		*total = narrow(total_bytes);
	return result;
}

CUresult cuMemAllocHost(void **pp, unsigned int bytesize)
{
	return cuMemAllocHost_v2(pp, bytesize);
}

CUresult cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray)
{
	CUDA_ARRAY_DESCRIPTOR_v2 wide;

	if (!pAllocateArray)
		return CUDA_ERROR_INVALID_VALUE;
	wide = (CUDA_ARRAY_DESCRIPTOR_v2){
		.Width = pAllocateArray->Width,
		.Height = pAllocateArray->Height,
		.Format = pAllocateArray->Format,
		.NumChannels = pAllocateArray->NumChannels,
	};
	return cuArrayCreate_v2(pHandle, &wide);
}

CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *pArrayDescriptor, CUarray hArray)
{
	CUDA_ARRAY_DESCRIPTOR_v2 wide;
	CUresult result;

	if (!pArrayDescriptor)
		return CUDA_ERROR_INVALID_VALUE;
	result = cuArrayGetDescriptor_v2(&wide, hArray);
	if (result == CUDA_SUCCESS)
		*pArrayDescriptor = (CUDA_ARRAY_DESCRIPTOR_v1){
			.Width = narrow(wide.Width),
			.Height = narrow(wide.Height),
			.Format = wide.Format,
			.NumChannels = wide.NumChannels,
		};
	return result;
}

CUresult cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray)
{
	CUDA_ARRAY3D_DESCRIPTOR_v2 wide;

	if (!pAllocateArray)
		return CUDA_ERROR_INVALID_VALUE;
	wide = (CUDA_ARRAY3D_DESCRIPTOR_v2){
		.Width = pAllocateArray->Width,
		.Height = pAllocateArray->Height,
		.Depth = pAllocateArray->Depth,
		.Format = pAllocateArray->Format,
		.NumChannels = pAllocateArray->NumChannels,
		.Flags = pAllocateArray->Flags,
	};
	return cuArray3DCreate_v2(pHandle, &wide);
}

CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *pArrayDescriptor, CUarray hArray)
{
	CUDA_ARRAY3D_DESCRIPTOR_v2 wide;
	CUresult result;

	if (!pArrayDescriptor)
		return CUDA_ERROR_INVALID_VALUE;
	result = cuArray3DGetDescriptor_v2(&wide, hArray);
	if (result == CUDA_SUCCESS)
		*pArrayDescriptor = (CUDA_ARRAY3D_DESCRIPTOR_v1){
			.Width = narrow(wide.Width),
			.Height = narrow(wide.Height),
			.Depth = narrow(wide.Depth),
			.Format = wide.Format,
			.NumChannels = wide.NumChannels,
			.Flags = wide.Flags,
		};
	return result;
}

CUresult cuMemcpyAtoA(CUarray dstArray, unsigned int dstOffset, CUarray srcArray,
		      unsigned int srcOffset, unsigned int ByteCount)
{
	return cuMemcpyAtoA_v2(dstArray, dstOffset, srcArray, srcOffset, ByteCount);
}

CUresult cuMemcpyAtoH(void *dstHost, CUarray srcArray, unsigned int srcOffset, unsigned int ByteCount)
{
	return cuMemcpyAtoH_v2(dstHost, srcArray, srcOffset, ByteCount);
}

CUresult cuMemcpyAtoHAsync(void *dstHost, CUarray srcArray, unsigned int srcOffset,
			   unsigned int ByteCount, CUstream hStream)
{
	return cuMemcpyAtoHAsync_v2(dstHost, srcArray, srcOffset, ByteCount, hStream);
}

CUresult cuMemcpyHtoA(CUarray dstArray, unsigned int dstOffset, const void *srcHost,
		      unsigned int ByteCount)
{
	return cuMemcpyHtoA_v2(dstArray, dstOffset, srcHost, ByteCount);
}

CUresult cuMemcpyHtoAAsync(CUarray dstArray, unsigned int dstOffset, const void *srcHost,
			   unsigned int ByteCount, CUstream hStream)
{
	return cuMemcpyHtoAAsync_v2(dstArray, dstOffset, srcHost, ByteCount, hStream);
}

/* ---- launches piece by piece: a kernel keeps what was set for it last ---- */

static pthread_mutex_t pieces_lock = PTHREAD_MUTEX_INITIALIZER;

/* The kernel's pieces, made at first use; the lock is held. */
static CUresult pieces_of(CUfunction handle, struct client_pieces **pieces)
{
	struct client_function *function;
	CUresult result = client_enter();

	if (result == CUDA_SUCCESS)
		result = client_function_get(handle, &function);
	if (result != CUDA_SUCCESS)
		return result;
	if (!function->pieces) {
		function->pieces = calloc(1, sizeof(*function->pieces));
		if (!function->pieces)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*pieces = function->pieces;
	return CUDA_SUCCESS;
}

CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z)
{
	struct client_pieces *pieces;
	CUresult result;

	if (x <= 0 || y <= 0 || z <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&pieces_lock);
	result = pieces_of(hfunc, &pieces);
	if (result == CUDA_SUCCESS) {
		pieces->block[0] = (unsigned)x;
		pieces->block[1] = (unsigned)y;
		pieces->block[2] = (unsigned)z;
	}
	pthread_mutex_unlock(&pieces_lock);
	return result;
}

CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes)
{
	struct client_pieces *pieces;
	CUresult result;

	pthread_mutex_lock(&pieces_lock);
	result = pieces_of(hfunc, &pieces);
	if (result == CUDA_SUCCESS)
		pieces->shared_bytes = bytes;
	pthread_mutex_unlock(&pieces_lock);
	return result;
}

CUresult cuParamSetSize(CUfunction hfunc, unsigned int numbytes)
{
	struct client_pieces *pieces;
	CUresult result;

	if (numbytes > CLIENT_PIECES_BYTES)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&pieces_lock);
	result = pieces_of(hfunc, &pieces);
	if (result == CUDA_SUCCESS)
		pieces->bytes = numbytes;
	pthread_mutex_unlock(&pieces_lock);
	return result;
}

CUresult cuParamSetv(CUfunction hfunc, int offset, void *ptr, unsigned int numbytes)
{
	struct client_pieces *pieces;
	CUresult result;

	if (offset < 0 || !ptr || (unsigned)offset > CLIENT_PIECES_BYTES ||
	    numbytes > CLIENT_PIECES_BYTES - (unsigned)offset)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&pieces_lock);
	result = pieces_of(hfunc, &pieces);
	if (result == CUDA_SUCCESS)
		memcpy(pieces->parameters + offset, ptr, numbytes);
	pthread_mutex_unlock(&pieces_lock);
	return result;
}

CUresult cuParamSeti(CUfunction hfunc, int offset, unsigned int value)
{
	return cuParamSetv(hfunc, offset, &value, sizeof(value));
}

CUresult cuParamSetf(CUfunction hfunc, int offset, float value)
{
	return cuParamSetv(hfunc, offset, &value, sizeof(value));
}

CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream)
{
	struct client_pieces *pieces, now;
	size_t bytes;
	CUresult result;

	if (grid_width <= 0 || grid_height <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&pieces_lock);
	result = pieces_of(f, &pieces);
	if (result == CUDA_SUCCESS)
		now = *pieces;
	pthread_mutex_unlock(&pieces_lock);
	if (result != CUDA_SUCCESS)
		return result;
	bytes = now.bytes;
	void *extra[] = {
		CU_LAUNCH_PARAM_BUFFER_POINTER, now.parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
		CU_LAUNCH_PARAM_END,
	};

	return cuLaunchKernel(f, (unsigned)grid_width, (unsigned)grid_height, 1, now.block[0],
			      now.block[1], now.block[2], now.shared_bytes, hStream, NULL, extra);
}

CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height)
{
	return cuLaunchGridAsync(f, grid_width, grid_height, NULL);
}

CUresult cuLaunch(CUfunction f)
{
	return cuLaunchGrid(f, 1, 1);
}
