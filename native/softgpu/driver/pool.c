#include "pool.h"

#include "../engine/engine.h"
#include "arena.h"
#include "handle.h"

#include <stdlib.h>
#include <unistd.h>

pthread_mutex_t driver_pool_lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUmemPoolHandle_st *all_pools;	/* under the lock */
static unsigned unused_blocks;	/* atomic: given back since the last settling */

/* ---- life ---- */

struct CUmemPoolHandle_st *driver_pool_make(struct driver_device *device, int fd, size_t max)
{
	struct CUmemPoolHandle_st *pool = calloc(1, sizeof *pool);

	if (!pool)
		return NULL;
	pool->device = device;
	pool->references = 1;
	pool->fd = fd;
	for (unsigned i = 0; i < 3; i++)
		pool->reuse[i] = 1;
	pool->access[device->ordinal] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	/* At most what is asked for, but whole granules: the smallest pool holds something. */
	if (max % DRIVER_ARENA_GRANULE)
		max = max < SIZE_MAX - DRIVER_ARENA_GRANULE ?
		      max + DRIVER_ARENA_GRANULE - max % DRIVER_ARENA_GRANULE : 0;
	pool->store = (struct driver_store){ .device = device, .fd = fd, .max = max };
	if (driver_handle_add(pool, DRIVER_KIND_POOL, NULL)) {
		free(pool);
		return NULL;
	}
	pthread_mutex_lock(&driver_pool_lock);
	pool->next = all_pools;
	all_pools = pool;
	pthread_mutex_unlock(&driver_pool_lock);
	return pool;
}

/* With the lock. */
static void pool_drop(struct CUmemPoolHandle_st *pool)
{
	struct CUmemPoolHandle_st **link = &all_pools;

	if (--pool->references)
		return;
	while (*link != pool)
		link = &(*link)->next;
	*link = pool->next;
	driver_store_close(&pool->store);
	if (pool->fd >= 0)
		close(pool->fd);
	free(pool);
}

CUresult driver_pool_open(struct driver_device *device)
{
	device->default_pool = driver_pool_make(device, -1, 0);
	if (!device->default_pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	device->default_pool->is_default = true;
	device->current_pool = device->default_pool;
	return CUDA_SUCCESS;
}

void driver_pool_close(struct driver_device *device)
{
	if (!device->default_pool)
		return;
	driver_handle_remove(device->default_pool, DRIVER_KIND_POOL);
	pthread_mutex_lock(&driver_pool_lock);
	pool_drop(device->default_pool);
	pthread_mutex_unlock(&driver_pool_lock);
	device->default_pool = device->current_pool = NULL;
}

struct CUmemPoolHandle_st *driver_pool_hold(struct driver_device *device, CUmemoryPool pool)
{
	pthread_mutex_lock(&driver_pool_lock);
	if (!pool)
		pool = device->current_pool;
	else if (!driver_handle_is(pool, DRIVER_KIND_POOL))
		pool = NULL;
	if (pool)
		pool->references++;
	pthread_mutex_unlock(&driver_pool_lock);
	return pool;
}

CUresult driver_pool_set_current(struct driver_device *device, struct CUmemPoolHandle_st *pool)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	pthread_mutex_lock(&driver_pool_lock);
	/* Another thread may destroy it, and then it can be current no more. */
	if (driver_handle_is(pool, DRIVER_KIND_POOL)) {
		device->current_pool = pool;
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&driver_pool_lock);
	return result;
}

void driver_pool_drop(struct CUmemPoolHandle_st *pool)
{
	pthread_mutex_lock(&driver_pool_lock);
	pool_drop(pool);
	pthread_mutex_unlock(&driver_pool_lock);
}

void driver_pool_destroy(struct CUmemPoolHandle_st *pool)
{
	pthread_mutex_lock(&driver_pool_lock);
	if (pool->device->current_pool == pool)
		pool->device->current_pool = pool->device->default_pool;
	pool_drop(pool);
	pthread_mutex_unlock(&driver_pool_lock);
}

