/* Copies of rectangles and boxes, and fills of rectangles. */
#include "driver.h"

#define WIDTH 10u
#define HEIGHT 6u

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *);
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *, CUstream);

int main(void)
{
	unsigned host[HEIGHT][WIDTH], back[HEIGHT][WIDTH];
	CUDA_MEMCPY2D copy = { 0 };
	CUDA_MEMCPY3D box = { 0 };
	CUDA_MEMCPY3D_PEER peer;
	CUcontext context;
	CUdeviceptr memory, volume;
	size_t pitch;

	context = begin();
	for (unsigned y = 0; y < HEIGHT; y++) {
		for (unsigned x = 0; x < WIDTH; x++)
			host[y][x] = 100 * y + x;
	}
	CHECK(cuMemAllocPitch(&memory, &pitch, sizeof *host, HEIGHT, 4));
	CHECK(cuMemsetD2D32(memory, pitch, 7, WIDTH, HEIGHT));
	/* rows 2..4, columns 3..6 of the host go to rows 1..3, columns 5..8 */
	copy.srcMemoryType = CU_MEMORYTYPE_HOST;
	copy.srcHost = host;
	copy.srcPitch = sizeof *host;
	copy.srcXInBytes = 3 * 4;
	copy.srcY = 2;
	copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	copy.dstDevice = memory;
	copy.dstPitch = pitch;
	copy.dstXInBytes = 5 * 4;
	copy.dstY = 1;
	copy.WidthInBytes = 4 * 4;
	copy.Height = 3;
	CHECK(cuMemcpy2D(&copy));
	copy = (CUDA_MEMCPY2D){
		.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = memory, .srcPitch = pitch,
		.dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = back, .dstPitch = sizeof *back,
		.WidthInBytes = sizeof *back, .Height = HEIGHT,
	};
	CHECK(cuMemcpy2D(&copy));
	for (unsigned y = 0; y < HEIGHT; y++) {
		for (unsigned x = 0; x < WIDTH; x++) {
			bool inside = y >= 1 && y < 4 && x >= 5 && x < 9;

			REQUIRE_EQUAL(back[y][x], inside ? 100 * (y + 1) + x - 2 : 7);
		}
	}
	copy.srcPitch = sizeof *back - 1;
	EXPECT(cuMemcpy2D(&copy), CUDA_ERROR_INVALID_VALUE);

	/* two slices of three rows each */
	CHECK(cuMemAlloc(&volume, sizeof host));
	box.srcMemoryType = CU_MEMORYTYPE_HOST;
	box.srcHost = host;
	box.srcPitch = sizeof *host;
	box.srcHeight = 3;
	box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	box.dstDevice = volume;
	box.dstPitch = 2 * 4;
	box.dstHeight = 3;
	box.WidthInBytes = 2 * 4;
	box.Height = 3;
	box.Depth = 2;
	CHECK(cuMemcpy3D(&box));
	CHECK(cuMemcpyDtoH(back, volume, 2 * 3 * 2 * 4));
	for (unsigned y = 0; y < HEIGHT; y++) {
		for (unsigned x = 0; x < 2; x++)
			REQUIRE_EQUAL((&back[0][0])[2 * y + x], host[y][x]);
	}

	/* and back between contexts, which have to be some, as long as they are named */
	memset(back, 0, sizeof back);
	peer = (CUDA_MEMCPY3D_PEER){
		.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = volume, .srcPitch = 2 * 4, .srcHeight = 3,
		.dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = back, .dstPitch = sizeof *back, .dstHeight = 3,
		.srcContext = context, .WidthInBytes = 2 * 4, .Height = 3, .Depth = 2,
	};
	CHECK(cuMemcpy3DPeer(&peer));
	for (unsigned y = 0; y < HEIGHT; y++)
		REQUIRE(back[y][0] == host[y][0] && back[y][1] == host[y][1] && !back[y][2]);
	peer.dstContext = context;
	CHECK(cuMemcpy3DPeerAsync(&peer, NULL));
	peer.dstContext = (CUcontext)back;
	EXPECT(cuMemcpy3DPeer(&peer), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuMemcpy3DPeer(NULL), CUDA_ERROR_INVALID_VALUE);
	return 0;
}
