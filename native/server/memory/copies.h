/* copies.h - copies: what they are of, and how their bytes are cut into pieces (copies.c). */
#ifndef FARBUS_SERVER_COPIES_H
#define FARBUS_SERVER_COPIES_H

#include "../server_ops.h"

/* What is written in memory that the peer reads at the same time is copied by the device in pieces of this size, and twice as
 * large ones where there are many (docs/performance.md). */
#define SERVER_SHARED_BYTES (64u << 10)
#define SERVER_SHARED_MANY 8u
/* What a system call sends is copied by the device first: larger pieces cost fewer calls and headers, behind which the kernel's
 * copies are slower the more there are, and smaller ones stay in the processor's cache and leave the network something to do
 * meanwhile (docs/performance.md).  A copy that is one frame goes at once, and on AMD's processors each frame does. */
#define SERVER_CALL_BYTES (512u << 10)

/* Rows between this process's memory and the device; of one the pitches do not matter. */
CUDA_MEMCPY2D server_rows(bool to_device, void *host, size_t host_pitch, CUdeviceptr device, size_t pitch, size_t width,
			  size_t height);
/* Are these sizes that a plane of bytes may have? */
bool server_plane_sane(uint64_t pitch, uint64_t width, uint64_t height);

#endif
