/* across.h - what a stream of one server needs of another: events (across.c), bytes (relay.c), and streams of the shim's own
 * for both (helpers.c). */
#ifndef FARBUS_CLIENT_ACROSS_H
#define FARBUS_CLIENT_ACROSS_H

#include "../addresses/memory.h"

/* Rows of bytes on one side of a copy; height 1: pitch does not matter. */
struct client_plane {
	uint64_t address;
	size_t pitch;
	enum client_memory_kind kind;
	struct client_context *context;	/* whose memory it is; NULL: this process's */
};

struct client_extent {
	size_t width;
	size_t height;
};

struct client_copy {
	struct client_plane to;
	struct client_plane from;
	struct client_extent extent;
};

/* A stream of this library's own in that context, for what must not wait for anything that
 * the program has put into its streams; given back when nothing is on its way in it. */
struct across_helper;
CUresult client_helper_take(struct client_context *context, struct across_helper **helper);
void client_helper_give(struct across_helper *helper);
uint64_t client_helper_wire(const struct across_helper *helper);
/* Its own context's, whatever is current to the thread.  Copies go by the shim's own lane: they wait for nothing that is
 * before them in the session, and what stands there may wait for them. */
struct client_route client_helper_route(const struct across_helper *helper);
CUresult client_helper_post(const struct across_helper *helper, enum wire_op op, const void *fixed,
			    size_t fixed_bytes, const void *tail, size_t tail_bytes);
CUresult client_helper_synchronize(const struct across_helper *helper);
/* The context's stream for copies, which is there when this returns; NULL for no context.  To be had before its server
 * waits for a copy. */
CUresult client_copier_take(struct client_context *context, struct across_helper **out);
void client_copier_give(struct across_helper *copier);
void client_helpers_forget(struct client_context *context);

/* Wait for the stream; and where that is the legacy one, for the contexts of other servers
 * whose memory takes part in what comes next, as CUDA does.  Each may be NULL. */
CUresult client_across_settle(uint64_t stream, const struct client_context *one,
			      const struct client_context *other);
/* Not in a capture: each run of the graph would have to do it. */
CUresult client_across_permit(uint64_t stream, const char *what);
/* A copy of which one side at least is another server's than the stream's. */
CUresult client_across_copy(const struct client_copy *copy, uint64_t stream, bool async);

/* The server is gone: what waits for its events goes on. */
void client_across_lost(struct client_session *session);

#endif
