/* What is asked of devices, arrays and contexts, and maps that the host alone makes. */
#include "calls.h"

static void arrays(void)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {
		.Width = 64, .Height = 32, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1,
	};
	CUDA_ARRAY_MEMORY_REQUIREMENTS needs, more;
	CUDA_RESOURCE_DESC resource = { .resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY };
	CUDA_TEXTURE_DESC texture = { .flags = 2 };
	CUDA_RESOURCE_VIEW_DESC view = {
		.format = CU_RES_VIEW_FORMAT_NONE, .width = 64, .height = 32,
		.lastMipmapLevel = 1,
	}, found;
	CUmipmappedArray mipmap;
	CUtexObject object;
	CUarray array;
	size_t width;

	CHECK(cuArray3DCreate_v2(&array, &shape));
	CHECK(cuArrayGetMemoryRequirements(&needs, array, 0));
	REQUIRE(needs.size >= 64 * 32 * 4 && needs.alignment);
	CHECK(cuMipmappedArrayCreate(&mipmap, &shape, 3));
	CHECK(cuMipmappedArrayGetMemoryRequirements(&more, mipmap, 0));
	REQUIRE(more.size > needs.size);

	/* A view comes back as it was given. */
	resource.res.mipmap.hMipmappedArray = mipmap;
	CHECK(cuTexObjectCreate(&object, &resource, &texture, &view));
	CHECK(cuTexObjectGetResourceViewDesc(&found, object));
	REQUIRE(found.width == 64 && found.height == 32 && found.lastMipmapLevel == 1);
	CHECK(cuTexObjectDestroy(object));

	CHECK(cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_FLOAT, 4, 0));
	REQUIRE(width >= 1 << 16);
	EXPECT(cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_FLOAT, 3, 0),
	       CUDA_ERROR_INVALID_VALUE);
}

static void affinity(void)
{
	CUexecAffinityParam param;
	int support = -1, multiprocessors;

	CHECK(cuDeviceGetExecAffinitySupport(&support, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0));
	REQUIRE(support == 0 || support == 1);
	CHECK(cuCtxGetExecAffinity(&param, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
	CHECK(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
	REQUIRE_EQUAL(param.param.smCount.val, multiprocessors);
}

static void atomics(void)
{
	const CUatomicOperation asked[] = { CU_ATOMIC_OPERATION_CAS, CU_ATOMIC_OPERATION_FLOAT_ADD };
	unsigned told[3] = { 77, 77, 77 };

	CHECK(cuDeviceGetP2PAtomicCapabilities(told, asked, 2, 0, 1));
	REQUIRE(told[0] & CU_ATOMIC_CAPABILITY_SCALAR_32);
	REQUIRE(told[1] != 77 && told[2] == 77);
	EXPECT(cuDeviceGetP2PAtomicCapabilities(told, asked, 2, 0, 0), CUDA_ERROR_INVALID_DEVICE);
	told[0] = told[1] = 77;
	CHECK(cuDeviceGetHostAtomicCapabilities(told, asked, 2, 0));
	REQUIRE(told[0] != 77 && told[1] != 77);
}

static void tensor_maps(void)
{
	_Alignas(128) CUtensorMap here, there, moved;
	const cuuint64_t extents[4] = { 64, 32, 16, 8 }, strides[3] = { 256, 8192, 131072 };
	const cuuint32_t box[4] = { 16, 8, 1, 1 }, steps[4] = { 1, 1, 1, 1 };
	const int lower[2] = { -1, -1 }, upper[2] = { 1, 1 };
	char *memory = (char *)0x700000000000;

	CHECK(cuTensorMapEncodeTiled(&here, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, memory, extents, strides,
				     box, steps, 0, 0, 0, 0));
	CHECK(cuTensorMapEncodeTiled(&there, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, memory + 4096, extents,
				     strides, box, steps, 0, 0, 0, 0));
	REQUIRE(memcmp(&here, &there, sizeof(here)));
	moved = here;
	CHECK(cuTensorMapReplaceAddress(&moved, memory + 4096));
	REQUIRE(!memcmp(&moved, &there, sizeof(moved)));
	EXPECT(cuTensorMapEncodeTiled(&moved, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, memory + 1, extents,
				      strides, box, steps, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuTensorMapEncodeTiled(&moved, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 0, memory, extents,
				      strides, box, steps, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuTensorMapEncodeIm2col(&moved, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 1, memory, extents,
				       strides, lower, upper, 16, 32, steps, 0, 0, 0, 0),
	       CUDA_ERROR_INVALID_VALUE);
	CHECK(cuTensorMapEncodeIm2col(&there, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, memory, extents,
				      strides, lower, upper, 16, 32, steps, 0, 0, 0, 0));
	REQUIRE(memcmp(&here, &there, sizeof(here)));
	CHECK(cuTensorMapEncodeIm2colWide(&moved, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, memory, extents,
					  strides, -1, 1, 16, 32, steps, 0, 0, 3, 0, 0));
	REQUIRE(memcmp(&moved, &there, sizeof(moved)));
}

/* An event behind all streams of a context, and streams behind an event. */
static void context_events(CUcontext context)
{
	CUstream first, second, third;
	CUdeviceptr gate = words(1, 0), seen = words(2, 0);
	CUevent all;

	CHECK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&all, CU_EVENT_DISABLE_TIMING));
	CHECK(cuStreamWaitValue32_v2(first, gate, 1, CU_STREAM_WAIT_VALUE_EQ));
	CHECK(cuMemsetD32Async(seen, 11, 1, first));
	CHECK(cuCtxRecordEvent(context, all));
	EXPECT(cuEventQuery(all), CUDA_ERROR_NOT_READY);
	CHECK(cuCtxWaitEvent(context, all));
	CHECK(cuMemcpyDtoDAsync_v2(seen + 4, seen, 4, second));
	EXPECT(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
	/* From outside of all streams. */
	{
		CUcontext other;

		CHECK(cuCtxCreate_v2(&other, 0, 0));
		CHECK(cuMemcpyHtoD_v2(gate, &(unsigned){ 1 }, 4));
		CHECK(cuCtxPopCurrent_v2(&other));
	}
	CHECK(cuStreamSynchronize(second));
	CHECK(cuEventQuery(all));
	REQUIRE_EQUAL(word_at(seen + 4), 11);
}

int main(void)
{
	CUcontext context = begin();

	arrays();
	affinity();
	atomics();
	tensor_maps();
	context_events(context);
	return 0;
}
