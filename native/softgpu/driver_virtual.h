/* driver_virtual.h - device memory that can be given to another process. */
#ifndef FARBUS_SOFTGPU_DRIVER_VIRTUAL_H
#define FARBUS_SOFTGPU_DRIVER_VIRTUAL_H

#include "driver_device.h"

/* A fresh file for memory of a board, sealed against another size; -1. */
int driver_virtual_file(const struct board_identity *identity, size_t size);
/* The visible device whose memory a file is; NULL for any other file. */
struct driver_device *driver_virtual_device_of(int fd);

#endif
