/* Two processes share device memory by its handle; it outlives the one that made it. */
#include "driver.h"

#include <signal.h>
#include <sys/wait.h>

static void export(int out, int in)
{
	CUipcMemHandle handle;
	CUdeviceptr memory;
	unsigned value;
	char byte;

	begin();
	CHECK(cuMemAlloc(&memory, 4096));
	CHECK(cuMemAlloc(&memory, 4096));	/* not the first of its granule */
	CHECK(cuMemsetD32(memory, 1234, 1024));
	CHECK(cuIpcGetMemHandle(&handle, memory));
	EXPECT(cuIpcOpenMemHandle_v2(&memory, handle, 1), CUDA_ERROR_INVALID_CONTEXT);
	REQUIRE(write(out, &handle, sizeof handle) == sizeof handle);
	REQUIRE(read(in, &byte, 1) == 1);
	CHECK(cuMemcpyDtoH(&value, memory + 8, 4));
	REQUIRE(write(out, &value, sizeof value) == sizeof value);
	pause();
}

int main(void)
{
	CUipcMemHandle handle;
	CUdeviceptr memory, again;
	unsigned value = 0;
	int there[2], back[2];
	CUresult result;
	pid_t child;

	REQUIRE(!pipe(there) && !pipe(back));
	child = fork();
	if (!child)
		export(there[1], back[0]);
	close(there[1]);
	REQUIRE(read(there[0], &handle, sizeof handle) == sizeof handle);
	begin();
	CHECK(cuIpcOpenMemHandle_v2(&memory, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	CHECK(cuIpcOpenMemHandle_v2(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	REQUIRE(again == memory);
	CHECK(cuMemcpyDtoH(&value, memory + 4, 4));
	REQUIRE(value == 1234);
	EXPECT(cuMemcpyDtoH(&value, memory + 4096, 4), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);

	/* What a kernel writes here is there. */
	CHECK(launch_store(kernel("store"), memory + 8, 77, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE(write(back[1], "", 1) == 1);
	REQUIRE(read(there[0], &value, sizeof value) == sizeof value);
	REQUIRE(value == 77);

	REQUIRE(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	CHECK(cuMemcpyDtoH(&value, memory, 4));
	REQUIRE(value == 1234);
	CHECK(cuIpcCloseMemHandle(again));
	CHECK(cuMemcpyDtoH(&value, memory, 4));
	CHECK(cuIpcCloseMemHandle(memory));
	EXPECT(cuIpcCloseMemHandle(memory), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemcpyDtoH(&value, memory, 4), CUDA_ERROR_INVALID_VALUE);
	/* Nobody is there any more to open it from; over remoting, as soon as the server has seen it. */
	while ((result = cuIpcOpenMemHandle_v2(&memory, handle, 1)) == CUDA_SUCCESS)
		CHECK(cuIpcCloseMemHandle(memory));
	REQUIRE_EQUAL(result, CUDA_ERROR_INVALID_VALUE);
	memset(&handle, 0, sizeof handle);
	EXPECT(cuIpcOpenMemHandle_v2(&memory, handle, 1), CUDA_ERROR_INVALID_VALUE);
	return 0;
}
