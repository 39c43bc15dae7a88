/* Regions of managed memory: where they lie, and the lock over all that is managed. */
#include "../ground/thread.h"
#include "paging.h"
#include "regions.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct {
	pthread_mutex_t lock;
	struct managed_region **regions; /* by base */
	size_t count, room;
} managed = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* What the holder was before. */
static int cancel_before;

void client_pages_lock(void)
{
	int cancel;

	client_guard_begin();
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&managed.lock);
	cancel_before = cancel;
	client_thread()->managed = true;
}

void client_pages_unlock(void)
{
	int cancel = cancel_before;

	client_thread()->managed = false;
	pthread_mutex_unlock(&managed.lock);
	pthread_setcancelstate(cancel, &cancel);
	client_guard_end();
}

/* Index of the first region that ends behind the address. */
static size_t region_search(uint64_t address)
{
	size_t low = 0, high = managed.count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		const struct managed_region *region = managed.regions[middle];

		if (region->base + region->pages * PAGE_BYTES <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct managed_region *client_pages_find(uint64_t address)
{
	size_t index = region_search(address);

	return index < managed.count && managed.regions[index]->base <= address ? managed.regions[index]
										 : NULL;
}

size_t client_pages_count(void)
{
	return managed.count;
}

struct managed_region *client_pages_at(size_t index)
{
	return managed.regions[index];
}

void client_pages_unmake(struct managed_region *region)
{
	if (region->twin)
		munmap(region->twin, region->pages * PAGE_BYTES);
	free(region->state);
	free(region->blocks);
	free(region->pieces);
	free(region);
}

struct managed_region *client_pages_make(uint64_t base, size_t pages, bool mapped)
{
	struct managed_region *region = calloc(1, sizeof(*region));

	if (!region)
		return NULL;
	region->base = base;
	region->pages = pages;
	region->warm_low = pages;
	region->next = region->next_write = pages;
	region->mapped = mapped;
	region->state = calloc(pages, 1);
	if (!client_paging() || mapped)
		region->twin = mmap(NULL, pages * PAGE_BYTES, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (region->twin == MAP_FAILED) {
		region->twin = NULL;
		client_pages_unmake(region);
		return NULL;
	}
	if (!region->state) {
		client_pages_unmake(region);
		return NULL;
	}
	if (region->twin)
		madvise(region->twin, pages * PAGE_BYTES, MADV_DONTFORK);
	return region;
}

bool client_pages_add(struct managed_region *region)
{
	size_t index = region_search(region->base);

	if (managed.count == managed.room) {
		size_t room = managed.room ? 2 * managed.room : 16;
		struct managed_region **grown = realloc(managed.regions, room * sizeof(*grown));

		if (!grown) {
			client_pages_unmake(region);
			return false;
		}
		managed.regions = grown;
		managed.room = room;
	}
	memmove(&managed.regions[index + 1], &managed.regions[index],
		(managed.count - index) * sizeof(*managed.regions));
	managed.regions[index] = region;
	managed.count++;
	return true;
}

int client_pages_map(uint64_t address, uint64_t bytes, int protection)
{
	void *got = mmap(client_pointer(address), bytes, protection,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);

	if (got == MAP_FAILED)
		return -errno;
	if (protection != PROT_NONE) {
		/* As with the driver's own, a child of the program has none of it. */
		madvise(got, bytes, MADV_DONTFORK);
		madvise(got, bytes, MADV_NOHUGEPAGE);
	}
	return 0;
}

void client_pages_remove(struct managed_region *region)
{
	size_t index = region_search(region->base);

	client_pages_map(region->base, region->pages * PAGE_BYTES, PROT_NONE);
	if (client_paging())
		paging_wake(region->base, region->pages * PAGE_BYTES);
	managed.count--;
	memmove(&managed.regions[index], &managed.regions[index + 1],
		(managed.count - index) * sizeof(*managed.regions));
	client_pages_unmake(region);
}

struct managed_block *client_pages_block(struct managed_region *region, size_t page)
{
	size_t low = 0, high = region->block_count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		struct managed_block *block = &region->blocks[middle];

		if (block->first + block->count <= page)
			low = middle + 1;
		else
			high = middle;
	}
	return low < region->block_count && region->blocks[low].first <= page ? &region->blocks[low]
										: NULL;
}
