/* green.h - contexts that have a part of the multiprocessors (green.c). */
#ifndef FARBUS_CLIENT_GREEN_H
#define FARBUS_CLIENT_GREEN_H

#include "client.h"

/* Has the stream, named as on the wire, but a part of the multiprocessors? */
bool client_stream_is_green(uint64_t stream);
/* The one that is current, held for a stream of its; NULL: there is none. */
struct client_green *client_green_take(void);
void client_green_release(struct client_green *green);
bool client_green_has_ended(const struct client_green *green);
/* Its handle and the context that stands for it; of NULL: of the current one, if any. */
CUgreenCtx client_green_handle(const struct client_green *green, CUcontext *context);

#endif
