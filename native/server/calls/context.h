/* context.h - contexts, from the client's first word of them until the driver has ended them (context.c). */
#ifndef FARBUS_SERVER_CONTEXT_H
#define FARBUS_SERVER_CONTEXT_H

#include "../server_ops.h"

/* A context of the driver's under the client's handle (`base`: of a green one's, or NULL),
 * and the end of that. */
CUresult server_context_bind(struct server_call *call, uint64_t handle, CUcontext real,
			     CUdevice device, struct server_context *base,
			     struct server_context **out);
/* The context's end has begun: nobody finds it or its modules any more, and nobody uses it when this
 * returns.  The caller leads, and no longer does then. */
void server_context_end(struct server_call *call, struct server_context *context);

#endif
