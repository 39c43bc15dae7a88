/* nested.h - walks over structures that hold handles or pointers.
 *
 * Each writes the structure's bytes and then, in order, what stands for its handles
 * and what its pointers lead to; reading overwrites every one of those members, so
 * that no value of the other machine's is left where a pointer or handle belongs.
 */
#ifndef FARBUS_WIRE_NESTED_H
#define FARBUS_WIRE_NESTED_H

#include "marshal.h"

/* Not every walk is used on both sides. */
#define WALK static __attribute__((unused)) void

WALK marshal_CUmemLocation(struct marshal *m, CUmemLocation *location)
{
	marshal_plain(m, location, sizeof(*location));
	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
		marshal_CUdevice(m, &location->id);
}

WALK marshal_CUmemAccessDesc(struct marshal *m, CUmemAccessDesc *access)
{
	marshal_plain(m, access, sizeof(*access));
	marshal_CUmemLocation(m, &access->location);
}

WALK marshal_CUmemAllocationProp(struct marshal *m, CUmemAllocationProp *prop)
{
	marshal_plain(m, prop, sizeof(*prop));
	marshal_CUmemLocation(m, &prop->location);
	if (m->get)
		prop->win32HandleMetaData = NULL;
}

WALK marshal_CUmemPoolProps(struct marshal *m, CUmemPoolProps *props)
{
	marshal_plain(m, props, sizeof(*props));
	marshal_CUmemLocation(m, &props->location);
	if (m->get)
		props->win32SecurityAttributes = NULL;
}

WALK marshal_CUDA_MEM_ALLOC_NODE_PARAMS(struct marshal *m, CUDA_MEM_ALLOC_NODE_PARAMS *node)
{
	CUmemAccessDesc *access = (CUmemAccessDesc *)node->accessDescs;
	size_t count = node->accessDescCount;

	marshal_plain(m, node, sizeof(*node));
	marshal_CUmemPoolProps(m, &node->poolProps);
	if (m->get)
		count = node->accessDescCount;
	access = marshal_pointer(m, access, count, sizeof(*access));
	for (size_t i = 0; access && i < count; i++)
		marshal_CUmemAccessDesc(m, &access[i]);
	if (m->get)
		node->accessDescs = marshal_lasting(m, access, count * sizeof(*access));
}

WALK marshal_CUDA_BATCH_MEM_OP_NODE_PARAMS(struct marshal *m, CUDA_BATCH_MEM_OP_NODE_PARAMS *node)
{
	CUstreamBatchMemOpParams *operations = node->paramArray;
	size_t count = node->count;

	marshal_plain(m, node, sizeof(*node));
	marshal_CUcontext(m, &node->ctx);
	if (m->get)
		count = node->count;
	operations = marshal_pointer(m, operations, count, sizeof(*operations));
	if (operations)
		marshal_plain(m, operations, count * sizeof(*operations));
	if (m->get)
		node->paramArray = marshal_lasting(m, operations, count * sizeof(*operations));
}

WALK marshal_CUDA_KERNEL_NODE_PARAMS_v1(struct marshal *m, CUDA_KERNEL_NODE_PARAMS_v1 *node)
{
	void **parameters = node->kernelParams, **extra = node->extra;

	marshal_plain(m, node, sizeof(*node));
	marshal_CUfunction(m, &node->func);
	marshal_parameters(m, node->func, &parameters, &extra);
	if (m->get) {
		node->kernelParams = parameters;
		node->extra = extra;
	}
}

WALK marshal_CUDA_KERNEL_NODE_PARAMS_v2(struct marshal *m, CUDA_KERNEL_NODE_PARAMS_v2 *node)
{
	void **parameters = node->kernelParams, **extra = node->extra;

	marshal_plain(m, node, sizeof(*node));
	marshal_CUfunction(m, &node->func);
	marshal_CUkernel(m, &node->kern);
	marshal_CUcontext(m, &node->ctx);
	marshal_parameters(m, node->func ? node->func : (CUfunction)node->kern, &parameters, &extra);
	if (m->get) {
		node->kernelParams = parameters;
		node->extra = extra;
	}
}

WALK marshal_CUDA_HOST_NODE_PARAMS(struct marshal *m, CUDA_HOST_NODE_PARAMS *node)
{
	CUhostFn function = node->fn;
	void *argument = node->userData;

	marshal_host_function(m, &function, &argument);
	node->fn = function;
	node->userData = argument;
}

WALK marshal_CUDA_MEMCPY3D_v2(struct marshal *m, CUDA_MEMCPY3D_v2 *copy)
{
	void *from = (void *)copy->srcHost, *to = copy->dstHost;

	marshal_plain(m, copy, sizeof(*copy));
	copy->reserved0 = m->get ? NULL : copy->reserved0;
	copy->reserved1 = m->get ? NULL : copy->reserved1;
	if (copy->srcMemoryType == CU_MEMORYTYPE_ARRAY)
		marshal_CUarray(m, &copy->srcArray);
	else if (copy->srcMemoryType == CU_MEMORYTYPE_HOST)
		marshal_host_memory(m, &from);
	if (copy->dstMemoryType == CU_MEMORYTYPE_ARRAY)
		marshal_CUarray(m, &copy->dstArray);
	else if (copy->dstMemoryType == CU_MEMORYTYPE_HOST)
		marshal_host_memory(m, &to);
	if (m->get) {
		copy->srcHost = copy->srcMemoryType == CU_MEMORYTYPE_HOST ? from : NULL;
		copy->dstHost = copy->dstMemoryType == CU_MEMORYTYPE_HOST ? to : NULL;
		if (copy->srcMemoryType != CU_MEMORYTYPE_ARRAY)
			copy->srcArray = NULL;
		if (copy->dstMemoryType != CU_MEMORYTYPE_ARRAY)
			copy->dstArray = NULL;
	}
}

