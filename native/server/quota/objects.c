/* objects.c - memory apart from addresses, and multicast objects (quota.h). */
#include "quota.h"
#include "objects.h"

#include <stdlib.h>

/* ---- memory apart from addresses: there until its last handle and mapping have gone ---- */

static CUresult mem_create(CUmemGenericAllocationHandle *handle, size_t bytes,
			   const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult result;
	struct charge *charge;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	charge = quota_charge_begin(OBJECT, bytes);
	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMemCreate(handle, bytes, prop, flags);
	return quota_charge_end(charge, result, *handle);
}

/* With the lock; `object` may be gone afterwards. */
static void object_drop(struct charge *object)
{
	while (object && !--object->references) {
		struct charge **link, *first = object->object;

		for (link = quota_bucket(OBJECT, object->key); *link && *link != object; link = &(*link)->next)
			;
		if (*link)
			*link = object->next;
		quota_give(object->bytes);
		while (object->bound) {
			struct charge *bound = object->bound;

			object->bound = bound->next;
			object_drop(bound->object);
			free(bound);
		}
		free(object);
		object = first;
	}
}

struct charge *server_quota_hold_again(struct charge *charge)
{
	if (!charge)
		return NULL;
	pthread_mutex_lock(&quota.lock);
	charge->references++;
	pthread_mutex_unlock(&quota.lock);
	return charge;
}

struct charge *server_quota_hold(CUmemGenericAllocationHandle handle)
{
	struct charge *charge;

	pthread_mutex_lock(&quota.lock);
	charge = *quota_find(OBJECT, handle);
	if (charge)
		charge->references++;
	pthread_mutex_unlock(&quota.lock);
	return charge;
}

void server_quota_let_go(struct charge *charge)
{
	if (!charge)
		return;
	pthread_mutex_lock(&quota.lock);
	object_drop(charge);
	pthread_mutex_unlock(&quota.lock);
}

/* The driver may have another handle for it, of which it says no bytes are to be counted twice: nor are those of another
 * process's memory.  It has a charge of its own, as its number may have been that of memory which is only kept by an
 * export or a mapping any more.  Without memory the reference is nobody's, and it is counted as long as this process
 * lives. */
void server_quota_share(struct charge *charge, CUmemGenericAllocationHandle handle)
{
	struct charge *also = quota.server ? calloc(1, sizeof(*also)) : NULL;

	if (!also)
		return;
	pthread_mutex_lock(&quota.lock);
	if (charge && charge->object) {
		/* Exported by a handle that was imported itself: the first one's memory all the same. */
		charge->object->references++;
		also->object = charge->object;
		object_drop(charge);
	} else {
		also->object = charge;
	}
	pthread_mutex_unlock(&quota.lock);
	also->kind = OBJECT;
	also->key = handle;
	also->references = 1;
	quota_put(also);
}

static CUresult mem_release(CUmemGenericAllocationHandle handle)
{
	struct charge *object;
	CUresult result;

	pthread_mutex_lock(&quota.lock);
	object = *quota_find(OBJECT, handle);
	result = quota.real.cuMemRelease(handle);
	if (object && result == CUDA_SUCCESS)
		object_drop(object);
	pthread_mutex_unlock(&quota.lock);
	return result;
}

static CUresult mem_retain(CUmemGenericAllocationHandle *handle, void *address)
{
	CUresult result;
	struct charge *object;

	pthread_mutex_lock(&quota.lock);
	result = quota.real.cuMemRetainAllocationHandle(handle, address);
	object = result == CUDA_SUCCESS ? *quota_find(OBJECT, *handle) : NULL;
	if (object)
		object->references++;
	pthread_mutex_unlock(&quota.lock);
	return result;
}

/* Mapping a multicast object waits for its devices, which other threads may add: the lock is not held meanwhile. */
static CUresult mem_map(CUdeviceptr address, size_t bytes, size_t offset,
			CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct charge *mapping = calloc(1, sizeof(*mapping)), *object, **link;
	CUresult result;

	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&quota.lock);
	object = *quota_find(OBJECT, handle);
	if (object)
		object->references++;
	pthread_mutex_unlock(&quota.lock);
	result = quota.real.cuMemMap(address, bytes, offset, handle, flags);
	pthread_mutex_lock(&quota.lock);
	if (object && result == CUDA_SUCCESS) {
		mapping->kind = MAPPING;
		mapping->key = address;
		mapping->object = object;
		link = quota_bucket(MAPPING, address);
		mapping->next = *link;
		*link = mapping;
	} else {
		free(mapping);
		if (object)
			object_drop(object);
	}
	pthread_mutex_unlock(&quota.lock);
	return result;
}

/* With the lock: take out what was mapped in these addresses, as a list.  Of two at one address it is the older, as the driver
 * has no other by then: that has gone from there before the other came. */
static struct charge *mappings_out(CUdeviceptr address, size_t bytes)
{
	struct charge *gone = NULL;

	for (unsigned i = 0; i < QUOTA_BUCKETS; i++) {
		struct charge **link = &quota.buckets[i];

		while (*link) {
			struct charge *mapping = *link;

			if (mapping->kind != MAPPING || mapping->key - address >= bytes ||
			    *quota_find_behind(&mapping->next, MAPPING, mapping->key)) {
				link = &mapping->next;
				continue;
			}
			*link = mapping->next;
			mapping->next = gone;
			gone = mapping;
		}
	}
	return gone;
}

