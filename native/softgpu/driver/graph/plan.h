/* plan.h - what launches of an executable graph do.
 *
 * A plan has the nodes one after another, in an order that respects the edges: kernels spread over all workers by themselves.
 * A conditional node is one of its steps, with a plan for each of its bodies.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_GRAPH_PLAN_H
#define FARBUS_SOFTGPU_DRIVER_GRAPH_PLAN_H

#include "graph.h"

struct graph_choice;

/* One thing that a launch does: run work, record or wait for an event, or choose. */
struct graph_step {
	struct graph_work *work;	/* held; NULL for the others */
	CUgraphNodeType type;
	CUevent event;
	struct graph_choice *choice;
};

/* What launches do, until the executable is changed. */
struct graph_plan {
	unsigned references;		/* atomic: of the executable, and launches under way */
	bool has_host;			/* calls functions of the program's */
	size_t count, room;
	struct graph_step *steps;
	/* Allocations that outlive a launch, and that it frees though another made them. */
	size_t take_count, give_count, allocation_room;
	struct graph_allocation **takes, **gives;	/* the nodes hold them */
	struct user_reference *former;	/* what the executable kept before it was updated */
};

static inline bool driver_graph_step_is_of_event(const struct graph_step *step)
{
	return step->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD || step->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT;
}

/* With the graph lock.  CUDA_ERROR_INVALID_VALUE: a ring, on which *error lies. */
CUresult driver_graph_plan_make(struct CUgraph_st *graph, struct graph_plan **out, struct CUgraphNode_st **error);
static inline void driver_graph_plan_hold(struct graph_plan *plan)
{
	__atomic_add_fetch(&plan->references, 1, __ATOMIC_RELAXED);
}
void driver_graph_plan_drop(struct graph_plan *plan);

/* With the lock, before a launch: functions that have been unloaded, events that are destroyed or of another context: nothing is
 * launched. */
CUresult driver_graph_plan_check(const struct graph_plan *plan, const struct CUstream_st *stream);
/* With the lock: what a launch allocates is live from now on, what it frees no longer; all or nothing.  `again`: also where it is
 * live already. */
CUresult driver_graph_plan_settle(const struct graph_plan *plan, bool again);

/* As a launch begins, and in it: the steps from *next to `end`, none of them of events.  *next is the one behind that
 * which runs, for who goes on when a function of the program's has ended the thread; bodies have no such functions. */
void driver_graph_plan_reset(const struct graph_plan *plan);
CUresult driver_graph_plan_run(const struct graph_plan *plan, size_t *next, size_t end, CUresult state);

#endif
