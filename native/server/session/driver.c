/* Opening a driver and describing its devices. */
#include "../memory/descriptor.h"
#include "../quota/contexts.h"
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

typedef CUresult (*get_proc_address)(const char *name, void **function, int version,
				     cuuint64_t flags, CUdriverProcAddressQueryResult *status);

/* `driver_version` is the driver's: one that is older than a function gives the name's last before that, which takes other
 * arguments. */
static void *driver_lookup(void *library, get_proc_address resolve, int driver_version, const char *symbol,
			   const char *name, int version)
{
	CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
	void *function = dlsym(library, symbol);

	if (function || !resolve || version > driver_version)
		return function;
	if (resolve(name, &function, version, 0, &status) != CUDA_SUCCESS)
		return NULL;
	return function;
}

static int driver_open(struct server *server, const char *path, char *why, size_t bytes)
{
	CUresult (*get_version)(int *version);
	get_proc_address resolve;
	int driver_version = 0;

	server->driver_library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!server->driver_library) {
		snprintf(why, bytes, "open the driver %s: %s", path, dlerror());
		return -ENOENT;
	}
	resolve = (get_proc_address)dlsym(server->driver_library, "cuGetProcAddress_v2");
	get_version = (CUresult (*)(int *))dlsym(server->driver_library, "cuDriverGetVersion");
	if (get_version)
		get_version(&driver_version);
#define LOOK_UP(symbol, name, version) \
	*(void **)&server->driver.symbol = \
		driver_lookup(server->driver_library, resolve, driver_version, #symbol, name, version);
	SERVER_DRIVER_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
	if (!server->driver.cuInit || !server->driver.cuDeviceGetCount ||
	    !server->driver.cuCtxSetCurrent || !server->driver.cuDevicePrimaryCtxRetain) {
		snprintf(why, bytes, "%s is not a CUDA driver: it lacks cuInit or its like", path);
		return -ENOEXEC;
	}
	return 0;
}

static CUresult driver_initialise(struct server *server)
{
	CUresult result = server->driver.cuInit(0);
	int count = 0;

	if (result == CUDA_SUCCESS)
		result = server->driver.cuDeviceGetCount(&count);
	if (count > (int)WIRE_DEVICES)
		count = WIRE_DEVICES;
	for (int i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = server->driver.cuDeviceGet(&server->devices[i], i);
	server->device_count = count;
	return result;
}

int server_driver_start(struct server *server, const struct server_options *options, char *text, size_t bytes,
			CUresult *result)
{
	int rc = driver_open(server, options->libcuda, text, bytes);

	if (rc)
		return rc;
	if (options->memory_limit)
		server_quota_install(server, options->memory_limit);
	*result = driver_initialise(server);
	return 0;
}

void server_driver_describe(struct server *server, CUdevice device, struct wire_device *out)
{
	const struct server_driver *driver = &server->driver;
	size_t total = 0;
	int active;

	memset(out, 0, sizeof(*out));
	driver->cuDeviceGetName(out->name, sizeof(out->name) - 1, device);
	driver->cuDeviceTotalMem_v2(&total, device);
	out->total_bytes = total;
	if (driver->cuDeviceGetUuid)
		driver->cuDeviceGetUuid((CUuuid *)out->uuid, device);
	memcpy(out->uuid_v2, out->uuid, sizeof(out->uuid_v2));
	if (driver->cuDeviceGetUuid_v2)
		driver->cuDeviceGetUuid_v2((CUuuid *)out->uuid_v2, device);
	if (driver->cuDeviceGetPCIBusId)
		driver->cuDeviceGetPCIBusId(out->pci_bus_id, sizeof(out->pci_bus_id), device);
	if (driver->cuDevicePrimaryCtxGetState)
		driver->cuDevicePrimaryCtxGetState(device, &out->primary_flags, &active);
	for (unsigned i = 1; i < WIRE_DEVICE_ATTRIBUTES; i++) {
		int value;

		if (driver->cuDeviceGetAttribute(&value, (CUdevice_attribute)i, device) !=
		    CUDA_SUCCESS)
			continue;
		out->attributes[i] = value;
		out->attribute_known[i / 8] |= (uint8_t)(1u << i % 8);
	}
}

void server_driver_operations(const struct server *server, uint8_t *bits, size_t bytes)
{
	for (unsigned op = 0; op < WIRE_OP_LIMIT && op / 8 < bytes; op++)
		if (wire_op_infos[op].name && (server->exchange > 0 || !server_descriptor_op(op)))
			bits[op / 8] |= (uint8_t)(1u << op % 8);
}
