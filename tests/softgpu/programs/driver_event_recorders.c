/* Several processes record one event; who waits for a record waits for that one. */
#include "driver.h"

#include <sys/wait.h>

static void other(int out, int in)
{
	CUipcEventHandle handle;
	struct gate gate;
	CUstream stream;
	CUevent event;
	char byte;

	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	CHECK(cuIpcGetEventHandle(&handle, event));
	gate_close(&gate, stream);
	CHECK(cuEventRecord(event, stream));
	REQUIRE(write(out, &handle, sizeof handle) == sizeof handle);
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
	CUipcEventHandle handle;
	CUstream waiting, idle;
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
	REQUIRE(read(there[0], &handle, sizeof handle) == sizeof handle);
	begin();
	CHECK(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&idle, CU_STREAM_NON_BLOCKING));
	CHECK(cuIpcOpenEventHandle(&event, handle));
	EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	CHECK(cuStreamWaitEvent(waiting, event, 0));

	/* A later record here, which is reached at once, lets nobody go who waits for that. */
	CHECK(cuEventRecord(event, idle));
	CHECK(cuEventSynchronize(event));
	EXPECT(cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
	for (int k = 0; k < 100; k++)
		CHECK(cuEventRecord(event, idle));
	CHECK(cuStreamSynchronize(idle));
	EXPECT(cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);

	REQUIRE(write(back[1], "", 1) == 1);
	REQUIRE(read(there[0], &byte, 1) == 1);
	CHECK(cuStreamSynchronize(waiting));
	close(back[1]);
	REQUIRE(waitpid(child, &status, 0) == child && !status);
	return 0;
}
