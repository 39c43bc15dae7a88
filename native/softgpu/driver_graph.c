#include "driver_graph.h"

#include "driver_graph_memory.h"
#include "driver_handle.h"

#include <stdlib.h>
#include <string.h>

static pthread_mutex_t graph_lock = PTHREAD_MUTEX_INITIALIZER;

void driver_graph_lock(void)
{
	pthread_mutex_lock(&graph_lock);
}

void driver_graph_unlock(void)
{
	pthread_mutex_unlock(&graph_lock);
}

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

bool graph_edges_add(struct graph_edges *edges, struct CUgraphNode_st *node,
		     const CUgraphEdgeData *data)
{
	if (edges->count == edges->room) {
		size_t room = edges->room ? 2 * edges->room : 2;
		struct CUgraphNode_st **nodes = realloc(edges->nodes, room * sizeof *nodes);
		CUgraphEdgeData *more;

		if (!nodes)
			return false;
		edges->nodes = nodes;
		more = realloc(edges->data, room * sizeof *more);
		if (!more)
			return false;
		edges->data = more;
		edges->room = room;
	}
	edges->nodes[edges->count] = node;
	edges->data[edges->count++] = data ? *data : (CUgraphEdgeData){ 0 };
	return true;
}

size_t graph_edges_find(const struct graph_edges *edges, const struct CUgraphNode_st *node)
{
	size_t i = 0;

	while (i < edges->count && edges->nodes[i] != node)
		i++;
	return i;
}

void graph_edges_remove(struct graph_edges *edges, size_t index)
{
	size_t after = --edges->count - index;

	memmove(edges->nodes + index, edges->nodes + index + 1, after * sizeof *edges->nodes);
	memmove(edges->data + index, edges->data + index + 1, after * sizeof *edges->data);
}

bool graph_edges_unite(struct graph_edges *edges, const struct graph_edges *more)
{
	for (size_t i = 0; i < more->count; i++) {
		if (graph_edges_find(edges, more->nodes[i]) == edges->count &&
		    !graph_edges_add(edges, more->nodes[i], &more->data[i]))
			return false;
	}
	return true;
}

void graph_edges_clear(struct graph_edges *edges)
{
	free(edges->nodes);
	free(edges->data);
	*edges = (struct graph_edges){ 0 };
}

static void connect_drop(struct CUgraphNode_st *from, struct CUgraphNode_st *to)
{
	graph_edges_remove(&from->dependents, graph_edges_find(&from->dependents, to));
	graph_edges_remove(&to->dependencies, graph_edges_find(&to->dependencies, from));
}

static bool connect(struct CUgraphNode_st *from, struct CUgraphNode_st *to,
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
static bool data_is_valid(const CUgraphEdgeData *data)
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
		    (data && !data_is_valid(&data[i])))
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
	if (!is_private && driver_handle_add(graph, DRIVER_KIND_GRAPH)) {
		free(graph);
		return NULL;
	}
	return graph;
}

static bool is_of_memory(const struct CUgraphNode_st *node)
{
	return node->payload.allocation != NULL;
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

/* Is a graph of that node's captured into? */
static bool is_captured_below(const struct CUgraphNode_st *node)
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
		if (is_captured_below(node))
			return true;
	}
	return false;
}

/* Make a node without edges; the payload is taken over in every case. */
static struct CUgraphNode_st *node_make(struct CUgraph_st *graph, struct graph_payload *payload)
{
	struct CUgraphNode_st *node = calloc(1, sizeof *node);
	struct CUgraph_st *below;

