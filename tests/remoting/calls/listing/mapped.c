/* Pinned memory that is asked to be mapped is given, as CUDA does where none can be. */
#include "../calls.h"

int main(void)
{
	static char registered[1 << 16] __attribute__((aligned(4096)));
	void *plain, *first, *second;

	begin();
	CHECK(cuMemHostAlloc(&plain, 4096, CU_MEMHOSTALLOC_PORTABLE));
	fputs("plain\n", stderr);
	CHECK(cuMemHostAlloc(&first, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
	CHECK(cuMemHostAlloc(&second, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
	CHECK(cuMemHostRegister_v2(registered, sizeof(registered), CU_MEMHOSTREGISTER_DEVICEMAP));
	return 0;
}
