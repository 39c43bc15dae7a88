/* mipmap.h - mipmapped arrays: an array for each level, each half as large as the one before. */
#ifndef FARBUS_SOFTGPU_DRIVER_MIPMAP_H
#define FARBUS_SOFTGPU_DRIVER_MIPMAP_H

#include "array.h"

struct CUmipmappedArray_st {
	struct CUmipmappedArray_st *next;	/* of all of them */
	struct CUctx_st *context;
	unsigned level_count;
	struct CUarray_st *levels[ENGINE_LEVELS_MAX];
};

CUresult driver_mipmap_make(CUmipmappedArray *out, struct CUctx_st *context,
			    const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned level_count);
/* It has no handle any more, and nothing uses it. */
void driver_mipmap_free(struct CUmipmappedArray_st *mipmap);
CUresult driver_mipmap_of(CUmipmappedArray handle, struct CUmipmappedArray_st **mipmap);
void driver_mipmap_end_context(struct CUctx_st *context);

#endif
