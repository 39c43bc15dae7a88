/* array.h - arrays (array.c). */
#ifndef FARBUS_CLIENT_ARRAY_H
#define FARBUS_CLIENT_ARRAY_H

#include "client.h"

/* A copy of which one side at least is an array (array.c). */
CUresult client_array_copy(const CUDA_MEMCPY3D *copy, CUstream stream, bool async);

/* What a copy takes of the rows of one side, in bytes, rows and slices. */
struct client_box {
	size_t x, y, z;
	size_t width, height, depth;
};

/* A side's pitch and the height of its slices as they are meant, where the program left one out;
 * CUDA_ERROR_INVALID_VALUE where rows or slices would lie in each other (copy.c). */
CUresult client_rows_settle(const struct client_box *box, size_t *pitch, size_t *slice_height);

/* Bytes of a texel; 0 for formats of which none is one. */
unsigned client_texel_bytes(CUarray_format format, unsigned channels);

#endif
