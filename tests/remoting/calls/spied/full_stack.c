/* A thread whose stack of contexts is full gets no new one, and the driver makes none for nobody. */
#include "../calls.h"

int main(void)
{
	CUcontext own = begin(), made;
	unsigned depth = 1;

	while (cuCtxPushCurrent_v2(own) == CUDA_SUCCESS)
		depth++;
	REQUIRE_EQUAL(depth, 64);
	EXPECT(cuCtxCreate_v2(&made, 0, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuCtxPopCurrent_v2(NULL));
	CHECK(cuCtxCreate_v2(&made, 0, 0));
	puts("ok");
	return 0;
}
