// A texture of managed memory, and copies between it and an array.
#include "../check.h"

__global__ void gather(cudaTextureObject_t texture, float *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		out[i] = tex1Dfetch<float>(texture, n - 1 - i);
}

int main()
{
	const int n = 6000;
	float *data, *out;
	cudaResourceDesc resource = {};
	cudaTextureDesc description = {};
	cudaTextureObject_t texture;
	cudaArray_t array;
	const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();

	CUDA(cudaMallocManaged(&data, n * sizeof(float)));
	CUDA(cudaMallocManaged(&out, n * sizeof(float)));
	resource.resType = cudaResourceTypeLinear;
	resource.res.linear.devPtr = data;
	resource.res.linear.desc = format;
	resource.res.linear.sizeInBytes = n * sizeof(float);
	CUDA(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < n; i++)
			data[i] = (float)(i * 3 + round);
		gather<<<(n + 127) / 128, 128>>>(texture, out, n);
		CUDA(cudaDeviceSynchronize());
		for (int i = 0; i < n; i++)
			EXPECT(out[i] == (float)((n - 1 - i) * 3 + round));
	}
	CUDA(cudaDestroyTextureObject(texture));
	CUDA(cudaMallocArray(&array, &format, 100, 60));
	CUDA(cudaMemcpy2DToArray(array, 0, 0, data, 100 * sizeof(float), 100 * sizeof(float), 60,
				 cudaMemcpyHostToDevice));
	for (int i = 0; i < n; i++)
		out[i] = 0;
	CUDA(cudaMemcpy2DFromArray(out, 100 * sizeof(float), array, 0, 0, 100 * sizeof(float), 60,
				   cudaMemcpyDeviceToHost));
	for (int i = 0; i < n; i++)
		EXPECT(out[i] == data[i]);
	// The same by CUDA's oldest names, which lead elsewhere.
	for (int i = 0; i < n; i++)
		data[i] = (float)i;
	CUDA(cudaMemcpyToArray(array, 0, 0, data, 100 * sizeof(float), cudaMemcpyHostToDevice));
	CUDA(cudaMemcpyFromArray(out + 200, array, 0, 0, 100 * sizeof(float), cudaMemcpyDeviceToHost));
	EXPECT(out[200] == 0 && out[299] == 99);
	return passed();
}
