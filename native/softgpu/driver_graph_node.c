/* Nodes by their types: adding them, and asking and changing what they do. */
#include "driver_graph.h"

#include "driver_graph_memory.h"
#include "driver_green.h"
#include "driver_handle.h"
#include "driver_module.h"

#include <stdlib.h>
#include <string.h>

/* ---- payloads from what the program says; without the lock ---- */

CUresult driver_graph_context(CUcontext wanted, struct CUctx_st **context)
{
	struct CUgreenCtx_st *green;
	CUresult result;

	if (!wanted)
		return driver_context_enter(context);
	result = driver_ready();
	if (!result)
		result = driver_context_named(wanted, context, &green);
	return result ? result : driver_context_state(*context);
}

/* A function belongs to a context; a kernel runs in the one that is said. */
static CUresult kernel_payload(const CUDA_KERNEL_NODE_PARAMS *params,
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

static CUresult memcpy_payload(const CUDA_MEMCPY3D *params, CUcontext wanted,
			       struct graph_payload *payload)
{
	struct CUctx_st *context;
	CUresult result = driver_graph_context(wanted, &context);

	return result ? result : driver_graph_memcpy(context, params, payload);
}

static CUresult memset_payload(const CUDA_MEMSET_NODE_PARAMS *params, CUcontext wanted,
			       struct graph_payload *payload)
{
	struct CUctx_st *context;
	CUresult result = driver_graph_context(wanted, &context);

	return result ? result : driver_graph_memset(context, params, payload);
}

static CUresult words_payload(const CUDA_BATCH_MEM_OP_NODE_PARAMS *params,
			      struct graph_payload *payload)
{
	struct CUctx_st *context;
	CUresult result = params ? driver_graph_context(params->ctx, &context) :
				   CUDA_ERROR_INVALID_VALUE;

	return result ? result : driver_graph_words(context, params, payload);
}

static CUresult event_payload(CUgraphNodeType type, CUevent event, struct graph_payload *payload)
{
	CUresult result = driver_ready();

	return result ? result : driver_graph_event(type, event, payload);
}

/* A copy of the child: the program keeps its own. */
static CUresult child_payload(CUgraph child, struct graph_payload *payload)
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
static CUresult alloc_payload(CUgraph graph, const CUgraphNode *dependencies, size_t count,
			      const CUDA_MEM_ALLOC_NODE_PARAMS *params, struct graph_payload *payload)
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

static CUresult free_payload(CUdeviceptr address, struct graph_payload *payload)
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

/* ---- adding ---- */

/* The payload is taken over in every case. */
static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
		    const CUgraphEdgeData *data, size_t count, struct graph_payload *payload)
{
	CUresult result = driver_graph_enter(graph);

	if (result) {
		driver_graph_payload_drop(payload);
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
	struct graph_payload payload;
	CUresult result = kernel_payload(params, NULL, 0, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph,
					    const CUgraphNode *dependencies, size_t count,
					    const CUDA_MEMCPY3D *params, CUcontext context)
{
	struct graph_payload payload;
	CUresult result = memcpy_payload(params, context, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph,
					    const CUgraphNode *dependencies, size_t count,
					    const CUDA_MEMSET_NODE_PARAMS *params,
					    CUcontext context)
{
	struct graph_payload payload;
	CUresult result = memset_payload(params, context, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddHostNode(CUgraphNode *out, CUgraph graph,
					  const CUgraphNode *dependencies, size_t count,
					  const CUDA_HOST_NODE_PARAMS *params)
{
	struct graph_payload payload;
	CUresult result = driver_graph_host(params, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddBatchMemOpNode(CUgraphNode *out, CUgraph graph,
						const CUgraphNode *dependencies, size_t count,
						const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	struct graph_payload payload;
	CUresult result = words_payload(params, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph,
						const CUgraphNode *dependencies, size_t count,
						CUgraph child)
{
	struct graph_payload payload;
	CUresult result = child_payload(child, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph,
					   const CUgraphNode *dependencies, size_t count)
{
	struct graph_payload payload = { .type = CU_GRAPH_NODE_TYPE_EMPTY };

	return add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddEventRecordNode(CUgraphNode *out, CUgraph graph,
						 const CUgraphNode *dependencies, size_t count,
						 CUevent event)
{
	struct graph_payload payload;
	CUresult result = event_payload(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

DRIVER_EXPORT CUresult cuGraphAddEventWaitNode(CUgraphNode *out, CUgraph graph,
					       const CUgraphNode *dependencies, size_t count,
					       CUevent event)
{
	struct graph_payload payload;
	CUresult result = event_payload(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, &payload);

	return result ? result : add(out, graph, dependencies, NULL, count, &payload);
}

static CUresult add_alloc(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
			  const CUgraphEdgeData *data, size_t count,
			  CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	struct graph_payload payload;
	CUdeviceptr address;
	CUresult result = alloc_payload(graph, dependencies, count, params, &payload);

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
	return add_alloc(out, graph, dependencies, NULL, count, params);
}

DRIVER_EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph,
					     const CUgraphNode *dependencies, size_t count,
					     CUdeviceptr address)
{
	struct graph_payload payload;
	CUresult result = free_payload(address, &payload);

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

/* What the general form says, for all types that have no answer of their own.  Semaphores of
 * other APIs are not there; what a conditional node is can't be changed. */
static CUresult general_payload(const CUgraphNodeParams *params, const CUlaunchAttribute *attributes,
				unsigned attribute_count, struct graph_payload *payload)
{
	switch (params->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return kernel_payload((const CUDA_KERNEL_NODE_PARAMS *)&params->kernel, attributes,
				      attribute_count, payload);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return params->memcpy.flags ? CUDA_ERROR_INVALID_VALUE :
			memcpy_payload(&params->memcpy.copyParams, params->memcpy.copyCtx, payload);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return memset_payload((const CUDA_MEMSET_NODE_PARAMS *)&params->memset,
				      params->memset.ctx, payload);
	case CU_GRAPH_NODE_TYPE_HOST:
		return driver_graph_host((const CUDA_HOST_NODE_PARAMS *)&params->host, payload);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return child_payload(params->graph.graph, payload);
	case CU_GRAPH_NODE_TYPE_EMPTY:
		*payload = (struct graph_payload){ .type = CU_GRAPH_NODE_TYPE_EMPTY };
		return CUDA_SUCCESS;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return event_payload(params->type, params->eventWait.event, payload);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return event_payload(params->type, params->eventRecord.event, payload);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return free_payload(params->free.dptr, payload);
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return CUDA_ERROR_NOT_SUPPORTED;
	case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
	case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
		return driver_unsupported("a graph's node for external semaphores");
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return words_payload((const CUDA_BATCH_MEM_OP_NODE_PARAMS *)&params->memOp, payload);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

DRIVER_EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph,
					 const CUgraphNode *dependencies,
					 const CUgraphEdgeData *data, size_t count,
					 CUgraphNodeParams *params)
{
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
	result = general_payload(params, NULL, 0, &payload);
	return result ? result : add(out, graph, dependencies, data, count, &payload);
}

/* ---- asking ---- */

/* A node of that type; on success the lock is held. */
static CUresult enter_typed(CUgraphNode node, CUgraphNodeType type, const void *out)
{
	CUresult result = driver_graph_enter_node(node);

	if (result)
		return result;
	if (out && node->payload.type == type)
		return CUDA_SUCCESS;
	driver_graph_unlock();
	return CUDA_ERROR_INVALID_VALUE;
}

#define DEFINE_GET(name, node_type, out_type, value)				\
DRIVER_EXPORT CUresult name(CUgraphNode node, out_type *out)			\
{										\
	CUresult result = enter_typed(node, CU_GRAPH_NODE_TYPE_##node_type, out);	\
										\
	if (result)								\
		return result;							\
	*out = value;								\
	driver_graph_unlock();							\
	return CUDA_SUCCESS;							\
}

DEFINE_GET(cuGraphKernelNodeGetParams_v2, KERNEL, CUDA_KERNEL_NODE_PARAMS,
	   node->payload.work->kernel.params)
DEFINE_GET(cuGraphMemcpyNodeGetParams, MEMCPY, CUDA_MEMCPY3D, node->payload.work->copy)
DEFINE_GET(cuGraphMemsetNodeGetParams, MEMSET, CUDA_MEMSET_NODE_PARAMS, node->payload.work->fill)
DEFINE_GET(cuGraphHostNodeGetParams, HOST, CUDA_HOST_NODE_PARAMS, node->payload.work->host)
DEFINE_GET(cuGraphBatchMemOpNodeGetParams, BATCH_MEM_OP, CUDA_BATCH_MEM_OP_NODE_PARAMS,
	   node->payload.work->words)
DEFINE_GET(cuGraphChildGraphNodeGetGraph, GRAPH, CUgraph, node->payload.child)
DEFINE_GET(cuGraphEventRecordNodeGetEvent, EVENT_RECORD, CUevent, node->payload.event)
DEFINE_GET(cuGraphEventWaitNodeGetEvent, WAIT_EVENT, CUevent, node->payload.event)
DEFINE_GET(cuGraphMemAllocNodeGetParams, MEM_ALLOC, CUDA_MEM_ALLOC_NODE_PARAMS,
	   *driver_graph_allocation_params(node->payload.allocation))
DEFINE_GET(cuGraphMemFreeNodeGetParams, MEM_FREE, CUdeviceptr,
	   driver_graph_allocation_address(node->payload.allocation))

DRIVER_EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
	CUresult result = driver_graph_enter_node(node);

	if (result)
		return result;
	if (type)
		*type = node->payload.type;
	driver_graph_unlock();
	return type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* What the node does, by its type; pointers lead to what the node owns. */
static void describe(const struct graph_payload *payload, CUgraphNodeParams *params)
{
	const struct graph_work *work = payload->work;

	switch (payload->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		memcpy(&params->kernel, &work->kernel.params, sizeof work->kernel.params);
		break;
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		params->memcpy.copyCtx = work->context;
		params->memcpy.copyParams = work->copy;
		break;
	case CU_GRAPH_NODE_TYPE_MEMSET:
		memcpy(&params->memset, &work->fill, sizeof work->fill);
		params->memset.ctx = work->context;
		break;
	case CU_GRAPH_NODE_TYPE_HOST:
		memcpy(&params->host, &work->host, sizeof work->host);
		break;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		memcpy(&params->memOp, &work->words, sizeof work->words);
		break;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		params->graph.graph = payload->child;
		params->graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_INVALID;
		break;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		params->eventWait.event = payload->event;
		break;
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		params->eventRecord.event = payload->event;
		break;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		memcpy(&params->alloc, driver_graph_allocation_params(payload->allocation),
		       sizeof params->alloc);
		break;
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		params->free.dptr = driver_graph_allocation_address(payload->allocation);
		break;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		driver_graph_conditional_describe(payload->conditional, &params->conditional);
		break;
	default:	/* empty */
		break;
	}
}

DRIVER_EXPORT CUresult cuGraphNodeGetParams(CUgraphNode node, CUgraphNodeParams *params)
{
	CUresult result = driver_graph_enter_node(node);

	if (result)
		return result;
	if (params) {
		*params = (CUgraphNodeParams){ .type = node->payload.type };
		describe(&node->payload, params);
	}
	driver_graph_unlock();
	return params ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- changing ---- */

/* The node itself, or what it became in an executable; on success the lock is held. */
static CUresult enter_target(CUgraphExec executable, CUgraphNode node, CUgraphNodeType type,
			     struct CUgraphNode_st **target)
{
	CUresult result = enter_typed(node, type, target);

	if (result)
		return result;
	*target = node;
	if (executable) {
		*target = driver_handle_is(executable, DRIVER_KIND_GRAPH_EXEC) ?
			  driver_graph_exec_find(executable, node) : NULL;
		if (!*target || (*target)->payload.type != type) {
			driver_graph_unlock();
			return CUDA_ERROR_INVALID_VALUE;
		}
	}
	return CUDA_SUCCESS;
}

/* The payload is taken over in every case. */
static CUresult change(CUgraphExec executable, CUgraphNode node, struct graph_payload *payload)
{
	struct CUgraphNode_st *target;
	CUresult result = enter_target(executable, node, payload->type, &target);

	if (!result) {
		struct graph_payload unwanted = *payload;

		if (executable && driver_graph_update_check(&target->payload, payload)) {
			result = CUDA_ERROR_INVALID_VALUE;
		} else {
			unwanted = target->payload;
			target->payload = *payload;
		}
		driver_graph_payload_drop(&unwanted);
		if (executable)
			driver_graph_exec_changed(executable);
		driver_graph_unlock();
		return result;
	}
	driver_graph_payload_drop(payload);
	return result;
}

/* The attributes of a kernel node stay when its parameters change.  *copy is for free(). */
static CUresult attributes_of(CUgraphExec executable, CUgraphNode node, CUlaunchAttribute **copy,
			      unsigned *count)
{
	struct CUgraphNode_st *target;
	const struct graph_kernel *kernel;
	CUresult result = enter_target(executable, node, CU_GRAPH_NODE_TYPE_KERNEL, &target);

	if (result)
		return result;
	kernel = &target->payload.work->kernel;
	*count = kernel->attribute_count;
	*copy = malloc((*count + 1) * sizeof **copy);	/* room for one more */
	if (*copy && *count)
		memcpy(*copy, kernel->attributes, *count * sizeof **copy);
	driver_graph_unlock();
	return *copy ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult set_general(CUgraphExec executable, CUgraphNode node, const CUgraphNodeParams *params)
{
	CUlaunchAttribute *attributes = NULL;
	struct graph_payload payload;
	unsigned count = 0;
	CUresult result = CUDA_SUCCESS;

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	if (params->type == CU_GRAPH_NODE_TYPE_KERNEL)
		result = attributes_of(executable, node, &attributes, &count);
	if (!result)
		result = general_payload(params, attributes, count, &payload);
	free(attributes);
	return result ? result : change(executable, node, &payload);
}

static CUresult set_kernel(CUgraphExec executable, CUgraphNode node,
			   const CUDA_KERNEL_NODE_PARAMS *params)
{
	CUgraphNodeParams general = { .type = CU_GRAPH_NODE_TYPE_KERNEL };

	_Static_assert(sizeof *params == sizeof general.kernel, "the same structure");
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&general.kernel, params, sizeof *params);
	return set_general(executable, node, &general);
}

static CUresult set_memcpy(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D *params,
			   CUcontext context)
{
	struct graph_payload payload;
	CUresult result = memcpy_payload(params, context, &payload);

	return result ? result : change(executable, node, &payload);
}

static CUresult set_memset(CUgraphExec executable, CUgraphNode node,
			   const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context)
{
	struct graph_payload payload;
	CUresult result = memset_payload(params, context, &payload);

	return result ? result : change(executable, node, &payload);
}

static CUresult set_host(CUgraphExec executable, CUgraphNode node,
			 const CUDA_HOST_NODE_PARAMS *params)
{
	struct graph_payload payload;
	CUresult result = driver_graph_host(params, &payload);

	return result ? result : change(executable, node, &payload);
}

static CUresult set_words(CUgraphExec executable, CUgraphNode node,
			  const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	struct graph_payload payload;
	CUresult result = words_payload(params, &payload);

	return result ? result : change(executable, node, &payload);
}

static CUresult set_event(CUgraphExec executable, CUgraphNode node, CUgraphNodeType type,
			  CUevent event)
{
	struct graph_payload payload;
	CUresult result = event_payload(type, event, &payload);

	return result ? result : change(executable, node, &payload);
}

/* An executable's functions: the handle is looked up first. */
static CUresult check_executable(CUgraphExec executable)
{
	CUresult result = driver_graph_exec_enter(executable);

	if (!result)
		driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node,
						     const CUDA_KERNEL_NODE_PARAMS *params)
{
	return set_kernel(NULL, node, params);
}

DRIVER_EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node,
							 const CUDA_KERNEL_NODE_PARAMS *params)
{
	CUresult result = check_executable(executable);

	return result ? result : set_kernel(executable, node, params);
}

/* The context of a copy or a fill stays as it was. */
static CUresult context_of(CUgraphNode node, CUgraphNodeType type, CUcontext *context)
{
	CUresult result = enter_typed(node, type, context);

	if (result)
		return result;
	*context = node->payload.work->context;
	driver_graph_unlock();
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *params)
{
	CUcontext context;
	CUresult result = context_of(node, CU_GRAPH_NODE_TYPE_MEMCPY, &context);

	return result ? result : set_memcpy(NULL, node, params, context);
}

DRIVER_EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node,
						      const CUDA_MEMCPY3D *params,
						      CUcontext context)
{
	CUresult result = check_executable(executable);

	return result ? result : set_memcpy(executable, node, params, context);
}

DRIVER_EXPORT CUresult cuGraphMemsetNodeSetParams(CUgraphNode node,
						  const CUDA_MEMSET_NODE_PARAMS *params)
{
	CUcontext context;
	CUresult result = context_of(node, CU_GRAPH_NODE_TYPE_MEMSET, &context);

	return result ? result : set_memset(NULL, node, params, context);
}

DRIVER_EXPORT CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
						      const CUDA_MEMSET_NODE_PARAMS *params,
						      CUcontext context)
{
	CUresult result = check_executable(executable);

	return result ? result : set_memset(executable, node, params, context);
}

DRIVER_EXPORT CUresult cuGraphHostNodeSetParams(CUgraphNode node,
						const CUDA_HOST_NODE_PARAMS *params)
{
	return set_host(NULL, node, params);
}

DRIVER_EXPORT CUresult cuGraphExecHostNodeSetParams(CUgraphExec executable, CUgraphNode node,
						    const CUDA_HOST_NODE_PARAMS *params)
{
	CUresult result = check_executable(executable);

	return result ? result : set_host(executable, node, params);
}

DRIVER_EXPORT CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
						      const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	return set_words(NULL, node, params);
}

DRIVER_EXPORT CUresult
cuGraphExecBatchMemOpNodeSetParams(CUgraphExec executable, CUgraphNode node,
				   const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	CUresult result = check_executable(executable);

	return result ? result : set_words(executable, node, params);
}

DRIVER_EXPORT CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event)
{
	return set_event(NULL, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

DRIVER_EXPORT CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec executable, CUgraphNode node,
							  CUevent event)
{
	CUresult result = check_executable(executable);

	return result ? result :
		set_event(executable, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

DRIVER_EXPORT CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event)
{
	return set_event(NULL, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

DRIVER_EXPORT CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec executable, CUgraphNode node,
							CUevent event)
{
	CUresult result = check_executable(executable);

	return result ? result : set_event(executable, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

DRIVER_EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec executable, CUgraphNode node,
							  CUgraph child)
{
	CUgraphExecUpdateResultInfo info = { 0 };
	struct user_reference *former = NULL;
	struct CUgraphNode_st *target;
	CUresult result = check_executable(executable);

	if (!result)
		result = enter_target(executable, node, CU_GRAPH_NODE_TYPE_GRAPH, &target);
	if (result)
		return result;
	if (!driver_handle_is(child, DRIVER_KIND_GRAPH) ||
	    driver_graph_update(target->payload.child, child, &info, &former))
		result = CUDA_ERROR_INVALID_VALUE;
	driver_graph_exec_keep(executable, former);
	driver_graph_exec_changed(executable);
	driver_graph_unlock();
	return result;
}

/* Allocations can't be changed, and child graphs of graphs not by their parameters. */
static bool can_be_set(CUgraphNodeType type)
{
	return type != CU_GRAPH_NODE_TYPE_MEM_ALLOC && type != CU_GRAPH_NODE_TYPE_MEM_FREE &&
	       type != CU_GRAPH_NODE_TYPE_GRAPH;
}

DRIVER_EXPORT CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params)
{
	if (!params || !can_be_set(params->type))
		return CUDA_ERROR_INVALID_VALUE;
	return set_general(NULL, node, params);
}

DRIVER_EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node,
						CUgraphNodeParams *params)
{
	CUresult result = check_executable(executable);

	if (result)
		return result;
	if (params && params->type == CU_GRAPH_NODE_TYPE_GRAPH)
		return cuGraphExecChildGraphNodeSetParams(executable, node, params->graph.graph);
	if (!params || !can_be_set(params->type))
		return CUDA_ERROR_INVALID_VALUE;
	return set_general(executable, node, params);
}

/* ---- attributes of kernel nodes ---- */

DRIVER_EXPORT CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID id,
						     CUkernelNodeAttrValue *value)
{
	const struct graph_kernel *kernel;
	CUresult result = enter_typed(node, CU_GRAPH_NODE_TYPE_KERNEL, value);

	if (result)
		return result;
	kernel = &node->payload.work->kernel;
	*value = (CUkernelNodeAttrValue){ 0 };
	for (unsigned i = 0; i < kernel->attribute_count; i++) {
		if (kernel->attributes[i].id == id)
			*value = kernel->attributes[i].value;
	}
	driver_graph_unlock();
	return CUDA_SUCCESS;
}

/* Make the work anew with these attributes, and put it in the place of the node's. */
static CUresult set_attributes(CUgraphNode node, const CUlaunchAttribute *attributes, unsigned count)
{
	struct graph_payload payload;
	struct graph_work *work;
	CUresult result = enter_typed(node, CU_GRAPH_NODE_TYPE_KERNEL, attributes);

	if (result)
		return result;
	work = node->payload.work;
	driver_graph_work_hold(work);
	driver_graph_unlock();
	result = driver_graph_kernel_again(work, attributes, count, &payload);
	driver_graph_work_drop(work);
	return result ? result : change(NULL, node, &payload);
}

DRIVER_EXPORT CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID id,
						     const CUkernelNodeAttrValue *value)
{
	CUlaunchAttribute *attributes;
	unsigned count, i;
	CUresult result;

	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	result = attributes_of(NULL, node, &attributes, &count);
	if (result)
		return result;
	for (i = 0; i < count && attributes[i].id != id; i++)
		;
	attributes[i] = (CUlaunchAttribute){ .id = id, .value = *value };
	result = set_attributes(node, attributes, i == count ? count + 1 : count);
	free(attributes);
	return result;
}

DRIVER_EXPORT CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from)
{
	CUlaunchAttribute *attributes;
	unsigned count;
	CUresult result = attributes_of(NULL, from, &attributes, &count);

	if (result)
		return result;
	result = set_attributes(to, attributes, count);
	free(attributes);
	return result;
}
