/* driver.h - the driver is opened, and its devices described (driver.c). */
#ifndef FARBUS_SERVER_DRIVER_H
#define FARBUS_SERVER_DRIVER_H

#include "../server_ops.h"

/* Open the driver and start it: what it says is in *result, why it can't be opened in `why`.  0 or -errno. */
int server_driver_start(struct server *server, const struct server_options *options, char *why, size_t bytes,
			CUresult *result);
void server_driver_describe(struct server *server, CUdevice device, struct wire_device *out);
void server_driver_operations(const struct server *server, uint8_t *bits, size_t bytes);

#endif
