/* Graphs: what their calls need beyond travelling as they are. */
#include "../../generated/client_raw.h"
#include "../addresses/pinned.h"
#include "../addresses/ranges.h"
#include "../exchange/exchange.h"
#include "../exchange/jobs.h"
#include "../exchange/pace.h"
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../handles/conditional.h"
#include "../handles/graphs.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "../managed/managed.h"
#include "../managed/words.h"
#include "../streams/host.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- copy nodes that name memory of this process ----
 *
 * Such a node is a child graph, captured: the copy and a host function that asks for the
 * bytes or sends them.  The driver does not know that it is a copy: so that is kept here, as long as node and graph are
 * there. */

struct host_copy {
	struct host_copy *next;
	CUgraphNode node;
	CUgraph graph;			/* that the node is in */
	CUDA_MEMCPY3D params;
};

static struct host_copy *host_copies;
static pthread_mutex_t host_copies_lock = PTHREAD_MUTEX_INITIALIZER;

static bool host_copy_find(CUgraphNode node, CUDA_MEMCPY3D *params)
{
	const struct host_copy *copy;

	pthread_mutex_lock(&host_copies_lock);
	for (copy = host_copies; copy && copy->node != node; copy = copy->next)
		;
	if (copy)
		*params = copy->params;
	pthread_mutex_unlock(&host_copies_lock);
	return copy != NULL;
}

/* The graph, or the node, is no more. */
static void host_copies_forget(CUgraph graph, CUgraphNode node)
{
	struct host_copy **link = &host_copies, *copy;

	pthread_mutex_lock(&host_copies_lock);
	while ((copy = *link)) {
		if ((!graph || copy->graph != graph) && (!node || copy->node != node)) {
			link = &copy->next;
			continue;
		}
		*link = copy->next;
		free(copy);
	}
	pthread_mutex_unlock(&host_copies_lock);
}

/* Does it name memory that is this process's alone? */
static bool names_host(const CUDA_MEMCPY3D *params)
{
	return params && (client_memory_is_host(params->srcMemoryType, params->srcDevice) ||
			  client_memory_is_host(params->dstMemoryType, params->dstDevice));
}

/* As the server has it: pinned memory that is mapped is named as the device's; NULL of NULL. */
static const CUDA_MEMCPY3D *copy_there(const CUDA_MEMCPY3D *params, CUDA_MEMCPY3D *there)
{
	if (!params)
		return NULL;
	*there = *params;
	client_pinned_sides(there);
	return there;
}

