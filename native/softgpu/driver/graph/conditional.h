/* conditional.h - conditional nodes; with the graph lock. */
#ifndef FARBUS_SOFTGPU_DRIVER_GRAPH_CONDITIONAL_H
#define FARBUS_SOFTGPU_DRIVER_GRAPH_CONDITIONAL_H

#include "graph.h"

void driver_graph_conditional_describe(struct graph_conditional *conditional,
				       CUDA_CONDITIONAL_NODE_PARAMS *params);
/* The same choice, by a condition of the same context? */
bool driver_graph_conditional_is_alike(const struct graph_conditional *now,
				       const struct graph_conditional *wanted);
/* Choose by the other's condition from now on. */
void driver_graph_conditional_follow(struct graph_conditional *conditional,
				     const struct graph_conditional *other);
/* Is there a condition, of this graph or one in it, that no node chooses by? */
bool driver_graph_has_unused_condition(const struct CUgraph_st *graph);
/* A node in some body that can't be there; NULL: all can. */
struct CUgraphNode_st *driver_graph_unfit_node(const struct CUgraph_st *graph);

#endif
