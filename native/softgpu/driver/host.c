#include "host.h"

#include <stdlib.h>

struct host_operation {
	struct driver_operation base;
	CUstream stream;
	CUstreamCallback callback;	/* cuStreamAddCallback, else */
	CUhostFn function;		/* cuLaunchHostFunc */
	void *argument;
};

static CUresult run_host(struct driver_operation *operation, CUresult state)
{
	struct host_operation *host = (struct host_operation *)operation;

	driver_in_host_function = true;
	if (host->callback)
		host->callback(host->stream, state, host->argument);
	else
		host->function(host->argument);
	driver_in_host_function = false;
	return CUDA_SUCCESS;
}

static void release_host(struct driver_operation *operation)
{
	free(operation);
}

static struct host_operation *host_make(void *argument)
{
	struct host_operation *host = calloc(1, sizeof *host);

	if (!host)
		return NULL;
	host->base.run = run_host;
	host->base.release = release_host;
	host->argument = argument;
	return host;
}

CUresult driver_host_prepare(CUhostFn function, void *argument, struct driver_operation **operation)
{
	struct host_operation *host;

	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	host = host_make(argument);
	if (!host)
		return CUDA_ERROR_OUT_OF_MEMORY;
	host->function = function;
	*operation = &host->base;
	return CUDA_SUCCESS;
}

CUresult driver_callback_prepare(CUstream stream, CUstreamCallback callback, void *argument,
				 struct driver_operation **operation)
{
	struct host_operation *host;

	if (!callback)
		return CUDA_ERROR_INVALID_VALUE;
	host = host_make(argument);
	if (!host)
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* A callback is told of the error; a host function is not called then. */
	host->base.run_when_failed = true;
	host->stream = stream;
	host->callback = callback;
	*operation = &host->base;
	return CUDA_SUCCESS;
}
