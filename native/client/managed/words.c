/* Words that streams write and wait for, where they lie in managed memory or in pinned memory that is managed.
 *
 * A write is the GPU's, like a kernel's.  A wait would end only when the GPU writes the word: what
 * the processor writes there travels with the next work or wait of the program, which may itself wait
 * for the stream.  So it is refused, of graphs too, for a program that hangs says nothing. */
#include "../ground/message.h"
#include "../handles/streams.h"
#include "managed.h"
#include "words.h"

#include "../../generated/client_raw.h"

static bool waits(const CUstreamBatchMemOpParams *op)
{
	return op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

static bool writes(const CUstreamBatchMemOpParams *op)
{
	return op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
	       op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

static CUresult check_wait(uint64_t address)
{
	static _Atomic bool said;

	if (!client_managed_at(address))
		return CUDA_SUCCESS;
	if (!atomic_exchange(&said, true))
		client_message("a stream can't wait for a word of managed or mapped memory over remoting (cuStreamWaitValue32 "
			       "and its like, at %#llx), as what this process writes there may not get to the GPU meanwhile: "
			       "use a word of the GPU's memory and write it with cuStreamWriteValue32, or wait in a host "
			       "function", (unsigned long long)address);
	return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult check(const CUstreamBatchMemOpParams *ops, unsigned count)
{
	CUresult result = CUDA_SUCCESS;

	for (unsigned i = 0; client_managed_any() && ops && i < count && result == CUDA_SUCCESS; i++)
		if (waits(&ops[i]))
			result = check_wait(ops[i].waitValue.address);
	return result;
}

static CUresult check_words(const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	return params ? check(params->paramArray, params->count) : CUDA_SUCCESS;
}

CUresult client_words_check(const CUgraphNodeParams *params)
{
	return params && params->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP
		       ? check(params->memOp.paramArray, params->memOp.count)
		       : CUDA_SUCCESS;
}

/* ---- of streams ---- */

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr_v2 addr, cuuint32_t value, unsigned int flags)
{
	CUresult result = check_wait(addr);

	return result == CUDA_SUCCESS ? client_raw_cuStreamWaitValue32_v2(stream, addr, value, flags) : result;
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr_v2 addr, cuuint64_t value, unsigned int flags)
{
	CUresult result = check_wait(addr);

	return result == CUDA_SUCCESS ? client_raw_cuStreamWaitValue64_v2(stream, addr, value, flags) : result;
}

/* Does it write managed memory?  Then *wire is the stream's name there. */
static bool writes_managed(CUstream stream, uint64_t address, uint64_t *wire)
{
	return client_managed_at(address) && client_stream_wire(stream, wire) == CUDA_SUCCESS;
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr_v2 addr, cuuint32_t value, unsigned int flags)
{
	uint64_t wire;
	CUresult result;

	if (!writes_managed(stream, addr, &wire))
		return client_raw_cuStreamWriteValue32_v2(stream, addr, value, flags);
	result = client_managed_before_range(wire, addr, sizeof(value), true);
	if (result == CUDA_SUCCESS)
		result = client_raw_cuStreamWriteValue32_v2(stream, addr, value, flags);
	client_managed_after_range(wire, addr, sizeof(value), true);
	return result;
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr_v2 addr, cuuint64_t value, unsigned int flags)
{
	uint64_t wire;
	CUresult result;

	if (!writes_managed(stream, addr, &wire))
		return client_raw_cuStreamWriteValue64_v2(stream, addr, value, flags);
	result = client_managed_before_range(wire, addr, sizeof(value), true);
	if (result == CUDA_SUCCESS)
		result = client_raw_cuStreamWriteValue64_v2(stream, addr, value, flags);
	client_managed_after_range(wire, addr, sizeof(value), true);
	return result;
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray,
			       unsigned int flags)
{
	CUresult result = check(paramArray, count);
	bool managed = false;
	uint64_t wire = 0;

	if (result != CUDA_SUCCESS)
		return result;
	for (unsigned i = 0; client_managed_any() && paramArray && i < count && !managed; i++)
		managed = writes(&paramArray[i]) && writes_managed(stream, paramArray[i].writeValue.address, &wire);
	if (!managed)
		return client_raw_cuStreamBatchMemOp_v2(stream, count, paramArray, flags);
	result = client_managed_before(wire, false);
	if (result == CUDA_SUCCESS)
		result = client_raw_cuStreamBatchMemOp_v2(stream, count, paramArray, flags);
	client_managed_after(wire);
	return result;
}

/* ---- of graphs: launching one takes all managed memory along ---- */

CUresult cuGraphAddBatchMemOpNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
				  size_t numDependencies, const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
	CUresult result = check_words(nodeParams);

	return result == CUDA_SUCCESS ? client_raw_cuGraphAddBatchMemOpNode(phGraphNode, hGraph, dependencies,
									    numDependencies, nodeParams)
				      : result;
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
	CUresult result = check_words(nodeParams);

	return result == CUDA_SUCCESS ? client_raw_cuGraphBatchMemOpNodeSetParams(hNode, nodeParams) : result;
}

CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					    const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
	CUresult result = check_words(nodeParams);

	return result == CUDA_SUCCESS ? client_raw_cuGraphExecBatchMemOpNodeSetParams(hGraphExec, hNode, nodeParams)
				      : result;
}
