/* exec.h - executable graphs; with the graph lock. */
#ifndef FARBUS_SOFTGPU_DRIVER_GRAPH_EXEC_H
#define FARBUS_SOFTGPU_DRIVER_GRAPH_EXEC_H

#include "plan.h"

struct CUgraphExec_st {
	struct CUgraphExec_st *next;	/* of all */
	unsigned references;		/* of the handle, and launches under way */
	struct CUgraph_st *graph;	/* private */
	cuuint64_t flags;
	struct graph_plan *plan;	/* NULL: to be made */
	struct driver_point last;	/* the last launch's end */
	struct CUgraphNode_st **index;	/* with those of child graphs, by origin */
	size_t index_count;
};

/* Ready, and an executable, else CUDA_ERROR_INVALID_VALUE; on success the lock is held. */
CUresult driver_graph_exec_enter(CUgraphExec executable);
/* Made of a graph; or what is wrong with that, also in params. */
CUresult driver_graph_exec_make(struct CUgraph_st *graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params,
				CUgraphExec *out);
void driver_graph_exec_drop(struct CUgraphExec_st *executable);
/* Lets go of the lock, in every case. */
CUresult driver_graph_exec_launch(struct CUgraphExec_st *executable, struct CUstream_st *stream);

/* The node that a node of its graph became, or NULL. */
struct CUgraphNode_st *driver_graph_exec_find(struct CUgraphExec_st *executable,
					      const struct CUgraphNode_st *node);
/* The graph has changed: the next launch plans anew. */
void driver_graph_exec_changed(struct CUgraphExec_st *executable);
/* What it kept before it was updated: for launches under way, until they end.  Before driver_graph_exec_changed. */
void driver_graph_exec_keep(struct CUgraphExec_st *executable, struct user_reference *former);

#endif
