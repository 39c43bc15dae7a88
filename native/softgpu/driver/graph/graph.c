#include "graph.h"

#include "../handle.h"
#include "memory.h"
#include "user.h"

#include <stdlib.h>
#include <string.h>

static CUresult enter(const void *handle, enum driver_kind kind)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	driver_graph_lock();
	if (driver_handle_is(handle, kind))
		return CUDA_SUCCESS;
	driver_graph_unlock();
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult driver_graph_enter(CUgraph graph)
{
	return enter(graph, DRIVER_KIND_GRAPH);
}

CUresult driver_graph_enter_node(CUgraphNode node)
{
	return enter(node, DRIVER_KIND_GRAPH_NODE);
}

/* ---- edges ---- */

void driver_graph_disconnect(struct CUgraphNode_st *from, struct CUgraphNode_st *to)
{
	graph_edges_remove(&from->dependents, graph_edges_find(&from->dependents, to));
	graph_edges_remove(&to->dependencies, graph_edges_find(&to->dependencies, from));
}

bool driver_graph_connect(struct CUgraphNode_st *from, struct CUgraphNode_st *to,
			  const CUgraphEdgeData *data)
{
	if (!graph_edges_add(&from->dependents, to, data))
		return false;
	if (graph_edges_add(&to->dependencies, from, data))
		return true;
	from->dependents.count--;
	return false;
}

/* An early start of the dependent kernel is allowed by such an edge, not asked for. */
bool driver_graph_edge_is_valid(const CUgraphEdgeData *data)
{
	static const unsigned char zeros[sizeof data->reserved];

	return data->type <= CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC && !data->to_port &&
	       data->from_port <= 2 && !memcmp(data->reserved, zeros, sizeof zeros);
}

CUresult driver_graph_check_edges(const struct CUgraph_st *graph, const CUgraphNode *nodes,
				  const CUgraphEdgeData *data, size_t count)
{
	uint64_t mark = driver_graph_new_mark();

	if (count && !nodes)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (!driver_handle_is(nodes[i], DRIVER_KIND_GRAPH_NODE) ||
		    nodes[i]->graph != graph || nodes[i]->mark == mark ||
		    (data && !driver_graph_edge_is_valid(&data[i])))
			return CUDA_ERROR_INVALID_VALUE;
		nodes[i]->mark = mark;
	}
	return CUDA_SUCCESS;
}

uint64_t driver_graph_new_mark(void)
{
	static uint64_t last;

	return ++last;
}

/* ---- graphs and nodes ---- */

static uint64_t new_id(void)
{
	static uint64_t last;

	return ++last;
}

struct CUgraph_st *driver_graph_make(bool is_private)
{
	struct CUgraph_st *graph = calloc(1, sizeof *graph);

	if (!graph)
		return NULL;
	graph->id = new_id();
	graph->is_private = is_private;
	if (!is_private && driver_handle_add(graph, DRIVER_KIND_GRAPH, NULL)) {
		free(graph);
		return NULL;
	}
	return graph;
}

static bool is_of_memory(const struct CUgraphNode_st *node)
{
	return node->payload.allocation != NULL;
}

static void conditional_free(struct graph_conditional *conditional)
{
	while (conditional->size)
		driver_graph_free(conditional->bodies[--conditional->size]);
	conditional->condition->nodes -= !conditional->is_private;
	driver_graph_condition_drop(conditional->condition);
	free(conditional);
}

void driver_graph_payload_drop(struct graph_payload *payload)
{
	if (payload->work)
		driver_graph_work_drop(payload->work);
	if (payload->child)
		driver_graph_free(payload->child);
	if (payload->conditional)
		conditional_free(payload->conditional);
	if (payload->allocation)
		driver_graph_allocation_drop(payload->allocation);
}

/* The node has no edges any more, or its neighbours go too. */
static void node_free(struct CUgraphNode_st *node)
{
	struct CUgraph_st *graph = node->graph;

	if (!graph->is_private)
		driver_handle_remove(node, DRIVER_KIND_GRAPH_NODE);
	*(node->before ? &node->before->next : &graph->first) = node->next;
	*(node->next ? &node->next->before : &graph->last) = node->before;
	graph->count--;
	graph->memory_count -= is_of_memory(node);
	graph_edges_clear(&node->dependencies);
	graph_edges_clear(&node->dependents);
	driver_graph_payload_drop(&node->payload);
	free(node);
}

