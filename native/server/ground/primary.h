/* primary.h - the primary contexts of the devices (primary.c). */
#ifndef FARBUS_SERVER_PRIMARY_H
#define FARBUS_SERVER_PRIMARY_H

#include "../server_ops.h"

/* The primary context of a device, NULL: it has none, or that ends just now.  The caller leads. */
struct server_context *server_primary(struct server *server, uint32_t ordinal);
/* The same until the driver has ended it; and what it is, from any thread. */
struct server_context *server_primary_any(struct server *server, uint32_t ordinal);
void server_primary_set(struct server *server, uint32_t ordinal, struct server_context *context);
/* The client's own reference keeps it: the one of server_enter_any is not needed any more. */
void server_primary_let_go(struct server_call *call, uint32_t ordinal);
/* Let some context be current: the call's, or else the device's primary one.  Code may be loaded before a program
 * has a context, but NVIDIA's driver tells the parameters of kernels in one only.  It is held until the client
 * asks for it. */
CUresult server_enter_any(struct server_call *call, CUdevice device);

#endif
