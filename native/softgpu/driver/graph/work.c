/* The work of kernel, copy, fill and host nodes, and of those on words of memory. */
#include "work.h"

#include "../copy.h"
#include "../fill.h"
#include "../function.h"
#include "../handle.h"
#include "../host.h"
#include "../launch.h"
#include "../memop.h"
#include "graph.h"

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
