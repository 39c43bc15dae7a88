/* memory.h - memory that client and server both have (memory.c). */
#ifndef FARBUS_TRANSPORT_MEMORY_H
#define FARBUS_TRANSPORT_MEMORY_H

#include "../transport.h"

/* Make memory of `bytes` (whole pages) to share with the peer, all of it there and never to be
 * cut off; `name` is what /proc calls it.  *descriptor is to be passed and then closed
 * (clofork_close).  0 or -errno; -EFBIG: beyond the process's RLIMIT_FSIZE. */
int transport_memory_make(const char *name, size_t bytes, void **memory, int *descriptor);
/* Have all pages of a part of a file in memory be there.  0 or -errno: -ENOSPC, -ENOMEM, -EFBIG. */
int transport_memory_populate(int descriptor, off_t offset, size_t bytes);
/* Whether the machine can give so much: of more the kernel would end processes (MemAvailable, proc_meminfo(5)). */
bool transport_memory_is_there(size_t bytes);
/* Map what a peer passed, which is closed in any case.  -EPROTO: not what may be shared (size,
 * seals, pages that are not there, of which the last does not matter unless it has to be `populated`, or not of the
 * socket's other user). */
int transport_memory_take(const struct transport *transport, int descriptor, size_t bytes, bool populated,
			  void **memory);
/* The same for a part of a file that the peer has in memory (tmpfs), whole pages: others may have it, too, and cut it
 * off, which ends whoever touches it then. */
int transport_file_take(const struct transport *transport, int descriptor, uint64_t offset, size_t bytes,
			void **memory);

#endif
