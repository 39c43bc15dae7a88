/* condition.h - conditions: values that kernels set and that conditional nodes choose by.
 *
 * With the graph lock, unless it says otherwise.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_GRAPH_CONDITION_H
#define FARBUS_SOFTGPU_DRIVER_GRAPH_CONDITION_H

#include "../context.h"

struct CUgraph_st;

/* A value that conditional nodes choose by; its address is the handle that programs and kernels have. */
struct graph_condition {
	unsigned references;		/* of the graph that it was made for, and of nodes */
	struct graph_condition *next;	/* of that graph */
	struct CUgraph_st *graph;	/* NULL: it is gone */
	struct CUctx_st *context;	/* held */
	unsigned nodes;			/* of the program's graphs, that choose by it */
	unsigned first_value;		/* of each launch, where that is asked for */
	bool is_reset;
	uint32_t value;			/* atomic */
};

/* A condition of the graph, which has it until the graph goes. */
CUresult driver_graph_condition_make(struct CUgraph_st *graph, struct CUctx_st *context, unsigned value,
				     unsigned flags, CUgraphConditionalHandle *handle);
/* NULL: it is no handle. */
struct graph_condition *driver_graph_condition_of(uint64_t handle);
void driver_graph_condition_hold(struct graph_condition *condition);
void driver_graph_condition_drop(struct graph_condition *condition);
/* The graph goes, and with it what was made for it. */
void driver_graph_conditions_end(struct CUgraph_st *graph);
/* Without the lock: as a launch begins, and while it runs. */
void driver_graph_condition_reset(struct graph_condition *condition);
unsigned driver_graph_condition_value(const struct graph_condition *condition);
/* Without the lock, by a kernel of that context; false: it is no handle there. */
bool driver_graph_condition_set(const struct CUctx_st *context, uint64_t handle, uint32_t value);

#endif
