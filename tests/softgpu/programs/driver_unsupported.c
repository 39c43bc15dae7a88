/* Used by a test of what is missing: the same call twice, and what programs look for by its name. */
#include "driver.h"

CUresult cuGraphicsGLRegisterBuffer(void **resource, unsigned buffer, unsigned flags);

int main(void)
{
	CHECK(cuInit(0));
	EXPECT(cuFlushGPUDirectRDMAWrites(), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuFlushGPUDirectRDMAWrites(), CUDA_ERROR_NOT_SUPPORTED);
	/* Dr.Jit has no GPU where this one is not there. */
	EXPECT(cuGraphicsGLRegisterBuffer(NULL, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
	return 0;
}
