/* The memory of a lease: one account for all that its servers allocate.
 *
 * Each server counts in its slot of the status memory; the account is the sum of all slots,
 * so that what a server held is given back when it ends, however it ends.  The functions of
 * the driver that take and give memory have others in their place in the server's table:
 * whoever calls the driver, on whichever path, is counted.
 *
 * Counted is what is asked for.  Not counted are code, variables of modules, and what the
 * driver needs for itself. */
#include "server_ops.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS 4096u

enum charge_kind { MEMORY, POOLED, OBJECT, MAPPING, ARRAY, MIPMAP, NODE, EXECUTABLE };

struct charge {
	struct charge *next;
	enum charge_kind kind;
	uint64_t key;			/* address or handle */
	uint64_t bytes;
	uint64_t owner;			/* a context; of a node its graph */
	unsigned references;		/* of an object: handles, mappings and exports */
	struct charge *object;		/* of a mapping, of what is bound; of an object that was imported here, too: the first */
	struct charge *bound;		/* of a multicast object: memory that it keeps */
	uint64_t offset;		/* of what is bound: there */
	CUdevice device;		/* and whose it is */
	bool freed;			/* a node's memory, within its graph */
	struct charge *outlive;		/* of an executable: nodes whose memory stays behind a launch */
};

/* One per process, as the driver is. */
static struct {
	struct server_driver real;
	struct server *server;
	uint64_t limit;
	pthread_mutex_t lock;
	struct charge *buckets[BUCKETS];
	CUcontext primaries[64];	/* by ordinal, as retained */
} quota = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- the account ---- */

static uint64_t used(void)
{
	const uint8_t *slots = quota.server->sessions;
	uint64_t sum = 0;

	if (!slots)
		return atomic_load(&quota.server->status->memory_bytes);
	for (uint32_t i = 0; i < quota.server->session_count; i++) {
		const struct server_status *status = (const void *)(slots + i * SERVER_STATUS_STRIDE);

		sum += atomic_load(&status->memory_bytes);
	}
	return sum;
}

/* Taken first and looked at then: of two servers that ask for the last of it at one time
 * both may be refused, but never both served. */
static bool take(uint64_t bytes)
{
	_Atomic uint64_t *own = &quota.server->status->memory_bytes;

	if (bytes > quota.limit)
		return false;
	atomic_fetch_add(own, bytes);
	if (used() <= quota.limit)
		return true;
	atomic_fetch_sub(own, bytes);
	return false;
}

static void give(uint64_t bytes)
{
	atomic_fetch_sub(&quota.server->status->memory_bytes, bytes);
}

/* ---- what is charged ---- */

static struct charge **bucket_of(enum charge_kind kind, uint64_t key)
{
	uint64_t mixed = (key >> 4 ^ key << 7) * 0x9e3779b97f4a7c15ull + (uint64_t)kind;

	return &quota.buckets[mixed >> 40 & (BUCKETS - 1)];
}

/* With the lock: the first from there on; what was put last comes first. */
static struct charge **find_behind(struct charge **link, enum charge_kind kind, uint64_t key)
{
	while (*link && ((*link)->key != key || (*link)->kind != kind))
		link = &(*link)->next;
	return link;
}

static struct charge **find(enum charge_kind kind, uint64_t key)
{
	return find_behind(bucket_of(kind, key), kind, key);
}

static void put(struct charge *charge)
{
	struct charge **link = bucket_of(charge->kind, charge->key);

	pthread_mutex_lock(&quota.lock);
	charge->next = *link;
	*link = charge;
	pthread_mutex_unlock(&quota.lock);
}

static struct charge *out(enum charge_kind kind, uint64_t key)
{
	struct charge **link, *charge;

	pthread_mutex_lock(&quota.lock);
	link = find(kind, key);
	charge = *link;
	if (charge)
		*link = charge->next;
	pthread_mutex_unlock(&quota.lock);
	return charge;
}

static bool is_of_context(enum charge_kind kind)
{
	return kind == MEMORY || kind == POOLED || kind == ARRAY || kind == MIPMAP || kind == EXECUTABLE;
}

static struct charge *charge_begin(enum charge_kind kind, uint64_t bytes)
{
	struct charge *charge;
	CUcontext context = NULL;

