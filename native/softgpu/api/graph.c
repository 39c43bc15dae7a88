#include "../driver/graph/graph.h"

#include "../driver/handle.h"

#include <string.h>

/* ---- graphs and nodes ---- */

DRIVER_EXPORT CUresult cuGraphCreate(CUgraph *out, unsigned int flags)
{
	DRIVER_CALL;
	CUresult result = driver_ready();
	struct CUgraph_st *graph;

	if (result)
		return result;
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	driver_graph_lock();
	graph = driver_graph_make(false);
	driver_graph_unlock();
	if (!graph)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = graph;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
	DRIVER_CALL;
	CUresult result = driver_graph_enter(graph);

	if (result)
		return result;
	if (graph->parent || driver_graph_is_captured(graph))
		result = CUDA_ERROR_INVALID_VALUE;
	else
		driver_graph_free(graph);
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuGraphClone(CUgraph *out, CUgraph graph)
{
	DRIVER_CALL;
	CUresult result = driver_graph_enter(graph);

	if (result)
		return result;
	result = !out ? CUDA_ERROR_INVALID_VALUE :
		 driver_graph_has_memory(graph) || driver_graph_has_conditional(graph) ?
		 CUDA_ERROR_NOT_SUPPORTED : driver_graph_copy(graph, false, out);
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode node, CUgraph clone)
{
	DRIVER_CALL;
	CUresult result = driver_graph_enter_node(node);
	struct CUgraphNode_st *found;

	if (result)
		return result;
	result = CUDA_ERROR_INVALID_VALUE;
	if (out && driver_handle_is(clone, DRIVER_KIND_GRAPH)) {
		for (found = clone->first; found && found->origin != node->id; found = found->next)
			;
		if (found) {
			*out = found;
			result = CUDA_SUCCESS;
		}
	}
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuGraphDestroyNode(CUgraphNode node)
{
	DRIVER_CALL;
	CUresult result = driver_graph_enter_node(node);

	if (result)
		return result;
	if (node->graph->captures || driver_graph_is_captured_below(node))
		result = CUDA_ERROR_INVALID_VALUE;
	else if (driver_graph_has_memory(node->graph))
		result = CUDA_ERROR_NOT_SUPPORTED;
	if (!result)
		driver_graph_remove(node);
	driver_graph_unlock();
	return result;
}

/* ---- dependencies ---- */

/* From every `from` to the `to` beside it, all or none. */
static CUresult check_pairs(const struct CUgraph_st *graph, const CUgraphNode *from,
			    const CUgraphNode *to, const CUgraphEdgeData *data, size_t count)
{
	if (count && (!from || !to))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (!driver_handle_is(from[i], DRIVER_KIND_GRAPH_NODE) ||
		    !driver_handle_is(to[i], DRIVER_KIND_GRAPH_NODE) || from[i] == to[i] ||
		    from[i]->graph != graph || to[i]->graph != graph ||
		    (data && !driver_graph_edge_is_valid(&data[i])))
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from,
						 const CUgraphNode *to,
						 const CUgraphEdgeData *data, size_t count)
{
	DRIVER_CALL;
	CUresult result = driver_graph_enter(graph);
	size_t done = 0;

	if (result)
		return result;
	result = check_pairs(graph, from, to, data, count);
	for (; done < count && !result; done++) {
		if (graph_edges_find(&from[done]->dependents, to[done]) !=
		    from[done]->dependents.count)
			result = CUDA_ERROR_INVALID_VALUE;
		else if (!driver_graph_connect(from[done], to[done], data ? &data[done] : NULL))
			result = CUDA_ERROR_OUT_OF_MEMORY;
		if (result)
			break;
	}
	while (result && done--)
		driver_graph_disconnect(from[done], to[done]);
	driver_graph_unlock();
	return result;
}

/* Is there such an edge, with this data? */
static bool is_connected(const struct CUgraphNode_st *from, const struct CUgraphNode_st *to,
			 const CUgraphEdgeData *data)
{
	static const CUgraphEdgeData zeros;
	size_t at = graph_edges_find(&from->dependents, to);

	return at < from->dependents.count &&
	       !memcmp(&from->dependents.data[at], data ? data : &zeros, sizeof zeros);
}

DRIVER_EXPORT CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from,
						    const CUgraphNode *to,
						    const CUgraphEdgeData *data, size_t count)
{
	DRIVER_CALL;
	CUresult result = driver_graph_enter(graph);

	if (result)
		return result;
	result = check_pairs(graph, from, to, data, count);
	if (!result && count && driver_graph_has_memory(graph))
		result = CUDA_ERROR_NOT_SUPPORTED;
	for (size_t i = 0; i < count && !result; i++) {
		if (!is_connected(from[i], to[i], data ? &data[i] : NULL))
			result = CUDA_ERROR_INVALID_VALUE;
	}
	for (size_t i = 0; i < count && !result; i++) {
		/* The same pair may have been given twice. */
		if (is_connected(from[i], to[i], data ? &data[i] : NULL))
			driver_graph_disconnect(from[i], to[i]);
	}
	driver_graph_unlock();
	return result;
}
