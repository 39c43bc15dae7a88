/* virtual.h - addresses, and which memory (virtual_memory.h) is mapped where.
 *
 * A multicast object has a handle as memory does, and is mapped as memory is, but its addresses stay
 * closed: multimem, copies and fills reach what is bound there (multicast.h).
 */
#ifndef FARBUS_SOFTGPU_DRIVER_VIRTUAL_H
#define FARBUS_SOFTGPU_DRIVER_VIRTUAL_H

#include "../engine/engine.h"
#include "context.h"
#include "virtual_memory.h"

struct driver_mapping {
	struct driver_mapping *next;
	uintptr_t address;
	size_t size, offset;
	struct memory *memory;
	unsigned char access[BOARD_COUNT_MAX];	/* CUmemAccess_flags, by ordinal */
	unsigned char host_access;
};

/* ---- with the lock of virtual_memory.h ---- */

/* Addresses at `wanted`, if it is one and they are free, else somewhere. */
CUresult driver_virtual_reserve(size_t size, size_t align, uintptr_t wanted, CUdeviceptr *out);
/* False: they were not reserved together, or something is mapped there. */
bool driver_virtual_unreserve(uintptr_t address, size_t size);
bool driver_virtual_is_reserved(uintptr_t address, size_t size);

/* Memory that is there, at reserved addresses where nothing is mapped; without access. */
CUresult driver_virtual_map(uintptr_t address, size_t size, size_t offset, struct memory *memory);
void driver_virtual_unmap(struct driver_mapping *mapping);
/* A mapping that has one of these addresses, or NULL. */
struct driver_mapping *driver_virtual_mapping_within(uintptr_t address, size_t size);
/* Do whole mappings cover these addresses, without a gap? */
bool driver_virtual_is_covered(uintptr_t address, size_t size);
/* Open it as its access says.  All devices are in one process: memory that one of them may use is open. */
void driver_virtual_apply_access(struct driver_mapping *mapping);
/* What is mapped at this address, for so many bytes, and where in it they begin; or NULL. */
struct memory *driver_virtual_memory_at(uintptr_t address, size_t size, size_t *offset);

/* Memory, or what is a team's: it goes, if nobody has it any more. */
void driver_virtual_drop(struct memory *memory);
/* A handle of a team, whose reference it takes over; also where it fails. */
CUresult driver_virtual_add_team(struct driver_team *team, CUmemGenericAllocationHandle *out);

/* ---- without the lock ---- */

/* Has the device access to what is mapped at this address? */
bool driver_virtual_may_access(uintptr_t address, CUdevice ordinal);
/* As what the memory that is mapped at this address can be given to another process. */
CUmemAllocationHandleType driver_virtual_shareable_at(uintptr_t address);
/* What multimem of a context's kernels reaches; lives as long as that. */
void driver_virtual_multicast(struct CUctx_st *context, struct engine_multicast *multicast);
/* Have `put` write `bytes` of what is written to an address, which are the next ones behind `at` others: to that very
 * memory, or to all that is bound there.  CUDA_ERROR_ILLEGAL_ADDRESS, after a line: it leads nowhere. */
CUresult driver_virtual_put(uintptr_t to, size_t bytes,
			    void (*put)(const void *opaque, char *memory, size_t at, size_t bytes),
			    const void *opaque);

#endif