void driver_graph_free(struct CUgraph_st *graph)
{
	while (graph->last)
		node_free(graph->last);
	driver_graph_conditions_end(graph);
	driver_graph_users_drop(&graph->users);
	if (!graph->is_private)
		driver_handle_remove(graph, DRIVER_KIND_GRAPH);
	free(graph);
}

bool driver_graph_has_memory(const struct CUgraph_st *graph)
{
	if (graph->memory_count)
		return true;
	for (const struct CUgraphNode_st *node = graph->first; node; node = node->next) {
		if (node->payload.child && driver_graph_has_memory(node->payload.child))
			return true;
	}
	return false;
}

bool driver_graph_has_conditional(const struct CUgraph_st *graph)
{
	for (const struct CUgraphNode_st *node = graph->first; node; node = node->next) {
		if (node->payload.conditional ||
		    (node->payload.child && driver_graph_has_conditional(node->payload.child)))
			return true;
	}
	return false;
}

bool driver_graph_is_captured_below(const struct CUgraphNode_st *node)
{
	const struct CUgraph_st *below;

	for (unsigned i = 0; (below = driver_graph_below(&node->payload, i)); i++) {
		if (driver_graph_is_captured(below))
			return true;
	}
	return false;
}

bool driver_graph_is_captured(const struct CUgraph_st *graph)
{
	if (graph->captures)
		return true;
	for (const struct CUgraphNode_st *node = graph->first; node; node = node->next) {
		if (driver_graph_is_captured_below(node))
			return true;
	}
	return false;
}

/* Make a node without edges; the payload is taken over in every case. */
static struct CUgraphNode_st *node_make(struct CUgraph_st *graph, struct graph_payload *payload)
{
	struct CUgraphNode_st *node = calloc(1, sizeof *node);
	struct CUgraph_st *below;

	if (!node || (!graph->is_private && driver_handle_add(node, DRIVER_KIND_GRAPH_NODE, NULL))) {
		driver_graph_payload_drop(payload);
		free(node);
		return NULL;
	}
	node->graph = graph;
	node->id = new_id();
	node->payload = *payload;
	for (unsigned i = 0; (below = driver_graph_below(payload, i)); i++)
		below->parent = node;
	node->before = graph->last;
	*(graph->last ? &graph->last->next : &graph->first) = node;
	graph->last = node;
	graph->count++;
	graph->memory_count += is_of_memory(node);
	return node;
}

void driver_graph_remove(struct CUgraphNode_st *node)
{
	while (node->dependents.count)
		driver_graph_disconnect(node, node->dependents.nodes[node->dependents.count - 1]);
	while (node->dependencies.count)
		driver_graph_disconnect(node->dependencies.nodes[node->dependencies.count - 1], node);
	node_free(node);
}

/* ---- allocations ---- */

uint64_t driver_graph_mark_before(CUgraphNode const *nodes, size_t count)
{
	uint64_t mark = driver_graph_new_mark();
	struct CUgraphNode_st *todo = NULL;

	/* The list of nodes to go on from is linked by `pair`. */
	for (;;) {
		for (size_t i = 0; i < count; i++) {
			if (nodes[i]->mark == mark)
				continue;
			nodes[i]->mark = mark;
			nodes[i]->pair = todo;
			todo = nodes[i];
		}
		if (!todo)
			return mark;
		nodes = todo->dependencies.nodes;
		count = todo->dependencies.count;
		todo = todo->pair;
	}
}

/* How many nodes of a type an allocation has in a graph, and whether all of them are marked. */
static size_t count_nodes(const struct CUgraph_st *graph, const struct graph_allocation *allocation,
			  CUgraphNodeType type, uint64_t mark, bool *all_marked)
{
	const struct CUgraphNode_st *node;
	size_t count = 0;

	*all_marked = true;
	for (node = graph->first; node; node = node->next) {
		if (node->payload.allocation != allocation || node->payload.type != type)
			continue;
		count++;
		*all_marked = *all_marked && node->mark == mark;
	}
	return count;
}

