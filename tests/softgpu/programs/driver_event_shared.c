/* Two processes wait for each other's work by an event; who dies keeps nobody waiting. */
#include "driver.h"

#include <signal.h>
#include <sys/wait.h>

struct told {
	CUipcMemHandle memory;
	CUipcEventHandle event;
};

static void step(int out, int in)
{
	char byte = 0;

	if (out >= 0)
		REQUIRE(write(out, "", 1) == 1);
	if (in >= 0)
		REQUIRE(read(in, &byte, 1) == 1);
}

static void owner(int out, int in)
{
	struct gate gate;
	struct told told;
	CUevent event, plain;
	CUdeviceptr memory;
	CUstream stream;
	unsigned value;

	begin();
	CHECK(cuMemAlloc(&memory, 4096));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	EXPECT(cuEventCreate(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventQuery(event));
	CHECK(cuIpcGetMemHandle(&told.memory, memory));
	CHECK(cuIpcGetEventHandle(&told.event, event));
	EXPECT(cuIpcOpenEventHandle(&plain, told.event), CUDA_ERROR_INVALID_CONTEXT);
	CHECK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
	EXPECT(cuIpcGetEventHandle(&told.event, plain), CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(!memcmp(&told.event, &(CUipcEventHandle){ 0 }, sizeof told.event));
	CHECK(cuIpcGetEventHandle(&told.event, event));

	/* The other one waits for what comes before the event here. */
	gate_close(&gate, stream);
	CHECK(cuMemsetD32Async(memory, 7, 1, stream));
	CHECK(cuEventRecord(event, stream));
	EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	REQUIRE(write(out, &told, sizeof told) == sizeof told);
	step(-1, in);
	gate_open(&gate);

	/* And then it records, and this one waits. */
	step(-1, in);
	CHECK(cuStreamWaitEvent(stream, event, 0));
	CHECK(cuMemcpyDtoHAsync(&value, memory, 4, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(value, 8);

	gate_close(&gate, stream);
	CHECK(cuEventRecord(event, stream));
	step(out, -1);
	pause();
}

int main(void)
{
	int there[2], back[2];
	struct gate gate;
	struct told told;
	CUdeviceptr memory;
	unsigned *value;
	CUstream stream;
	CUevent event, none;
	pid_t child;

	REQUIRE(!pipe(there) && !pipe(back));
	child = fork();
	if (!child) {
		close(back[1]);
		owner(there[1], back[0]);
	}
	close(there[1]);
	close(back[0]);
	REQUIRE(read(there[0], &told, sizeof told) == sizeof told);
	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuIpcOpenMemHandle_v2(&memory, told.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	CHECK(cuIpcOpenEventHandle(&event, told.event));
	memset(&told.event, 0, sizeof told.event);
	EXPECT(cuIpcOpenEventHandle(&none, told.event), CUDA_ERROR_INVALID_HANDLE);

	EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	CHECK(cuStreamWaitEvent(stream, event, 0));
	CHECK(cuMemHostAlloc((void **)&value, 4, 0));	/* else the copy waits */
	CHECK(cuMemcpyDtoHAsync(value, memory, 4, stream));
	EXPECT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	step(back[1], -1);
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(*value, 7);
	CHECK(cuEventQuery(event));

	gate_close(&gate, stream);
	CHECK(cuMemsetD32Async(memory, 8, 1, stream));
	CHECK(cuEventRecord(event, stream));
	step(back[1], -1);
	gate_open(&gate);

	/* What a process that was killed had recorded is as good as reached. */
	step(-1, there[0]);
	EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	CHECK(cuStreamWaitEvent(stream, event, 0));
	REQUIRE(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuEventSynchronize(event));
	CHECK(cuEventQuery(event));
	CHECK(cuEventDestroy(event));
	return 0;
}
