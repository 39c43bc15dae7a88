/* FARBUS_MAPPED_MEMORY=managed: memory that the program registers stays its own, and is good for copies. */
#include "../calls.h"

int main(void)
{
	static unsigned own[4096] __attribute__((aligned(4096)));
	CUdeviceptr device, inside;
	unsigned flags;

	begin();
	/* Asked for as mapped it is had, too: that it can't be is said when its address is asked for. */
	CHECK(cuMemHostRegister_v2(own, sizeof(own), CU_MEMHOSTREGISTER_DEVICEMAP));
	EXPECT(cuMemHostGetDevicePointer_v2(&inside, own, 0), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(cuMemHostGetFlags(&flags, own));
	REQUIRE(flags & CU_MEMHOSTREGISTER_DEVICEMAP);
	CHECK(cuMemHostUnregister(own));
	CHECK(cuMemHostRegister_v2(own, sizeof(own), CU_MEMHOSTREGISTER_PORTABLE));
	EXPECT(cuMemHostGetDevicePointer_v2(&inside, own, 0), CUDA_ERROR_INVALID_VALUE);
	device = words(4096, 9);
	CHECK(cuMemcpyDtoHAsync_v2(own, device, sizeof(own), NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE(own[0] == 9 && own[4095] == 9);
	CHECK(cuMemHostUnregister(own));
	printf("ok\n");
	return 0;
}
