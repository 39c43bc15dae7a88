// Says "waiting" with work between both servers, and goes on when the second one is ended
// from outside: its device fails, the first one's work is told of, and it goes on.
#include "two.h"

static void never(void *)
{
	for (;;)
		std::getchar();
}

int main()
{
	int *a = allocate_on(0, 1024), *b = allocate_on(1, 1024);
	cudaStream_t at_a, at_b;
	cudaEvent_t never_there;
	CUDA(cudaStreamCreate(&at_b));
	CUDA(cudaEventCreateWithFlags(&never_there, cudaEventDisableTiming));
	CUDA(cudaLaunchHostFunc(at_b, never, nullptr));
	CUDA(cudaEventRecord(never_there, at_b));
	CUDA(cudaSetDevice(0));
	CUDA(cudaStreamCreate(&at_a));
	CUDA(cudaStreamWaitEvent(at_a, never_there, 0));
	fill_with<<<1, 64, 0, at_a>>>(a, 1024, 5);
	std::printf("waiting\n");
	std::fflush(stdout);
	// The stream goes on, and the wait that was none is told of.
	EXPECT_ERROR(cudaStreamSynchronize(at_a), cudaErrorDevicesUnavailable);
	CUDA(cudaStreamSynchronize(at_a));
	expect_filled(read_back(a, 1024), 5);
	CUDA(cudaSetDevice(1));
	EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorDevicesUnavailable);
	EXPECT_ERROR(cudaMalloc((void **)&b, 64), cudaErrorDevicesUnavailable);
	CUDA(cudaSetDevice(0));
	(void)cudaGetLastError();
	EXPECT_ERROR(cudaMemcpyPeer(b, 1, a, 0, 64), cudaErrorDevicesUnavailable);
	(void)cudaGetLastError();
	fill_with<<<1, 64, 0, at_a>>>(a, 1024, 6);
	CUDA(cudaStreamSynchronize(at_a));
	expect_filled(read_back(a, 1024), 6);
	return passed();
}
