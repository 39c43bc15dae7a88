/* staging.h - pinned memory of the server's, which bytes pass through between the socket and the device (staging.c). */
#ifndef FARBUS_SERVER_STAGING_H
#define FARBUS_SERVER_STAGING_H

#include "../server_ops.h"

/* A new context has no buffers. */
void server_staging_init(struct server_context *context);
/* Have some staging buffers before a stream waits for the client: then the driver may make none. */
void server_staging_reserve(struct server_call *call);
/* A buffer that nothing uses.  Waits for the oldest copy when there are as many
 * as may be. */
CUresult server_staging_take(struct server_call *call, struct server_staging **out);
/* The same for who has one already; *out may be NULL: then there is none more while he keeps it. */
CUresult server_staging_take_more(struct server_call *call, struct server_staging **out);
/* Nothing uses it any more. */
void server_staging_idle(struct server_context *context, struct server_staging *staging);
/* It is used by what `stream` holds now. */
CUresult server_staging_fence(struct server_call *call, struct server_staging *staging, CUstream stream);

#endif
