/* driver_virtual_memory.h - what memory apart from addresses (driver_virtual_memory.c) and the addresses where it is mapped
 * (driver_virtual.c) know of each other.  All of it is between driver_virtual_begin and driver_virtual_end.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_VIRTUAL_MEMORY_H
#define FARBUS_SOFTGPU_DRIVER_VIRTUAL_MEMORY_H

#include "driver_virtual.h"

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

/* NULL: it is no handle of memory. */
struct memory *driver_virtual_memory_of(CUmemGenericAllocationHandle handle);
/* It goes, if nobody has it any more. */
void driver_virtual_memory_drop(struct memory *memory);
/* What is mapped at this address, for so many bytes, and where in it they begin; or NULL. */
struct memory *driver_virtual_memory_at(uintptr_t address, size_t size, size_t *offset);

static inline bool driver_virtual_is_host(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_HOST ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

#endif