/* What the graph allocates it frees as often at most; what another allocates, once. */
static bool frees_again(const struct CUgraph_st *graph, const struct graph_payload *payload)
{
	const struct graph_allocation *allocation = payload->allocation;
	size_t takes, gives;
	bool unused;

	if (payload->type != CU_GRAPH_NODE_TYPE_MEM_FREE)
		return false;
	takes = count_nodes(graph, allocation, CU_GRAPH_NODE_TYPE_MEM_ALLOC, 0, &unused);
	gives = count_nodes(graph, allocation, CU_GRAPH_NODE_TYPE_MEM_FREE, 0, &unused);
	return gives >= (takes ? takes : 1);
}

struct graph_allocation *driver_graph_reuse(const struct CUgraph_st *graph,
					    const CUgraphNode *dependencies, size_t count,
					    const CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	const struct CUgraphNode_st *node;
	uint64_t mark;

	if (!graph->memory_count || driver_graph_check_edges(graph, dependencies, NULL, count))
		return NULL;
	mark = driver_graph_mark_before(dependencies, count);
	for (node = graph->first; node; node = node->next) {
		struct graph_allocation *allocation = node->payload.allocation;
		bool all_freed, all_taken;
		size_t gives;

		if (node->payload.type != CU_GRAPH_NODE_TYPE_MEM_FREE || node->mark != mark ||
		    !driver_graph_allocation_is_alike(allocation, params))
			continue;
		gives = count_nodes(graph, allocation, CU_GRAPH_NODE_TYPE_MEM_FREE, mark, &all_freed);
		if (all_freed && gives == count_nodes(graph, allocation, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
						      mark, &all_taken)) {
			driver_graph_allocation_hold(allocation);
			return allocation;
		}
	}
	return NULL;
}

/* ---- adding ---- */

static unsigned depth_of(const struct CUgraph_st *graph)
{
	unsigned deepest = 0;

	for (const struct CUgraphNode_st *node = graph->first; node; node = node->next) {
		const struct CUgraph_st *below;

		for (unsigned i = 0; (below = driver_graph_below(&node->payload, i)); i++) {
			unsigned depth = depth_of(below);

			if (depth > deepest)
				deepest = depth;
		}
	}
	return deepest + 1;
}

bool driver_graph_is_too_deep(const struct CUgraph_st *graph, const struct CUgraph_st *child)
{
	unsigned depth = depth_of(child);

	for (; graph; graph = graph->parent ? graph->parent->graph : NULL)
		depth++;
	return depth > GRAPH_DEPTH_MAX;
}

CUresult driver_graph_add(struct CUgraph_st *graph, const CUgraphNode *dependencies,
			  const CUgraphEdgeData *data, size_t count,
			  struct graph_payload *payload, CUgraphNode *out)
{
	CUresult result = driver_graph_check_edges(graph, dependencies, data, count);
	struct CUgraphNode_st *node;

