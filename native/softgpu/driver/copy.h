/* copy.h - copies: boxes of bytes from one place to another.
 *
 * An operation is made at once (driver_copy_submit), or prepared for a graph, whose memory may have
 * been freed until it runs.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_COPY_H
#define FARBUS_SOFTGPU_DRIVER_COPY_H

#include "memory.h"
#include "queue.h"

/* Operations on at most this many bytes run in the caller when their turn is now:
 * waking a worker, and whoever waits for it, takes as long (some 100 us). */
#define DRIVER_COPY_SHORT (1ul << 20)

/* A box of bytes: `width` bytes in each of `height` rows in each of `depth`
 * slices. */
struct copy_box {
	size_t width, height, depth;
};

struct copy_side {
	uintptr_t address;		/* of the first byte */
	size_t pitch;			/* bytes from row to row */
	size_t slice;			/* bytes from slice to slice */
};

/* What one side of a 2D or 3D copy says; 2D is 3D with one slice. */
struct copy_place {
	CUmemorytype type;
	const void *host;
	CUdeviceptr device;
	CUarray array;
	size_t x, y, z;		/* bytes, rows, slices */
	size_t pitch, height;
};

/* Copies between what two places say. */
struct copy_sides {
	struct copy_side to, from;
	enum driver_memory_kind to_kind, from_kind;
	bool is_empty;
};

/* Bytes from the first to behind the last; SIZE_MAX if that can't be. */
size_t driver_copy_span(const struct copy_box *box, const struct copy_side *side);
/* What the API says of a copy as two places, and the other way round. */
CUresult driver_copy_read(const CUDA_MEMCPY3D *copy, struct copy_box *box, struct copy_place *to,
			  struct copy_place *from);
void driver_copy_describe(const struct copy_box *box, const struct copy_place *to,
			  const struct copy_place *from, CUDA_MEMCPY3D *copy);
/* Where both sides are, if all of them is memory. */
CUresult driver_copy_settle(const struct copy_box *box, const struct copy_place *to,
			    const struct copy_place *from, struct copy_sides *sides);

CUresult driver_copy_submit(struct CUstream_st *stream, const struct copy_box *box,
			    const struct copy_sides *sides, bool async);
CUresult driver_copy_prepare(const CUDA_MEMCPY3D *copy, struct driver_operation **operation);

#endif
