#include "../driver/reference.h"

#include "../driver/array.h"
#include "../driver/context_stack.h"
#include "../driver/function.h"
#include "../driver/handle.h"
#include "../driver/memory.h"
#include "../driver/mipmap.h"
#include "../driver/texture.h"

#include <stdlib.h>
#include <string.h>

/* cuda.h: flags of cuTexRefSetArray and its kind, and of cuTexRefSetFlags */
#define OVERRIDE_FORMAT 0x01u
#define KNOWN_FLAGS 0x73u

/* ---- naming ---- */

static CUresult find(CUmodule handle, const char *name, bool is_surface, struct CUtexref_st **out)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!driver_handle_is(handle, DRIVER_KIND_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t k = 0; handle->references && k < handle->references->count; k++) {
		struct CUtexref_st *reference = &handle->references->all[k];

		if (reference->is_surface == is_surface && !strcmp(reference->name, name)) {
			*out = reference;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_NOT_FOUND;
}

DRIVER_EXPORT CUresult cuModuleGetTexRef(CUtexref *out, CUmodule module, const char *name)
{
	DRIVER_CALL;
	return find(module, name, false, out);
}

DRIVER_EXPORT CUresult cuModuleGetSurfRef(CUsurfref *out, CUmodule module, const char *name)
{
	DRIVER_CALL;
	return find(module, name, true, (struct CUtexref_st **)out);
}

DRIVER_EXPORT CUresult cuTexRefCreate(CUtexref *out)
{
	DRIVER_CALL;
	struct CUtexref_st *reference;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	reference = calloc(1, sizeof *reference);
	if (!reference)
		return CUDA_ERROR_OUT_OF_MEMORY;
	driver_reference_begin(reference);
	if (driver_handle_add(reference, DRIVER_KIND_TEXTURE_REFERENCE, NULL)) {
		free(reference);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = reference;
	return CUDA_SUCCESS;
}

/* Those of a module go with it. */
DRIVER_EXPORT CUresult cuTexRefDestroy(CUtexref reference)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!driver_handle_is(reference, DRIVER_KIND_TEXTURE_REFERENCE) || reference->module ||
	    !driver_handle_remove(reference, DRIVER_KIND_TEXTURE_REFERENCE))
		return CUDA_ERROR_INVALID_VALUE;
	free(reference);
	return CUDA_SUCCESS;
}

/* All references of a module are there for its functions: this only tells whether so. */
DRIVER_EXPORT CUresult cuParamSetTexRef(CUfunction handle, int unit, CUtexref reference)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	struct CUfunc_st *function;
	CUresult result = driver_context_enter(&context);

	if (!result)
		result = driver_function_of(handle, context, &function);
	if (result)
		return result;
	if (unit != CU_PARAM_TR_DEFAULT ||
	    !driver_handle_is(reference, DRIVER_KIND_TEXTURE_REFERENCE) ||
	    reference->module != function->module)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* ---- binding and settings ---- */

static void bind(struct CUtexref_st *reference, const CUDA_RESOURCE_DESC *resource)
{
	reference->resource = *resource;
	reference->is_bound = true;
}

/* The array's own format supersedes what was set. */
static void bind_array(struct CUtexref_st *reference, const struct CUarray_st *array,
		       const CUDA_RESOURCE_DESC *resource)
{
	reference->format = array->descriptor.Format;
	reference->channels = (int)array->descriptor.NumChannels;
	bind(reference, resource);
}

DRIVER_EXPORT CUresult cuTexRefSetArray(CUtexref reference, CUarray handle, unsigned int flags)
{
	DRIVER_CALL;
	const CUDA_RESOURCE_DESC resource = {
		.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = handle,
	};
	struct CUarray_st *array;
	CUresult result = driver_array_of_texels(handle, &array);

	if (!result && flags != OVERRIDE_FORMAT)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = driver_reference_enter(reference, false);
	if (result)
		return result;
	bind_array(reference, array, &resource);
	return driver_reference_leave(CUDA_SUCCESS);
}

DRIVER_EXPORT CUresult cuTexRefSetMipmappedArray(CUtexref reference, CUmipmappedArray handle,
						 unsigned int flags)
{
	DRIVER_CALL;
	const CUDA_RESOURCE_DESC resource = {
		.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
		.res.mipmap.hMipmappedArray = handle,
	};
	struct CUmipmappedArray_st *mipmap;
	CUresult result = driver_mipmap_of(handle, &mipmap);

	if (!result && flags != OVERRIDE_FORMAT)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = driver_reference_enter(reference, false);
	if (result)
		return result;
	bind_array(reference, mipmap->levels[0], &resource);
	return driver_reference_leave(CUDA_SUCCESS);
}

/* A texture begins where the hardware can begin one; the kernel has to add what lies before
 * the program's address. */
