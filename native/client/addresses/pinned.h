/* pinned.h - pinned memory that the server has too (pinned.c). */
#ifndef FARBUS_CLIENT_PINNED_H
#define FARBUS_CLIENT_PINNED_H

#include "plane.h"

/* Memory of whole pages that the server copies from and to by itself: its address, its name there and
 * whether kernels use it go into the range.  false: there is none, and the range is as it was.  It is the
 * caller's to unmap, behind client_pinned_release. */
bool client_pinned_share(size_t bytes, struct client_range *range);
/* The same for memory that the program has at the range's base, if it is of a file in memory (shared_file.c), and
 * kernels can use it. */
bool client_pinned_share_file(struct client_range *range);
/* Do kernels, and copies of the server's own, reach all of it by its address?  Not while bytes for it are on
 * their way here. */
bool client_pinned_mapped(uint64_t address, size_t bytes);
/* Name such memory in a copy as the server reaches it: as the device's. */
void client_pinned_sides(CUDA_MEMCPY3D *box);
/* And in one that the server tells of, as the program does: what it changes of that is the host's address. */
void client_pinned_sides_here(CUDA_MEMCPY3D *box);
/* Wait for what uses it at the server, and take it from there. */
void client_pinned_release(uint64_t pinned);
/* Have the server copy between it and a device; `span` is from the first byte of the plane here to
 * behind its last.  false: neither plane is such memory, or something on its way is to come to it
 * first that only this process sees; *result is then untouched. */
bool client_pinned_copy(const struct client_plane *to, const struct client_plane *from,
			const struct client_extent *extent, size_t span, uint64_t stream,
			bool async, CUresult *result);

#endif
