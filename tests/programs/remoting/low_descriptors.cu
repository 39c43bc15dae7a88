// A program may close and reuse all low descriptors, as daemons do, and go on.
#include "check.h"

#include <fcntl.h>
#include <unistd.h>

int main()
{
	int value = 0, *device;
	CUDA(cudaMalloc(&device, sizeof(int)));
	for (int descriptor = 3; descriptor < 100; descriptor++)
		close(descriptor);
	const int null = open("/dev/null", O_RDWR);
	for (int descriptor = 3; descriptor < 100; descriptor++)
		EXPECT(dup2(null, descriptor) == descriptor);
	CUDA(cudaMemset(device, 1, sizeof(int)));
	CUDA(cudaMemcpy(&value, device, sizeof(int), cudaMemcpyDeviceToHost));
	EXPECT(value == 0x01010101);
	return passed();
}
