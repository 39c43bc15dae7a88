/* device.h - devices (device.c). */
#ifndef FARBUS_CLIENT_CALLS_DEVICE_H
#define FARBUS_CLIENT_CALLS_DEVICE_H

#include "../client.h"

/* Where the current context's device has its multiprocessors; both malloc'ed. */
CUresult client_device_layout(uint8_t **gpcs, uint8_t **numbers);

#endif
