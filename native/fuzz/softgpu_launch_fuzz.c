/* softgpu_launch_fuzz.c - launches with any geometry, attributes and shared memory.
 *
 * The kernel only looks at its own shape, so that whatever is accepted may run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../softgpu/driver/abi.h"
#include "fuzz.h"

CUresult cuInit(unsigned int);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			unsigned, CUstream, void **, void **);
CUresult cuLaunchCooperativeKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
				   unsigned, unsigned, CUstream, void **);

CUresult cuLaunchKernelEx(const CUlaunchConfig *, CUfunction, void **, void **);

#define BLOCKS_MAX 65536u	/* that run: a second or so under sanitizers */

struct shape {
	uint32_t grid[3], block[3], shared, how, cluster[3];
};

static const char kernel[] =
	".version 8.0\n.target sm_90\n.address_size 64\n"
	".extern .shared .align 4 .b8 dynamic[];\n"
	".visible .entry k(.param .u32 a)\n{\n.reg .b32 %r<4>; .reg .pred %p<2>;\n"
	"mov.u32 %r1, %dynamic_smem_size; setp.lt.u32 %p1, %r1, 4; @%p1 bra END;\n"
	"ld.param.u32 %r2, [a]; st.shared.u32 [dynamic], %r2; bar.sync 0;\n"
	"barrier.cluster.arrive; barrier.cluster.wait;\nEND: ret;\n}\n";
static const struct shape small = { { 2, 1, 1 }, { 33, 2, 1 }, 64, 0, { 1, 1, 1 } };
static const struct shape large = { { 3, 2, 2 }, { 1024, 1, 1 }, 49152, 1, { 1, 1, 1 } };
static const struct shape clustered = { { 8, 2, 1 }, { 64, 1, 1 }, 1024, 4, { 4, 2, 1 } };

const struct fuzz_seed fuzz_seeds[] = {
	{ &small, sizeof(small) }, { &large, sizeof(large) },
	{ &clustered, sizeof(clustered) }, { NULL, 0 },
};
const char *const fuzz_words[] = { NULL };

static void check(CUresult result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
	abort();
}

static CUresult launch_clustered(CUfunction function, const struct shape *shape, void **params)
{
	CUlaunchAttribute attribute = { .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION };
	CUlaunchConfig config = {
		.gridDimX = shape->grid[0], .gridDimY = shape->grid[1], .gridDimZ = shape->grid[2],
		.blockDimX = shape->block[0], .blockDimY = shape->block[1],
		.blockDimZ = shape->block[2], .sharedMemBytes = shape->shared,
		.attrs = &attribute, .numAttrs = 1,
	};

	attribute.value.clusterDim.x = shape->cluster[0];
	attribute.value.clusterDim.y = shape->cluster[1];
	attribute.value.clusterDim.z = shape->cluster[2];
	return cuLaunchKernelEx(&config, function, params, NULL);
}

void fuzz_one(uint8_t *data, size_t bytes)
{
	static CUfunction function;
	struct shape shape = small;
	uint32_t argument = 7;
	uint64_t plane;
	void *params[] = { &argument };
	CUresult result;

	if (!function) {
		CUcontext context;
		CUmodule module;

		check(cuInit(0), "cuInit");
		check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
		check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
		check(cuModuleLoadData(&module, kernel), "cuModuleLoadData");
		check(cuModuleGetFunction(&function, module, "k"), "cuModuleGetFunction");
	}
	memcpy(&shape, data, bytes < sizeof(shape) ? bytes : sizeof(shape));
	/* Two thousand million blocks are a right launch, but take a while. */
	if ((uint64_t)shape.grid[0] * shape.grid[1] * shape.grid[2] > 4096)
		shape.grid[0] &= 0x8000000f;
	plane = (uint64_t)shape.grid[0] * shape.grid[1];
	if (plane > BLOCKS_MAX || plane * shape.grid[2] > BLOCKS_MAX)
		shape.grid[2] = 65536;
	result = shape.how & 4 ? launch_clustered(function, &shape, params) :
		shape.how & 1 ?
		cuLaunchCooperativeKernel(function, shape.grid[0], shape.grid[1], shape.grid[2],
					  shape.block[0], shape.block[1], shape.block[2],
					  shape.shared, NULL, params) :
		cuLaunchKernel(function, shape.grid[0], shape.grid[1], shape.grid[2],
			       shape.block[0], shape.block[1], shape.block[2], shape.shared, NULL,
			       shape.how & 2 ? NULL : params, NULL);
	/* Refused as a whole, or done: a bad launch never breaks the context. */
	(void)result;
	check(cuCtxSynchronize(), "cuCtxSynchronize");
}
