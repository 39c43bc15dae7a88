#include "device.h"
#include "log.h"

#include <pthread.h>
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
	bool initialised;		/* atomic */
	bool forked;			/* a child of a process that had initialised */
	struct board_options options;
	struct driver_device devices[BOARD_COUNT_MAX];
	int count;
} driver;

_Thread_local bool driver_in_host_function;

const struct board_options *driver_options(void)
{
	return &driver.options;
}

CUresult driver_ready(void)
{
	if (!driver_is_initialised() || driver.forked)
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

CUresult driver_device_of(CUdevice ordinal, struct driver_device **device)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	*device = driver_device_at(ordinal);
	return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
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

/* ---- opening ---- */

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
	if (device->capability)
		return CUDA_SUCCESS;
	board_close(device->board);
	return CUDA_ERROR_INVALID_DEVICE;
}

CUresult driver_devices_open(void)
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
		if (result) {
			driver_devices_close();
			return result;
		}
	}
	return CUDA_SUCCESS;
}

void driver_devices_close(void)
{
	while (driver.count > 0)
		board_close(driver.devices[--driver.count].board);
}

bool driver_is_initialised(void)
{
	return __atomic_load_n(&driver.initialised, __ATOMIC_ACQUIRE);
}

void driver_set_initialised(void)
{
	pthread_atfork(NULL, NULL, after_fork_in_child);
	__atomic_store_n(&driver.initialised, true, __ATOMIC_RELEASE);
}

bool driver_is_forked(void)
{
	return driver.forked;
}
