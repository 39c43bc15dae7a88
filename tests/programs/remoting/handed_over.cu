// What one thread launched before it told another is done before what the other asks.
#include "check.h"

#include <atomic>
#include <thread>

__global__ void put(int *to, int value)
{
	*to = value;
}

int main()
{
	int *data;
	CUDA(cudaMalloc(&data, sizeof(int)));
	std::atomic<int> turn{0};
	std::thread reader([&] {
		for (int i = 1; i <= 200; i++) {
			int seen = 0;
			while (turn != i)
				std::this_thread::yield();
			CUDA(cudaMemcpy(&seen, data, sizeof seen, cudaMemcpyDeviceToHost));
			if (seen != i)
				FAIL("round %d: %d", i, seen);
			turn = -i;
		}
	});
	for (int i = 1; i <= 200; i++) {
		put<<<1, 1>>>(data, i);
		turn = i;
		while (turn != -i)
			std::this_thread::yield();
	}
	reader.join();
	return passed();
}
