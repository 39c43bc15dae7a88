/* Used by a test of what is missing: the same call twice. */
#include "driver.h"

int main(void)
{
	CHECK(cuInit(0));
	EXPECT(cuFlushGPUDirectRDMAWrites(), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuFlushGPUDirectRDMAWrites(), CUDA_ERROR_NOT_SUPPORTED);
	return 0;
}
