/* The private tables that CUDA's runtime asks a driver for.  native/cudart has
 * them; this is what they need to know of the software GPU.  Where native/cudart
 * is not there, no table is: programs that use the driver API alone still run. */
#include "../driver/context_stack.h"
#include "../driver/function.h"

#include <stdlib.h>
#include <string.h>

#if __has_include("../../cudart/cudart.h")
#include "../../cudart/cudart.h"

#include <pthread.h>

CUresult cuModuleLoadData(CUmodule *out, const void *image);
CUresult cuCtxGetCurrent(CUcontext *out);

static int driver_version(void)
{
	return DRIVER_API_VERSION;
}

static CUresult device_identity(int ordinal, CUuuid *uuid, int pci[3])
{
	const struct driver_device *device = driver_device_at(ordinal);

	if (!device)
		return CUDA_ERROR_INVALID_DEVICE;
	memcpy(uuid->bytes, device->identity->uuid, sizeof uuid->bytes);
	pci[0] = (int)device->identity->pci_domain;
	pci[1] = (int)device->identity->pci_bus;
	pci[2] = (int)device->identity->pci_device;
	return CUDA_SUCCESS;
}

static CUresult primary_context(CUdevice ordinal, CUcontext *context)
{
	const struct driver_device *device = driver_device_at(ordinal);

	if (!device)
		return CUDA_ERROR_INVALID_DEVICE;
	*context = device->primary;
	return CUDA_SUCCESS;
}

/* Also of what stands for a green context, which may be the current one. */
static CUresult context_device(CUcontext handle, CUdevice *ordinal)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_wanted(handle, &context);

	if (!result)
		*ordinal = context->device->ordinal;
	return result;
}

/* Multiprocessors lie in pairs, of which a GPC has at most so many, as an H100's has. */
#define PAIRS_PER_GPC 9u

static CUresult device_layout(uint8_t **gpcs, uint8_t **numbers)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);
	unsigned pairs, gpc_count;
	uint8_t *first, *second;

	if (result != CUDA_SUCCESS)
		return result;
	pairs = (context->device->model->multiprocessors + 1) / 2;
	gpc_count = (pairs + PAIRS_PER_GPC - 1) / PAIRS_PER_GPC;
	first = malloc(pairs);
	second = malloc(pairs);
	if (!first || !second) {
		free(first);
		free(second);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	for (unsigned pair = 0; pair < pairs; pair++) {
		first[pair] = (uint8_t)(pair % gpc_count);
		second[pair] = (uint8_t)(pair / gpc_count);
	}
	*gpcs = first;
	*numbers = second;
	return CUDA_SUCCESS;
}

static int module_functions(CUmodule module, void (*visit)(void *opaque, CUfunction function), void *opaque)
{
	DRIVER_CALL;

	return driver_module_visit(module, visit, opaque);
}

CUresult cuStreamGetId(CUstream stream, unsigned long long *id);

static const struct cudart_host host = {
	.driver_version = driver_version,
	.device_count = driver_device_count,
	.device_identity = device_identity,
	.primary_context = primary_context,
	.current_context = cuCtxGetCurrent,
	.context_device = context_device,
	.stream_number = cuStreamGetId,
	.module_load = cuModuleLoadData,
	.module_functions = module_functions,
	.device_layout = device_layout,
};

static void introduce(void)
{
	cudart_init(&host);
}

static const void *find_table(const CUuuid *id)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, introduce);
	return cudart_export_table(id);
}

#else

static const void *find_table(const CUuuid *id)
{
	(void)id;
	return NULL;
}

#endif

DRIVER_EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	DRIVER_CALL;
	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	*table = find_table(id);
	return *table ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
