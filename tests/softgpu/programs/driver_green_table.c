/* The context that stands for a green one has a device for those, too, that ask by the private table
 * (cuBLAS does, of the current context). */
#include "driver.h"

CUresult cuGetExportTable(const void **, const CUuuid *);
CUresult cuDeviceGetDevResource(CUdevice, CUdevResource *, CUdevResourceType);
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *, CUdevResource *, unsigned int);
CUresult cuGreenCtxCreate(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned int);
CUresult cuGreenCtxDestroy(CUgreenCtx);
CUresult cuCtxFromGreenCtx(CUcontext *, CUgreenCtx);

static const CUuuid id = { { 0x21, 0x31, (char)0x8c, 0x60, (char)0x97, 0x14, 0x32, 0x48, (char)0x8c, (char)0xa6, 0x41,
			     (char)0xff, 0x73, 0x24, (char)0xc8, (char)0xf2 } };

static const struct {
	size_t bytes;
	CUresult (*functions[94])(CUcontext context, CUdevice *device);
} *table;

static void expect_device(CUcontext context)
{
	CUdevice device = -1;

	CHECK(table->functions[2](context, &device));
	REQUIRE_EQUAL(device, 0);
}

int main(void)
{
	CUdevResourceDesc description;
	CUdevResource resource;
	CUcontext primary, context;
	CUgreenCtx green;
	CUdevice device;

	primary = begin();
	CHECK(cuGetExportTable((const void **)&table, &id));
	expect_device(primary);
	CHECK(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
	CHECK(cuDevResourceGenerateDesc(&description, &resource, 1));
	CHECK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
	CHECK(cuCtxFromGreenCtx(&context, green));
	expect_device(context);
	CHECK(cuCtxSetCurrent(context));
	expect_device(context);
	expect_device(NULL);
	CHECK(cuCtxSetCurrent(primary));
	CHECK(cuGreenCtxDestroy(green));
	EXPECT(table->functions[2](context, &device), CUDA_ERROR_INVALID_CONTEXT);
	return 0;
}
