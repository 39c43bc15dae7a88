// Host memory that the device uses in place: mapped allocations, registered memory of the
// program's own, and their device pointers.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define FAIL(...) (std::printf("FAIL mapped_memory " __VA_ARGS__), std::puts(""), std::exit(1))

#define CUDA(call)                                                                 \
	do {                                                                       \
		if (const cudaError_t error = (call))                              \
			FAIL("%s: %s", #call, cudaGetErrorString(error));          \
	} while (0)

/// The N of `--size N`, or `size`; ends the program when N is not from `least` to `most`.
static long size_option(int argc, char **argv, long size, long least, long most)
{
	if (argc == 1)
		return size;
	if (argc != 3 || std::strcmp(argv[1], "--size"))
		FAIL("does not know its arguments; usage: %s [--size N]", argv[0]);
	char *end;
	size = std::strtol(argv[2], &end, 10);
	if (*end || end == argv[2] || size < least || size > most)
		FAIL("--size %s: N must be from %ld to %ld", argv[2], least, most);
	return size;
}

/// A bijective mix of 32 bits (lowbias32, C. Wellons, "Prospecting for Hash Functions", 2018).
__host__ __device__ static inline uint32_t hash(uint32_t x)
{
	x = (x ^ (x >> 16)) * 0x7feb352du;
	x = (x ^ (x >> 15)) * 0x846ca68bu;
	return x ^ (x >> 16);
}

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
