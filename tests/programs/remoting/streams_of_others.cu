// Copies in a stream of another device than the current one, which CUDA allows, and an error of that
// stream's, which is not the current device's.
#include "check.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

static const size_t most = 1500000;

__global__ void trap()
{
	asm("trap;");
}

static void nothing(void *)
{
}

static std::atomic<bool> released;

static void hold(void *)
{
	while (!released)
		;
}

static void fill(char *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		bytes[i] = (char)std::rand();
}

// There and back, from each kind of memory to each.
static void copies(char *device, cudaStream_t stream)
{
	std::vector<char> pageable(most), other(most);
	char *pinned, *registered = (char *)std::malloc(most);
	CUDA(cudaMallocHost(&pinned, most));
	CUDA(cudaHostRegister(registered, most, 0));
	char *const memories[] = { pageable.data(), pinned, registered };
	for (char *from : memories) {
		for (char *to : { other.data(), pinned, registered }) {
			for (size_t bytes : { size_t(1), size_t(70000), most }) {
				fill(from, bytes);
				const std::vector<char> expected(from, from + bytes);
				// Something is ahead of it that could still write the source.
				if (bytes == 70000)
					CUDA(cudaLaunchHostFunc(stream, nothing, nullptr));
				CUDA(cudaMemcpyAsync(device, from, bytes, cudaMemcpyHostToDevice, stream));
				CUDA(cudaStreamSynchronize(stream));
				std::memset(to, 0, bytes);
				CUDA(cudaMemcpyAsync(to, device, bytes, cudaMemcpyDeviceToHost, stream));
				CUDA(cudaStreamSynchronize(stream));
				EXPECT(std::memcmp(to, expected.data(), bytes) == 0);
			}
		}
		fill(from, 300 * 1000);
		const std::vector<char> expected(from, from + 300 * 1000);
		CUDA(cudaMemcpy2DAsync(device, 512, from, 300, 299, 1000, cudaMemcpyHostToDevice, stream));
		CUDA(cudaMemcpy2DAsync(other.data(), 300, device, 512, 299, 1000, cudaMemcpyDeviceToHost, stream));
		CUDA(cudaStreamSynchronize(stream));
		for (size_t row = 0; row < 1000; row++)
			EXPECT(std::memcmp(&other[300 * row], &expected[300 * row], 299) == 0);
	}
	CUDA(cudaHostUnregister(registered));
	CUDA(cudaFreeHost(pinned));
	std::free(registered);
}

static void arrays(cudaStream_t stream)
{
	const cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned>();
	std::vector<char> there(64 * 256), back(64 * 256);
	cudaArray_t array;
	CUDA(cudaMallocArray(&array, &format, 64, 64));
	fill(there.data(), there.size());
	CUDA(cudaMemcpy2DToArrayAsync(array, 0, 0, there.data(), 256, 256, 64, cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemcpy2DFromArrayAsync(back.data(), 256, array, 0, 0, 256, 64, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaStreamSynchronize(stream));
	EXPECT(there == back);
	CUDA(cudaFreeArray(array));
}

int main()
{
	char *device[2], back[16] = "";
	cudaStream_t stream;
	cudaEvent_t event;
	for (int i : { 0, 1 }) {
		CUDA(cudaSetDevice(i));
		CUDA(cudaMalloc(&device[i], most));
	}
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaEventCreate(&event));
	CUDA(cudaSetDevice(0));
	copies(device[0], stream);
	copies(device[1], stream);
	arrays(stream);

	EXPECT_ERROR(cudaEventRecord(event, nullptr), cudaErrorInvalidResourceHandle);
	(void)cudaGetLastError();
	CUDA(cudaEventRecord(event, stream));
	CUDA(cudaStreamWaitEvent(nullptr, event, 0));

	// Until the event is recorded, too.
	CUDA(cudaSetDevice(1));
	CUDA(cudaLaunchHostFunc(stream, hold, nullptr));
	trap<<<1, 1, 0, stream>>>();
	CUDA(cudaEventRecord(event, stream));
	released = true;
	CUDA(cudaSetDevice(0));
	EXPECT_ERROR(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
	EXPECT_ERROR(cudaStreamQuery(stream), cudaErrorLaunchFailure);
	EXPECT_ERROR(cudaEventSynchronize(event), cudaErrorLaunchFailure);
	EXPECT_ERROR(cudaEventQuery(event), cudaErrorLaunchFailure);
	EXPECT_ERROR(cudaMemcpyAsync(back, device[1], sizeof back, cudaMemcpyDeviceToHost, stream),
		     cudaErrorLaunchFailure);
	(void)cudaGetLastError();
	CUDA(cudaMemset(device[0], 'x', sizeof back));
	CUDA(cudaMemcpy(back, device[0], sizeof back, cudaMemcpyDeviceToHost));
	EXPECT(std::memcmp(back, "xxxxxxxxxxxxxxxx", sizeof back) == 0);
	CUDA(cudaDeviceSynchronize());
	CUDA(cudaSetDevice(1));
	EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
	return passed();
}
