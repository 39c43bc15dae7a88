/*
 * fake_nvml.c - an NVML that answers with its arguments, to see them arrive.
 *
 * Built as libnvidia-ml.so.1 beside a software GPU, whose devices it takes for its own.  It
 * does not tell what memory each process has, as some drivers don't.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../../native/nvml/nvml_abi.h"

struct nvmlDevice_st {
	unsigned number;
};

static struct nvmlDevice_st devices[8];
static unsigned known;

NVML_EXPORT int nvmlInit_v2(void)
{
	return 0;
}

/* The server asks for its devices in their order. */
NVML_EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	if (strncmp(uuid, "GPU-", 4) || strlen(uuid) != 40 || known == 8)
		return NVML_ERROR_NOT_FOUND;
	devices[known].number = known;
	*device = &devices[known++];
	return 0;
}

static int give(char *text, unsigned length, const char *what, unsigned number)
{
	return (unsigned)snprintf(text, length, "%s %u", what, number) < length
		       ? 0 : NVML_ERROR_INSUFFICIENT_SIZE;
}

NVML_EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned length)
{
	return give(text, length, "driver", 1);
}

NVML_EXPORT int nvmlSystemGetNVMLVersion(char *text, unsigned length)
{
	return give(text, length, "library", 2);
}

NVML_EXPORT int nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
	*info = (nvmlPciInfo_t){ .pciDeviceId = 0x233010de, .pciSubSystemId = 100 + device->number };
	return 0;
}

NVML_EXPORT int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	(void)device;
	*memory = (nvmlMemory_t){ .total = 80ull << 20, .free = 50ull << 20, .used = 30ull << 20 };
	return 0;
}

/* The server itself, whose client is asking, and somebody else. */
NVML_EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
							nvmlProcessInfo_t *infos)
{
	(void)device;
	infos[0] = (nvmlProcessInfo_t){ 1, 5, ~0u, ~0u };
	infos[1] = (nvmlProcessInfo_t){ (unsigned)getpid(), ~0ull, ~0u, ~0u };
	*count = 2;
	return 0;
}

NVML_EXPORT int nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	if (count != 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	values->timestamp = 7;
	values->latencyUsec = 8;
	values->valueType = 3;		/* unsigned long long */
	values->value = values->fieldId * 1000 + values->scopeId * 10 + device->number;
	values->nvmlReturn = 0;
	return 0;
}

NVML_EXPORT int nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *out)
{
	*out = 100 + device->number;
	return 0;
}

NVML_EXPORT int nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned a, unsigned *out)
{
	*out = 100 * a + device->number;
	return 0;
}

NVML_EXPORT int nvmlDeviceGetClock(nvmlDevice_t device, unsigned a, unsigned b, unsigned *out)
{
	*out = 100 * a + 10 * b + device->number;
	return 0;
}

NVML_EXPORT int nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *first, unsigned *second)
{
	*first = 10 + device->number;
	*second = 20 + device->number;
	return 0;
}

NVML_EXPORT int nvmlDeviceGetGpuOperationMode(nvmlDevice_t device, unsigned *first, unsigned *second)
{
	return nvmlDeviceGetEccMode(device, first, second);
}

NVML_EXPORT int nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *a, unsigned *b, unsigned *c,
					  unsigned *d)
{
	*a = 10 + device->number;
	*b = 20;
	*c = 30;
	*d = 40;
	return 0;
}

NVML_EXPORT int nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *out)
{
	*out = (1ull << 40) + device->number;
	return 0;
}

NVML_EXPORT int nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned a, unsigned b,
					    unsigned long long *out)
{
	*out = (1ull << 40) + 100 * a + 10 * b + device->number;
	return 0;
}

NVML_EXPORT int nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned a, unsigned b, unsigned c,
						unsigned long long *out)
{
	*out = 1000 * a + 100 * b + 10 * c + device->number;
	return 0;
}

NVML_EXPORT int nvmlDeviceGetSerial(nvmlDevice_t device, char *text, unsigned length)
{
	return give(text, length, "serial", device->number);
}

NVML_EXPORT int nvmlDeviceGetInforomVersion(nvmlDevice_t device, unsigned a, char *text, unsigned length)
{
	return give(text, length, "object", 10 * a + device->number);
}

NVML_EXPORT int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
	*rates = (nvmlUtilization_t){ .gpu = 10 + device->number, .memory = 20 };
	return 0;
}

NVML_EXPORT int nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned a, unsigned long long out[2])
{
	out[0] = 10 * a + device->number;
	out[1] = 1ull << 40;
	return 0;
}

NVML_EXPORT int nvmlDeviceGetTemperatureV(nvmlDevice_t device, unsigned structure[3])
{
	if (structure[0] != (12 | 1u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	structure[2] = 100 * structure[1] + 50 + device->number;
	return 0;
}

NVML_EXPORT int nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count, unsigned *out)
{
	if (*count < 3)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < 3; i++)
		out[i] = 10 * i + device->number;
	*count = 3;
	return 0;
}

NVML_EXPORT int nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned a, unsigned *count,
						     unsigned *out)
{
	out[0] = 10 * a + device->number;
	*count = 1;
	return 0;
}

NVML_EXPORT int nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, unsigned *out)
{
	*out = 10 * first->number + second->number;
	return 0;
}
