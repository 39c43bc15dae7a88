/* virtual_memory.h - memory apart from addresses.
 *
 * Memory is a memfd, so that it can be mapped at several places (virtual.h) and given to
 * another process (virtual_file.c).  A board's counts with the process that made it, as
 * long as that uses it.  The host's lies where it is first touched, whatever
 * NUMA node was asked for.
 *
 * All of it is between driver_virtual_begin and driver_virtual_end, or with the lock.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_VIRTUAL_MEMORY_H
#define FARBUS_SOFTGPU_DRIVER_VIRTUAL_MEMORY_H

#include "device.h"

struct driver_team;

struct memory {
	struct driver_team *team;	/* of a multicast object; NULL: of memory */
	struct driver_device *device;	/* NULL: the host's */
	CUmemLocation location;
	size_t size;
	int fd;
	unsigned handles;		/* that the program may release */
	unsigned mappings;
	unsigned parts;			/* that are bound to multicast objects */
	bool counted;			/* with the board, by this process */
	CUmemAllocationHandleType shareable;
};

/* Memory that is bound to a multicast object: it stays while it is held. */
struct driver_part {
	struct memory *memory;		/* NULL: a pool's */
	struct driver_device *device;
	int fd;				/* the part's own */
	size_t offset;			/* in that file */
	bool shareable;
};

/* The lock of all memory, mappings and teams. */
void driver_virtual_lock(void);
void driver_virtual_unlock(void);
/* The same around calls of the program's: ready, else why not. */
CUresult driver_virtual_begin(void);
CUresult driver_virtual_end(CUresult result);

/* NULL: it is no handle of memory. */
struct memory *driver_virtual_memory_of(CUmemGenericAllocationHandle handle);
/* One more handle.  0 or -ENOMEM. */
int driver_virtual_memory_name(struct memory *memory);
/* It goes, if nobody has it any more: true.  That of a team leaves the team to driver_virtual_drop. */
bool driver_virtual_memory_drop(struct memory *memory);

/* Hold `size` bytes of a device's memory; NULL is none. */
CUresult driver_virtual_hold(struct memory *memory, size_t offset, size_t size, struct driver_part *part);
void driver_virtual_let_go(struct driver_part *part);

static inline bool driver_virtual_is_host(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_HOST ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

#endif
