/* cuGraphExecUpdate: give an executable the parameters of another graph of the same shape. */
#include "update.h"

#include "../launch.h"
#include "../memory.h"
#include "conditional.h"
#include "graph.h"
#include "user.h"

/* ---- may a payload take the place of another? ---- */

static CUgraphExecUpdateResult check_kernel(const struct graph_work *now,
					    const struct graph_work *wanted)
{
	struct driver_launch_view before, after;

	if (now->context != wanted->context)
		return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
	driver_launch_look(now->operation, &before);
	driver_launch_look(wanted->operation, &after);
	return before.cooperative == after.cooperative ? CU_GRAPH_EXEC_UPDATE_SUCCESS :
							 CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
}

/* Of no device: NULL. */
static const struct driver_device *device_of(CUmemorytype type, const void *host, CUdeviceptr device)
{
	struct driver_allocation allocation;
	uintptr_t address = type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : (uintptr_t)device;

	return type != CU_MEMORYTYPE_ARRAY && driver_memory_find(address, &allocation) ?
	       allocation.device : NULL;
}

static CUgraphExecUpdateResult check_copy(const CUDA_MEMCPY3D *now, const CUDA_MEMCPY3D *wanted)
{
	bool same = now->srcMemoryType == wanted->srcMemoryType &&
		    now->dstMemoryType == wanted->dstMemoryType &&
		    device_of(now->srcMemoryType, now->srcHost, now->srcDevice) ==
		    device_of(wanted->srcMemoryType, wanted->srcHost, wanted->srcDevice) &&
		    device_of(now->dstMemoryType, now->dstHost, now->dstDevice) ==
		    device_of(wanted->dstMemoryType, wanted->dstHost, wanted->dstDevice);

	return same ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
}

/* A fill of several rows keeps its shape; a line may change its length. */
static CUgraphExecUpdateResult check_fill(const CUDA_MEMSET_NODE_PARAMS *now,
					  const CUDA_MEMSET_NODE_PARAMS *wanted)
{
	bool same = now->height == wanted->height &&
		    (now->height == 1 || (now->width == wanted->width && now->pitch == wanted->pitch &&
					  now->elementSize == wanted->elementSize)) &&
		    device_of(CU_MEMORYTYPE_DEVICE, NULL, now->dst) ==
		    device_of(CU_MEMORYTYPE_DEVICE, NULL, wanted->dst);

	return same ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
}

CUgraphExecUpdateResult driver_graph_update_check(const struct graph_payload *now,
						  const struct graph_payload *wanted)
{
	if (now->type != wanted->type)
		return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
	switch (now->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return check_kernel(now->work, wanted->work);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return check_copy(&now->work->copy, &wanted->work->copy);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return check_fill(&now->work->fill, &wanted->work->fill);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return now->allocation == wanted->allocation ? CU_GRAPH_EXEC_UPDATE_SUCCESS :
							       CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return driver_graph_conditional_is_alike(now->conditional, wanted->conditional) ?
		       CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
	default:
		return CU_GRAPH_EXEC_UPDATE_SUCCESS;
	}
}

/* ---- pairing ---- */

static CUgraphExecUpdateResult differ(CUgraphExecUpdateResultInfo *info,
				      CUgraphExecUpdateResult why, const struct CUgraphNode_st *node,
				      const struct CUgraphNode_st *from)
{
	*info = (CUgraphExecUpdateResultInfo){ why, (CUgraphNode)node, (CUgraphNode)from };
	return why;
}

/* Let two nodes be each other's `pair`; false when one of them has another already. */
static bool pair(struct CUgraphNode_st *into, struct CUgraphNode_st *from, bool *fresh)
{
	*fresh = !into->pair && !from->pair;
	if (*fresh) {
		into->pair = from;
		from->pair = into;
	}
	return into->pair == from;
}

static struct CUgraphNode_st *next_exit(struct CUgraphNode_st *node)
{
	while (node && node->dependents.count)
		node = node->next;
	return node;
}

/* From the nodes that nothing depends on, in the order they were added, backwards along the edges
 * in their order: the pairs of cuGraphExecUpdate's description.  The list of pairs to go on from
 * is linked by `mark`, which holds a pointer. */