	if (!node || (!graph->is_private && driver_handle_add(node, DRIVER_KIND_GRAPH_NODE))) {
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

/* Without edges from it to others, as a node is that was just made. */
static void node_undo(struct CUgraphNode_st *node)
{
	while (node->dependencies.count)
		connect_drop(node->dependencies.nodes[node->dependencies.count - 1], node);
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
		if (!connect(dependencies[i], node, data ? &data[i] : NULL)) {
			node_undo(node);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	*out = node;
	return CUDA_SUCCESS;
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
		return driver_graph_conditional_copy(from->conditional, &to->conditional);
	if (!from->child)
		return CUDA_SUCCESS;
	return driver_graph_copy(from->child, is_private, &to->child);
}

static CUresult copy_edges(const struct CUgraphNode_st *node)
{
	for (size_t i = 0; i < node->dependencies.count; i++) {
		if (!connect(node->dependencies.nodes[i]->pair, node->pair,
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

/* ---- the API ---- */

DRIVER_EXPORT CUresult cuGraphCreate(CUgraph *out, unsigned int flags)
{
	CUresult result = driver_ready();
	struct CUgraph_st *graph;

	if (result)
		return result;
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	driver_graph_lock();
	graph = driver_graph_make(false);
	driver_graph_unlock();
	if (!graph)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = graph;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
	CUresult result = driver_graph_enter(graph);

	if (result)
		return result;
	if (graph->parent || driver_graph_is_captured(graph))
		result = CUDA_ERROR_INVALID_VALUE;
	else
		driver_graph_free(graph);
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuGraphClone(CUgraph *out, CUgraph graph)
{
	CUresult result = driver_graph_enter(graph);

	if (result)
		return result;
	result = !out ? CUDA_ERROR_INVALID_VALUE :
		 driver_graph_has_memory(graph) || driver_graph_has_conditional(graph) ?
		 CUDA_ERROR_NOT_SUPPORTED : driver_graph_copy(graph, false, out);
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode node, CUgraph clone)
{
	CUresult result = driver_graph_enter_node(node);
	struct CUgraphNode_st *found;

	if (result)
		return result;
	result = CUDA_ERROR_INVALID_VALUE;
	if (out && driver_handle_is(clone, DRIVER_KIND_GRAPH)) {
		for (found = clone->first; found && found->origin != node->id; found = found->next)
			;
		if (found) {
			*out = found;
			result = CUDA_SUCCESS;
		}
	}
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuGraphDestroyNode(CUgraphNode node)
{
	CUresult result = driver_graph_enter_node(node);

	if (result)
		return result;
	if (node->graph->captures || is_captured_below(node))
		result = CUDA_ERROR_INVALID_VALUE;
	else if (driver_graph_has_memory(node->graph))
		result = CUDA_ERROR_NOT_SUPPORTED;
	if (!result) {
		while (node->dependents.count)
			connect_drop(node, node->dependents.nodes[node->dependents.count - 1]);
		node_undo(node);
	}
	driver_graph_unlock();
	return result;
}

/* ---- dependencies ---- */

/* From every `from` to the `to` beside it, all or none. */
static CUresult check_pairs(const struct CUgraph_st *graph, const CUgraphNode *from,
			    const CUgraphNode *to, const CUgraphEdgeData *data, size_t count)
{
	if (count && (!from || !to))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (!driver_handle_is(from[i], DRIVER_KIND_GRAPH_NODE) ||
		    !driver_handle_is(to[i], DRIVER_KIND_GRAPH_NODE) || from[i] == to[i] ||
		    from[i]->graph != graph || to[i]->graph != graph ||
		    (data && !data_is_valid(&data[i])))
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from,
						 const CUgraphNode *to,
						 const CUgraphEdgeData *data, size_t count)
{
	CUresult result = driver_graph_enter(graph);
	size_t done = 0;

	if (result)
		return result;
	result = check_pairs(graph, from, to, data, count);
	for (; done < count && !result; done++) {
		if (graph_edges_find(&from[done]->dependents, to[done]) !=
		    from[done]->dependents.count)
			result = CUDA_ERROR_INVALID_VALUE;
		else if (!connect(from[done], to[done], data ? &data[done] : NULL))
			result = CUDA_ERROR_OUT_OF_MEMORY;
		if (result)
			break;
	}
	while (result && done--)
		connect_drop(from[done], to[done]);
	driver_graph_unlock();
	return result;
}

/* Is there such an edge, with this data? */
static bool is_connected(const struct CUgraphNode_st *from, const struct CUgraphNode_st *to,
			 const CUgraphEdgeData *data)
{
	static const CUgraphEdgeData zeros;
	size_t at = graph_edges_find(&from->dependents, to);

	return at < from->dependents.count &&
	       !memcmp(&from->dependents.data[at], data ? data : &zeros, sizeof zeros);
}

DRIVER_EXPORT CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from,
						    const CUgraphNode *to,
						    const CUgraphEdgeData *data, size_t count)
{
	CUresult result = driver_graph_enter(graph);

	if (result)
		return result;
	result = check_pairs(graph, from, to, data, count);
	if (!result && count && driver_graph_has_memory(graph))
		result = CUDA_ERROR_NOT_SUPPORTED;
	for (size_t i = 0; i < count && !result; i++) {
		if (!is_connected(from[i], to[i], data ? &data[i] : NULL))
			result = CUDA_ERROR_INVALID_VALUE;
	}
	for (size_t i = 0; i < count && !result; i++) {
		/* The same pair may have been given twice. */
		if (is_connected(from[i], to[i], data ? &data[i] : NULL))
			connect_drop(from[i], to[i]);
	}
	driver_graph_unlock();
	return result;
}
