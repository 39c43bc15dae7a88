/* What the program knows as device memory and pinned memory, and where device memory lies.
 *
 * Device addresses are the same here and on the server.  Every allocation's
 * addresses are reserved in this process (PROT_NONE), in blocks of 2 MiB as GPUs
 * map memory, so that nothing else can come to lie there; a block belongs to all
 * allocations that touch it.
 */
#include "capture.h"
#include "descriptor.h"
#include "library.h"
#include "managed.h"
#include "memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK_BYTES (2ull << 20)
/* Attempts to find addresses that are free on both sides; where fillers are taken, each
 * keeps twice as many bytes away from the next. */
#define PLACEMENT_ATTEMPTS 12
/* Most fillers of one allocation: one for each attempt, and what fills the rest of blocks. */
#define PLACEMENT_FILLERS 256u
/* Drivers hand out less than this much in one block for many. */
#define BLOCK_SHARE_BYTES (1ull << 20)
#define BLOCK_GRAIN_BYTES 256u

/* Ranges sorted by base, none overlapping another. */
struct range_table {
	struct client_range *ranges;
	size_t count;
	size_t room;
};

static pthread_rwlock_t memory_lock = PTHREAD_RWLOCK_INITIALIZER;

static void memory_read(void)
{
	client_guard_begin();
	pthread_rwlock_rdlock(&memory_lock);
}

static void memory_write(void)
{
	client_guard_begin();
	pthread_rwlock_wrlock(&memory_lock);
}

static void memory_unlock(void)
{
	pthread_rwlock_unlock(&memory_lock);
	client_guard_end();
}
static struct range_table device_table;
static struct range_table host_table;
/* What is mapped at addresses that cuMemAddressReserve gave out. */
static struct range_table mapped_table;

