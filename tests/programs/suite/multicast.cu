// An all-reduce by a multicast object of all devices that the program has: each adds a slice of what all have bound up,
// and stores the sums into the memory of all.
#define PROGRAM "multicast"
#include "driver.h"

__global__ void all_reduce(float *multicast, int first, int last)
{
	for (int i = first + 4 * (blockIdx.x * blockDim.x + threadIdx.x); i < last; i += 4 * gridDim.x * blockDim.x)
		asm volatile("{ .reg .f32 a, b, c, d;\n\t"
			     "multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {a, b, c, d}, [%0];\n\t"
			     "multimem.st.relaxed.sys.global.v4.f32 [%0], {a, b, c, d}; }"
			     :
			     : "l"(multicast + i)
			     : "memory");
}

__global__ void count(unsigned *multicast)
{
	asm volatile("multimem.red.relaxed.sys.global.add.u32 [%0], 1;" : : "l"(multicast) : "memory");
}

static float *map(CUmemGenericAllocationHandle memory, size_t bytes, int device)
{
	CUmemAccessDesc access = {};
	CUdeviceptr address;
	access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.location.id = device;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	DRIVER(cuMemAddressReserve, &address, bytes, bytes, 0, 0);
	DRIVER(cuMemMap, address, bytes, 0, memory, 0);
	DRIVER(cuMemSetAccess, address, bytes, &access, 1);
	return reinterpret_cast<float *>(address);
}

int main()
{
	int devices = 0, supported = 1;
	CUDA(cudaGetDeviceCount(&devices));
	for (int device = 0; device < devices && supported; device++) {
		CUDA(cudaSetDevice(device));
		CUDA(cudaFree(nullptr));
		DRIVER(cuDeviceGetAttribute, &supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device);
	}
	if (!supported) {
		std::puts("ok multicast: not what these devices have");
		return 0;
	}
	CUmulticastObjectProp object = {};
	CUmemGenericAllocationHandle team;
	size_t bytes;
	object.numDevices = devices;
	DRIVER(cuMulticastGetGranularity, &bytes, &object, CU_MULTICAST_GRANULARITY_RECOMMENDED);
	object.size = bytes;
	DRIVER(cuMulticastCreate, &team, &object);
	for (int device = 0; device < devices; device++)
		DRIVER(cuMulticastAddDevice, team, device);

	// The last word counts; numbers are whole ones, and small, so that the order of a sum is no matter.
	const int numbers = static_cast<int>(bytes / sizeof(float)) - 1, size = numbers / 4 * 4;
	std::vector<float> expected(size);
	std::vector<CUmemGenericAllocationHandle> memory(devices);
	std::vector<float *> own(devices), multicast(devices);
	for (int device = 0; device < devices; device++) {
		CUmemAllocationProp property = {};
		std::vector<float> values(size);
		CUDA(cudaSetDevice(device));
		property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
		property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		property.location.id = device;
		DRIVER(cuMemCreate, &memory[device], bytes, &property, 0);
		own[device] = map(memory[device], bytes, device);
		DRIVER(cuMulticastBindMem, team, 0, memory[device], 0, bytes, 0);
		for (int i = 0; i < size; i++)
			expected[i] += values[i] = static_cast<float>(hash(i + device * size) % 1000);
		CUDA(cudaMemset(own[device], 0, bytes));
		CUDA(cudaMemcpy(own[device], values.data(), size * sizeof(float), cudaMemcpyHostToDevice));
	}
	for (int device = 0; device < devices; device++) {
		CUDA(cudaSetDevice(device));
		multicast[device] = map(team, bytes, device);
		const int slice = (size / devices + 3) / 4 * 4, first = device * slice;
		all_reduce<<<32, 128>>>(multicast[device], first, first + slice < size ? first + slice : size);
		count<<<4, 32>>>(reinterpret_cast<unsigned *>(multicast[device] + numbers));
		CUDA(cudaGetLastError());
	}
	for (int device = 0; device < devices; device++) {
		CUDA(cudaSetDevice(device));
		CUDA(cudaDeviceSynchronize());
	}
	for (int device = 0; device < devices; device++) {
		CUDA(cudaSetDevice(device));
		const std::vector<float> result = to_host(own[device], size);
		for (int i = 0; i < size; i++)
			if (result[i] != expected[i])
				FAIL("number %d of device %d is %g instead of %g", i, device, result[i], expected[i]);
		const unsigned counted = to_host(reinterpret_cast<unsigned *>(own[device] + numbers), 1)[0];
		if (counted != 128u * devices)
			FAIL("device %d counts %u instead of %u", device, counted, 128u * devices);
	}
	for (int device = 0; device < devices; device++) {
		DRIVER(cuMulticastUnbind, team, device, 0, bytes);
		DRIVER(cuMemUnmap, reinterpret_cast<CUdeviceptr>(multicast[device]), bytes);
		DRIVER(cuMemUnmap, reinterpret_cast<CUdeviceptr>(own[device]), bytes);
		DRIVER(cuMemRelease, memory[device]);
	}
	DRIVER(cuMemRelease, team);
	std::printf("ok multicast of %d numbers of %d devices\n", size, devices);
}
