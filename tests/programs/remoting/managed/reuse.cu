// Memory that is freed and comes again, in many sizes; neighbours keep what they hold.
#include "../check.h"

#include <vector>

__global__ void stamp(unsigned char *data, size_t n, unsigned char value)
{
	for (size_t i = threadIdx.x; i < n; i += blockDim.x)
		data[i] = value;
}

int main()
{
	const size_t sizes[] = { 1, 100, 4096, 4097, 70000, 1 << 20, (1 << 20) + 1, 5 << 20 };
	const int slots = 24;
	struct slot {
		unsigned char *data;
		size_t bytes;
		unsigned char value;
	};
	std::vector<slot> live(slots);

	for (int round = 0; round < 150; round++) {
		slot &at = live[(round * 7) % slots];
		if (at.data)
			CUDA(cudaFree(at.data));
		at.bytes = sizes[(round * 5 + round / 8) % 8];
		at.value = (unsigned char)(round + 1);
		CUDA(cudaMallocManaged(&at.data, at.bytes));
		if (round % 3 == 0) {
			for (size_t i = 0; i < at.bytes; i++)
				at.data[i] = at.value;
		} else {
			stamp<<<1, 64>>>(at.data, at.bytes, at.value);
			CUDA(cudaGetLastError());
		}
		if (round % 10)
			continue;
		CUDA(cudaDeviceSynchronize());
		for (const slot &each : live)
			for (size_t i = 0; each.data && i < each.bytes; i += i < 5000 ? 1 : 1021)
				if (each.data[i] != each.value)
					FAIL("round %d: byte %zu of %zu is %d, not %d", round, i, each.bytes,
					     each.data[i], each.value);
	}
	EXPECT_ERROR(cudaFree((char *)live[0].data + 1), cudaErrorInvalidValue);
	cudaGetLastError();
	for (const slot &each : live)
		if (each.data)
			CUDA(cudaFree(each.data));
	EXPECT_ERROR(cudaFree(live[0].data), cudaErrorInvalidValue);
	cudaGetLastError();
	int *none;
	EXPECT_ERROR(cudaMallocManaged(&none, 4, 77), cudaErrorInvalidValue);
	cudaGetLastError();
	CUDA(cudaDeviceSynchronize());
	return passed();
}
