/* softgpu: count=2,mem=64MiB
 * A kernel reaches another device's memory when it was let in, and not before. */
#include "driver.h"

static CUcontext here, there;
static CUfunction store;

/* A context of device 0 of its own: what it can't reach breaks it. */
static void fresh(void)
{
	CUmodule module;

	if (here)
		CHECK(cuCtxDestroy(here));
	CHECK(cuCtxCreate(&here, 0, 0));
	CHECK(cuModuleLoadData(&module, kernels));
	CHECK(cuModuleGetFunction(&store, module, "store"));
}

static CUresult try_store(CUdeviceptr address)
{
	CHECK(launch_store(store, address, 5, NULL));
	return cuCtxSynchronize();
}

static void expect_stored(CUdeviceptr address)
{
	unsigned value;

	CHECK(cuMemcpyDtoH(&value, address, 4));
	REQUIRE_EQUAL(value, 5);
	CHECK(cuMemsetD32(address, 0, 1));
}

int main(void)
{
	CUmemPoolProps properties = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1 },
	};
	CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemAccess_flags flags;
	CUdeviceptr own, plain, pooled, managed;
	CUmemoryPool pool;
	void *pinned;

	CHECK(cuInit(0));
	CHECK(cuCtxCreate(&there, 0, 1));
	CHECK(cuMemAlloc(&plain, 4096));
	CHECK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
	CHECK(cuMemHostAlloc(&pinned, 4096, 0));
	CHECK(cuMemPoolCreate(&pool, &properties));
	CHECK(cuMemAllocFromPoolAsync(&pooled, 4096, pool, NULL));
	CHECK(cuCtxSynchronize());

	/* Its own memory, and what is everybody's. */
	fresh();
	CHECK(cuMemAlloc(&own, 4096));
	CHECK(try_store(own));
	CHECK(try_store(managed));
	CHECK(try_store((CUdeviceptr)pinned));
	REQUIRE_EQUAL(*(unsigned *)pinned, 5);
	/* A copy needs no access. */
	CHECK(cuMemcpy(plain, own, 4));
	expect_stored(plain);

	EXPECT(try_store(plain), CUDA_ERROR_ILLEGAL_ADDRESS);
	fresh();
	EXPECT(try_store(pooled), CUDA_ERROR_ILLEGAL_ADDRESS);

	/* Enabling peer access opens allocations, not pools. */
	fresh();
	CHECK(cuCtxEnablePeerAccess(there, 0));
	CHECK(try_store(plain));
	expect_stored(plain);
	EXPECT(try_store(pooled), CUDA_ERROR_ILLEGAL_ADDRESS);
	fresh();
	CHECK(cuMemPoolGetAccess(&flags, pool, &access.location));
	REQUIRE_EQUAL(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	CHECK(cuMemPoolSetAccess(pool, &access, 1));
	CHECK(cuMemPoolGetAccess(&flags, pool, &access.location));
	REQUIRE_EQUAL(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	CHECK(try_store(pooled));
	expect_stored(pooled);

	/* And both can be taken back. */
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
	CHECK(cuMemPoolSetAccess(pool, &access, 1));
	EXPECT(try_store(pooled), CUDA_ERROR_ILLEGAL_ADDRESS);
	fresh();
	CHECK(cuCtxEnablePeerAccess(there, 0));
	EXPECT(cuCtxEnablePeerAccess(there, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	CHECK(cuCtxDisablePeerAccess(there));
	EXPECT(cuCtxDisablePeerAccess(there), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
	EXPECT(try_store(plain), CUDA_ERROR_ILLEGAL_ADDRESS);
	return 0;
}
