/* Used by the tests of sharing: allocate some MiB on device 0, say so, and hold
 * them until standard input ends.  Prints what was left before. */
#include "driver.h"

int main(int count, char **arguments)
{
	size_t available, total, bytes = strtoul(arguments[count - 1], NULL, 10) << 20;
	CUdeviceptr memory;
	CUresult result;

	begin();
	CHECK(cuMemGetInfo(&available, &total));
	result = bytes ? cuMemAlloc(&memory, bytes) : CUDA_SUCCESS;
	printf("%zu %s\n", available >> 20, name_of(result));
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
