#include "memory.h"

#include "../engine/engine.h"
#include "advice.h"
#include "arena.h"
#include "pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct {
	pthread_rwlock_t lock;
	struct driver_allocation *items;	/* sorted by base, never overlapping */
	size_t count, room;
	uint64_t last_id;
	/* Frees that wait in streams: memory that is as good as free. */
	pthread_mutex_t free_lock;
	pthread_cond_t freed;
	unsigned frees_queued;
	/* Reserved, and nobody's; of contexts that live. */
	pthread_mutex_t kept_lock;
	struct kept *kept;
} table = {
	.lock = PTHREAD_RWLOCK_INITIALIZER,
	.free_lock = PTHREAD_MUTEX_INITIALIZER,
	.freed = PTHREAD_COND_INITIALIZER,
	.kept_lock = PTHREAD_MUTEX_INITIALIZER,
};

struct kept {
	struct kept *next;
	struct CUctx_st *context;
	uintptr_t base;
	size_t size;
};

/* ---- the table; callers hold the lock ---- */

/* Index of the first item with base > address. */
static size_t table_after(uintptr_t address)
{
	size_t low = 0, high = table.count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (table.items[middle].base <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct driver_allocation *table_find(uintptr_t address)
{
	size_t after = table_after(address);
	struct driver_allocation *item;

	if (!after)
		return NULL;
	item = &table.items[after - 1];
	return address - item->base < (item->size ? item->size : 1) ? item : NULL;
}

static bool table_overlaps(uintptr_t base, size_t size)
{
	size_t after = table_after(base);

	return table_find(base) || (after < table.count && table.items[after].base - base < size);
}

static bool table_insert(const struct driver_allocation *allocation)
{
	size_t at;

	if (table.count == table.room) {
		size_t room = table.room ? 2 * table.room : 64;
		struct driver_allocation *grown = realloc(table.items, room * sizeof *grown);

		if (!grown)
			return false;
		table.items = grown;
		table.room = room;
	}
	at = table_after(allocation->base);
	memmove(&table.items[at + 1], &table.items[at], (table.count - at) * sizeof *table.items);
	table.items[at] = *allocation;
	table.items[at].id = ++table.last_id;
	table.count++;
	return true;
}

static void table_remove(struct driver_allocation *item)
{
	size_t at = (size_t)(item - table.items);

	memmove(item, item + 1, (table.count - at - 1) * sizeof *item);
	table.count--;
}

/* Variables of modules, too: those that are managed have flags. */
static bool is_managed(const struct driver_allocation *allocation)
{
	return allocation->kind == DRIVER_MEMORY_MANAGED ||
	       (allocation->kind == DRIVER_MEMORY_MODULE && allocation->flags);
}

/* Let go of the memory itself, without the lock. */
static void allocation_release(const struct driver_allocation *allocation)
{
	if (is_managed(allocation))
		driver_advice_forget(allocation->base, allocation->size);
	switch (allocation->kind) {
	case DRIVER_MEMORY_MANAGED:
	case DRIVER_MEMORY_DEVICE:
	case DRIVER_MEMORY_MODULE:
		engine_strict_mark((const void *)allocation->base, allocation->size,
				   ENGINE_MEMORY_FREE);
		if (!allocation->block)
			driver_arena_give(allocation->device->arena, allocation->base,
					  allocation->size);
		if (allocation->pool)
			driver_pool_give(allocation->pool, allocation->size, allocation->block,
					 NULL);
		break;
	case DRIVER_MEMORY_PINNED:
		munmap((void *)allocation->base, allocation->size);
		break;
	case DRIVER_MEMORY_IPC: {
		size_t inside = allocation->base % (size_t)sysconf(_SC_PAGESIZE);

		munmap((void *)(allocation->base - inside), inside + allocation->size);
		if (allocation->pool)
			driver_pool_give(allocation->pool, allocation->size, allocation->block,
					 NULL);
		break;
	}
	case DRIVER_MEMORY_REGISTERED:
	case DRIVER_MEMORY_VIRTUAL:
	case DRIVER_MEMORY_NONE:
		break;
	}
}

/* ---- what is kept ---- */

static bool give_kept(const struct driver_device *device, const struct CUctx_st *context)
{
	struct kept **link = &table.kept;
	bool any = false;

	pthread_mutex_lock(&table.kept_lock);
	while (*link) {
		struct kept *kept = *link;

		if (kept->context->device != device || (context && kept->context != context)) {
			link = &kept->next;
			continue;
		}
		*link = kept->next;
		driver_arena_give(device->arena, kept->base, kept->size);
		free(kept);
		any = true;
	}
	pthread_mutex_unlock(&table.kept_lock);
	return any;
}

bool driver_memory_trim_kept(const struct driver_device *device)
{
	return give_kept(device, NULL);
}

size_t driver_memory_kept(const struct driver_device *device)
{
	size_t bytes = 0;

	pthread_mutex_lock(&table.kept_lock);
	for (const struct kept *kept = table.kept; kept; kept = kept->next)
		bytes += kept->context->device == device ? kept->size : 0;
	pthread_mutex_unlock(&table.kept_lock);
	return bytes;
}

/* ---- life ---- */

CUresult driver_memory_open(struct driver_device *device)
{
	CUresult result;

	if (driver_arena_open(&device->arena, device->board, driver_options()->strict))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver_pool_open(device);
	if (result) {
		driver_arena_close(device->arena);
		device->arena = NULL;
	}
	return result;
}

void driver_memory_close(struct driver_device *device)
{
	driver_pool_close(device);
	driver_arena_close(device->arena);
	device->arena = NULL;
}

bool driver_memory_has_pinned(struct CUctx_st *context)
{
	bool has = false;

	pthread_rwlock_rdlock(&table.lock);
	for (size_t i = 0; i < table.count && !has; i++)
		has = table.items[i].context == context && table.items[i].kind == DRIVER_MEMORY_PINNED;
	pthread_rwlock_unlock(&table.lock);
	return has;
}

void driver_memory_end_context(struct CUctx_st *context, bool pinned_is_in_use)
{
	struct driver_allocation gone;
	size_t i = 0;

	pthread_rwlock_wrlock(&table.lock);
	while (i < table.count) {
		if (table.items[i].context != context) {
			i++;
			continue;
		}
		gone = table.items[i];
		table_remove(&table.items[i]);
		pthread_rwlock_unlock(&table.lock);
		if (gone.kind != DRIVER_MEMORY_PINNED || !pinned_is_in_use)
			allocation_release(&gone);
		pthread_rwlock_wrlock(&table.lock);
		i = 0;	/* others may have changed the table meanwhile */
	}
	pthread_rwlock_unlock(&table.lock);
	give_kept(context->device, context);
	driver_pool_trim(context->device);
}

/* ---- questions ---- */

bool driver_memory_find(uintptr_t address, struct driver_allocation *allocation)
{
	struct driver_allocation *item;

	pthread_rwlock_rdlock(&table.lock);
	item = table_find(address);
	if (item)
		*allocation = *item;
	pthread_rwlock_unlock(&table.lock);
	return item != NULL;
}

/* With the lock: who ends the context takes it out of the table before it lets the context go. */
static bool may_use_context(const struct driver_allocation *item)
{
	return !item->context || driver_call_use(&item->context->users);
}

bool driver_memory_use(uintptr_t address, struct driver_allocation *allocation)
{
	struct driver_allocation *item;
	bool found;

	pthread_rwlock_rdlock(&table.lock);
	item = table_find(address);
	found = item && may_use_context(item);
	if (found)
		*allocation = *item;
	pthread_rwlock_unlock(&table.lock);
	return found;
}

enum driver_memory_kind driver_memory_kind_of(uintptr_t address)
{
	struct driver_allocation allocation;

	if (!driver_memory_find(address, &allocation))
		return DRIVER_MEMORY_NONE;
	if (is_managed(&allocation))
		return DRIVER_MEMORY_MANAGED;
	return allocation.device ? allocation.kind : DRIVER_MEMORY_PINNED;
}

bool driver_memory_is_on_device(enum driver_memory_kind kind)
{
	return kind == DRIVER_MEMORY_DEVICE || kind == DRIVER_MEMORY_MANAGED ||
	       kind == DRIVER_MEMORY_MODULE || kind == DRIVER_MEMORY_VIRTUAL ||
	       kind == DRIVER_MEMORY_IPC;
}

static CUresult check(uintptr_t address, size_t bytes, bool is_target)
{
	struct driver_allocation allocation;

	for (;;) {
		size_t rest;

		if (!driver_memory_find(address, &allocation))
			return CUDA_ERROR_INVALID_VALUE;
		rest = allocation.size - (address - allocation.base);
		if (allocation.kind == DRIVER_MEMORY_VIRTUAL &&
		    (!allocation.open || (allocation.multicast && !is_target)))
			return CUDA_ERROR_INVALID_VALUE;
		if (bytes <= rest)
			return CUDA_SUCCESS;
		if (allocation.kind != DRIVER_MEMORY_VIRTUAL)
			return CUDA_ERROR_INVALID_VALUE;
		address += rest;
		bytes -= rest;
	}
}

CUresult driver_memory_check(uintptr_t address, size_t bytes)
{
	return check(address, bytes, false);
}

CUresult driver_memory_check_target(uintptr_t address, size_t bytes)
{
	return check(address, bytes, true);
}

void driver_memory_set_open(uintptr_t address, bool open)
{
	struct driver_allocation *item;

	pthread_rwlock_wrlock(&table.lock);
	item = table_find(address);
	if (item)
		item->open = open;
	pthread_rwlock_unlock(&table.lock);
}

void driver_memory_set_managed(uintptr_t address)
{
	struct driver_allocation *item;

	pthread_rwlock_wrlock(&table.lock);
	item = table_find(address);
	if (item)
		item->flags = CU_MEM_ATTACH_GLOBAL;
	pthread_rwlock_unlock(&table.lock);
}

bool driver_memory_set_sync(uintptr_t address, bool sync)
{
	struct driver_allocation *item;

	pthread_rwlock_wrlock(&table.lock);
	item = table_find(address);
	if (item)
		item->sync = sync;
	pthread_rwlock_unlock(&table.lock);
	return item;
}

/* ---- taking and giving ---- */

CUresult driver_memory_remember(const struct driver_allocation *allocation)
{
	const struct driver_allocation *there;
	CUresult result = CUDA_SUCCESS;

	pthread_rwlock_wrlock(&table.lock);
	there = table_find(allocation->base);
	if (there && there->kind != DRIVER_MEMORY_REGISTERED)
		result = CUDA_ERROR_INVALID_VALUE;	/* the driver's own memory is pinned anyway */
	else if (table_overlaps(allocation->base, allocation->size))
		result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	else if (!table_insert(allocation))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	pthread_rwlock_unlock(&table.lock);
	return result;
}

/* Wait until one of the queued frees is done; false when there are none. */
static bool await_free(void)
{
	unsigned before;
	bool any;

	pthread_mutex_lock(&table.free_lock);
	before = table.frees_queued;
	any = before > 0;
	while (before && table.frees_queued >= before)
		pthread_cond_wait(&table.freed, &table.free_lock);
	pthread_mutex_unlock(&table.free_lock);
	return any;
}

CUresult driver_memory_take(struct CUctx_st *context, size_t bytes, size_t align,
			    enum driver_memory_kind kind, struct CUmemPoolHandle_st *pool,
			    uintptr_t *address)
{
	struct driver_allocation allocation = {
		.size = bytes, .kind = kind, .context = context, .device = context->device,
		.pool = pool,
	};
	enum driver_arena_group group =
		kind == DRIVER_MEMORY_DEVICE ? DRIVER_ARENA_SHAREABLE : DRIVER_ARENA_PRIVATE;
	CUresult result;

	while (driver_arena_take(context->device->arena, group, bytes, align, &allocation.base)) {
		if (!driver_memory_trim_kept(context->device) && !driver_pool_relieve(context->device) &&
		    !await_free())
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	result = driver_memory_remember(&allocation);
	if (result) {
		driver_arena_give(context->device->arena, allocation.base, bytes);
		return result;
	}
	if (pool)
		driver_pool_count(pool, bytes);
	/* What a kernel may not read before something has written it. */
	engine_strict_mark((const void *)allocation.base, bytes,
			   kind == DRIVER_MEMORY_DEVICE ? ENGINE_MEMORY_UNWRITTEN
							: ENGINE_MEMORY_WRITTEN);
	*address = allocation.base;
	return CUDA_SUCCESS;
}

static bool forget(uintptr_t address, struct driver_allocation *gone)
{
	struct driver_allocation *item;
	bool found;

	pthread_rwlock_wrlock(&table.lock);
	item = table_find(address);
	found = item && item->base == address;
	if (found) {
		*gone = *item;
		table_remove(item);
	}
	pthread_rwlock_unlock(&table.lock);
	return found;
}

bool driver_memory_forget_block(uintptr_t address, struct driver_allocation *allocation)
{
	struct driver_allocation *item;
	bool found;

	pthread_rwlock_wrlock(&table.lock);
	item = table_find(address);
	found = item && item->base == address && item->block && !item->freeing;
	if (found) {
		*allocation = *item;
		table_remove(item);
	}
	pthread_rwlock_unlock(&table.lock);
	return found;
}

void driver_memory_give(uintptr_t address)
{
	struct driver_allocation gone;

	if (forget(address, &gone))
		allocation_release(&gone);
}

void driver_memory_keep(uintptr_t address)
{
	struct kept *kept = malloc(sizeof *kept);
	struct driver_allocation gone;

	if (!kept || !forget(address, &gone)) {
		free(kept);
		driver_memory_give(address);
		return;
	}
	engine_strict_mark((const void *)gone.base, gone.size, ENGINE_MEMORY_FREE);
	*kept = (struct kept){ .context = gone.context, .base = gone.base, .size = gone.size };
	pthread_mutex_lock(&table.kept_lock);
	kept->next = table.kept;
	table.kept = kept;
	pthread_mutex_unlock(&table.kept_lock);
}

bool driver_memory_take_kept(struct CUctx_st *context, size_t bytes, uintptr_t *address)
{
	struct driver_allocation allocation = {
		.size = bytes, .kind = DRIVER_MEMORY_DEVICE, .context = context, .device = context->device,
	};
	struct kept **link = &table.kept, *found;

	pthread_mutex_lock(&table.kept_lock);
	while (*link && ((*link)->context != context || (*link)->size != bytes))
		link = &(*link)->next;
	found = *link;
	if (found)
		*link = found->next;
	pthread_mutex_unlock(&table.kept_lock);
	if (!found)
		return false;
	allocation.base = found->base;
	free(found);
	if (driver_memory_remember(&allocation)) {
		driver_arena_give(context->device->arena, allocation.base, bytes);
		return false;
	}
	engine_strict_mark((const void *)allocation.base, bytes, ENGINE_MEMORY_UNWRITTEN);
	*address = allocation.base;
	return true;
}

bool driver_memory_begin_free(uintptr_t address, struct driver_allocation *allocation)
{
	struct driver_allocation *item;
	bool may;

	pthread_rwlock_wrlock(&table.lock);
	item = table_find(address);
	may = item && item->base == address && !item->freeing &&
	      (item->kind == DRIVER_MEMORY_DEVICE || item->kind == DRIVER_MEMORY_MANAGED ||
	       (item->kind == DRIVER_MEMORY_IPC && item->pool)) && may_use_context(item);
	if (may) {
		item->freeing = true;
		*allocation = *item;
	}
	pthread_rwlock_unlock(&table.lock);
	if (may) {
		pthread_mutex_lock(&table.free_lock);
		table.frees_queued++;
		pthread_mutex_unlock(&table.free_lock);
	}
	return may;
}

void driver_memory_end_free(uintptr_t address)
{
	driver_memory_give(address);
	pthread_mutex_lock(&table.free_lock);
	table.frees_queued--;
	pthread_cond_broadcast(&table.freed);
	pthread_mutex_unlock(&table.free_lock);
}
