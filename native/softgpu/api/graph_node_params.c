/* Nodes by their types: asking and changing what they do, in graphs and in executables. */
#include "../driver/graph/graph.h"

#include "../driver/graph/conditional.h"
#include "../driver/graph/exec.h"
#include "../driver/graph/memory.h"
#include "../driver/graph/payload.h"
#include "../driver/graph/update.h"
#include "../driver/handle.h"

#include <stdlib.h>
#include <string.h>

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
	DRIVER_CALL;								\
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
	DRIVER_CALL;
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
	DRIVER_CALL;
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
	driver_graph_lock();
	driver_graph_payload_drop(payload);
	driver_graph_unlock();
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
		result = driver_graph_said(params, attributes, count, &payload);
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
	CUresult result = driver_graph_said_memcpy(params, context, &payload);

	return result ? result : change(executable, node, &payload);
}

static CUresult set_memset(CUgraphExec executable, CUgraphNode node,
			   const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context)
{
	struct graph_payload payload;
	CUresult result = driver_graph_said_memset(params, context, &payload);

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
	CUresult result = driver_graph_said_words(params, &payload);

	return result ? result : change(executable, node, &payload);
}

static CUresult set_event(CUgraphExec executable, CUgraphNode node, CUgraphNodeType type,
			  CUevent event)
{
	struct graph_payload payload;
	CUresult result = driver_graph_said_event(type, event, &payload);

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
	DRIVER_CALL;
	return set_kernel(NULL, node, params);
}

DRIVER_EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node,
							 const CUDA_KERNEL_NODE_PARAMS *params)
{
	DRIVER_CALL;
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
	DRIVER_CALL;
	CUcontext context;
	CUresult result = context_of(node, CU_GRAPH_NODE_TYPE_MEMCPY, &context);

	return result ? result : set_memcpy(NULL, node, params, context);
}

DRIVER_EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node,
						      const CUDA_MEMCPY3D *params,
						      CUcontext context)
{
	DRIVER_CALL;
	CUresult result = check_executable(executable);

	return result ? result : set_memcpy(executable, node, params, context);
}

DRIVER_EXPORT CUresult cuGraphMemsetNodeSetParams(CUgraphNode node,
						  const CUDA_MEMSET_NODE_PARAMS *params)
{
	DRIVER_CALL;
	CUcontext context;
	CUresult result = context_of(node, CU_GRAPH_NODE_TYPE_MEMSET, &context);

	return result ? result : set_memset(NULL, node, params, context);
}

DRIVER_EXPORT CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
						      const CUDA_MEMSET_NODE_PARAMS *params,
						      CUcontext context)
{
	DRIVER_CALL;
	CUresult result = check_executable(executable);

	return result ? result : set_memset(executable, node, params, context);
}

DRIVER_EXPORT CUresult cuGraphHostNodeSetParams(CUgraphNode node,
						const CUDA_HOST_NODE_PARAMS *params)
{
	DRIVER_CALL;
	return set_host(NULL, node, params);
}

DRIVER_EXPORT CUresult cuGraphExecHostNodeSetParams(CUgraphExec executable, CUgraphNode node,
						    const CUDA_HOST_NODE_PARAMS *params)
{
	DRIVER_CALL;
	CUresult result = check_executable(executable);

	return result ? result : set_host(executable, node, params);
}

DRIVER_EXPORT CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
						      const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	DRIVER_CALL;
	return set_words(NULL, node, params);
}

DRIVER_EXPORT CUresult
cuGraphExecBatchMemOpNodeSetParams(CUgraphExec executable, CUgraphNode node,
				   const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	DRIVER_CALL;
	CUresult result = check_executable(executable);

	return result ? result : set_words(executable, node, params);
}

DRIVER_EXPORT CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event)
{
	DRIVER_CALL;
	return set_event(NULL, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

DRIVER_EXPORT CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec executable, CUgraphNode node,
							  CUevent event)
{
	DRIVER_CALL;
	CUresult result = check_executable(executable);

	return result ? result :
		set_event(executable, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

DRIVER_EXPORT CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event)
{
	DRIVER_CALL;
	return set_event(NULL, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

DRIVER_EXPORT CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec executable, CUgraphNode node,
							CUevent event)
{
	DRIVER_CALL;
	CUresult result = check_executable(executable);

	return result ? result : set_event(executable, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

DRIVER_EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec executable, CUgraphNode node,
							  CUgraph child)
{
	DRIVER_CALL;
	CUgraphExecUpdateResultInfo info = { 0 };
	struct user_reference *former = NULL;
	struct CUgraphNode_st *target;
	CUresult result = check_executable(executable);

	if (!result)
		result = enter_target(executable, node, CU_GRAPH_NODE_TYPE_GRAPH, &target);
	if (result)
		return result;
	result = driver_handle_is(child, DRIVER_KIND_GRAPH) ?
		 driver_graph_update(target->payload.child, child, &info, &former) : CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
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
	DRIVER_CALL;
	if (!params || !can_be_set(params->type))
		return CUDA_ERROR_INVALID_VALUE;
	return set_general(NULL, node, params);
}

DRIVER_EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node,
						CUgraphNodeParams *params)
{
	DRIVER_CALL;
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
	DRIVER_CALL;
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
	DRIVER_CALL;
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
	DRIVER_CALL;
	CUlaunchAttribute *attributes;
	unsigned count;
	CUresult result = attributes_of(NULL, from, &attributes, &count);

	if (result)
		return result;
	result = set_attributes(to, attributes, count);
	free(attributes);
	return result;
}
