#include "../driver/texture.h"

#include "../driver/context_stack.h"

DRIVER_EXPORT CUresult cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource,
					 const CUDA_TEXTURE_DESC *texture,
					 const CUDA_RESOURCE_VIEW_DESC *view)
{
	DRIVER_CALL;
	struct driver_texture object = { 0 };
	CUresult result = driver_context_enter(&object.context);

	if (result)
		return result;
	if (!out || !resource || !texture)
		return CUDA_ERROR_INVALID_VALUE;
	object.resource = *resource;
	object.texture = *texture;
	object.has_view = view;
	if (view)
		object.view = *view;
	return driver_texture_add(&object, out);
}

DRIVER_EXPORT CUresult cuSurfObjectCreate(CUsurfObject *out, const CUDA_RESOURCE_DESC *resource)
{
	DRIVER_CALL;
	struct driver_texture object = { .is_surface = true };
	CUresult result = driver_context_enter(&object.context);

	if (result)
		return result;
	if (!out || !resource || resource->resType != CU_RESOURCE_TYPE_ARRAY)
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_surface_check(resource->res.array.hArray);
	if (result)
		return result;
	object.resource = *resource;
	return driver_texture_add(&object, out);
}

static CUresult destroy(unsigned long long handle, bool surface)
{
	CUresult result = driver_ready();

	if (!result && !driver_texture_remove(handle, surface))
		result = CUDA_ERROR_INVALID_VALUE;
	return result;
}

DRIVER_EXPORT CUresult cuTexObjectDestroy(CUtexObject handle)
{
	DRIVER_CALL;
	return destroy(handle, false);
}

DRIVER_EXPORT CUresult cuSurfObjectDestroy(CUsurfObject handle)
{
	DRIVER_CALL;
	return destroy(handle, true);
}

/* ---- asking ---- */

static CUresult get(unsigned long long handle, bool surface, struct driver_texture *out)
{
	CUresult result = driver_ready();

	if (!result && !driver_texture_find(handle, surface, out))
		result = CUDA_ERROR_INVALID_VALUE;
	return result;
}

DRIVER_EXPORT CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUtexObject handle)
{
	DRIVER_CALL;
	struct driver_texture object;
	CUresult result = out ? get(handle, false, &object) : CUDA_ERROR_INVALID_VALUE;

	if (!result)
		*out = object.resource;
	return result;
}

DRIVER_EXPORT CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *out, CUtexObject handle)
{
	DRIVER_CALL;
	struct driver_texture object;
	CUresult result = out ? get(handle, false, &object) : CUDA_ERROR_INVALID_VALUE;

	if (!result)
		*out = object.texture;
	return result;
}

DRIVER_EXPORT CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *out,
						      CUtexObject handle)
{
	DRIVER_CALL;
	struct driver_texture object;
	CUresult result = out ? get(handle, false, &object) : CUDA_ERROR_INVALID_VALUE;

	if (!result && !object.has_view)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		*out = object.view;
	return result;
}

DRIVER_EXPORT CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUsurfObject handle)
{
	DRIVER_CALL;
	struct driver_texture object;
	CUresult result = out ? get(handle, true, &object) : CUDA_ERROR_INVALID_VALUE;

	if (!result)
		*out = object.resource;
	return result;
}
