/* Nodes by their types: adding them. */
#include "../driver/graph/graph.h"

#include "../driver/graph/memory.h"
#include "../driver/graph/payload.h"
#include "../driver/handle.h"

/* The payload is taken over in every case. */
static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
		    const CUgraphEdgeData *data, size_t count, struct graph_payload *payload)
{
	CUresult result = driver_graph_enter(graph);

	if (result) {
		driver_graph_lock();
		driver_graph_payload_drop(payload);
		driver_graph_unlock();
		return result;
	}
	if (out) {
		result = driver_graph_add(graph, dependencies, data, count, payload, out);
	} else {
		driver_graph_payload_drop(payload);
		result = CUDA_ERROR_INVALID_VALUE;
	}
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph,
					       const CUgraphNode *dependencies, size_t count,
					       const CUDA_KERNEL_NODE_PARAMS *params)
{
	DRIVER_CALL;
	struct graph_payload payload;
	CUresult result = driver_graph_said_kernel(params, NULL, 0, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph,
					    const CUgraphNode *dependencies, size_t count,
					    const CUDA_MEMCPY3D *params, CUcontext context)
{
	DRIVER_CALL;
	struct graph_payload payload;
	CUresult result = driver_graph_said_memcpy(params, context, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph,
					    const CUgraphNode *dependencies, size_t count,
					    const CUDA_MEMSET_NODE_PARAMS *params,
					    CUcontext context)
{
	DRIVER_CALL;
	struct graph_payload payload;
	CUresult result = driver_graph_said_memset(params, context, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddHostNode(CUgraphNode *out, CUgraph graph,
					  const CUgraphNode *dependencies, size_t count,
					  const CUDA_HOST_NODE_PARAMS *params)
{
	DRIVER_CALL;
	struct graph_payload payload;
	CUresult result = driver_graph_host(params, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddBatchMemOpNode(CUgraphNode *out, CUgraph graph,
						const CUgraphNode *dependencies, size_t count,
						const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	DRIVER_CALL;
	struct graph_payload payload;
	CUresult result = driver_graph_said_words(params, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph,
						const CUgraphNode *dependencies, size_t count,
						CUgraph child)
{
	DRIVER_CALL;
	struct graph_payload payload;
	CUresult result = driver_graph_said_child(child, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph,
					   const CUgraphNode *dependencies, size_t count)
{
	DRIVER_CALL;
	struct graph_payload payload = { .type = CU_GRAPH_NODE_TYPE_EMPTY };

	return add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddEventRecordNode(CUgraphNode *out, CUgraph graph,
						 const CUgraphNode *dependencies, size_t count,
						 CUevent event)
{
	DRIVER_CALL;
	struct graph_payload payload;
	CUresult result = driver_graph_said_event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddEventWaitNode(CUgraphNode *out, CUgraph graph,
					       const CUgraphNode *dependencies, size_t count,
					       CUevent event)
{
	DRIVER_CALL;
	struct graph_payload payload;
	CUresult result = driver_graph_said_event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

static CUresult add_alloc(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
			  const CUgraphEdgeData *data, size_t count,
			  CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	struct graph_payload payload;
	CUdeviceptr address;
	CUresult result = driver_graph_said_alloc(graph, dependencies, count, params, &payload);

	if (result)
		return result;
	address = driver_graph_allocation_address(payload.allocation);
	result = add(out, graph, dependencies, data, count, &payload);
	if (!result)
		params->dptr = address;
	return result;
}

DRIVER_EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph,
					      const CUgraphNode *dependencies, size_t count,
					      CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	DRIVER_CALL;
	return add_alloc(out, graph, dependencies, NULL, count, params);
}

DRIVER_EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph,
					     const CUgraphNode *dependencies, size_t count,
					     CUdeviceptr address)
{
	DRIVER_CALL;
	struct graph_payload payload;
	CUresult result = driver_graph_said_free(address, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

/* The child is no longer the program's to destroy.  Once all is checked, only a lack of memory
 * is left, which takes the child with it. */
static CUresult add_moved(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
			  const CUgraphEdgeData *data, size_t count, CUgraph child)
{
	struct graph_payload payload = { .type = CU_GRAPH_NODE_TYPE_GRAPH, .child = child };
	CUresult result = driver_graph_enter(graph);
	const struct CUgraph_st *above;

	if (result)
		return result;
	if (!out || !driver_handle_is(child, DRIVER_KIND_GRAPH) || child->parent || child->captures)
		result = CUDA_ERROR_INVALID_VALUE;
	for (above = graph; above && !result; above = above->parent ? above->parent->graph : NULL) {
		if (above == child)
			result = CUDA_ERROR_INVALID_VALUE;
	}
	if (!result && (driver_graph_is_too_deep(graph, child) || driver_graph_has_conditional(child)))
		result = CUDA_ERROR_NOT_SUPPORTED;
	if (!result)
		result = driver_graph_check_edges(graph, dependencies, data, count);
	if (!result)
		result = driver_graph_add(graph, dependencies, data, count, &payload, out);
	driver_graph_unlock();
	return result;
}

static CUresult add_conditional(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
				const CUgraphEdgeData *data, size_t count,
				CUDA_CONDITIONAL_NODE_PARAMS *params)
{
	struct graph_payload payload;
	struct CUctx_st *context;
	CUresult result = driver_graph_context(params->ctx, &context);

	if (!result)
		result = driver_graph_enter(graph);
	if (result)
		return result;
	if (out)
		result = driver_graph_conditional_make(graph, context, params, &payload);
	else
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = driver_graph_add(graph, dependencies, data, count, &payload, out);
	if (!result)
		params->phGraph_out = payload.conditional->bodies;
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph,
					 const CUgraphNode *dependencies,
					 const CUgraphEdgeData *data, size_t count,
					 CUgraphNodeParams *params)
{
	DRIVER_CALL;
	struct graph_payload payload;
	CUresult result;

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		return add_alloc(out, graph, dependencies, data, count,
				 (CUDA_MEM_ALLOC_NODE_PARAMS *)&params->alloc);
	if (params->type == CU_GRAPH_NODE_TYPE_GRAPH &&
	    params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE)
		return add_moved(out, graph, dependencies, data, count, params->graph.graph);
	if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
		return add_conditional(out, graph, dependencies, data, count, &params->conditional);
	result = driver_graph_said(params, NULL, 0, &payload);
	return result ? result : add(out, graph, dependencies, data, count, &payload);
}
