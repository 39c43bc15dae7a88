/* Several processes record one event; who waits for a record waits for that one. */
#include "driver.h"

#include <sys/wait.h>

struct told {
	CUipcEventHandle event;
	CUipcMemHandle memory;
};

static void other(int out, int in)
{
	struct gate gate;
	struct told told;
	CUdeviceptr memory;
	CUstream stream;
	CUevent event;
	char byte;

	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	CHECK(cuIpcGetEventHandle(&told.event, event));
	CHECK(cuMemAlloc(&memory, 4096));
	CHECK(cuMemsetD32(memory, 1, 1));
	CHECK(cuIpcGetMemHandle(&told.memory, memory));
	gate_close(&gate, stream);
	CHECK(cuMemsetD32Async(memory, 2, 1, stream));
	CHECK(cuEventRecord(event, stream));
	REQUIRE(write(out, &told, sizeof told) == sizeof told);
	REQUIRE(read(in, &byte, 1) == 1);
	gate_open(&gate);
	CHECK(cuStreamSynchronize(stream));
	REQUIRE(write(out, "", 1) == 1);
	REQUIRE(read(in, &byte, 1) == 0);	/* until the first one has seen it */
	exit(0);
}

int main(void)
{
	int there[2], back[2], status;
	struct told told;
	CUdeviceptr memory, own;
	CUstream waiting, idle;
	unsigned *value;
	CUevent event;
	pid_t child;
	char byte;

	REQUIRE(!pipe(there) && !pipe(back));
	child = fork();
	if (!child) {
		close(back[1]);
		other(there[1], back[0]);
	}
	close(there[1]);
	close(back[0]);
	REQUIRE(read(there[0], &told, sizeof told) == sizeof told);
	begin();
	CHECK(cuMemAlloc(&own, 4));
	CHECK(cuMemHostAlloc((void **)&value, 4, 0));
	CHECK(cuIpcOpenMemHandle_v2(&memory, told.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	CHECK(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&idle, CU_STREAM_NON_BLOCKING));
	CHECK(cuIpcOpenEventHandle(&event, told.event));
	EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	CHECK(cuStreamWaitEvent(waiting, event, 0));
	CHECK(cuMemcpyDtoHAsync(value, memory, 4, waiting));

	/* A later record here, which is reached at once, lets nobody go who waits for that. */
	CHECK(cuEventRecord(event, idle));
	CHECK(cuEventSynchronize(event));
	EXPECT(cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
	for (int k = 0; k < 100; k++) {
		CHECK(launch_store(kernel("store"), own, 1, idle));
		CHECK(cuEventRecord(event, idle));
		CHECK(cuStreamSynchronize(idle));
	}
	EXPECT(cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);

	REQUIRE(write(back[1], "", 1) == 1);
	REQUIRE(read(there[0], &byte, 1) == 1);
	CHECK(cuStreamSynchronize(waiting));
	REQUIRE_EQUAL(*value, 2);
	close(back[1]);
	REQUIRE(waitpid(child, &status, 0) == child && !status);
	return 0;
}
