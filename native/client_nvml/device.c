/* Devices: handles, names, addresses, and how they lie to each other. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* NVML_TOPOLOGY_SYSTEM of nvml.h. */
#define TOPOLOGY_SYSTEM 50u

void nvml_uuid_format(const uint8_t uuid[16], char text[41])
{
	const uint8_t *b = uuid;

	snprintf(text, 41,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		 b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11],
		 b[12], b[13], b[14], b[15]);
}

/* ---- handles ---- */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	unsigned there;
	nvmlReturn_t result = nvml_devices(&there);

	if (result)
		return result;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = there;
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	unsigned count;
	nvmlReturn_t result = nvml_devices(&count);

	if (result)
		return result;
	if (!device || index >= count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = &nvml.devices[index];
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* The first device that matches. */
static nvmlReturn_t device_find(bool (*matches)(const struct nvmlDevice_st *device,
						const void *wanted),
				const void *wanted, nvmlDevice_t *device)
{
	nvmlReturn_t result = NVML_ERROR_NOT_FOUND;

	pthread_mutex_lock(&nvml.lock);
	if (!nvml.users)
		result = NVML_ERROR_UNINITIALIZED;
	else if (!wanted || !device)
		result = NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; result == NVML_ERROR_NOT_FOUND && i < nvml.count; i++) {
		if (matches(&nvml.devices[i], wanted)) {
			*device = &nvml.devices[i];
			result = NVML_SUCCESS;
		}
	}
	pthread_mutex_unlock(&nvml.lock);
	return result;
}

static bool matches_text(const struct nvmlDevice_st *device, const void *wanted)
{
	char text[41];

	nvml_uuid_format(device->uuid, text);
	/* With "GPU-" or as CUDA has it, without: cuda.core asks so. */
	return strcasecmp(text, wanted) == 0 || strcasecmp(text + 4, wanted) == 0;
}

static bool matches_uuid(const struct nvmlDevice_st *device, const void *wanted)
{
	return memcmp(device->uuid, wanted, sizeof(device->uuid)) == 0;
}

