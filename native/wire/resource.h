/* resource.h - how a CUdevResource travels: what a program may read of it, and a name for the
 * rest, which only the driver that made it may see again. */
#ifndef FARBUS_WIRE_RESOURCE_H
#define FARBUS_WIRE_RESOURCE_H

#include <stdint.h>

struct wire_resource {
	uint32_t type;
	uint32_t reserved;
	uint64_t name;		/* 0: none, of type CU_DEV_RESOURCE_TYPE_INVALID alone */
	uint32_t told[4];	/* CUdevSmResource */
};
_Static_assert(sizeof(struct wire_resource) == 32, "layout on the wire");

#endif
