/* regions.h - which managed memory lies where (regions.c).  client_pages_lock is held around everything here. */
#ifndef FARBUS_CLIENT_REGIONS_H
#define FARBUS_CLIENT_REGIONS_H

#include <unistd.h>

#include "../client.h"

#define PAGE_BYTES 4096ull

/* Are the machine's pages of that size?  Those of some arm64 kernels have 16 or 64 KiB. */
static inline bool client_pages_fit(void)
{
	return (unsigned long long)sysconf(_SC_PAGESIZE) == PAGE_BYTES;
}

/* What no cuMemAdvise has said: no device, no location. */
#define MANAGED_LOCATION_NONE (-2)

enum managed_attach { ATTACH_GLOBAL, ATTACH_HOST, ATTACH_STREAM };

/* An allocation: whole pages of its region. */
struct managed_block {
	size_t first, count;		/* pages */
	uint64_t bytes;			/* as asked for */
	struct client_context *context;
	enum managed_attach attach;
	uint64_t stream;		/* key of the one that it is attached to, or was last */
	int advice[4];			/* by CUmem_range_attribute - 1 */
};

/* A variable of a module, which shares its pages with others. */
struct managed_piece {
	uint64_t address;
	uint64_t bytes;
	struct client_library *library;
};

/* Pages that lie together: of one allocation at the server, or of variables. */
struct managed_region {
	uint64_t base;			/* of the first page */
	size_t pages;
	uint64_t device;		/* the server's allocation; 0: variables */
	struct managed_home *home;
	struct managed_block *blocks;	/* by first page */
	size_t block_count, block_room;
	struct managed_piece *pieces;	/* of variables: only these bytes travel */
	size_t piece_count;
	uint8_t *state;			/* enum page_state of each page */
	uint8_t *twin;			/* copies, and where mapped: what the GPU has, as far as is known here */
	bool mapped;			/* pinned memory that the program has by its address */
	size_t warm;			/* pages that are FRESH, CLEAN or DIRTY */
	size_t away;			/* pages that are AWAY */
	size_t warm_low, warm_high;	/* no page outside is warm */
	bool provisional;		/* CLEAN pages came while something may have run */
	size_t next, run;		/* paging: where a sequence goes on, and its step */
	size_t next_write, write_run;
};

static inline void *client_pointer(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

/* A handler of the program's that touched managed memory between these would wait for a fault that
 * waits for this thread; a thread that was cancelled there would keep all others out. */
void client_pages_lock(void);
void client_pages_unlock(void);

struct managed_region *client_pages_find(uint64_t address);
/* Add a region; it is freed if there is no memory for it. */
bool client_pages_add(struct managed_region *region);
struct managed_region *client_pages_make(uint64_t base, size_t pages, bool mapped);
/* One that was not added. */
void client_pages_unmake(struct managed_region *region);
/* Its addresses are only reserved again; it is freed. */
void client_pages_remove(struct managed_region *region);
size_t client_pages_count(void);
struct managed_region *client_pages_at(size_t index);
struct managed_block *client_pages_block(struct managed_region *region, size_t page);
/* Have plain memory there, or keep the addresses alone.  0, or -errno. */
int client_pages_map(uint64_t address, uint64_t bytes, int protection);

#endif
