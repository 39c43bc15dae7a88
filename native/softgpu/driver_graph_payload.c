#include "driver_graph.h"

#include "driver_graph_memory.h"
#include "driver_green.h"
#include "driver_handle.h"
#include "driver_module.h"

#include <stdlib.h>
#include <string.h>

static struct graph_work *work_make(CUgraphNodeType type, struct CUctx_st *context,
				    struct driver_operation *operation)
{
	struct graph_work *work = calloc(1, sizeof *work);

	if (!work) {
		operation->release(operation);
		return NULL;
	}
	work->references = 1;
	work->type = type;
	work->operation = operation;
	work->context = context;
	if (context)
		driver_context_hold(context);
	return work;
}

void driver_graph_work_drop(struct graph_work *work)
{
	if (__atomic_sub_fetch(&work->references, 1, __ATOMIC_ACQ_REL))
		return;
	if (work->type == CU_GRAPH_NODE_TYPE_KERNEL) {
		free(work->kernel.params.kernelParams);
		free(work->kernel.attributes);
	}
	work->operation->release(work->operation);
	if (work->context)
		driver_context_drop(work->context);
	free(work);
}

void driver_graph_payload_drop(struct graph_payload *payload)
{
	if (payload->work)
		driver_graph_work_drop(payload->work);
	if (payload->child)
		driver_graph_free(payload->child);
	if (payload->conditional)
		driver_graph_conditional_free(payload->conditional);
	if (payload->allocation)
		driver_graph_allocation_drop(payload->allocation);
}

/* ---- kernels ---- */

/* The parameters as cuGraphKernelNodeGetParams gives them out, in the work's memory. */
static bool describe_kernel(struct graph_kernel *kernel, const struct driver_operation *operation,
			    const CUlaunchConfig *config)
{
	struct driver_launch_view view;
	const struct engine_function_info *info;

	driver_launch_look(operation, &view);
	info = &view.function->info;
	kernel->params = (CUDA_KERNEL_NODE_PARAMS){
		.gridDimX = config->gridDimX, .gridDimY = config->gridDimY,
		.gridDimZ = config->gridDimZ, .blockDimX = config->blockDimX,
		.blockDimY = config->blockDimY, .blockDimZ = config->blockDimZ,
		.sharedMemBytes = config->sharedMemBytes,
		.func = view.function, .ctx = view.function->module->context,
	};
	/* The runtime finds its own name for the function by the kernel. */
	if (driver_library_kernel_of(view.function, &kernel->params.kern))
		return false;
	if (info->param_count) {
		void **pointers = malloc(info->param_count * sizeof *pointers);

		if (!pointers)
			return false;
		for (uint32_t i = 0; i < info->param_count; i++)
			pointers[i] = (void *)(view.params + info->params[i].offset);
		kernel->params.kernelParams = pointers;
	}
	if (config->numAttrs) {
		size_t bytes = config->numAttrs * sizeof *kernel->attributes;

		kernel->attributes = malloc(bytes);
		if (!kernel->attributes)
			return false;
		memcpy(kernel->attributes, config->attrs, bytes);
		kernel->attribute_count = config->numAttrs;
	}
	return true;
}

CUresult driver_graph_kernel(struct CUctx_st *context, const CUlaunchConfig *config,
			     CUfunction function, void **params, void **extra,
			     struct graph_payload *payload)
{
	struct driver_operation *operation;
	struct graph_work *work;
	CUresult result = driver_launch_prepare(context, NULL, config, function, params, extra,
						&operation);

	if (result)
		return result;
	work = work_make(CU_GRAPH_NODE_TYPE_KERNEL, context, operation);
	if (!work)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!describe_kernel(&work->kernel, operation, config)) {
		driver_graph_work_drop(work);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*payload = (struct graph_payload){ .type = CU_GRAPH_NODE_TYPE_KERNEL, .work = work };
	return CUDA_SUCCESS;
}

