/* tensor_map.h - what a tensor map holds: the driver makes it (api/tensor.c), kernels copy by it (tensor.c).
 *
 * The layout is this library's own: cuda.h calls the 128 bytes opaque.  Types and modes are numbered as
 * tensormap.replace numbers them (PTX ISA, "tensormap.replace").
 */
#ifndef FARBUS_SOFTGPU_TENSOR_MAP_H
#define FARBUS_SOFTGPU_TENSOR_MAP_H

#include <stdint.h>

#define TENSOR_RANK_MAX 5u
#define TENSOR_MAP_BYTES 128u
#define TENSOR_MAP_MAGIC 0x70616d74u	/* "tmap" */

enum tensor_kind { TENSOR_TILED, TENSOR_IM2COL, TENSOR_IM2COL_WIDE };

enum tensor_type {
	TENSOR_U8, TENSOR_U16, TENSOR_U32, TENSOR_S32, TENSOR_U64, TENSOR_S64, TENSOR_F16, TENSOR_F32,
	TENSOR_F32_FTZ, TENSOR_F64, TENSOR_BF16, TENSOR_TF32, TENSOR_TF32_FTZ,
	TENSOR_TYPES,	/* those of 4 and 6 bits follow */
};

enum tensor_swizzle { TENSOR_SWIZZLE_NONE, TENSOR_SWIZZLE_32, TENSOR_SWIZZLE_64, TENSOR_SWIZZLE_128 };

/* What stays together within 128 bytes. */
enum tensor_atom { TENSOR_ATOM_16, TENSOR_ATOM_32, TENSOR_ATOM_32_FLIP_8, TENSOR_ATOM_64 };

/* Dimension 0 is the one whose elements lie side by side. */
struct tensor_map {
	uint32_t magic;
	uint8_t kind, type, interleave, swizzle, atom;
	uint8_t fills_nan;	/* what lies outside of the tensor; else zero */
	uint8_t last_dimension;	/* the rank less one */
	uint8_t wide_mode;
	uint64_t address;
	uint64_t strides[TENSOR_RANK_MAX - 1];	/* bytes, of dimensions 1 to 4 */
	uint32_t last[TENSOR_RANK_MAX];		/* the tensor's extents less one */
	uint8_t last_in_box[TENSOR_RANK_MAX];	/* tiled: the box's extents less one */
	uint8_t skipped[TENSOR_RANK_MAX];	/* elements between two that are copied */
	/* im2col: of width, height and depth */
	int16_t lower[TENSOR_RANK_MAX - 2], upper[TENSOR_RANK_MAX - 2];
	uint16_t channels, pixels;
};

_Static_assert(sizeof(struct tensor_map) <= TENSOR_MAP_BYTES, "cuda.h has room for 128 bytes");

/* Bytes of an element, indexed by enum tensor_type. */
static const uint8_t tensor_element_bytes[TENSOR_TYPES] = { 1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4 };

/* The bytes within which chunks are exchanged; 0: none are. */
static inline uint32_t tensor_swizzle_span(const struct tensor_map *map)
{
	return map->swizzle == TENSOR_SWIZZLE_NONE ? 0 : 16u << map->swizzle;
}

#endif
