/* driver_virtual.h - memory apart from addresses, and what others make of it. */
#ifndef FARBUS_SOFTGPU_DRIVER_VIRTUAL_H
#define FARBUS_SOFTGPU_DRIVER_VIRTUAL_H

#include "driver_device.h"
#include "engine.h"

#define DRIVER_VIRTUAL_TEAM "multicast"	/* whose file it is, in the place of a device's UUID */

/* A fresh file for memory of a board, or of the host (NULL), sealed against another size; -1. */
int driver_virtual_file(const struct board_identity *identity, size_t size);
/* The same, of `owner`. */
int driver_virtual_file_of(const char *owner, size_t size);
/* Is it a file of that kind: a team's, or memory? */
bool driver_virtual_is_team(int fd);
bool driver_virtual_is_memory(int fd);
/* Has the device access to what is mapped at this address? */
bool driver_virtual_may_access(uintptr_t address, CUdevice ordinal);
/* The visible device whose memory a file is; NULL for any other file. */
struct driver_device *driver_virtual_device_of(int fd);
/* Whose memory a file is: a visible device's or the host's (*device NULL). */
bool driver_virtual_owner_of(int fd, struct driver_device **device, CUmemLocation *location);
/* What multimem of a context's kernels reaches; lives as long as that. */
void driver_virtual_multicast(struct CUctx_st *context, struct engine_multicast *multicast);

/* Have `put` write `bytes` of what is written to an address, which are the next ones behind `at` others: to that very
 * memory, or to all that is bound there.  CUDA_ERROR_ILLEGAL_ADDRESS, after a line: it leads nowhere. */
CUresult driver_virtual_put(uintptr_t to, size_t bytes,
			    void (*put)(const void *opaque, char *memory, size_t at, size_t bytes),
			    const void *opaque);

/* ---- for teams (driver_multicast.c), between begin and end ---- */

struct driver_team;
struct memory;

/* Memory that is bound: it stays while it is held. */
struct driver_part {
	struct memory *memory;		/* NULL: a pool's */
	struct driver_device *device;
	int fd;				/* the part's own */
	size_t offset;			/* in that file */
	bool shareable;
};

CUresult driver_virtual_begin(void);
CUresult driver_virtual_end(CUresult result);
/* NULL: it is no multicast object. */
struct driver_team *driver_virtual_team_of(CUmemGenericAllocationHandle handle);
/* A handle of a team, whose reference it takes over; also where it fails. */
CUresult driver_virtual_add_team(struct driver_team *team, CUmemGenericAllocationHandle *out);
/* Hold `size` bytes of a device's memory, by its handle or by where it is mapped. */
CUresult driver_virtual_hold(CUmemGenericAllocationHandle handle, size_t offset, size_t size,
			     struct driver_part *part);
CUresult driver_virtual_hold_at(uintptr_t address, size_t size, struct driver_part *part);
void driver_virtual_let_go(struct driver_part *part);

#endif
