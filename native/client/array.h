/* array.h - arrays (array.c). */
#ifndef FARBUS_CLIENT_ARRAY_H
#define FARBUS_CLIENT_ARRAY_H

#include "client.h"

/* A copy of which one side at least is an array (array.c). */
CUresult client_array_copy(const CUDA_MEMCPY3D *copy, CUstream stream, bool async);

/* Bytes of a texel; 0 for formats of which none is one. */
unsigned client_texel_bytes(CUarray_format format, unsigned channels);

#endif
