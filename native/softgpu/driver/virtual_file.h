/* virtual_file.h - files that are memory.
 *
 * Their names carry the UUID of the board that they belong to, or say that they are the host's or a
 * multicast object's, and they are sealed against another size: who imports one can trust it.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_VIRTUAL_FILE_H
#define FARBUS_SOFTGPU_DRIVER_VIRTUAL_FILE_H

#include "device.h"

#define DRIVER_VIRTUAL_TEAM "multicast"	/* whose file it is, in the place of a device's UUID */

/* A fresh file for memory of a board, or of the host (NULL); -1. */
int driver_virtual_file(const struct board_identity *identity, size_t size);
/* The same, of `owner`. */
int driver_virtual_file_of(const char *owner, size_t size);
/* Is it a file of that kind: a team's, or memory? */
bool driver_virtual_is_team(int fd);
bool driver_virtual_is_memory(int fd);
/* The visible device whose memory a file is; NULL for any other file. */
struct driver_device *driver_virtual_device_of(int fd);
/* Whose memory a file is: a visible device's or the host's (*device NULL). */
bool driver_virtual_owner_of(int fd, struct driver_device **device, CUmemLocation *location);

#endif
