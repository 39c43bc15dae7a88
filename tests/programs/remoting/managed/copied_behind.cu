// A copy and a fill are posted behind a host function that runs: until it ends, the memory is its own.
#include "../check.h"

#include <atomic>

enum { COUNT = 3000 };

struct errand {
	unsigned *words;
	std::atomic<int> *stage;
};

static void CUDART_CB run(void *opaque)
{
	errand *job = (errand *)opaque;

	job->stage->store(1);
	while (job->stage->load() == 1)
		;
	for (unsigned i = 0; i < COUNT; i++)
		job->words[i] = job->words[i] * 2 + i;
}

static void behind(unsigned *words, cudaStream_t stream, unsigned *device)
{
	std::atomic<int> stage(0);
	errand job = { words, &stage };

	for (unsigned i = 0; i < COUNT; i++)
		words[i] = 7;
	CUDA(cudaLaunchHostFunc(stream, run, &job));
	while (!stage.load())
		;
	CUDA(cudaMemcpyAsync(device, words, COUNT * sizeof *words, cudaMemcpyDefault, stream));
	CUDA(cudaMemsetAsync(words, 1, 400, stream));
	CUDA(cudaMemcpyAsync(words + 100, device, 400, cudaMemcpyDefault, stream));
	stage.store(2);
	CUDA(cudaStreamSynchronize(stream));
	for (unsigned i = 0; i < COUNT; i++)
		if (words[i] != (i < 100 ? 0x01010101 : i < 200 ? 14 + i - 100 : 14 + i))
			FAIL("word %u is %u", i, words[i]);
}

int main()
{
	unsigned *words, *device;
	cudaStream_t streams[3] = { cudaStreamLegacy };

	CUDA(cudaStreamCreate(&streams[1]));
	CUDA(cudaStreamCreateWithFlags(&streams[2], cudaStreamNonBlocking));
	CUDA(cudaMallocManaged(&words, COUNT * sizeof *words));
	CUDA(cudaMalloc(&device, COUNT * sizeof *device));
	for (cudaStream_t stream : streams)
		behind(words, stream, device);
	CUDA(cudaFree(words));
	CUDA(cudaFree(device));
	return passed();
}
