/* context.h - what is asked of contexts (context.c). */
#ifndef FARBUS_CLIENT_CONTEXT_H
#define FARBUS_CLIENT_CONTEXT_H

#include "../client.h"

/* Wait for the current context, and for the devices of the other servers. */
CUresult client_contexts_synchronize(void);
/* What is known of its limits may be so no more. */
void client_limits_forget(struct client_context *context);

#endif
