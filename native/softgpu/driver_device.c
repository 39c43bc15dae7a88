#define _GNU_SOURCE
#include "driver_device.h"

#include "driver_context.h"
#include "driver_memory.h"
#include "engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct driver_capability capabilities[] = {
	/* sm  warps blocks shared/sm shared/block reserved granule */
	{ 75, 32, 16, 65536, 65536, 0, 256 },
	{ 80, 64, 32, 167936, 166912, 1024, 128 },
	{ 86, 48, 16, 102400, 101376, 1024, 128 },
	{ 87, 48, 16, 167936, 166912, 1024, 128 },
	{ 89, 48, 24, 102400, 101376, 1024, 128 },
	{ 90, 64, 32, 233472, 232448, 1024, 128 },
	{ 100, 64, 32, 233472, 232448, 1024, 128 },
	{ 103, 64, 32, 233472, 232448, 1024, 128 },
	{ 110, 48, 24, 233472, 232448, 1024, 128 },
	{ 120, 48, 24, 102400, 101376, 1024, 128 },
	{ 121, 48, 24, 102400, 101376, 1024, 128 },
	/* No GPU has it: newer than all, so that libraries with code for those that they know
	 * (cuBLAS, cuDNN) take their PTX. */
	{ 130, 64, 32, 233472, 232448, 1024, 128 },
};

static struct {
	pthread_mutex_t lock;
	bool initialised;
	bool forked;			/* a child of a process that had initialised */
	struct board_options options;
	struct driver_device devices[BOARD_COUNT_MAX];
	int count;
} driver = { .lock = PTHREAD_MUTEX_INITIALIZER };

_Thread_local bool driver_in_host_function;

const struct board_options *driver_options(void)
{
	return &driver.options;
}

