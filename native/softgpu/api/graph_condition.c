#include "../driver/graph/condition.h"

#include "../driver/graph/graph.h"
#include "../driver/graph/payload.h"

DRIVER_EXPORT CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *out, CUgraph graph,
						      CUcontext wanted, unsigned int value,
						      unsigned int flags)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_graph_context(wanted, &context);

	if (result)
		return result;
	if (!out || flags & ~CU_GRAPH_COND_ASSIGN_DEFAULT)
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_graph_enter(graph);
	if (result)
		return result;
	result = driver_graph_condition_make(graph, context, value, flags, out);
	driver_graph_unlock();
	return result;
}
