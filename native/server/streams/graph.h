/* graph.h - graphs (graph.c). */
#ifndef FARBUS_SERVER_GRAPH_H
#define FARBUS_SERVER_GRAPH_H

#include "../server_ops.h"

/* The driver has made `executable` of `graph`, and it was just named. */
void server_graph_instantiated(struct server_call *call, CUgraph graph, CUgraphExec executable,
			       uint64_t wire);

#endif