WALK marshal_CUDA_RESOURCE_DESC(struct marshal *m, CUDA_RESOURCE_DESC *resource)
{
	marshal_plain(m, resource, sizeof(*resource));
	if (resource->resType == CU_RESOURCE_TYPE_ARRAY)
		marshal_CUarray(m, &resource->res.array.hArray);
	else if (resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
		marshal_CUmipmappedArray(m, &resource->res.mipmap.hMipmappedArray);
}

WALK marshal_CUDA_GRAPH_INSTANTIATE_PARAMS(struct marshal *m, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	CUstream stream = params->hUploadStream;

	marshal_plain(m, params, sizeof(*params));
	/* The stream goes one way, the node that failed the other. */
	if (m->reply)
		marshal_CUgraphNode(m, &params->hErrNode_out);
	else if (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
		marshal_CUstream(m, &stream);
	params->hUploadStream = stream;
}

WALK marshal_CUgraphExecUpdateResultInfo(struct marshal *m, CUgraphExecUpdateResultInfo *info)
{
	marshal_plain(m, info, sizeof(*info));
	marshal_CUgraphNode(m, &info->errorNode);
	marshal_CUgraphNode(m, &info->errorFromNode);
}

WALK marshal_CUlaunchConfig(struct marshal *m, CUlaunchConfig *config)
{
	CUlaunchAttribute *attributes = config->attrs;
	CUstream stream = config->hStream;

	marshal_plain(m, config, sizeof(*config));
	marshal_CUstream(m, &stream);
	attributes = marshal_pointer(m, attributes, config->numAttrs, sizeof(*attributes));
	if (attributes)
		marshal_plain(m, attributes, config->numAttrs * sizeof(*attributes));
	if (m->get) {
		config->hStream = stream;
		config->attrs = attributes;
	}
}

/* Behind the bytes of the CUgraphNodeParams that it is in.  Its bodies are told by the reply alone. */
WALK marshal_CUDA_CONDITIONAL_NODE_PARAMS(struct marshal *m, CUDA_CONDITIONAL_NODE_PARAMS *node)
{
	CUgraph *bodies = m->reply ? node->phGraph_out : NULL;

	marshal_CUgraphConditionalHandle(m, &node->handle);
	marshal_CUcontext(m, &node->ctx);
	if (!m->reply && node->size > MARSHAL_LIST_LIMIT)
		marshal_fail(m, CUDA_ERROR_OUT_OF_MEMORY);
	if (m->reply) {
		bodies = marshal_pointer(m, bodies, node->size, sizeof(*bodies));
		for (unsigned i = 0; bodies && i < node->size; i++)
			marshal_body(m, &bodies[i]);
	}
	if (m->get)
		node->phGraph_out = marshal_lasting(m, bodies, node->size * sizeof(*bodies));
}

WALK marshal_CUgraphNodeParams(struct marshal *m, CUgraphNodeParams *node)
{
	_Static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS_v2) == sizeof(CUDA_KERNEL_NODE_PARAMS_v3) &&
			       sizeof(CUDA_MEM_ALLOC_NODE_PARAMS_v1) ==
				       sizeof(CUDA_MEM_ALLOC_NODE_PARAMS_v2) &&
			       sizeof(CUDA_HOST_NODE_PARAMS_v1) == sizeof(CUDA_HOST_NODE_PARAMS_v2) &&
			       sizeof(CUDA_BATCH_MEM_OP_NODE_PARAMS_v1) ==
				       sizeof(CUDA_BATCH_MEM_OP_NODE_PARAMS_v2),
		       "versions that differ in name only");
	if (++m->depth > MARSHAL_DEPTH_LIMIT)
		m->failed = true;
	marshal_plain(m, node, sizeof(*node));
	switch (node->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		marshal_CUDA_KERNEL_NODE_PARAMS_v2(m, (CUDA_KERNEL_NODE_PARAMS_v2 *)&node->kernel);
		break;
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		marshal_CUcontext(m, &node->memcpy.copyCtx);
		marshal_CUDA_MEMCPY3D_v2(m, &node->memcpy.copyParams);
		break;
	case CU_GRAPH_NODE_TYPE_MEMSET:
		marshal_CUcontext(m, &node->memset.ctx);
		break;
	case CU_GRAPH_NODE_TYPE_HOST:
		marshal_CUDA_HOST_NODE_PARAMS(m, (CUDA_HOST_NODE_PARAMS *)&node->host);
		break;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		marshal_CUgraph(m, &node->graph.graph);
		break;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		marshal_CUevent(m, &node->eventWait.event);
		break;
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		marshal_CUevent(m, &node->eventRecord.event);
		break;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		marshal_CUDA_MEM_ALLOC_NODE_PARAMS(m, (CUDA_MEM_ALLOC_NODE_PARAMS *)&node->alloc);
		break;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		marshal_CUDA_BATCH_MEM_OP_NODE_PARAMS(m,
						      (CUDA_BATCH_MEM_OP_NODE_PARAMS *)&node->memOp);
		break;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		marshal_CUDA_CONDITIONAL_NODE_PARAMS(m, &node->conditional);
		break;
	case CU_GRAPH_NODE_TYPE_EMPTY:
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		break;
	default:
		/* Semaphores of other APIs have no names here. */
		marshal_fail(m, CUDA_ERROR_NOT_SUPPORTED);
		break;
	}
	m->depth--;
}

#undef WALK

#endif
