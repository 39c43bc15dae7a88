// Pinned memory and asynchronous copies: a pipeline of chunks over two streams, host to device,
// kernel, device to host; pageable memory given to an asynchronous copy and overwritten at once;
// memory that the device reads and writes in place.
#define PROGRAM "pinned_async"
#include "check.h"

static const int CHUNK = 4096;

__global__ void transform(const uint32_t *in, uint32_t *out, uint32_t salt)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	out[i] = hash(in[i] ^ salt);
}

int main(int argc, char **argv)
{
	const int chunks = size_option(argc, argv, 8, 1, 1 << 12);
	const size_t count = static_cast<size_t>(chunks) * CHUNK, bytes = CHUNK * sizeof(uint32_t);
	uint32_t *in = nullptr, *out = nullptr;
	CUDA(cudaMallocHost(&in, count * sizeof *in));
	CUDA(cudaHostAlloc(&out, count * sizeof *out, cudaHostAllocDefault));
	for (size_t i = 0; i < count; i++) {
		in[i] = static_cast<uint32_t>(i * 7);
		out[i] = 0;
	}
	cudaStream_t streams[2];
	uint32_t *device_in[2], *device_out[2];
	for (int k = 0; k < 2; k++) {
		CUDA(cudaStreamCreate(&streams[k]));
		device_in[k] = device_array<uint32_t>(CHUNK);
		device_out[k] = device_array<uint32_t>(CHUNK);
	}
	for (int chunk = 0; chunk < chunks; chunk++) {
		const int k = chunk % 2;
		uint32_t *const source = in + static_cast<size_t>(chunk) * CHUNK;
		CUDA(cudaMemcpyAsync(device_in[k], source, bytes, cudaMemcpyHostToDevice, streams[k]));
		transform<<<CHUNK / 128, 128, 0, streams[k]>>>(device_in[k], device_out[k], chunk);
		CUDA(cudaGetLastError());
		CUDA(cudaMemcpyAsync(out + static_cast<size_t>(chunk) * CHUNK, device_out[k], bytes, cudaMemcpyDeviceToHost,
				     streams[k]));
	}
	for (cudaStream_t stream : streams)
		CUDA(cudaStreamSynchronize(stream));
	for (size_t i = 0; i < count; i++)
		if (out[i] != hash(static_cast<uint32_t>(i * 7) ^ static_cast<uint32_t>(i / CHUNK)))
			FAIL("pipeline, element %zu: %08x", i, out[i]);

	// Pageable memory: the copy has taken the bytes when the call returns.
	std::vector<uint32_t> pageable(CHUNK);
	for (uint32_t i = 0; i < CHUNK; i++)
		pageable[i] = i + 5;
	CUDA(cudaMemcpyAsync(device_in[0], pageable.data(), bytes, cudaMemcpyHostToDevice, streams[0]));
	std::memset(pageable.data(), 0xff, bytes);
	transform<<<CHUNK / 128, 128, 0, streams[0]>>>(device_in[0], device_out[0], 1);
	CUDA(cudaGetLastError());
	CUDA(cudaMemcpyAsync(pageable.data(), device_out[0], bytes, cudaMemcpyDeviceToHost, streams[0]));
	CUDA(cudaStreamSynchronize(streams[0]));
	for (uint32_t i = 0; i < CHUNK; i++)
		if (pageable[i] != hash((i + 5) ^ 1))
			FAIL("pageable memory, element %u: %08x", i, pageable[i]);

	for (int k = 0; k < 2; k++) {
		CUDA(cudaStreamDestroy(streams[k]));
		CUDA(cudaFree(device_in[k]));
		CUDA(cudaFree(device_out[k]));
	}
	CUDA(cudaFreeHost(in));
	CUDA(cudaFreeHost(out));
	std::printf("ok pinned_async of %d chunks\n", chunks);
}
