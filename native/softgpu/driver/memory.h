/* memory.h - what memory the program has: device, managed, pinned host.
 *
 * Every allocation is a record in one table, sorted by address, so that any
 * pointer can be told what it points into.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_MEMORY_H
#define FARBUS_SOFTGPU_DRIVER_MEMORY_H

#include "context.h"

enum driver_memory_kind {
	DRIVER_MEMORY_NONE,	/* pageable host memory: not ours */
	DRIVER_MEMORY_DEVICE,
	DRIVER_MEMORY_MANAGED,
	DRIVER_MEMORY_PINNED,	/* cuMemHostAlloc */
	DRIVER_MEMORY_REGISTERED,	/* cuMemHostRegister */
	DRIVER_MEMORY_VIRTUAL,	/* cuMemMap: of no context */
	DRIVER_MEMORY_IPC,	/* cuIpcOpenMemHandle */
	DRIVER_MEMORY_MODULE,	/* variables of a module: not the program's to free */
};

struct driver_allocation {
	uintptr_t base;
	size_t size;			/* bytes, as asked for */
	enum driver_memory_kind kind;
	unsigned flags;			/* of cuMemHostAlloc, cuMemHostRegister, cuMemAllocManaged */
	bool open;			/* virtual: some device may use it */
	bool multicast;			/* virtual: and only write to it, which goes to what is bound there */
	bool freeing;			/* cuMemFreeAsync is queued */
	bool sync;			/* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS */
	uint64_t id;			/* CU_POINTER_ATTRIBUTE_BUFFER_ID */
	struct CUctx_st *context;	/* that it was made in; NULL: in none (virtual, imported) */
	struct driver_device *device;	/* NULL: virtual memory of the host */
	struct CUmemPoolHandle_st *pool;	/* or NULL */
	struct driver_block *block;	/* of the pool's store, or NULL */
};

CUresult driver_memory_open(struct driver_device *device);
void driver_memory_close(struct driver_device *device);
/* Free what a context owns; nothing of it is in use any more, but pinned memory by other contexts may be: then that
 * stays where it is. */
void driver_memory_end_context(struct CUctx_st *context, bool pinned_is_in_use);
bool driver_memory_has_pinned(struct CUctx_st *context);

/* The allocation that holds the address; false when there is none. */
bool driver_memory_find(uintptr_t address, struct driver_allocation *allocation);
/* The same for a call that acts on it: its context does not end before that returns; one that is ending has none. */
bool driver_memory_use(uintptr_t address, struct driver_allocation *allocation);
/* A variable of a module that is managed counts as managed memory, virtual memory of the host as pinned. */
enum driver_memory_kind driver_memory_kind_of(uintptr_t address);
/* Is this memory of a device, for a copy's side that must be? */
bool driver_memory_is_on_device(enum driver_memory_kind kind);
/* CUDA_ERROR_INVALID_VALUE unless all bytes lie in one allocation, or in mapped
 * ones side by side, that the device can reach. */
CUresult driver_memory_check(uintptr_t address, size_t bytes);
/* The same for memory that is only written to, by driver_virtual_put. */
CUresult driver_memory_check_target(uintptr_t address, size_t bytes);

/* Enter an allocation into the table; what overlaps another one can only be
 * memory that the program registers: CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
 * or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult driver_memory_remember(const struct driver_allocation *allocation);

/* cuMemSetAccess has let devices use a mapping, or no longer does. */
void driver_memory_set_open(uintptr_t address, bool open);
/* It is a variable that is managed memory. */
void driver_memory_set_managed(uintptr_t address);
/* False: no allocation holds the address. */
bool driver_memory_set_sync(uintptr_t address, bool sync);

/* Device memory for `context`; CUDA_ERROR_OUT_OF_MEMORY after queued frees were
 * waited for in vain. */
CUresult driver_memory_take(struct CUctx_st *context, size_t bytes, size_t align,
			    enum driver_memory_kind kind, struct CUmemPoolHandle_st *pool,
			    uintptr_t *address);
/* Give back what take gave. */
void driver_memory_give(uintptr_t address);
/* The same, but the memory stays reserved for one of the context that takes as much, until that is trimmed, the
 * device has no other, or the context ends. */
void driver_memory_keep(uintptr_t address);
/* False: none of that size is kept. */
bool driver_memory_take_kept(struct CUctx_st *context, size_t bytes, uintptr_t *address);
size_t driver_memory_kept(const struct driver_device *device);
/* False: nothing was kept. */
bool driver_memory_trim_kept(const struct driver_device *device);
/* Mark for a queued free, for a call that acts on it.  False when the address is none that the program may
 * free, or is being freed already. */
bool driver_memory_begin_free(uintptr_t address, struct driver_allocation *allocation);
void driver_memory_end_free(uintptr_t address);

/* Take what is a block of a pool's store out of the table, for its pool; false for
 * everything else. */
bool driver_memory_forget_block(uintptr_t address, struct driver_allocation *allocation);

#endif
