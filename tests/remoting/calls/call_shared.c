/* Two processes of a lease: memory and an event of one in the other. */
#include "calls.h"

#include <sys/wait.h>
#include <unistd.h>

struct told {
	CUipcMemHandle memory;
	CUipcEventHandle event;
};

static void owner(int out, int in)
{
	CUdeviceptr memory;
	struct told told;
	CUevent event, plain;
	char byte;

	begin();
	memory = words(1024, 55);
	CHECK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
	CHECK(cuIpcGetMemHandle(&told.memory, memory));
	memset(&told.event, 255, sizeof(told.event));
	EXPECT(cuIpcGetEventHandle(&told.event, plain), CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(!memcmp(&told.event, &(CUipcEventHandle){ 0 }, sizeof(told.event)));
	CHECK(cuIpcGetEventHandle(&told.event, event));
	REQUIRE(write(out, &told, sizeof(told)) == sizeof(told));
	REQUIRE(read(in, &byte, 1) == 1);
	CHECK(cuEventSynchronize(event));
	REQUIRE_EQUAL(word_at(memory + 4), 56);
	exit(0);
}

int main(void)
{
	int there[2], back[2], status;
	CUdeviceptr memory, again;
	struct told told;
	CUevent event;
	pid_t child;

	REQUIRE(!pipe(there) && !pipe(back));
	child = fork();
	if (!child)
		owner(there[1], back[0]);
	close(there[1]);
	REQUIRE(read(there[0], &told, sizeof(told)) == sizeof(told));
	begin();
	CHECK(cuIpcOpenMemHandle_v2(&memory, told.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	CHECK(cuIpcOpenMemHandle(&again, told.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	REQUIRE(again == memory);
	REQUIRE_EQUAL(word_at(memory), 55);
	CHECK(cuIpcOpenEventHandle(&event, told.event));
	CHECK(cuMemsetD32Async(memory + 4, 56, 1, NULL));
	CHECK(cuEventRecord(event, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE(write(back[1], "", 1) == 1);
	REQUIRE(waitpid(child, &status, 0) == child && status == 0);
	CHECK(cuIpcCloseMemHandle(memory));
	CHECK(cuIpcCloseMemHandle(again));
	EXPECT(cuIpcCloseMemHandle(memory), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuEventDestroy_v2(event));
	return 0;
}
