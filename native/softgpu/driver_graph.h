/* driver_graph.h - CUDA graphs: nodes with edges between them, and what they do.
 *
 *   graph       what the program builds, or a capture
 *   node        of one graph; has a payload by its type
 *   work        what running a kernel, copy, fill or host node does: an operation as
 *               streams have them, prepared once and run again and again
 *   condition   a value that kernels set, and that conditional nodes choose by which of
 *               their bodies to run (driver_graph_condition.c)
 *   executable  a private copy of a graph, laid out as a plan: steps in an order that
 *               respects the edges (driver_graph_exec.h)
 *
 * One lock, the graph lock, guards all graphs, nodes, executables and captures.  It is
 * taken before the locks of handles, memory and queues, and never held while something
 * is submitted or waited for: what ends an operation takes it too.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_GRAPH_H
#define FARBUS_SOFTGPU_DRIVER_GRAPH_H

#include "driver_edges.h"
#include "driver_stream.h"

#define GRAPH_DEPTH_MAX 64	/* child graphs and bodies in each other: walks recurse */
#define GRAPH_BODIES_MAX 65536	/* of one node, which makes them all at once */

struct graph_allocation;
struct user_reference;

struct graph_kernel {
	CUDA_KERNEL_NODE_PARAMS params;	/* kernelParams points into the operation */
	CUlaunchAttribute *attributes;
	unsigned attribute_count;
};

/* Never changed once made: nodes, their copies and launches under way share it. */
struct graph_work {
	unsigned references;		/* atomic */
	struct CUctx_st *context;	/* held; NULL for host functions */
	struct driver_operation *operation;
	CUgraphNodeType type;
	union {
		struct graph_kernel kernel;
		CUDA_MEMCPY3D copy;
		CUDA_MEMSET_NODE_PARAMS fill;
		CUDA_HOST_NODE_PARAMS host;
		CUDA_BATCH_MEM_OP_NODE_PARAMS words;	/* paramArray lies in the operation */
	};
};

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

/* ---- driver_graph.c: graphs and their edges.  With the lock, unless said otherwise. ---- */

void driver_graph_lock(void);
void driver_graph_unlock(void);
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

/* ---- driver_graph_work.c: without the lock, but for dropping, with or without it ---- */

CUresult driver_graph_kernel(struct CUctx_st *context, const CUlaunchConfig *config,
			     CUfunction function, void **params, void **extra,
			     struct graph_payload *payload);
/* The same kernel with other attributes. */
CUresult driver_graph_kernel_again(const struct graph_work *work, const CUlaunchAttribute *attributes,
				   unsigned count, struct graph_payload *payload);
CUresult driver_graph_memcpy(struct CUctx_st *context, const CUDA_MEMCPY3D *params,
			     struct graph_payload *payload);
CUresult driver_graph_memset(struct CUctx_st *context, const CUDA_MEMSET_NODE_PARAMS *params,
			     struct graph_payload *payload);
CUresult driver_graph_host(const CUDA_HOST_NODE_PARAMS *params, struct graph_payload *payload);
CUresult driver_graph_words(struct CUctx_st *context, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params,
			    struct graph_payload *payload);
CUresult driver_graph_event(CUgraphNodeType type, CUevent event, struct graph_payload *payload);
void driver_graph_work_drop(struct graph_work *work);
static inline void driver_graph_work_hold(struct graph_work *work)
{
	__atomic_add_fetch(&work->references, 1, __ATOMIC_RELAXED);
}

/* ---- driver_graph_payload.c: without the lock; nodes from what the program says of them, once the contexts are
 * found that it names ---- */

CUresult driver_graph_said_kernel(const CUDA_KERNEL_NODE_PARAMS *params, const CUlaunchAttribute *attributes,
				  unsigned count, struct graph_payload *payload);
