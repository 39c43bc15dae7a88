#include "../driver/graph/exec.h"

#include "../driver/capture.h"
#include "../driver/handle.h"
#include "../driver/stream.h"

#define FLAGS_KNOWN (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | \
		     CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | \
		     CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

/* ---- launching ---- */

DRIVER_EXPORT CUresult cuGraphLaunch(CUgraphExec executable, CUstream handle)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	bool capturing;
	CUresult result = driver_stream_enter_or_capture(handle, &stream, &capturing);

	if (!result)
		result = driver_graph_exec_enter(executable);
	if (result)
		return result;
	if (!capturing)
		return driver_graph_exec_launch(executable, stream);
	executable->references++;
	driver_graph_unlock();
	result = driver_capture_graph(stream, executable->graph);
	driver_graph_lock();
	driver_graph_exec_drop(executable);
	driver_graph_unlock();
	return result;
}

/* There is nothing to upload. */
DRIVER_EXPORT CUresult cuGraphUpload(CUgraphExec executable, CUstream handle)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUresult result = driver_stream_enter(handle, &stream);

	if (!result)
		result = driver_graph_exec_enter(executable);
	if (!result)
		driver_graph_unlock();
	return result;
}

/* ---- making and ending ---- */

DRIVER_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph,
						    CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	DRIVER_CALL;
	CUresult result;

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	params->hErrNode_out = NULL;
	params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
	if (!out || params->flags & ~(cuuint64_t)FLAGS_KNOWN)
		return CUDA_ERROR_INVALID_VALUE;
	if (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
		return driver_unsupported("launching a graph from a kernel");
	result = driver_graph_enter(graph);
	if (result)
		return result;
	result = driver_graph_exec_make(graph, params, out);
	driver_graph_unlock();
	if (!result)
		params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
	return result;
}

DRIVER_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph,
							 CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	DRIVER_CALL;
	/* The stream is only for the upload, which is nothing. */
	return cuGraphInstantiateWithParams(out, graph, params);
}

DRIVER_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph,
						   unsigned long long flags)
{
	DRIVER_CALL;
	CUDA_GRAPH_INSTANTIATE_PARAMS params = { .flags = flags };

	if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)	/* there is no stream for it */
		return CUDA_ERROR_INVALID_VALUE;
	return cuGraphInstantiateWithParams(out, graph, &params);
}

/* The form of CUDA 10 and 11 wrote what is wrong into a buffer. */
DRIVER_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error,
					     char *log, size_t bytes)
{
	DRIVER_CALL;
	CUDA_GRAPH_INSTANTIATE_PARAMS params = { 0 };
	CUresult result = cuGraphInstantiateWithParams(out, graph, &params);

	if (error)
		*error = params.hErrNode_out;
	if (log && bytes)
		*log = '\0';
	return result;
}

DRIVER_EXPORT CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error,
					  char *log, size_t bytes)
{
	return cuGraphInstantiate_v2(out, graph, error, log, bytes);
}

DRIVER_EXPORT CUresult cuGraphExecGetFlags(CUgraphExec executable, cuuint64_t *flags)
{
	DRIVER_CALL;
	CUresult result = driver_graph_exec_enter(executable);

	if (result)
		return result;
	if (flags)
		*flags = executable->flags;
	driver_graph_unlock();
	return flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* That of the graph of its own, which it was instantiated into. */
DRIVER_EXPORT CUresult cuGraphExecGetId(CUgraphExec executable, unsigned int *id)
{
	DRIVER_CALL;
	CUresult result = driver_graph_exec_enter(executable);

	if (result)
		return result;
	if (id)
		*id = (unsigned)executable->graph->id;
	driver_graph_unlock();
	return id ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Launches under way run to their ends. */
DRIVER_EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable)
{
	DRIVER_CALL;
	CUresult result = driver_graph_exec_enter(executable);

	if (result)
		return result;
	driver_handle_remove(executable, DRIVER_KIND_GRAPH_EXEC);
	driver_graph_exec_drop(executable);
	driver_graph_unlock();
	return CUDA_SUCCESS;
}

/* ---- switching nodes off ---- */

static bool can_be_disabled(const struct CUgraphNode_st *node)
{
	return node && (node->payload.type == CU_GRAPH_NODE_TYPE_KERNEL ||
			node->payload.type == CU_GRAPH_NODE_TYPE_MEMCPY ||
			node->payload.type == CU_GRAPH_NODE_TYPE_MEMSET);
}

static CUresult enter_switch(CUgraphExec executable, CUgraphNode node, struct CUgraphNode_st **found)
{
	CUresult result = driver_graph_exec_enter(executable);

	if (result)
		return result;
	*found = driver_handle_is(node, DRIVER_KIND_GRAPH_NODE) ?
		 driver_graph_exec_find(executable, node) : NULL;
	if (can_be_disabled(*found))
		return CUDA_SUCCESS;
	driver_graph_unlock();
	return CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec executable, CUgraphNode node,
					     unsigned int enabled)
{
	DRIVER_CALL;
	struct CUgraphNode_st *found;
	CUresult result = enter_switch(executable, node, &found);

	if (result)
		return result;
	found->disabled = !enabled;
	driver_graph_exec_changed(executable);
	driver_graph_unlock();
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGraphNodeGetEnabled(CUgraphExec executable, CUgraphNode node,
					     unsigned int *enabled)
{
	DRIVER_CALL;
	struct CUgraphNode_st *found;
	CUresult result;

	if (!enabled)
		return CUDA_ERROR_INVALID_VALUE;
	result = enter_switch(executable, node, &found);
	if (result)
		return result;
	*enabled = !found->disabled;
	driver_graph_unlock();
	return CUDA_SUCCESS;
}
