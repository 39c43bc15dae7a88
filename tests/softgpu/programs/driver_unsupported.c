/* Used by a test of what is missing: the same call twice. */
#include "driver.h"

int main(void)
{
	CHECK(cuInit(0));
	EXPECT(cuGraphCreate(NULL, 0), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuGraphCreate(NULL, 0), CUDA_ERROR_NOT_SUPPORTED);
	return 0;
}
