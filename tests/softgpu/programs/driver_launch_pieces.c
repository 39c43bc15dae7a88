/* Launches of CUDA 2: block, shared memory and parameters are set one by one, and stay. */
#include "driver.h"

CUresult cuFuncSetBlockShape(CUfunction, int, int, int);
CUresult cuFuncSetSharedSize(CUfunction, unsigned int);
CUresult cuParamSetSize(CUfunction, unsigned int);
CUresult cuParamSeti(CUfunction, int, unsigned int);
CUresult cuParamSetf(CUfunction, int, float);
CUresult cuParamSetv(CUfunction, int, void *, unsigned int);
CUresult cuLaunch(CUfunction);
CUresult cuLaunchGrid(CUfunction, int, int);
CUresult cuLaunchGridAsync(CUfunction, int, int, CUstream);

static CUdeviceptr word;

static unsigned stored(void)
{
	unsigned seen;

	CHECK(cuMemcpyDtoH(&seen, word, 4));
	return seen;
}

int main(void)
{
	CUfunction store;
	CUstream stream;
	float half = 0.5f;
	unsigned bits;

	begin();
	store = kernel("store");
	CHECK(cuMemAlloc(&word, 4));
	/* Nothing was set: the block has no threads. */
	EXPECT(cuLaunch(store), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuFuncSetBlockShape(store, 1, 1, 1));
	CHECK(cuFuncSetSharedSize(store, 0));
	CHECK(cuParamSetSize(store, 12));
	CHECK(cuParamSetv(store, 0, &word, 8));
	CHECK(cuParamSeti(store, 8, 31));
	CHECK(cuLaunch(store));
	REQUIRE_EQUAL(stored(), 31);
	CHECK(cuParamSetf(store, 8, half));
	CHECK(cuLaunchGrid(store, 2, 1));
	bits = stored();
	REQUIRE(!memcmp(&bits, &half, 4));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuParamSeti(store, 8, 32));
	CHECK(cuLaunchGridAsync(store, 1, 1, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(stored(), 32);
	EXPECT(cuFuncSetBlockShape(store, 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuParamSetSize(store, 4097), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuParamSetv(store, 4090, &word, 8), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuParamSetv(store, -1, &word, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuLaunchGrid(store, 0, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuParamSeti(NULL, 0, 1), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuFuncSetSharedSize(store, 64 << 10));
	EXPECT(cuLaunch(store), CUDA_ERROR_INVALID_VALUE);
	return 0;
}
