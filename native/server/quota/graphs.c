/* graphs.c - memory of graphs: nodes say what a graph needs, executables have what the graph itself frees (quota.h). */
#include "../streams/capture.h"
#include "quota.h"
#include "graphs.h"

#include <stdlib.h>

/* A node of a graph that takes memory: its executables have that, not the graph. */
bool quota_node_fits(uint64_t bytes)
{
	return bytes <= quota.limit && quota_used() <= quota.limit - bytes;
}

void quota_node_note(CUgraph graph, CUdeviceptr address, uint64_t bytes)
{
	struct charge *charge = calloc(1, sizeof(*charge));

	if (!charge)
		return;
	charge->kind = NODE;
	charge->key = address;
	charge->owner = (uint64_t)(uintptr_t)graph;
	charge->bytes = bytes;
	quota_put(charge);
}

void quota_node_freed(CUgraph graph, CUdeviceptr address)
{
	struct charge *charge;

	pthread_mutex_lock(&quota.lock);
	for (charge = *quota_bucket(NODE, address); charge; charge = charge->next)
		if (charge->kind == NODE && charge->key == address &&
		    charge->owner == (uint64_t)(uintptr_t)graph)
			charge->freed = true;
	pthread_mutex_unlock(&quota.lock);
}

CUgraph quota_captured(CUstream stream)
{
	return atomic_load(&quota.server->capture_count) ? server_capture_graph(&quota.real, stream) : NULL;
}

static bool is_of_graph(enum charge_kind kind)
{
	return kind == NODE;
}

static CUresult node_add_alloc(CUgraphNode *node, CUgraph graph, const CUgraphNode *behind,
			       size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	CUresult result;

	if (params && !quota_node_fits(params->bytesize))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuGraphAddMemAllocNode(node, graph, behind, count, params);
	if (result == CUDA_SUCCESS)
		quota_node_note(graph, params->dptr, params->bytesize);
	return result;
}

static CUresult node_add_free(CUgraphNode *node, CUgraph graph, const CUgraphNode *behind,
			      size_t count, CUdeviceptr address)
{
	CUresult result = quota.real.cuGraphAddMemFreeNode(node, graph, behind, count, address);

	if (result == CUDA_SUCCESS)
		quota_node_freed(graph, address);
	return result;
}

static bool params_fit(const CUgraphNodeParams *params)
{
	return !params || params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || quota_node_fits(params->alloc.bytesize);
}

/* A child graph that may allocate has become a part of its parent: a copy may not. */
static void nodes_move(CUgraph child, CUgraph parent)
{
	pthread_mutex_lock(&quota.lock);
	for (unsigned i = 0; i < QUOTA_BUCKETS; i++)
		for (struct charge *charge = quota.buckets[i]; charge; charge = charge->next)
			if (charge->kind == NODE && charge->owner == (uint64_t)(uintptr_t)child)
				charge->owner = (uint64_t)(uintptr_t)parent;
	pthread_mutex_unlock(&quota.lock);
}

static CUresult params_note(CUgraph graph, const CUgraphNodeParams *params, CUresult result)
{
	if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		quota_node_note(graph, params->alloc.dptr, params->alloc.bytesize);
	if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
		quota_node_freed(graph, params->free.dptr);
	if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_GRAPH &&
	    params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE)
		nodes_move(params->graph.graph, graph);
	return result;
}

static CUresult node_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *behind, size_t count,
			 CUgraphNodeParams *params)
{
	if (!params_fit(params))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return params_note(graph, params, quota.real.cuGraphAddNode(node, graph, behind, count, params));
}

static CUresult node_add_2(CUgraphNode *node, CUgraph graph, const CUgraphNode *behind,
			   const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params)
{
	if (!params_fit(params))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return params_note(graph, params,
			   quota.real.cuGraphAddNode_v2(node, graph, behind, edges, count, params));
}

/* A graph may go before its executable does: so the charge has all that there is to know.  NULL: no room. */
static struct charge *executable_begin(CUgraph graph)
{
	struct charge *charge, *outlive = NULL;
	uint64_t freed = 0;

	pthread_mutex_lock(&quota.lock);
	for (unsigned i = 0; i < QUOTA_BUCKETS; i++)
		for (const struct charge *node = quota.buckets[i]; node; node = node->next) {
			if (node->kind != NODE || node->owner != (uint64_t)(uintptr_t)graph)
				continue;
			charge = node->freed ? NULL : malloc(sizeof(*charge));
			if (!charge) {
				freed += node->bytes;
				continue;
			}
			*charge = *node;
			charge->next = outlive;
			outlive = charge;
		}
	pthread_mutex_unlock(&quota.lock);
	charge = quota_charge_begin(EXECUTABLE, freed);
	if (charge)
		charge->outlive = outlive;
	else
		quota_list_free(outlive);
	return charge;
}

