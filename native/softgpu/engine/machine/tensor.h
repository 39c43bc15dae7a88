/* tensor.h - what decode/tensor.c and tensor.c agree on. */
#ifndef FARBUS_SOFTGPU_TENSOR_H
#define FARBUS_SOFTGPU_TENSOR_H

#include "mbarrier.h"
#include "tensor_map.h"

#define TENSOR_ROWS 4	/* of .tile::gather4 and .tile::scatter4 */

enum tensor_mode {
	TENSOR_MODE_TILE,
	TENSOR_MODE_ROWS,	/* .tile::gather4, .tile::scatter4 */
	TENSOR_MODE_IM2COL,
};

/* A copy or reduction by a tensor map, between global and shared memory. */
struct tensor_copy {
	enum tensor_mode mode;
	uint8_t rank;
	bool stores;		/* to global memory */
	bool pairs;		/* .cta_group::2: the barrier may be the peer block's */
	enum bulk_operation operation;
	int32_t map, shared;	/* slots of pointers */
	int32_t barrier;	/* slot of a pointer, or -1 */
	int32_t ranks;		/* slot of the multicast mask, or -1 */
	int32_t coordinates[TENSOR_RANK_MAX];	/* slots */
	int32_t offsets[TENSOR_RANK_MAX - 2];	/* slots, or -1: of im2col */
};

/* What tensormap.replace replaces: instruction.x. */
enum tensor_field {
	TENSOR_FIELD_ADDRESS, TENSOR_FIELD_RANK, TENSOR_FIELD_BOX, TENSOR_FIELD_EXTENT, TENSOR_FIELD_STRIDE,
	TENSOR_FIELD_STEP, TENSOR_FIELD_TYPE, TENSOR_FIELD_INTERLEAVE, TENSOR_FIELD_SWIZZLE, TENSOR_FIELD_ATOM,
	TENSOR_FIELD_FILL,
};

#endif
