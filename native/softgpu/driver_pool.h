/* driver_pool.h - memory pools: a store of memory, what of it is used, and by whom.
 *
 * In strict mode a pool is an account only: each request gets memory of its own, which
 * goes as soon as it is given back, so that use behind that is found.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_POOL_H
#define FARBUS_SOFTGPU_DRIVER_POOL_H

#include "driver_memory.h"
#include "driver_store.h"

struct CUmemPoolHandle_st {
	struct CUmemPoolHandle_st *next;	/* of all */
	struct driver_device *device;
	bool is_default;
	bool is_imported;		/* has no store: its file is another process's */
	bool is_shareable;
	int fd;				/* of a shareable or imported pool, or -1 */
	/* All below under driver_pool_lock. */
	unsigned references;		/* the handle and its allocations */
	uint64_t release_threshold;
	int reuse[3];			/* FOLLOW_EVENT, OPPORTUNISTIC, INTERNAL */
	size_t used, used_high;		/* bytes */
	unsigned char access[BOARD_COUNT_MAX];	/* CUmemAccess_flags, by ordinal */
	struct driver_store store;
};

extern pthread_mutex_t driver_pool_lock;

/* A pool with a handle, or NULL.  Takes the file over. */
struct CUmemPoolHandle_st *driver_pool_make(struct driver_device *device, int fd, size_t max);
/* Ready, and a pool? */
CUresult driver_pool_of(CUmemoryPool pool);
/* May the device use memory of the pool? */
bool driver_pool_may_access(struct CUmemPoolHandle_st *pool, CUdevice ordinal);

#endif
