/* share.h - memory between the processes of a lease (share.c). */
#ifndef FARBUS_SERVER_SHARE_H
#define FARBUS_SERVER_SHARE_H

#include "../server_ops.h"

/* How much of an allocation lies from that address on. */
CUresult server_range_behind(const struct server_driver *driver, CUdeviceptr address, uint64_t *bytes);

#endif
