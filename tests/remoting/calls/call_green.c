/* Green contexts: a part of a device's multiprocessors, which is all that its kernels get. */
#include "calls.h"

/* where(seen): each block notes the multiprocessor that it ran on, and how many there are */
static const char probes[] =
".version 7.0\n"
".target sm_75\n"
".address_size 64\n"
".visible .entry where(.param .u64 pseen)\n"
"{\n"
"	.reg .b32 %r<4>;\n"
"	.reg .b64 %rd<4>;\n"
"	ld.param.u64 %rd1, [pseen];\n"
"	mov.u32 %r1, %ctaid.x;\n"
"	mov.u32 %r2, %smid;\n"
"	mul.wide.u32 %rd2, %r1, 4;\n"
"	add.s64 %rd3, %rd1, %rd2;\n"
"	st.global.u32 [%rd3], %r2;\n"
"	ret;\n"
"}\n";

#define BLOCKS 64

static CUfunction where;
static CUdeviceptr seen;

/* The multiprocessors on which the stream's kernels ran, a bit each. */
static unsigned long long used_by(CUstream stream)
{
	void *parameters[] = { &seen };
	unsigned numbers[BLOCKS];
	unsigned long long used = 0;

	CHECK(cuLaunchKernel(where, BLOCKS, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuMemcpyDtoH_v2(numbers, seen, sizeof(numbers)));
	for (unsigned k = 0; k < BLOCKS; k++)
		used |= 1ull << numbers[k];
	return used;
}

static CUgreenCtx green_of(CUdevResource *resources, unsigned count)
{
	CUdevResourceDesc description;
	CUgreenCtx green;

	CHECK(cuDevResourceGenerateDesc(&description, resources, count));
	EXPECT(cuGreenCtxCreate(&green, description, 0, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuGreenCtxCreate(&green, description, 1, CU_GREEN_CTX_DEFAULT_STREAM),
	       CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
	return green;
}

static CUdevResource whole_device(void)
{
	CUdevResource all, other;
	int count;

	CHECK(cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
	CHECK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
	REQUIRE(all.type == CU_DEV_RESOURCE_TYPE_SM && all.sm.smCount == (unsigned)count);
	REQUIRE(count == 16 && all.sm.minSmPartitionSize == 8 && all.sm.smCoscheduledAlignment == 8);
	EXPECT(cuDeviceGetDevResource(0, &other, (CUdevResourceType)7),
	       CUDA_ERROR_INVALID_RESOURCE_TYPE);
	return all;
}

static void split(CUdevResource all)
{
	CU_DEV_SM_RESOURCE_GROUP_PARAMS wanted[2] = {
		{ .smCount = 10, .coscheduledSmCount = 2 },
		{ .coscheduledSmCount = 2, .flags = CU_DEV_SM_RESOURCE_GROUP_BACKFILL },
	};
	CUdevResource parts[2], rest;
	CUdevResourceDesc description;
	unsigned count = 0;

	CHECK(cuDevSmResourceSplitByCount(NULL, &count, &all, NULL, 0, 3));
	REQUIRE_EQUAL(count, 2);
	CHECK(cuDevSmResourceSplitByCount(
		NULL, &count, &all, NULL, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, 3));
	REQUIRE_EQUAL(count, 4);
	count = 1;
	CHECK(cuDevSmResourceSplitByCount(parts, &count, &all, &rest, 0, 8));
	REQUIRE(count == 1 && parts[0].sm.smCount == 8 && rest.sm.smCount == 8);
	/* What was divided is divided again only by a context that has it. */
	EXPECT(cuDevSmResourceSplitByCount(parts, &count, &rest, NULL, 0, 8),
	       CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
	count = 2;
	CHECK(cuDevSmResourceSplitByCount(parts, &count, &all, &rest, 0, 8));
	REQUIRE(count == 2 && rest.type == CU_DEV_RESOURCE_TYPE_INVALID);
	EXPECT(cuDevResourceGenerateDesc(&description, &rest, 1), CUDA_ERROR_INVALID_RESOURCE_TYPE);
	/* Parts of different divisions may be the same. */
	parts[1] = all;
	EXPECT(cuDevResourceGenerateDesc(&description, parts, 2),
	       CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);

	CHECK(cuDevSmResourceSplit(parts, 2, &all, &rest, 0, wanted));
	REQUIRE(parts[0].sm.smCount == 10 && parts[1].sm.smCount == 6 && wanted[1].smCount == 6);
	REQUIRE(parts[0].sm.smCoscheduledAlignment == 2 && rest.type == CU_DEV_RESOURCE_TYPE_INVALID);
	wanted[0] = (CU_DEV_SM_RESOURCE_GROUP_PARAMS){ .smCount = 10 };	/* not of eights */
	EXPECT(cuDevSmResourceSplit(parts, 1, &all, NULL, 0, wanted),
	       CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
	memset(&all._internal_padding, 0x55, sizeof(all._internal_padding));
	EXPECT(cuDevSmResourceSplitByCount(parts, &count, &all, NULL, 0, 8),
	       CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
}

static void streams(CUgreenCtx green, CUgreenCtx other, CUcontext primary)
{
	CUdevResource told;
	CUgreenCtx found;
	CUcontext context, again;
	CUstream stream, plain, second, apart;
	unsigned long long id, other_id, first_used, used;
	CUevent event;

	CHECK(cuGreenCtxGetId(green, &id));
	CHECK(cuGreenCtxGetId(other, &other_id));
	REQUIRE(id != other_id);
	EXPECT(cuGreenCtxGetId(NULL, &id), CUDA_ERROR_INVALID_CONTEXT);
	CHECK(cuGreenCtxGetDevResource(green, &told, CU_DEV_RESOURCE_TYPE_SM));
	REQUIRE_EQUAL(told.sm.smCount, 8);
	EXPECT(cuGreenCtxStreamCreate(&stream, green, 0, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
	CHECK(cuGreenCtxStreamCreate(&second, other, CU_STREAM_NON_BLOCKING, 0));
	CHECK(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamGetGreenCtx(stream, &found));
	REQUIRE(found == green);
	CHECK(cuStreamGetCtx_v2(stream, &context, &found));
	REQUIRE(context == primary && found == green);
	CHECK(cuStreamGetCtx_v2(plain, &context, &found));
	REQUIRE(context == primary && !found);
	CHECK(cuStreamGetDevResource(stream, &told, CU_DEV_RESOURCE_TYPE_SM));
	REQUIRE_EQUAL(told.sm.smCount, 8);
	CHECK(cuStreamGetDevResource(plain, &told, CU_DEV_RESOURCE_TYPE_SM));
	REQUIRE_EQUAL(told.sm.smCount, 16);

	/* Eight each, none of them the other's. */
	REQUIRE_EQUAL(__builtin_popcountll(used_by(plain)), 16);
	first_used = used_by(stream);
	REQUIRE_EQUAL(__builtin_popcountll(first_used), 8);
	used = used_by(second);
	REQUIRE(__builtin_popcountll(used) == 8 && !(used & first_used));

	/* The same by a context that stands for it. */
	CHECK(cuCtxFromGreenCtx(&context, green));
	CHECK(cuCtxFromGreenCtx(&again, green));
	REQUIRE(context == again && context != primary);
	CHECK(cuCtxPushCurrent_v2(context));
	CHECK(cuCtxGetCurrent(&again));
	REQUIRE(again == context);
	CHECK(cuCtxGetDevResource(context, &told, CU_DEV_RESOURCE_TYPE_SM));
	REQUIRE_EQUAL(told.sm.smCount, 8);
	CHECK(cuCtxGetDevResource(primary, &told, CU_DEV_RESOURCE_TYPE_SM));
	REQUIRE_EQUAL(told.sm.smCount, 16);
	CHECK(cuGreenCtxGetId(NULL, &other_id));
	CHECK(cuGreenCtxGetId(green, &id));
	REQUIRE(id == other_id);
	CHECK(cuStreamGetGreenCtx(NULL, &found));
	REQUIRE(found == green);
	REQUIRE_EQUAL(used_by(NULL), first_used);
	CHECK(cuStreamDestroy_v2(plain));
	CHECK(cuStreamCreate(&plain, 0));
	REQUIRE_EQUAL(used_by(plain), first_used);
	CHECK(cuStreamGetCtx(plain, &again));
	REQUIRE(again == context);
	/* Memory is the device's, whichever part allocates it. */
	{
		CUdeviceptr memory = words(1, 9);

		CHECK(cuCtxPopCurrent_v2(&again));
		REQUIRE(again == context);
		REQUIRE_EQUAL(word_at(memory), 9);
		CHECK(cuMemFree_v2(memory));
	}
	REQUIRE_EQUAL(__builtin_popcountll(used_by(NULL)), 16);

	/* An event behind all of its streams, and streams behind an event. */
	{
		CUdeviceptr gate = words(2, 0);

		CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
		CHECK(cuStreamCreate(&apart, CU_STREAM_NON_BLOCKING));
		CHECK(cuStreamWaitValue32_v2(second, gate, 1, CU_STREAM_WAIT_VALUE_EQ));
		CHECK(cuGreenCtxRecordEvent(green, event));
		CHECK(cuEventSynchronize(event));	/* the other's streams don't count */
		CHECK(cuGreenCtxRecordEvent(other, event));
		EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
		CHECK(cuGreenCtxWaitEvent(green, event));
		CHECK(cuStreamWriteValue32_v2(stream, gate + 4, 7, 0));
		EXPECT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
		CHECK(cuStreamWriteValue32_v2(apart, gate, 1, 0));
		CHECK(cuStreamSynchronize(stream));
		REQUIRE_EQUAL(word_at(gate + 4), 7);
		CHECK(cuEventDestroy_v2(event));
		CHECK(cuStreamDestroy_v2(apart));
	}
	CHECK(cuStreamDestroy_v2(plain));
	CHECK(cuStreamDestroy_v2(second));

	CHECK(cuGreenCtxDestroy(green));
	EXPECT(cuGreenCtxDestroy(green), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuCtxFromGreenCtx(&context, green), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuCtxSetCurrent(again), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuStreamQuery(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	CHECK(cuStreamDestroy_v2(stream));
}

/* As many blocks as the part can have at a time, and not one more. */
static void together(CUdevResource whole)
{
	CUgreenCtx green = green_of(&whole, 1);
	void *parameters[] = { &seen };
	CUdevResource half[2];
	unsigned count = 2;
	CUstream stream;
	int blocks;

	CHECK(cuGreenCtxGetDevResource(green, &whole, CU_DEV_RESOURCE_TYPE_SM));
	CHECK(cuDevSmResourceSplitByCount(half, &count, &whole, NULL, 0, 8));
	REQUIRE_EQUAL(count, 2);
	CHECK(cuGreenCtxDestroy(green));
	green = green_of(half, 1);
	CHECK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
	CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, where, 1024, 0));
	CHECK(cuLaunchCooperativeKernel(where, 8 * (unsigned)blocks, 1, 1, 1024, 1, 1, 0, stream,
					parameters));
	EXPECT(cuLaunchCooperativeKernel(where, 8 * (unsigned)blocks + 1, 1, 1, 1024, 1, 1, 0, stream,
					 parameters),
	       CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
	CHECK(cuLaunchCooperativeKernel(where, 8 * (unsigned)blocks + 1, 1, 1, 1024, 1, 1, 0, NULL,
					parameters));
	/* What fitted in the whole device fits in the part no better. */
	EXPECT(cuLaunchCooperativeKernel(where, 8 * (unsigned)blocks + 1, 1, 1, 1024, 1, 1, 0, stream,
					 parameters),
	       CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
	CHECK(cuCtxSynchronize());
	CHECK(cuStreamDestroy_v2(stream));
	CHECK(cuGreenCtxDestroy(green));
}

int main(void)
{
	CUcontext primary = begin();
	CUdevResource all = whole_device(), parts[2];
	CUmodule module;
	unsigned count = 2;

	seen = words(1024, 0);
	CHECK(cuModuleLoadData(&module, probes));
	CHECK(cuModuleGetFunction(&where, module, "where"));
	split(all);
	CHECK(cuDevSmResourceSplitByCount(parts, &count, &all, NULL, 0, 8));
	REQUIRE_EQUAL(count, 2);
	streams(green_of(&parts[0], 1), green_of(&parts[1], 1), primary);
	together(all);
	return 0;
}
