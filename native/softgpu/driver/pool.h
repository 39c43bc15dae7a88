/* pool.h - memory pools: a store of memory, what of it is used, and by whom.
 *
 * In strict mode a pool is an account only: each request gets memory of its own, which
 * goes as soon as it is given back, so that use behind that is found.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_POOL_H
#define FARBUS_SOFTGPU_DRIVER_POOL_H

#include "store.h"

struct CUmemPoolHandle_st {
	struct CUmemPoolHandle_st *next;	/* of all */
	struct driver_device *device;
	bool is_default;
	bool is_imported;		/* has no store: its file is another process's */
	bool is_shareable;
	int fd;				/* of a shareable or imported pool, or -1 */
	/* All below under driver_pool_lock. */
	unsigned references;		/* the handle, its allocations, and calls that use it */
	uint64_t release_threshold;
	int reuse[3];			/* FOLLOW_EVENT, OPPORTUNISTIC, INTERNAL */
	size_t used, used_high;		/* bytes */
	unsigned char access[BOARD_COUNT_MAX];	/* CUmemAccess_flags, by ordinal */
	struct driver_store store;
};

extern pthread_mutex_t driver_pool_lock;

CUresult driver_pool_open(struct driver_device *device);
void driver_pool_close(struct driver_device *device);
/* A pool with a handle, or NULL.  Takes the file over. */
struct CUmemPoolHandle_st *driver_pool_make(struct driver_device *device, int fd, size_t max);
/* Ready, and a pool? */
CUresult driver_pool_of(CUmemoryPool pool);
/* The pool, or the device's current one (NULL), held; NULL: it is none. */
struct CUmemPoolHandle_st *driver_pool_hold(struct driver_device *device, CUmemoryPool pool);
void driver_pool_drop(struct CUmemPoolHandle_st *pool);
/* The device's current one from now on; CUDA_ERROR_INVALID_VALUE where another thread has destroyed it. */
CUresult driver_pool_set_current(struct driver_device *device, struct CUmemPoolHandle_st *pool);
/* It has no handle any more; its allocations live on until they are freed. */
void driver_pool_destroy(struct CUmemPoolHandle_st *pool);

/* A block of the pool's store, as driver_store_take gives it, for what the pool itself allows of
 * `allowed`.  0 or -ENOMEM. */
int driver_pool_take(struct CUmemPoolHandle_st *pool, size_t bytes, struct CUstream_st *stream,
		     unsigned allowed, struct driver_block **block, struct driver_point *after);
/* An allocation of the pool, not of its store, is there; giving it takes it off. */
void driver_pool_count(struct CUmemPoolHandle_st *pool, size_t bytes);
/* Nothing uses it any more once the point, which is taken over, is reached; NULL: now.  `block`:
 * of the store, or NULL. */
void driver_pool_give(struct CUmemPoolHandle_st *pool, size_t bytes, struct driver_block *block,
		      const struct driver_point *point);

/* Where the program waits for something: give back what pools need not keep. */
void driver_pool_settle(void);
/* Give back all that the pools of a device do not use. */
void driver_pool_trim(struct driver_device *device);
/* The same, or else wait for what was freed in some stream; false: there is nothing. */
bool driver_pool_relieve(struct driver_device *device);

/* May the device use memory of the pool? */
bool driver_pool_may_access(struct CUmemPoolHandle_st *pool, CUdevice ordinal);

#endif
