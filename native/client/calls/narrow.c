/* Functions of CUDA 2 that name device memory with 32 bits.
 *
 * Memory that cuMemAlloc_v2 gives is never below 4 GiB; so what these allocate is reserved
 * and mapped there (virtual memory management), and everything else follows from the
 * functions of today: a 32-bit address is an address. */
#include "../client.h"
#include "../ground/message.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

#define LOW_BEGIN 0x10000000ull
#define LOW_END 0x100000000ull

struct low_memory {
	struct low_memory *next;
	CUdeviceptr address;
	size_t bytes, asked;
	CUmemGenericAllocationHandle handle;
};

static struct low_memory *low_memories;
static pthread_mutex_t low_lock = PTHREAD_MUTEX_INITIALIZER;

/* Addresses below 4 GiB that are free here and on the GPU. */
static CUresult low_reserve(struct low_memory *low)
{
	static CUdeviceptr next = LOW_BEGIN;	/* the lock is held */

	for (CUdeviceptr tried = 0; tried < LOW_END - LOW_BEGIN; tried += low->bytes) {
		CUdeviceptr at = next + low->bytes <= LOW_END ? next : LOW_BEGIN;
		CUresult result = cuMemAddressReserve(&low->address, low->bytes, 0, at, 0);

		if (result != CUDA_SUCCESS)
			return result;
		next = at + low->bytes;
		if (low->address + low->bytes <= LOW_END)
			return CUDA_SUCCESS;
		cuMemAddressFree(low->address, low->bytes);
	}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult low_map(struct low_memory *low, CUdevice device)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
	};
	CUmemAccessDesc access = {
		.location = prop.location,
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	size_t granularity;
	CUresult result = cuMemGetAllocationGranularity(&granularity, &prop,
							CU_MEM_ALLOC_GRANULARITY_MINIMUM);

	if (result != CUDA_SUCCESS)
		return result;
	low->bytes = (low->asked + granularity - 1) / granularity * granularity;
	result = cuMemCreate(&low->handle, low->bytes, &prop, 0);
	if (result != CUDA_SUCCESS)
		return result;
	result = low_reserve(low);
	if (result != CUDA_SUCCESS) {
		cuMemRelease(low->handle);
		return result;
	}
	result = cuMemMap(low->address, low->bytes, 0, low->handle, 0);
	if (result == CUDA_SUCCESS) {
		result = cuMemSetAccess(low->address, low->bytes, &access, 1);
		if (result != CUDA_SUCCESS)
			cuMemUnmap(low->address, low->bytes);
	}
	if (result != CUDA_SUCCESS) {
		cuMemAddressFree(low->address, low->bytes);
		cuMemRelease(low->handle);
	}
	return result;
}

CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize)
{
	struct low_memory *low;
	CUdevice device;
	CUresult result = cuCtxGetDevice(&device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr || !bytesize)
		return CUDA_ERROR_INVALID_VALUE;
	low = calloc(1, sizeof(*low));
	if (!low)
		return CUDA_ERROR_OUT_OF_MEMORY;
	low->asked = bytesize;
	pthread_mutex_lock(&low_lock);
	result = low_map(low, device);
	if (result == CUDA_SUCCESS) {
		*dptr = (CUdeviceptr_v1)low->address;
		low->next = low_memories;
		low_memories = low;
	}
	pthread_mutex_unlock(&low_lock);
	if (result != CUDA_SUCCESS)
		free(low);
	return result;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes,
			 unsigned int Height, unsigned int ElementSizeBytes)
{
	unsigned long long pitch = (WidthInBytes + 511ull) & ~511ull;
	CUresult result;

	if (!pPitch || !WidthInBytes || !Height ||
	    (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16))
		return CUDA_ERROR_INVALID_VALUE;
	if (pitch * Height > UINT_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = cuMemAlloc(dptr, (unsigned int)(pitch * Height));
	if (result == CUDA_SUCCESS)
		*pPitch = (unsigned int)pitch;
	return result;
}

CUresult cuMemFree(CUdeviceptr_v1 dptr)
{
	struct low_memory **link = &low_memories, *low;
	CUresult result;

	if (!dptr)
		return CUDA_SUCCESS;
	/* As of all memory that is freed: what uses it finishes first. */
	result = cuCtxSynchronize();
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&low_lock);
	while (*link && (*link)->address != dptr)
		link = &(*link)->next;
	low = *link;
	if (low)
		*link = low->next;
	pthread_mutex_unlock(&low_lock);
	if (!low)
		return CUDA_ERROR_INVALID_VALUE;
	result = cuMemUnmap(low->address, low->bytes);
	cuMemAddressFree(low->address, low->bytes);
	cuMemRelease(low->handle);
	free(low);
	return result;
}

