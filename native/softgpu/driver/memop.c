/* Stream memory operations: a stream that writes words of memory, or waits for them.
 *
 * What is waited for may come from anywhere: from another stream, another process or the
 * program itself, where it has the memory too.  So a wait looks again and again, with
 * pauses that grow: nothing tells of a store. */
#include "memop.h"

#include "memory.h"

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
