/* managed.h - managed memory: what the rest of the shim tells it (managed.c), and what there is (managed_alloc.c). */
#ifndef FARBUS_CLIENT_MANAGED_H
#define FARBUS_CLIENT_MANAGED_H

#include "../client.h"

/* Has the program any?  Else nothing here costs anything. */
static inline bool client_managed_any(void)
{
	return atomic_load_explicit(&farbus_client.managed, memory_order_relaxed) != NULL;
}

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

/* A node of any kind: refused where it would wait for a word of managed memory (words.c). */
CUresult client_words_check(const CUgraphNodeParams *params);

/* There is some from here on.  Copies: what nothing runs on comes back. */
void client_managed_begin(void);
void client_managed_bring(void);

/* ---- managed_alloc.c ---- */

/* Pinned memory that is managed, of the current context. */
CUresult client_mapped_alloc(uint64_t bytes, unsigned flags, uint64_t *address);
/* cuMemFree of a managed allocation, or cuMemFreeHost; false: it is none. */
bool client_managed_free(uint64_t address, CUresult *result);
/* A variable of a module that is managed: it can be touched from here on. */
CUresult client_managed_variable(struct client_library *library, struct client_context *context,
				 uint64_t address, uint64_t bytes);
void client_managed_forget_library(const struct client_library *library);
void client_managed_forget_context(const struct client_context *context);

#endif