#define INSTANTIATE(executable, graph, call)						\
	do {										\
		struct charge *charge_;							\
		CUresult result_;							\
											\
		if (!(executable))							\
			return CUDA_ERROR_INVALID_VALUE;				\
		charge_ = executable_begin(graph);					\
		if (!charge_)								\
			return CUDA_ERROR_OUT_OF_MEMORY;				\
		result_ = call;								\
		return quota_charge_end(charge_, result_, (uint64_t)(uintptr_t)*(executable));	\
	} while (0)

static CUresult instantiate_1(CUgraphExec *executable, CUgraph graph, CUgraphNode *failed, char *log,
			      size_t bytes)
{
	INSTANTIATE(executable, graph,
		    quota.real.cuGraphInstantiate(executable, graph, failed, log, bytes));
}

static CUresult instantiate_2(CUgraphExec *executable, CUgraph graph, CUgraphNode *failed, char *log,
			      size_t bytes)
{
	INSTANTIATE(executable, graph,
		    quota.real.cuGraphInstantiate_v2(executable, graph, failed, log, bytes));
}

static CUresult instantiate_flags(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
	INSTANTIATE(executable, graph,
		    quota.real.cuGraphInstantiateWithFlags(executable, graph, flags));
}

static CUresult instantiate_params(CUgraphExec *executable, CUgraph graph,
				   CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	INSTANTIATE(executable, graph,
		    quota.real.cuGraphInstantiateWithParams(executable, graph, params));
}

/* What a launch takes for good: it is there until somebody frees it, whatever becomes of the executable.
 * False: there is no room. */
static bool launch_begin(CUgraphExec executable, struct charge **taken)
{
	const struct charge *node;
	struct charge *charge;
	bool fits = true;

	*taken = NULL;
	pthread_mutex_lock(&quota.lock);
	charge = *quota_find(EXECUTABLE, (uint64_t)(uintptr_t)executable);
	for (node = charge ? charge->outlive : NULL; node && fits; node = node->next) {
		/* Launched before, it is there already, or freed by this launch first. */
		if (*quota_find(POOLED, node->key))
			continue;
		charge = quota_charge_begin(POOLED, node->bytes);
		fits = charge;
		if (!charge)
			break;
		charge->key = node->key;
		charge->next = *taken;
		*taken = charge;
	}
	pthread_mutex_unlock(&quota.lock);
	return fits;
}

static CUresult graph_launch(CUgraphExec executable, CUstream stream)
{
	struct charge *taken, *charge;
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (quota_captured(stream))
		return quota.real.cuGraphLaunch(executable, stream);
	if (launch_begin(executable, &taken))
		result = quota.real.cuGraphLaunch(executable, stream);
	while ((charge = taken)) {
		taken = charge->next;
		(void)quota_charge_end(charge, result, charge->key);
	}
	return result;
}

static CUresult executable_destroy(CUgraphExec executable)
{
	QUOTA_GIVE_BACK(EXECUTABLE, (uintptr_t)executable, quota.real.cuGraphExecDestroy(executable));
}

static CUresult graph_destroy(CUgraph graph)
{
	/* Before another graph has its address. */
	quota_drop_owner(is_of_graph, (uint64_t)(uintptr_t)graph);
	return quota.real.cuGraphDestroy(graph);
}

/* A capture that is broken off takes its graph with it, and says nothing of that. */
static CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode)
{
	CUresult result = quota.real.cuStreamBeginCapture_v2(stream, mode);

	if (result == CUDA_SUCCESS)
		quota_drop_owner(is_of_graph, (uint64_t)(uintptr_t)server_capture_graph(&quota.real, stream));
	return result;
}

static CUresult graph_create(CUgraph *graph, unsigned int flags)
{
	CUresult result = quota.real.cuGraphCreate(graph, flags);

	if (result == CUDA_SUCCESS)
		quota_drop_owner(is_of_graph, (uint64_t)(uintptr_t)*graph);
	return result;
}

void quota_graphs_install(struct server_driver *driver)
{
	QUOTA_INSTEAD(cuStreamBeginCapture_v2, capture_begin);
	QUOTA_INSTEAD(cuGraphCreate, graph_create);
	QUOTA_INSTEAD(cuGraphAddMemAllocNode, node_add_alloc);
	QUOTA_INSTEAD(cuGraphAddMemFreeNode, node_add_free);
	QUOTA_INSTEAD(cuGraphAddNode, node_add);
	QUOTA_INSTEAD(cuGraphAddNode_v2, node_add_2);
	QUOTA_INSTEAD(cuGraphInstantiate, instantiate_1);
	QUOTA_INSTEAD(cuGraphInstantiate_v2, instantiate_2);
	QUOTA_INSTEAD(cuGraphInstantiateWithFlags, instantiate_flags);
	QUOTA_INSTEAD(cuGraphInstantiateWithParams, instantiate_params);
	QUOTA_INSTEAD(cuGraphLaunch, graph_launch);
	QUOTA_INSTEAD(cuGraphExecDestroy, executable_destroy);
	QUOTA_INSTEAD(cuGraphDestroy, graph_destroy);
}