CUresult driver_pool_of(CUmemoryPool pool)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	return driver_handle_is(pool, DRIVER_KIND_POOL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool driver_pool_may_access(struct CUmemPoolHandle_st *pool, CUdevice ordinal)
{
	return __atomic_load_n(&pool->access[ordinal], __ATOMIC_RELAXED) != 0;
}

/* ---- accounts ---- */

/* With the lock. */
static void count(struct CUmemPoolHandle_st *pool, size_t bytes)
{
	pool->references++;
	pool->used += bytes;
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
}

void driver_pool_count(struct CUmemPoolHandle_st *pool, size_t bytes)
{
	pthread_mutex_lock(&driver_pool_lock);
	count(pool, bytes);
	pthread_mutex_unlock(&driver_pool_lock);
}

int driver_pool_take(struct CUmemPoolHandle_st *pool, size_t bytes, struct CUstream_st *stream,
		     unsigned allowed, struct driver_block **block, struct driver_point *after)
{
	unsigned reuse;
	int error;

	pthread_mutex_lock(&driver_pool_lock);
	reuse = (pool->reuse[1] ? DRIVER_REUSE_COMPLETE : 0) |
		(pool->reuse[2] ? DRIVER_REUSE_PENDING : 0);
	error = driver_store_take(&pool->store, bytes, stream, reuse & allowed, block, after);
	if (!error)
		count(pool, bytes);
	pthread_mutex_unlock(&driver_pool_lock);
	return error;
}

void driver_pool_give(struct CUmemPoolHandle_st *pool, size_t bytes, struct driver_block *block,
		      const struct driver_point *point)
{
	pthread_mutex_lock(&driver_pool_lock);
	pool->used -= bytes;
	if (block) {
		driver_store_give(&pool->store, block, point);
		__atomic_fetch_add(&unused_blocks, 1, __ATOMIC_RELAXED);
	}
	pool_drop(pool);
	pthread_mutex_unlock(&driver_pool_lock);
}

void driver_pool_settle(void)
{
	struct CUmemPoolHandle_st *pool;

	if (!__atomic_load_n(&unused_blocks, __ATOMIC_RELAXED))
		return;
	pthread_mutex_lock(&driver_pool_lock);
	__atomic_store_n(&unused_blocks, 0, __ATOMIC_RELAXED);
	for (pool = all_pools; pool; pool = pool->next) {
		struct driver_point point;

		driver_store_settle(&pool->store);
		driver_store_trim(&pool->store, pool->release_threshold);
		/* What still waits is for the next time. */
		if (driver_store_pending(&pool->store, &point)) {
			__atomic_fetch_add(&unused_blocks, 1, __ATOMIC_RELAXED);
			driver_point_drop(&point);
		}
	}
	pthread_mutex_unlock(&driver_pool_lock);
}

void driver_pool_trim(struct driver_device *device)
{
	pthread_mutex_lock(&driver_pool_lock);
	for (struct CUmemPoolHandle_st *pool = all_pools; pool; pool = pool->next) {
		if (pool->device == device)
			driver_store_trim(&pool->store, 0);
	}
	pthread_mutex_unlock(&driver_pool_lock);
}

bool driver_pool_relieve(struct driver_device *device)
{
	struct CUmemPoolHandle_st *pool;
	struct driver_point point = { NULL, 0 };
	bool any = false;

	pthread_mutex_lock(&driver_pool_lock);
	for (pool = all_pools; pool; pool = pool->next) {
		if (pool->device == device)
			any = driver_store_trim(&pool->store, 0) || any;
	}
	for (pool = all_pools; pool && !any && !point.stream; pool = pool->next) {
		if (pool->device == device)
			driver_store_pending(&pool->store, &point);
	}
	pthread_mutex_unlock(&driver_pool_lock);
	if (!point.stream)
		return any;
	driver_point_wait(&point);
	driver_point_drop(&point);
	return true;
}
