/* Streams that write and wait for words of memory; attributes of streams. */
#include "calls.h"

int main(void)
{
	CUstreamBatchMemOpParams batch[3] = { 0 };
	CUstreamAttrValue value = { 0 }, found;
	CUstream writer, waiter;
	CUdeviceptr word, wide, copy;
	unsigned long long both = 0;

	begin();
	CHECK(cuStreamCreate(&writer, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&waiter, CU_STREAM_NON_BLOCKING));
	word = words(4, 0);
	wide = words(4, 0);
	copy = words(4, 0);

	/* A copy behind a wait sees what the other stream wrote before. */
	CHECK(cuStreamWaitValue32_v2(waiter, word, 5, CU_STREAM_WAIT_VALUE_EQ));
	CHECK(cuMemcpyDtoDAsync_v2(copy, word, 4, waiter));
	EXPECT(cuStreamQuery(waiter), CUDA_ERROR_NOT_READY);
	CHECK(cuStreamWriteValue32_v2(writer, word, 5, CU_STREAM_WRITE_VALUE_DEFAULT));
	CHECK(cuStreamSynchronize(waiter));
	REQUIRE_EQUAL(word_at(copy), 5);
	CHECK(cuStreamWaitValue32(waiter, word, 6, CU_STREAM_WAIT_VALUE_GEQ));
	CHECK(cuStreamWriteValue32(writer, word, 7, 0));
	CHECK(cuStreamSynchronize(waiter));
	REQUIRE_EQUAL(word_at(word), 7);

	CHECK(cuStreamWaitValue64_v2(waiter, wide, 1ull << 40, CU_STREAM_WAIT_VALUE_AND));
	CHECK(cuStreamWriteValue64_v2(writer, wide, 3ull << 40, 0));
	CHECK(cuStreamSynchronize(waiter));
	CHECK(cuMemcpyDtoH_v2(&both, wide, 8));
	REQUIRE_EQUAL(both, 3ull << 40);
	CHECK(cuStreamWaitValue64(waiter, wide, 9, CU_STREAM_WAIT_VALUE_EQ));
	CHECK(cuStreamWriteValue64(writer, wide, 9, 0));
	CHECK(cuStreamSynchronize(waiter));
	EXPECT(cuStreamWriteValue32_v2(writer, word + 2, 0, 0), CUDA_ERROR_INVALID_VALUE);

	/* Several at one time, in order. */
	batch[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
	batch[0].writeValue.address = word;
	batch[0].writeValue.value = 21;
	batch[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
	batch[1].waitValue.address = word;
	batch[1].waitValue.value = 21;
	batch[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
	batch[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
	batch[2].writeValue.address = wide;
	batch[2].writeValue.value64 = 22;
	CHECK(cuStreamBatchMemOp_v2(writer, 3, batch, 0));
	CHECK(cuStreamSynchronize(writer));
	REQUIRE_EQUAL(word_at(word), 21);
	REQUIRE_EQUAL(word_at(wide), 22);
	batch[0].writeValue.value = batch[1].waitValue.value = 31;
	CHECK(cuStreamBatchMemOp(writer, 2, batch, 0));
	CHECK(cuStreamSynchronize(writer));
	REQUIRE_EQUAL(word_at(word), 31);
	EXPECT(cuStreamBatchMemOp_v2(writer, 1, batch, 1), CUDA_ERROR_INVALID_VALUE);

	/* Attributes are the stream's own, and can be copied. */
	value.syncPolicy = CU_SYNC_POLICY_YIELD;
	CHECK(cuStreamSetAttribute(writer, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
	CHECK(cuStreamGetAttribute(writer, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &found));
	REQUIRE_EQUAL(found.syncPolicy, CU_SYNC_POLICY_YIELD);
	CHECK(cuStreamGetAttribute(waiter, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &found));
	REQUIRE(found.syncPolicy != CU_SYNC_POLICY_YIELD);
	CHECK(cuStreamCopyAttributes(waiter, writer));
	CHECK(cuStreamGetAttribute(waiter, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &found));
	REQUIRE_EQUAL(found.syncPolicy, CU_SYNC_POLICY_YIELD);
	EXPECT(cuStreamSetAttribute(writer, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value),
	       CUDA_ERROR_INVALID_VALUE);
	return 0;
}
