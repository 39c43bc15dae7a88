// Dynamic shared memory: several arrays carved from one block of bytes, sizes from nothing to
// beyond the default 48 KiB (which needs the attribute, and is refused without it).
#define PROGRAM "dynamic_shared"
#include "check.h"

extern __shared__ __align__(16) unsigned char dynamic[];

/// Reverses `count` doubles and, behind them, `count` bytes, within the block.
__global__ void reverse(double *numbers, uint8_t *bytes, int count, unsigned *dynamic_size)
{
	double *shared_numbers = reinterpret_cast<double *>(dynamic);
	uint8_t *shared_bytes = reinterpret_cast<uint8_t *>(shared_numbers + count);
	for (int i = threadIdx.x; i < count; i += blockDim.x) {
		shared_numbers[i] = numbers[i];
		shared_bytes[i] = bytes[i];
	}
	__syncthreads();
	for (int i = threadIdx.x; i < count; i += blockDim.x) {
		numbers[i] = shared_numbers[count - 1 - i];
		bytes[i] = shared_bytes[count - 1 - i];
	}
	if (threadIdx.x == 0)
		asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(*dynamic_size));
}

int main()
{
	unsigned *device_size = device_array<unsigned>(1);
	int most = 0;
	CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
	for (int count : {0, 1, 33, 1000, 5000, most / 9}) {
		std::vector<double> numbers(count + 1);
		std::vector<uint8_t> bytes(count + 1);
		for (int i = 0; i < count; i++) {
			numbers[i] = hash(i);
			bytes[i] = static_cast<uint8_t>(hash(~i));
		}
		double *device_numbers = to_device(numbers);
		uint8_t *device_bytes = to_device(bytes);
		const size_t size = static_cast<size_t>(count) * 9;
		if (size > 48 * 1024) {
			reverse<<<1, 128, size>>>(device_numbers, device_bytes, count, device_size);
			const cudaError_t error = cudaGetLastError();
			if (error != cudaErrorInvalidValue)
				FAIL("%zu bytes without the attribute: %s", size, cudaGetErrorString(error));
			CUDA(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize,
						  static_cast<int>(size)));
		}
		reverse<<<1, 128, size>>>(device_numbers, device_bytes, count, device_size);
		CUDA(cudaGetLastError());
		const std::vector<double> turned = to_host(device_numbers, count);
		const std::vector<uint8_t> turned_bytes = to_host(device_bytes, count);
		for (int i = 0; i < count; i++)
			if (turned[i] != numbers[count - 1 - i] || turned_bytes[i] != bytes[count - 1 - i])
				FAIL("%d elements: element %d is wrong", count, i);
		if (to_host(device_size, 1)[0] != size)
			FAIL("the kernel sees %u bytes instead of %zu", to_host(device_size, 1)[0], size);
		CUDA(cudaFree(device_numbers));
		CUDA(cudaFree(device_bytes));
	}
	CUDA(cudaFree(device_size));
	std::printf("ok dynamic_shared up to %d bytes\n", most);
}
