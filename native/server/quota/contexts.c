/* contexts.c - contexts take their memory with them; and all that counts, put in its place (quota.h). */
#include "quota.h"
#include "arrays.h"
#include "contexts.h"
#include "graphs.h"
#include "memory.h"
#include "objects.h"

static CUresult context_destroy(CUcontext context)
{
	CUresult result = quota.real.cuCtxDestroy_v2(context);

	quota_drop_owner(quota_is_of_context, (uint64_t)(uintptr_t)context);
	return result;
}

static CUresult primary_retain(CUcontext *context, CUdevice device)
{
	CUresult result = quota.real.cuDevicePrimaryCtxRetain(context, device);

	if (result == CUDA_SUCCESS && device >= 0 && device < 64)
		quota.primaries[device] = *context;
	return result;
}

static void primary_drop(CUdevice device)
{
	unsigned flags;
	int active = 0;

	if (device < 0 || device >= 64 || !quota.real.cuDevicePrimaryCtxGetState ||
	    quota.real.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || active)
		return;
	quota_drop_owner(quota_is_of_context, (uint64_t)(uintptr_t)quota.primaries[device]);
}

static CUresult primary_release(CUdevice device)
{
	CUresult result = quota.real.cuDevicePrimaryCtxRelease_v2(device);

	primary_drop(device);
	return result;
}

static CUresult primary_reset(CUdevice device)
{
	CUresult result = quota.real.cuDevicePrimaryCtxReset_v2(device);

	if (result == CUDA_SUCCESS && device >= 0 && device < 64)
		quota_drop_owner(quota_is_of_context, (uint64_t)(uintptr_t)quota.primaries[device]);
	return result;
}

void server_quota_install(struct server *server, uint64_t limit)
{
	struct server_driver *driver = &server->driver;

	quota.real = *driver;
	quota.server = server;
	quota.limit = limit;
	quota_memory_install(driver);
	quota_objects_install(driver);
	quota_arrays_install(driver);
	quota_graphs_install(driver);
	QUOTA_INSTEAD(cuCtxDestroy_v2, context_destroy);
	QUOTA_INSTEAD(cuDevicePrimaryCtxRetain, primary_retain);
	QUOTA_INSTEAD(cuDevicePrimaryCtxRelease_v2, primary_release);
	QUOTA_INSTEAD(cuDevicePrimaryCtxReset_v2, primary_reset);
}
