/* kernel.h - kernels, by their handles and at servers (kernel.c). */
#ifndef FARBUS_CLIENT_KERNEL_H
#define FARBUS_CLIENT_KERNEL_H

#include "library.h"

/* As the current context's server names it. */
CUresult client_function_wire(CUfunction function, uint64_t *wire);
CUresult client_function_get(CUfunction handle, struct client_function **function);
/* The kernel as it is on a device, and its name at a server, where it is loaded if need be. */
CUresult client_function_on(struct client_function *function, int device,
			    struct client_kernel **kernel);
CUresult client_function_name(struct client_function *function, struct client_session *session,
			      uint64_t *wire);
int client_module_visit(CUmodule module, void (*visit)(void *opaque, CUfunction function), void *opaque);

#endif