CUresult cuMemGetAddressRange(CUdeviceptr_v1 *pbase, unsigned int *psize, CUdeviceptr_v1 dptr)
{
	const struct low_memory *low;

	pthread_mutex_lock(&low_lock);
	for (low = low_memories; low && dptr - low->address >= low->asked; low = low->next)
		;
	if (low && pbase)
		*pbase = (CUdeviceptr_v1)low->address;
	if (low && psize)
		*psize = (unsigned int)low->asked;
	pthread_mutex_unlock(&low_lock);
	return low ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- structures ---- */

static CUDA_MEMCPY2D wide_2d(const CUDA_MEMCPY2D_v1 *copy)
{
	return (CUDA_MEMCPY2D){
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
	};
}

static CUDA_MEMCPY3D wide_3d(const CUDA_MEMCPY3D_v1 *copy)
{
	return (CUDA_MEMCPY3D){
		.srcXInBytes = copy->srcXInBytes,
		.srcY = copy->srcY,
		.srcZ = copy->srcZ,
		.srcLOD = copy->srcLOD,
		.srcMemoryType = copy->srcMemoryType,
		.srcHost = copy->srcHost,
		.srcDevice = copy->srcDevice,
		.srcArray = copy->srcArray,
		.reserved0 = copy->reserved0,
		.srcPitch = copy->srcPitch,
		.srcHeight = copy->srcHeight,
		.dstXInBytes = copy->dstXInBytes,
		.dstY = copy->dstY,
		.dstZ = copy->dstZ,
		.dstLOD = copy->dstLOD,
		.dstMemoryType = copy->dstMemoryType,
		.dstHost = copy->dstHost,
		.dstDevice = copy->dstDevice,
		.dstArray = copy->dstArray,
		.reserved1 = copy->reserved1,
		.dstPitch = copy->dstPitch,
		.dstHeight = copy->dstHeight,
		.WidthInBytes = copy->WidthInBytes,
		.Height = copy->Height,
		.Depth = copy->Depth,
	};
}

CUresult cuMemcpy2D(const CUDA_MEMCPY2D_v1 *pCopy)
{
	CUDA_MEMCPY2D wide;

	if (!pCopy)
		return CUDA_ERROR_INVALID_VALUE;
	wide = wide_2d(pCopy);
	return cuMemcpy2D_v2(&wide);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D_v1 *pCopy, CUstream hStream)
{
	CUDA_MEMCPY2D wide;

	if (!pCopy)
		return CUDA_ERROR_INVALID_VALUE;
	wide = wide_2d(pCopy);
	return cuMemcpy2DAsync_v2(&wide, hStream);
}

CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D_v1 *pCopy)
{
	CUDA_MEMCPY2D wide;

	if (!pCopy)
		return CUDA_ERROR_INVALID_VALUE;
	wide = wide_2d(pCopy);
	return cuMemcpy2DUnaligned_v2(&wide);
}

CUresult cuMemcpy3D(const CUDA_MEMCPY3D_v1 *pCopy)
{
	CUDA_MEMCPY3D wide;

	if (!pCopy)
		return CUDA_ERROR_INVALID_VALUE;
	wide = wide_3d(pCopy);
	return cuMemcpy3D_v2(&wide);
}

CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D_v1 *pCopy, CUstream hStream)
{
	CUDA_MEMCPY3D wide;

	if (!pCopy)
		return CUDA_ERROR_INVALID_VALUE;
	wide = wide_3d(pCopy);
	return cuMemcpy3DAsync_v2(&wide, hStream);
}

/* ---- addresses and lengths alone ---- */

CUresult cuMemcpyAtoD(CUdeviceptr_v1 dstDevice, CUarray srcArray, unsigned int srcOffset,
		       unsigned int ByteCount)
{
	return cuMemcpyAtoD_v2(dstDevice, srcArray, srcOffset, ByteCount);
}

CUresult cuMemcpyDtoA(CUarray dstArray, unsigned int dstOffset, CUdeviceptr_v1 srcDevice,
		       unsigned int ByteCount)
{
	return cuMemcpyDtoA_v2(dstArray, dstOffset, srcDevice, ByteCount);
}

CUresult cuMemcpyDtoD(CUdeviceptr_v1 dstDevice, CUdeviceptr_v1 srcDevice, unsigned int ByteCount)
{
	return cuMemcpyDtoD_v2(dstDevice, srcDevice, ByteCount);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr_v1 dstDevice, CUdeviceptr_v1 srcDevice,
			    unsigned int ByteCount, CUstream hStream)
{
	return cuMemcpyDtoDAsync_v2(dstDevice, srcDevice, ByteCount, hStream);
}

