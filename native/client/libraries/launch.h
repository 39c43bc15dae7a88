/* launch.h - launches (launch.c). */
#ifndef FARBUS_CLIENT_LAUNCH_H
#define FARBUS_CLIENT_LAUNCH_H

#include "library.h"

/* An attribute of the kernel was set: what the driver said of clusters and cooperative grids may be so no more. */
void client_fits_forget(struct client_function *function);
/* A launch's parameters as one buffer of WIRE_KERNEL_PARAMETERS bytes. */
CUresult client_parameters_gather(const struct client_function *function, void *const *parameters,
				  void *const *extra, uint8_t *buffer, uint32_t *bytes);

#endif
