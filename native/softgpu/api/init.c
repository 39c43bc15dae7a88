/* cuInit: the devices are opened, each with its memory and its primary context. */
#include "../driver/device.h"

#include "../driver/context_life.h"
#include "../driver/memory.h"
#include "../engine/engine.h"

#include <pthread.h>

static CUresult device_begin(struct driver_device *device)
{
	CUresult result = driver_memory_open(device);

	if (result)
		return result;
	result = driver_context_make_primary(device);
	if (result)
		driver_memory_close(device);
	return result;
}

static void device_end(struct driver_device *device)
{
	driver_context_free_primary(device);
	driver_memory_close(device);
}

static CUresult initialise(void)
{
	const struct board_options *options = driver_options();
	CUresult result = driver_devices_open();
	int begun;

	if (result)
		return result;
	for (begun = 0; begun < driver_device_count(); begun++) {
		result = device_begin(driver_device_at(begun));
		if (result)
			goto out_end;
	}
	engine_configure(&(struct engine_options){
		.workers = options->workers,
		.deterministic = options->deterministic,
		.strict = options->strict,
	});
	return CUDA_SUCCESS;
out_end:
	while (begun > 0)
		device_end(driver_device_at(--begun));
	driver_devices_close();
	return result;
}

DRIVER_EXPORT CUresult cuInit(unsigned int flags)
{
	DRIVER_CALL;
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	CUresult result = CUDA_SUCCESS;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (driver_is_forked())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&lock);
	if (!driver_is_initialised()) {
		result = initialise();
		if (!result)
			driver_set_initialised();
	}
	pthread_mutex_unlock(&lock);
	return result;
}

DRIVER_EXPORT CUresult cuDriverGetVersion(int *version)
{
	DRIVER_CALL;
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = DRIVER_API_VERSION;
	return CUDA_SUCCESS;
}
