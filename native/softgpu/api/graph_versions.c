/* Earlier forms of the functions of graphs, and those for the per-thread default stream. */
#include "../driver/abi.h"

#include <stddef.h>
#include <string.h>

/* The forms that they stand on, each in the file of its noun. */
CUresult cuGraphAddKernelNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
				 const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphAddNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, const CUgraphEdgeData *,
			   size_t, CUgraphNodeParams *);
CUresult cuGraphAddDependencies_v2(CUgraph, const CUgraphNode *, const CUgraphNode *,
				   const CUgraphEdgeData *, size_t);
CUresult cuGraphRemoveDependencies_v2(CUgraph, const CUgraphNode *, const CUgraphNode *,
				      const CUgraphEdgeData *, size_t);
CUresult cuGraphGetEdges_v2(CUgraph, CUgraphNode *, CUgraphNode *, CUgraphEdgeData *, size_t *);
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode, CUgraphNode *, CUgraphEdgeData *, size_t *);
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode, CUgraphNode *, CUgraphEdgeData *, size_t *);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphUpload(CUgraphExec, CUstream);
CUresult cuStreamBeginCapture(CUstream);
CUresult cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
CUresult cuStreamBeginCaptureToGraph(CUstream, CUgraph, const CUgraphNode *, const CUgraphEdgeData *,
				     size_t, CUstreamCaptureMode);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuStreamUpdateCaptureDependencies_v2(CUstream, CUgraphNode *, const CUgraphEdgeData *, size_t,
					      unsigned int);

/* ---- before CUDA 12: kernel nodes knew functions only, not kernels ---- */

static CUDA_KERNEL_NODE_PARAMS widen(const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	CUDA_KERNEL_NODE_PARAMS wide = { 0 };

	_Static_assert(sizeof *params <= offsetof(CUDA_KERNEL_NODE_PARAMS, kern),
		       "the new fields stand behind the old ones");
	memcpy(&wide, params, sizeof *params);
	return wide;
}

DRIVER_EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph,
					    const CUgraphNode *dependencies, size_t count,
					    const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	CUDA_KERNEL_NODE_PARAMS wide;

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	wide = widen(params);
	return cuGraphAddKernelNode_v2(out, graph, dependencies, count, &wide);
}

DRIVER_EXPORT CUresult cuGraphKernelNodeGetParams(CUgraphNode node,
						  CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	CUDA_KERNEL_NODE_PARAMS wide;
	CUresult result;

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	result = cuGraphKernelNodeGetParams_v2(node, &wide);
	if (result)
		return result;
	memcpy(params, &wide, sizeof *params);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGraphKernelNodeSetParams(CUgraphNode node,
						  const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	CUDA_KERNEL_NODE_PARAMS wide;

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	wide = widen(params);
	return cuGraphKernelNodeSetParams_v2(node, &wide);
}

DRIVER_EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node,
						      const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	CUDA_KERNEL_NODE_PARAMS wide;

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	wide = widen(params);
	return cuGraphExecKernelNodeSetParams_v2(executable, node, &wide);
}

/* ---- before CUDA 12.3: edges without data ---- */

DRIVER_EXPORT CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph,
				      const CUgraphNode *dependencies, size_t count,
				      CUgraphNodeParams *params)
{
	return cuGraphAddNode_v2(out, graph, dependencies, NULL, count, params);
}

DRIVER_EXPORT CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from,
					      const CUgraphNode *to, size_t count)
{
	return cuGraphAddDependencies_v2(graph, from, to, NULL, count);
}

DRIVER_EXPORT CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from,
						 const CUgraphNode *to, size_t count)
{
	return cuGraphRemoveDependencies_v2(graph, from, to, NULL, count);
}

DRIVER_EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
				       size_t *count)
{
	return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

DRIVER_EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes,
						  size_t *count)
{
	return cuGraphNodeGetDependencies_v2(node, nodes, NULL, count);
}

DRIVER_EXPORT CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes,
						    size_t *count)
{
	return cuGraphNodeGetDependentNodes_v2(node, nodes, NULL, count);
}

/* ---- a NULL stream is the calling thread's own ---- */

static CUstream own(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

DRIVER_EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec executable, CUstream stream)
{
	return cuGraphLaunch(executable, own(stream));
}

DRIVER_EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec executable, CUstream stream)
{
	return cuGraphUpload(executable, own(stream));
}

DRIVER_EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
	return cuStreamBeginCapture(own(stream));
}

DRIVER_EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
	return cuStreamBeginCapture_v2(own(stream), mode);
}

DRIVER_EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
							const CUgraphNode *dependencies,
							const CUgraphEdgeData *data, size_t count,
							CUstreamCaptureMode mode)
{
	return cuStreamBeginCaptureToGraph(own(stream), graph, dependencies, data, count, mode);
}

DRIVER_EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	return cuStreamEndCapture(own(stream), graph);
}

DRIVER_EXPORT CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream stream,
							      CUgraphNode *dependencies,
							      size_t count, unsigned int flags)
{
	return cuStreamUpdateCaptureDependencies_v2(own(stream), dependencies, NULL, count, flags);
}

DRIVER_EXPORT CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream,
								 CUgraphNode *dependencies,
								 const CUgraphEdgeData *data,
								 size_t count, unsigned int flags)
{
	return cuStreamUpdateCaptureDependencies_v2(own(stream), dependencies, data, count, flags);
}
