/* Functions of the program's that end the thread which they are called on, in the middle of a call or of work, keep
 * nothing that others need: a callback of the log, in a call and for a kernel, and the one that occupancy asks. */
#include "driver.h"

CUresult cuLogsRegisterCallback(CUlogsCallback, void *, CUlogsCallbackHandle *);
CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle);

static CUcontext context;
static sem_t heard;

static void leave(void *opaque, CUlogLevel level, char *message, size_t length)
{
	(void)opaque, (void)level, (void)message, (void)length;
	sem_post(&heard);
	pthread_exit(NULL);
}

static void *say(void *image)
{
	CUmodule module;

	CHECK(cuCtxSetCurrent(context));
	cuModuleLoadData(&module, image);
	return NULL;
}

static size_t leave_size(int threads)
{
	(void)threads;
	pthread_exit(NULL);
}

static void *ask(void *function)
{
	int blocks, threads;

	CHECK(cuCtxSetCurrent(context));
	cuOccupancyMaxPotentialBlockSize(&blocks, &threads, function, leave_size, 0, 0);
	return NULL;
}

static void in_thread(void *(*run)(void *), void *argument)
{
	pthread_t thread;

	REQUIRE(!pthread_create(&thread, NULL, run, argument));
	pthread_join(thread, NULL);
}

int main(void)
{
	CUlogsCallbackHandle callback, other;
	CUfunction store;
	CUmodule module;
	CUstream stream;

	sem_init(&heard, 0, 0);
	context = begin();
	store = kernel("store");
	CHECK(cuLogsRegisterCallback(leave, NULL, &callback));
	in_thread(say, "no PTX");
	sem_wait(&heard);
	in_thread(say, "none either");
	sem_wait(&heard);
	kernel("bounded");
	CHECK(cuLogsUnregisterCallback(callback));
	CHECK(cuLogsRegisterCallback(leave, NULL, &other));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(launch_store(store, 8, 1, stream));
	sem_wait(&heard);
	EXPECT(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK(cuLogsUnregisterCallback(other));
	CHECK(cuDevicePrimaryCtxReset(0));
	CHECK(cuDevicePrimaryCtxRetain(&context, 0));
	CHECK(cuModuleLoadData(&module, kernels));
	CHECK(cuModuleGetFunction(&store, module, "store"));
	in_thread(ask, store);
	CHECK(cuDevicePrimaryCtxReset(0));
	return 0;
}
