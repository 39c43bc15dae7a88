// Copies and fills with managed memory on either side, and every way to name it.
#include "../check.h"

#include <cstring>
#include <vector>

__global__ void twice(unsigned char *data, int n)
{
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		data[i] = (unsigned char)(data[i] * 2);
}

int main()
{
	const int n = 700001;
	std::vector<unsigned char> source(n), back(n);
	unsigned char *managed, *other, *device, *pinned;

	for (int i = 0; i < n; i++)
		source[i] = (unsigned char)(i * 7 + i / 255);
	CUDA(cudaMallocManaged(&managed, n));
	CUDA(cudaMallocManaged(&other, n));
	CUDA(cudaMalloc(&device, n));
	CUDA(cudaMallocHost(&pinned, n));
	const cudaMemcpyKind kinds[] = { cudaMemcpyDefault, cudaMemcpyHostToDevice, cudaMemcpyHostToHost };
	for (cudaMemcpyKind kind : kinds) {
		memset(managed, 1, n);
		CUDA(cudaMemcpy(managed, source.data(), n, kind));
		EXPECT(memcmp(managed, source.data(), n) == 0);
	}
	twice<<<1, 256>>>(managed, n);
	const cudaMemcpyKind ways[] = { cudaMemcpyDefault, cudaMemcpyDeviceToHost, cudaMemcpyHostToHost };
	for (cudaMemcpyKind kind : ways) {
		memset(back.data(), 0, n);
		CUDA(cudaMemcpy(back.data(), managed, n, kind));
		for (int i = 0; i < n; i++)
			if (back[i] != (unsigned char)(source[i] * 2))
				FAIL("way %d: %d", (int)kind, i);
	}
	// Part of it, with bytes of the processor's around.
	memset(managed, 5, n);
	CUDA(cudaMemcpy(managed + 1000, source.data(), 3001, cudaMemcpyDefault));
	managed[1000] = 9;
	EXPECT(managed[999] == 5 && managed[1001] == source[1] && managed[4000] == source[3000] &&
	       managed[4001] == 5 && managed[n - 1] == 5);
	// To and from plain device memory, in both spellings of its own side.
	memcpy(managed, source.data(), n);
	CUDA(cudaMemcpy(device, managed, n, cudaMemcpyHostToDevice));
	memset(managed, 0, n);
	twice<<<1, 256>>>(device, n);
	CUDA(cudaMemcpy(managed, device, n, cudaMemcpyDeviceToHost));
	EXPECT(managed[12345] == (unsigned char)(source[12345] * 2));
	CUDA(cudaMemcpy(other, managed, n, cudaMemcpyDeviceToDevice));
	CUDA(cudaDeviceSynchronize());
	EXPECT(memcmp(other, managed, n) == 0);
	// Asynchronously, through pinned memory.
	memcpy(pinned, source.data(), n);
	CUDA(cudaMemcpyAsync(managed, pinned, n, cudaMemcpyDefault));
	twice<<<1, 256>>>(managed, n);
	CUDA(cudaMemcpyAsync(pinned, managed, n, cudaMemcpyDefault));
	CUDA(cudaDeviceSynchronize());
	EXPECT(pinned[777] == (unsigned char)(source[777] * 2) && managed[777] == pinned[777]);
	// Rows, and fills.
	CUDA(cudaMemcpy2D(managed, 1000, source.data(), 500, 500, 600, cudaMemcpyDefault));
	EXPECT(managed[599 * 1000 + 499] == source[599 * 500 + 499] &&
	       managed[599 * 1000 + 500] == pinned[599 * 1000 + 500]);
	CUDA(cudaMemset(managed, 0x5a, 10000));
	EXPECT(managed[0] == 0x5a && managed[9999] == 0x5a && managed[10000] == source[5000]);
	managed[3] = 1;
	CUDA(cudaMemset2DAsync(managed + 100, 1000, 0x11, 10, 50, 0));
	CUDA(cudaDeviceSynchronize());
	EXPECT(managed[3] == 1 && managed[49 * 1000 + 109] == 0x11 && managed[99] == 0x5a);
	CUDA(cudaFreeHost(pinned));
	return passed();
}
