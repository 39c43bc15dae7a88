/* softgpu: count=2,mem=64MiB
 * Matrix transfers, asynchronous and bulk copies, textures and surfaces ask for peer access too. */
#include "driver.h"

CUresult cuTexObjectCreate(CUtexObject *, const CUDA_RESOURCE_DESC *, const CUDA_TEXTURE_DESC *,
			   const CUDA_RESOURCE_VIEW_DESC *);
CUresult cuTexObjectDestroy(CUtexObject);
CUresult cuSurfObjectCreate(CUsurfObject *, const CUDA_RESOURCE_DESC *);
CUresult cuArray3DCreate_v2(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);

#define ARRAY_SURFACE 0x02u	/* cuda.h: CUDA_ARRAY3D_SURFACE_LDST */

#define ENTRY(name, body)								\
".visible .entry " name "(.param .u64 pa)\n{\n"						\
"	.reg .pred %p<2>;\n	.reg .b32 %r<20>;\n	.reg .f32 %f<9>;\n"		\
"	.reg .b64 %rd<4>;\n	.shared .align 128 .b8 room[4096];\n"			\
"	.shared .align 8 .b64 bar;\n"							\
"	ld.param.u64 %rd1, [pa];\n	mov.u32 %r1, room;\n" body "	ret;\n}\n"

static const char code[] =
".version 8.0\n.target sm_90\n.address_size 64\n"
ENTRY("matrix_load",
"	wmma.load.a.sync.aligned.row.m16n16k16.global.f16 "
	"{%r2, %r3, %r4, %r5, %r6, %r7, %r8, %r9}, [%rd1];\n")
ENTRY("matrix_store",
"	wmma.store.d.sync.aligned.row.m16n16k16.global.f32 "
	"[%rd1], {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8};\n")
ENTRY("tiles_load", "	ldmatrix.sync.aligned.m8n8.x1.b16 {%r2}, [%rd1];\n")
ENTRY("tiles_store", "	stmatrix.sync.aligned.m8n8.x1.b16 [%rd1], {%r2};\n")
ENTRY("async_copy",
"	cp.async.ca.shared.global [%r1], [%rd1], 16;\n	cp.async.wait_all;\n")
ENTRY("bulk_load",
"	mov.u32 %r2, bar;\n"
"	mov.u32 %r3, %tid.x;\n"
"	setp.ne.u32 %p1, %r3, 0;\n"
"	@%p1 bra DONE;\n"
"	mbarrier.init.shared.b64 [%r2], 1;\n"
"	mbarrier.arrive.expect_tx.shared.b64 %rd2, [%r2], 512;\n"
"	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 512, [%r2];\n"
"DONE:\n")
ENTRY("bulk_store",
"	cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 512;\n")
ENTRY("bulk_reduce",
"	cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r1], 512;\n")
ENTRY("texture", "	mov.b32 %r2, 0;\n"
"	tex.1d.v4.u32.s32 {%r3, %r4, %r5, %r6}, [%rd1, {%r2}];\n")
ENTRY("surface_load", "	mov.b32 %r2, 0;\n"
"	suld.b.1d.b32.trap %r3, [%rd1, {%r2}];\n")
ENTRY("surface_store", "	mov.b32 %r2, 0;\n"
"	sust.b.1d.b32.trap [%rd1, {%r2}], %r2;\n");

static CUcontext here, there;
static CUmodule module;

/* A context of device 0 of its own: what it can't reach breaks it. */
static void fresh(void)
{
	if (here)
		CHECK(cuCtxDestroy(here));
	CHECK(cuCtxCreate(&here, 0, 0));
	CHECK(cuModuleLoadData(&module, code));
}

static CUresult try(const char *name, unsigned long long argument)
{
	void *params[] = { &argument };
	CUfunction function;

	CHECK(cuModuleGetFunction(&function, module, name));
	CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
	return cuCtxSynchronize();
}

static void expect_asks(const char *name, unsigned long long foreign)
{
	CUresult result;

	fresh();
	result = try(name, foreign);
	if (result != CUDA_ERROR_ILLEGAL_ADDRESS) {
		fprintf(stderr, "%s without peer access: %s\n", name, name_of(result));
		exit(1);
	}
	fresh();
	CHECK(cuCtxEnablePeerAccess(there, 0));
	result = try(name, foreign);
	if (result) {
		fprintf(stderr, "%s with peer access: %s\n", name, name_of(result));
		exit(1);
	}
}

int main(void)
{
	static const char *const by_pointer[] = {
		"matrix_load", "matrix_store", "tiles_load", "tiles_store", "async_copy",
		"bulk_load", "bulk_store", "bulk_reduce",
	};
	CUDA_ARRAY3D_DESCRIPTOR shape = { .Width = 64, .Format = CU_AD_FORMAT_UNSIGNED_INT32,
					  .NumChannels = 1, .Flags = ARRAY_SURFACE };
	CUDA_RESOURCE_DESC resource = { .resType = CU_RESOURCE_TYPE_LINEAR };
	CUDA_TEXTURE_DESC texture = { .flags = 1 };
	CUdeviceptr plain, own;
	CUsurfObject surface;
	CUtexObject object;
	CUarray array;

	CHECK(cuInit(0));
	CHECK(cuCtxCreate(&there, 0, 1));
	CHECK(cuMemAlloc(&plain, 1 << 20));
	CHECK(cuMemsetD8(plain, 0, 1 << 20));
	for (size_t k = 0; k < sizeof(by_pointer) / sizeof(by_pointer[0]); k++) {
		fresh();
		CHECK(cuMemAlloc(&own, 1 << 20));
		CHECK(try(by_pointer[k], own));
		expect_asks(by_pointer[k], plain);
	}

	CHECK(cuCtxSetCurrent(there));
	resource.res.linear.devPtr = plain;
	resource.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32;
	resource.res.linear.numChannels = 1;
	resource.res.linear.sizeInBytes = 4096;
	CHECK(cuTexObjectCreate(&object, &resource, &texture, NULL));
	CHECK(cuArray3DCreate_v2(&array, &shape));
	resource = (CUDA_RESOURCE_DESC){ .resType = CU_RESOURCE_TYPE_ARRAY };
	resource.res.array.hArray = array;
	CHECK(cuSurfObjectCreate(&surface, &resource));
	expect_asks("texture", object);
	expect_asks("surface_load", surface);
	expect_asks("surface_store", surface);
	return 0;
}
