/* kernels.h - what servers say of kernels (kernels.c). */
#ifndef FARBUS_CLIENT_KERNELS_H
#define FARBUS_CLIENT_KERNELS_H

#include "library.h"

/* The first of a server's devices: kernels have the same name there on all of them. */
int client_session_device(const struct client_session *session);
/* The device that a server describes kernels on where it is not told: the current context's,
 * or its first. */
int client_route_device(const struct client_route *route);
/* Take the server's descriptions of a library's kernels as they are on a device, and ask for what is missing to `total`; the
 * library's lock is held, or it is not yet public. */
CUresult client_kernels_take(struct client_library *library, struct client_session *session, int device,
			     const void *described, size_t bytes, uint32_t total);
void client_kernels_free(struct client_library *library);
/* Drivers before 12.4 cannot list the kernels of a library: ask for this one. */
CUresult client_kernel_ask(struct client_library *library, struct client_session *session,
			   const char *name);
/* Take descriptions of kernels as they are on a device; how many there were. */
CUresult client_kernels_describe(struct client_library *library, int device, uint32_t first,
				 uint32_t *count);
/* An older server does not say it again: what is so on another of its devices. */
void client_kernel_describe_alike(struct client_function *function, int device);

#endif
