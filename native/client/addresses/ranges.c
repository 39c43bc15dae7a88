/* What the program knows as device memory and pinned memory, and where device memory lies.
 *
 * Device addresses are the same here and on the server.  Every allocation's
 * addresses are reserved in this process (PROT_NONE), in blocks of 2 MiB as GPUs
 * map memory, so that nothing else can come to lie there; a block belongs to all
 * allocations that touch it.
 */
#include "../ground/thread.h"
#include "../handles/route.h"
#include "ranges.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

	*low = range->base & ~(CLIENT_BLOCK_BYTES - 1);
	*high = (range->base + range->bytes + CLIENT_BLOCK_BYTES - 1) & ~(CLIENT_BLOCK_BYTES - 1);
	if (index > 0) {
		uint64_t end = table->ranges[index - 1].base + table->ranges[index - 1].bytes;

		if (end > *low)
			*low = (end + CLIENT_BLOCK_BYTES - 1) & ~(CLIENT_BLOCK_BYTES - 1);
	}
	if (index + 1 < table->count && table->ranges[index + 1].base < *high)
		*high = table->ranges[index + 1].base & ~(CLIENT_BLOCK_BYTES - 1);
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

/* Device memory, or what is mapped where addresses were reserved.  The lock is held. */
static struct client_range *device_find(uint64_t address)
{
	struct client_range *found = table_find(&device_table, address);

	return found && found->reserved ? table_find(&mapped_table, address) : found;
}

bool client_memory_find(uint64_t address, struct client_range *range)
{
	struct client_range *found;

	memory_read();
	found = device_find(address);
	if (!found)
		found = table_find(&host_table, address);
	if (found)
		*range = *found;
	memory_unlock();
	return found;
}

bool client_memory_is_host(CUmemorytype type, uint64_t unified)
{
	struct client_range range;

	return type == CU_MEMORYTYPE_HOST ||
	       (type == CU_MEMORYTYPE_UNIFIED &&
		!(client_memory_find(unified, &range) && range.kind == MEMORY_DEVICE));
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

void client_memory_set_graph(uint64_t address)
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
	found = device_find(address);
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

bool client_memory_leave(uint64_t base, struct client_range *range)
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

void client_memory_left(const struct client_range *range, bool freed)
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
