#include "texture.h"

#include "memory.h"
#include "mipmap.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* cuda.h: flags of CUDA_TEXTURE_DESC */
#define READ_AS_INTEGER 0x01u
#define NORMALIZED_COORDINATES 0x02u
#define SRGB 0x10u
#define KNOWN_FLAGS 0x77u	/* the others choose between mipmap and cube filters */

#define LINEAR_TEXELS_MAX (1u << 28)	/* MAXIMUM_TEXTURE1D_LINEAR_WIDTH */
#define PITCHED_EXTENT_MAX 131072u

/* ---- images ---- */

static CUresult image_of_array(CUarray handle, struct engine_image *image)
{
	struct CUarray_st *array;
	CUresult result = driver_array_of_texels(handle, &array);
	bool layered;

	if (result)
		return result;
	layered = array->descriptor.Flags & (DRIVER_ARRAY_LAYERED | DRIVER_ARRAY_CUBEMAP);
	*image = (struct engine_image){
		.memory = (void *)array->memory,
		.texel = driver_format_texel(array->descriptor.Format),
		.channels = array->descriptor.NumChannels,
		.dimensions = !layered && array->descriptor.Depth ? 3 : array->descriptor.Height ? 2 : 1,
		.width = (uint32_t)array->descriptor.Width,
		.height = (uint32_t)array->rows,
		.depth = layered ? 1 : (uint32_t)array->slices,
		.layers = layered ? (uint32_t)array->slices : 1,
		.pitch = array->pitch,
		.slice = array->slice,
	};
	return CUDA_SUCCESS;
}

static CUresult image_of_memory(CUdeviceptr address, CUarray_format format, unsigned channels,
				size_t width, size_t height, size_t pitch,
				struct engine_image *image)
{
	size_t texel = driver_format_bytes(format) * channels;

	if (!driver_format_bytes(format))
		return driver_unsupported("textures of this format");
	if ((channels != 1 && channels != 2 && channels != 4) || !width || !height ||
	    address % texel || (height > 1 && (pitch % texel || pitch / texel < width)))
		return CUDA_ERROR_INVALID_VALUE;
	*image = (struct engine_image){
		.memory = (void *)(uintptr_t)address, .texel = driver_format_texel(format),
		.channels = channels, .dimensions = height > 1 ? 2 : 1, .width = (uint32_t)width,
		.height = (uint32_t)height, .depth = 1, .layers = 1, .pitch = pitch,
	};
	return driver_memory_check(address, (height - 1) * pitch + width * texel);
}

