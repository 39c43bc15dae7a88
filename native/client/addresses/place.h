/* place.h - where memory finds room (place.c). */
#ifndef FARBUS_CLIENT_PLACE_H
#define FARBUS_CLIENT_PLACE_H

#include "../handles/route.h"
#include "ranges.h"

/* Find memory or addresses that are free here, too: `take` asks for some and fills in the
 * range's base and length; what is taken in this process is kept until others are found,
 * and then given back.  With `fill`, plain memory of growing length is taken in between, so
 * that the driver looks further. */
struct client_placement {
	CUresult (*take)(void *opaque, unsigned attempt, struct client_range *range);
	void (*give)(void *opaque, const struct client_range *range, uint64_t address);
	void *opaque;
	bool fill;
};

CUresult client_memory_place(const struct client_placement *placement, struct client_range *range);
/* Give back what the program has never had, as the memory behind what it has. */
CUresult client_memory_free_quietly(const struct client_route *route, uint64_t address);

#endif
