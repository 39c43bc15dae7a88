/* softgpu: count=2,mem=64MiB
 * What was said of managed memory is what is asked for later, page by page. */
#include "driver.h"

#include <stdint.h>

CUresult cuMemAdvise(CUdeviceptr, size_t, CUmem_advise, CUdevice);
CUresult cuMemAdvise_v2(CUdeviceptr, size_t, CUmem_advise, CUmemLocation);
CUresult cuMemPrefetchAsync(CUdeviceptr, size_t, CUdevice, CUstream);
CUresult cuMemPrefetchAsync_v2(CUdeviceptr, size_t, CUmemLocation, unsigned int, CUstream);
CUresult cuMemRangeGetAttribute(void *, size_t, CUmem_range_attribute, CUdeviceptr, size_t);
CUresult cuMemRangeGetAttributes(void **, size_t *, CUmem_range_attribute *, size_t, CUdeviceptr,
				 size_t);

#define PAGE ((size_t)4096)
#define PAGES 16

static CUdeviceptr memory;

static int32_t ask(CUmem_range_attribute attribute, size_t first, size_t count)
{
	int32_t value = 77;

	CHECK(cuMemRangeGetAttribute(&value, sizeof(value), attribute, memory + first * PAGE,
				     count * PAGE));
	return value;
}

static void read_mostly(void)
{
	CHECK(cuMemAdvise(memory + 2 * PAGE, 4 * PAGE, CU_MEM_ADVISE_SET_READ_MOSTLY, 99));
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 2, 4), 1);
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 3, 1), 1);
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 1, 2), 0);
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 5, 2), 0);
	/* A byte stands for its page. */
	CHECK(cuMemAdvise(memory + 4 * PAGE + 17, 1, CU_MEM_ADVISE_UNSET_READ_MOSTLY, 0));
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 2, 4), 0);
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 2, 2), 1);
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 4, 1), 0);
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 5, 1), 1);
}

static void locations(void)
{
	CUmemLocation node = { .type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0 };
	CUmemLocation second = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1 };

	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 0, PAGES), CU_DEVICE_INVALID);
	CHECK(cuMemAdvise(memory, 8 * PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 1));
	CHECK(cuMemAdvise(memory + 8 * PAGE, 8 * PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
			  CU_DEVICE_CPU));
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 0, 8), 1);
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 8, 8), CU_DEVICE_CPU);
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 7, 2), CU_DEVICE_INVALID);
	CHECK(cuMemAdvise_v2(memory, 4 * PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, node));
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, 0, 4),
		      CU_MEM_LOCATION_TYPE_HOST_NUMA);
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, 4, 4),
		      CU_MEM_LOCATION_TYPE_DEVICE);
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, 4, 4), 1);
	CHECK(cuMemAdvise(memory, PAGES * PAGE, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, 0));
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, 0, PAGES),
		      CU_MEM_LOCATION_TYPE_INVALID);

	CHECK(cuMemPrefetchAsync(memory, PAGES * PAGE, 0, NULL));
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 0, PAGES), 0);
	CHECK(cuMemPrefetchAsync_v2(memory, PAGE, second, 0, NULL));
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID, 0, 1), 1);
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 0, PAGES),
		      CU_DEVICE_INVALID);
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, 1, 15),
		      CU_MEM_LOCATION_TYPE_DEVICE);
}

static void accessors(void)
{
	int32_t list[3];

	CHECK(cuMemAdvise(memory, PAGES * PAGE, CU_MEM_ADVISE_SET_ACCESSED_BY, 1));
	CHECK(cuMemAdvise(memory, PAGES * PAGE, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_DEVICE_CPU));
	CHECK(cuMemAdvise(memory, 8 * PAGE, CU_MEM_ADVISE_SET_ACCESSED_BY, 0));
	CHECK(cuMemRangeGetAttribute(list, sizeof(list), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, memory,
				     8 * PAGE));
	REQUIRE(list[0] == 0 && list[1] == 1 && list[2] == CU_DEVICE_CPU);
	CHECK(cuMemRangeGetAttribute(list, sizeof(list), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, memory,
				     9 * PAGE));
	REQUIRE(list[0] == 1 && list[1] == CU_DEVICE_CPU && list[2] == CU_DEVICE_INVALID);
	CHECK(cuMemAdvise(memory, PAGES * PAGE, CU_MEM_ADVISE_UNSET_ACCESSED_BY, 1));
	CHECK(cuMemRangeGetAttribute(list, 4, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, memory + 8 * PAGE,
				     PAGE));
	REQUIRE(list[0] == CU_DEVICE_CPU);
}

