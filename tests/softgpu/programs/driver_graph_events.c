/* Event nodes: another stream waits for a record in the middle of a graph, whose second half waits for
 * what that stream did before. */
#include "graph.h"

int main(void)
{
	CUgraphNode first, record, wait, last;
	CUevent middle, before, found;
	CUgraphExec executable;
	CUdeviceptr word;
	CUgraph graph;
	CUstream stream, side;
	struct gate gate;
	unsigned seen;

	begin();
	word = new_word(0);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&middle, CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventCreate(&before, CU_EVENT_DISABLE_TIMING));
	CHECK(cuGraphCreate(&graph, 0));
	first = add_store(graph, NULL, word, 1);
	CHECK(cuGraphAddEventRecordNode(&record, graph, &first, 1, middle));
	CHECK(cuGraphAddEventWaitNode(&wait, graph, &record, 1, before));
	last = add_store(graph, wait, word, 3);
	CHECK(cuGraphEventRecordNodeGetEvent(record, &found));
	REQUIRE(found == middle);
	CHECK(cuGraphEventWaitNodeGetEvent(wait, &found));
	REQUIRE(found == before);
	(void)last;
	executable = instantiate(graph);

	gate_close(&gate, side);
	CHECK(cuEventRecord(before, side));
	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuEventSynchronize(middle));
	CHECK(cuMemcpyDtoH(&seen, word, 4));
	REQUIRE_EQUAL(seen, 1);
	EXPECT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	gate_open(&gate);
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(word), 3);

	/* An event that is gone: nothing of the graph runs. */
	CHECK(cuEventDestroy(before));
	CHECK(cuMemsetD32(word, 0, 1));
	EXPECT(cuGraphLaunch(executable, stream), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(word), 0);
	return 0;
}
