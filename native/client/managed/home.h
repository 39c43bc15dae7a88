/* home.h - how managed memory travels: for each context that has some, a stream of its own, and an event that the
 * program's streams wait for.  client_pages_lock is held around everything here but where said. */
#ifndef FARBUS_CLIENT_HOME_H
#define FARBUS_CLIENT_HOME_H

#include "managed.h"

struct managed_home {
	struct managed_home *next;
	struct client_context *context;
	CUstream stream;
	CUevent event;
	struct mark *marks;		/* copies: behind the work of streams (active.c) */
	unsigned long long generation;	/* of the event: how often it was recorded */
	unsigned long long done;	/* a generation that is known to have happened */
	bool sent;			/* something was, since it was recorded */
};

/* Make the context's, if it has none.  Called without the lock: making streams takes others, under
 * which a handler of the program's may wait for a page. */
CUresult client_home_make(struct client_context *context);
/* NULL: it has none (any more). */
struct managed_home *client_home(const struct client_context *context);
/* No stream of its has work any more (active.h). */
void client_home_forget(const struct client_context *context);

/* Post these bytes to where they are on the GPU as here; zero them there. */
CUresult client_home_send(struct managed_home *home, uint64_t address, uint64_t bytes);
CUresult client_home_clear(struct managed_home *home, uint64_t address, uint64_t bytes);
/* Have the GPU's; later: they are there when the home has settled. */
CUresult client_home_fetch(struct managed_home *home, uint64_t address, uint64_t bytes, uint8_t *to);
CUresult client_home_fetch_later(struct managed_home *home, uint64_t address, uint64_t bytes,
				 uint8_t *to);

/* What was sent is behind an event from here on. */
CUresult client_homes_sent(void);
/* The stream's further work comes behind everything that was sent. */
CUresult client_homes_order(uint64_t stream);
/* Wait for all that was sent, and for what is fetched later. */
CUresult client_homes_settle(void);

/* Which stream it is, whoever names it: CUDA's own are one for each context, or for each thread. */
struct managed_stream {
	uint64_t stream;
	CUcontext context;
	uint16_t lane;			/* of the stream per thread; else 0 */
};
struct managed_stream client_managed_stream(uint64_t stream);
bool client_managed_stream_same(const struct managed_stream *a, const struct managed_stream *b);

#endif
