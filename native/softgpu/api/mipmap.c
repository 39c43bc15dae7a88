#include "../driver/mipmap.h"

#include "../driver/array.h"
#include "../driver/context_stack.h"
#include "../driver/handle.h"
#include "../driver/queue.h"

DRIVER_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *out,
					      const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
					      unsigned int level_count)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);

	if (result)
		return result;
	if (!out || !descriptor || driver_format_is_planar(descriptor->Format))
		return CUDA_ERROR_INVALID_VALUE;
	return driver_mipmap_make(out, context, descriptor, level_count);
}

/* As cuArrayDestroy: what may still use it finishes first. */
DRIVER_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle)
{
	DRIVER_CALL;
	CUresult result = driver_ready();
	struct CUctx_st *context;

	if (result)
		return result;
	if (!driver_handle_is(handle, DRIVER_KIND_MIPMAP) || !driver_handle_remove(handle, DRIVER_KIND_MIPMAP))
		return CUDA_ERROR_INVALID_HANDLE;
	context = handle->context;
	driver_stream_drain(context);
	driver_mipmap_free(handle);
	return driver_context_state(context);
}

DRIVER_EXPORT CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray handle,
						unsigned int level)
{
	DRIVER_CALL;
	struct CUmipmappedArray_st *mipmap;
	CUresult result = driver_ready();

	if (!result)
		result = driver_mipmap_of(handle, &mipmap);
	if (result)
		return result;
	if (!out || level >= mipmap->level_count)
		return CUDA_ERROR_INVALID_VALUE;
	*out = mipmap->levels[level];
	return CUDA_SUCCESS;
}

/* None is sparse here. */
DRIVER_EXPORT CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out,
							   CUmipmappedArray handle)
{
	DRIVER_CALL;
	struct CUmipmappedArray_st *mipmap;
	CUresult result = driver_ready();

	(void)out;
	if (!result)
		result = driver_mipmap_of(handle, &mipmap);
	return result ? result : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out,
							     CUmipmappedArray handle,
							     CUdevice ordinal)
{
	DRIVER_CALL;
	struct CUmipmappedArray_st *mipmap;
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (!result)
		result = out ? driver_mipmap_of(handle, &mipmap) : CUDA_ERROR_INVALID_VALUE;
	if (result)
		return result;
	*out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){ .alignment = DRIVER_TEXTURE_PITCH };
	for (unsigned level = 0; level < mipmap->level_count; level++)
		out->size += mipmap->levels[level]->slice * mipmap->levels[level]->slices;
	return CUDA_SUCCESS;
}