/* A graph of the copy alone. */
static CUresult copy_capture(const CUDA_MEMCPY3D *params, CUcontext context, CUgraph *graph)
{
	const CUDA_MEMCPY2D rows = {
		.srcXInBytes = params->srcXInBytes,
		.srcY = params->srcY,
		.srcMemoryType = params->srcMemoryType,
		.srcHost = params->srcHost,
		.srcDevice = params->srcDevice,
		.srcPitch = params->srcPitch,
		.dstXInBytes = params->dstXInBytes,
		.dstY = params->dstY,
		.dstMemoryType = params->dstMemoryType,
		.dstHost = params->dstHost,
		.dstDevice = params->dstDevice,
		.dstPitch = params->dstPitch,
		.WidthInBytes = params->WidthInBytes,
		.Height = params->Height,
	};
	CUresult ended, result = CUDA_SUCCESS;
	CUcontext popped;
	CUstream stream;

	if (params->srcLOD || params->dstLOD)
		return CUDA_ERROR_INVALID_VALUE;
	if (params->Depth > 1 || params->srcZ || params->dstZ ||
	    params->srcMemoryType == CU_MEMORYTYPE_ARRAY ||
	    params->dstMemoryType == CU_MEMORYTYPE_ARRAY) {
		client_message("a graph's copy node between memory of this process and an array or "
			       "a volume is not supported over remoting");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (!context)
		result = cuCtxGetCurrent(&context);
	if (result == CUDA_SUCCESS)
		result = cuCtxPushCurrent_v2(context);
	if (result != CUDA_SUCCESS)
		return result;
	result = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	if (result == CUDA_SUCCESS) {
		result = cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
		if (result == CUDA_SUCCESS) {
			result = cuMemcpy2DAsync_v2(&rows, stream);
			ended = cuStreamEndCapture(stream, graph);
			result = result == CUDA_SUCCESS ? ended : result;
		}
		cuStreamDestroy_v2(stream);
	}
	cuCtxPopCurrent_v2(&popped);
	return result;
}

static CUresult host_copy_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
			      const CUgraphEdgeData *edges, size_t count,
			      const CUDA_MEMCPY3D *params, CUcontext context)
{
	CUgraphNodeParams child = { .type = CU_GRAPH_NODE_TYPE_GRAPH };
	struct host_copy *copy;
	CUgraph captured;
	CUresult result;

	if (!node)
		return CUDA_ERROR_INVALID_VALUE;
	if (client_graph_is_body(graph))
		return client_body_refuse();
	copy = calloc(1, sizeof(*copy));
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = copy_capture(params, context, &captured);
	if (result != CUDA_SUCCESS) {
		free(copy);
		return result;
	}
	child.graph.graph = captured;
	if (edges)
		result = client_raw_cuGraphAddNode_v2(node, graph, dependencies, edges, count, &child);
	else
		result = cuGraphAddChildGraphNode(node, graph, dependencies, count, captured);
	cuGraphDestroy(captured);
	if (result != CUDA_SUCCESS) {
		free(copy);
		return result;
	}
	copy->node = *node;
	copy->graph = graph;
	copy->params = *params;
	pthread_mutex_lock(&host_copies_lock);
	copy->next = host_copies;
	host_copies = copy;
	pthread_mutex_unlock(&host_copies_lock);
	return CUDA_SUCCESS;
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			      const CUgraphNode *dependencies, size_t numDependencies,
			      const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
	CUDA_MEMCPY3D kept;
	const CUDA_MEMCPY3D *there = copy_there(copyParams, &kept);

	if (names_host(there))
		return host_copy_add(phGraphNode, hGraph, dependencies, NULL, numDependencies,
				     copyParams, ctx);
	return client_raw_cuGraphAddMemcpyNode(phGraphNode, hGraph, dependencies, numDependencies,
					       there, ctx);
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams)
{
	CUDA_MEMCPY3D kept;
	CUresult result;

	if (nodeParams && host_copy_find(hNode, &kept)) {
		*nodeParams = kept;
		return CUDA_SUCCESS;
	}
	result = client_raw_cuGraphMemcpyNodeGetParams(hNode, nodeParams);
	if (result == CUDA_SUCCESS)
		client_pinned_sides_here(nodeParams);
	return result;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
	CUDA_MEMCPY3D kept, there;

	nodeParams = copy_there(nodeParams, &there);
	if (!nodeParams || (!names_host(nodeParams) && !host_copy_find(hNode, &kept)))
		return client_raw_cuGraphMemcpyNodeSetParams(hNode, nodeParams);
	client_message("a graph's copy node that names memory of this process can't be changed over "
		       "remoting: make a new node");
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
	CUDA_MEMCPY3D kept, there;
	CUgraph captured;
	CUresult result;

	if (!copyParams || !host_copy_find(hNode, &kept)) {
		copyParams = copy_there(copyParams, &there);
		/* The server can't look at it, and it was none before. */
		if (names_host(copyParams))
			return CUDA_ERROR_INVALID_VALUE;
		return client_raw_cuGraphExecMemcpyNodeSetParams(hGraphExec, hNode, copyParams, ctx);
	}
	/* The kind of memory on either side stays, as CUDA has it. */
	if (copyParams->srcMemoryType != kept.srcMemoryType ||
	    copyParams->dstMemoryType != kept.dstMemoryType)
		return CUDA_ERROR_INVALID_VALUE;
	result = copy_capture(copyParams, ctx, &captured);
	if (result == CUDA_SUCCESS)
		result = cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode, captured);
	/* What the executable now asks this process for belongs to the graph, which stays. */
	return result;
}