static void several_at_once(void)
{
	int32_t mostly = 7, location = 7;
	void *out[] = { &mostly, &location };
	size_t sizes[] = { 4, 4 };
	CUmem_range_attribute attributes[] = { CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
					       CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION };

	CHECK(cuMemRangeGetAttributes(out, sizes, attributes, 2, memory + 2 * PAGE, PAGE));
	REQUIRE_EQUAL(mostly, 1);
	REQUIRE_EQUAL(location, 0);
}

/* A variable that is managed takes advice as well; one that comes to its place knows nothing of it. */
static void variables(void)
{
	static const char code[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
				   ".visible .global .attribute(.managed) .align 4 .u32 shared;\n"
				   ".visible .global .align 4 .u32 own;\n";
	CUdeviceptr shared, own;
	CUmodule module;
	int32_t mostly;

	for (int times = 0; times < 2; times++) {
		CHECK(cuModuleLoadData(&module, code));
		CHECK(cuModuleGetGlobal(&shared, NULL, module, "shared"));
		CHECK(cuModuleGetGlobal(&own, NULL, module, "own"));
		CHECK(cuMemRangeGetAttribute(&mostly, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, shared, 4));
		REQUIRE_EQUAL(mostly, 0);
		CHECK(cuMemAdvise(shared, 4, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
		CHECK(cuMemRangeGetAttribute(&mostly, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, shared, 4));
		REQUIRE_EQUAL(mostly, 1);
		CHECK(cuMemPrefetchAsync(shared, 4, 0, NULL));
		EXPECT(cuMemAdvise(own, 4, CU_MEM_ADVISE_SET_READ_MOSTLY, 0), CUDA_ERROR_INVALID_VALUE);
		CHECK(cuModuleUnload(module));
	}
}

static void mistakes(void)
{
	CUmemLocation node = { .type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0 };
	CUdeviceptr plain;
	int32_t value;

	CHECK(cuMemAlloc(&plain, PAGE));
	EXPECT(cuMemAdvise(plain, PAGE, CU_MEM_ADVISE_SET_READ_MOSTLY, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAdvise(memory, 0, CU_MEM_ADVISE_SET_READ_MOSTLY, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAdvise(memory, (PAGES + 1) * PAGE, CU_MEM_ADVISE_SET_READ_MOSTLY, 0),
	       CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAdvise(memory, PAGE, (CUmem_advise)7, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAdvise(memory, PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 2),
	       CUDA_ERROR_INVALID_DEVICE);
	EXPECT(cuMemAdvise_v2(memory, PAGE, CU_MEM_ADVISE_SET_ACCESSED_BY, node),
	       CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemPrefetchAsync(memory, PAGE, 2, NULL), CUDA_ERROR_INVALID_DEVICE);
	EXPECT(cuMemPrefetchAsync(plain, PAGE, 0, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemRangeGetAttribute(&value, 8, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory, PAGE),
	       CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemRangeGetAttribute(&value, 6, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, memory, PAGE),
	       CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemRangeGetAttribute(&value, 4, (CUmem_range_attribute)99, memory, PAGE),
	       CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, plain, PAGE),
	       CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
	begin();
	CHECK(cuMemAllocManaged(&memory, PAGES * PAGE, CU_MEM_ATTACH_GLOBAL));
	read_mostly();
	locations();
	accessors();
	several_at_once();
	variables();
	mistakes();

	/* Memory that comes where advised memory was knows nothing of it. */
	CHECK(cuMemFree(memory));
	CHECK(cuMemAllocManaged(&memory, PAGES * PAGE, CU_MEM_ATTACH_GLOBAL));
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 2, 1), 0);
	REQUIRE_EQUAL(ask(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 0, 1), CU_DEVICE_INVALID);
	return 0;
}
