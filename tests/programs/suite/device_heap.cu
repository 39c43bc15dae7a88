// malloc, free, new and delete on the GPU: linked lists made in one launch, read in a second,
// freed in a third; and an allocation beyond the heap gives a null pointer.
#define PROGRAM "device_heap"
#include "check.h"

struct Node {
	unsigned value;
	Node *next;
};

__global__ void build(Node **lists, int count)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= count)
		return;
	lists[i] = nullptr;
	for (int k = 0; k < i % 7; k++) {
		Node *node = new Node;
		if (!node)
			return;
		*node = {hash(i * 8 + k), lists[i]};
		lists[i] = node;
	}
}

__global__ void sum(Node *const *lists, unsigned *sums, int count)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= count)
		return;
	unsigned total = 0;
	for (const Node *node = lists[i]; node; node = node->next)
		total = total * 31 + node->value;
	sums[i] = total;
}

__global__ void drop(Node **lists, int count)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		while (Node *node = lists[i]) {
			lists[i] = node->next;
			delete node;
		}
}

__global__ void ask_too_much(size_t size, bool *refused)
{
	void *memory = malloc(size);
	*refused = !memory;
	free(memory);
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 500, 1, 20000);
	const int blocks = (count + 63) / 64;
	Node **lists = device_array<Node *>(count);
	unsigned *sums = device_array<unsigned>(count);
	bool *refused = device_array<bool>(1);
	build<<<blocks, 64>>>(lists, count);
	sum<<<blocks, 64>>>(lists, sums, count);
	drop<<<blocks, 64>>>(lists, count);
	CUDA(cudaGetLastError());
	const std::vector<unsigned> totals = to_host(sums, count);
	for (int i = 0; i < count; i++) {
		unsigned expected = 0;
		for (int k = i % 7 - 1; k >= 0; k--)
			expected = expected * 31 + hash(i * 8 + k);
		if (totals[i] != expected)
			FAIL("list %d: %u instead of %u", i, totals[i], expected);
	}
	ask_too_much<<<1, 1>>>(1ull << 40, refused);
	CUDA(cudaGetLastError());
	bool was_refused = false;
	CUDA(cudaMemcpy(&was_refused, refused, sizeof was_refused, cudaMemcpyDeviceToHost));
	if (!was_refused)
		FAIL("the heap gave a TiB");
	CUDA(cudaFree(lists));
	CUDA(cudaFree(sums));
	CUDA(cudaFree(refused));
	std::printf("ok device_heap of %d lists\n", count);
}