CUresult cuGraphDestroyNode(CUgraphNode hNode)
{
	CUresult result = client_raw_cuGraphDestroyNode(hNode);

	if (result != CUDA_SUCCESS)
		return result;
	client_conditionals_forget(NULL, hNode);
	host_copies_forget(NULL, hNode);
	return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph hGraph)
{
	CUresult result = client_raw_cuGraphDestroy(hGraph);

	if (result != CUDA_SUCCESS)
		return result;
	client_conditionals_forget(hGraph, NULL);
	host_copies_forget(hGraph, NULL);
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
	CUDA_MEMCPY3D kept;

	if (!type || !host_copy_find(hNode, &kept))
		return client_raw_cuGraphNodeGetType(hNode, type);
	*type = CU_GRAPH_NODE_TYPE_MEMCPY;
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
	CUDA_MEMCPY3D kept;
	CUresult result;

	if (nodeParams && host_copy_find(hNode, &kept)) {
		*nodeParams = (CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_MEMCPY };
		nodeParams->memcpy.copyParams = kept;
		return CUDA_SUCCESS;
	}
	result = client_raw_cuGraphNodeGetParams(hNode, nodeParams);
	if (result == CUDA_SUCCESS && nodeParams->type == CU_GRAPH_NODE_TYPE_MEMCPY)
		client_pinned_sides_here(&nodeParams->memcpy.copyParams);
	else if (result == CUDA_SUCCESS && nodeParams->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
		client_conditional_told(hNode, &nodeParams->conditional);
	return result;
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
	CUresult result = client_words_check(nodeParams);
	CUgraphNodeParams there;
	CUDA_MEMCPY3D kept;

	if (result != CUDA_SUCCESS)
		return result;
	if (!nodeParams || nodeParams->type != CU_GRAPH_NODE_TYPE_MEMCPY)
		return client_raw_cuGraphNodeSetParams(hNode, nodeParams);
	there = *nodeParams;
	client_pinned_sides(&there.memcpy.copyParams);
	if (names_host(&there.memcpy.copyParams) || host_copy_find(hNode, &kept))
		return cuGraphMemcpyNodeSetParams(hNode, &nodeParams->memcpy.copyParams);
	return client_raw_cuGraphNodeSetParams(hNode, &there);
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
	CUresult result = client_words_check(nodeParams);
	CUgraphNodeParams there;
	CUDA_MEMCPY3D kept;

	if (result != CUDA_SUCCESS)
		return result;
	if (!nodeParams || nodeParams->type != CU_GRAPH_NODE_TYPE_MEMCPY)
		return client_raw_cuGraphExecNodeSetParams(hGraphExec, hNode, nodeParams);
	if (host_copy_find(hNode, &kept))
		return cuGraphExecMemcpyNodeSetParams(hGraphExec, hNode, &nodeParams->memcpy.copyParams,
						      nodeParams->memcpy.copyCtx);
	there = *nodeParams;
	client_pinned_sides(&there.memcpy.copyParams);
	return client_raw_cuGraphExecNodeSetParams(hGraphExec, hNode, &there);
}

/* ---- nodes of any kind ---- */

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

/* Is it a copy that names memory that is this process's alone?  Else what is mapped is named as the server has it,
 * until node_added. */
static bool node_names_host(CUgraphNodeParams *params, const CUgraphNodeParams *before)
{
	bool names;

	if (!params || params->type != CU_GRAPH_NODE_TYPE_MEMCPY)
		return false;
	client_pinned_sides(&params->memcpy.copyParams);
	names = names_host(&params->memcpy.copyParams);
	if (names)
		*params = *before;
	return names;
}

/* What a call wrote into a node's parameters, but not the pointers that the caller put there. */
static CUresult node_added(CUresult result, CUgraphNode *node, CUgraph graph, CUgraphNodeParams *params,
			   const CUgraphNodeParams *before)
{
	CUgraphNodeParams after;

	if (!params)
		return result;
	after = *params;
	*params = *before;
	if (result != CUDA_SUCCESS)
		return result;
	switch (params->type) {
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		params->alloc.dptr = after.alloc.dptr;
		return node_addresses(*node, after.alloc.dptr, params->alloc.bytesize);
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		/* As many as were asked for, whatever a server says. */
		params->conditional.phGraph_out = after.conditional.size == params->conditional.size ?
						  after.conditional.phGraph_out : NULL;
		return client_conditional_added(*node, graph, &params->conditional);
	default:
		return CUDA_SUCCESS;
	}
}

CUresult cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
			size_t numDependencies, CUgraphNodeParams *nodeParams)
{
	CUgraphNodeParams before = nodeParams ? *nodeParams : (CUgraphNodeParams){ 0 };
	CUresult result = client_words_check(nodeParams);

	if (result != CUDA_SUCCESS)
		return result;
	if (node_names_host(nodeParams, &before))
		return host_copy_add(phGraphNode, hGraph, dependencies, NULL, numDependencies,
				     &nodeParams->memcpy.copyParams, nodeParams->memcpy.copyCtx);
	return node_added(client_raw_cuGraphAddNode(phGraphNode, hGraph, dependencies,
						    numDependencies, nodeParams),
			  phGraphNode, hGraph, nodeParams, &before);
}

