/* array.h - arrays (array.c). */
#ifndef FARBUS_CLIENT_ARRAY_H
#define FARBUS_CLIENT_ARRAY_H

#include "../client.h"

/* A copy in a stream of the server that has the arrays, and names them as here. */
CUresult client_array_copy_at(const CUDA_MEMCPY3D *given, uint64_t stream, bool async);
/* Whose a side of a copy is; NULL: this process's. */
struct client_session *client_side_session(CUmemorytype type, CUarray array, const void *host,
					   CUdeviceptr device);
/* Bytes of a texel; 0 for formats of which none is one. */
unsigned client_texel_bytes(CUarray_format format, unsigned channels);

#endif
