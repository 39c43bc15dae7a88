/* Stream memory operations: one by one, and in batches. */
#include "../driver/memop.h"

#include "../driver/capture.h"
#include "../driver/stream.h"

DRIVER_EXPORT CUresult cuStreamBatchMemOp_v2(CUstream handle, unsigned int count,
					     CUstreamBatchMemOpParams *operations,
					     unsigned int flags)
{
	DRIVER_CALL;
	const CUDA_BATCH_MEM_OP_NODE_PARAMS params = {
		.count = count, .paramArray = operations, .flags = flags,
	};
	struct driver_operation *operation;
	struct CUstream_st *stream;
	bool capturing;
	CUresult result = driver_stream_enter_or_capture(handle, &stream, &capturing);

	if (!result && capturing)
		return driver_capture_words(stream, &params);
	if (!result)
		result = driver_words_prepare(stream->context, operations, count, flags,
					      &operation, NULL);
	if (result)
		return result;
	return driver_stream_submit(stream, operation,
				    operation->is_idle ? 0 : DRIVER_SUBMIT_SHORT, NULL);
}

static CUresult one(CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address,
		    uint64_t value, unsigned flags)
{
	CUstreamBatchMemOpParams operation = {
		.waitValue = { .operation = type, .address = address, .flags = flags },
	};

	if (type == CU_STREAM_MEM_OP_WAIT_VALUE_64 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64)
		operation.waitValue.value64 = value;
	else
		operation.waitValue.value = (uint32_t)value;
	return cuStreamBatchMemOp_v2(stream, 1, &operation, 0);
}

DRIVER_EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address,
					      cuuint32_t value, unsigned int flags)
{
	DRIVER_CALL;
	return one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, address, value, flags);
}

DRIVER_EXPORT CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address,
					      cuuint64_t value, unsigned int flags)
{
	DRIVER_CALL;
	return one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, address, value, flags);
}

DRIVER_EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address,
					       cuuint32_t value, unsigned int flags)
{
	DRIVER_CALL;
	return one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, address, value, flags);
}

DRIVER_EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address,
					       cuuint64_t value, unsigned int flags)
{
	DRIVER_CALL;
	return one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, address, value, flags);
}

/* By which cuBLAS looks for some of them. */
DRIVER_FIRST_NAME(cuStreamBatchMemOp);
DRIVER_FIRST_NAME(cuStreamWaitValue32);
DRIVER_FIRST_NAME(cuStreamWaitValue64);
DRIVER_FIRST_NAME(cuStreamWriteValue32);
DRIVER_FIRST_NAME(cuStreamWriteValue64);