/* It waits for what is queued, which may wait for calls of other threads: the lock is not held meanwhile. */
static CUresult mem_unmap(CUdeviceptr address, size_t bytes)
{
	CUresult result = quota.real.cuMemUnmap(address, bytes);
	struct charge *gone, *mapping;

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&quota.lock);
	gone = mappings_out(address, bytes);
	while ((mapping = gone)) {
		gone = mapping->next;
		object_drop(mapping->object);
		free(mapping);
	}
	pthread_mutex_unlock(&quota.lock);
	return result;
}

/* ---- multicast objects: they take nothing, and keep what is bound to them ---- */

static CUresult multicast_create(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
	CUresult result;
	struct charge *charge;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	charge = quota_charge_begin(OBJECT, 0);
	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMulticastCreate(handle, prop);
	return quota_charge_end(charge, result, *handle);
}

/* With the lock.  What is bound by one handle for an object may be unbound by another. */
static struct charge *team_find(CUmemGenericAllocationHandle handle)
{
	struct charge *team = *quota_find(OBJECT, handle);

	return team && team->object ? team->object : team;
}

/* What a call that binds will have bound; NULL: memory is short, or it is bound to nothing, or is nothing, that counts
 * here (*counts). */
static struct charge *bind_begin(CUmemGenericAllocationHandle team, CUmemGenericAllocationHandle memory,
				 uint64_t offset, uint64_t bytes, struct charge **to, bool *counts)
{
	CUmemAllocationProp prop = { 0 };
	struct charge *bound = NULL, *object;

	pthread_mutex_lock(&quota.lock);
	*to = team_find(team);
	object = *quota_find(OBJECT, memory);
	*counts = *to && object;
	if (*counts)
		bound = calloc(1, sizeof(*bound));
	if (bound) {
		if (quota.real.cuMemGetAllocationPropertiesFromHandle)
			quota.real.cuMemGetAllocationPropertiesFromHandle(&prop, memory);
		*bound = (struct charge){
			.object = object, .offset = offset, .bytes = bytes, .device = prop.location.id,
		};
		object->references++;
		(*to)->references++;
	}
	pthread_mutex_unlock(&quota.lock);
	return bound;
}

static CUresult bind_end(struct charge *bound, struct charge *to, CUresult result)
{
	pthread_mutex_lock(&quota.lock);
	if (result == CUDA_SUCCESS) {
		bound->next = to->bound;
		to->bound = bound;
	} else {
		object_drop(bound->object);
		free(bound);
	}
	object_drop(to);
	pthread_mutex_unlock(&quota.lock);
	return result;
}

static CUresult multicast_bind_mem(CUmemGenericAllocationHandle team, size_t offset,
				   CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
				   unsigned long long flags)
{
	struct charge *bound, *to;
	bool counts;
	CUresult result;

	bound = bind_begin(team, memory, offset, bytes, &to, &counts);
	if (counts && !bound)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMulticastBindMem(team, offset, memory, memory_offset, bytes, flags);
	return bound ? bind_end(bound, to, result) : result;
}

static CUresult multicast_bind_addr(CUmemGenericAllocationHandle team, size_t offset, CUdeviceptr address,
				    size_t bytes, unsigned long long flags)
{
	struct charge *bound = NULL, *to;
	CUmemGenericAllocationHandle memory;
	bool counts = false;
	CUresult result;

	/* What was mapped there, if anything was: a pool's memory goes when it is freed. */
	if (quota.real.cuMemRetainAllocationHandle &&
	    mem_retain(&memory, (void *)(uintptr_t)address) == CUDA_SUCCESS) {
		bound = bind_begin(team, memory, offset, bytes, &to, &counts);
		mem_release(memory);
	}
	if (counts && !bound)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMulticastBindAddr(team, offset, address, bytes, flags);
	return bound ? bind_end(bound, to, result) : result;
}

/* With the lock: take out what was bound there, or NULL.  Of two it is the older, as of mappings. */
static struct charge *bound_out(struct charge *team, CUdevice device, uint64_t offset, uint64_t bytes)
{
	struct charge **found = NULL, *bound;

	for (struct charge **link = &team->bound; *link; link = &(*link)->next)
		if ((*link)->device == device && (*link)->offset == offset && (*link)->bytes == bytes)
			found = link;
	bound = found ? *found : NULL;
	if (bound)
		*found = bound->next;
	return bound;
}

static CUresult multicast_unbind(CUmemGenericAllocationHandle team, CUdevice device, size_t offset, size_t bytes)
{
	CUresult result = quota.real.cuMulticastUnbind(team, device, offset, bytes);
	struct charge *object, *bound;

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&quota.lock);
	object = team_find(team);
	bound = object ? bound_out(object, device, offset, bytes) : NULL;
	if (bound)
		object_drop(bound->object);
	free(bound);
	pthread_mutex_unlock(&quota.lock);
	return result;
}

void quota_objects_install(struct server_driver *driver)
{
	QUOTA_INSTEAD(cuMemCreate, mem_create);
	QUOTA_INSTEAD(cuMemRelease, mem_release);
	QUOTA_INSTEAD(cuMemRetainAllocationHandle, mem_retain);
	QUOTA_INSTEAD(cuMemMap, mem_map);
	QUOTA_INSTEAD(cuMemUnmap, mem_unmap);
	QUOTA_INSTEAD(cuMulticastCreate, multicast_create);
	QUOTA_INSTEAD(cuMulticastBindMem, multicast_bind_mem);
	QUOTA_INSTEAD(cuMulticastBindAddr, multicast_bind_addr);
	QUOTA_INSTEAD(cuMulticastUnbind, multicast_unbind);
}
