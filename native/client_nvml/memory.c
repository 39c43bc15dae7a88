/* Memory and processes of the lease, and the fields that NVML numbers. */
#include "nvml.h"

#include <string.h>

/* ---- memory ---- */

/* The whole is what the lease may use, as the CUDA driver tells it; the rest is now. */
static nvmlReturn_t memory_read(nvmlDevice_t handle, nvmlMemory_t *memory)
{
	const struct nvml_question question = { .query = QUERY_nvmlDeviceGetMemoryInfo_v2 };
	struct nvmlDevice_st device;
	struct nvml_answer answer;
	nvmlReturn_t result = nvml_device(handle, &device);
	uint64_t total, free, used;

	if (!result)
		result = nvml_ask(handle, &question, &answer);
	if (result)
		return result;
	total = device.total_bytes;
	used = answer.values[2] < total ? answer.values[2] : total;
	/* Others may use the device too, and the lease less than is free of its share. */
	free = answer.values[1] < total - used ? answer.values[1] : total - used;
	*memory = (nvmlMemory_t){ .total = total, .free = free, .used = used };
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	nvmlReturn_t result = nvml_up();

	if (result)
		return result;
	return memory ? memory_read(device, memory) : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	nvmlReturn_t result = nvml_up();
	nvmlMemory_t plain;

	if (result)
		return result;
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (memory->version != NVML_MEMORY_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	result = memory_read(device, &plain);
	if (result)
		return result;
	*memory = (nvmlMemory_v2_t){
		.version = NVML_MEMORY_V2,
		.total = plain.total,
		/* What neither the lease nor anybody can have is the driver's. */
		.reserved = plain.total - plain.used - plain.free,
		.free = plain.free,
		.used = plain.used,
	};
	return NVML_SUCCESS;
}

/* ---- processes ---- */

/* Each with its first `bytes`. */
static nvmlReturn_t give_processes(nvmlDevice_t device, unsigned *count, void *out, size_t bytes)
{
	const struct nvml_question question = {
		.query = QUERY_nvmlDeviceGetComputeRunningProcesses_v3,
	};

	return nvml_ask_list(device, &question, count, out, sizeof(nvmlProcessInfo_t), bytes);
}

_Static_assert(offsetof(nvmlProcessInfo_t, gpuInstanceId) == sizeof(nvmlProcessInfo_v1_t),
	       "version 1 is the beginning of what came later");

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device,
							      unsigned int *count,
							      nvmlProcessInfo_v1_t *infos)
{
	return give_processes(device, count, infos, sizeof(*infos));
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device,
								 unsigned int *count,
								 nvmlProcessInfo_t *infos)
{
	return give_processes(device, count, infos, sizeof(*infos));
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
								 unsigned int *count,
								 nvmlProcessInfo_t *infos)
{
	return give_processes(device, count, infos, sizeof(*infos));
}

/* Remote GPUs compute only. */
static nvmlReturn_t give_no_processes(nvmlDevice_t handle, unsigned *count)
{
	struct nvmlDevice_st device;
	nvmlReturn_t result = nvml_device(handle, &device);

	if (result)
		return result;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

#define NO_PROCESSES(name) \
	NVML_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *infos); \
	NVML_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *infos) \
	{ \
		(void)infos; \
		return give_no_processes(device, count); \
	}

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

/* ---- fields ---- */

/* The numbers (NVML_FI_DEV_...) that are passed on: ECC and retired pages, what slowed it
 * down, memory's temperature and energy, PCI Express, remapped rows, power and temperature
 * limits, reasons for clocks.  Not: NVLink, MIG, resets. */
static const struct {
	unsigned first, last;
} fields_passed[] = {
	{ 1, 31 }, { 74, 83 }, { 92, 95 }, { 142, 145 }, { 169, 169 }, { 173, 183 }, { 185, 198 },
	{ 269, 271 },
};

static bool field_passed(unsigned field)
{
	for (size_t i = 0; i < sizeof(fields_passed) / sizeof(fields_passed[0]); i++)
		if (field >= fields_passed[i].first && field <= fields_passed[i].last)
			return true;
	return false;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count,
						  nvmlFieldValue_t *values)
{
	struct nvmlDevice_st device;
	nvmlReturn_t result = nvml_device(handle, &device);

	if (result)
		return result;
	if (count <= 0 || !values)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < count; i++) {
		const struct nvml_question question = {
			.query = QUERY_nvmlDeviceGetFieldValues,
			.arguments = { values[i].fieldId, values[i].scopeId },
		};
		struct nvml_answer answer = { .tail_bytes = 0 };

		result = field_passed(values[i].fieldId) ? nvml_ask(handle, &question, &answer)
							 : NVML_ERROR_NOT_SUPPORTED;
		if (result == NVML_ERROR_GPU_IS_LOST || result == NVML_ERROR_TIMEOUT)
			return result;
		values[i].timestamp = (long long)answer.values[0];
		values[i].latencyUsec = (long long)answer.values[1];
		values[i].valueType = (unsigned)answer.values[2];
		values[i].value = answer.values[3];
		values[i].nvmlReturn = result;
	}
	return NVML_SUCCESS;
}
