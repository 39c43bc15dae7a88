// Memory attached to a stream may be touched while another stream is at work.
#include "../check.h"

__global__ void work(int *data, int n, int add, int rounds)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	for (int r = 0; r < rounds && i < n; r++)
		data[i] += add;
}

int main()
{
	const int n = 50000, rounds = 20;
	cudaStream_t streams[2];
	int *data[2], *host;

	for (int s = 0; s < 2; s++) {
		CUDA(cudaStreamCreate(&streams[s]));
		CUDA(cudaMallocManaged(&data[s], n * sizeof(int), cudaMemAttachHost));
		for (int i = 0; i < n; i++)
			data[s][i] = i * (s + 1);
		CUDA(cudaStreamAttachMemAsync(streams[s], data[s], 0, cudaMemAttachSingle));
	}
	CUDA(cudaMallocManaged(&host, 4096, cudaMemAttachHost));
	CUDA(cudaDeviceSynchronize());
	for (int round = 0; round < rounds; round++) {
		work<<<(n + 127) / 128, 128, 0, streams[0]>>>(data[0], n, 1, 3);
		work<<<(n + 127) / 128, 128, 0, streams[1]>>>(data[1], n, 2, 200);
		// What is attached to the processor is always its own.
		host[round] = round;
		CUDA(cudaStreamSynchronize(streams[0]));
		for (int i = 0; i < n; i += 61) {
			if (data[0][i] != i + 3 * (round + 1) + round)
				FAIL("round %d: %d holds %d", round, i, data[0][i]);
		}
		for (int i = 0; i < n; i++)
			data[0][i]++;
	}
	CUDA(cudaStreamSynchronize(streams[1]));
	for (int i = 0; i < n; i++)
		EXPECT(data[1][i] == 2 * i + 400 * rounds);
	for (int i = 0; i < n; i++)
		EXPECT(data[0][i] == i + 4 * rounds);
	for (int round = 0; round < rounds; round++)
		EXPECT(host[round] == round);
	// Everybody's again.
	CUDA(cudaStreamAttachMemAsync(streams[0], data[0], 0, cudaMemAttachGlobal));
	CUDA(cudaStreamSynchronize(streams[0]));
	work<<<(n + 127) / 128, 128, 0, streams[1]>>>(data[0], n, 5, 1);
	CUDA(cudaDeviceSynchronize());
	for (int i = 0; i < n; i++)
		EXPECT(data[0][i] == i + 4 * rounds + 5);
	return passed();
}