static bool matches_address(const struct nvmlDevice_st *device, const void *wanted)
{
	const unsigned *address = wanted;

	return device->domain == address[0] && device->bus == address[1] &&
	       device->slot == address[2] && !address[3];
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	return device_find(matches_text, uuid, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
	char text[sizeof(uuid->value.text) + 1] = "";

	if (uuid && uuid->type == NVML_UUID_TYPE_BINARY)
		return device_find(matches_uuid, uuid->value.bytes, device);
	if (!uuid || uuid->type != NVML_UUID_TYPE_ASCII)
		return device_find(matches_text, NULL, device);
	memcpy(text, uuid->value.text, sizeof(uuid->value.text));
	return device_find(matches_text, text, device);
}

/* domain:bus:device.function, without domain or function if they are 0. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	unsigned address[4] = { 0 };

	if (!id || sscanf(id, "%x:%x:%x.%x", &address[0], &address[1], &address[2], &address[3]) >= 3)
		return device_find(matches_address, id ? address : NULL, device);
	address[0] = address[3] = 0;
	if (sscanf(id, "%x:%x.%x", &address[1], &address[2], &address[3]) >= 2)
		return device_find(matches_address, address, device);
	return device_find(matches_address, NULL, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	const struct nvml_question question = { .query = QUERY_nvmlDeviceGetSerial };
	unsigned count;
	nvmlReturn_t result = nvml_devices(&count);
	struct nvml_answer answer;

	if (result)
		return result;
	if (!serial || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < count; i++) {
		result = nvml_ask(&nvml.devices[i], &question, &answer);
		if (result == NVML_ERROR_GPU_IS_LOST || result == NVML_ERROR_TIMEOUT)
			return result;
		if (!result && answer.tail_bytes == strlen(serial) &&
		    memcmp(answer.tail, serial, answer.tail_bytes) == 0) {
			*device = &nvml.devices[i];
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

/* ---- what a device is ---- */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned int length)
{
	struct nvmlDevice_st device;
	nvmlReturn_t result = nvml_device(handle, &device);

	return result ? result : nvml_give_text(name, length, device.name, strlen(device.name));
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length)
{
	struct nvmlDevice_st device;
	nvmlReturn_t result = nvml_device(handle, &device);
	char text[41];

	if (result)
		return result;
	nvml_uuid_format(device.uuid, text);
	return nvml_give_text(uuid, length, text, strlen(text));
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned int *index)
{
	struct nvmlDevice_st device;
	nvmlReturn_t result = nvml_device(handle, &device);

	if (result)
		return result;
	if (!index)
		return NVML_ERROR_INVALID_ARGUMENT;
	*index = (unsigned)(handle - nvml.devices);
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major,
							    int *minor)
{
	struct nvmlDevice_st device;
	nvmlReturn_t result = nvml_device(handle, &device);

	if (result)
		return result;
	if (!major || !minor)
		return NVML_ERROR_INVALID_ARGUMENT;
	*major = device.capability[0];
	*minor = device.capability[1];
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *info)
{
	struct nvmlDevice_st device;
	nvmlReturn_t result = nvml_device(handle, &device);

	if (result)
		return result;
	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	*info = (nvmlPciInfo_t){
		.domain = device.domain,
		.bus = device.bus,
		.device = device.slot,
		.pciDeviceId = device.pci_device,
		.pciSubSystemId = device.pci_subsystem,
	};
	snprintf(info->busIdLegacy, sizeof(info->busIdLegacy), "%04X:%02X:%02X.0",
		 device.domain & 0xffff, device.bus & 0xff, device.slot & 0xff);
	snprintf(info->busId, sizeof(info->busId), "%08X:%02X:%02X.0", device.domain, device.bus,
		 device.slot);
	return NVML_SUCCESS;
}

/* Its structure is shorter: see nvml_abi.h. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, void *info)
{
	nvmlPciInfo_t whole;
	nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(handle, info ? &whole : NULL);

	if (!result)
		memcpy(info, &whole, NVML_PCI_INFO_V2_BYTES);
	return result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t handle, void *info)
{
	return nvmlDeviceGetPciInfo_v2(handle, info);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t handle, nvmlPciInfoExt_t *info)
{
	nvmlPciInfo_t plain;
	nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(handle, info ? &plain : NULL);

	if (result)
		return result;
	if (info->version != NVML_VERSION_OF(nvmlPciInfoExt_t, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	*info = (nvmlPciInfoExt_t){
		.version = info->version,
		.domain = plain.domain,
		.bus = plain.bus,
		.device = plain.device,
		.pciDeviceId = plain.pciDeviceId,
		.pciSubSystemId = plain.pciSubSystemId,
		.baseClass = NVML_PCI_CLASS_DISPLAY,
		.subClass = NVML_PCI_SUBCLASS_3D,
	};
	memcpy(info->busId, plain.busId, sizeof(info->busId));
	return NVML_SUCCESS;
}

/* Is it a device, and is there a place for what is asked of it? */
static nvmlReturn_t device_gives(nvmlDevice_t handle, const void *out)
{
	struct nvmlDevice_st device;
	nvmlReturn_t result = nvml_device(handle, &device);

	return result || out ? result : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t give_number(nvmlDevice_t handle, unsigned *out, unsigned number)
{
	nvmlReturn_t result = device_gives(handle, out);

	if (result)
		return result;
	*out = number;
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is)
{
	return give_number(device, is, 0);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	return give_number(device, count, 0);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned int *mode)
{
	return give_number(device, mode, NVML_GPU_VIRTUALIZATION_MODE_NONE);
}

/* Fabrics between machines are not a program's: in all that is zero, the state says that there is none
 * (NVML_GPU_FABRIC_STATE_NOT_SUPPORTED).  PyTorch shares no memory with whoever does not answer.  A later version of
 * the structure has more members behind those of the one before. */
#define FABRIC_BYTES 28u		/* of nvmlGpuFabricInfo_t */
#define FABRIC_LEAST_BYTES 36u		/* of nvmlGpuFabricInfo_v2_t, version included */
#define FABRIC_MOST_BYTES 256u

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t handle, void *info)
{
	nvmlReturn_t result = device_gives(handle, info);

	if (result)
		return result;
	memset(info, 0, FABRIC_BYTES);
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t handle, unsigned int *info)
{
	nvmlReturn_t result = device_gives(handle, info);

	if (result)
		return result;
	if (NVML_VERSION_BYTES(*info) < FABRIC_LEAST_BYTES || NVML_VERSION_BYTES(*info) > FABRIC_MOST_BYTES)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memset(info + 1, 0, NVML_VERSION_BYTES(*info) - sizeof(*info));
	return NVML_SUCCESS;
}

