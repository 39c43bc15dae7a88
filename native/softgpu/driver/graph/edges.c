#include "edges.h"

#include <stdlib.h>
#include <string.h>

bool graph_edges_add(struct graph_edges *edges, struct CUgraphNode_st *node,
		     const CUgraphEdgeData *data)
{
	if (edges->count == edges->room) {
		size_t room = edges->room ? 2 * edges->room : 2;
		struct CUgraphNode_st **nodes = realloc(edges->nodes, room * sizeof *nodes);
		CUgraphEdgeData *more;

		if (!nodes)
			return false;
		edges->nodes = nodes;
		more = realloc(edges->data, room * sizeof *more);
		if (!more)
			return false;
		edges->data = more;
		edges->room = room;
	}
	edges->nodes[edges->count] = node;
	edges->data[edges->count++] = data ? *data : (CUgraphEdgeData){ 0 };
	return true;
}

size_t graph_edges_find(const struct graph_edges *edges, const struct CUgraphNode_st *node)
{
	size_t i = 0;

	while (i < edges->count && edges->nodes[i] != node)
		i++;
	return i;
}

void graph_edges_remove(struct graph_edges *edges, size_t index)
{
	size_t after = --edges->count - index;

	memmove(edges->nodes + index, edges->nodes + index + 1, after * sizeof *edges->nodes);
	memmove(edges->data + index, edges->data + index + 1, after * sizeof *edges->data);
}

bool graph_edges_unite(struct graph_edges *edges, const struct graph_edges *more)
{
	for (size_t i = 0; i < more->count; i++) {
		if (graph_edges_find(edges, more->nodes[i]) == edges->count &&
		    !graph_edges_add(edges, more->nodes[i], &more->data[i]))
			return false;
	}
	return true;
}

void graph_edges_clear(struct graph_edges *edges)
{
	free(edges->nodes);
	free(edges->data);
	*edges = (struct graph_edges){ 0 };
}