DRIVER_EXPORT CUresult cuTexRefSetAddress_v2(size_t *offset, CUtexref reference,
					     CUdeviceptr address, size_t bytes)
{
	DRIVER_CALL;
	size_t before = address % DRIVER_TEXTURE_PITCH;
	CUDA_RESOURCE_DESC resource = {
		.resType = CU_RESOURCE_TYPE_LINEAR,
		.res.linear = { .devPtr = address - before, .sizeInBytes = bytes + before },
	};
	CUresult result = bytes ? driver_memory_check(address, bytes) : CUDA_ERROR_INVALID_VALUE;

	if (!result && before && !offset)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = driver_reference_enter(reference, false);
	if (result)
		return result;
	resource.res.linear.format = reference->format;
	resource.res.linear.numChannels = (unsigned)reference->channels;
	bind(reference, &resource);
	reference->address = address;
	if (offset)
		*offset = before;
	return driver_reference_leave(CUDA_SUCCESS);
}

DRIVER_EXPORT CUresult cuTexRefSetAddress2D_v3(CUtexref reference,
					       const CUDA_ARRAY_DESCRIPTOR *description,
					       CUdeviceptr address, size_t pitch)
{
	DRIVER_CALL;
	CUDA_RESOURCE_DESC resource = { .resType = CU_RESOURCE_TYPE_PITCH2D };
	size_t texel;
	CUresult result;

	if (!description)
		return CUDA_ERROR_INVALID_VALUE;
	texel = driver_format_bytes(description->Format) * description->NumChannels;
	if (!texel || !description->Width || !description->Height || address % DRIVER_TEXTURE_PITCH ||
	    pitch % 32 || pitch / texel < description->Width)
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_memory_check(address, (description->Height - 1) * pitch +
						      description->Width * texel);
	if (!result)
		result = driver_reference_enter(reference, false);
	if (result)
		return result;
	resource.res.pitch2D.devPtr = address;
	resource.res.pitch2D.format = description->Format;
	resource.res.pitch2D.numChannels = description->NumChannels;
	resource.res.pitch2D.width = description->Width;
	resource.res.pitch2D.height = description->Height;
	resource.res.pitch2D.pitchInBytes = pitch;
	reference->format = description->Format;
	reference->channels = (int)description->NumChannels;
	bind(reference, &resource);
	reference->address = address;
	return driver_reference_leave(CUDA_SUCCESS);
}

DRIVER_EXPORT CUresult cuTexRefSetAddress2D_v2(CUtexref reference,
					       const CUDA_ARRAY_DESCRIPTOR *description,
					       CUdeviceptr address, size_t pitch)
{
	return cuTexRefSetAddress2D_v3(reference, description, address, pitch);
}

