/* edges.h - the edges at one end of something in a graph: the nodes, each with
 * its edge data.  Used by nodes, streams that capture, and captured events. */
#ifndef FARBUS_SOFTGPU_DRIVER_EDGES_H
#define FARBUS_SOFTGPU_DRIVER_EDGES_H

#include "../abi.h"

#include <stdbool.h>
#include <stddef.h>

struct CUgraphNode_st;

/* Two arrays side by side, as cuStreamGetCaptureInfo gives them out. */
struct graph_edges {
	struct CUgraphNode_st **nodes;
	CUgraphEdgeData *data;
	size_t count, room;
};

/* False without memory.  Data may be NULL, meaning zeros. */
bool graph_edges_add(struct graph_edges *edges, struct CUgraphNode_st *node,
		     const CUgraphEdgeData *data);
/* The index of a node, or `count`. */
size_t graph_edges_find(const struct graph_edges *edges, const struct CUgraphNode_st *node);
/* Keeps the order of the others. */
void graph_edges_remove(struct graph_edges *edges, size_t index);
/* Add what is not there yet; false without memory. */
bool graph_edges_unite(struct graph_edges *edges, const struct graph_edges *more);
void graph_edges_clear(struct graph_edges *edges);

#endif
