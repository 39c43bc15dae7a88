/* Mipmapped arrays: an array for each level, each half as large as the one before. */
#include "mipmap.h"

#include "array.h"
#include "handle.h"

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

CUresult driver_mipmap_make(CUmipmappedArray *out, struct CUctx_st *context,
			    const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned level_count)
{
	unsigned most = levels_possible(descriptor);
	struct CUmipmappedArray_st *mipmap;
	CUresult result;

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
	result = driver_handle_add(mipmap, DRIVER_KIND_MIPMAP, &context->users) ? CUDA_ERROR_OUT_OF_MEMORY :
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

void driver_mipmap_free(struct CUmipmappedArray_st *mipmap)
{
	struct CUmipmappedArray_st **link = &mipmaps.first;

	pthread_mutex_lock(&mipmaps.lock);
	while (*link && *link != mipmap)
		link = &(*link)->next;
	if (*link)
		*link = mipmap->next;
	pthread_mutex_unlock(&mipmaps.lock);
	free_levels(mipmap);
	free(mipmap);
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