static CUgraphExecUpdateResult pair_graphs(struct CUgraph_st *into, const struct CUgraph_st *from,
					   CUgraphExecUpdateResultInfo *info)
{
	struct CUgraphNode_st *a, *b, *todo = NULL;
	size_t paired = 0;
	bool fresh;

	if (into->count != from->count)
		return differ(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, NULL, NULL);
	for (a = into->first; a; a = a->next)
		a->pair = NULL;
	for (b = from->first; b; b = b->next)
		b->pair = NULL;
	a = next_exit(into->first);
	b = next_exit(from->first);
	for (; a && b; a = next_exit(a->next), b = next_exit(b->next)) {
		pair(a, b, &fresh);
		a->mark = (uintptr_t)todo;
		todo = a;
	}
	if (a || b)
		return differ(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, b, NULL);
	while (todo) {
		a = todo;
		b = a->pair;
		todo = (struct CUgraphNode_st *)(uintptr_t)a->mark;
		paired++;
		if (a->dependencies.count != b->dependencies.count)
			return differ(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, b, NULL);
		for (size_t i = 0; i < a->dependencies.count; i++) {
			struct CUgraphNode_st *before = a->dependencies.nodes[i];

			if (!pair(before, b->dependencies.nodes[i], &fresh))
				return differ(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, b,
					      b->dependencies.nodes[i]);
			if (fresh) {
				before->mark = (uintptr_t)todo;
				todo = before;
			}
		}
	}
	/* What is left lies on a ring, which no executable has. */
	return paired == from->count ? CU_GRAPH_EXEC_UPDATE_SUCCESS :
	       differ(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, NULL, NULL);
}

static CUgraphExecUpdateResult check_graphs(struct CUgraph_st *into, const struct CUgraph_st *from,
					    CUgraphExecUpdateResultInfo *info)
{
	CUgraphExecUpdateResult why = pair_graphs(into, from, info);
	struct CUgraph_st *below;

	for (struct CUgraphNode_st *node = into->first; node && !why; node = node->next) {
		const struct graph_payload *wanted = &node->pair->payload;
		CUgraphExecUpdateResult wrong = driver_graph_update_check(&node->payload, wanted);

		if (wrong)
			why = differ(info, wrong, node->pair, NULL);
		for (unsigned i = 0; !why && (below = driver_graph_below(&node->payload, i)); i++)
			why = check_graphs(below, driver_graph_below(wanted, i), info);
	}
	return why;
}

/* After the check: `pair` leads to what is wanted.  The kernels of the new graph set its conditions:
 * so conditional nodes choose by these. */
static void take_over(struct CUgraph_st *into)
{
	struct CUgraph_st *below;

	for (struct CUgraphNode_st *node = into->first; node; node = node->next) {
		const struct graph_payload *wanted = &node->pair->payload;

		for (unsigned i = 0; (below = driver_graph_below(&node->payload, i)); i++)
			take_over(below);
		if (node->payload.conditional)
			driver_graph_conditional_follow(node->payload.conditional,
							wanted->conditional);
		if (wanted->work) {
			driver_graph_work_hold(wanted->work);
			driver_graph_work_drop(node->payload.work);
			node->payload.work = wanted->work;
		}
		node->payload.event = wanted->event;
	}
}

/* User objects, as the programming guide has it ("CUDA User Objects"): an update puts those of the new graph
 * in the place of the executable's. */
static bool take_over_users(struct CUgraph_st *into, const struct CUgraph_st *from, struct user_reference **former)
{
	struct CUgraph_st *below;

	for (struct CUgraphNode_st *node = into->first; node; node = node->next)
		for (unsigned i = 0; (below = driver_graph_below(&node->payload, i)); i++)
			if (!take_over_users(below, driver_graph_below(&node->pair->payload, i), former))
				return false;
	return driver_graph_users_replace(into, from, former);
}

CUresult driver_graph_update(struct CUgraph_st *into, const struct CUgraph_st *from,
			     CUgraphExecUpdateResultInfo *info, struct user_reference **former)
{
	*info = (CUgraphExecUpdateResultInfo){ CU_GRAPH_EXEC_UPDATE_SUCCESS, NULL, NULL };
	if (check_graphs(into, from, info))
		return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	if (!take_over_users(into, from, former)) {
		info->result = CU_GRAPH_EXEC_UPDATE_ERROR;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	take_over(into);
	return CUDA_SUCCESS;
}
