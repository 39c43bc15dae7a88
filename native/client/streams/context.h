/* context.h - contexts: which is current (current.c), what is asked of one (context.c), and its life (context_life.c). */
#ifndef FARBUS_CLIENT_CONTEXT_H
#define FARBUS_CLIENT_CONTEXT_H

#include "../client.h"

/* It becomes the thread's current one; CUDA_ERROR_INVALID_VALUE: too many are pushed. */
CUresult client_context_push(CUcontext handle);
/* Wait for the current context, and for the devices of the other servers. */
CUresult client_contexts_synchronize(void);
/* What is known of its limits may be so no more. */
void client_limits_forget(struct client_context *context);
CUresult client_context_make_primary(struct client_device *device);

#endif