	if (!take(bytes))
		return NULL;
	charge = calloc(1, sizeof(*charge));
	if (!charge) {
		give(bytes);
		return NULL;
	}
	charge->kind = kind;
	charge->bytes = bytes;
	charge->references = 1;
	if (is_of_context(kind)) {
		quota.real.cuCtxGetCurrent(&context);
		charge->owner = (uint64_t)(uintptr_t)context;
	}
	return charge;
}

static void list_free(struct charge *list)
{
	while (list) {
		struct charge *next = list->next;

		free(list);
		list = next;
	}
}

static void charge_free(struct charge *charge)
{
	list_free(charge->outlive);
	free(charge);
}

static CUresult charge_end(struct charge *charge, CUresult result, uint64_t key)
{
	if (result == CUDA_SUCCESS) {
		charge->key = key;
		put(charge);
	} else {
		give(charge->bytes);
		charge_free(charge);
	}
	return result;
}

/* Out of the table before the driver gives the address to somebody else. */
#define GIVE_BACK(kind, key, call)						\
	do {									\
		struct charge *charge_ = out(kind, (uint64_t)(key));		\
		CUresult result_ = call;					\
										\
		if (charge_ && result_ == CUDA_SUCCESS) {			\
			give(charge_->bytes);					\
			charge_free(charge_);					\
		} else if (charge_) {						\
			put(charge_);						\
		}								\
		return result_;							\
	} while (0)

/* Has the driver no such address any more? */
static bool is_gone(CUdeviceptr address)
{
	unsigned int type;

	return quota.real.cuPointerGetAttribute &&
	       quota.real.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
		       CUDA_ERROR_INVALID_VALUE;
}

/* Everything of one owner; of what a pool has given, as much as has gone with it. */
static void drop_owner(bool (*is_of)(enum charge_kind kind), uint64_t owner)
{
	pthread_mutex_lock(&quota.lock);
	for (unsigned i = 0; i < BUCKETS && owner; i++) {
		struct charge **link = &quota.buckets[i];

		while (*link) {
			struct charge *charge = *link;

			if (charge->owner != owner || !is_of(charge->kind) ||
			    (charge->kind == POOLED && !is_gone(charge->key))) {
				link = &charge->next;
				continue;
			}
			*link = charge->next;
			if (charge->kind != NODE)
				give(charge->bytes);
			charge_free(charge);
		}
	}
	pthread_mutex_unlock(&quota.lock);
}

static bool is_of_graph(enum charge_kind kind)
{
	return kind == NODE;
}

/* ---- memory ---- */

static CUresult mem_alloc(CUdeviceptr *address, size_t bytes)
{
	CUresult result;
	struct charge *charge = charge_begin(MEMORY, bytes);

	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMemAlloc_v2(address, bytes);
	return charge_end(charge, result, *address);
}

static CUresult mem_alloc_managed(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
	CUresult result;
	struct charge *charge;

	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	charge = charge_begin(MEMORY, bytes);
	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMemAllocManaged(address, bytes, flags);
	return charge_end(charge, result, *address);
}

static CUresult mem_alloc_pitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
				unsigned int element)
{
	struct charge *charge;
	size_t bytes, padded;
	CUresult result;

	/* No driver pads a row by more than this. */
	if (__builtin_mul_overflow((width + 4095) & ~(size_t)511, height, &padded))
		return CUDA_ERROR_OUT_OF_MEMORY;
	charge = charge_begin(MEMORY, padded);
	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMemAllocPitch_v2(address, pitch, width, height, element);
	bytes = result == CUDA_SUCCESS ? *pitch * height : padded;
	if (bytes < padded) {
		give(padded - bytes);
		charge->bytes = bytes;
	}
	return charge_end(charge, result, *address);
}

static CUresult mem_free(CUdeviceptr address)
{
	pthread_mutex_lock(&quota.lock);
	bool pooled = *find(POOLED, address) != NULL;
	pthread_mutex_unlock(&quota.lock);
	GIVE_BACK(pooled ? POOLED : MEMORY, address, quota.real.cuMemFree_v2(address));
}

/* A node of a graph that takes memory: its executables have that, not the graph. */
static bool node_fits(uint64_t bytes)
{
	return bytes <= quota.limit && used() <= quota.limit - bytes;
}

