// A pageable source may be overwritten as soon as the copy call has returned.
#include "check.h"

#include <vector>

int main()
{
	const int count = 1 << 20;
	std::vector<int> host(count), back(count);
	int *device;
	CUDA(cudaMalloc(&device, 8 * count * sizeof(int)));
	for (int round = 0; round < 8; round++) {
		for (int i = 0; i < count; i++)
			host[i] = i ^ round;
		CUDA(cudaMemcpyAsync(device + round * count, host.data(), count * sizeof(int), cudaMemcpyHostToDevice));
	}
	for (int round = 0; round < 8; round++) {
		CUDA(cudaMemcpy(back.data(), device + round * count, count * sizeof(int), cudaMemcpyDeviceToHost));
		for (int i = 0; i < count; i++)
			if (back[i] != (i ^ round))
				FAIL("round %d, element %d", round, i);
	}
	return passed();
}
