/* softgpu: mem=256MiB
 * Sharing memory puts a copy in its place: so what a thread may write meanwhile is elsewhere. */
#include "driver.h"

#define GRANULE ((CUdeviceptr)2 << 20)
#define ROUNDS 100

static const char code[] =
".version 7.0\n.target sm_75\n.address_size 64\n"
".visible .global .align 4 .u32 counter = 7;\n"
".visible .entry nothing()\n{\n	ret;\n}\n";

static bool done;

static void *load_modules(void *context)
{
	CHECK(cuCtxSetCurrent(context));
	while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
		CUdeviceptr counter;
		CUmodule module;
		unsigned value;

		CHECK(cuModuleLoadData(&module, code));
		CHECK(cuModuleGetGlobal(&counter, NULL, module, "counter"));
		CHECK(cuMemcpyDtoH(&value, counter, 4));
		REQUIRE_EQUAL(value, 7);
		CHECK(cuModuleUnload(module));
	}
	return NULL;
}

int main(void)
{
	CUcontext context = begin();
	CUdeviceptr plain, managed, counter;
	CUipcMemHandle handle;
	pthread_t loader;
	CUmodule module;

	CHECK(cuMemAlloc(&plain, 4096));
	CHECK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
	CHECK(cuModuleLoadData(&module, code));
	CHECK(cuModuleGetGlobal(&counter, NULL, module, "counter"));
	REQUIRE(plain / GRANULE != managed / GRANULE);
	REQUIRE(plain / GRANULE != counter / GRANULE);
	CHECK(cuMemFree(plain));

	/* A granule of its own each time, for it goes with its last allocation. */
	REQUIRE(!pthread_create(&loader, NULL, load_modules, context));
	for (int k = 0; k < ROUNDS; k++) {
		CHECK(cuMemAlloc(&plain, 4096));
		CHECK(cuIpcGetMemHandle(&handle, plain));
		CHECK(cuMemFree(plain));
	}
	__atomic_store_n(&done, true, __ATOMIC_RELEASE);
	REQUIRE(!pthread_join(loader, NULL));
	return 0;
}
