/* graph.h - CUDA graphs: nodes with edges between them, and what they do.
 *
 *   graph       what the program builds, or a capture
 *   node        of one graph; has a payload by its type
 *   work        what running a kernel, copy, fill or host node does: an operation as
 *               streams have them, prepared once and run again and again
 *   condition   a value that kernels set, and that conditional nodes choose by which of
 *               their bodies to run (condition.h)
 *   executable  a private copy of a graph, laid out as a plan: steps in an order that
 *               respects the edges (exec.h)
 *
 * With the graph lock (lock.h), unless it says otherwise.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_GRAPH_H
#define FARBUS_SOFTGPU_DRIVER_GRAPH_H

#include "condition.h"
#include "edges.h"
#include "lock.h"
#include "work.h"

#define GRAPH_DEPTH_MAX 64	/* child graphs and bodies in each other: walks recurse */
#define GRAPH_BODIES_MAX 65536	/* of one node, which makes them all at once */

struct graph_allocation;
struct user_reference;

/* What a conditional node chooses from. */
struct graph_conditional {
	struct graph_condition *condition;	/* held */
	CUgraphConditionalNodeType type;
	bool is_private;		/* of an executable */
	unsigned size;
	struct CUgraph_st *bodies[];	/* owned by the node */
};

/* What a node is.  One of the pointers, by the type; none in an empty node. */
struct graph_payload {
	CUgraphNodeType type;
	struct graph_work *work;
	struct CUgraph_st *child;	/* owned by the node */
	struct graph_conditional *conditional;
	CUevent event;			/* the program's; looked up at each use */
	struct graph_allocation *allocation;
};

struct CUgraphNode_st {
	struct CUgraph_st *graph;
	struct CUgraphNode_st *next, *before;	/* of the graph, as they were added */
	uint64_t id;			/* unique in this process, ascending */
	uint64_t origin;		/* id of the node that this is a copy of, or 0 */
	struct graph_payload payload;
	struct graph_edges dependencies, dependents;
	bool disabled;			/* in an executable */
	bool captured;			/* by a stream; else added by the program */
	/* For walks, which say what they mean. */
	uint64_t mark;
	size_t pending;
	struct CUgraphNode_st *pair;
};

struct CUgraph_st {
	uint64_t id, origin;
	struct CUgraphNode_st *first, *last;
	size_t count;
	size_t memory_count;		/* allocation and free nodes */
	struct CUgraphNode_st *parent;	/* the node that owns this, as its child or a body, or NULL */
	struct graph_condition *conditions;	/* made for nodes in it, or in graphs in it */
	bool is_private;		/* of an executable: has no handle, nor have its nodes */
	unsigned captures;		/* under way into it */
	struct user_reference *users;
};

/* The graphs that a node owns, from 0 on; NULL behind the last. */
static inline struct CUgraph_st *driver_graph_below(const struct graph_payload *payload, unsigned index)
{
	const struct graph_conditional *conditional = payload->conditional;

	if (conditional)
		return index < conditional->size ? conditional->bodies[index] : NULL;
	return index ? NULL : payload->child;
}

/* The prologue of calls about a graph or node: ready, and the handle valid, else
 * CUDA_ERROR_INVALID_VALUE; on success the lock is held. */
CUresult driver_graph_enter(CUgraph graph);
CUresult driver_graph_enter_node(CUgraphNode node);
/* NULL without memory. */
struct CUgraph_st *driver_graph_make(bool is_private);
void driver_graph_free(struct CUgraph_st *graph);
/* A copy with child graphs; `is_private` as above.  Node `pair`s lead to the copies. */
CUresult driver_graph_copy(const struct CUgraph_st *graph, bool is_private,
			   struct CUgraph_st **copy);
/* Nodes of the graph, each once, with data that such edges can have? */
CUresult driver_graph_check_edges(const struct CUgraph_st *graph, const CUgraphNode *nodes,
				  const CUgraphEdgeData *data, size_t count);
/* Add a node; the payload is taken over in every case. */
CUresult driver_graph_add(struct CUgraph_st *graph, const CUgraphNode *dependencies,
			  const CUgraphEdgeData *data, size_t count,
			  struct graph_payload *payload, CUgraphNode *out);
/* One that was just made, or that nothing needs; with its edges. */
void driver_graph_remove(struct CUgraphNode_st *node);
/* An edge between nodes of one graph; false without memory. */
bool driver_graph_connect(struct CUgraphNode_st *from, struct CUgraphNode_st *to,
			  const CUgraphEdgeData *data);
void driver_graph_disconnect(struct CUgraphNode_st *from, struct CUgraphNode_st *to);
bool driver_graph_edge_is_valid(const CUgraphEdgeData *data);
/* Would the child lie deeper than GRAPH_DEPTH_MAX? */
bool driver_graph_is_too_deep(const struct CUgraph_st *graph, const struct CUgraph_st *child);
/* A number that no node is marked with. */
uint64_t driver_graph_new_mark(void);
/* Mark the nodes, and those that they depend on directly or not; returns the mark. */
uint64_t driver_graph_mark_before(CUgraphNode const *nodes, size_t count);
/* An allocation of the graph, held, that is just what a node with these dependencies asks for and
 * always freed before; NULL when there is none. */
struct graph_allocation *driver_graph_reuse(const struct CUgraph_st *graph,
					    const CUgraphNode *dependencies, size_t count,
					    const CUDA_MEM_ALLOC_NODE_PARAMS *params);
/* Has the graph, or a graph in it, such nodes? */
bool driver_graph_has_memory(const struct CUgraph_st *graph);
bool driver_graph_has_conditional(const struct CUgraph_st *graph);
/* Or is one of them captured into? */
bool driver_graph_is_captured(const struct CUgraph_st *graph);
/* Is a graph of that node's? */
bool driver_graph_is_captured_below(const struct CUgraphNode_st *node);

/* What the node is to be, with empty bodies, for a node of that graph. */
CUresult driver_graph_conditional_make(const struct CUgraph_st *graph, struct CUctx_st *context,
				       const CUDA_CONDITIONAL_NODE_PARAMS *params,
				       struct graph_payload *payload);
/* With the lock where it has graphs, else with or without it. */
void driver_graph_payload_drop(struct graph_payload *payload);

#endif