	if (!result && frees_again(graph, payload))
		result = CUDA_ERROR_INVALID_VALUE;
	/* Bodies are empty when their node is added, and one of them stands for all. */
	if (!result && driver_graph_below(payload, 0) &&
	    driver_graph_is_too_deep(graph, driver_graph_below(payload, 0)))
		result = CUDA_ERROR_NOT_SUPPORTED;
	if (result) {
		driver_graph_payload_drop(payload);
		return result;
	}
	node = node_make(graph, payload);
	if (!node)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < count; i++) {
		if (!driver_graph_connect(dependencies[i], node, data ? &data[i] : NULL)) {
			driver_graph_remove(node);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	*out = node;
	return CUDA_SUCCESS;
}

/* ---- what conditional nodes choose from ---- */

static bool is_size(CUgraphConditionalNodeType type, unsigned size)
{
	switch (type) {
	case CU_GRAPH_COND_TYPE_IF:
		return size == 1 || size == 2;
	case CU_GRAPH_COND_TYPE_WHILE:
		return size == 1;
	case CU_GRAPH_COND_TYPE_SWITCH:
		return size;
	}
	return false;
}

/* Was the condition made for this graph, or one that it lies in? */
static bool is_for(const struct graph_condition *condition, const struct CUgraph_st *graph)
{
	while (graph && graph != condition->graph)
		graph = graph->parent ? graph->parent->graph : NULL;
	return graph;
}

/* With room for bodies, of which there is none yet. */
static struct graph_conditional *conditional_make(struct graph_condition *condition,
						  CUgraphConditionalNodeType type, unsigned size,
						  bool is_private)
{
	struct graph_conditional *conditional =
		calloc(1, sizeof *conditional + size * sizeof *conditional->bodies);

	if (!conditional)
		return NULL;
	conditional->condition = condition;
	conditional->type = type;
	conditional->is_private = is_private;
	driver_graph_condition_hold(condition);
	condition->nodes += !is_private;
	return conditional;
}

CUresult driver_graph_conditional_make(const struct CUgraph_st *graph, struct CUctx_st *context,
				       const CUDA_CONDITIONAL_NODE_PARAMS *params,
				       struct graph_payload *payload)
{
	struct graph_condition *condition = driver_graph_condition_of(params->handle);
	struct graph_conditional *conditional;

	if (!condition || !is_size(params->type, params->size) || condition->context != context ||
	    !is_for(condition, graph))
		return CUDA_ERROR_INVALID_VALUE;
	conditional = params->size > GRAPH_BODIES_MAX ? NULL :
		      conditional_make(condition, params->type, params->size, false);
	if (!conditional)
		return CUDA_ERROR_OUT_OF_MEMORY;
	while (conditional->size < params->size) {
		struct CUgraph_st *body = driver_graph_make(false);

		if (!body) {
			conditional_free(conditional);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		conditional->bodies[conditional->size++] = body;
	}
	*payload = (struct graph_payload){ .type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
					   .conditional = conditional };
	return CUDA_SUCCESS;
}

/* As an executable's own. */
static CUresult conditional_copy(const struct graph_conditional *from,
				 struct graph_conditional **to)
{
	struct graph_conditional *copy =
		conditional_make(from->condition, from->type, from->size, true);
	CUresult result = copy ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	while (!result && copy->size < from->size) {
		result = driver_graph_copy(from->bodies[copy->size], true, &copy->bodies[copy->size]);
		copy->size += !result;
	}
	if (result && copy)
		conditional_free(copy);
	else
		*to = copy;
	return result;
}

/* ---- copies ---- */

static CUresult payload_copy(const struct graph_payload *from, bool is_private,
			     struct graph_payload *to)
{
	*to = *from;
	if (from->work)
		driver_graph_work_hold(from->work);
	if (from->allocation)
		driver_graph_allocation_hold(from->allocation);
	if (from->conditional)
		return conditional_copy(from->conditional, &to->conditional);
	if (!from->child)
		return CUDA_SUCCESS;
	return driver_graph_copy(from->child, is_private, &to->child);
}

static CUresult copy_edges(const struct CUgraphNode_st *node)
{
	for (size_t i = 0; i < node->dependencies.count; i++) {
		if (!driver_graph_connect(node->dependencies.nodes[i]->pair, node->pair,
					  &node->dependencies.data[i]))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

CUresult driver_graph_copy(const struct CUgraph_st *graph, bool is_private,
			   struct CUgraph_st **out)
{
	struct CUgraph_st *copy = driver_graph_make(is_private);
	CUresult result = CUDA_SUCCESS;
	struct CUgraphNode_st *node;

	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	copy->origin = graph->id;
	for (node = graph->first; node && !result; node = node->next) {
		struct graph_payload payload;

		result = payload_copy(&node->payload, is_private, &payload);
		if (result)
			break;
		node->pair = node_make(copy, &payload);
		if (!node->pair) {
			result = CUDA_ERROR_OUT_OF_MEMORY;
			break;
		}
		node->pair->origin = node->id;
		node->pair->disabled = node->disabled;
	}
	/* Later ones may have been made dependencies of earlier ones. */
	for (node = graph->first; node && !result; node = node->next)
		result = copy_edges(node);
	if (!result && !driver_graph_users_copy(copy, graph))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (result) {
		driver_graph_free(copy);
		return result;
	}
	*out = copy;
	return CUDA_SUCCESS;
}
