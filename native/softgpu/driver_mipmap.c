/* Mipmapped arrays: an array for each level, each half as large as the one before. */
#include "driver_array.h"

#include "driver_handle.h"
#include "driver_stream.h"

#include <pthread.h>
#include <stdlib.h>

static struct {
	pthread_mutex_t lock;
	struct CUmipmappedArray_st *first;
} mipmaps = { .lock = PTHREAD_MUTEX_INITIALIZER };

CUresult driver_mipmap_of(CUmipmappedArray handle, struct CUmipmappedArray_st **mipmap)
{
	if (!handle || !driver_handle_is(handle, DRIVER_KIND_MIPMAP))
		return CUDA_ERROR_INVALID_HANDLE;
	*mipmap = handle;
	return CUDA_SUCCESS;
}

static bool has_layers(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	return descriptor->Flags & (DRIVER_ARRAY_LAYERED | DRIVER_ARRAY_CUBEMAP);
}

/* An extent that is not there is 0 on every level. */
static size_t at_level(size_t extent, unsigned level)
{
	return extent && extent >> level ? extent >> level : extent != 0;
}

static CUDA_ARRAY3D_DESCRIPTOR level_descriptor(const CUDA_ARRAY3D_DESCRIPTOR *whole, unsigned level)
{
	CUDA_ARRAY3D_DESCRIPTOR descriptor = *whole;

	descriptor.Width = at_level(whole->Width, level);
	descriptor.Height = at_level(whole->Height, level);
	if (!has_layers(whole))
		descriptor.Depth = at_level(whole->Depth, level);
	return descriptor;
}

/* Until the largest extent is one texel. */
static unsigned levels_possible(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	size_t largest = descriptor->Width | descriptor->Height;
	unsigned count = 1;

	if (!has_layers(descriptor))
		largest |= descriptor->Depth;
	while (largest >>= 1)
		count++;
	return count < ENGINE_LEVELS_MAX ? count : ENGINE_LEVELS_MAX;
}

static void free_levels(struct CUmipmappedArray_st *mipmap)
{
	while (mipmap->level_count)
		driver_array_free(mipmap->levels[--mipmap->level_count]);
}

DRIVER_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *out,
					      const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
					      unsigned int level_count)
{
	struct CUmipmappedArray_st *mipmap;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);
	unsigned most;

	if (result)
		return result;
	if (!out || !descriptor || driver_format_is_planar(descriptor->Format))
		return CUDA_ERROR_INVALID_VALUE;
	most = levels_possible(descriptor);
	level_count = level_count < 1 ? 1 : level_count > most ? most : level_count;
	mipmap = calloc(1, sizeof *mipmap);
	if (!mipmap)
		return CUDA_ERROR_OUT_OF_MEMORY;
	mipmap->context = context;
	for (unsigned level = 0; level < level_count; level++) {
		CUDA_ARRAY3D_DESCRIPTOR one = level_descriptor(descriptor, level);

		result = driver_array_make(&mipmap->levels[level], &one);
		if (result)
			goto out_free;
		mipmap->levels[level]->mipmap = mipmap;
		mipmap->level_count++;
	}
	result = driver_handle_add(mipmap, DRIVER_KIND_MIPMAP) ? CUDA_ERROR_OUT_OF_MEMORY :
								 CUDA_SUCCESS;
	if (result)
		goto out_free;
	pthread_mutex_lock(&mipmaps.lock);
	mipmap->next = mipmaps.first;
	mipmaps.first = mipmap;
	pthread_mutex_unlock(&mipmaps.lock);
	*out = mipmap;
	return CUDA_SUCCESS;
out_free:
	free_levels(mipmap);
	free(mipmap);
	return result;
}

DRIVER_EXPORT CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray handle,
						unsigned int level)
{
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

/* As cuArrayDestroy: what may still use it finishes first. */
DRIVER_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle)
{
	struct CUmipmappedArray_st **link = &mipmaps.first;
	CUresult result = driver_ready();
	struct CUctx_st *context;

	if (result)
		return result;
	if (!handle || !driver_handle_remove(handle, DRIVER_KIND_MIPMAP))
		return CUDA_ERROR_INVALID_HANDLE;
	context = handle->context;
	driver_stream_drain(context);
	pthread_mutex_lock(&mipmaps.lock);
	while (*link && *link != handle)
		link = &(*link)->next;
	if (*link)
		*link = handle->next;
	pthread_mutex_unlock(&mipmaps.lock);
	free_levels(handle);
	free(handle);
	return driver_context_state(context);
}

/* None is sparse here. */
DRIVER_EXPORT CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out,
							   CUmipmappedArray handle)
{
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

/* The levels go as the context's other arrays do. */
void driver_mipmap_end_context(struct CUctx_st *context)
{
	struct CUmipmappedArray_st **link = &mipmaps.first;

	pthread_mutex_lock(&mipmaps.lock);
	while (*link) {
		struct CUmipmappedArray_st *mipmap = *link;

		if (mipmap->context != context) {
			link = &mipmap->next;
			continue;
		}
		*link = mipmap->next;
		if (driver_handle_remove(mipmap, DRIVER_KIND_MIPMAP))
			free(mipmap);
	}
	pthread_mutex_unlock(&mipmaps.lock);
}