DRIVER_EXPORT CUresult cuTexRefSetFormat(CUtexref reference, CUarray_format format, int channels)
{
	DRIVER_CALL;
	CUresult result;

	if (!driver_format_bytes(format) || (channels != 1 && channels != 2 && channels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_reference_enter(reference, false);
	if (result)
		return result;
	reference->format = format;
	reference->channels = channels;
	if (reference->is_bound && reference->resource.resType == CU_RESOURCE_TYPE_LINEAR) {
		reference->resource.res.linear.format = format;
		reference->resource.res.linear.numChannels = (unsigned)channels;
	}
	return driver_reference_leave(CUDA_SUCCESS);
}

/* One setting each; `valid` is looked at before anything is changed. */
#define SETTING(function, parameters, valid, ...)					\
	DRIVER_EXPORT CUresult function parameters					\
	{										\
		DRIVER_CALL;							\
		CUresult result = (valid) ? driver_reference_enter(reference, false) : CUDA_ERROR_INVALID_VALUE; \
											\
		if (result)								\
			return result;							\
		__VA_ARGS__;								\
		return driver_reference_leave(CUDA_SUCCESS);						\
	}

SETTING(cuTexRefSetAddressMode, (CUtexref reference, int axis, CUaddress_mode mode),
	axis >= 0 && axis < 3 && (unsigned)mode <= CU_TR_ADDRESS_MODE_BORDER,
	reference->texture.addressMode[axis] = mode)
SETTING(cuTexRefSetFilterMode, (CUtexref reference, CUfilter_mode mode),
	(unsigned)mode <= CU_TR_FILTER_MODE_LINEAR, reference->texture.filterMode = mode)
SETTING(cuTexRefSetMipmapFilterMode, (CUtexref reference, CUfilter_mode mode),
	(unsigned)mode <= CU_TR_FILTER_MODE_LINEAR, reference->texture.mipmapFilterMode = mode)
SETTING(cuTexRefSetMipmapLevelBias, (CUtexref reference, float bias), true,
	reference->texture.mipmapLevelBias = bias)
SETTING(cuTexRefSetMipmapLevelClamp, (CUtexref reference, float least, float most), true,
	reference->texture.minMipmapLevelClamp = least,
	reference->texture.maxMipmapLevelClamp = most)
SETTING(cuTexRefSetMaxAnisotropy, (CUtexref reference, unsigned int most), true,
	reference->texture.maxAnisotropy = most)
SETTING(cuTexRefSetBorderColor, (CUtexref reference, float *color), color,
	memcpy(reference->texture.borderColor, color, sizeof reference->texture.borderColor))
SETTING(cuTexRefSetFlags, (CUtexref reference, unsigned int flags), !(flags & ~KNOWN_FLAGS),
	reference->texture.flags = flags)

/* ---- asking ---- */

/* `there`: is there such a thing to tell? */
#define QUERY(function, parameters, valid, there, ...)					\
	DRIVER_EXPORT CUresult function parameters					\
	{										\
		DRIVER_CALL;							\
		CUresult result = (valid) ? driver_reference_enter(reference, false) : CUDA_ERROR_INVALID_VALUE; \
											\
		if (result)								\
			return result;							\
		if (!(there))								\
			return driver_reference_leave(CUDA_ERROR_INVALID_VALUE);				\
		__VA_ARGS__;								\
		return driver_reference_leave(CUDA_SUCCESS);						\
	}

static bool is_bound_to(const struct CUtexref_st *reference, CUresourcetype type)
{
	return reference->is_bound && reference->resource.resType == type;
}

QUERY(cuTexRefGetAddress_v2, (CUdeviceptr *out, CUtexref reference), out,
      is_bound_to(reference, CU_RESOURCE_TYPE_LINEAR) ||
	      is_bound_to(reference, CU_RESOURCE_TYPE_PITCH2D),
      *out = reference->address)
QUERY(cuTexRefGetArray, (CUarray *out, CUtexref reference), out,
      is_bound_to(reference, CU_RESOURCE_TYPE_ARRAY), *out = reference->resource.res.array.hArray)
QUERY(cuTexRefGetMipmappedArray, (CUmipmappedArray *out, CUtexref reference), out,
      is_bound_to(reference, CU_RESOURCE_TYPE_MIPMAPPED_ARRAY),
      *out = reference->resource.res.mipmap.hMipmappedArray)
QUERY(cuTexRefGetAddressMode, (CUaddress_mode *out, CUtexref reference, int axis),
      out && axis >= 0 && axis < 3, true, *out = reference->texture.addressMode[axis])
QUERY(cuTexRefGetFilterMode, (CUfilter_mode *out, CUtexref reference), out, true,
      *out = reference->texture.filterMode)
QUERY(cuTexRefGetMipmapFilterMode, (CUfilter_mode *out, CUtexref reference), out, true,
      *out = reference->texture.mipmapFilterMode)
QUERY(cuTexRefGetMipmapLevelBias, (float *out, CUtexref reference), out, true,
      *out = reference->texture.mipmapLevelBias)
QUERY(cuTexRefGetMipmapLevelClamp, (float *least, float *most, CUtexref reference), least && most,
      true, *least = reference->texture.minMipmapLevelClamp,
      *most = reference->texture.maxMipmapLevelClamp)
QUERY(cuTexRefGetMaxAnisotropy, (int *out, CUtexref reference), out, true,
      *out = (int)reference->texture.maxAnisotropy)
QUERY(cuTexRefGetBorderColor, (float *out, CUtexref reference), out, true,
      memcpy(out, reference->texture.borderColor, sizeof reference->texture.borderColor))
QUERY(cuTexRefGetFlags, (unsigned int *out, CUtexref reference), out, true,
      *out = reference->texture.flags)
QUERY(cuTexRefGetFormat, (CUarray_format *format, int *channels, CUtexref reference),
      format && channels, true, *format = reference->format, *channels = reference->channels)

/* ---- surfaces ---- */

DRIVER_EXPORT CUresult cuSurfRefSetArray(CUsurfref handle, CUarray array, unsigned int flags)
{
	DRIVER_CALL;
	struct CUtexref_st *reference = (struct CUtexref_st *)handle;
	const CUDA_RESOURCE_DESC resource = {
		.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = array,
	};
	CUresult result = flags ? CUDA_ERROR_INVALID_VALUE : driver_surface_check(array);

	if (!result)
		result = driver_reference_enter(reference, true);
	if (result)
		return result;
	bind(reference, &resource);
	return driver_reference_leave(CUDA_SUCCESS);
}

DRIVER_EXPORT CUresult cuSurfRefGetArray(CUarray *out, CUsurfref handle)
{
	DRIVER_CALL;
	struct CUtexref_st *reference = (struct CUtexref_st *)handle;
	CUresult result = out ? driver_reference_enter(reference, true) : CUDA_ERROR_INVALID_VALUE;

	if (result)
		return result;
	if (!reference->is_bound)
		return driver_reference_leave(CUDA_ERROR_INVALID_VALUE);
	*out = reference->resource.res.array.hArray;
	return driver_reference_leave(CUDA_SUCCESS);
}
