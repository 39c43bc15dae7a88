/* memory.h - memory that allocation nodes of graphs stand for.
 *
 * An allocation has its address, and its memory, from when its node is made until the
 * node, its executables and what they allocated are gone; then the memory is kept for others.
 * It is live from a launch of its node until something frees it.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_GRAPH_MEMORY_H
#define FARBUS_SOFTGPU_DRIVER_GRAPH_MEMORY_H

#include "../queue.h"

struct graph_allocation;

/* Without the graph lock: what is freed meanwhile is waited for. */
CUresult driver_graph_allocation_make(struct CUctx_st *context,
				      const CUDA_MEM_ALLOC_NODE_PARAMS *params,
				      struct graph_allocation **allocation);
/* The allocation that begins at the address, held; NULL when there is none. */
struct graph_allocation *driver_graph_allocation_of(CUdeviceptr address);
void driver_graph_allocation_hold(struct graph_allocation *allocation);
void driver_graph_allocation_drop(struct graph_allocation *allocation);
const CUDA_MEM_ALLOC_NODE_PARAMS *driver_graph_allocation_params(
	const struct graph_allocation *allocation);
/* Could its memory be that of a node with these parameters? */
bool driver_graph_allocation_is_alike(const struct graph_allocation *allocation,
				      const CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUdeviceptr driver_graph_allocation_address(const struct graph_allocation *allocation);
/* Make it live, or no longer.  False when it was so already. */
bool driver_graph_allocation_set_live(struct graph_allocation *allocation, bool live);

/* For cuMemFree and cuMemFreeAsync. */
bool driver_graph_memory_owns(CUdeviceptr address);
CUresult driver_graph_memory_free(CUdeviceptr address);
CUresult driver_graph_memory_free_in(struct CUstream_st *stream, CUdeviceptr address);
/* The context goes, and its memory. */
void driver_graph_memory_end_context(struct CUctx_st *context);

/* How much of a device's memory such allocations have, how much is reserved for them, and the most that was. */
struct driver_graph_usage {
	size_t used, used_high, reserved_high;	/* bytes */
};

struct driver_graph_usage driver_graph_memory_look(const struct driver_device *device, size_t *reserved);
void driver_graph_memory_reset_high(const struct driver_device *device, bool reserved);

#endif
