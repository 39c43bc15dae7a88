/* library.h - what libraries (library.c) and their kernels (kernels.c) know of each other. */
#ifndef FARBUS_CLIENT_LIBRARY_H
#define FARBUS_CLIENT_LIBRARY_H

#include "managed.h"

/* A library or a module; NULL: it is none. */
struct client_library *client_library_get(const void *handle);
/* Load it at a server where it is not yet. */
CUresult client_library_bring(struct client_library *library, struct client_session *session);

/* The device that a server describes kernels on where it is not told: the current context's,
 * or its first. */
int client_route_device(const struct client_route *route);
/* Take the server's descriptions of a library's kernels as they are on a device, and ask for what is missing to `total`; the
 * library's lock is held, or it is not yet public. */
CUresult client_kernels_take(struct client_library *library, struct client_session *session, int device,
			     const void *described, size_t bytes, uint32_t total);
void client_kernels_free(struct client_library *library);

#endif
