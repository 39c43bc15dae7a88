#include "../driver/launch.h"

#include "../driver/capture.h"
#include "../driver/stream.h"
#include "../driver/virtual.h"

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
