/* A program of the CUDA runtime, as nvcc makes it by default: symbols, managed
 * and pinned memory, streams, events, occupancy, errors, printf. */
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define EXPECT(call, wanted)								\
	do {										\
		cudaError_t got = (call);						\
		if (got != (wanted)) {							\
			fprintf(stderr, "%s:%d: %s gave %s\n", __FILE__, __LINE__, #call,	\
				cudaGetErrorName(got));					\
			exit(1);							\
		}									\
	} while (0)
#define CHECK(call) EXPECT(call, cudaSuccess)
#define REQUIRE(condition)								\
	do {										\
		if (!(condition)) {							\
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);	\
			exit(1);							\
		}									\
	} while (0)

__constant__ float weights[2];
__device__ int hits;

__global__ void combine(const float *a, const float *b, float *c, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n) {
		c[i] = a[i] * weights[0] + b[i] * weights[1];
		atomicAdd(&hits, 1);
	}
}

__global__ void greet()
{
	printf("hello from thread %d\n", (int)threadIdx.x);
}

int main()
{
	const int n = 1000;
	float *a, *b, *c, milliseconds, chosen[2] = { 1, 10 };
	cudaDeviceProp properties;
	cudaPointerAttributes attributes;
	cudaEvent_t start, end;
	cudaStream_t stream;
	int seen, blocks, local;
	void *memory;

	CHECK(cudaGetDeviceProperties(&properties, 0));
	REQUIRE(properties.major == 9 && properties.warpSize == 32);
	CHECK(cudaMallocManaged(&a, n * sizeof *a));
	CHECK(cudaMallocManaged(&b, n * sizeof *b));
	CHECK(cudaMallocManaged(&c, n * sizeof *c));
	for (int i = 0; i < n; i++) {
		a[i] = (float)i;
		b[i] = (float)(2 * i);
	}
	CHECK(cudaMemcpyToSymbol(weights, chosen, sizeof chosen));
	combine<<<(n + 127) / 128, 128>>>(a, b, c, n);
	CHECK(cudaGetLastError());
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaMemcpyFromSymbol(&seen, hits, sizeof seen));
	REQUIRE(seen == n && c[n - 1] == 21.0f * (n - 1));
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, combine, 1024, 0));
	REQUIRE(blocks == 2);

	CHECK(cudaStreamCreate(&stream));
	CHECK(cudaEventCreate(&start));
	CHECK(cudaEventCreate(&end));
	CHECK(cudaEventRecord(start, stream));
	combine<<<1, 128, 0, stream>>>(a, b, c, n);
	CHECK(cudaEventRecord(end, stream));
	CHECK(cudaEventSynchronize(end));
	CHECK(cudaEventElapsedTime(&milliseconds, start, end));
	REQUIRE(milliseconds > 0);
	CHECK(cudaMallocAsync(&memory, 1000, stream));
	CHECK(cudaFreeAsync(memory, stream));
	CHECK(cudaStreamSynchronize(stream));

	CHECK(cudaHostAlloc(&memory, 100, cudaHostAllocDefault));
	CHECK(cudaPointerGetAttributes(&attributes, memory));
	REQUIRE(attributes.type == cudaMemoryTypeHost);
	CHECK(cudaPointerGetAttributes(&attributes, &local));
	REQUIRE(attributes.type == cudaMemoryTypeUnregistered);
	CHECK(cudaPointerGetAttributes(&attributes, a));
	REQUIRE(attributes.type == cudaMemoryTypeManaged);

	greet<<<1, 1>>>();
	CHECK(cudaDeviceSynchronize());
	combine<<<1, 2048>>>(a, b, c, n);
	REQUIRE(cudaGetLastError() != cudaSuccess);
	CHECK(cudaDeviceSynchronize());
	combine<<<1, 128>>>((float *)8, b, c, n);
	EXPECT(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
	EXPECT(cudaMalloc(&memory, 4), cudaErrorIllegalAddress);
	CHECK(cudaDeviceReset());
	CHECK(cudaMalloc(&memory, 4));
	return 0;
}
