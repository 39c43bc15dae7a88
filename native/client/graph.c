/* Graphs: what their calls need beyond travelling as they are. */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>

#include "marshal.h"

/* The addresses that a node allocates are reserved here, as all of the device's are.  They
 * may not be free here: then the node must go again, for the graph has none other. */
static CUresult node_addresses(CUgraphNode node, CUdeviceptr address, size_t bytes)
{
	const struct client_range range = {
		.kind = MEMORY_DEVICE,
		.base = address,
		.bytes = bytes,
		.context = client_context_current(),
		/* When the graph is gone nobody says so: what comes here next takes its place. */
		.graph = true,
	};
	int rc = client_memory_add(&range);

	if (!rc)
		return CUDA_SUCCESS;
	client_message("the addresses of a graph's allocation are in use in this process");
	cuGraphDestroyNode(node);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				const CUgraphNode *dependencies, size_t numDependencies,
				CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
	const CUmemAccessDesc *access = nodeParams ? nodeParams->accessDescs : NULL;
	CUresult result = client_raw_cuGraphAddMemAllocNode(phGraphNode, hGraph, dependencies,
							    numDependencies, nodeParams);

	if (nodeParams)
		nodeParams->accessDescs = access;
	if (result == CUDA_SUCCESS)
		result = node_addresses(*phGraphNode, nodeParams->dptr, nodeParams->bytesize);
	return result;
}

/* What a call wrote into a node's parameters, but not the pointers that the caller put there. */
static CUresult node_added(CUresult result, CUgraphNode *node, CUgraphNodeParams *params,
			   const CUgraphNodeParams *before)
{
	CUdeviceptr address;

	if (!params)
		return result;
	address = params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? params->alloc.dptr : 0;
	*params = *before;
	if (result != CUDA_SUCCESS || params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		return result;
	params->alloc.dptr = address;
	return node_addresses(*node, address, params->alloc.bytesize);
}

CUresult cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
			size_t numDependencies, CUgraphNodeParams *nodeParams)
{
	CUgraphNodeParams before = nodeParams ? *nodeParams : (CUgraphNodeParams){ 0 };

	return node_added(client_raw_cuGraphAddNode(phGraphNode, hGraph, dependencies,
						    numDependencies, nodeParams),
			  phGraphNode, nodeParams, &before);
}

CUresult cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
			   const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
			   size_t numDependencies, CUgraphNodeParams *nodeParams)
{
	CUgraphNodeParams before = nodeParams ? *nodeParams : (CUgraphNodeParams){ 0 };

	return node_added(client_raw_cuGraphAddNode_v2(phGraphNode, hGraph, dependencies,
						       dependencyData, numDependencies, nodeParams),
			  phGraphNode, nodeParams, &before);
}

CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char *path, unsigned int flags)
{
	const struct wire_graph_dot fixed = { .graph = (uint64_t)(uintptr_t)hGraph, .flags = flags };
	const struct client_request request = {
		.op = WIRE_OP_GRAPH_DOT,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_wait wait = { .want_tail = true };
	CUresult result = client_enter_any();
	FILE *file;

	if (result != CUDA_SUCCESS)
		return result;
	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	result = client_call_wide(&request, &wait);
	if (result == CUDA_SUCCESS) {
		file = fopen(path, "we");
		if (!file || fwrite(wait.tail, 1, wait.tail_bytes, file) != wait.tail_bytes)
			result = CUDA_ERROR_OPERATING_SYSTEM;
		if (file && fclose(file))
			result = CUDA_ERROR_OPERATING_SYSTEM;
	}
	free(wait.tail);
	return result;
}

static void nothing(void *unused)
{
	(void)unused;
}

CUresult cuGraphLaunch(CUgraphExec hGraph, CUstream hStream)
{
	CUresult result = client_raw_cuGraphLaunch(hGraph, hStream);

	/* The graph may ask this process for something.  What comes behind it in the stream
	 * is paced as behind a host function (client_stream_pace): so there is one. */
	if (result == CUDA_SUCCESS && client_host_kept())
		cuLaunchHostFunc(hStream, nothing, NULL);
	return result;
}

CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy,
			    unsigned int initialRefcount, unsigned int flags)
{
	struct wire_user_object_create request = { .count = initialRefcount, .flags = flags };
	struct wire_user_object_create_reply reply = { 0 };
	CUresult result = client_enter_any();

	if (result != CUDA_SUCCESS)
		return result;
	if (!object_out || !destroy)
		return CUDA_ERROR_INVALID_VALUE;
	result = client_host_once(destroy, ptr, &request.token);
	if (result != CUDA_SUCCESS)
		return result;
	result = client_call(WIRE_OP_USER_OBJECT_CREATE, &request, sizeof(request), &reply,
			     sizeof(reply));
	if (result == CUDA_SUCCESS)
		*object_out = (CUuserObject)(uintptr_t)reply.object;
	else
		client_host_drop(request.token);
	return result;
}