static CUresult image_of(const CUDA_RESOURCE_DESC *resource, struct engine_image *image)
{
	size_t texel;

	switch (resource->resType) {
	case CU_RESOURCE_TYPE_ARRAY:
		return image_of_array(resource->res.array.hArray, image);
	case CU_RESOURCE_TYPE_LINEAR:
		texel = driver_format_bytes(resource->res.linear.format) *
			resource->res.linear.numChannels;
		if (!texel || resource->res.linear.sizeInBytes / texel > LINEAR_TEXELS_MAX)
			return CUDA_ERROR_INVALID_VALUE;
		return image_of_memory(resource->res.linear.devPtr, resource->res.linear.format,
				       resource->res.linear.numChannels,
				       resource->res.linear.sizeInBytes / texel, 1, 0, image);
	case CU_RESOURCE_TYPE_PITCH2D:
		if (resource->res.pitch2D.width > PITCHED_EXTENT_MAX ||
		    resource->res.pitch2D.height > PITCHED_EXTENT_MAX ||
		    resource->res.pitch2D.pitchInBytes > (size_t)1 << 32)
			return CUDA_ERROR_INVALID_VALUE;
		return image_of_memory(resource->res.pitch2D.devPtr, resource->res.pitch2D.format,
				       resource->res.pitch2D.numChannels,
				       resource->res.pitch2D.width, resource->res.pitch2D.height,
				       resource->res.pitch2D.pitchInBytes, image);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* Of all resources: one level, or those of a mipmapped array that the view shows. */
static CUresult levels_of(const CUDA_RESOURCE_DESC *resource, const CUDA_RESOURCE_VIEW_DESC *view,
			  struct engine_image levels[ENGINE_LEVELS_MAX], uint32_t *count)
{
	struct CUmipmappedArray_st *mipmap;
	unsigned first = 0, last;
	CUresult result;

	*count = 1;
	if (resource->resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
		return image_of(resource, &levels[0]);
	result = driver_mipmap_of(resource->res.mipmap.hMipmappedArray, &mipmap);
	if (result)
		return result;
	last = mipmap->level_count - 1;
	if (view) {
		first = view->firstMipmapLevel;
		last = view->lastMipmapLevel;
	}
	if (first > last || last >= mipmap->level_count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = last - first + 1;
	for (unsigned k = 0; !result && k < *count; k++)
		result = image_of_array(mipmap->levels[first + k], &levels[k]);
	return result;
}

/* Whether a view has the array's own format: nothing is taken for what it is not. */
static bool view_keeps_format(const CUDA_RESOURCE_VIEW_DESC *view, const struct engine_image *image)
{
	static const int of_one_channel[] = {
		[ENGINE_TEXEL_U8] = CU_RES_VIEW_FORMAT_UINT_1X8, [ENGINE_TEXEL_S8] = CU_RES_VIEW_FORMAT_SINT_1X8,
		[ENGINE_TEXEL_U16] = CU_RES_VIEW_FORMAT_UINT_1X16, [ENGINE_TEXEL_S16] = CU_RES_VIEW_FORMAT_SINT_1X16,
		[ENGINE_TEXEL_U32] = CU_RES_VIEW_FORMAT_UINT_1X32, [ENGINE_TEXEL_S32] = CU_RES_VIEW_FORMAT_SINT_1X32,
		[ENGINE_TEXEL_F16] = CU_RES_VIEW_FORMAT_FLOAT_1X16, [ENGINE_TEXEL_F32] = CU_RES_VIEW_FORMAT_FLOAT_1X32,
	};

	/* With two and four channels they follow each other. */
	return !view->format || (int)view->format == of_one_channel[image->texel] + (int)(image->channels / 2);
}

static bool texel_is_float(enum engine_texel texel)
{
	return texel == ENGINE_TEXEL_F16 || texel == ENGINE_TEXEL_F32;
}

static CUresult sampler_of(const CUDA_TEXTURE_DESC *texture, const struct engine_image *image,
			   struct engine_sampler *sampler)
{
	bool is_wide = image->texel == ENGINE_TEXEL_U32 || image->texel == ENGINE_TEXEL_S32;
	bool is_byte = image->texel == ENGINE_TEXEL_U8 || image->texel == ENGINE_TEXEL_S8;

	if (texture->flags & ~KNOWN_FLAGS || (unsigned)texture->filterMode > CU_TR_FILTER_MODE_LINEAR)
		return CUDA_ERROR_INVALID_VALUE;
	*sampler = (struct engine_sampler){
		.linear = texture->filterMode == CU_TR_FILTER_MODE_LINEAR,
		.normalized_coordinates = texture->flags & NORMALIZED_COORDINATES,
		/* Integers of 32 bits are read as they are. */
		.normalized_values = !(texture->flags & READ_AS_INTEGER) && !is_wide &&
				     !texel_is_float(image->texel),
		.srgb = (texture->flags & SRGB) && is_byte,
	};
	if (sampler->linear && !sampler->normalized_values && !texel_is_float(image->texel))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned k = 0; k < 3; k++) {
		if ((unsigned)texture->addressMode[k] > CU_TR_ADDRESS_MODE_BORDER)
			return CUDA_ERROR_INVALID_VALUE;
		sampler->address_mode[k] = (enum engine_address_mode)texture->addressMode[k];
	}
	memcpy(sampler->border, texture->borderColor, sizeof sampler->border);
	return CUDA_SUCCESS;
}

/* ---- the engine's handles ---- */

CUresult driver_texture_make(const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *texture,
			     const CUDA_RESOURCE_VIEW_DESC *view, uint64_t *handle)
{
	struct engine_image levels[ENGINE_LEVELS_MAX];
	struct engine_mipmap mipmap = { .levels = levels };
	struct engine_sampler sampler;
	CUresult result = levels_of(resource, view, levels, &mipmap.level_count);

	if (result)
		return result;
	if (view && !view_keeps_format(view, &levels[0]))
		return driver_unsupported("resource views that change the format");
	if (texture) {
		result = sampler_of(texture, &levels[0], &sampler);
		if (!result && ((unsigned)texture->mipmapFilterMode > CU_TR_FILTER_MODE_LINEAR ||
				(mipmap.level_count > 1 && !sampler.normalized_coordinates)))
			result = CUDA_ERROR_INVALID_VALUE;
		if (result)
			return result;
		mipmap.linear = texture->mipmapFilterMode == CU_TR_FILTER_MODE_LINEAR;
		mipmap.bias = texture->mipmapLevelBias;
		mipmap.least = texture->minMipmapLevelClamp;
		mipmap.most = texture->maxMipmapLevelClamp;
	}
	return engine_mipmap_add(&mipmap, texture ? &sampler : NULL, handle) ?
		       CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult driver_surface_check(CUarray handle)
{
	struct CUarray_st *array;
	CUresult result = driver_array_of_texels(handle, &array);

	if (!result && !(array->descriptor.Flags & DRIVER_ARRAY_SURFACE))
		result = CUDA_ERROR_INVALID_VALUE;
	return result;
}

/* ---- objects ---- */

static struct {
	pthread_mutex_t lock;
	struct driver_texture *first;
} objects = { .lock = PTHREAD_MUTEX_INITIALIZER };

CUresult driver_texture_add(const struct driver_texture *object, unsigned long long *out)
{
	struct driver_texture *kept = malloc(sizeof *kept);
	CUresult result;

	if (!kept)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*kept = *object;
	result = driver_texture_make(&kept->resource, kept->is_surface ? NULL : &kept->texture,
				     kept->has_view ? &kept->view : NULL, &kept->handle);
	if (result) {
		free(kept);
		return result;
	}
	pthread_mutex_lock(&objects.lock);
	kept->next = objects.first;
	objects.first = kept;
	pthread_mutex_unlock(&objects.lock);
	*out = kept->handle;
	return CUDA_SUCCESS;
}

/* Takes the object out of the list; NULL when there is none. */
static struct driver_texture *take(unsigned long long handle, bool surface)
{
	struct driver_texture **link = &objects.first, *found;

	pthread_mutex_lock(&objects.lock);
	while (*link && ((*link)->handle != handle || (*link)->is_surface != surface))
		link = &(*link)->next;
	found = *link;
	if (found)
		*link = found->next;
	pthread_mutex_unlock(&objects.lock);
	return found;
}

bool driver_texture_remove(unsigned long long handle, bool is_surface)
{
	struct driver_texture *texture = take(handle, is_surface);

	if (!texture)
		return false;
	engine_texture_remove(texture->handle);
	free(texture);
	return true;
}

bool driver_texture_find(unsigned long long handle, bool is_surface, struct driver_texture *out)
{
	bool found = false;

	pthread_mutex_lock(&objects.lock);
	for (const struct driver_texture *object = objects.first; object; object = object->next) {
		if (object->handle == handle && object->is_surface == is_surface) {
			*out = *object;
			found = true;
		}
	}
	pthread_mutex_unlock(&objects.lock);
	return found;
}

void driver_texture_end_context(struct CUctx_st *context)
{
	struct driver_texture **link = &objects.first;

	pthread_mutex_lock(&objects.lock);
	while (*link) {
		struct driver_texture *object = *link;

		if (object->context != context) {
			link = &object->next;
			continue;
		}
		*link = object->next;
		engine_texture_remove(object->handle);
		free(object);
	}
	pthread_mutex_unlock(&objects.lock);
}
