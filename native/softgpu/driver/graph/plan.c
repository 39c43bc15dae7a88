/* See plan.h. */
#include "plan.h"

#include "../event.h"
#include "../handle.h"
#include "../launch.h"
#include "../module.h"
#include "memory.h"
#include "user.h"

#include <stdlib.h>

/* What a conditional node does. */
struct graph_choice {
	struct graph_condition *condition;	/* held */
	CUgraphConditionalNodeType type;
	unsigned size;
	struct graph_plan *bodies[];
};

/* ---- making ---- */

static void choice_free(struct graph_choice *choice);

void driver_graph_plan_drop(struct graph_plan *plan)
{
	if (__atomic_sub_fetch(&plan->references, 1, __ATOMIC_ACQ_REL))
		return;
	for (size_t i = 0; i < plan->count; i++) {
		if (plan->steps[i].work)
			driver_graph_work_drop(plan->steps[i].work);
		if (plan->steps[i].choice)
			choice_free(plan->steps[i].choice);
	}
	driver_graph_users_drop(&plan->former);
	free(plan->steps);
	free(plan->takes);
	free(plan->gives);
	free(plan);
}

static void choice_free(struct graph_choice *choice)
{
	while (choice->size)
		driver_graph_plan_drop(choice->bodies[--choice->size]);
	driver_graph_condition_drop(choice->condition);
	free(choice);
}

/* The step is the caller's to fill in; NULL without memory. */
static struct graph_step *plan_step(struct graph_plan *plan, CUgraphNodeType type)
{
	struct graph_step *step;

	if (plan->count == plan->room) {
		size_t room = plan->room ? 2 * plan->room : 16;
		struct graph_step *steps = realloc(plan->steps, room * sizeof *steps);

		if (!steps)
			return NULL;
		plan->steps = steps;
		plan->room = room;
	}
	step = &plan->steps[plan->count++];
	*step = (struct graph_step){ .type = type };
	plan->has_host |= type == CU_GRAPH_NODE_TYPE_HOST;
	return step;
}

static bool plan_payload(struct graph_plan *plan, const struct graph_payload *payload)
{
	struct graph_step *step = plan_step(plan, payload->type);

	if (!step)
		return false;
	step->work = payload->work;
	step->event = payload->event;
	if (step->work)
		driver_graph_work_hold(step->work);
	return true;
}

static bool plan_allocation(struct graph_plan *plan, const struct graph_payload *payload)
{
	struct graph_allocation *allocation = payload->allocation;

	if (plan->take_count + plan->give_count == plan->allocation_room) {
		size_t room = plan->allocation_room ? 2 * plan->allocation_room : 8;
		struct graph_allocation **takes = realloc(plan->takes, room * sizeof *takes), **gives;

		if (!takes)
			return false;
		plan->takes = takes;
		gives = realloc(plan->gives, room * sizeof *gives);
		if (!gives)
			return false;
		plan->gives = gives;
		plan->allocation_room = room;
	}
	if (payload->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
		plan->takes[plan->take_count++] = allocation;
		return true;
	}
	/* What this launch itself allocates before is no concern of others. */
	for (size_t i = 0; i < plan->take_count; i++) {
		if (plan->takes[i] == allocation) {
			plan->takes[i] = plan->takes[--plan->take_count];
			return true;
		}
	}
	plan->gives[plan->give_count++] = allocation;
	return true;
}

static CUresult plan_graph(struct graph_plan *plan, struct CUgraph_st *graph,
			   struct CUgraphNode_st **error);

/* Each body has a plan of its own. */
static CUresult plan_choice(struct graph_plan *plan, const struct graph_conditional *conditional,
			    struct CUgraphNode_st **error)
{
	struct graph_choice *choice =
		calloc(1, sizeof *choice + conditional->size * sizeof *choice->bodies);
	struct graph_step *step = choice ? plan_step(plan, CU_GRAPH_NODE_TYPE_CONDITIONAL) : NULL;
	CUresult result = CUDA_SUCCESS;

	if (!step) {
		free(choice);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	step->choice = choice;
	choice->condition = conditional->condition;
	driver_graph_condition_hold(choice->condition);
	choice->type = conditional->type;
	while (choice->size < conditional->size && !result) {
		result = driver_graph_plan_make(conditional->bodies[choice->size], &choice->bodies[choice->size],
				   error);
		choice->size += !result;
	}
	return result;
}

static CUresult plan_node(struct graph_plan *plan, const struct CUgraphNode_st *node,
			  struct CUgraphNode_st **error)
{
	bool done = true;

	if (node->disabled)
		return CUDA_SUCCESS;
	if (node->payload.child)
		return plan_graph(plan, node->payload.child, error);
	if (node->payload.conditional)
		return plan_choice(plan, node->payload.conditional, error);
	if (node->payload.allocation)
		done = plan_allocation(plan, &node->payload);
	else if (node->payload.work || node->payload.event)
		done = plan_payload(plan, &node->payload);
	return done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Nodes whose dependencies are all planned, first come first served (A. B. Kahn, 1962).  What
 * is left over lies on a ring. */
static CUresult plan_graph(struct graph_plan *plan, struct CUgraph_st *graph,
			   struct CUgraphNode_st **error)
{
	struct CUgraphNode_st *node, *first = NULL, **last = &first;
	size_t left = graph->count;
	CUresult result = CUDA_SUCCESS;

