/* contexts.h - all that counts what a lease's programs take (contexts.c). */
#ifndef FARBUS_SERVER_QUOTA_CONTEXTS_H
#define FARBUS_SERVER_QUOTA_CONTEXTS_H

#include "../server_ops.h"

/* Count what the driver allocates against the lease's `limit` of bytes. */
void server_quota_install(struct server *server, uint64_t limit);

#endif