/* ---- several devices ---- */

static nvmlReturn_t give_pair_number(nvmlDevice_t first, nvmlDevice_t second, unsigned *out,
				     unsigned number)
{
	struct nvmlDevice_st device;
	nvmlReturn_t result = nvml_device(first, &device);

	return result ? result : give_number(second, out, number);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t first, nvmlDevice_t second,
					       unsigned int *same)
{
	return give_pair_number(first, second, same, first == second);
}

/* What their server's NVML says of two devices; of those of two servers: `apart`. */
static nvmlReturn_t ask_pair(nvmlDevice_t first, nvmlDevice_t second, enum nvml_query query, unsigned argument,
			     unsigned *out, unsigned apart)
{
	struct nvml_question question = { .query = query, .arguments = { 0, argument } };
	struct nvmlDevice_st device, other;
	struct nvml_answer answer;
	nvmlReturn_t result = nvml_device(second, &device);

	if (result)
		return result;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	result = nvml_device(first, &other);
	if (result)
		return result;
	if (other.server != device.server) {
		*out = apart;
		return NVML_SUCCESS;
	}
	question.arguments[0] = device.ordinal;
	result = nvml_ask(first, &question, &answer);
	if (!result)
		*out = (unsigned)answer.values[0];
	return result;
}

/* Nothing is nearer than the network. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first,
							     nvmlDevice_t second,
							     unsigned int *level)
{
	return ask_pair(first, second, QUERY_nvmlDeviceGetTopologyCommonAncestor, 0, level, TOPOLOGY_SYSTEM);
}

/* Who asks is NCCL, whose processes then give each other descriptors of the devices' memory, which a server that does not
 * know this question does not make; nor has one without NVML an answer. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second,
						unsigned int capability, unsigned int *status)
{
	nvmlReturn_t result = ask_pair(first, second, QUERY_nvmlDeviceGetP2PStatus, capability, status,
				       NVML_P2P_STATUS_NOT_SUPPORTED);

	if (result != NVML_ERROR_FUNCTION_NOT_FOUND && result != NVML_ERROR_NOT_SUPPORTED &&
	    result != NVML_ERROR_LIBRARY_NOT_FOUND)
		return result;
	*status = NVML_P2P_STATUS_NOT_SUPPORTED;
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned int level,
							  unsigned int *count, nvmlDevice_t *found)
{
	unsigned devices, room, there = 0;
	nvmlReturn_t result = nvml_devices(&devices);

	if (result)
		return result;
	if (!count || (*count && !found))
		return NVML_ERROR_INVALID_ARGUMENT;
	room = *count;
	for (unsigned i = 0; i < devices; i++) {
		unsigned common;

		if (&nvml.devices[i] == device)
			continue;
		result = nvmlDeviceGetTopologyCommonAncestor(device, &nvml.devices[i], &common);
		if (result)
			return result;
		if (common != level)
			continue;
		if (there < room)
			found[there] = &nvml.devices[i];
		there++;
	}
	*count = there;
	return there <= room || !room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}
