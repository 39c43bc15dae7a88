// Host memory that the device uses in place: mapped allocations, registered memory of the
// program's own, and their device pointers.
#define PROGRAM "mapped_memory"
#include "check.h"

__global__ void transform(const uint32_t *in, uint32_t *out, int count)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		out[i] = hash(in[i]);
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 5000, 1, 1 << 26);
	uint32_t *in = nullptr, *device_in = nullptr, *device_out = nullptr;
	CUDA(cudaHostAlloc(&in, count * sizeof *in, cudaHostAllocMapped));
	CUDA(cudaHostGetDevicePointer(&device_in, in, 0));
	std::vector<uint32_t> out(count);
	CUDA(cudaHostRegister(out.data(), count * sizeof(uint32_t), cudaHostRegisterMapped));
	CUDA(cudaHostGetDevicePointer(&device_out, out.data(), 0));
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < count; i++)
			in[i] = i + round;
		transform<<<(count + 127) / 128, 128>>>(device_in, device_out, count);
		CUDA(cudaGetLastError());
		CUDA(cudaDeviceSynchronize());
		for (int i = 0; i < count; i++)
			if (out[i] != hash(i + round))
				FAIL("round %d, element %d: %08x instead of %08x", round, i, out[i], hash(i + round));
	}
	cudaPointerAttributes attributes;
	CUDA(cudaPointerGetAttributes(&attributes, in));
	if (attributes.type != cudaMemoryTypeHost || attributes.devicePointer != device_in)
		FAIL("attributes of mapped memory: type %d", attributes.type);
	CUDA(cudaHostUnregister(out.data()));
	CUDA(cudaFreeHost(in));
	std::printf("ok mapped_memory of %d elements\n", count);
}