CUresult driver_graph_kernel_again(const struct graph_work *work, const CUlaunchAttribute *attributes,
				   unsigned count, struct graph_payload *payload)
{
	const CUDA_KERNEL_NODE_PARAMS *params = &work->kernel.params;
	const CUlaunchConfig config = {
		.gridDimX = params->gridDimX, .gridDimY = params->gridDimY,
		.gridDimZ = params->gridDimZ, .blockDimX = params->blockDimX,
		.blockDimY = params->blockDimY, .blockDimZ = params->blockDimZ,
		.sharedMemBytes = params->sharedMemBytes,
		.attrs = (CUlaunchAttribute *)attributes, .numAttrs = count,
	};

	if (!driver_launch_is_possible(work->operation))
		return CUDA_ERROR_INVALID_VALUE;
	return driver_graph_kernel(work->context, &config, params->func, params->kernelParams, NULL,
				   payload);
}

/* ---- the others ---- */

CUresult driver_graph_memcpy(struct CUctx_st *context, const CUDA_MEMCPY3D *params,
			     struct graph_payload *payload)
{
	struct driver_operation *operation;
	struct graph_work *work;
	CUresult result = driver_copy_prepare(params, &operation);

	if (result)
		return result;
	work = work_make(CU_GRAPH_NODE_TYPE_MEMCPY, context, operation);
	if (!work)
		return CUDA_ERROR_OUT_OF_MEMORY;
	work->copy = *params;
	*payload = (struct graph_payload){ .type = CU_GRAPH_NODE_TYPE_MEMCPY, .work = work };
	return CUDA_SUCCESS;
}

CUresult driver_graph_memset(struct CUctx_st *context, const CUDA_MEMSET_NODE_PARAMS *params,
			     struct graph_payload *payload)
{
	struct driver_operation *operation;
	struct graph_work *work;
	CUresult result = params ? driver_fill_prepare(params, &operation)
				 : CUDA_ERROR_INVALID_VALUE;

	if (result)
		return result;
	work = work_make(CU_GRAPH_NODE_TYPE_MEMSET, context, operation);
	if (!work)
		return CUDA_ERROR_OUT_OF_MEMORY;
	work->fill = *params;
	*payload = (struct graph_payload){ .type = CU_GRAPH_NODE_TYPE_MEMSET, .work = work };
	return CUDA_SUCCESS;
}

CUresult driver_graph_host(const CUDA_HOST_NODE_PARAMS *params, struct graph_payload *payload)
{
	struct driver_operation *operation;
	struct graph_work *work;
	CUresult result = params ? driver_host_prepare(params->fn, params->userData, &operation)
				 : CUDA_ERROR_INVALID_VALUE;

	if (result)
		return result;
	work = work_make(CU_GRAPH_NODE_TYPE_HOST, NULL, operation);
	if (!work)
		return CUDA_ERROR_OUT_OF_MEMORY;
	work->host = *params;
	*payload = (struct graph_payload){ .type = CU_GRAPH_NODE_TYPE_HOST, .work = work };
	return CUDA_SUCCESS;
}

CUresult driver_graph_words(struct CUctx_st *context, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params,
			    struct graph_payload *payload)
{
	CUstreamBatchMemOpParams *kept;
	struct driver_operation *operation;
	struct graph_work *work;
	CUresult result = driver_words_prepare(context, params->paramArray, params->count,
					       params->flags, &operation, &kept);

	if (result)
		return result;
	work = work_make(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, context, operation);
	if (!work)
		return CUDA_ERROR_OUT_OF_MEMORY;
	work->words = *params;
	work->words.ctx = context;
	work->words.paramArray = kept;
	*payload = (struct graph_payload){ .type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, .work = work };
	return CUDA_SUCCESS;
}

CUresult driver_graph_event(CUgraphNodeType type, CUevent event, struct graph_payload *payload)
{
	if (!driver_handle_is(event, DRIVER_KIND_EVENT))
		return CUDA_ERROR_INVALID_VALUE;
	*payload = (struct graph_payload){ .type = type, .event = event };
	return CUDA_SUCCESS;
}

/* ---- from what the program says of a node ---- */

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
