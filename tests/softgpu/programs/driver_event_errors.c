/* What elapsed time can't be had from. */
#include "driver.h"

int main(void)
{
	CUevent start, end, untimed;
	struct gate gate;
	float elapsed;

	begin();
	CHECK(cuEventCreate(&start, CU_EVENT_DEFAULT));
	CHECK(cuEventCreate(&end, CU_EVENT_DEFAULT));
	CHECK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventQuery(start));
	CHECK(cuEventSynchronize(start));
	EXPECT(cuEventElapsedTime(&elapsed, start, end), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuEventRecord(start, NULL));
	CHECK(cuEventRecord(untimed, NULL));
	EXPECT(cuEventElapsedTime(&elapsed, start, untimed), CUDA_ERROR_INVALID_HANDLE);
	gate_close(&gate, NULL);
	CHECK(cuEventRecord(end, NULL));
	EXPECT(cuEventElapsedTime(&elapsed, start, end), CUDA_ERROR_NOT_READY);
	gate_open(&gate);
	CHECK(cuEventSynchronize(end));
	CHECK(cuEventElapsedTime(&elapsed, start, end));
	CHECK(cuEventDestroy(end));
	EXPECT(cuEventQuery(end), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuEventCreate(&end, 0x80), CUDA_ERROR_INVALID_VALUE);
	return 0;
}
