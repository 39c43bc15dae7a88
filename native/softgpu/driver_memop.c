/* Stream memory operations: a stream that writes words of memory, or waits for them.
 *
 * What is waited for may come from anywhere: from another stream, another process or the
 * program itself, where it has the memory too.  So a wait looks again and again, with
 * pauses that grow: nothing tells of a store. */
#include "driver_capture.h"
#include "driver_graph.h"
#include "driver_memory.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#define BATCH_MAX 256u			/* cuda.h: "count ... must be less than 256" */
#define PAUSE_MAX_NS 200000u

struct memop_operation {
	struct driver_operation base;
	struct CUctx_st *context;	/* the stream's or node's, which outlives the operation */
	unsigned count;
	CUstreamBatchMemOpParams operations[];
};

static bool is_wide(CUstreamBatchMemOpType type)
{
	return type == CU_STREAM_MEM_OP_WAIT_VALUE_64 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

/* GEQ is cyclic: "(int32_t)(*addr - value) >= 0" */
static bool holds(uint64_t found, uint64_t value, unsigned how, bool wide)
{
	uint64_t all = wide ? UINT64_MAX : UINT32_MAX;

	switch (how & 3) {
	case CU_STREAM_WAIT_VALUE_GEQ:
		return wide ? (int64_t)(found - value) >= 0 :
			      (int32_t)(uint32_t)(found - value) >= 0;
	case CU_STREAM_WAIT_VALUE_EQ:
		return found == value;
	case CU_STREAM_WAIT_VALUE_AND:
		return found & value;
	default:
		return ~(found | value) & all;
	}
}

static void await(const struct memop_operation *batch, const CUstreamBatchMemOpParams *operation)
{
	bool wide = is_wide(operation->operation);
	const void *memory = (const void *)(uintptr_t)operation->waitValue.address;
	uint64_t value = wide ? operation->waitValue.value64 : operation->waitValue.value;
	struct timespec pause = { .tv_nsec = 1000 };

	for (unsigned turn = 0;; turn++) {
		uint64_t found = wide ? __atomic_load_n((const uint64_t *)memory, __ATOMIC_ACQUIRE) :
					__atomic_load_n((const uint32_t *)memory, __ATOMIC_ACQUIRE);

		if (holds(found, value, operation->waitValue.flags, wide) ||
		    __atomic_load_n(&batch->context->cancel, __ATOMIC_RELAXED) ||
		    __atomic_load_n(&batch->context->error, __ATOMIC_RELAXED))
			return;
		if (turn < 16) {
			sched_yield();
			continue;
		}
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < (long)PAUSE_MAX_NS)
			pause.tv_nsec *= 2;
	}
}

static CUresult run_batch(struct driver_operation *base, CUresult state)
{
	const struct memop_operation *batch = (struct memop_operation *)base;

	(void)state;
	for (unsigned k = 0; k < batch->count; k++) {
		const CUstreamBatchMemOpParams *operation = &batch->operations[k];
		void *memory = (void *)(uintptr_t)operation->writeValue.address;

		switch (operation->operation) {
		case CU_STREAM_MEM_OP_WAIT_VALUE_32:
		case CU_STREAM_MEM_OP_WAIT_VALUE_64:
			await(batch, operation);
			break;
		case CU_STREAM_MEM_OP_WRITE_VALUE_32:
			__atomic_store_n((uint32_t *)memory, operation->writeValue.value,
					 __ATOMIC_SEQ_CST);
			break;
		case CU_STREAM_MEM_OP_WRITE_VALUE_64:
			__atomic_store_n((uint64_t *)memory, operation->writeValue.value64,
					 __ATOMIC_SEQ_CST);
			break;
		default:
			__atomic_thread_fence(__ATOMIC_SEQ_CST);
			break;
		}
	}
	return CUDA_SUCCESS;
}

static void release_batch(struct driver_operation *operation)
{
	free(operation);
}

