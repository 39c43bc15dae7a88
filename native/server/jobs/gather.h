/* gather.h - where bytes of the client's memory are gathered on their way to the device, and back. */
#ifndef FARBUS_SERVER_GATHER_H
#define FARBUS_SERVER_GATHER_H

#include "../server_ops.h"

/* Memory that the driver reads in stream order, which it promises for its own pinned
 * memory only: pageable memory it may read before the stream has asked for the bytes. */
CUresult server_gather_take(struct server_call *call, size_t bytes, struct server_gathered **out);
/* In a stream's callback, too: it does not call the driver. */
void server_gather_give(struct server_context *context, struct server_gathered *gathered);
/* Give the driver back what the current context has too much of.  May wait for the device; only where nobody waits for this
 * thread. */
void server_gather_trim(struct server_call *call);

#endif
