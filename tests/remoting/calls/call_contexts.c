/* Contexts: made in every version, their flags, limits and settings, counted users. */
#include "calls.h"

int main(void)
{
	CUcontext primary, first, second, third, now;
	unsigned flags, version;
	unsigned long long id, other;
	int least, greatest, active;
	CUsharedconfig banks;
	CUfunc_cache cache;
	CUdevice device;
	size_t limit;

	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_YIELD));
	CHECK(cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_BLOCKING_SYNC));
	primary = begin();
	CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	REQUIRE(active && (flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC);

	CHECK(cuCtxCreate_v2(&first, CU_CTX_SCHED_SPIN, 0));
	CHECK(cuCtxGetFlags(&flags));
	REQUIRE_EQUAL(flags & CU_CTX_SCHED_MASK, CU_CTX_SCHED_SPIN);
	CHECK(cuCtxSetFlags(CU_CTX_SCHED_YIELD));
	CHECK(cuCtxGetFlags(&flags));
	REQUIRE_EQUAL(flags & CU_CTX_SCHED_MASK, CU_CTX_SCHED_YIELD);
	CHECK(cuCtxCreate_v3(&second, NULL, 0, 0, 1));
	CHECK(cuCtxGetDevice(&device));
	REQUIRE_EQUAL(device, 1);
	CHECK(cuCtxGetDevice_v2(&device, first));
	REQUIRE_EQUAL(device, 0);
	CHECK(cuCtxCreate_v4(&third, NULL, 0, 0));
	CHECK(cuCtxGetId(first, &id));
	CHECK(cuCtxGetId(third, &other));
	REQUIRE(id != other);
	CHECK(cuCtxGetApiVersion(third, &version));
	REQUIRE(version >= 3020);

	/* A stack. */
	CHECK(cuCtxPopCurrent_v2(&now));
	REQUIRE(now == third);
	CHECK(cuCtxGetCurrent(&now));
	REQUIRE(now == second);
	CHECK(cuCtxPushCurrent_v2(first));
	CHECK(cuCtxGetCurrent(&now));
	REQUIRE(now == first);

	/* Settings. */
	CHECK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
	CHECK(cuCtxGetCacheConfig(&cache));
	REQUIRE_EQUAL(cache, CU_FUNC_CACHE_PREFER_L1);
	CHECK(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
	CHECK(cuCtxGetSharedMemConfig(&banks));
	REQUIRE_EQUAL(banks, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE);
	/* From compute capability 9.0 on there is none. */
	EXPECT(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 3), CUDA_ERROR_UNSUPPORTED_LIMIT);
	CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
	CHECK(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
	REQUIRE(limit >= 4096);
	CHECK(cuCtxGetStreamPriorityRange(&least, &greatest));
	REQUIRE(least >= greatest);
	CHECK(cuCtxResetPersistingL2Cache());
	CHECK(cuCtxSynchronize_v2(first));

	/* Users of a context. */
	CHECK(cuCtxAttach(&now, 0));
	REQUIRE(now == first);
	CHECK(cuCtxDetach(first));
	CHECK(cuCtxGetFlags(&flags));

	CHECK(cuCtxSetCurrent(primary));
	CHECK(cuCtxDestroy_v2(third));
	CHECK(cuCtxDestroy_v2(second));
	CHECK(cuCtxDestroy_v2(first));
	EXPECT(cuCtxDestroy_v2(first), CUDA_ERROR_INVALID_CONTEXT);

	/* Primary contexts end with their last user, and at once. */
	CHECK(cuDevicePrimaryCtxRetain(&now, 1));
	CHECK(cuDevicePrimaryCtxRelease(1));
	CHECK(cuDevicePrimaryCtxGetState(1, &flags, &active));
	REQUIRE(!active);
	CHECK(cuDevicePrimaryCtxReset(0));
	CHECK(cuDevicePrimaryCtxRetain(&now, 0));
	REQUIRE(now == primary);
	CHECK(cuCtxSetCurrent(now));
	CHECK(cuMemFree_v2(words(1, 0)));
	return 0;
}
