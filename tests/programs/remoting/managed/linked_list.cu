// A list built by the processor, node by node, walked and changed by a kernel, walked back.
#include "../check.h"

struct node {
	node *next;
	long value;
};

__global__ void walk(node *first, long *sum)
{
	for (node *at = first; at; at = at->next) {
		*sum += at->value;
		at->value = -at->value;
	}
}

int main()
{
	const int count = 3000;
	node *first = nullptr, **link = &first;
	long *sum, wanted = 0;

	CUDA(cudaMallocManaged(&sum, sizeof(*sum)));
	*sum = 0;
	for (int i = 0; i < count; i++) {
		CUDA(cudaMallocManaged(link, sizeof(node)));
		(*link)->value = i * 3 + 1;
		(*link)->next = nullptr;
		wanted += i * 3 + 1;
		link = &(*link)->next;
	}
	walk<<<1, 1>>>(first, sum);
	CUDA(cudaDeviceSynchronize());
	EXPECT(*sum == wanted);
	int i = 0;
	for (node *at = first; at; at = at->next, i++)
		EXPECT(at->value == -(i * 3 + 1));
	EXPECT(i == count);
	// The processor takes every second node out, and the kernel walks what is left.
	wanted = 0;
	for (node *at = first; at; at = at->next) {
		node *gone = at->next;

		wanted += at->value;
		if (gone) {
			at->next = gone->next;
			CUDA(cudaFree(gone));
		}
	}
	*sum = 0;
	walk<<<1, 1>>>(first, sum);
	CUDA(cudaDeviceSynchronize());
	EXPECT(*sum == wanted);
	return passed();
}
