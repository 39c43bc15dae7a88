#include "array.h"

#include "context_stack.h"
#include "handle.h"
#include "memory.h"

#include <pthread.h>
#include <stdlib.h>

/* CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": the
 * largest of every dimension, which arrays of any kind stay within. */
#define EXTENT_MAX 131072u
#define LAYERS_MAX 2048u
#define ROW_ALIGN 32u			/* bytes: TEXTURE_PITCH_ALIGNMENT */

static struct {
	pthread_mutex_t lock;
	struct CUarray_st *first;
} arrays = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const struct {
	CUarray_format format;
	size_t bytes;
	enum engine_texel texel;
} formats[] = {
	{ CU_AD_FORMAT_UNSIGNED_INT8, 1, ENGINE_TEXEL_U8 },
	{ CU_AD_FORMAT_UNSIGNED_INT16, 2, ENGINE_TEXEL_U16 },
	{ CU_AD_FORMAT_UNSIGNED_INT32, 4, ENGINE_TEXEL_U32 },
	{ CU_AD_FORMAT_SIGNED_INT8, 1, ENGINE_TEXEL_S8 },
	{ CU_AD_FORMAT_SIGNED_INT16, 2, ENGINE_TEXEL_S16 },
	{ CU_AD_FORMAT_SIGNED_INT32, 4, ENGINE_TEXEL_S32 },
	{ CU_AD_FORMAT_HALF, 2, ENGINE_TEXEL_F16 },
	{ CU_AD_FORMAT_FLOAT, 4, ENGINE_TEXEL_F32 },
};

size_t driver_format_bytes(CUarray_format format)
{
	for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
		if (formats[i].format == format)
			return formats[i].bytes;
	return 0;
}

enum engine_texel driver_format_texel(CUarray_format format)
{
	for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
		if (formats[i].format == format)
			return formats[i].texel;
	return ENGINE_TEXEL_U8;
}

CUresult driver_array_of(CUarray handle, struct CUarray_st **array)
{
	if (!handle || !driver_handle_is(handle, DRIVER_KIND_ARRAY))
		return CUDA_ERROR_INVALID_HANDLE;
	*array = handle;
	return CUDA_SUCCESS;
}

CUresult driver_array_of_texels(CUarray handle, struct CUarray_st **array)
{
	CUresult result = driver_array_of(handle, array);

	return !result && (*array)->planes[0] ? CUDA_ERROR_INVALID_VALUE : result;
}

/* ---- video: a plane of brightness, and one of both colours, which may have fewer texels ---- */

static const struct planar {
	CUarray_format format;
	CUarray_format part;		/* of each plane */
	unsigned narrower, lower;	/* the second plane: right shifts of width and height */
} planar_formats[] = {
	{ CU_AD_FORMAT_NV12, CU_AD_FORMAT_UNSIGNED_INT8, 1, 1 },
	{ CU_AD_FORMAT_P010, CU_AD_FORMAT_UNSIGNED_INT16, 1, 1 },
	{ CU_AD_FORMAT_P016, CU_AD_FORMAT_UNSIGNED_INT16, 1, 1 },
	{ CU_AD_FORMAT_NV16, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0 },
	{ CU_AD_FORMAT_P210, CU_AD_FORMAT_UNSIGNED_INT16, 1, 0 },
	{ CU_AD_FORMAT_P216, CU_AD_FORMAT_UNSIGNED_INT16, 1, 0 },
};

static const struct planar *planar_of(CUarray_format format)
{
	for (size_t i = 0; i < sizeof planar_formats / sizeof planar_formats[0]; i++)
		if (planar_formats[i].format == format)
			return &planar_formats[i];
	return NULL;
}

bool driver_format_is_planar(CUarray_format format)
{
	return planar_of(format) != NULL;
}