CUresult cuMemcpyDtoH(void *dstHost, CUdeviceptr_v1 srcDevice, unsigned int ByteCount)
{
	return cuMemcpyDtoH_v2(dstHost, srcDevice, ByteCount);
}

CUresult cuMemcpyDtoHAsync(void *dstHost, CUdeviceptr_v1 srcDevice, unsigned int ByteCount,
			    CUstream hStream)
{
	return cuMemcpyDtoHAsync_v2(dstHost, srcDevice, ByteCount, hStream);
}

CUresult cuMemcpyHtoD(CUdeviceptr_v1 dstDevice, const void *srcHost, unsigned int ByteCount)
{
	return cuMemcpyHtoD_v2(dstDevice, srcHost, ByteCount);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr_v1 dstDevice, const void *srcHost, unsigned int ByteCount,
			    CUstream hStream)
{
	return cuMemcpyHtoDAsync_v2(dstDevice, srcHost, ByteCount, hStream);
}

CUresult cuMemsetD8(CUdeviceptr_v1 dstDevice, unsigned char uc, unsigned int N)
{
	return cuMemsetD8_v2(dstDevice, uc, N);
}

CUresult cuMemsetD16(CUdeviceptr_v1 dstDevice, unsigned short us, unsigned int N)
{
	return cuMemsetD16_v2(dstDevice, us, N);
}

CUresult cuMemsetD32(CUdeviceptr_v1 dstDevice, unsigned int ui, unsigned int N)
{
	return cuMemsetD32_v2(dstDevice, ui, N);
}

CUresult cuMemsetD2D8(CUdeviceptr_v1 dstDevice, unsigned int dstPitch, unsigned char uc,
		       unsigned int Width, unsigned int Height)
{
	return cuMemsetD2D8_v2(dstDevice, dstPitch, uc, Width, Height);
}

CUresult cuMemsetD2D16(CUdeviceptr_v1 dstDevice, unsigned int dstPitch, unsigned short us,
			unsigned int Width, unsigned int Height)
{
	return cuMemsetD2D16_v2(dstDevice, dstPitch, us, Width, Height);
}

CUresult cuMemsetD2D32(CUdeviceptr_v1 dstDevice, unsigned int dstPitch, unsigned int ui,
			unsigned int Width, unsigned int Height)
{
	return cuMemsetD2D32_v2(dstDevice, dstPitch, ui, Width, Height);
}

/* ---- texture references ---- */

CUresult cuTexRefSetAddress(unsigned int *ByteOffset, CUtexref hTexRef, CUdeviceptr_v1 dptr,
			    unsigned int bytes)
{
	size_t offset;
	CUresult result = cuTexRefSetAddress_v2(ByteOffset ? &offset : NULL, hTexRef, dptr, bytes);

	if (result == CUDA_SUCCESS && ByteOffset)
		*ByteOffset = (unsigned int)offset;
	return result;
}

CUresult cuTexRefSetAddress2D(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR_v1 *desc,
			      CUdeviceptr_v1 dptr, unsigned int Pitch)
{
	CUDA_ARRAY_DESCRIPTOR wide;

	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	wide = (CUDA_ARRAY_DESCRIPTOR){ desc->Width, desc->Height, desc->Format, desc->NumChannels };
	return cuTexRefSetAddress2D_v3(hTexRef, &wide, dptr, Pitch);
}

CUresult cuTexRefGetAddress(CUdeviceptr_v1 *pdptr, CUtexref hTexRef)
{
	CUdeviceptr address;
	CUresult result = pdptr ? cuTexRefGetAddress_v2(&address, hTexRef) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	if (address > UINT_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	*pdptr = (CUdeviceptr_v1)address;
	return CUDA_SUCCESS;
}

/* A variable lies where the driver has put it. */
CUresult cuModuleGetGlobal(CUdeviceptr_v1 *dptr, unsigned int *bytes, CUmodule hmod,
			   const char *name)
{
	CUdeviceptr address;
	size_t size;
	CUresult result = cuModuleGetGlobal_v2(&address, &size, hmod, name);

	if (result != CUDA_SUCCESS)
		return result;
	if (dptr && address > UINT_MAX) {
		client_message("the variable %s does not lie within the first 4 GiB", name);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (dptr)
		*dptr = (CUdeviceptr_v1)address;
	if (bytes)
		*bytes = (unsigned int)size;
	return CUDA_SUCCESS;
}
