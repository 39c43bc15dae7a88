/* Memory of the program's own that it registers, not asked to be mapped, has no address for kernels. */
#include "../calls.h"

int main(void)
{
	static char registered[1 << 16] __attribute__((aligned(4096)));
	CUdeviceptr inside;

	begin();
	CHECK(cuMemHostRegister_v2(registered, sizeof(registered), CU_MEMHOSTREGISTER_PORTABLE));
	REQUIRE(cuMemHostGetDevicePointer_v2(&inside, registered, 0) != CUDA_SUCCESS);
	REQUIRE(cuMemHostGetDevicePointer_v2(&inside, registered + 4096, 0) != CUDA_SUCCESS);
	printf("ok\n");
	return 0;
}
