/* What arrays and mipmapped arrays need of memory, and how they would lie in it. */
#include "calls.h"

int main(void)
{
	CUDA_ARRAY3D_DESCRIPTOR plane = { .Width = 64, .Height = 64, .Format = CU_AD_FORMAT_FLOAT,
					  .NumChannels = 1, .Flags = CUDA_ARRAY3D_DEFERRED_MAPPING };
	CUDA_ARRAY_MEMORY_REQUIREMENTS needs = { 0 };
	CUDA_ARRAY3D_DESCRIPTOR told;
	CUmipmappedArray levels;
	CUarray array, level, again;
	CUresult result;

	begin();
	result = cuArray3DCreate_v2(&array, &plane);
	if (result == CUDA_SUCCESS) {
		CHECK(cuArrayGetMemoryRequirements(&needs, array, 0));
		REQUIRE(needs.size >= 64 * 64 * 4 && needs.alignment);
	}
	result = cuMipmappedArrayCreate(&levels, &plane, 3);
	if (result == CUDA_SUCCESS) {
		CHECK(cuMipmappedArrayGetMemoryRequirements(&needs, levels, 0));
		REQUIRE(needs.size >= 64 * 64 * 4 && needs.alignment);
		CHECK(cuMipmappedArrayDestroy(levels));
	}
	plane.Flags = 0;
	CHECK(cuMipmappedArrayCreate(&levels, &plane, 3));
	CHECK(cuMipmappedArrayGetLevel(&level, levels, 1));
	CHECK(cuMipmappedArrayGetLevel(&again, levels, 1));
	REQUIRE(level == again);
	CHECK(cuArray3DGetDescriptor_v2(&told, level));
	REQUIRE(told.Width == 32 && told.Height == 32);
	CHECK(cuMipmappedArrayDestroy(levels));
	EXPECT(cuArray3DGetDescriptor_v2(&told, level), CUDA_ERROR_INVALID_HANDLE);
	return 0;
}