	/* The queue is linked by `pair`. */
	for (node = graph->first; node; node = node->next) {
		node->pending = node->dependencies.count;
		node->pair = NULL;
		if (!node->pending) {
			*last = node;
			last = &node->pair;
		}
	}
	for (node = first; node && !result; node = node->pair) {
		result = plan_node(plan, node, error);
		left--;
		for (size_t i = 0; i < node->dependents.count; i++) {
			struct CUgraphNode_st *dependent = node->dependents.nodes[i];

			if (!--dependent->pending) {
				*last = dependent;
				last = &dependent->pair;
			}
		}
	}
	if (!result && left) {
		for (node = graph->first; node && !node->pending; node = node->next)
			;
		*error = node;
		return CUDA_ERROR_INVALID_VALUE;
	}
	return result;
}

CUresult driver_graph_plan_make(struct CUgraph_st *graph, struct graph_plan **out, struct CUgraphNode_st **error)
{
	struct graph_plan *plan = calloc(1, sizeof *plan);
	CUresult result;

	if (!plan)
		return CUDA_ERROR_OUT_OF_MEMORY;
	plan->references = 1;
	result = plan_graph(plan, graph, error);
	if (result) {
		driver_graph_plan_drop(plan);
		return result;
	}
	*out = plan;
	return CUDA_SUCCESS;
}

/* ---- before a launch ---- */

CUresult driver_graph_plan_check(const struct graph_plan *plan, const struct CUstream_st *stream)
{
	for (size_t i = 0; i < plan->count; i++) {
		const struct graph_step *step = &plan->steps[i];

		for (unsigned k = 0; step->choice && k < step->choice->size; k++) {
			if (driver_graph_plan_check(step->choice->bodies[k], stream))
				return CUDA_ERROR_INVALID_HANDLE;
		}
		if (step->type == CU_GRAPH_NODE_TYPE_KERNEL &&
		    !driver_launch_is_possible(step->work->operation))
			return CUDA_ERROR_INVALID_HANDLE;
		if (driver_graph_step_is_of_event(step) && !driver_handle_is(step->event, DRIVER_KIND_EVENT))
			return CUDA_ERROR_INVALID_HANDLE;
		if (step->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD &&
		    step->event->context != stream->context)
			return CUDA_ERROR_INVALID_HANDLE;
	}
	return CUDA_SUCCESS;
}

CUresult driver_graph_plan_settle(const struct graph_plan *plan, bool again)
{
	size_t gives = 0, takes = 0;

	while (gives < plan->give_count &&
	       driver_graph_allocation_set_live(plan->gives[gives], false))
		gives++;
	if (gives == plan->give_count) {
		while (takes < plan->take_count &&
		       (driver_graph_allocation_set_live(plan->takes[takes], true) || again))
			takes++;
		if (takes == plan->take_count)
			return CUDA_SUCCESS;
	}
	while (takes--)
		driver_graph_allocation_set_live(plan->takes[takes], false);
	while (gives--)
		driver_graph_allocation_set_live(plan->gives[gives], true);
	return CUDA_ERROR_INVALID_VALUE;
}

/* ---- running ---- */

static CUresult run_work(const struct graph_work *work, CUresult state)
{
	CUresult result = work->context ? driver_context_state(work->context) : CUDA_SUCCESS;

	/* Who unloads a module waits for its own context's streams alone. */
	if (!result && work->type == CU_GRAPH_NODE_TYPE_KERNEL && !driver_launch_is_possible(work->operation))
		result = CUDA_ERROR_LAUNCH_FAILED;
	if (!result)
		result = work->operation->run(work->operation, state);
	/* The error is that of the context where it happened, and of the stream's. */
	if (result && work->context)
		driver_context_fail(work->context, result);
	return result;
}

/* The body that is to run now, or NULL. */
static const struct graph_plan *choose(const struct graph_choice *choice)
{
	unsigned value = driver_graph_condition_value(choice->condition);
	unsigned index = choice->type == CU_GRAPH_COND_TYPE_SWITCH ? value : !value;

	return index < choice->size ? choice->bodies[index] : NULL;
}

static CUresult run_step(const struct graph_step *step, CUresult state);

static CUresult run_body(const struct graph_plan *body, CUresult state)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; i < body->count && !result; i++)
		result = run_step(&body->steps[i], state);
	return result;
}

static CUresult run_choice(const struct graph_choice *choice, CUresult state)
{
	struct CUctx_st *context = choice->condition->context;
	const struct graph_plan *body = choose(choice);
	CUresult result = driver_context_state(context);

	while (body && !result) {
		result = run_body(body, state);
		if (choice->type != CU_GRAPH_COND_TYPE_WHILE)
			break;
		/* Kernels of a context that goes end early, and so does a loop of short ones. */
		if (!result && __atomic_load_n(&context->cancel, __ATOMIC_RELAXED))
			result = driver_engine_result(ENGINE_CANCELLED);
		body = choose(choice);
	}
	return result;
}

static CUresult run_step(const struct graph_step *step, CUresult state)
{
	return step->choice ? run_choice(step->choice, state) : run_work(step->work, state);
}

CUresult driver_graph_plan_run(const struct graph_plan *plan, size_t *next, size_t end, CUresult state)
{
	CUresult result = CUDA_SUCCESS;

	while (*next < end && !result)
		result = run_step(&plan->steps[(*next)++], state);
	return result;
}

void driver_graph_plan_reset(const struct graph_plan *plan)
{
	for (size_t i = 0; i < plan->count; i++) {
		const struct graph_choice *choice = plan->steps[i].choice;

		if (!choice)
			continue;
		driver_graph_condition_reset(choice->condition);
		for (unsigned k = 0; k < choice->size; k++)
			driver_graph_plan_reset(choice->bodies[k]);
	}
}
