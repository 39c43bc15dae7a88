/* A kernel computes, with parameters by pointer and as a packed buffer. */
#include "driver.h"

#define COUNT 100000

static float a[COUNT], b[COUNT], c[COUNT];

static void check(CUdeviceptr out)
{
	CHECK(cuMemcpyDtoH(c, out, sizeof c));
	for (int i = 0; i < COUNT; i++)
		REQUIRE(c[i] == a[i] + b[i]);
}

int main(void)
{
	struct { CUdeviceptr a, b, c; int count; } packed;
	size_t bytes = 3 * sizeof(CUdeviceptr) + sizeof(int);
	void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE,
			  &bytes, CU_LAUNCH_PARAM_END };
	void *params[] = { &packed.a, &packed.b, &packed.c, &packed.count };

	begin();
	for (int i = 0; i < COUNT; i++) {
		a[i] = (float)i;
		b[i] = 0.5f * (float)i;
	}
	packed.count = COUNT;
	CHECK(cuMemAlloc(&packed.a, sizeof a));
	CHECK(cuMemAlloc(&packed.b, sizeof b));
	CHECK(cuMemAlloc(&packed.c, sizeof c));
	CHECK(cuMemcpyHtoD(packed.a, a, sizeof a));
	CHECK(cuMemcpyHtoD(packed.b, b, sizeof b));
	CHECK(cuLaunchKernel(kernel("vector_add"), (COUNT + 255) / 256, 1, 1, 256, 1, 1, 0, NULL,
			     params, NULL));
	check(packed.c);
	CHECK(cuMemsetD8(packed.c, 0, sizeof c));
	CHECK(cuLaunchKernel(kernel("vector_add"), (COUNT + 255) / 256, 1, 1, 256, 1, 1, 0, NULL,
			     NULL, extra));
	check(packed.c);
	return 0;
}
