/* pinned.h - pinned memory that the server has too: whether it can (mapping.c), how (pinned.c), and files that are such
 * (shared_file.c). */
#ifndef FARBUS_CLIENT_PINNED_H
#define FARBUS_CLIENT_PINNED_H

#include "memory.h"

/* ---- mapping.c ---- */

/* The session that shares pinned memory; NULL: none.  With several servers a copy may be ordered
 * behind another server's, which only this process sees. */
struct client_session *client_pinned_session(void);
/* Can the server have it at the address that it has here, so that kernels use it? */
bool client_pinned_maps(void);
/* The session whose server would have kernels use it if it were not older; NULL: there is none. */
const struct client_session *client_pinned_unmapped(void);
/* What has a program's pinned memory be mapped; with it, what the program registers is not, nor what only one side can
 * have. */
struct client_hint {
	char text[320];
};
struct client_hint client_mapping_hint(void);
/* The program has pinned memory that is not mapped; some of it CUDA has allocated. */
void client_pinned_note(unsigned flags);
void client_pinned_alone(void);
/* Say once, where the program has had pinned memory, that its kernels can't use it. */
void client_pinned_after_illegal_address(void);

/* ---- pinned.c ---- */

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
struct client_plane;
struct client_extent;
bool client_pinned_copy(const struct client_plane *to, const struct client_plane *from,
			const struct client_extent *extent, size_t span, uint64_t stream,
			bool async, CUresult *result);

/* ---- shared_file.c ---- */

/* The file that the program has at [low, high), which are whole pages, a description of it that is the caller's to close,
 * and where in it that is; -1: it is none that others can have too.  Its pages are there. */
int client_shared_file(uint64_t low, uint64_t high, uint64_t *offset);

#endif
