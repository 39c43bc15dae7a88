/* pages.h - managed memory: which of its pages are here, which on the GPU.
 *
 * The rules are those of a GPU whose CONCURRENT_MANAGED_ACCESS is 0: what a stream may use
 * belongs to the GPU from a launch until the program has waited for it.  Before work is
 * posted, pages that this process may have written are sent, and all that the work may
 * write are taken away here; how they come back is the mode's:
 *
 *	paging	a page is fetched when it is touched (userfaultfd), also by a system call
 *	copies	what is away is fetched when the program has waited: where the kernel lets
 *		only privileged processes serve the faults of system calls
 *
 *	FREE    nobody's
 *	FRESH   zero at the GPU, plain memory here: what the kernel has populated was touched
 *	AWAY    the GPU may have newer bytes; nothing to be read here
 *	CLEAN   here as at the GPU, write-protected (paging alone)
 *	DIRTY   here, writable; with copies, the twin has what the GPU has
 *
 * client_pages_lock is held around everything here but where said.
 */
#ifndef FARBUS_CLIENT_PAGES_H
#define FARBUS_CLIENT_PAGES_H

#include <unistd.h>

#include "home.h"

#define PAGE_BYTES 4096ull

/* Are the machine's pages of that size?  Those of some arm64 kernels have 16 or 64 KiB. */
static inline bool client_pages_fit(void)
{
	return (unsigned long long)sysconf(_SC_PAGESIZE) == PAGE_BYTES;
}

enum page_state { PAGE_FREE, PAGE_FRESH, PAGE_AWAY, PAGE_CLEAN, PAGE_DIRTY };

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

/* Find out what this process may do, once.  0, or -errno. */
int client_pages_start(void);

/* Pages of a new allocation: plain, zero here, and zeroed at the GPU. */
CUresult client_pages_fresh(struct managed_region *region, size_t first, size_t count);
/* Pages of variables: what they hold is at the GPU. */
CUresult client_pages_known(struct managed_region *region);
void client_pages_free(struct managed_region *region, size_t first, size_t count);

/* Send what was written in these pages; `keep`: they stay readable here. */
CUresult client_pages_flush(struct managed_region *region, size_t first, size_t count, bool keep);
/* Copies: bring back all of the block that is away.  Posted; they are there after finish. */
CUresult client_pages_bring(struct managed_region *region, size_t first, size_t count);
CUresult client_pages_bring_finish(void);
/* Paging: what came while something may have run is stale; it comes anew. */
void client_pages_drop(struct managed_region *region);
/* Paging: what is here of pinned memory may have come before the work that was just posted has ended. */
void client_pages_doubt(void);

#endif