/* Brightness and two colours, of an image. */
static CUresult check_planar(const CUDA_ARRAY3D_DESCRIPTOR *d, const struct planar *planar)
{
	if (d->Flags & ~DRIVER_ARRAY_SURFACE)
		return driver_unsupported("arrays of video with layers");
	if (!d->Width || d->Width > EXTENT_MAX || !d->Height || d->Height > EXTENT_MAX || d->Depth ||
	    d->NumChannels != 3 || d->Width & ((1u << planar->narrower) - 1) ||
	    d->Height & ((1u << planar->lower) - 1))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* ---- all arrays ---- */

static CUresult check_descriptor(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	const struct planar *planar = planar_of(d->Format);
	bool layered = d->Flags & DRIVER_ARRAY_LAYERED, cube = d->Flags & DRIVER_ARRAY_CUBEMAP;

	if (d->Flags & ~(DRIVER_ARRAY_LAYERED | DRIVER_ARRAY_SURFACE | DRIVER_ARRAY_CUBEMAP |
			 DRIVER_ARRAY_GATHER))
		return driver_unsupported("sparse, deferred and depth arrays");
	if (planar)
		return check_planar(d, planar);
	if (!d->Width || d->Width > EXTENT_MAX || d->Height > EXTENT_MAX ||
	    d->Depth > (layered || cube ? LAYERS_MAX : EXTENT_MAX) ||
	    (d->NumChannels != 1 && d->NumChannels != 2 && d->NumChannels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	if (!driver_format_bytes(d->Format))
		return driver_unsupported("arrays of this format");
	if (cube && (d->Width != d->Height || d->Depth % 6 || !d->Depth || (!layered && d->Depth != 6)))
		return CUDA_ERROR_INVALID_VALUE;
	/* A volume has rows, layers have a number. */
	if (layered ? !d->Depth : (d->Depth && !d->Height))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* An array that has no memory yet, nor a handle. */
static struct CUarray_st *array_shape(struct CUctx_st *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	struct CUarray_st *array = calloc(1, sizeof *array);

	if (!array)
		return NULL;
	array->context = context;
	array->descriptor = *descriptor;
	array->texel_bytes = driver_format_bytes(descriptor->Format) * descriptor->NumChannels;
	array->rows = descriptor->Height ? descriptor->Height : 1;
	array->slices = descriptor->Depth ? descriptor->Depth : 1;
	array->pitch = (descriptor->Width * array->texel_bytes + ROW_ALIGN - 1) & ~(size_t)(ROW_ALIGN - 1);
	/* At most 2^21 bytes a row, 2^17 rows, 2^17 slices: no product wraps. */
	array->slice = array->pitch * array->rows;
	return array;
}

/* Planes lie one behind the other. */
static bool make_planes(struct CUarray_st *whole, const struct planar *planar)
{
	CUDA_ARRAY3D_DESCRIPTOR one = whole->descriptor;

	one.Format = planar->part;
	for (unsigned i = 0; i < DRIVER_PLANES_MAX; i++) {
		one.NumChannels = i ? 2 : 1;
		one.Width = whole->descriptor.Width >> (i ? planar->narrower : 0);
		one.Height = whole->descriptor.Height >> (i ? planar->lower : 0);
		whole->planes[i] = array_shape(whole->context, &one);
		if (!whole->planes[i])
			return false;
		whole->planes[i]->whole = whole;
		whole->planes[i]->memory = whole->slice;	/* an offset, until there is memory */
		whole->slice += (whole->planes[i]->slice + DRIVER_TEXTURE_PITCH - 1) / DRIVER_TEXTURE_PITCH *
				DRIVER_TEXTURE_PITCH;
	}
	return true;
}

static CUresult array_enter(struct CUarray_st *array)
{
	if (driver_handle_add(array, DRIVER_KIND_ARRAY, &array->context->users))
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&arrays.lock);
	array->next = arrays.first;
	arrays.first = array;
	pthread_mutex_unlock(&arrays.lock);
	return CUDA_SUCCESS;
}

static void unlink_array(struct CUarray_st *array)
{
	struct CUarray_st **link = &arrays.first;

	pthread_mutex_lock(&arrays.lock);
	while (*link && *link != array)
		link = &(*link)->next;
	if (*link)
		*link = array->next;
	pthread_mutex_unlock(&arrays.lock);
}

void driver_array_free(struct CUarray_st *array)
{
	driver_handle_remove(array, DRIVER_KIND_ARRAY);
	unlink_array(array);
	for (unsigned i = 0; i < DRIVER_PLANES_MAX; i++)
		if (array->planes[i])
			driver_array_free(array->planes[i]);
	if (array->memory && !array->whole)
		driver_memory_give(array->memory);
	free(array);
}

CUresult driver_array_make(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	const struct planar *planar;
	struct CUarray_st *array;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);

	if (result)
		return result;
	if (!out || !descriptor)
		return CUDA_ERROR_INVALID_VALUE;
	result = check_descriptor(descriptor);
	if (result)
		return result;
	planar = planar_of(descriptor->Format);
	array = array_shape(context, descriptor);
	if (!array)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = planar && !make_planes(array, planar) ? CUDA_ERROR_OUT_OF_MEMORY :
		 driver_memory_take(context, array->slice * array->slices, DRIVER_TEXTURE_PITCH,
				    DRIVER_MEMORY_MODULE, NULL, &array->memory);
	for (unsigned i = 0; i < DRIVER_PLANES_MAX && !result && planar; i++) {
		array->planes[i]->memory += array->memory;
		result = array_enter(array->planes[i]);
	}
	if (!result)
		result = array_enter(array);
	if (result)
		driver_array_free(array);
	else
		*out = array;
	return result;
}

/* The memory goes with the context's other memory. */
void driver_array_end_context(struct CUctx_st *context)
{
	struct CUarray_st **link = &arrays.first;

	pthread_mutex_lock(&arrays.lock);
	while (*link) {
		struct CUarray_st *array = *link;

		if (array->context != context) {
			link = &array->next;
			continue;
		}
		*link = array->next;
		if (driver_handle_remove(array, DRIVER_KIND_ARRAY))
			free(array);
	}
	pthread_mutex_unlock(&arrays.lock);
}