static void node_note(CUgraph graph, CUdeviceptr address, uint64_t bytes)
{
	struct charge *charge = calloc(1, sizeof(*charge));

	if (!charge)
		return;
	charge->kind = NODE;
	charge->key = address;
	charge->owner = (uint64_t)(uintptr_t)graph;
	charge->bytes = bytes;
	put(charge);
}

static void node_freed(CUgraph graph, CUdeviceptr address)
{
	struct charge *charge;

	pthread_mutex_lock(&quota.lock);
	for (charge = *bucket_of(NODE, address); charge; charge = charge->next)
		if (charge->kind == NODE && charge->key == address &&
		    charge->owner == (uint64_t)(uintptr_t)graph)
			charge->freed = true;
	pthread_mutex_unlock(&quota.lock);
}

/* The graph that what is put into the stream becomes a part of; NULL: none, it is executed. */
static CUgraph captured(CUstream stream)
{
	return atomic_load(&quota.server->capture_count) ? server_capture_graph(&quota.real, stream) : NULL;
}

static CUresult mem_alloc_async(CUdeviceptr *address, size_t bytes, CUstream stream)
{
	CUgraph graph = captured(stream);
	struct charge *charge;
	CUresult result;

	if (graph && !node_fits(bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	charge = graph ? NULL : charge_begin(POOLED, bytes);
	if (!graph && !charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMemAllocAsync(address, bytes, stream);
	if (!graph)
		return charge_end(charge, result, *address);
	if (result == CUDA_SUCCESS)
		node_note(graph, *address, bytes);
	return result;
}

static CUresult mem_alloc_from_pool(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
				    CUstream stream)
{
	CUgraph graph = captured(stream);
	struct charge *charge;
	CUresult result;

	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	if (graph && !node_fits(bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	charge = graph ? NULL : charge_begin(POOLED, bytes);
	if (!graph && !charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMemAllocFromPoolAsync(address, bytes, pool, stream);
	if (!graph)
		return charge_end(charge, result, *address);
	if (result == CUDA_SUCCESS)
		node_note(graph, *address, bytes);
	return result;
}

static CUresult mem_free_async(CUdeviceptr address, CUstream stream)
{
	CUgraph graph = captured(stream);

	if (graph) {
		CUresult result = quota.real.cuMemFreeAsync(address, stream);

		if (result == CUDA_SUCCESS)
			node_freed(graph, address);
		return result;
	}
	pthread_mutex_lock(&quota.lock);
	bool pooled = *find(POOLED, address) != NULL;
	pthread_mutex_unlock(&quota.lock);
	GIVE_BACK(pooled ? POOLED : MEMORY, address, quota.real.cuMemFreeAsync(address, stream));
}

static CUresult mem_get_info(size_t *free_bytes, size_t *total)
{
	CUresult result = quota.real.cuMemGetInfo_v2(free_bytes, total);
	uint64_t now = used(), left = now < quota.limit ? quota.limit - now : 0;

	if (result == CUDA_SUCCESS && *free_bytes > left)
		*free_bytes = left;
	if (result == CUDA_SUCCESS && *total > quota.limit)
		*total = quota.limit;
	return result;
}

static CUresult device_total(size_t *bytes, CUdevice device)
{
	CUresult result = quota.real.cuDeviceTotalMem_v2(bytes, device);

	if (result == CUDA_SUCCESS && *bytes > quota.limit)
		*bytes = quota.limit;
	return result;
}

/* ---- memory apart from addresses: there until its last handle and mapping have gone ---- */

static CUresult mem_create(CUmemGenericAllocationHandle *handle, size_t bytes,
			   const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult result;
	struct charge *charge;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	charge = charge_begin(OBJECT, bytes);
	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMemCreate(handle, bytes, prop, flags);
	return charge_end(charge, result, *handle);
}

/* With the lock; `object` may be gone afterwards. */
static void object_drop(struct charge *object)
{
	while (object && !--object->references) {
		struct charge **link, *first = object->object;

		for (link = bucket_of(OBJECT, object->key); *link && *link != object; link = &(*link)->next)
			;
		if (*link)
			*link = object->next;
		give(object->bytes);
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
	charge = *find(OBJECT, handle);
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
	put(also);
}

static CUresult mem_release(CUmemGenericAllocationHandle handle)
{
	struct charge *object;
	CUresult result;

	pthread_mutex_lock(&quota.lock);
	object = *find(OBJECT, handle);
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
	object = result == CUDA_SUCCESS ? *find(OBJECT, *handle) : NULL;
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
	object = *find(OBJECT, handle);
	if (object)
		object->references++;
	pthread_mutex_unlock(&quota.lock);
	result = quota.real.cuMemMap(address, bytes, offset, handle, flags);
	pthread_mutex_lock(&quota.lock);
	if (object && result == CUDA_SUCCESS) {
		mapping->kind = MAPPING;
		mapping->key = address;
		mapping->object = object;
		link = bucket_of(MAPPING, address);
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

	for (unsigned i = 0; i < BUCKETS; i++) {
		struct charge **link = &quota.buckets[i];

		while (*link) {
			struct charge *mapping = *link;

			if (mapping->kind != MAPPING || mapping->key - address >= bytes ||
			    *find_behind(&mapping->next, MAPPING, mapping->key)) {
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
	charge = charge_begin(OBJECT, 0);
	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMulticastCreate(handle, prop);
	return charge_end(charge, result, *handle);
}

/* With the lock.  What is bound by one handle for an object may be unbound by another. */
static struct charge *team_find(CUmemGenericAllocationHandle handle)
{
	struct charge *team = *find(OBJECT, handle);

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
	object = *find(OBJECT, memory);
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

/* ---- arrays ---- */

/* What a texel takes, at most: a block of 4 times 4 has 16 bytes, and of video 4 samples of 16 bits. */
static uint64_t texel(CUarray_format format, unsigned channels)
{
	if (!channels)
		channels = 1;
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
	case CU_AD_FORMAT_UNORM_INT8X1:
	case CU_AD_FORMAT_UNORM_INT8X2:
	case CU_AD_FORMAT_UNORM_INT8X4:
	case CU_AD_FORMAT_SNORM_INT8X1:
	case CU_AD_FORMAT_SNORM_INT8X2:
	case CU_AD_FORMAT_SNORM_INT8X4:
		return channels;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
	case CU_AD_FORMAT_UNORM_INT16X1:
	case CU_AD_FORMAT_UNORM_INT16X2:
	case CU_AD_FORMAT_UNORM_INT16X4:
	case CU_AD_FORMAT_SNORM_INT16X1:
	case CU_AD_FORMAT_SNORM_INT16X2:
	case CU_AD_FORMAT_SNORM_INT16X4:
		return 2ull * channels;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 4ull * channels;
	case CU_AD_FORMAT_UNORM_INT_101010_2:
		return 4;
	default:
		return format >= CU_AD_FORMAT_BC1_UNORM && format <= CU_AD_FORMAT_BC7_UNORM_SRGB ? 1 : 8;
	}
}

/* Of the level of that number; layers are as many on each.  What is mapped later is none yet. */
static uint64_t texels(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned level)
{
	uint64_t bytes = texel(shape->Format, shape->NumChannels), width = shape->Width >> level;
	uint64_t height = shape->Height >> level, depth = shape->Depth;

	if (shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return 0;
	if (!(shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
		depth >>= level;
	if (__builtin_mul_overflow(bytes, width ? width : 1, &bytes) ||
	    __builtin_mul_overflow(bytes, height ? height : 1, &bytes) ||
	    __builtin_mul_overflow(bytes, depth ? depth : 1, &bytes))
		return UINT64_MAX;
	return bytes;
}

static CUresult array_create(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *shape)
{
	CUDA_ARRAY3D_DESCRIPTOR whole = { 0 };
	CUresult result;
	struct charge *charge;

	if (!array || !shape)
		return CUDA_ERROR_INVALID_VALUE;
	whole.Width = shape->Width;
	whole.Height = shape->Height;
	whole.Format = shape->Format;
	whole.NumChannels = shape->NumChannels;
	charge = charge_begin(ARRAY, texels(&whole, 0));
	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuArrayCreate_v2(array, shape);
	return charge_end(charge, result, (uint64_t)(uintptr_t)*array);
}

static CUresult array_create_3d(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	CUresult result;
	struct charge *charge;

	if (!array || !shape)
		return CUDA_ERROR_INVALID_VALUE;
	charge = charge_begin(ARRAY, texels(shape, 0));
	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuArray3DCreate_v2(array, shape);
	return charge_end(charge, result, (uint64_t)(uintptr_t)*array);
}

static CUresult array_destroy(CUarray array)
{
	GIVE_BACK(ARRAY, (uintptr_t)array, quota.real.cuArrayDestroy(array));
}

static CUresult mipmap_create(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape,
			      unsigned int levels)
{
	uint64_t bytes = 0;
	struct charge *charge;
	CUresult result;

	if (!array || !shape)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < levels && i < 32; i++)
		if (__builtin_add_overflow(bytes, texels(shape, i), &bytes))
			return CUDA_ERROR_OUT_OF_MEMORY;
	charge = charge_begin(MIPMAP, bytes);
	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMipmappedArrayCreate(array, shape, levels);
	return charge_end(charge, result, (uint64_t)(uintptr_t)*array);
}

static CUresult mipmap_destroy(CUmipmappedArray array)
{
	GIVE_BACK(MIPMAP, (uintptr_t)array, quota.real.cuMipmappedArrayDestroy(array));
}

/* ---- graphs: nodes say what a graph needs, executables have what the graph itself frees ---- */

static CUresult node_add_alloc(CUgraphNode *node, CUgraph graph, const CUgraphNode *behind,
			       size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	CUresult result;

	if (params && !node_fits(params->bytesize))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuGraphAddMemAllocNode(node, graph, behind, count, params);
	if (result == CUDA_SUCCESS)
		node_note(graph, params->dptr, params->bytesize);
	return result;
}

static CUresult node_add_free(CUgraphNode *node, CUgraph graph, const CUgraphNode *behind,
			      size_t count, CUdeviceptr address)
{
	CUresult result = quota.real.cuGraphAddMemFreeNode(node, graph, behind, count, address);

	if (result == CUDA_SUCCESS)
		node_freed(graph, address);
	return result;
}

static bool params_fit(const CUgraphNodeParams *params)
{
	return !params || params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || node_fits(params->alloc.bytesize);
}

/* A child graph that may allocate has become a part of its parent: a copy may not. */
static void nodes_move(CUgraph child, CUgraph parent)
{
	pthread_mutex_lock(&quota.lock);
	for (unsigned i = 0; i < BUCKETS; i++)
		for (struct charge *charge = quota.buckets[i]; charge; charge = charge->next)
			if (charge->kind == NODE && charge->owner == (uint64_t)(uintptr_t)child)
				charge->owner = (uint64_t)(uintptr_t)parent;
	pthread_mutex_unlock(&quota.lock);
}

static CUresult params_note(CUgraph graph, const CUgraphNodeParams *params, CUresult result)
{
	if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		node_note(graph, params->alloc.dptr, params->alloc.bytesize);
	if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
		node_freed(graph, params->free.dptr);
	if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_GRAPH &&
	    params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE)
		nodes_move(params->graph.graph, graph);
	return result;
}

static CUresult node_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *behind, size_t count,
			 CUgraphNodeParams *params)
{
	if (!params_fit(params))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return params_note(graph, params, quota.real.cuGraphAddNode(node, graph, behind, count, params));
}

static CUresult node_add_2(CUgraphNode *node, CUgraph graph, const CUgraphNode *behind,
			   const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params)
{
	if (!params_fit(params))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return params_note(graph, params,
			   quota.real.cuGraphAddNode_v2(node, graph, behind, edges, count, params));
}

/* A graph may go before its executable does: so the charge has all that there is to know.  NULL: no room. */
static struct charge *executable_begin(CUgraph graph)
{
	struct charge *charge, *outlive = NULL;
	uint64_t freed = 0;

	pthread_mutex_lock(&quota.lock);
	for (unsigned i = 0; i < BUCKETS; i++)
		for (const struct charge *node = quota.buckets[i]; node; node = node->next) {
			if (node->kind != NODE || node->owner != (uint64_t)(uintptr_t)graph)
				continue;
			charge = node->freed ? NULL : malloc(sizeof(*charge));
			if (!charge) {
				freed += node->bytes;
				continue;
			}
			*charge = *node;
			charge->next = outlive;
			outlive = charge;
		}
	pthread_mutex_unlock(&quota.lock);
	charge = charge_begin(EXECUTABLE, freed);
	if (charge)
		charge->outlive = outlive;
	else
		list_free(outlive);
	return charge;
}

#define INSTANTIATE(executable, graph, call)						\
	do {										\
		struct charge *charge_ = executable_begin(graph);			\
		CUresult result_;							\
											\
		if (!charge_)								\
			return CUDA_ERROR_OUT_OF_MEMORY;				\
		result_ = call;								\
		return charge_end(charge_, result_, (uint64_t)(uintptr_t)*(executable));	\
	} while (0)

static CUresult instantiate_1(CUgraphExec *executable, CUgraph graph, CUgraphNode *failed, char *log,
			      size_t bytes)
{
	INSTANTIATE(executable, graph,
		    quota.real.cuGraphInstantiate(executable, graph, failed, log, bytes));
}

static CUresult instantiate_2(CUgraphExec *executable, CUgraph graph, CUgraphNode *failed, char *log,
			      size_t bytes)
{
	INSTANTIATE(executable, graph,
		    quota.real.cuGraphInstantiate_v2(executable, graph, failed, log, bytes));
}

static CUresult instantiate_flags(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
	INSTANTIATE(executable, graph,
		    quota.real.cuGraphInstantiateWithFlags(executable, graph, flags));
}

static CUresult instantiate_params(CUgraphExec *executable, CUgraph graph,
				   CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	INSTANTIATE(executable, graph,
		    quota.real.cuGraphInstantiateWithParams(executable, graph, params));
}

/* What a launch takes for good: it is there until somebody frees it, whatever becomes of the executable.
 * False: there is no room. */
static bool launch_begin(CUgraphExec executable, struct charge **taken)
{
	const struct charge *node;
	struct charge *charge;
	bool fits = true;

	*taken = NULL;
	pthread_mutex_lock(&quota.lock);
	charge = *find(EXECUTABLE, (uint64_t)(uintptr_t)executable);
	for (node = charge ? charge->outlive : NULL; node && fits; node = node->next) {
		/* Launched before, it is there already, or freed by this launch first. */
		if (*find(POOLED, node->key))
			continue;
		charge = charge_begin(POOLED, node->bytes);
		fits = charge;
		if (!charge)
			break;
		charge->key = node->key;
		charge->next = *taken;
		*taken = charge;
	}
	pthread_mutex_unlock(&quota.lock);
	return fits;
}

static CUresult graph_launch(CUgraphExec executable, CUstream stream)
{
	struct charge *taken, *charge;
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (captured(stream))
		return quota.real.cuGraphLaunch(executable, stream);
	if (launch_begin(executable, &taken))
		result = quota.real.cuGraphLaunch(executable, stream);
	while ((charge = taken)) {
		taken = charge->next;
		(void)charge_end(charge, result, charge->key);
	}
	return result;
}

static CUresult executable_destroy(CUgraphExec executable)
{
	GIVE_BACK(EXECUTABLE, (uintptr_t)executable, quota.real.cuGraphExecDestroy(executable));
}

static CUresult graph_destroy(CUgraph graph)
{
	/* Before another graph has its address. */
	drop_owner(is_of_graph, (uint64_t)(uintptr_t)graph);
	return quota.real.cuGraphDestroy(graph);
}

/* A capture that is broken off takes its graph with it, and says nothing of that. */
static CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode)
{
	CUresult result = quota.real.cuStreamBeginCapture_v2(stream, mode);

	if (result == CUDA_SUCCESS)
		drop_owner(is_of_graph, (uint64_t)(uintptr_t)server_capture_graph(&quota.real, stream));
	return result;
}

static CUresult graph_create(CUgraph *graph, unsigned int flags)
{
	CUresult result = quota.real.cuGraphCreate(graph, flags);

	if (result == CUDA_SUCCESS)
		drop_owner(is_of_graph, (uint64_t)(uintptr_t)*graph);
	return result;
}

/* ---- contexts take their memory with them ---- */

static CUresult context_destroy(CUcontext context)
{
	CUresult result = quota.real.cuCtxDestroy_v2(context);

	drop_owner(is_of_context, (uint64_t)(uintptr_t)context);
	return result;
}

static CUresult primary_retain(CUcontext *context, CUdevice device)
{
	CUresult result = quota.real.cuDevicePrimaryCtxRetain(context, device);

	if (result == CUDA_SUCCESS && device >= 0 && device < 64)
		quota.primaries[device] = *context;
	return result;
}

static void primary_drop(CUdevice device)
{
	unsigned flags;
	int active = 0;

	if (device < 0 || device >= 64 || !quota.real.cuDevicePrimaryCtxGetState ||
	    quota.real.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || active)
		return;
	drop_owner(is_of_context, (uint64_t)(uintptr_t)quota.primaries[device]);
}

static CUresult primary_release(CUdevice device)
{
	CUresult result = quota.real.cuDevicePrimaryCtxRelease_v2(device);

	primary_drop(device);
	return result;
}

static CUresult primary_reset(CUdevice device)
{
	CUresult result = quota.real.cuDevicePrimaryCtxReset_v2(device);

	if (result == CUDA_SUCCESS && device >= 0 && device < 64)
		drop_owner(is_of_context, (uint64_t)(uintptr_t)quota.primaries[device]);
	return result;
}

void server_quota_install(struct server *server, uint64_t limit)
{
	struct server_driver *driver = &server->driver;

	quota.real = *driver;
	quota.server = server;
	quota.limit = limit;
#define INSTEAD(symbol, function) driver->symbol = driver->symbol ? function : NULL
	INSTEAD(cuMemAlloc_v2, mem_alloc);
	INSTEAD(cuMemAllocManaged, mem_alloc_managed);
	INSTEAD(cuMemAllocPitch_v2, mem_alloc_pitch);
	INSTEAD(cuMemFree_v2, mem_free);
	INSTEAD(cuMemAllocAsync, mem_alloc_async);
	INSTEAD(cuMemAllocFromPoolAsync, mem_alloc_from_pool);
	INSTEAD(cuMemFreeAsync, mem_free_async);
	INSTEAD(cuMemGetInfo_v2, mem_get_info);
	INSTEAD(cuDeviceTotalMem_v2, device_total);
	INSTEAD(cuMemCreate, mem_create);
	INSTEAD(cuMemRelease, mem_release);
	INSTEAD(cuMemRetainAllocationHandle, mem_retain);
	INSTEAD(cuMemMap, mem_map);
	INSTEAD(cuMemUnmap, mem_unmap);
	INSTEAD(cuMulticastCreate, multicast_create);
	INSTEAD(cuMulticastBindMem, multicast_bind_mem);
	INSTEAD(cuMulticastBindAddr, multicast_bind_addr);
	INSTEAD(cuMulticastUnbind, multicast_unbind);
	INSTEAD(cuArrayCreate_v2, array_create);
	INSTEAD(cuArray3DCreate_v2, array_create_3d);
	INSTEAD(cuArrayDestroy, array_destroy);
	INSTEAD(cuMipmappedArrayCreate, mipmap_create);
	INSTEAD(cuMipmappedArrayDestroy, mipmap_destroy);
	INSTEAD(cuStreamBeginCapture_v2, capture_begin);
	INSTEAD(cuGraphCreate, graph_create);
	INSTEAD(cuGraphAddMemAllocNode, node_add_alloc);
	INSTEAD(cuGraphAddMemFreeNode, node_add_free);
	INSTEAD(cuGraphAddNode, node_add);
	INSTEAD(cuGraphAddNode_v2, node_add_2);
	INSTEAD(cuGraphInstantiate, instantiate_1);
	INSTEAD(cuGraphInstantiate_v2, instantiate_2);
	INSTEAD(cuGraphInstantiateWithFlags, instantiate_flags);
	INSTEAD(cuGraphInstantiateWithParams, instantiate_params);
	INSTEAD(cuGraphLaunch, graph_launch);
	INSTEAD(cuGraphExecDestroy, executable_destroy);
	INSTEAD(cuGraphDestroy, graph_destroy);
	INSTEAD(cuCtxDestroy_v2, context_destroy);
	INSTEAD(cuDevicePrimaryCtxRetain, primary_retain);
	INSTEAD(cuDevicePrimaryCtxRelease_v2, primary_release);
	INSTEAD(cuDevicePrimaryCtxReset_v2, primary_reset);
#undef INSTEAD
}
