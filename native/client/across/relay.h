/* relay.h - copies of which one side is at another server (relay.c). */
#ifndef FARBUS_CLIENT_RELAY_H
#define FARBUS_CLIENT_RELAY_H

#include "../addresses/plane.h"

struct client_copy {
	struct client_plane to;
	struct client_plane from;
	struct client_extent extent;
};

/* Wait for the stream; and where that is the legacy one, for the contexts of other servers
 * whose memory takes part in what comes next, as CUDA does.  Each may be NULL. */
CUresult client_across_settle(uint64_t stream, const struct client_context *one,
			      const struct client_context *other);
/* A copy of which one side at least is another server's than the stream's. */
CUresult client_across_copy(const struct client_copy *copy, uint64_t stream, bool async);

#endif
