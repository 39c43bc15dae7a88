/* greens.h - contexts that have a part of the multiprocessors: those that there are (greens.c). */
#ifndef FARBUS_CLIENT_GREENS_H
#define FARBUS_CLIENT_GREENS_H

#include "../client.h"

struct client_green {
	struct client_green *next;
	CUgreenCtx handle;
	CUcontext context;		/* that stands for it; NULL: not asked for yet */
	int device;
	unsigned references;		/* its own, and its streams' */
	_Atomic bool ended;
};

void client_greens_lock(void);
void client_greens_unlock(void);
/* With the lock; NULL: there is none. */
struct client_green *client_green_find(CUgreenCtx handle);
void client_green_add(struct client_green *green);
/* No longer one that lives; the caller has it to release.  NULL: there was none. */
struct client_green *client_green_end(CUgreenCtx handle);

/* The one that is current, held for a stream of its; NULL: there is none. */
struct client_green *client_green_take(void);
void client_green_release(struct client_green *green);

static inline bool client_green_has_ended(const struct client_green *green)
{
	return atomic_load(&green->ended);
}

/* Its handle and the context that stands for it; of NULL: of the current one, if any. */
CUgreenCtx client_green_handle(const struct client_green *green, CUcontext *context);

#endif
