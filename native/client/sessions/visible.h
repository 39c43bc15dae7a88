/* visible.h - the devices of all servers, as the program sees them (visible.c). */
#ifndef FARBUS_CLIENT_VISIBLE_H
#define FARBUS_CLIENT_VISIBLE_H

#include "../client.h"

/* The devices of all sessions as one list: the servers in the file's order, each with its
 * own order, or by PCI address where CUDA_DEVICE_ORDER asks for that.  Addresses of several
 * machines have no order among each other. */
int client_devices_number(struct client *client);
/* CUDA_VISIBLE_DEVICES selects and orders, up to the first item that names no
 * device; one that is named twice makes none visible (CUDA's rule). */
int client_devices_choose(struct client *client);

#endif
