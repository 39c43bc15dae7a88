/* A launch records events when its kernel has run at the latest; a preferred cluster is one of several that are its own. */
#include "gate.h"

CUresult cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuGraphGetNodes(CUgraph, CUgraphNode *, size_t *);
CUresult cuGraphGetEdges(CUgraph, CUgraphNode *, CUgraphNode *, size_t *);
CUresult cuGraphDestroy(CUgraph);

static CUlaunchConfig config = {
	.gridDimX = 8, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1,
};

static CUresult launch(CUfunction function, CUlaunchAttribute *attributes, unsigned count, CUdeviceptr address)
{
	unsigned value = 3;
	void *params[] = { &address, &value };

	config.attrs = attributes;
	config.numAttrs = count;
	return cuLaunchKernelEx(&config, function, params, NULL);
}

static CUlaunchAttribute completion(CUevent event, int flags)
{
	return (CUlaunchAttribute){
		.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT,
		.value.launchCompletionEvent = { .event = event, .flags = flags },
	};
}

static CUlaunchAttribute programmatic(CUevent event, int at_start)
{
	return (CUlaunchAttribute){
		.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT,
		.value.programmaticEvent = { .event = event, .triggerAtBlockStart = at_start },
	};
}

static void wrong_events(CUfunction store, CUdeviceptr word)
{
	CUlaunchAttribute attribute;
	CUcontext other, own;
	CUevent event;

	attribute = completion(NULL, 0);
	EXPECT(launch(store, &attribute, 1, word), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuEventCreate(&event, CU_EVENT_DEFAULT));
	attribute = completion(event, 0);
	EXPECT(launch(store, &attribute, 1, word), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuEventDestroy(event));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	attribute = programmatic(event, 1);
	EXPECT(launch(store, &attribute, 1, word), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuEventDestroy(event));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	attribute = completion(event, CU_EVENT_RECORD_EXTERNAL);
	EXPECT(launch(store, &attribute, 1, word), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuEventDestroy(event));
	CHECK(cuCtxGetCurrent(&own));
	CHECK(cuCtxCreate(&other, 0, 0));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuCtxSetCurrent(own));
	attribute = completion(event, 0);
	EXPECT(launch(store, &attribute, 1, word), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuCtxDestroy(other));
}

static void recorded(CUfunction store, CUdeviceptr word)
{
	CUlaunchAttribute attributes[2];
	CUevent events[2];
	CUstream streams[2];
	pthread_t opener;
	unsigned seen = 0;

	gate_make();
	for (int i = 0; i < 2; i++) {
		CHECK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
		CHECK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
	}
	attributes[0] = completion(events[0], 0);
	attributes[1] = programmatic(events[1], 1);
	config.hStream = streams[0];
	CHECK(cuMemsetD32(word, 0, 1));
	gate_await(gate_kernel(), streams[0]);
	CHECK(launch(store, attributes, 2, word));
	/* Of what is held back no block has begun. */
	EXPECT(cuEventQuery(events[0]), CUDA_ERROR_NOT_READY);
	EXPECT(cuEventQuery(events[1]), CUDA_ERROR_NOT_READY);
	CHECK(cuStreamWaitEvent(streams[1], events[0], 0));
	CHECK(cuStreamWaitEvent(streams[1], events[1], 0));
	EXPECT(cuStreamQuery(streams[1]), CUDA_ERROR_NOT_READY);
	opener = gate_open_behind_call();
	CHECK(cuEventSynchronize(events[0]));
	CHECK(cuEventSynchronize(events[1]));
	CHECK(cuStreamSynchronize(streams[1]));
	pthread_join(opener, NULL);
	CHECK(cuStreamSynchronize(streams[0]));
	CHECK(cuMemcpyDtoH(&seen, word, 4));
	REQUIRE_EQUAL(seen, 3);
	for (int i = 0; i < 2; i++) {
		CHECK(cuEventDestroy(events[i]));
		CHECK(cuStreamDestroy(streams[i]));
	}
	config.hStream = NULL;
}

/* In a capture the event stands for the kernel's node. */
static void captured(CUfunction store, CUdeviceptr word)
{
	CUgraphNode from[4], to[4];
	CUlaunchAttribute attribute;
	size_t count = 4;
	CUstream streams[2];
	CUevent event, back;
	CUgraph graph;

	for (int i = 0; i < 2; i++)
		CHECK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventCreate(&back, CU_EVENT_DISABLE_TIMING));
	attribute = completion(event, 0);
	CHECK(cuStreamBeginCapture_v2(streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
	config.hStream = streams[0];
	CHECK(launch(store, &attribute, 1, word));
	CHECK(cuStreamWaitEvent(streams[1], event, 0));
	config.hStream = streams[1];
	CHECK(launch(store, NULL, 0, word));
	CHECK(cuEventRecord(back, streams[1]));
	CHECK(cuStreamWaitEvent(streams[0], back, 0));
	CHECK(cuStreamEndCapture(streams[0], &graph));
	CHECK(cuGraphGetEdges(graph, from, to, &count));
	REQUIRE_EQUAL(count, 1);
	CHECK(cuGraphDestroy(graph));
	config.hStream = NULL;
}

static CUlaunchAttribute cluster(CUlaunchAttributeID id, unsigned x, unsigned y, unsigned z)
{
	CUlaunchAttribute attribute = { .id = id, .value.clusterDim = { x, y, z } };

	return attribute;
}

static void preferred(CUfunction store, CUdeviceptr word)
{
	CUlaunchAttribute both[2] = {
		cluster(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 2, 1, 1),
		cluster(CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, 4, 1, 1),
	};
	unsigned seen = 0;

	CHECK(cuMemsetD32(word, 0, 1));
	CHECK(launch(store, both, 2, word));
	CHECK(cuMemcpyDtoH(&seen, word, 4));
	REQUIRE_EQUAL(seen, 3);
	/* Alone it has no effect. */
	CHECK(launch(store, &both[1], 1, word));
	both[1] = cluster(CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, 3, 1, 1);
	EXPECT(launch(store, both, 2, word), CUDA_ERROR_INVALID_CLUSTER_SIZE);
	both[1] = cluster(CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, 0, 1, 1);
	EXPECT(launch(store, both, 2, word), CUDA_ERROR_INVALID_CLUSTER_SIZE);
	both[1] = cluster(CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, 16, 1, 1);
	EXPECT(launch(store, both, 2, word), CUDA_ERROR_INVALID_CLUSTER_SIZE);
}

int main(void)
{
	CUfunction store;
	CUdeviceptr word;

	(void)begin();
	store = kernel("store");
	CHECK(cuMemAlloc(&word, 4));
	wrong_events(store, word);
	recorded(store, word);
	captured(store, word);
	preferred(store, word);
	return 0;
}
