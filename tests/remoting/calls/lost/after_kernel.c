/* Waits, behind a kernel, until the server is lost: says "waiting" first. */
#include "../calls.h"

int main(void)
{
	unsigned value = 3;
	CUdeviceptr word;
	CUresult result;

	(void)begin();
	word = words(1, 0);
	CHECK(cuLaunchKernel(store_kernel(), 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){ &word, &value }, NULL));
	REQUIRE_EQUAL(word_at(word), 3);
	puts("waiting");
	fflush(stdout);
	do {
		result = cuCtxSynchronize();
	} while (result == CUDA_SUCCESS);
	REQUIRE_EQUAL(result, CUDA_ERROR_DEVICE_UNAVAILABLE);
	return 3;
}
