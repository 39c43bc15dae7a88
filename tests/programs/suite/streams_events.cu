// Streams and events: chains of operations that do not commute, spread over streams and ordered
// by events alone; any step that runs too early or too late changes the result.  Also: the default
// stream waits for blocking streams, and queries and elapsed times answer as they should.
#define PROGRAM "streams_events"
#include "check.h"

static const int STREAMS = 4;
static const int COUNT = 2000;

__global__ void step(unsigned *values, unsigned factor, unsigned addend, int delay)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= COUNT)
		return;
	unsigned value = values[i];
	for (int k = 0; k < delay; k++) // work of different length per step: a lost order shows
		value = value * 1664525u + 1013904223u;
	values[i] = value * factor + addend;
}

static unsigned stepped(unsigned value, unsigned factor, unsigned addend, int delay)
{
	for (int k = 0; k < delay; k++)
		value = value * 1664525u + 1013904223u;
	return value * factor + addend;
}

int main(int argc, char **argv)
{
	const int steps = size_option(argc, argv, 24, 1, 1 << 16);
	cudaStream_t streams[STREAMS];
	cudaEvent_t done, begin, end;
	for (cudaStream_t &stream : streams)
		CUDA(cudaStreamCreateWithFlags(&stream, &stream == streams ? cudaStreamDefault : cudaStreamNonBlocking));
	CUDA(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	unsigned *values = device_array<unsigned>(COUNT);
	CUDA(cudaMemset(values, 0, COUNT * sizeof *values));
	CUDA(cudaDeviceSynchronize());

	// One chain through all streams: each step waits for the event of the one before.  The same
	// event is recorded again and again; a wait must mean the latest record before it.
	unsigned expected = 0;
	CUDA(cudaEventRecord(begin, streams[0]));
	for (int k = 0; k < steps; k++) {
		cudaStream_t stream = streams[hash(k) % STREAMS];
		if (k > 0)
			CUDA(cudaStreamWaitEvent(stream, done, 0));
		const unsigned factor = hash(k) | 1, addend = hash(~k);
		const int delay = hash(k + 99) % 3 * 100;
		step<<<(COUNT + 127) / 128, 128, 0, stream>>>(values, factor, addend, delay);
		CUDA(cudaGetLastError());
		CUDA(cudaEventRecord(done, stream));
		expected = stepped(expected, factor, addend, delay);
	}
	CUDA(cudaStreamWaitEvent(streams[0], done, 0));
	CUDA(cudaEventRecord(end, streams[0]));
	CUDA(cudaEventSynchronize(end));
	if (cudaEventQuery(done) != cudaSuccess)
		FAIL("an event is not complete, but a later one is");
	float milliseconds = -1;
	CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
	if (!(milliseconds >= 0))
		FAIL("elapsed time %g ms", milliseconds);
	if (cudaEventElapsedTime(&milliseconds, begin, done) == cudaSuccess)
		FAIL("an event without timing gives a time");
	cudaGetLastError();
	std::vector<unsigned> found = to_host(values, COUNT);
	for (int i = 0; i < COUNT; i++)
		if (found[i] != expected)
			FAIL("chained by events, element %d: %u instead of %u", i, found[i], expected);

	// The legacy default stream runs after what a blocking stream got before, and before what it
	// gets later.
	for (int k = 0; k < 6; k++) {
		const unsigned factor = 2 * k + 3, addend = k;
		step<<<(COUNT + 127) / 128, 128, 0, k % 2 ? nullptr : streams[0]>>>(values, factor, addend, 200 - 30 * k);
		CUDA(cudaGetLastError());
		expected = stepped(expected, factor, addend, 200 - 30 * k);
	}
	CUDA(cudaDeviceSynchronize());
	if (cudaStreamQuery(streams[0]) != cudaSuccess)
		FAIL("a stream is busy after cudaDeviceSynchronize");
	found = to_host(values, COUNT);
	for (int i = 0; i < COUNT; i++)
		if (found[i] != expected)
			FAIL("ordered by the default stream, element %d: %u instead of %u", i, found[i], expected);

	for (cudaStream_t stream : streams)
		CUDA(cudaStreamDestroy(stream));
	for (cudaEvent_t event : {done, begin, end})
		CUDA(cudaEventDestroy(event));
	CUDA(cudaFree(values));
	std::printf("ok streams_events: %d steps over %d streams\n", steps, STREAMS);
}
