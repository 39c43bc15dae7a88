#include "../driver/device.h"

#include <stdio.h>
#include <string.h>

DRIVER_EXPORT CUresult cuDeviceGetCount(int *count)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = driver_device_count();
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	DRIVER_CALL;
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
	DRIVER_CALL;
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
	DRIVER_CALL;
	return device_uuid(uuid, ordinal);
}

/* Differs from the first version only on boards split by MIG. */
DRIVER_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
	DRIVER_CALL;
	return device_uuid(uuid, ordinal);
}

DRIVER_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
	DRIVER_CALL;
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
	DRIVER_CALL;
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
	DRIVER_CALL;
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
	for (int i = 0; i < driver_device_count(); i++) {
		const struct board_identity *identity = driver_device_at(i)->identity;

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
	DRIVER_CALL;
	(void)luid, (void)mask, (void)ordinal;
	return CUDA_ERROR_NOT_SUPPORTED;	/* as on every system but Windows */
}
