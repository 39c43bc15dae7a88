/* A file in memory whose pages its file system has no room for is registered as the program's own; one that it has room
 * for is the kernels'.  Its length is more than the file system of the folder that is given. */
#define _GNU_SOURCE
#include "../calls.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES (8u << 20)
#define LESS_BYTES (64u << 10)

int main(int argc, char **argv)
{
	struct stat status;
	CUdeviceptr inside;
	void *memory;
	int file;

	REQUIRE(argc > 1 && chdir(argv[1]) == 0);
	begin();
	file = open("sparse", O_RDWR | O_CREAT | O_EXCL, 0600);
	REQUIRE(file >= 0 && ftruncate(file, BYTES) == 0);
	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	REQUIRE(memory != MAP_FAILED);
	CHECK(cuMemHostRegister_v2(memory, BYTES, CU_MEMHOSTREGISTER_DEVICEMAP));
	EXPECT(cuMemHostGetDevicePointer_v2(&inside, memory, 0), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(cuMemHostUnregister(memory));
	CHECK(cuMemHostRegister_v2(memory, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
	EXPECT(cuMemHostGetDevicePointer_v2(&inside, memory, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemHostUnregister(memory));
	REQUIRE(fstat(file, &status) == 0 && status.st_blocks == 0);
	CHECK(cuMemHostRegister_v2(memory, LESS_BYTES, CU_MEMHOSTREGISTER_DEVICEMAP));
	CHECK(cuMemHostGetDevicePointer_v2(&inside, memory, 0));
	REQUIRE(fstat(file, &status) == 0 && status.st_blocks * 512 == LESS_BYTES);
	CHECK(cuMemHostUnregister(memory));
	printf("ok\n");
	return 0;
}
