/* Which nodes a graph has, and which edges.
 *
 * Every query fills what there is room for, NULL in what is left over, and says how many there
 * are when it is asked without room.  Edges with data need room for the data too:
 * CUDA_ERROR_LOSSY_QUERY. */
#include "../driver/graph/graph.h"

#include <string.h>

struct listing {
	size_t room, count;
	bool lossy;
	CUgraphNode *first, *second;	/* second: the other end of edges */
	CUgraphEdgeData *data;
};

static void list(struct listing *listing, CUgraphNode first, CUgraphNode second,
		 const CUgraphEdgeData *data)
{
	static const CUgraphEdgeData zeros;
	size_t at = listing->count++;

	if (!listing->first || at >= listing->room)
		return;
	listing->first[at] = first;
	if (listing->second)
		listing->second[at] = second;
	if (listing->data)
		listing->data[at] = data ? *data : zeros;
	else if (data && memcmp(data, &zeros, sizeof zeros))
		listing->lossy = true;
}

static CUresult list_end(struct listing *listing, size_t *count)
{
	if (listing->first) {
		for (size_t i = listing->count; i < listing->room; i++)
			listing->first[i] = NULL;
		for (size_t i = listing->count; i < listing->room && listing->second; i++)
			listing->second[i] = NULL;
		if (listing->lossy)
			return CUDA_ERROR_LOSSY_QUERY;
	}
	*count = !listing->first || listing->count < listing->room ? listing->count : listing->room;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	DRIVER_CALL;
	CUresult result = driver_graph_enter(graph);

	if (result)
		return result;
	if (count) {
		struct listing listing = { .room = *count, .first = nodes };

		for (CUgraphNode node = graph->first; node; node = node->next)
			list(&listing, node, NULL, NULL);
		result = list_end(&listing, count);
	} else {
		result = CUDA_ERROR_INVALID_VALUE;
	}
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	DRIVER_CALL;
	CUresult result = driver_graph_enter(graph);

	if (result)
		return result;
	if (count) {
		struct listing listing = { .room = *count, .first = nodes };

		for (CUgraphNode node = graph->first; node; node = node->next) {
			if (!node->dependencies.count)
				list(&listing, node, NULL, NULL);
		}
		result = list_end(&listing, count);
	} else {
		result = CUDA_ERROR_INVALID_VALUE;
	}
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
					  CUgraphEdgeData *data, size_t *count)
{
	DRIVER_CALL;
	CUresult result = driver_graph_enter(graph);

	if (result)
		return result;
	if (count && !from == !to && (from || !data)) {
		struct listing listing = {
			.room = *count, .first = from, .second = to, .data = data,
		};

		for (CUgraphNode node = graph->first; node; node = node->next) {
			for (size_t i = 0; i < node->dependents.count; i++)
				list(&listing, node, node->dependents.nodes[i],
				     &node->dependents.data[i]);
		}
		result = list_end(&listing, count);
	} else {
		result = CUDA_ERROR_INVALID_VALUE;
	}
	driver_graph_unlock();
	return result;
}

static CUresult list_edges(const struct graph_edges *edges, CUgraphNode *nodes,
			   CUgraphEdgeData *data, size_t *count)
{
	struct listing listing;

	if (!count || (data && !nodes))
		return CUDA_ERROR_INVALID_VALUE;
	listing = (struct listing){ .room = *count, .first = nodes, .data = data };
	for (size_t i = 0; i < edges->count; i++)
		list(&listing, edges->nodes[i], NULL, &edges->data[i]);
	return list_end(&listing, count);
}

DRIVER_EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes,
						     CUgraphEdgeData *data, size_t *count)
{
	DRIVER_CALL;
	CUresult result = driver_graph_enter_node(node);

	if (result)
		return result;
	result = list_edges(&node->dependencies, nodes, data, count);
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes,
						       CUgraphEdgeData *data, size_t *count)
{
	DRIVER_CALL;
	CUresult result = driver_graph_enter_node(node);

	if (result)
		return result;
	result = list_edges(&node->dependents, nodes, data, count);
	driver_graph_unlock();
	return result;
}
