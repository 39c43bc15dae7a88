// Prints each device: its name's capability, its PCI address, and the driver's version.
#include "two.h"

int main()
{
	int count, version;
	CUDA(cudaGetDeviceCount(&count));
	CUDA(cudaDriverGetVersion(&version));
	for (int device = 0; device < count; device++) {
		cudaDeviceProp properties;
		char address[32];
		int found;
		CUDA(cudaGetDeviceProperties(&properties, device));
		CUDA(cudaDeviceGetPCIBusId(address, sizeof address, device));
		CUDA(cudaDeviceGetByPCIBusId(&found, address));
		EXPECT(found == device);
		int *there = allocate_on(device, 64);
		fill_with<<<1, 64>>>(there, 64, device);
		expect_filled(read_back(there, 64), device);
		std::printf("%d.%d %d ", properties.major, properties.minor, properties.multiProcessorCount);
	}
	std::printf("%d\n", version);
	return passed();
}