CUresult driver_ready(void)
{
	if (!__atomic_load_n(&driver.initialised, __ATOMIC_ACQUIRE) || driver.forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (driver_in_host_function)
		return CUDA_ERROR_NOT_PERMITTED;
	return CUDA_SUCCESS;
}

int driver_device_count(void)
{
	return driver.count;
}

struct driver_device *driver_device_at(CUdevice ordinal)
{
	return ordinal >= 0 && ordinal < driver.count ? &driver.devices[ordinal] : NULL;
}

CUresult driver_unsupported(const char *what)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static const char *told[512];	/* callers pass literals */
	static size_t count;
	bool first;
	size_t i;

	pthread_mutex_lock(&lock);
	for (i = 0; i < count && strcmp(told[i], what); i++)
		;
	first = i == count && count < sizeof told / sizeof *told;
	if (first)
		told[count++] = what;
	pthread_mutex_unlock(&lock);
	if (first)
		driver_say("%s is not implemented by the software GPU", what);
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- which devices are visible ---- */

/* The index that one entry of CUDA_VISIBLE_DEVICES names: a number, or the
 * beginning of a UUID that fits one board only.  -1 ends the list. */
static int visible_index(const char *entry, unsigned count)
{
	char *end;
	long number;
	int found = -1;

	if (!strncmp(entry, "GPU-", 4)) {
		for (unsigned i = 0; i < count; i++) {
			struct board_identity identity;
			char uuid[41];

			board_identity_of(i, &identity);
			board_uuid_format(identity.uuid, uuid);
			if (strncasecmp(uuid, entry, strlen(entry)))
				continue;
			if (found >= 0)
				return -1;
			found = (int)i;
		}
		return found;
	}
	number = strtol(entry, &end, 10);
	return end != entry && !*end && number >= 0 && number < (long)count ? (int)number : -1;
}

/* Entries behind the first bad one do not count; one named twice makes none
 * visible (CUDA C++ Programming Guide, "CUDA Environment Variables"). */
static int read_visible(int indices[BOARD_COUNT_MAX], unsigned count)
{
	const char *text = getenv("CUDA_VISIBLE_DEVICES");
	char *copy, *rest, *item;
	int found = 0;

	if (!text) {
		for (; found < (int)count; found++)
			indices[found] = found;
		return found;
	}
	copy = rest = strdup(text);
	if (!copy)
		return -1;
	while ((item = strsep(&rest, ","))) {
		int index;

		item += strspn(item, " \t");
		item[strcspn(item, " \t")] = '\0';
		index = visible_index(item, count);
		if (index < 0)
			break;
		for (int i = 0; i < found; i++) {
			if (indices[i] == index) {
				free(copy);
				return 0;
			}
		}
		indices[found++] = index;
	}
	free(copy);
	return found;
}

/* ---- cuInit ---- */

static void after_fork_in_child(void)
{
	driver.forked = true;
}

/* The accounts on the boards end with the process; a process that was killed
 * is swept by the next one. */
__attribute__((destructor)) static void leave_boards(void)
{
	if (!driver.initialised || driver.forked)
		return;
	for (int i = 0; i < driver.count; i++) {
		/* Kernels may still be running; close only unmaps at process end, so
		 * the board stays mapped and just the account goes. */
		board_retire(driver.devices[i].board);
	}
}

static CUresult device_open(struct driver_device *device, int ordinal, unsigned index)
{
	struct board_diagnostic why;
	bool adopted = false;
	CUresult result;

	device->ordinal = ordinal;
	device->index = index;
	if (board_open(&device->board, index, &driver.options.model, &adopted, &why)) {
		driver_say("%s", why.text);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	device->identity = board_identity(device->board);
	device->model = board_model(device->board);
	if (adopted)
		driver_say("device %u is in use with another model; keeping "
			   "compute capability %u.%u, %llu MiB, %u multiprocessors", index,
			   device->model->sm / 10, device->model->sm % 10,
			   (unsigned long long)(device->model->memory_bytes >> 20),
			   device->model->multiprocessors);
	for (size_t i = 0; i < sizeof capabilities / sizeof *capabilities; i++) {
		if (capabilities[i].sm == device->model->sm)
			device->capability = &capabilities[i];
	}
	if (!device->capability) {
		result = CUDA_ERROR_INVALID_DEVICE;
		goto out_board;
	}
	result = driver_memory_open(device);
	if (result)
		goto out_board;
	result = driver_context_make_primary(device);
	if (result)
		goto out_memory;
	return CUDA_SUCCESS;
out_memory:
	driver_memory_close(device);
out_board:
	board_close(device->board);
	return result;
}

static CUresult initialise(void)
{
	struct board_diagnostic why;
	int indices[BOARD_COUNT_MAX], visible;
	CUresult result;

	if (board_options_read(&driver.options, &why)) {
		driver_say("%s", why.text);
		return CUDA_ERROR_INVALID_VALUE;
	}
	board_sweep_node();
	visible = read_visible(indices, driver.options.count);
	if (visible < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!visible)
		return CUDA_ERROR_NO_DEVICE;
	for (driver.count = 0; driver.count < visible; driver.count++) {
		result = device_open(&driver.devices[driver.count], driver.count,
				     (unsigned)indices[driver.count]);
		if (result)
			goto out_close;
	}
	engine_configure(&(struct engine_options){
		.workers = driver.options.workers,
		.deterministic = driver.options.deterministic,
		.strict = driver.options.strict,
	});
	pthread_atfork(NULL, NULL, after_fork_in_child);
	return CUDA_SUCCESS;
out_close:
	while (driver.count > 0) {
		struct driver_device *device = &driver.devices[--driver.count];

		driver_context_free_primary(device);
		driver_memory_close(device);
		board_close(device->board);
	}
	return result;
}

DRIVER_EXPORT CUresult cuInit(unsigned int flags)
{
	CUresult result = CUDA_SUCCESS;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (driver.forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&driver.lock);
	if (!driver.initialised) {
		result = initialise();
		if (!result)
			__atomic_store_n(&driver.initialised, true, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&driver.lock);
	return result;
}

DRIVER_EXPORT CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = DRIVER_API_VERSION;
	return CUDA_SUCCESS;
}

/* ---- identity ---- */

/* The prologue of every query about a device. */
CUresult driver_device_of(CUdevice ordinal, struct driver_device **device)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	*device = driver_device_at(ordinal);
	return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

DRIVER_EXPORT CUresult cuDeviceGetCount(int *count)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = driver.count;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	struct driver_device *found;
	CUresult result = driver_device_of(ordinal, &found);

	if (result)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = found->ordinal;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal)
{
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	if (!name || length <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)length, "%s", device->identity->name);
	return CUDA_SUCCESS;
}

static CUresult device_uuid(CUuuid *uuid, CUdevice ordinal)
{
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(uuid->bytes, device->identity->uuid, sizeof uuid->bytes);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
	return device_uuid(uuid, ordinal);
}

/* Differs from the first version only on boards split by MIG. */
DRIVER_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
	return device_uuid(uuid, ordinal);
}

DRIVER_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = device->model->memory_bytes;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice ordinal)
{
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	if (!text || length < 13)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(text, (size_t)length, "%04x:%02x:%02x.0", device->identity->pci_domain,
		 device->identity->pci_bus, device->identity->pci_device);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *ordinal, const char *text)
{
	unsigned domain = 0, bus, slot, function = 0;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!ordinal || !text)
		return CUDA_ERROR_INVALID_VALUE;
	/* domain:bus:device.function, domain:bus:device or bus:device.function */
	if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
		domain = 0;
		if (sscanf(text, "%x:%x.%x", &bus, &slot, &function) != 3)
			return CUDA_ERROR_INVALID_VALUE;
	}
	for (int i = 0; i < driver.count; i++) {
		const struct board_identity *identity = driver.devices[i].identity;

		if (identity->pci_domain == domain && identity->pci_bus == bus &&
		    identity->pci_device == slot && !function) {
			*ordinal = i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

DRIVER_EXPORT CUresult cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice ordinal)
{
	(void)luid, (void)mask, (void)ordinal;
	return CUDA_ERROR_NOT_SUPPORTED;	/* as on every system but Windows */
}
