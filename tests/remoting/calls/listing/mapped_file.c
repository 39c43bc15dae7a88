/* What a program registers of a file in memory, which other processes may have, too, is the kernels' as well, where they
 * are on this node; what is its own alone, or a file's on a disk, is refused. */
#define _GNU_SOURCE
#include "../calls.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 65536u

static CUdeviceptr address_of(const volatile void *memory)
{
	return (CUdeviceptr)(uintptr_t)memory;
}

static void store(CUdeviceptr address, unsigned value)
{
	void *parameters[] = { &address, &value };

	CHECK(cuLaunchKernel(store_kernel(), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	CHECK(cuCtxSynchronize());
}

static volatile unsigned *map(int descriptor, off_t offset, int flags)
{
	void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, flags, descriptor, offset);

	REQUIRE(memory != MAP_FAILED);
	return memory;
}

static int file(off_t bytes)
{
	int made = memfd_create("memory", MFD_CLOEXEC);

	REQUIRE(made >= 0);
	REQUIRE(ftruncate(made, bytes) == 0);
	return made;
}

/* Kernels and copies reach it by `memory`, which lies at `word` of what another has at `other`. */
static void use(volatile unsigned *memory, size_t bytes, volatile unsigned *other, size_t word)
{
	CUdeviceptr inside, device = words(4, 77);
	int mapped = 0;

	CHECK(cuMemHostRegister_v2((void *)memory, bytes, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE));
	CHECK(cuMemHostGetDevicePointer_v2(&inside, (void *)(memory + 1), 0));
	REQUIRE_EQUAL(inside, address_of(memory + 1));
	CHECK(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, inside));
	REQUIRE_EQUAL(mapped, 1);
	store(inside, 41);
	REQUIRE(memory[1] == 41 && other[word + 1] == 41);
	CHECK(cuMemcpyDtoHAsync_v2((void *)(memory + 2), device, 16, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE(other[word + 2] == 77 && other[word + 5] == 77);
	other[word + 3] = 5;
	CHECK(cuMemcpyHtoDAsync_v2(device, (void *)(memory + 2), 16, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(word_at(device + 4), 5);
	EXPECT(cuMemHostRegister_v2((void *)memory, 4, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	CHECK(cuMemHostUnregister((void *)memory));
	EXPECT(cuMemHostUnregister((void *)memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	memory[1] = 6;
	REQUIRE_EQUAL(other[word + 1], 6);
	CHECK(cuMemFree_v2(device));
}

static void refused(volatile void *memory)
{
	CUdeviceptr inside;

	CHECK(cuMemHostRegister_v2((void *)memory, BYTES, CU_MEMHOSTREGISTER_DEVICEMAP));
	EXPECT(cuMemHostGetDevicePointer_v2(&inside, (void *)memory, 0), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(cuMemHostUnregister((void *)memory));
	CHECK(cuMemHostRegister_v2((void *)memory, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
	EXPECT(cuMemHostGetDevicePointer_v2(&inside, (void *)memory, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemHostUnregister((void *)memory));
}

int main(int argc, char **argv)
{
	char name[64];
	int made = file(4 * BYTES), named, odd = file(BYTES - 1000);
	CUdeviceptr inside;
	volatile unsigned *all, *part;
	pid_t child;
	int status;
	off_t at;

	begin();
	/* a part of a file that has no name, read and written elsewhere meanwhile */
	all = map(made, BYTES, MAP_SHARED);
	part = map(made, BYTES, MAP_SHARED);
	at = lseek(made, 12, SEEK_SET);
	use(part, BYTES, all, 0);
	use(part + 100, 5000, all, 100);
	REQUIRE_EQUAL(lseek(made, 0, SEEK_CUR), at);
	/* one whose last page is a part of one, up to its end and no page further */
	all = map(odd, 0, MAP_SHARED);
	part = map(odd, 0, MAP_SHARED);
	use(part, BYTES - 1000, all, 0);
	REQUIRE(ftruncate(odd, BYTES / 2 - 1000) == 0);
	refused(all);
	/* one that has a name alone, and one of another process */
	snprintf(name, sizeof(name), "/farbus-test-%d", (int)getpid());
	named = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
	REQUIRE(named >= 0 && ftruncate(named, BYTES) == 0);
	part = map(named, 0, MAP_SHARED);
	close(named);
	use(part, BYTES, part, 0);
	CHECK(cuMemHostRegister_v2((void *)part, BYTES, CU_MEMHOSTREGISTER_DEVICEMAP));
	shm_unlink(name);
	store(address_of(part), 9);
	child = fork();
	if (!child)
		_exit(part[0] == 9 ? (part[1] = 10, 0) : 1);
	REQUIRE(waitpid(child, &status, 0) == child && status == 0 && part[1] == 10);
	/* what is not to be had by others */
	refused(map(made, 0, MAP_PRIVATE));
	refused(map(-1, 0, MAP_PRIVATE | MAP_ANONYMOUS));
	if (argc > 1) {
		int disk = open(argv[1], O_RDWR | O_CREAT, 0600);

		REQUIRE(disk >= 0 && ftruncate(disk, BYTES) == 0);
		refused(map(disk, 0, MAP_SHARED));
	}
	/* The end of its context is the end of what is registered. */
	part = map(made, 0, MAP_SHARED);
	CHECK(cuMemHostRegister_v2((void *)part, BYTES, CU_MEMHOSTREGISTER_DEVICEMAP));
	CHECK(cuDevicePrimaryCtxReset_v2(0));
	begin();
	EXPECT(cuMemHostUnregister((void *)part), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	CHECK(cuMemHostRegister_v2((void *)part, BYTES, CU_MEMHOSTREGISTER_DEVICEMAP));
	CHECK(cuMemHostGetDevicePointer_v2(&inside, (void *)part, 0));
	printf("ok\n");
	return 0;
}
