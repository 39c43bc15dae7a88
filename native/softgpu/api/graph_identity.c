/* What identifies graphs, executables and nodes to tools. */
#include "../driver/graph/graph.h"

DRIVER_EXPORT CUresult cuGraphGetId(CUgraph graph, unsigned int *id)
{
	DRIVER_CALL;
	CUresult result = driver_graph_enter(graph);

	if (result)
		return result;
	if (id)
		*id = (unsigned)graph->id;
	driver_graph_unlock();
	return id ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuGraphNodeGetContainingGraph(CUgraphNode node, CUgraph *graph)
{
	DRIVER_CALL;
	CUresult result = driver_graph_enter_node(node);

	if (result)
		return result;
	if (graph)
		*graph = node->graph;
	driver_graph_unlock();
	return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Among the nodes of its graph. */
DRIVER_EXPORT CUresult cuGraphNodeGetLocalId(CUgraphNode node, unsigned int *id)
{
	DRIVER_CALL;
	CUresult result = driver_graph_enter_node(node);

	if (result)
		return result;
	if (id)
		*id = (unsigned)(node->id - node->graph->id);
	driver_graph_unlock();
	return id ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Among all nodes of the process. */
DRIVER_EXPORT CUresult cuGraphNodeGetToolsId(CUgraphNode node, unsigned long long *id)
{
	DRIVER_CALL;
	CUresult result = driver_graph_enter_node(node);

	if (result)
		return result;
	if (id)
		*id = node->id;
	driver_graph_unlock();
	return id ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
