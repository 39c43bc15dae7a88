/* Launches. */
#include "../ground/resolve.h"
#include "kernel.h"

#include <stdlib.h>

/* One pointer for each parameter in `buffer`, as programs give them; to be freed.  NULL: the driver does not tell
 * where they are, or they are not as many bytes. */
static void **parameters_list(struct server_call *call, uint64_t handle, CUfunction function, uint8_t *buffer,
			      size_t bytes)
{
	bool is_module = !server_is_kernel(call, handle);
	struct wire_parameter parameter;
	size_t count = 0, room = 0, end = 0;
	void **list = NULL;

	if (is_module ? !call->driver->cuFuncGetParamInfo : !call->driver->cuKernelGetParamInfo)
		return NULL;
	while (server_kernel_parameter(call, is_module, function, count, &parameter) == CUDA_SUCCESS) {
		if (count == room) {
			void **grown = realloc(list, (room = 2 * room + 16) * sizeof(*list));

			if (!grown)
				break;
			list = grown;
		}
		list[count++] = buffer + parameter.offset;
		end = (size_t)parameter.offset + parameter.bytes;
	}
	if (end == bytes && list)
		return list;
	free(list);
	return NULL;
}

/* With a buffer of parameters NVIDIA's driver 580 refuses what is cooperative in a capture
 * (CUDA_ERROR_INVALID_VALUE), and later changes of such a node. */
static bool launch_wants_list(const struct server_call *call, const CUlaunchConfig *config)
{
	if (atomic_load_explicit(&call->server->capture_count, memory_order_relaxed))
		return true;
	for (unsigned i = 0; i < config->numAttrs; i++)
		if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
			return true;
	return false;
}

CUresult serve_launch(struct server_call *call)
{
	const struct wire_launch *request = call->request;
	const struct server_driver *driver = call->driver;
	size_t attribute_bytes = (size_t)request->attribute_count * sizeof(CUlaunchAttribute);
	size_t parameter_bytes = request->parameter_bytes;
	void *parameters = (void *)(call->tail + attribute_bytes);
	void *extra[] = {
		CU_LAUNCH_PARAM_BUFFER_POINTER, parameters,
		CU_LAUNCH_PARAM_BUFFER_SIZE, &parameter_bytes,
		CU_LAUNCH_PARAM_END,
	};
	CUlaunchConfig config = {
		.gridDimX = request->grid[0],
		.gridDimY = request->grid[1],
		.gridDimZ = request->grid[2],
		.blockDimX = request->block[0],
		.blockDimY = request->block[1],
		.blockDimZ = request->block[2],
		.sharedMemBytes = request->shared_bytes,
		.attrs = (CUlaunchAttribute *)call->tail,
		.numAttrs = request->attribute_count,
	};
	void **list = NULL, **given = NULL;
	CUfunction function;
	CUstream stream;
	CUresult result;

	if (request->attribute_count > 64 || parameter_bytes > WIRE_KERNEL_PARAMETERS ||
	    attribute_bytes + parameter_bytes != call->tail_bytes)
		return SERVER_MALFORMED;
	result = server_resolve_function(call, request->function, &function);
	if (result == CUDA_SUCCESS)
		result = server_resolve_stream(call, request->stream, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (request->attribute_count && !driver->cuLaunchKernelEx)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (parameter_bytes && launch_wants_list(call, &config))
		list = parameters_list(call, request->function, function, parameters, parameter_bytes);
	if (parameter_bytes && !list)
		given = extra;
	config.hStream = stream;
	if (request->attribute_count)
		result = driver->cuLaunchKernelEx(&config, function, list, given);
	else
		result = driver->cuLaunchKernel(function, config.gridDimX, config.gridDimY, config.gridDimZ,
						config.blockDimX, config.blockDimY, config.blockDimZ,
						config.sharedMemBytes, stream, list, given);
	free(list);
	return result;
}

CUresult serve_launch_checked(struct server_call *call)
{
	return serve_launch(call);
}
