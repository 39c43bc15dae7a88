/* driver_virtual.h - memory that can be given to another process. */
#ifndef FARBUS_SOFTGPU_DRIVER_VIRTUAL_H
#define FARBUS_SOFTGPU_DRIVER_VIRTUAL_H

#include "driver_device.h"

/* A fresh file for memory of a board, or of the host (NULL), sealed against another size; -1. */
int driver_virtual_file(const struct board_identity *identity, size_t size);
/* Has the device access to what is mapped at this address? */
bool driver_virtual_may_access(uintptr_t address, CUdevice ordinal);
/* The visible device whose memory a file is; NULL for any other file. */
struct driver_device *driver_virtual_device_of(int fd);

#endif
