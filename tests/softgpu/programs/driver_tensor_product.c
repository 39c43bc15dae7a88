/* softgpu: cc=9.0 */
/* Tiles that tensor maps bring to shared memory, with a swizzle, are multiplied by a warpgroup (wgmma): each element
 * against this processor's, whatever kind it is.  They are small whole numbers, so that every sum is exact. */
#include "driver.h"

CUresult cuTensorMapEncodeTiled(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
				const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
				CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

#define ROWS 64
#define COLUMNS 8
#define DEPTH 16
#define THREADS 128

/* Lines of both tiles have 32 bytes of K: descriptors with the swizzle of 32 bytes, eight lines apart 256. */
static const char product[] =
".version 8.0\n"
".target sm_90a\n"
".address_size 64\n"
".visible .entry product(.param .align 64 .b8 map_a[128], .param .align 64 .b8 map_b[128], .param .u64 to)\n"
"{\n"
"	.shared .align 1024 .b8 tile_a[2048];\n"
"	.shared .align 1024 .b8 tile_b[256];\n"
"	.shared .align 8 .b64 full;\n"
"	.reg .pred %p<4>;\n"
"	.reg .b32 %r<12>;\n"
"	.reg .b64 %d<8>;\n"
"	.reg .f32 %f<4>;\n"
"	mov.u32 %r0, %tid.x;\n"
"	mov.u32 %r1, full;\n"
"	mov.u32 %r2, tile_a;\n"
"	mov.u32 %r3, tile_b;\n"
"	setp.ne.u32 %p0, %r0, 0;\n"
"	@%p0 bra BEGUN;\n"
"	mbarrier.init.shared::cta.b64 [%r1], 1;\n"
"	fence.mbarrier_init.release.cluster;\n"
"	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 2304;\n"
"	mov.u64 %d0, map_a;\n"
"	cvta.param.u64 %d0, %d0;\n"
"	mov.u64 %d1, map_b;\n"
"	cvta.param.u64 %d1, %d1;\n"
"	mov.u32 %r4, 0;\n"
"	cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%d0, {%r4, %r4}], [%r1];\n"
"	cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%d1, {%r4, %r4}], [%r1];\n"
"BEGUN:\n"
"	bar.sync 0;\n"
"AGAIN:\n"
"	mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;\n"
"	@!%p1 bra AGAIN;\n"
"	shr.u32 %r2, %r2, 4;\n"
"	shr.u32 %r3, %r3, 4;\n"
"	cvt.u64.u32 %d2, %r2;\n"
"	cvt.u64.u32 %d3, %r3;\n"
"	or.b64 %d2, %d2, 0xC000001000000000;\n"
"	or.b64 %d3, %d3, 0xC000001000000000;\n"
"	setp.eq.u32 %p2, %r0, 999;\n"
"	wgmma.fence.sync.aligned;\n"
"	wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %d2, %d3, %p2, 1, 1, 0, 0;\n"
"	wgmma.commit_group.sync.aligned;\n"
"	wgmma.wait_group.sync.aligned 0;\n"
/* Thread 4r + c of warp w has elements 2c and 2c + 1 of rows 16w + r and 16w + r + 8. */
"	shr.u32 %r5, %r0, 5;\n"
"	shl.b32 %r5, %r5, 4;\n"
"	bfe.u32 %r6, %r0, 2, 3;\n"
"	add.u32 %r5, %r5, %r6;\n"
"	shl.b32 %r5, %r5, 5;\n"
"	and.b32 %r7, %r0, 3;\n"
"	shl.b32 %r7, %r7, 3;\n"
"	add.u32 %r5, %r5, %r7;\n"
"	cvt.u64.u32 %d4, %r5;\n"
"	ld.param.u64 %d5, [to];\n"
"	add.u64 %d5, %d5, %d4;\n"
"	st.global.f32 [%d5], %f0;\n"
"	st.global.f32 [%d5+4], %f1;\n"
"	st.global.f32 [%d5+256], %f2;\n"
"	st.global.f32 [%d5+260], %f3;\n"
"	ret;\n"
"}\n";

/* A small whole number, and its bits as f16. */
static int number(unsigned k)
{
	return (int)(k * 2654435761u >> 16) % 9 - (int)(k % 3);
}

static unsigned short half_of(int value)
{
	unsigned magnitude = (unsigned)abs(value), exponent = 0;

	if (!value)
		return 0;
	while (magnitude >> (exponent + 1))
		exponent++;
	return (unsigned short)((value < 0) << 15 | (exponent + 15) << 10 |
				(magnitude - (1u << exponent)) << 10 >> exponent);
}

/* Lines along K in the device's memory, and the map of them. */
static CUdeviceptr lines(CUtensorMap *map, unsigned count, unsigned seed)
{
	const cuuint64_t extents[] = { DEPTH, count }, strides[] = { 2 * DEPTH };
	const cuuint32_t box[] = { DEPTH, count }, steps[] = { 1, 1 };
	unsigned short halves[ROWS * DEPTH];
	CUdeviceptr memory;

	for (unsigned k = 0; k < count * DEPTH; k++)
		halves[k] = half_of(number(k + seed));
	CHECK(cuMemAlloc(&memory, 2 * count * DEPTH));
	CHECK(cuMemcpyHtoD(memory, halves, 2 * count * DEPTH));
	CHECK(cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, (void *)memory, extents, strides, box, steps,
				     0, CU_TENSOR_MAP_SWIZZLE_32B, 0, 0));
	return memory;
}

int main(void)
{
	static CUtensorMap maps[2];
	void *parameters[3] = { &maps[0], &maps[1] };
	float sums[ROWS * COLUMNS];
	CUfunction function;
	CUdeviceptr to;
	CUmodule module;

	begin();
	CHECK(cuModuleLoadData(&module, product));
	CHECK(cuModuleGetFunction(&function, module, "product"));
	lines(&maps[0], ROWS, 1);
	lines(&maps[1], COLUMNS, 5000);
	CHECK(cuMemAlloc(&to, sizeof sums));
	parameters[2] = &to;
	CHECK(cuLaunchKernel(function, 1, 1, 1, THREADS, 1, 1, 0, NULL, parameters, NULL));
	CHECK(cuMemcpyDtoH(sums, to, sizeof sums));
	for (unsigned row = 0; row < ROWS; row++)
		for (unsigned column = 0; column < COLUMNS; column++) {
			int sum = 0;

			for (unsigned k = 0; k < DEPTH; k++)
				sum += number(row * DEPTH + k + 1) * number(column * DEPTH + k + 5000);
			REQUIRE_EQUAL(sums[row * COLUMNS + column], sum);
		}
	return 0;
}
