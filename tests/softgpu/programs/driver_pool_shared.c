/* A pool of one process and an allocation of it are used by another one. */
#include "driver.h"
#include "descriptor.h"

#define BYTES (3ul << 20)

static void export(int out)
{
	CUmemPoolProps properties = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
	};
	CUmemPoolPtrExportData data;
	CUdeviceptr other, memory;
	CUmemoryPool pool, plain;
	unsigned value;
	char byte;
	int fd;

	begin();
	CHECK(cuMemPoolCreate(&pool, &properties));
	CHECK(cuMemAllocFromPoolAsync(&other, 4096, pool, NULL));
	CHECK(cuMemAllocFromPoolAsync(&memory, BYTES, pool, NULL));
	CHECK(cuMemsetD32(memory, 41, BYTES / 4));
	CHECK(cuCtxSynchronize());
	CHECK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					       0));
	CHECK(cuMemPoolExportPointer(&data, memory));

	/* Only a pool that was made for it is given away. */
	CHECK(cuDeviceGetDefaultMemPool(&plain, 0));
	EXPECT(cuMemPoolExportToShareableHandle(&fd, plain,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	       CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemAllocAsync(&other, 4096, NULL));
	EXPECT(cuMemPoolExportPointer(&data, other), CUDA_ERROR_INVALID_VALUE);

	send_descriptor(out, fd);
	REQUIRE(write(out, &data, sizeof data) == sizeof data);
	REQUIRE(read(out, &byte, 1) == 1);
	CHECK(cuMemcpyDtoH(&value, memory + BYTES - 4, 4));
	REQUIRE_EQUAL(value, 42);
	CHECK(cuMemFreeAsync(memory, NULL));
	CHECK(cuCtxSynchronize());
	/* Fresh memory of the pool is not what it was. */
	CHECK(cuMemAllocFromPoolAsync(&memory, BYTES, pool, NULL));
	CHECK(cuMemcpyDtoH(&value, memory + BYTES - 4, 4));
	REQUIRE_EQUAL(value, 0);
	exit(0);
}

int main(void)
{
	CUmemPoolPtrExportData data, wrong;
	CUdeviceptr memory, none;
	CUmemoryPool pool;
	int pair[2], status, fd, ordinal;
	CUcontext context;
	unsigned value;
	size_t bytes;
	pid_t child;

	REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	child = fork();
	if (!child) {
		close(pair[0]);
		export(pair[1]);
	}
	close(pair[1]);
	fd = receive_descriptor(pair[0]);
	REQUIRE(read(pair[0], &data, sizeof data) == sizeof data);
	begin();
	CHECK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd,
						 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	close(fd);
	EXPECT(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)0,
						  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	       CUDA_ERROR_INVALID_VALUE);
	/* The pool says whose memory it is: this is done without a context, too. */
	CHECK(cuCtxPopCurrent(&context));
	CHECK(cuMemPoolImportPointer(&memory, pool, &data));
	CHECK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory));
	REQUIRE_EQUAL(ordinal, 0);
	CHECK(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory));
	REQUIRE_EQUAL(bytes, BYTES);
	CHECK(cuCtxPushCurrent(context));
	CHECK(cuMemFree(memory));
	CHECK(cuMemPoolImportPointer(&memory, pool, &data));
	CHECK(cuMemcpyDtoH(&value, memory + BYTES - 4, 4));
	REQUIRE_EQUAL(value, 41);
	CHECK(launch_store(kernel("store"), memory + BYTES - 4, 42, NULL));
	CHECK(cuCtxSynchronize());

	/* Nothing new comes from it, and only what was told of it. */
	EXPECT(cuMemAllocFromPoolAsync(&none, 4096, pool, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuDeviceSetMemPool(0, pool), CUDA_ERROR_INVALID_VALUE);
	memset(&wrong, 0, sizeof wrong);
	EXPECT(cuMemPoolImportPointer(&none, pool, &wrong), CUDA_ERROR_INVALID_VALUE);

	CHECK(cuMemFreeAsync(memory, NULL));
	CHECK(cuCtxSynchronize());
	EXPECT(cuMemcpyDtoH(&value, memory, 4), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemPoolDestroy(pool));
	REQUIRE(write(pair[0], "", 1) == 1);
	REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	return 0;
}
