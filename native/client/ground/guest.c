/* A guest in somebody's program keeps out of its way. */
#include "guest.h"

#include <sys/resource.h>

#include "../../transport/ground/clofork.h"

/* Programs close and reuse low descriptors (daemons, shells, dup2 onto a fixed number):
 * the session's stays away from those, if the limit allows it. */
#define DESCRIPTOR_LOWEST 200

int client_raise_descriptor(int descriptor)
{
	int lowest = DESCRIPTOR_LOWEST;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur <= DESCRIPTOR_LOWEST)
		lowest = (int)(limit.rlim_cur / 2);
	return clofork_raise(descriptor, lowest);
}