/* Index of the first range that ends behind the address. */
static size_t table_search(const struct range_table *table, uint64_t address)
{
	size_t low = 0, high = table->count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		const struct client_range *range = &table->ranges[middle];

		if (range->base + range->bytes <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct client_range *table_find(const struct range_table *table, uint64_t address)
{
	size_t index = table_search(table, address);

	if (index < table->count && table->ranges[index].base <= address)
		return &table->ranges[index];
	return NULL;
}

static void table_erase(struct range_table *table, size_t index);

static int table_insert(struct range_table *table, const struct client_range *range)
{
	size_t index = table_search(table, range->base);

	while (index < table->count && table->ranges[index].base < range->base + range->bytes) {
		const struct client_range *there = &table->ranges[index];

		/* The server has freed it, or it would not give these addresses out again. */
		if ((!there->going && !there->graph) || there->session != range->session)
			return -EEXIST;
		table_erase(table, index);
	}
	if (table->count == table->room) {
		size_t room = table->room ? 2 * table->room : 64;
		struct client_range *ranges = realloc(table->ranges, room * sizeof(*ranges));

		if (!ranges)
			return -ENOMEM;
		table->ranges = ranges;
		table->room = room;
	}
	memmove(&table->ranges[index + 1], &table->ranges[index],
		(table->count - index) * sizeof(*table->ranges));
	table->ranges[index] = *range;
	table->ranges[index].id = atomic_fetch_add(&farbus_client.next_id, 1) + 1;
	table->count++;
	return 0;
}

/* The blocks of range `index` that no neighbour touches: [*low, *high). */
static void own_blocks(const struct range_table *table, size_t index, uint64_t *low, uint64_t *high)
{
	const struct client_range *range = &table->ranges[index];

	*low = range->base & ~(BLOCK_BYTES - 1);
	*high = (range->base + range->bytes + BLOCK_BYTES - 1) & ~(BLOCK_BYTES - 1);
	if (index > 0) {
		uint64_t end = table->ranges[index - 1].base + table->ranges[index - 1].bytes;

		if (end > *low)
			*low = (end + BLOCK_BYTES - 1) & ~(BLOCK_BYTES - 1);
	}
	if (index + 1 < table->count && table->ranges[index + 1].base < *high)
		*high = table->ranges[index + 1].base & ~(BLOCK_BYTES - 1);
}

static int reserve(uint64_t low, uint64_t high)
{
	void *wanted = (void *)(uintptr_t)low;
	void *got;

	if (low >= high)
		return 0;
	got = mmap(wanted, high - low, PROT_NONE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	if (got == MAP_FAILED)
		return errno == ENOMEM ? -ENOMEM : -EEXIST;
	if (got != wanted) {
		/* A kernel before 4.17 takes the address as a wish. */
		munmap(got, high - low);
		return -EEXIST;
	}
	return 0;
}

static void table_erase(struct range_table *table, size_t index)
{
	uint64_t low, high;

	if (table == &device_table) {
		own_blocks(table, index, &low, &high);
		if (low < high)
			munmap((void *)(uintptr_t)low, high - low);
	}
	table->count--;
	memmove(&table->ranges[index], &table->ranges[index + 1],
		(table->count - index) * sizeof(*table->ranges));
}

bool client_memory_find(uint64_t address, struct client_range *range)
{
	struct client_range *found;

	memory_read();
	found = table_find(&device_table, address);
	if (found && found->reserved)
		found = table_find(&mapped_table, address);
	if (!found)
		found = table_find(&host_table, address);
	if (found)
		*range = *found;
	memory_unlock();
	return found;
}

bool client_memory_find_reserved(uint64_t address, struct client_range *range)
{
	const struct client_range *found;

	memory_read();
	found = table_find(&device_table, address);
	if (found && found->reserved)
		*range = *found;
	else
		found = NULL;
	memory_unlock();
	return found;
}

/* Is all of it mapped and accessible, whatever number of mappings it takes?  The lock is held. */
static bool mapped_all(uint64_t address, uint64_t bytes)
{
	uint64_t end = address + bytes;

	while (address < end) {
		const struct client_range *found = table_find(&mapped_table, address);

		if (!found || !found->accessible)
			return false;
		address = found->base + found->bytes;
	}
	return true;
}

struct client_context *client_memory_context(const struct client_range *range)
{
	if (range->context && range->context->active && range->context->session == range->session)
		return range->context;
	return client_session_context(range->session);
}

int client_memory_opened(uint64_t base, int change)
{
	struct client_range *found;
	int opened = 0;

	memory_write();
	found = table_find(&device_table, base);
	if (found && found->base == base && found->opened)
		opened = found->opened += change;
	memory_unlock();
	return opened;
}

static void set_graph(uint64_t address)
{
	struct client_range *found;

	memory_write();
	found = table_find(&device_table, address);
	if (found)
		found->graph = true;
	memory_unlock();
}

int client_memory_map(const struct client_range *range)
{
	int rc;

	memory_write();
	rc = table_insert(&mapped_table, range);
	memory_unlock();
	return rc;
}

void client_memory_unmap(uint64_t base, uint64_t bytes)
{
	memory_write();
	for (size_t i = mapped_table.count; i-- > 0;)
		if (mapped_table.ranges[i].base >= base &&
		    mapped_table.ranges[i].base + mapped_table.ranges[i].bytes <= base + bytes)
			table_erase(&mapped_table, i);
	memory_unlock();
}

void client_memory_access(uint64_t base, uint64_t bytes, bool accessible)
{
	memory_write();
	for (size_t i = 0; i < mapped_table.count; i++)
		if (mapped_table.ranges[i].base >= base && mapped_table.ranges[i].base < base + bytes)
			mapped_table.ranges[i].accessible = accessible;
	memory_unlock();
}

bool client_memory_set_sync(uint64_t address, bool sync)
{
	struct client_range *found;

	memory_write();
	found = table_find(&device_table, address);
	if (found)
		found->sync = sync;
	memory_unlock();
	return found;
}

CUresult client_memory_check(uint64_t address, uint64_t bytes)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	const struct client_range *found;

	memory_read();
	found = table_find(&device_table, address);
	if (found && bytes <= found->base + found->bytes - address)
		result = !found->reserved || mapped_all(address, bytes) ? CUDA_SUCCESS
									: CUDA_ERROR_INVALID_VALUE;
	memory_unlock();
	return result;
}

int client_memory_add(const struct client_range *given)
{
	struct client_range range = *given;
	bool device = range.kind == MEMORY_DEVICE;
	struct range_table *table = device ? &device_table : &host_table;
	int rc;

	if (device && !range.session)
		range.session = range.context ? range.context->session : client_route_current().session;
	memory_write();
	rc = table_insert(table, &range);
	if (!rc && device) {
		size_t index = table_search(table, range.base);
		uint64_t low, high;

		own_blocks(table, index, &low, &high);
		rc = reserve(low, high);
		if (rc) {
			table->count--;
			memmove(&table->ranges[index], &table->ranges[index + 1],
				(table->count - index) * sizeof(*table->ranges));
		}
	}
	memory_unlock();
	return rc;
}

/* Mark a range that the server is asked to free, and say which it was.  From then on
 * an allocation that gets its addresses takes its place. */
static bool memory_leave(uint64_t base, struct client_range *range)
{
	struct client_range *found;

	memory_write();
	found = table_find(&device_table, base);
	if (found && found->base == base && !found->global && !found->going && !found->opened &&
	    !found->reserved) {
		found->going = true;
		*range = *found;
	} else {
		found = NULL;
	}
	memory_unlock();
	return found;
}

/* The server has answered: the range goes, or stays after all; unless another is there. */
static void memory_left(const struct client_range *range, bool freed)
{
	struct client_range *found;

	memory_write();
	found = table_find(&device_table, range->base);
	if (found && found->id == range->id) {
		if (freed)
			table_erase(&device_table, (size_t)(found - device_table.ranges));
		else
			found->going = false;
	}
	memory_unlock();
}

bool client_memory_remove(uint64_t base, enum client_memory_kind kind, struct client_range *range)
{
	struct range_table *table = kind == MEMORY_DEVICE ? &device_table : &host_table;
	struct client_range *found;

	memory_write();
	found = table_find(table, base);
	if (found && found->base == base && !found->global && !found->going) {
		*range = *found;
		table_erase(table, (size_t)(found - table->ranges));
	} else {
		found = NULL;
	}
	memory_unlock();
	return found;
}

void client_memory_forget_library(struct client_library *library)
{
	memory_write();
	for (size_t i = device_table.count; i-- > 0;)
		if (device_table.ranges[i].global && device_table.ranges[i].library == library)
			table_erase(&device_table, i);
	memory_unlock();
}

void client_memory_forget_context(struct client_context *context)
{
	memory_write();
	for (size_t i = device_table.count; i-- > 0;)
		if (device_table.ranges[i].context == context)
			table_erase(&device_table, i);
	/* What was pinned in it, the server drops; here it is memory still, and what was registered is not any more. */
	for (size_t i = host_table.count; i-- > 0;) {
		struct client_range *range = &host_table.ranges[i];

		if (range->context == context && range->registered) {
			table_erase(&host_table, i);
		} else if (range->context == context) {
			range->shared = 0;
			range->mapped = false;
		}
	}
	memory_unlock();
}

/* ---- device memory ---- */

static void free_quietly(const struct client_route *route, uint64_t address)
{
	const struct wire_memory_free fixed = { .address = address };
	const struct client_request request = {
		.op = WIRE_OP_MEMORY_FREE,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_wait wait = { 0 };

	client_call_to(route, &request, &wait);
}

/* Memory that is only to be in the way; 0: there is none. */
static uint64_t filler_take(const struct client_route *route, uint64_t bytes)
{
	const struct wire_memory_alloc fixed = { .bytes = bytes };
	const struct client_request request = {
		.op = WIRE_OP_MEMORY_ALLOC,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct wire_memory_alloc_reply reply;
	struct client_wait wait = { .reply = &reply, .reply_bytes = sizeof(reply) };

	return client_call_to(route, &request, &wait) == CUDA_SUCCESS ? reply.address : 0;
}

struct fillers {
	uint64_t at[PLACEMENT_FILLERS];
	unsigned count;
};

static uint64_t filler_add(struct fillers *fillers, const struct client_route *route, uint64_t bytes)
{
	uint64_t address = fillers->count < PLACEMENT_FILLERS ? filler_take(route, bytes) : 0;

	if (address)
		fillers->at[fillers->count++] = address;
	return address;
}

/* Leave no room for `bytes` in the block of that address, where the driver would go on placing what is
 * small until nothing fits: the largest pieces first, so that few are needed. */
static void block_fill(struct fillers *fillers, const struct client_route *route, uint64_t address,
		       uint64_t bytes)
{
	const uint64_t block = address & ~(BLOCK_BYTES - 1);
	uint64_t piece = BLOCK_SHARE_BYTES, got;

	while (piece >= BLOCK_GRAIN_BYTES && piece > bytes / 2) {
		got = filler_add(fillers, route, piece);
		if (got && (got & ~(BLOCK_BYTES - 1)) == block)
			continue;
		/* What is elsewhere would draw the next pieces there. */
		if (got)
			free_quietly(route, fillers->at[--fillers->count]);
		piece /= 2;
	}
}

CUresult client_memory_place(const struct client_placement *placement, struct client_range *range)
{
	uint64_t kept[PLACEMENT_ATTEMPTS];
	struct fillers fillers = { .count = 0 };
	const struct client_route route = client_route_context(range->context);
	unsigned kept_count = 0;
	CUresult result = CUDA_SUCCESS;
	int rc = -EEXIST;

	client_descriptors_look();
	for (unsigned attempt = 0; attempt < PLACEMENT_ATTEMPTS && rc == -EEXIST; attempt++) {
		result = placement->take(placement->opaque, attempt, range);
		if (result != CUDA_SUCCESS)
			break;
		rc = client_memory_add(range);
		if (!rc)
			break;
		kept[kept_count++] = range->base;
		if (placement->fill && rc == -EEXIST) {
			if (range->bytes <= BLOCK_SHARE_BYTES)
				block_fill(&fillers, &route, range->base, range->bytes);
			filler_add(&fillers, &route, BLOCK_BYTES << attempt);
		}
	}
	while (kept_count)
		placement->give(placement->opaque, range, kept[--kept_count]);
	while (fillers.count)
		free_quietly(&route, fillers.at[--fillers.count]);
	if (result == CUDA_SUCCESS && rc) {
		client_message("no addresses for %llu bytes are free both here and on the GPU",
			       (unsigned long long)range->bytes);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return result;
}

/* An allocation by an operation of its own. */
struct allocation {
	struct client_route route;
	struct client_request request;
	void *reply;
	size_t reply_bytes;
	const uint64_t *address;	/* in the reply */
	const uint64_t *pitch;		/* of one whose rows are padded; else NULL */
	uint64_t bytes;			/* of it, or of rows */
};

static CUresult allocation_take(void *opaque, unsigned attempt, struct client_range *range)
{
	struct allocation *allocation = opaque;
	struct client_wait wait = {
		.reply = allocation->reply,
		.reply_bytes = allocation->reply_bytes,
	};
	CUresult result = client_call_to(&allocation->route, &allocation->request, &wait);

	(void)attempt;
	if (result != CUDA_SUCCESS)
		return result;
	range->base = *allocation->address;
	range->bytes = allocation->pitch ? *allocation->pitch * allocation->bytes : allocation->bytes;
	return CUDA_SUCCESS;
}

static void allocation_give(void *opaque, const struct client_range *range, uint64_t address)
{
	const struct allocation *allocation = opaque;

	(void)range;
	free_quietly(&allocation->route, address);
}

static CUresult allocate(struct allocation *allocation, struct client_context *context)
{
	const struct client_placement placement = {
		.take = allocation_take,
		.give = allocation_give,
		.opaque = allocation,
		.fill = true,
	};
	struct client_range range = { .kind = MEMORY_DEVICE, .context = context };

	allocation->route = client_route_context(context);
	return client_memory_place(&placement, &range);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	const struct wire_memory_alloc request = { .bytes = bytesize };
	struct wire_memory_alloc_reply reply;
	struct allocation allocation = {
		.request = { WIRE_OP_MEMORY_ALLOC, &request, sizeof(request), NULL, 0 },
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.address = &reply.address,
		.bytes = bytesize,
	};
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr || !bytesize)
		return CUDA_ERROR_INVALID_VALUE;
	result = allocate(&allocation, client_context_current());
	if (result == CUDA_SUCCESS)
		*dptr = reply.address;
	return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
			    unsigned int ElementSizeBytes)
{
	const struct wire_memory_alloc_pitch request = {
		.width = WidthInBytes,
		.height = Height,
		.element = ElementSizeBytes,
	};
	struct wire_memory_alloc_pitch_reply reply;
	struct allocation allocation = {
		.request = { WIRE_OP_MEMORY_ALLOC_PITCH, &request, sizeof(request), NULL, 0 },
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.address = &reply.address,
		.pitch = &reply.pitch,
		.bytes = Height,
	};
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr || !pPitch || !WidthInBytes || !Height ||
	    (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16))
		return CUDA_ERROR_INVALID_VALUE;
	result = allocate(&allocation, client_context_current());
	if (result == CUDA_SUCCESS) {
		*dptr = reply.address;
		*pPitch = reply.pitch;
	}
	return result;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	const struct wire_memory_free request = { .address = dptr };
	const struct client_request call = {
		.op = WIRE_OP_MEMORY_FREE,
		.fixed = &request,
		.fixed_bytes = sizeof(request),
	};
	struct client_wait wait = { .result = CUDA_ERROR_DEVICE_UNAVAILABLE };
	struct client_range range;
	struct client_route route;
	CUresult result = client_enter_any();

	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr && !client_context_current())
		return CUDA_SUCCESS;
	result = client_enter();
	if (result != CUDA_SUCCESS || !dptr)
		return result;
	/* Whether a graph has allocated it, the server knows. */
	if (client_memory_find(dptr, &range) && range.graph && range.base == dptr) {
		route = client_route_context(range.context);
		return client_call_to(&route, &call, &wait);
	}
	if (client_memory_find(dptr, &range) && range.mapped)
		return CUDA_ERROR_INVALID_VALUE;
	if (client_managed_free(dptr, &result))
		return result;
	if (!memory_leave(dptr, &range))
		return CUDA_ERROR_INVALID_VALUE;
	route = client_route_context(range.context);
	result = client_call_to(&route, &call, &wait);
	/* What the call reports may be an earlier operation's failure. */
	memory_left(&range, wait.result == CUDA_SUCCESS);
	return result;
}

/* The context whose memory a stream allocates: the current one, where the stream is of the
 * same server. */
static struct client_context *stream_context(uint64_t stream)
{
	struct client_context *current = client_context_current();
	struct client_context *context = client_stream_context(stream);

	return context && (!current || context->session != current->session) ? context : current;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	struct wire_memory_alloc_async request = { .bytes = bytesize };
	struct wire_memory_alloc_async_reply reply;
	struct allocation allocation = {
		.request = { WIRE_OP_MEMORY_ALLOC_ASYNC, &request, sizeof(request), NULL, 0 },
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.address = &reply.address,
		.bytes = bytesize,
	};
	CUresult result = client_stream_enter(hStream, &request.stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr || !bytesize)
		return CUDA_ERROR_INVALID_VALUE;
	result = allocate(&allocation, stream_context(request.stream));
	if (result == CUDA_SUCCESS)
		*dptr = reply.address;
	/* In a captured stream it is the graph that will have it. */
	if (result == CUDA_SUCCESS && client_stream_captured(request.stream))
		set_graph(reply.address);
	return result;
}

/* A capture of another stream may forbid it. */
static CUresult free_while_captured(const struct wire_memory_free_async *request)
{
	const struct client_request call = {
		.op = WIRE_OP_MEMORY_FREE_GRAPH,
		.fixed = request,
		.fixed_bytes = sizeof(*request),
	};
	struct client_wait wait = { .result = CUDA_ERROR_DEVICE_UNAVAILABLE };
	struct client_range range;
	CUresult result;

	if (!memory_leave(request->address, &range))
		return CUDA_ERROR_INVALID_VALUE;
	result = client_call_wide(&call, &wait);
	memory_left(&range, wait.result == CUDA_SUCCESS);
	return result;
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	struct wire_memory_free_async request = { .address = dptr };
	struct client_range range;
	CUresult result = client_stream_enter(hStream, &request.stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr)
		return CUDA_SUCCESS;
	if (client_memory_find(dptr, &range) && range.session &&
	    range.session != client_stream_session(request.stream)) {
		client_message("freeing memory of %s in a stream of %s is not supported over remoting: "
			       "free it in a stream of its own device", range.session->peer,
			       client_stream_session(request.stream)->peer);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (client_memory_find(dptr, &range) && range.base == dptr &&
	    (range.graph || client_stream_captured(request.stream))) {
		set_graph(dptr);
		return client_call(WIRE_OP_MEMORY_FREE_GRAPH, &request, sizeof(request), NULL, 0);
	}
	if (client_memory_find(dptr, &range) && range.managed)
		return CUDA_ERROR_INVALID_VALUE;
	if (client_captures())
		return free_while_captured(&request);
	if (!client_memory_remove(dptr, MEMORY_DEVICE, &range))
		return CUDA_ERROR_INVALID_VALUE;
	return client_post(WIRE_OP_MEMORY_FREE_ASYNC, &request, sizeof(request), NULL, 0);
}

/* The driver leaves out what is not asked for. */
CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	struct wire_memory_info_reply reply;
	CUresult result = client_enter();

	client_descriptors_look();
	if (result == CUDA_SUCCESS)
		result = client_call(WIRE_OP_MEMORY_INFO, NULL, 0, &reply, sizeof(reply));
	if (result != CUDA_SUCCESS)
		return result;
	if (free)
		*free = reply.free;
	if (total)
		*total = reply.total;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
	struct client_range range;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!client_memory_find(dptr, &range))
		return CUDA_ERROR_NOT_FOUND;
	if (pbase)
		*pbase = range.base;
	if (psize)
		*psize = range.bytes;
	return CUDA_SUCCESS;
}