CUresult driver_graph_said_memcpy(const CUDA_MEMCPY3D *params, CUcontext wanted, struct graph_payload *payload);
CUresult driver_graph_said_memset(const CUDA_MEMSET_NODE_PARAMS *params, CUcontext wanted,
				  struct graph_payload *payload);
CUresult driver_graph_said_words(const CUDA_BATCH_MEM_OP_NODE_PARAMS *params, struct graph_payload *payload);
CUresult driver_graph_said_event(CUgraphNodeType type, CUevent event, struct graph_payload *payload);
CUresult driver_graph_said_child(CUgraph child, struct graph_payload *payload);
CUresult driver_graph_said_alloc(CUgraph graph, const CUgraphNode *dependencies, size_t count,
				 const CUDA_MEM_ALLOC_NODE_PARAMS *params, struct graph_payload *payload);
CUresult driver_graph_said_free(CUdeviceptr address, struct graph_payload *payload);
CUresult driver_graph_said(const CUgraphNodeParams *params, const CUlaunchAttribute *attributes,
			   unsigned attribute_count, struct graph_payload *payload);
/* The context that a node's parameters name, or without one the current one. */
CUresult driver_graph_context(CUcontext wanted, struct CUctx_st **context);

/* ---- driver_graph_condition.c; with the lock, unless said otherwise ---- */

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

/* ---- driver_graph_conditional.c; with the lock ---- */

void driver_graph_conditional_describe(struct graph_conditional *conditional,
				       CUDA_CONDITIONAL_NODE_PARAMS *params);
/* The same choice, by a condition of the same context? */
bool driver_graph_conditional_is_alike(const struct graph_conditional *now,
				       const struct graph_conditional *wanted);
/* Choose by the other's condition from now on. */
void driver_graph_conditional_follow(struct graph_conditional *conditional,
				     const struct graph_conditional *other);
/* Is there a condition, of this graph or one in it, that no node chooses by? */
bool driver_graph_has_unused_condition(const struct CUgraph_st *graph);
/* A node in some body that can't be there; NULL: all can. */
struct CUgraphNode_st *driver_graph_unfit_node(const struct CUgraph_st *graph);

/* ---- driver_graph_update.c ---- */

/* May an executable's node have this payload instead? */
CUgraphExecUpdateResult driver_graph_update_check(const struct graph_payload *now,
						  const struct graph_payload *wanted);
/* As cuGraphExecUpdate, within a child graph.  What the graph kept before is added to *former, for
 * driver_graph_exec_keep. */
CUresult driver_graph_update(struct CUgraph_st *into, const struct CUgraph_st *from,
			     CUgraphExecUpdateResultInfo *info, struct user_reference **former);

/* ---- driver_graph_user.c: what graphs keep of the program's; with the lock, unless said otherwise ---- */

struct CUuserObject_st;
/* Without the lock; it has a handle, and `count` references.  CUDA_ERROR_OUT_OF_MEMORY. */
CUresult driver_user_object_make(void *pointer, CUhostFn destructor, unsigned count, CUuserObject *out);
void driver_user_object_hold(struct CUuserObject_st *object, uint64_t count);
/* False: it has not so many. */
bool driver_user_object_release(struct CUuserObject_st *object, uint64_t count);
/* References that are the graph's from now on; false without memory. */
bool driver_graph_users_keep(struct CUgraph_st *graph, struct CUuserObject_st *object, uint64_t count);
/* They are no longer; false: the graph has not so many. */
bool driver_graph_users_release(struct CUgraph_st *graph, struct CUuserObject_st *object, uint64_t count);

bool driver_graph_users_copy(struct CUgraph_st *to, const struct CUgraph_st *from);
void driver_graph_users_drop(struct user_reference **users);
void driver_graph_users_add(struct user_reference **users, struct user_reference *more);
/* References as `from` has them; its own are added to *former.  false: no memory, and all is as it was. */
bool driver_graph_users_replace(struct CUgraph_st *into, const struct CUgraph_st *from,
				struct user_reference **former);

#endif
