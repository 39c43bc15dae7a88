/* Launches that are refused at the call, each with CUDA's own number. */
#include "driver.h"

static CUresult launch(CUfunction function, unsigned grid[3], unsigned block[3], unsigned shared)
{
	return cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
			      shared, NULL, NULL, NULL);
}

#define SHAPE(x, y, z) (unsigned[3]){ x, y, z }

int main(void)
{
	CUfunction bounded, store, shared_user;
	CUdeviceptr word;
	unsigned value = 1, seen = 2;
	void *params[] = { &word, &value };
	struct {
		CUdeviceptr to;
		unsigned value, padding;
	} buffer = { .value = 3 };
	size_t bytes = 12;
	void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE,
			  &bytes, CU_LAUNCH_PARAM_END };

	begin();
	bounded = kernel("bounded");
	store = kernel("store");
	shared_user = kernel("shared_user");
	CHECK(cuMemAlloc(&word, 4));
	CHECK(launch(bounded, SHAPE(1, 1, 1), SHAPE(64, 1, 1), 0));
	EXPECT(launch(NULL, SHAPE(1, 1, 1), SHAPE(1, 1, 1), 0), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(launch(bounded, SHAPE(0, 1, 1), SHAPE(1, 1, 1), 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(launch(bounded, SHAPE(1, 1, 1), SHAPE(0, 1, 1), 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(launch(bounded, SHAPE(1, 65536, 1), SHAPE(1, 1, 1), 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(launch(bounded, SHAPE(1, 1, 1), SHAPE(1, 1, 65), 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(launch(bounded, SHAPE(1, 1, 1), SHAPE(65, 1, 1), 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuLaunchKernel(store, 1, 1, 1, 4096, 1, 1, 0, NULL, params, NULL),
	       CUDA_ERROR_INVALID_VALUE);
	EXPECT(launch(store, SHAPE(1, 1, 1), SHAPE(1, 1, 1), 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, NULL, params, extra),
	       CUDA_ERROR_INVALID_VALUE);
	buffer.to = word;
	CHECK(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
	CHECK(cuMemcpyDtoH(&seen, word, 4));
	REQUIRE_EQUAL(seen, 3);
	bytes = 16;
	EXPECT(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra),
	       CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
	/* What is missing is zero. */
	bytes = 8;
	CHECK(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
	CHECK(cuMemcpyDtoH(&seen, word, 4));
	REQUIRE_EQUAL(seen, 0);
	/* 48 KiB with the kernel's own 1 KiB, unless more was asked for */
	CHECK(cuLaunchKernel(shared_user, 1, 1, 1, 1, 1, 1, 47 << 10, NULL, params, NULL));
	EXPECT(cuLaunchKernel(shared_user, 1, 1, 1, 1, 1, 1, 48 << 10, NULL, params, NULL),
	       CUDA_ERROR_INVALID_VALUE);
	CHECK(cuFuncSetAttribute(shared_user, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
				 64 << 10));
	CHECK(cuLaunchKernel(shared_user, 1, 1, 1, 1, 1, 1, 64 << 10, NULL, params, NULL));
	EXPECT(cuFuncSetAttribute(shared_user, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
				  227 << 10), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuCtxSynchronize());
	return 0;
}
