/* softgpu: cc=9.0,sms=4
 * A cooperative launch must be resident as a whole: 64 warps on each of four
 * multiprocessors. */
#include "driver.h"

int main(void)
{
	CUfunction bounded;

	begin();
	bounded = kernel("bounded");
	CHECK(cuLaunchCooperativeKernel(bounded, 128, 1, 1, 64, 1, 1, 0, NULL, NULL));
	EXPECT(cuLaunchCooperativeKernel(bounded, 129, 1, 1, 64, 1, 1, 0, NULL, NULL),
	       CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
	CHECK(cuCtxSynchronize());
	return 0;
}