CUresult cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
			   const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
			   size_t numDependencies, CUgraphNodeParams *nodeParams)
{
	CUgraphNodeParams before = nodeParams ? *nodeParams : (CUgraphNodeParams){ 0 };
	CUresult result = client_words_check(nodeParams);

	if (result != CUDA_SUCCESS)
		return result;
	if (node_names_host(nodeParams, &before))
		return host_copy_add(phGraphNode, hGraph, dependencies, dependencyData,
				     numDependencies, &nodeParams->memcpy.copyParams,
				     nodeParams->memcpy.copyCtx);
	return node_added(client_raw_cuGraphAddNode_v2(phGraphNode, hGraph, dependencies,
						       dependencyData, numDependencies, nodeParams),
			  phGraphNode, hGraph, nodeParams, &before);
}

CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char *path, unsigned int flags)
{
	struct client_session *session;
	const struct wire_graph_dot fixed = {
		.graph = client_named_wire(hGraph, &session),
		.flags = flags,
	};
	const struct client_request request = {
		.op = WIRE_OP_GRAPH_DOT,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_wait wait = { .want_tail = true };
	struct client_route route;
	CUresult result = client_enter_any();
	FILE *file;

	if (result != CUDA_SUCCESS)
		return result;
	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	route = client_route_session(session);
	result = client_call_to(&route, &request, &wait);
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

/* ---- launches (graphs.c) ---- */

struct graph_launch {
	struct wire_graph_launch fixed;
	const struct client_context *context;	/* its stream's */
	enum { LAUNCH_AS_IT_IS, LAUNCH_CHECKED, LAUNCH_POSTED } way;
	uint64_t changes;		/* before it was made */
	bool repeats;			/* it asks nothing of this process */
};

/* As it is travels what is captured, or is an error, or goes to an older server. */
static struct graph_launch graph_launch_begin(CUgraphExec executable, CUstream stream)
{
	struct graph_launch launch = { .way = LAUNCH_AS_IT_IS };
	struct client_session *session;

	if (client_stream_enter(stream, &launch.fixed.stream) != CUDA_SUCCESS ||
	    client_captures())
		return launch;
	launch.fixed.executable = client_named_wire(executable, &session);
	if (session != client_stream_session(launch.fixed.stream) ||
	    !client_session_has(session, WIRE_OP_GRAPH_LAUNCH_CHECKED))
		return launch;
	launch.context = client_stream_context(launch.fixed.stream);
	launch.repeats = client_graph_repeats(executable, launch.context, &launch.changes);
	launch.way = launch.repeats ? LAUNCH_POSTED : LAUNCH_CHECKED;
	return launch;
}

static CUresult graph_launch_check(struct graph_launch *launch, CUgraphExec executable)
{
	struct wire_graph_launch_checked_reply reply = { 0 };
	CUresult result = client_call(WIRE_OP_GRAPH_LAUNCH_CHECKED, &launch->fixed, sizeof(launch->fixed), &reply,
				      sizeof(reply));

	_Static_assert(sizeof(struct wire_graph_launch) == sizeof(struct wire_graph_launch_checked),
		       "the two travel alike");
	launch->repeats = result == CUDA_SUCCESS && reply.repeats;
	if (launch->repeats)
		client_graph_keep(executable, launch->context, launch->changes);
	return result;
}

static CUresult graph_launch_send(struct graph_launch *launch, CUgraphExec executable, CUstream stream)
{
	switch (launch->way) {
	case LAUNCH_POSTED:
		return client_post(WIRE_OP_GRAPH_LAUNCH, &launch->fixed, sizeof(launch->fixed), NULL, 0);
	case LAUNCH_CHECKED:
		return graph_launch_check(launch, executable);
	default:
		return client_raw_cuGraphLaunch(executable, stream);
	}
}

static void nothing(void *unused)
{
	(void)unused;
}

CUresult cuGraphLaunch(CUgraphExec hGraph, CUstream hStream)
{
	struct graph_launch launch = graph_launch_begin(hGraph, hStream);
	CUresult result = CUDA_SUCCESS;
	bool managed = client_managed_any();
	uint64_t stream;

	if (launch.way == LAUNCH_POSTED)
		client_stream_pace(launch.fixed.stream, CLIENT_WEIGHT_WORK, 0);
	managed = managed && client_stream_wire(hStream, &stream) == CUDA_SUCCESS;
	if (managed)
		result = client_managed_before(stream, true);
	if (result == CUDA_SUCCESS)
		result = graph_launch_send(&launch, hGraph, hStream);
	if (managed)
		client_managed_after(stream);
	/* The graph may ask this process for something.  What comes behind it in the stream
	 * is paced as behind a host function (client_stream_pace): so there is one. */
	if (result == CUDA_SUCCESS && !launch.repeats && client_host_kept())
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
		*object_out = (CUuserObject)(uintptr_t)client_named_take(
			client_route_current().session, reply.object);
	else
		client_host_drop(request.token);
	return result;
}
