/* A driver with sparse arrays, as far as their properties go: the one below it has none.  They can't be mapped.
 *
 * Linked to the driver: what is not defined here is found there. */
#define _GNU_SOURCE
#include "../../native/generated/cuda_abi.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

/* Tiles have 64 KiB; those of 32 bits, in two and three dimensions. */
#define TILE_BYTES 65536ull

struct sparse {
	const void *array;
	bool mipmapped;
	CUDA_ARRAY_SPARSE_PROPERTIES properties;
};

static struct sparse known[8];
static unsigned count;

static void *below(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

static void know(const void *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, bool mipmapped)
{
	struct sparse *sparse = &known[count++ % 8];

	*sparse = (struct sparse){ .array = array, .mipmapped = mipmapped };
	sparse->properties.tileExtent.width = shape->Depth ? 32 : 128;
	sparse->properties.tileExtent.height = shape->Depth ? 32 : 128;
	sparse->properties.tileExtent.depth = shape->Depth ? 16 : 1;
	if (mipmapped) {
		while (shape->Width >> sparse->properties.miptailFirstLevel >= sparse->properties.tileExtent.width)
			sparse->properties.miptailFirstLevel++;
		sparse->properties.miptailSize = TILE_BYTES;
		sparse->properties.flags = 1;	/* CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL */
	}
}

/* Another may be made where it was. */
static void forget(const void *array)
{
	for (unsigned i = 0; i < 8; i++)
		if (known[i].array == array)
			known[i].array = NULL;
}

static CUresult tell(CUDA_ARRAY_SPARSE_PROPERTIES *properties, const void *array, bool mipmapped)
{
	for (unsigned i = 0; i < 8 && properties && array; i++)
		if (known[i].array == array && known[i].mipmapped == mipmapped) {
			*properties = known[i].properties;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	CUresult (*next)(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *) = below("cuArray3DCreate_v2");
	CUDA_ARRAY3D_DESCRIPTOR plain = *shape;
	CUresult result;

	plain.Flags &= ~CUDA_ARRAY3D_SPARSE;
	result = next(array, &plain);
	if (result == CUDA_SUCCESS && shape->Flags & CUDA_ARRAY3D_SPARSE)
		know(*array, shape, false);
	return result;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
	CUresult (*next)(CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned int) =
		below("cuMipmappedArrayCreate");
	CUDA_ARRAY3D_DESCRIPTOR plain = *shape;
	CUresult result;

	plain.Flags &= ~CUDA_ARRAY3D_SPARSE;
	result = next(array, &plain, levels);
	if (result == CUDA_SUCCESS && shape->Flags & CUDA_ARRAY3D_SPARSE)
		know(*array, shape, true);
	return result;
}

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, CUarray array)
{
	return tell(properties, array, false);
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, CUmipmappedArray array)
{
	return tell(properties, array, true);
}

CUresult cuArrayDestroy(CUarray array)
{
	CUresult (*next)(CUarray) = below("cuArrayDestroy");

	forget(array);
	return next(array);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	CUresult (*next)(CUmipmappedArray) = below("cuMipmappedArrayDestroy");

	forget(array);
	return next(array);
}
