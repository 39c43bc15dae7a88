/* regions.h - which managed memory lies where (regions.c).  client_pages_lock is held around everything here. */
#ifndef FARBUS_CLIENT_REGIONS_H
#define FARBUS_CLIENT_REGIONS_H

#include "pages.h"

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
