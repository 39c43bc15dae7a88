/* managed.h - managed memory: what the rest of the shim tells it (managed.c). */
#ifndef FARBUS_CLIENT_MANAGED_H
#define FARBUS_CLIENT_MANAGED_H

#include "../ground/thread.h"

/* Is it an address of managed memory? */
bool client_managed_at(uint64_t address);

/* May a program have some?  Not with GPUs of several servers, nor of one that is older, nor in pages of another size. */
bool client_managed_offered(void);
/* CUDA_ERROR_NOT_SUPPORTED, and why, once. */
CUresult client_managed_refuse(void);

/* Pinned memory that kernels use by its address (FARBUS_MAPPED_MEMORY=managed): can it be had? */
CUresult client_mapped_check(void);

/* A stream's name on the wire, with the lane in CUDA's own per thread: no two threads' are one. */
static inline uint64_t client_managed_key(uint64_t stream)
{
	return stream == (uint64_t)(uintptr_t)CU_STREAM_PER_THREAD
		       ? stream | (uint64_t)client_thread()->lane << 32
		       : stream;
}

/* Around posting work to a stream (named as on the wire) that may use whatever the stream
 * may: kernels and graphs.  No lock may be held. */
CUresult client_managed_before(uint64_t stream, bool graph);
void client_managed_after(uint64_t stream);
/* Around posting work that reads or writes [address, address + bytes) and nothing else. */
CUresult client_managed_before_range(uint64_t stream, uint64_t address, uint64_t bytes, bool writes);
void client_managed_after_range(uint64_t stream, uint64_t address, uint64_t bytes, bool writes);

/* There is some from here on.  Copies: what nothing runs on comes back. */
void client_managed_begin(void);
void client_managed_bring(void);

#endif
