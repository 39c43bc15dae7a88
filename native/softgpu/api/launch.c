#include "../driver/launch.h"

#include "../driver/capture.h"
#include "../driver/event.h"
#include "../driver/stream.h"
#include "../driver/virtual.h"

#include <stdlib.h>

static CUresult launch(CUfunction handle, const CUlaunchConfig *config, void **params, void **extra)
{
	struct driver_operation *operation;
	struct CUstream_st *stream;
	bool capturing;
	CUresult result;

	if (!handle)
		return CUDA_ERROR_INVALID_HANDLE;
	result = driver_stream_enter_or_capture(config->hStream, &stream, &capturing);
	if (result)
		return result;
	if (capturing)
		return driver_capture_kernel(stream, config, handle, params, extra);
	result = driver_launch_prepare(stream->context, stream->green, config, handle, params,
				       extra, &operation);
	return result ? result : driver_stream_submit(stream, operation, 0, NULL);
}

/* ---- events that a launch records ----
 *
 * They may trigger once all blocks have begun, or have said so.  Nobody can rely on that being before the
 * kernel is complete, and here it is then: they are recorded behind the launch. */

/* The event that an attribute names, or NULL. */
static CUevent event_of(const CUlaunchAttribute *attribute, int *flags)
{
	if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) {
		*flags = attribute->value.programmaticEvent.flags;
		return attribute->value.programmaticEvent.event;
	}
	*flags = attribute->value.launchCompletionEvent.flags;
	return attribute->value.launchCompletionEvent.event;
}

static bool names_event(const CUlaunchAttribute *attribute)
{
	return attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
	       attribute->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
}

/* "must not be an interprocess or interop event", "must disable timing", "Does not accept CU_EVENT_RECORD_EXTERNAL" */
static CUresult check_event(const CUlaunchAttribute *attribute, const struct CUctx_st *context)
{
	int flags;
	CUevent event = event_of(attribute, &flags);
	CUresult result = driver_event_of(event);

	if (result)
		return result;
	if (event->context != context)
		return CUDA_ERROR_INVALID_HANDLE;
	if (flags || event->flags & CU_EVENT_INTERPROCESS || !(event->flags & CU_EVENT_DISABLE_TIMING))
		return CUDA_ERROR_INVALID_VALUE;
	return attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT && context->device->capability->sm < 90 ?
		CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

static CUresult record_events(const CUlaunchConfig *config, struct CUstream_st *stream, bool capturing)
{
	CUresult result = CUDA_SUCCESS;
	int flags;

	for (unsigned i = 0; i < config->numAttrs && !result; i++) {
		if (!names_event(&config->attrs[i]))
			continue;
		result = capturing ?
			driver_event_capture(event_of(&config->attrs[i], &flags), stream) :
			driver_event_submit_record(event_of(&config->attrs[i], &flags), stream);
	}
	return result;
}

static CUresult launch_and_record(CUfunction handle, const CUlaunchConfig *config, void **params, void **extra)
{
	CUlaunchConfig own = *config;
	struct CUstream_st *stream;
	bool capturing;
	CUresult result = driver_stream_enter_or_capture(config->hStream, &stream, &capturing);

	for (unsigned i = 0; i < config->numAttrs && !result; i++)
		if (names_event(&config->attrs[i]))
			result = check_event(&config->attrs[i], stream->context);
	if (result)
		return result;
	/* The kernel's, which a node of a graph keeps, are the others. */
	own.attrs = calloc(config->numAttrs, sizeof *own.attrs);
	if (!own.attrs)
		return CUDA_ERROR_OUT_OF_MEMORY;
	own.numAttrs = 0;
	for (unsigned i = 0; i < config->numAttrs; i++)
		if (!names_event(&config->attrs[i]))
			own.attrs[own.numAttrs++] = config->attrs[i];
	result = launch(handle, &own, params, extra);
	free(own.attrs);
	return result ? result : record_events(config, stream, capturing);
}

/* ---- the functions ---- */

DRIVER_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x,
				      unsigned int grid_y, unsigned int grid_z,
				      unsigned int block_x, unsigned int block_y,
				      unsigned int block_z, unsigned int shared, CUstream stream,
				      void **params, void **extra)
{
	DRIVER_CALL;
	const CUlaunchConfig config = {
		.gridDimX = grid_x, .gridDimY = grid_y, .gridDimZ = grid_z,
		.blockDimX = block_x, .blockDimY = block_y, .blockDimZ = block_z,
		.sharedMemBytes = shared, .hStream = stream,
	};

	return launch(function, &config, params, extra);
}

DRIVER_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x,
						 unsigned int grid_y, unsigned int grid_z,
						 unsigned int block_x, unsigned int block_y,
						 unsigned int block_z, unsigned int shared,
						 CUstream stream, void **params)
{
	DRIVER_CALL;
	CUlaunchAttribute cooperative = {
		.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1,
	};
	const CUlaunchConfig config = {
		.gridDimX = grid_x, .gridDimY = grid_y, .gridDimZ = grid_z,
		.blockDimX = block_x, .blockDimY = block_y, .blockDimZ = block_z,
		.sharedMemBytes = shared, .hStream = stream,
		.attrs = &cooperative, .numAttrs = 1,
	};

	return launch(function, &config, params, NULL);
}

DRIVER_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
					void **params, void **extra)
{
	DRIVER_CALL;
	if (!config || (config->numAttrs && !config->attrs))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < config->numAttrs; i++)
		if (names_event(&config->attrs[i]))
			return launch_and_record(function, config, params, extra);
	return launch(function, config, params, extra);
}

DRIVER_EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function,
					     void **params, void **extra)
{
	DRIVER_CALL;
	CUlaunchConfig own;

	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	own = *config;
	if (!own.hStream)
		own.hStream = CU_STREAM_PER_THREAD;
	return cuLaunchKernelEx(&own, function, params, extra);
}
