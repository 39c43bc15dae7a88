/* device.h - the devices that this process sees. */
#ifndef FARBUS_SOFTGPU_DRIVER_DEVICE_H
#define FARBUS_SOFTGPU_DRIVER_DEVICE_H

#include "abi.h"
#include "board.h"
#include "call.h"

#include <stdbool.h>

/* What a compute capability fixes: CUDA C++ Programming Guide, "Technical
 * Specifications per Compute Capability". */
struct driver_capability {
	uint32_t sm;
	uint32_t warps;			/* resident, per multiprocessor */
	uint32_t blocks;		/* resident, per multiprocessor */
	uint32_t shared_per_sm;		/* bytes */
	uint32_t shared_per_block_optin;	/* bytes */
	uint32_t shared_reserved_per_block;	/* bytes, taken by the system */
	uint32_t shared_granule;	/* bytes */
};

#define DRIVER_WARP_SIZE 32
#define DRIVER_THREADS_PER_BLOCK 1024
#define DRIVER_SHARED_PER_BLOCK 49152	/* bytes, without opting in */
#define DRIVER_REGISTERS_PER_SM 65536
#define DRIVER_REGISTER_GRANULE 256	/* registers, per warp */
#define DRIVER_WARP_GRANULE 4		/* warps */
#define DRIVER_GRID_X_MAX 2147483647u
#define DRIVER_GRID_YZ_MAX 65535u
#define DRIVER_BLOCK_Z_MAX 64u
#define DRIVER_CLUSTER_PORTABLE 8	/* blocks */
#define DRIVER_CLUSTER_MAX 16		/* blocks, non-portable */
#define DRIVER_TEXTURE_PITCH 512	/* bytes: also what cuMemAllocPitch rounds to */

struct driver_device {
	CUdevice ordinal;		/* among the visible ones */
	unsigned index;			/* of the board on this node */
	struct board *board;
	const struct board_identity *identity;
	const struct board_model *model;
	const struct driver_capability *capability;
	struct CUctx_st *primary;	/* always there; active while retained */
	struct driver_arena *arena;	/* device addresses */
	struct CUmemPoolHandle_st *default_pool;
	struct CUmemPoolHandle_st *current_pool;
};

/* What FARBUS_SOFTGPU said when cuInit ran. */
const struct board_options *driver_options(void);

/* For cuInit: open the boards of all visible devices; after which it has run. */
CUresult driver_devices_open(void);
void driver_devices_close(void);
bool driver_is_initialised(void);
void driver_set_initialised(void);
/* Is this a child of a process that had initialised? */
bool driver_is_forked(void);

/* CUDA_SUCCESS when cuInit has run, in this process and not in its parent, and
 * the caller is not a host function in a stream (which may not call CUDA). */
CUresult driver_ready(void);
/* Set around host functions. */
extern _Thread_local bool driver_in_host_function;

int driver_device_count(void);
/* NULL when there is no such device. */
struct driver_device *driver_device_at(CUdevice ordinal);

/* Does it have multimem (PTX ISA: sm_90 or higher), and so multicast objects? */
static inline bool driver_device_has_multicast(const struct driver_device *device)
{
	return device->capability->sm >= 90;
}

/* The prologue of every query about a device: CUDA_ERROR_INVALID_DEVICE. */
CUresult driver_device_of(CUdevice ordinal, struct driver_device **device);

/* Say once per name that the driver lacks something. */
CUresult driver_unsupported(const char *what);

#endif
