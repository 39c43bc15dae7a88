/* update.h - what an executable can be changed to; with the graph lock. */
#ifndef FARBUS_SOFTGPU_DRIVER_GRAPH_UPDATE_H
#define FARBUS_SOFTGPU_DRIVER_GRAPH_UPDATE_H

#include "graph.h"

/* May an executable's node have this payload instead? */
CUgraphExecUpdateResult driver_graph_update_check(const struct graph_payload *now,
						  const struct graph_payload *wanted);
/* As cuGraphExecUpdate, within a child graph.  What the graph kept before is added to *former, for
 * driver_graph_exec_keep. */
CUresult driver_graph_update(struct CUgraph_st *into, const struct CUgraph_st *from,
			     CUgraphExecUpdateResultInfo *info, struct user_reference **former);

#endif
