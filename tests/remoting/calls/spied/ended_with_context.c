/* What has ended with its context is no name any more, and the driver is not asked for it. */
#include "../calls.h"

static CUarray array, level;
static CUmipmappedArray levels;
static CUtexObject texture;
static CUsurfObject surface;

/* Which of the server's places for names an object has: the bits above the session's number. */
static unsigned long long place(const void *object)
{
	return (unsigned long long)object >> 4 & 0x7fffff;
}

static void make(void)
{
	const CUDA_ARRAY3D_DESCRIPTOR description = {
		.Width = 8,
		.Height = 8,
		.Format = CU_AD_FORMAT_UNSIGNED_INT8,
		.NumChannels = 1,
		.Flags = CUDA_ARRAY3D_SURFACE_LDST,
	};
	const CUDA_TEXTURE_DESC reading = { .filterMode = CU_TR_FILTER_MODE_POINT };
	CUDA_RESOURCE_DESC resource = { .resType = CU_RESOURCE_TYPE_ARRAY };
	CHECK(cuArray3DCreate_v2(&array, &description));
	CHECK(cuMipmappedArrayCreate(&levels, &description, 2));
	CHECK(cuMipmappedArrayGetLevel(&level, levels, 1));
	resource.res.array.hArray = array;
	CHECK(cuTexObjectCreate(&texture, &resource, &reading, NULL));
	CHECK(cuSurfObjectCreate(&surface, &resource));
}

int main(void)
{
	unsigned long long most = 0;
	CUcontext again;

	begin();
	for (int round = 0; round < 20; round++) {
		make();
		const void *names[] = { array, level, levels };

		for (int i = 0; i < 3; i++) {
			/* Those of the round before are free. */
			REQUIRE(!round || place(names[i]) <= most);
			most = !round && place(names[i]) > most ? place(names[i]) : most;
		}
		CHECK(cuDevicePrimaryCtxReset_v2(0));
		CHECK(cuDevicePrimaryCtxRetain(&again, 0));
		EXPECT(cuTexObjectDestroy(texture), CUDA_ERROR_INVALID_VALUE);
		EXPECT(cuSurfObjectDestroy(surface), CUDA_ERROR_INVALID_VALUE);
		EXPECT(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
		EXPECT(cuMipmappedArrayDestroy(levels), CUDA_ERROR_INVALID_HANDLE);
	}
	printf("ok\n");
	return 0;
}
