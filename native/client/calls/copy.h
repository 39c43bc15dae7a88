/* copy.h - the one way that copies of rows go (copy.c). */
#ifndef FARBUS_CLIENT_COPY_H
#define FARBUS_CLIENT_COPY_H

#include "../addresses/plane.h"

CUresult client_copy_rows(const struct client_plane *to, const struct client_plane *from,
			  const struct client_extent *extent, uint64_t stream, bool async);

/* What lies at an address; that of host memory as a caller names it: pinned or pageable, never the device's, though managed
 * memory is copied where it is; and of a device's: CUDA takes pinned memory as well, whose addresses are the same for both. */
enum client_memory_kind client_kind_at(uint64_t address);
enum client_memory_kind client_host_kind(const void *pointer);
enum client_memory_kind client_device_kind(CUdeviceptr address);

/* A copy between contexts is "serialized with all pending and future asynchronous work into the current context, the
 * copy's source context, and the copy's destination context": before it, wait for those of them that are not the
 * current one, whose stream has its own order; and behind it for the copy, if there is such a one. */
CUresult client_peer_settle(CUcontext target, CUcontext source);
CUresult client_peer_complete(CUcontext target, CUcontext source);

#endif
