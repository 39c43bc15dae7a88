/* conditional.h - conditional nodes of graphs, and their bodies (conditional.c). */
#ifndef FARBUS_CLIENT_CONDITIONAL_H
#define FARBUS_CLIENT_CONDITIONAL_H

#include "../client.h"

/* A conditional node was added: the array of its bodies is from now on there as long as the node.  Without memory
 * the node goes again. */
CUresult client_conditional_added(CUgraphNode node, CUgraph graph, CUDA_CONDITIONAL_NODE_PARAMS *params);
/* That array, in what the server has told of a node. */
void client_conditional_told(CUgraphNode node, CUDA_CONDITIONAL_NODE_PARAMS *params);
/* The graph, or the node, is no more (NULL: none): its conditional nodes and their bodies are none. */
void client_conditionals_forget(CUgraph graph, CUgraphNode node);
/* Is there any such node?  Is the graph a body of one? */
bool client_conditional_any(void);
bool client_graph_is_body(CUgraph graph);
/* Say that a body can't have what this process has to take part in: CUDA_ERROR_NOT_SUPPORTED. */
CUresult client_body_refuse(void);

#endif
