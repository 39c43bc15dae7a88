// A program's objects lie in managed memory: what CUDA calls fill in, and what they are given, is there.
#include "../check.h"

struct node {
	node *next;
	int *data;
	size_t free, total;
	float ms;
	int value, count;
	cudaStream_t stream;
	cudaEvent_t event;
	cudaDeviceProp properties;
	cudaPointerAttributes pointer;
	cudaFuncAttributes function;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	char name[64];
	int numbers[3000];
};

__global__ void walk(node *head)
{
	for (node *at = head; at; at = at->next)
		at->value++;
}

// The GPU had all of it before each of them.
#define STEP(call)                                   \
	do {                                         \
		walk<<<1, 1>>>(head);                \
		CUDA(cudaDeviceSynchronize());       \
		CUDA(call);                          \
	} while (0)

int main()
{
	const int more = 5;
	node *head, *at;
	void **arguments;

	CUDA(cudaMallocManaged(&head, sizeof(*head)));
	at = head;
	for (int i = 0; i < more; i++) {
		STEP(cudaMallocManaged(&at->next, sizeof(node)));
		at = at->next;
	}
	STEP(cudaMalloc(&at->data, 100));
	STEP(cudaMemGetInfo(&at->free, &at->total));
	EXPECT(at->free && at->total >= at->free);
	STEP(cudaStreamCreate(&at->stream));
	STEP(cudaEventCreate(&at->event));
	STEP(cudaEventRecord(at->event, at->stream));
	STEP(cudaEventSynchronize(at->event));
	STEP(cudaEventElapsedTime(&at->ms, at->event, at->event));
	STEP(cudaGetDeviceProperties(&at->properties, 0));
	STEP(cudaPointerGetAttributes(&at->pointer, at));
	EXPECT(at->pointer.type == cudaMemoryTypeManaged);
	STEP(cudaGetDeviceCount(&at->count));
	STEP(cudaDeviceGetPCIBusId(at->name, sizeof(at->name), 0));
	STEP(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at->count, walk, 32, 0));
	STEP(cudaFuncGetAttributes(&at->function, walk));
	STEP(cudaGraphCreate(&at->graph, 0));
	STEP(cudaGraphInstantiate(&at->exec, at->graph, 0));
	STEP(cudaGraphLaunch(at->exec, at->stream));
	CUDA(cudaDeviceSynchronize());
	at->numbers[7] = 7;
	STEP(cudaMemcpy(at->data, at->numbers, 100, cudaMemcpyHostToDevice));
	STEP(cudaMemcpy(at->numbers + 2000, at->data, 100, cudaMemcpyDeviceToHost));
	EXPECT(at->numbers[2007] == 7);
	STEP(cudaMemRangeGetAttribute(&at->count, sizeof(int), cudaMemRangeAttributeReadMostly, at, 4));
	STEP(cudaFree(at->data));
	STEP(cudaStreamDestroy(at->stream));
	// A kernel's arguments.
	STEP(cudaMallocManaged(&arguments, 4 * sizeof(void *)));
	arguments[0] = &arguments[2];
	arguments[2] = head;
	head->value = 0;
	for (int i = 0; i < 3; i++)
		STEP(cudaLaunchKernel((void *)walk, dim3(1), dim3(1), arguments, 0, nullptr));
	CUDA(cudaDeviceSynchronize());
	EXPECT(head->value == 6);
	return passed();
}
