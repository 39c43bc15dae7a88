#include "../driver/graph/update.h"

#include "../driver/graph/exec.h"
#include "../driver/handle.h"

DRIVER_EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph,
					    CUgraphExecUpdateResultInfo *info)
{
	DRIVER_CALL;
	struct user_reference *former = NULL;
	CUresult result;

	if (!info)
		return CUDA_ERROR_INVALID_VALUE;
	*info = (CUgraphExecUpdateResultInfo){ CU_GRAPH_EXEC_UPDATE_ERROR, NULL, NULL };
	result = driver_graph_exec_enter(executable);
	if (result)
		return result;
	if (driver_handle_is(graph, DRIVER_KIND_GRAPH) && !graph->captures) {
		result = driver_graph_update(executable->graph, graph, info, &former);
		driver_graph_exec_keep(executable, former);
		driver_graph_exec_changed(executable);
	} else {
		result = CUDA_ERROR_INVALID_VALUE;
	}
	driver_graph_unlock();
	return result;
}

/* The form before CUDA 12. */
DRIVER_EXPORT CUresult cuGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphNode *error,
					 CUgraphExecUpdateResult *why)
{
	DRIVER_CALL;
	CUgraphExecUpdateResultInfo info;
	CUresult result = cuGraphExecUpdate_v2(executable, graph, &info);

	if (error)
		*error = info.errorNode;
	if (why)
		*why = info.result;
	return result;
}
