/* green.h - green contexts (green.c). */
#ifndef FARBUS_SERVER_GREEN_H
#define FARBUS_SERVER_GREEN_H

#include "../server_ops.h"

/* What the driver keeps in a resource stays here. */
CUresult server_resource_name(struct server *server, const CUdevResource *resource,
			      struct wire_resource *wire);
CUresult server_resource_find(struct server *server, const struct wire_resource *wire,
			      CUdevResource *resource);

#endif
