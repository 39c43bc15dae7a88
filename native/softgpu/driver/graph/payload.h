/* payload.h - nodes from what the program says of them, once the contexts are found that it names.
 *
 * Without the graph lock.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_GRAPH_PAYLOAD_H
#define FARBUS_SOFTGPU_DRIVER_GRAPH_PAYLOAD_H

#include "graph.h"

CUresult driver_graph_said_kernel(const CUDA_KERNEL_NODE_PARAMS *params, const CUlaunchAttribute *attributes,
				  unsigned count, struct graph_payload *payload);
CUresult driver_graph_said_memcpy(const CUDA_MEMCPY3D *params, CUcontext wanted, struct graph_payload *payload);
CUresult driver_graph_said_memset(const CUDA_MEMSET_NODE_PARAMS *params, CUcontext wanted,
				  struct graph_payload *payload);
CUresult driver_graph_said_words(const CUDA_BATCH_MEM_OP_NODE_PARAMS *params, struct graph_payload *payload);
CUresult driver_graph_said_event(CUgraphNodeType type, CUevent event, struct graph_payload *payload);
CUresult driver_graph_said_child(CUgraph child, struct graph_payload *payload);
CUresult driver_graph_said_alloc(CUgraph graph, const CUgraphNode *dependencies, size_t count,
				 const CUDA_MEM_ALLOC_NODE_PARAMS *params, struct graph_payload *payload);
CUresult driver_graph_said_free(CUdeviceptr address, struct graph_payload *payload);
CUresult driver_graph_said(const CUgraphNodeParams *params, const CUlaunchAttribute *attributes,
			   unsigned attribute_count, struct graph_payload *payload);
/* The context that a node's parameters name, or without one the current one. */
CUresult driver_graph_context(CUcontext wanted, struct CUctx_st **context);

#endif
