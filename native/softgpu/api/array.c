#include "../driver/array.h"

#include "../driver/handle.h"
#include "../driver/queue.h"

DRIVER_EXPORT CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	DRIVER_CALL;
	return driver_array_make(out, descriptor);
}

DRIVER_EXPORT CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
	DRIVER_CALL;
	CUDA_ARRAY3D_DESCRIPTOR full;

	if (!descriptor)
		return CUDA_ERROR_INVALID_VALUE;
	full = (CUDA_ARRAY3D_DESCRIPTOR){
		.Width = descriptor->Width, .Height = descriptor->Height,
		.Format = descriptor->Format, .NumChannels = descriptor->NumChannels,
	};
	return driver_array_make(out, &full);
}

/* As cuMemFree: what may still use it finishes first.  A level goes with its mipmap, a plane
 * with its array. */
DRIVER_EXPORT CUresult cuArrayDestroy(CUarray handle)
{
	DRIVER_CALL;
	CUresult result = driver_ready();
	struct CUctx_st *context;

	if (result)
		return result;
	if (!handle || !driver_handle_is(handle, DRIVER_KIND_ARRAY) || handle->mipmap || handle->whole ||
	    !driver_handle_remove(handle, DRIVER_KIND_ARRAY))
		return CUDA_ERROR_INVALID_HANDLE;
	context = handle->context;
	driver_stream_drain(context);
	driver_array_free(handle);
	return driver_context_state(context);
}

DRIVER_EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray handle)
{
	DRIVER_CALL;
	struct CUarray_st *array;
	CUresult result = driver_ready();

	if (!result && !out)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = driver_array_of(handle, &array);
	if (!result)
		*out = array->descriptor;
	return result;
}

DRIVER_EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *out, CUarray handle)
{
	DRIVER_CALL;
	CUDA_ARRAY3D_DESCRIPTOR full;
	CUresult result = out ? cuArray3DGetDescriptor_v2(&full, handle) : CUDA_ERROR_INVALID_VALUE;

	if (result)
		return result;
	*out = (CUDA_ARRAY_DESCRIPTOR){
		.Width = full.Width, .Height = full.Height, .Format = full.Format,
		.NumChannels = full.NumChannels,
	};
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuArrayGetPlane(CUarray *out, CUarray handle, unsigned int plane)
{
	DRIVER_CALL;
	struct CUarray_st *array;
	CUresult result = driver_ready();

	if (!result)
		result = driver_array_of(handle, &array);
	if (result)
		return result;
	if (!out || plane >= DRIVER_PLANES_MAX || !array->planes[plane])
		return CUDA_ERROR_INVALID_VALUE;
	*out = array->planes[plane];
	return CUDA_SUCCESS;
}

/* None is sparse here. */
DRIVER_EXPORT CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUarray handle)
{
	DRIVER_CALL;
	struct CUarray_st *array;
	CUresult result = driver_ready();

	(void)out;
	if (!result)
		result = driver_array_of(handle, &array);
	return result ? result : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out,
						    CUarray handle, CUdevice ordinal)
{
	DRIVER_CALL;
	struct driver_device *device;
	struct CUarray_st *array;
	CUresult result = driver_device_of(ordinal, &device);

	if (!result)
		result = out ? driver_array_of(handle, &array) : CUDA_ERROR_INVALID_VALUE;
	if (result)
		return result;
	*out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){
		.size = array->slice * array->slices, .alignment = DRIVER_TEXTURE_PITCH,
	};
	return CUDA_SUCCESS;
}
