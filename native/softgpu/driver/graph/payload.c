/* Nodes as the program describes them. */
#include "payload.h"

#include "../context_stack.h"
#include "../handle.h"
#include "../module.h"
#include "graph.h"
#include "memory.h"

CUresult driver_graph_context(CUcontext wanted, struct CUctx_st **context)
{
	CUresult result = driver_context_wanted(wanted, context);

	return result ? result : driver_context_state(*context);
}

/* A function belongs to a context; a kernel runs in the one that is said. */
CUresult driver_graph_said_kernel(const CUDA_KERNEL_NODE_PARAMS *params,
				  const CUlaunchAttribute *attributes, unsigned count,
				  struct graph_payload *payload)
{
	CUlaunchConfig config;
	struct CUctx_st *context;
	CUfunction handle;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!params || (!params->func && !params->kern))
		return CUDA_ERROR_INVALID_VALUE;
	handle = params->func ? params->func : (CUfunction)params->kern;
	if (driver_handle_is(handle, DRIVER_KIND_FUNCTION))
		result = driver_graph_context(handle->module->context, &context);
	else
		result = driver_graph_context(params->func ? NULL : params->ctx, &context);
	if (result)
		return result;
	config = (CUlaunchConfig){
		.gridDimX = params->gridDimX, .gridDimY = params->gridDimY,
		.gridDimZ = params->gridDimZ, .blockDimX = params->blockDimX,
		.blockDimY = params->blockDimY, .blockDimZ = params->blockDimZ,
		.sharedMemBytes = params->sharedMemBytes,
		.attrs = (CUlaunchAttribute *)attributes, .numAttrs = count,
	};
	return driver_graph_kernel(context, &config, handle, params->kernelParams, params->extra,
				   payload);
}

CUresult driver_graph_said_memcpy(const CUDA_MEMCPY3D *params, CUcontext wanted,
				  struct graph_payload *payload)
{
	struct CUctx_st *context;
	CUresult result = driver_graph_context(wanted, &context);

	return result ? result : driver_graph_memcpy(context, params, payload);
}

CUresult driver_graph_said_memset(const CUDA_MEMSET_NODE_PARAMS *params, CUcontext wanted,
				  struct graph_payload *payload)
{
	struct CUctx_st *context;
	CUresult result = driver_graph_context(wanted, &context);

	return result ? result : driver_graph_memset(context, params, payload);
}

CUresult driver_graph_said_words(const CUDA_BATCH_MEM_OP_NODE_PARAMS *params,
				 struct graph_payload *payload)
{
	struct CUctx_st *context;
	CUresult result = params ? driver_graph_context(params->ctx, &context) :
				   CUDA_ERROR_INVALID_VALUE;

	return result ? result : driver_graph_words(context, params, payload);
}

CUresult driver_graph_said_event(CUgraphNodeType type, CUevent event,
				 struct graph_payload *payload)
{
	CUresult result = driver_ready();

	return result ? result : driver_graph_event(type, event, payload);
}

/* A copy of the child: the program keeps its own. */
CUresult driver_graph_said_child(CUgraph child, struct graph_payload *payload)
{
	CUresult result = driver_graph_enter(child);

	if (result)
		return result;
	*payload = (struct graph_payload){ .type = CU_GRAPH_NODE_TYPE_GRAPH };
	result = driver_graph_has_memory(child) || driver_graph_has_conditional(child) ?
		 CUDA_ERROR_NOT_SUPPORTED : driver_graph_copy(child, false, &payload->child);
	driver_graph_unlock();
	return result;
}

/* Memory that the graph has freed before serves again. */
CUresult driver_graph_said_alloc(CUgraph graph, const CUgraphNode *dependencies, size_t count,
				 const CUDA_MEM_ALLOC_NODE_PARAMS *params,
				 struct graph_payload *payload)
{
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);

	if (!result)
		result = driver_graph_enter(graph);
	if (result)
		return result;
	*payload = (struct graph_payload){ .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC };
	if (params)
		payload->allocation = driver_graph_reuse(graph, dependencies, count, params);
	driver_graph_unlock();
	if (payload->allocation)
		return CUDA_SUCCESS;
	return params ? driver_graph_allocation_make(context, params, &payload->allocation) :
			CUDA_ERROR_INVALID_VALUE;
}

CUresult driver_graph_said_free(CUdeviceptr address, struct graph_payload *payload)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	*payload = (struct graph_payload){
		.type = CU_GRAPH_NODE_TYPE_MEM_FREE,
		.allocation = driver_graph_allocation_of(address),
	};
	return payload->allocation ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* What the general form says, for all types that have no answer of their own.  Semaphores of
 * other APIs are not there; what a conditional node is can't be changed. */
CUresult driver_graph_said(const CUgraphNodeParams *params, const CUlaunchAttribute *attributes,
			   unsigned attribute_count, struct graph_payload *payload)
{
	switch (params->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return driver_graph_said_kernel((const CUDA_KERNEL_NODE_PARAMS *)&params->kernel, attributes,
				      attribute_count, payload);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return params->memcpy.flags ? CUDA_ERROR_INVALID_VALUE :
			driver_graph_said_memcpy(&params->memcpy.copyParams, params->memcpy.copyCtx, payload);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return driver_graph_said_memset((const CUDA_MEMSET_NODE_PARAMS *)&params->memset,
				      params->memset.ctx, payload);
	case CU_GRAPH_NODE_TYPE_HOST:
		return driver_graph_host((const CUDA_HOST_NODE_PARAMS *)&params->host, payload);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return driver_graph_said_child(params->graph.graph, payload);
	case CU_GRAPH_NODE_TYPE_EMPTY:
		*payload = (struct graph_payload){ .type = CU_GRAPH_NODE_TYPE_EMPTY };
		return CUDA_SUCCESS;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return driver_graph_said_event(params->type, params->eventWait.event, payload);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return driver_graph_said_event(params->type, params->eventRecord.event, payload);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return driver_graph_said_free(params->free.dptr, payload);
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return CUDA_ERROR_NOT_SUPPORTED;
	case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
	case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
		return driver_unsupported("a graph's node for external semaphores");
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return driver_graph_said_words((const CUDA_BATCH_MEM_OP_NODE_PARAMS *)&params->memOp, payload);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}
