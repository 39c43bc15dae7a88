/* array.h - CUDA arrays. */
#ifndef FARBUS_SOFTGPU_DRIVER_ARRAY_H
#define FARBUS_SOFTGPU_DRIVER_ARRAY_H

#include "../engine/engine.h"
#include "context.h"

/* cuda.h: flags of CUDA_ARRAY3D_DESCRIPTOR */
#define DRIVER_ARRAY_LAYERED 0x01u
#define DRIVER_ARRAY_SURFACE 0x02u
#define DRIVER_ARRAY_CUBEMAP 0x04u
#define DRIVER_ARRAY_GATHER 0x08u

#define DRIVER_PLANES_MAX 2

/* Rows are padded to a pitch; nothing else is hidden in an array here. */
struct CUarray_st {
	struct CUarray_st *next;	/* of all arrays */
	struct CUctx_st *context;
	CUDA_ARRAY3D_DESCRIPTOR descriptor;
	size_t texel_bytes, pitch, slice;
	size_t rows, slices;		/* at least 1 */
	uintptr_t memory;
	struct CUmipmappedArray_st *mipmap;	/* whose level it is, or NULL */
	/* Of video (CU_AD_FORMAT_NV12 and its like): no texels of its own, but arrays that lie in its memory. */
	struct CUarray_st *planes[DRIVER_PLANES_MAX];
	struct CUarray_st *whole;	/* whose plane it is, or NULL */
};

CUresult driver_array_make(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor);
/* Nothing uses it any more. */
void driver_array_free(struct CUarray_st *array);

CUresult driver_array_of(CUarray handle, struct CUarray_st **array);
/* One that has texels: CUDA_ERROR_INVALID_VALUE for one of planes. */
CUresult driver_array_of_texels(CUarray handle, struct CUarray_st **array);
/* Are arrays of this format made of planes? */
bool driver_format_is_planar(CUarray_format format);
/* 0 when the format is none that textures can be made of here. */
size_t driver_format_bytes(CUarray_format format);
enum engine_texel driver_format_texel(CUarray_format format);
void driver_array_end_context(struct CUctx_st *context);

#endif
