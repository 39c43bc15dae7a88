/* texture.h - texture and surface objects: what they were made from, and the engine's handles. */
#ifndef FARBUS_SOFTGPU_DRIVER_TEXTURE_H
#define FARBUS_SOFTGPU_DRIVER_TEXTURE_H

#include "array.h"

struct driver_texture {
	struct driver_texture *next;
	struct CUctx_st *context;
	uint64_t handle;
	bool is_surface;
	CUDA_RESOURCE_DESC resource;
	CUDA_TEXTURE_DESC texture;
	CUDA_RESOURCE_VIEW_DESC view;
	bool has_view;
};

/* The engine's handle for a texture, or without `texture` for a surface, as
 * objects and references have it.  The caller removes it. */
CUresult driver_texture_make(const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *texture,
			     const CUDA_RESOURCE_VIEW_DESC *view, uint64_t *handle);
/* May kernels write to it as a surface? */
CUresult driver_surface_check(CUarray array);

/* An object like this one, which is a copy of what becomes the new one. */
CUresult driver_texture_add(const struct driver_texture *object, unsigned long long *out);
/* False: there is no such object. */
bool driver_texture_remove(unsigned long long handle, bool is_surface);
bool driver_texture_find(unsigned long long handle, bool is_surface, struct driver_texture *out);
void driver_texture_end_context(struct CUctx_st *context);

#endif
