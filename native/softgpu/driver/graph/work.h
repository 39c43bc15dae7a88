/* work.h - what nodes of graphs do: kernels, copies, fills, host functions, operations on words.
 *
 * Made without the graph lock, dropped with or without it.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_GRAPH_WORK_H
#define FARBUS_SOFTGPU_DRIVER_GRAPH_WORK_H

#include "../queue.h"

struct graph_payload;

struct graph_kernel {
	CUDA_KERNEL_NODE_PARAMS params;	/* kernelParams points into the operation */
	CUlaunchAttribute *attributes;
	unsigned attribute_count;
};

/* Never changed once made: nodes, their copies and launches under way share it. */
struct graph_work {
	unsigned references;		/* atomic */
	struct CUctx_st *context;	/* held; NULL for host functions */
	struct driver_operation *operation;
	CUgraphNodeType type;
	union {
		struct graph_kernel kernel;
		CUDA_MEMCPY3D copy;
		CUDA_MEMSET_NODE_PARAMS fill;
		CUDA_HOST_NODE_PARAMS host;
		CUDA_BATCH_MEM_OP_NODE_PARAMS words;	/* paramArray lies in the operation */
	};
};

CUresult driver_graph_kernel(struct CUctx_st *context, const CUlaunchConfig *config,
			     CUfunction function, void **params, void **extra,
			     struct graph_payload *payload);
/* The same kernel with other attributes. */
CUresult driver_graph_kernel_again(const struct graph_work *work, const CUlaunchAttribute *attributes,
				   unsigned count, struct graph_payload *payload);
CUresult driver_graph_memcpy(struct CUctx_st *context, const CUDA_MEMCPY3D *params,
			     struct graph_payload *payload);
CUresult driver_graph_memset(struct CUctx_st *context, const CUDA_MEMSET_NODE_PARAMS *params,
			     struct graph_payload *payload);
CUresult driver_graph_host(const CUDA_HOST_NODE_PARAMS *params, struct graph_payload *payload);
CUresult driver_graph_words(struct CUctx_st *context, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params,
			    struct graph_payload *payload);
CUresult driver_graph_event(CUgraphNodeType type, CUevent event, struct graph_payload *payload);
void driver_graph_work_drop(struct graph_work *work);
static inline void driver_graph_work_hold(struct graph_work *work)
{
	__atomic_add_fetch(&work->references, 1, __ATOMIC_RELAXED);
}

#endif
