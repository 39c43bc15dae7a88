/* Copies from an exit handler that runs behind those of libraries which CUDA brought: "ok", or the
 * error that it was given.  With the path of an OpenSSL, the program has used that one before. */
#include "../calls.h"

#include <dlfcn.h>
#include <unistd.h>

static CUdeviceptr memory;
static char sent[1 << 16], back[1 << 16];

static void late(void)
{
	CUresult result = CUDA_SUCCESS;

	for (int i = 0; i < 40 && result == CUDA_SUCCESS; i++) {
		memset(sent, i, sizeof sent);
		result = cuMemcpyHtoD_v2(memory, sent, sizeof sent);
		if (result == CUDA_SUCCESS)
			result = cuMemcpyDtoH_v2(back, memory, sizeof back);
		if (result == CUDA_SUCCESS && memcmp(sent, back, sizeof back) != 0)
			_exit(1);
	}
	if (result == CUDA_SUCCESS)
		printf("ok\n");
	else
		printf("error %d\n", result);
	fflush(stdout);
}

int main(int count, char **arguments)
{
	CUcontext context;

	atexit(late);
	if (count > 1) {
		void *library = dlopen(arguments[1], RTLD_NOW);
		int (*init)(unsigned long long, const void *) = library ? dlsym(library, "OPENSSL_init_crypto") : NULL;

		REQUIRE(init && init(2, NULL) == 1);	/* what errors are called */
	}
	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&context, 0));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuMemAlloc_v2(&memory, sizeof sent));
	return 0;
}
