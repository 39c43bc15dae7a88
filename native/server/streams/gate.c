/* Gates: streams that wait for the client without a function that the driver calls.
 *
 * NVIDIA's driver calls all such functions on one thread, so that a stream which waited inside one would keep those
 * of all others, and two servers whose streams wait for each other would wait for good.  A gate is a word of memory
 * that the stream waits for, and that this process writes; that the stream has come to it, or that what it has done is
 * over, a thread of this process waits for, by an event. */
#include "../ground/resolve.h"
#include "gate.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Words have one page, and stay when the driver has ended the context: an answer may come later. */
#define GATES_BYTES (SERVER_GATES * sizeof(uint32_t))

/* With `making`.  false: the device can't wait for memory of ours. */
static bool gates_make(struct server_call *call)
{
	const struct server_driver *driver = call->driver;
	struct server_gates *gates = &call->context->gates;
	int direct = 0;
	void *memory;

	if (!driver->cuStreamWaitValue32_v2 || !driver->cuMemHostRegister_v2 || !driver->cuDeviceGetAttribute ||
	    driver->cuDeviceGetAttribute(&direct, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
					 call->context->device) != CUDA_SUCCESS || !direct)
		return false;
	memory = mmap(NULL, GATES_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return false;
	if (driver->cuMemHostRegister_v2(memory, GATES_BYTES, CU_MEMHOSTREGISTER_PORTABLE |
					 CU_MEMHOSTREGISTER_DEVICEMAP) != CUDA_SUCCESS) {
		munmap(memory, GATES_BYTES);
		return false;
	}
	for (unsigned i = 0; i < SERVER_GATES; i++)
		gates->idle[i] = (uint16_t)(SERVER_GATES - 1 - i);
	gates->idle_count = SERVER_GATES;
	gates->words = memory;
	return true;
}

static bool gates_there(struct server_call *call)
{
	struct server_gates *gates = &call->context->gates;

	pthread_mutex_lock(&call->context->making);
	if (!gates->tried) {
		gates->tried = true;
		gates->there = gates_make(call);
	}
	pthread_mutex_unlock(&call->context->making);
	return gates->there;
}

bool server_gate_close(struct server_call *call, CUstream stream, unsigned *gate)
{
	struct server_context *context = call->context;
	struct server_gates *gates = &context->gates;
	bool any;

	if (!gates_there(call))
		return false;
	pthread_mutex_lock(&context->lock);
	any = gates->idle_count;
	if (any)
		*gate = gates->idle[--gates->idle_count];
	pthread_mutex_unlock(&context->lock);
	if (!any)
		return false;
	/* Words only grow, so that one which is used again lets go whoever may still look at it. */
	if (call->driver->cuStreamWaitValue32_v2(stream, (uintptr_t)&gates->words[*gate],
						 atomic_load(&gates->words[*gate]) + 1,
						 CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS)
		return true;
	pthread_mutex_lock(&context->lock);
	gates->idle[gates->idle_count++] = (uint16_t)*gate;
	pthread_mutex_unlock(&context->lock);
	return false;
}

void server_gate_open(struct server_context *context, unsigned gate)
{
	struct server_gates *gates = &context->gates;

	atomic_fetch_add(&gates->words[gate], 1);
	pthread_mutex_lock(&context->lock);
	gates->idle[gates->idle_count++] = (uint16_t)gate;
	pthread_mutex_unlock(&context->lock);
}

CUresult server_mark_take(struct server_call *call, struct server_mark **out)
{
	struct server_context *context = call->context;
	struct server_mark *mark;
	CUresult result;

	pthread_mutex_lock(&context->lock);
	mark = context->marks;
	if (mark)
		context->marks = mark->next;
	pthread_mutex_unlock(&context->lock);
	*out = mark;
	/* Made at once where there is none: NVIDIA's driver may make none while a host function runs. */
	for (unsigned made = 0; !mark && made < SERVER_MARKS; made++) {
		struct server_mark *more = malloc(sizeof(*more));

		if (!more)
			return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
		result = call->driver->cuEventCreate(&more->event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
		if (result != CUDA_SUCCESS) {
			free(more);
			return *out ? CUDA_SUCCESS : result;
		}
		if (*out)
			server_mark_give(context, more);
		else
			*out = more;
	}
	return CUDA_SUCCESS;
}

void server_mark_give(struct server_context *context, struct server_mark *mark)
{
	pthread_mutex_lock(&context->lock);
	mark->next = context->marks;
	context->marks = mark;
	pthread_mutex_unlock(&context->lock);
}

/* The end of what the stream has does not tell of what its next work would wait for: an event does, being that work. */
CUresult serve_stream_reach(struct server_call *call)
{
	const struct wire_stream_reach *request = call->request;
	const struct server_driver *driver = call->driver;
	struct server_mark *mark;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (result == CUDA_SUCCESS && (!driver->cuEventCreate || !driver->cuEventRecord || !driver->cuEventSynchronize))
		result = CUDA_ERROR_NOT_SUPPORTED;
	if (result == CUDA_SUCCESS)
		result = server_mark_take(call, &mark);
	if (result != CUDA_SUCCESS)
		return result;
	result = driver->cuEventRecord(mark->event, stream);
	if (result == CUDA_SUCCESS)
		result = driver->cuEventSynchronize(mark->event);
	server_mark_give(call->context, mark);
	return result;
}
