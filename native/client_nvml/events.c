/* Sets of events.  No device of a lease reports any, so that a set stays empty; programs that
 * make one before they look whether there are any (nvidia-smi does) go on. */
#include "nvml.h"

#include <poll.h>
#include <stdlib.h>

/* A set has to have an address of its own. */
struct nvmlEventSet_st {
	char nothing;
};

NVML_EXPORT nvmlReturn_t nvmlEventSetCreate(struct nvmlEventSet_st **set)
{
	nvmlReturn_t result = nvml_up();
	struct nvmlEventSet_st *made;

	if (result)
		return result;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	made = malloc(sizeof(*made));
	if (!made)
		return NVML_ERROR_MEMORY;
	*set = made;
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlEventSetFree(struct nvmlEventSet_st *set)
{
	nvmlReturn_t result = nvml_up();

	if (!result)
		free(set);
	return result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle,
							  unsigned long long *types)
{
	struct nvmlDevice_st device;
	nvmlReturn_t result = nvml_device(handle, &device);

	if (result)
		return result;
	if (!types)
		return NVML_ERROR_INVALID_ARGUMENT;
	*types = 0;
	return NVML_SUCCESS;
}

/* Nothing comes: the time-out is waited for, so that a loop around it does not spin. */
NVML_EXPORT nvmlReturn_t nvmlEventSetWait_v2(struct nvmlEventSet_st *set, void *data,
					     unsigned int timeout_ms)
{
	nvmlReturn_t result = nvml_up();

	if (result)
		return result;
	if (!set || !data)
		return NVML_ERROR_INVALID_ARGUMENT;
	(void)poll(NULL, 0, timeout_ms > INT32_MAX ? INT32_MAX : (int)timeout_ms);
	return NVML_ERROR_TIMEOUT;
}

NVML_EXPORT nvmlReturn_t nvmlEventSetWait(struct nvmlEventSet_st *set, void *data,
					  unsigned int timeout_ms)
{
	return nvmlEventSetWait_v2(set, data, timeout_ms);
}