static CUresult check(const CUstreamBatchMemOpParams *operation)
{
	size_t bytes = is_wide(operation->operation) ? 8 : 4;

	switch (operation->operation) {
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
		if (operation->waitValue.flags & ~3u)
			return operation->waitValue.flags & CU_STREAM_WAIT_VALUE_FLUSH ?
				       CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
		break;
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
	case CU_STREAM_MEM_OP_WRITE_VALUE_64:
		if (operation->writeValue.flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
			return CUDA_ERROR_INVALID_VALUE;
		break;
	case CU_STREAM_MEM_OP_BARRIER:
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (operation->waitValue.address % bytes)
		return CUDA_ERROR_INVALID_VALUE;
	return driver_memory_check(operation->waitValue.address, bytes);
}

CUresult driver_words_prepare(struct CUctx_st *context, const CUstreamBatchMemOpParams *operations,
			      unsigned count, unsigned flags, struct driver_operation **operation,
			      CUstreamBatchMemOpParams **kept)
{
	struct memop_operation *batch;
	CUresult result = CUDA_SUCCESS;
	bool waits = false;

	if (!operations || !count || count >= BATCH_MAX || flags)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned k = 0; k < count && !result; k++) {
		result = check(&operations[k]);
		waits |= operations[k].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
			 operations[k].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
	}
	if (result)
		return result;
	batch = calloc(1, sizeof *batch + count * sizeof *operations);
	if (!batch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	batch->base.run = run_batch;
	batch->base.release = release_batch;
	/* It reads memory that stays where it is while another process writes it. */
	batch->base.is_idle = waits;
	batch->context = context;
	batch->count = count;
	for (unsigned k = 0; k < count; k++)
		batch->operations[k] = operations[k];
	if (kept)
		*kept = batch->operations;
	*operation = &batch->base;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuStreamBatchMemOp_v2(CUstream handle, unsigned int count,
					     CUstreamBatchMemOpParams *operations,
					     unsigned int flags)
{
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

	if (is_wide(type))
		operation.waitValue.value64 = value;
	else
		operation.waitValue.value = (uint32_t)value;
	return cuStreamBatchMemOp_v2(stream, 1, &operation, 0);
}

DRIVER_EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address,
					      cuuint32_t value, unsigned int flags)
{
	return one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, address, value, flags);
}

DRIVER_EXPORT CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address,
					      cuuint64_t value, unsigned int flags)
{
	return one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, address, value, flags);
}

DRIVER_EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address,
					       cuuint32_t value, unsigned int flags)
{
	return one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, address, value, flags);
}

DRIVER_EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address,
					       cuuint64_t value, unsigned int flags)
{
	return one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, address, value, flags);
}

/* By which cuBLAS looks for some of them. */
DRIVER_FIRST_NAME(cuStreamBatchMemOp);
DRIVER_FIRST_NAME(cuStreamWaitValue32);
DRIVER_FIRST_NAME(cuStreamWaitValue64);
DRIVER_FIRST_NAME(cuStreamWriteValue32);
DRIVER_FIRST_NAME(cuStreamWriteValue64);

/* ---- attributes of streams ---- */

static CUlaunchAttributeValue *attribute_of(struct CUstream_st *stream, CUlaunchAttributeID id)
{
	switch (id) {
	case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
		return &stream->attributes[0];
	case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
		return &stream->attributes[1];
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
		return &stream->attributes[2];
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
		return &stream->attributes[3];
	default:
		return NULL;
	}
}

DRIVER_EXPORT CUresult cuStreamGetAttribute(CUstream handle, CUlaunchAttributeID id,
					    CUlaunchAttributeValue *value)
{
	struct CUstream_st *stream;
	CUresult result = driver_stream_of(handle, &stream);

	if (result)
		return result;
	if (value && id == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
		*value = (CUlaunchAttributeValue){ .priority = stream->priority };
		return CUDA_SUCCESS;
	}
	if (!value || !attribute_of(stream, id))
		return CUDA_ERROR_INVALID_VALUE;
	*value = *attribute_of(stream, id);
	return CUDA_SUCCESS;
}

/* Hints, which change nothing here; a priority is chosen when a stream is made. */
DRIVER_EXPORT CUresult cuStreamSetAttribute(CUstream handle, CUlaunchAttributeID id,
					    const CUlaunchAttributeValue *value)
{
	struct CUstream_st *stream;
	CUresult result = driver_stream_of(handle, &stream);

	if (result)
		return result;
	if (!value || !attribute_of(stream, id) ||
	    (id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN && (unsigned)value->memSyncDomain > 1))
		return CUDA_ERROR_INVALID_VALUE;
	*attribute_of(stream, id) = *value;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuStreamCopyAttributes(CUstream to, CUstream from)
{
	struct CUstream_st *target, *source;
	CUresult result = driver_stream_of(to, &target);

	if (!result)
		result = driver_stream_of(from, &source);
	if (result)
		return result;
	for (size_t k = 0; k < sizeof target->attributes / sizeof *target->attributes; k++)
		target->attributes[k] = source->attributes[k];
	return CUDA_SUCCESS;
}
