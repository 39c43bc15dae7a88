// Spin locks between threads of one warp, between warps, and between blocks; and a bounded queue
// between producer and consumer warps of a block.  What the lock guards is plain memory, so a
// broken lock loses updates.
#define PROGRAM "spin_lock"
#include "check.h"

__device__ static void lock(int *mutex)
{
	while (atomicCAS(mutex, 0, 1) != 0)
		;
	__threadfence();
}

__device__ static void unlock(int *mutex)
{
	__threadfence();
	atomicExch(mutex, 0);
}

/// Every thread, also those of one warp, takes the lock in turn.
__global__ void count_under_lock(int *mutex, volatile long long *counter, int rounds)
{
	for (int round = 0; round < rounds; round++) {
		lock(mutex);
		*counter = *counter + threadIdx.x + 1;
		unlock(mutex);
	}
}

static const int CAPACITY = 8;

struct Queue {
	int mutex, head, tail, finished;
	unsigned item[CAPACITY];
};

/// The first half of the warps produce, the others consume until all producers have finished.
__global__ void pass_through_queue(unsigned per_producer, unsigned long long *sum, int *taken)
{
	__shared__ Queue shared_queue;
	volatile Queue *queue = &shared_queue;
	const int producers = blockDim.x / 2;
	if (threadIdx.x == 0)
		queue->mutex = queue->head = queue->tail = queue->finished = 0;
	__syncthreads();
	if (threadIdx.x < producers) {
		for (unsigned i = 0; i < per_producer;) {
			lock(&shared_queue.mutex);
			if (queue->tail - queue->head < CAPACITY) {
				queue->item[queue->tail % CAPACITY] = threadIdx.x * per_producer + i + 1;
				queue->tail = queue->tail + 1;
				i++;
			}
			if (i == per_producer)
				queue->finished = queue->finished + 1;
			unlock(&shared_queue.mutex);
		}
		return;
	}
	for (bool open = true; open;) {
		lock(&shared_queue.mutex);
		unsigned item = 0;
		if (queue->head < queue->tail) {
			item = queue->item[queue->head % CAPACITY];
			queue->head = queue->head + 1;
		} else {
			open = queue->finished < producers;
		}
		unlock(&shared_queue.mutex);
		if (item) {
			atomicAdd(sum, static_cast<unsigned long long>(item));
			atomicAdd(taken, 1);
		}
	}
}

int main(int argc, char **argv)
{
	const int rounds = size_option(argc, argv, 3, 1, 1000);
	int *mutex = to_device(std::vector<int>(2, 0));
	long long *counter = to_device(std::vector<long long>(1, 0));
	const int blocks = 3, threads = 64;
	count_under_lock<<<blocks, threads>>>(mutex, counter, rounds);
	CUDA(cudaGetLastError());
	const long long expected = static_cast<long long>(blocks) * rounds * threads * (threads + 1) / 2;
	if (to_host(counter, 1)[0] != expected)
		FAIL("counter: %lld instead of %lld", to_host(counter, 1)[0], expected);

	auto *sum = to_device(std::vector<unsigned long long>(1, 0));
	int *taken = mutex + 1;
	pass_through_queue<<<1, 128>>>(rounds, sum, taken);
	CUDA(cudaGetLastError());
	const unsigned long long items = 64ull * rounds;
	if (to_host(taken, 1)[0] != static_cast<int>(items))
		FAIL("%d items came through instead of %llu", to_host(taken, 1)[0], items);
	if (to_host(sum, 1)[0] != items * (items + 1) / 2)
		FAIL("items sum to %llu instead of %llu", to_host(sum, 1)[0], items * (items + 1) / 2);
	CUDA(cudaFree(mutex));
	CUDA(cudaFree(counter));
	CUDA(cudaFree(sum));
	std::printf("ok spin_lock: counter %lld, %llu items through the queue\n", expected, items);
}
