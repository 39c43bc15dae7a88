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

#include "regions.h"

enum page_state { PAGE_FREE, PAGE_FRESH, PAGE_AWAY, PAGE_CLEAN, PAGE_DIRTY };

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
