// A large array of which both sides touch a little.
#include "../check.h"

__global__ void change(unsigned *data, size_t count, size_t stride)
{
	size_t i = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) * stride;

	if (i < count)
		data[i] = data[i] * 2 + 1;
}

int main()
{
	const size_t count = (96u << 20) / sizeof(unsigned), stride = 999983;
	unsigned *data;

	CUDA(cudaMallocManaged(&data, count * sizeof(unsigned)));
	for (size_t i = 0; i < count; i += stride)
		data[i] = (unsigned)i;
	for (unsigned round = 0; round < 3; round++) {
		change<<<1, 128>>>(data, count, stride);
		CUDA(cudaDeviceSynchronize());
		for (size_t i = 0; i < count; i += stride * 7) {
			unsigned wanted = (unsigned)i;

			for (unsigned r = 0; r <= round; r++)
				wanted = wanted * 2 + 1;
			if (data[i] != wanted)
				FAIL("round %u, %zu: %u", round, i, data[i]);
		}
	}
	EXPECT(data[count - 1] == 0 || (count - 1) % stride == 0);
	CUDA(cudaFree(data));
	return passed();
}
