// Several threads, each with a stream: every one has some words of each page of the same pinned memory, which its
// kernels and itself use in turns while the others' do.  Its argument: a number of rounds.
#include "check.h"

#include <cstdint>
#include <thread>
#include <unistd.h>
#include <vector>

enum { THREADS = 4, WORDS = 4096, OWN = WORDS / THREADS };

__global__ void add(uint32_t *words, unsigned which, unsigned first, unsigned count, unsigned by)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < count)
		words[(first + i) * THREADS + which] += by + i;
}

static uint32_t *words;

// At once, as the others still use what an orderly end takes away.
static void failed(unsigned which, int round, unsigned i, uint32_t wanted)
{
	std::printf("thread %u, round %d: word %u is %u, not %u\n", which, round, i, words[i * THREADS + which], wanted);
	std::fflush(stdout);
	_exit(1);
}

static void take_turns(unsigned which, int rounds)
{
	std::vector<uint32_t> model(OWN, 0);
	uint64_t state = which * 0x9e3779b97f4a7c15ull + 88172645463325252ull;
	cudaStream_t stream;
	cudaEvent_t event;

	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
	for (int round = 0; round < rounds; round++) {
		unsigned kernels, by, first, count;

		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		kernels = state % 3;
		by = (state >> 8) % 1000;
		first = (state >> 20) % OWN;
		count = 1 + (state >> 40) % (OWN - first);
		for (unsigned i = first; i < first + count; i += 1 + by % 40)
			words[i * THREADS + which] = model[i] = (uint32_t)state + i;
		for (unsigned n = 0; n < kernels; n++) {
			add<<<(count + 127) / 128, 128, 0, stream>>>(words, which, first, count, by);
			CUDA(cudaGetLastError());
			for (unsigned i = 0; i < count; i++)
				model[first + i] += by + i;
		}
		if (by % 5 == 0) {
			CUDA(cudaDeviceSynchronize());
		} else if (kernels && by % 2) {
			CUDA(cudaEventRecord(event, stream));
			CUDA(cudaEventSynchronize(event));
		} else if (kernels) {
			CUDA(cudaStreamSynchronize(stream));
		}
		for (unsigned i = 0; i < OWN; i += by % 3 ? 17 : 1)
			if (words[i * THREADS + which] != model[i])
				failed(which, round, i, model[i]);
	}
	CUDA(cudaEventDestroy(event));
	CUDA(cudaStreamDestroy(stream));
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 100;
	std::vector<std::thread> threads;

	CUDA(cudaHostAlloc(&words, WORDS * sizeof *words, cudaHostAllocMapped));
	for (unsigned i = 0; i < WORDS; i++)
		words[i] = 0;
	for (unsigned which = 0; which < THREADS; which++)
		threads.emplace_back(take_turns, which, rounds);
	for (std::thread &one : threads)
		one.join();
	CUDA(cudaFreeHost(words));
	return passed();
}
