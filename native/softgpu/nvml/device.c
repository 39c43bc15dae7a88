#define _GNU_SOURCE
#include "device.h"

#include "../driver/board.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define CUDA_DRIVER_VERSION 13000
/* 580: the branch of CUDA 13.0.  Numbers alone, as programs compare them. */
#define DRIVER_VERSION_TEXT "580.0.0"
#define NVML_VERSION_TEXT "13.580.0.0"
#define COMPUTE_MODE_DEFAULT 0

/* Every software GPU of the node, whether this process uses it or not; NVML
 * takes no notice of CUDA_VISIBLE_DEVICES. */
struct nvmlDevice_st {
	unsigned index;
	struct board_identity identity;
};

static struct {
	pthread_mutex_t lock;
	unsigned users;			/* nvmlInit without nvmlShutdown */
	struct board_options options;
	struct nvmlDevice_st devices[BOARD_COUNT_MAX];
} nvml = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- library ---- */

static nvmlReturn_t initialise(void)
{
	struct board_diagnostic why;
	nvmlReturn_t result = NVML_SUCCESS;

	pthread_mutex_lock(&nvml.lock);
	if (!nvml.users && board_options_read(&nvml.options, &why)) {
		fprintf(stderr, "softgpu: %s\n", why.text);
		result = NVML_ERROR_UNKNOWN;
	}
	if (!result && !nvml.users++) {
		board_sweep_node();
		for (unsigned i = 0; i < nvml.options.count; i++) {
			nvml.devices[i].index = i;
			board_identity_of(i, &nvml.devices[i].identity);
		}
	}
	pthread_mutex_unlock(&nvml.lock);
	return result;
}

NVML_EXPORT nvmlReturn_t nvmlInit(void)
{
	return initialise();
}

NVML_EXPORT nvmlReturn_t nvmlInit_v2(void)
{
	return initialise();
}

NVML_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;	/* whether to fail without GPUs, and whether to attach them */
	return initialise();
}

NVML_EXPORT nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t result = NVML_SUCCESS;

	pthread_mutex_lock(&nvml.lock);
	if (nvml.users)
		nvml.users--;
	else
		result = NVML_ERROR_UNINITIALIZED;
	pthread_mutex_unlock(&nvml.lock);
	return result;
}

NVML_EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
	return nvml_return_text(result);
}

nvmlReturn_t nvml_device_ready(void)
{
	nvmlReturn_t result;

	pthread_mutex_lock(&nvml.lock);
	result = nvml.users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
	pthread_mutex_unlock(&nvml.lock);
	return result;
}

/* ---- system ---- */

static nvmlReturn_t give_text(char *out, unsigned length, const char *text)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	nvmlReturn_t result = nvml_device_ready();

	return result ? result : give_text(version, length, DRIVER_VERSION_TEXT);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	return give_text(version, length, NVML_VERSION_TEXT);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = CUDA_DRIVER_VERSION;
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	return nvmlSystemGetCudaDriverVersion(version);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name,
						  unsigned int length)
{
	nvmlReturn_t result = nvml_device_ready();
	char path[40];
	ssize_t got;
	int fd;

	if (result)
		return result;
	if (!name || !length)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NVML_ERROR_NOT_FOUND;
	/* Up to the first NUL, which ends the program's own name. */
	got = read(fd, name, length - 1);
	close(fd);
	if (got < 0)
		return NVML_ERROR_UNKNOWN;
	name[got] = '\0';
	return NVML_SUCCESS;
}

/* ---- devices ---- */

static nvmlReturn_t check_device(nvmlDevice_t device)
{
	nvmlReturn_t result = nvml_device_ready();

	if (result)
		return result;
	for (unsigned i = 0; i < nvml.options.count; i++) {
		if (device == &nvml.devices[i])
			return NVML_SUCCESS;
	}
	return NVML_ERROR_INVALID_ARGUMENT;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	nvmlReturn_t result = nvml_device_ready();

	if (result)
		return result;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = nvml.options.count;
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	nvmlReturn_t result = nvml_device_ready();

	if (result)
		return result;
	if (!device || index >= nvml.options.count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = &nvml.devices[index];
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	nvmlReturn_t result = nvml_device_ready();
	char text[41];

	if (result)
		return result;
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < nvml.options.count; i++) {
		board_uuid_format(nvml.devices[i].identity.uuid, text);
		/* With "GPU-" or as CUDA has it, without: cuda.core asks so. */
		if (!strcasecmp(text, uuid) || !strcasecmp(text + 4, uuid)) {
			*device = &nvml.devices[i];
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	unsigned domain, bus, slot, function = 0;
	nvmlReturn_t result = nvml_device_ready();

	if (result)
		return result;
	if (!id || !device || sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < nvml.options.count; i++) {
		const struct board_identity *identity = &nvml.devices[i].identity;

		if (identity->pci_domain == domain && identity->pci_bus == bus &&
		    identity->pci_device == slot && !function) {
			*device = &nvml.devices[i];
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	nvmlReturn_t result = check_device(device);

	return result ? result : give_text(name, length, device->identity.name);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	nvmlReturn_t result = check_device(device);
	char text[41];

	if (result)
		return result;
	board_uuid_format(device->identity.uuid, text);
	return give_text(uuid, length, text);
}

static nvmlReturn_t give_index(nvmlDevice_t device, unsigned *index)
{
	nvmlReturn_t result = check_device(device);

	if (result)
		return result;
	if (!index)
		return NVML_ERROR_INVALID_ARGUMENT;
	*index = device->index;
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	return give_index(device, index);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
	return give_index(device, minor);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
	nvmlReturn_t result = check_device(device);
	const struct board_identity *identity;

	if (result)
		return result;
	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	identity = &device->identity;
	*info = (nvmlPciInfo_t){
		.domain = identity->pci_domain, .bus = identity->pci_bus,
		.device = identity->pci_device,
	};
	snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0",
		 identity->pci_domain & 0xffff, identity->pci_bus & 0xff,
		 identity->pci_device & 0xff);
	snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", identity->pci_domain,
		 identity->pci_bus, identity->pci_device);
	return NVML_SUCCESS;
}

/* Its structure is shorter: see nvml_abi.h. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, void *info)
{
	nvmlPciInfo_t whole;
	nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, info ? &whole : NULL);

	if (!result)
		memcpy(info, &whole, NVML_PCI_INFO_V2_BYTES);
	return result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, void *info)
{
	return nvmlDeviceGetPciInfo_v2(device, info);
}

/* ---- what is going on on a device ---- */

/* The model in force: that of the users there are, else the configured one. */
static struct board_model model_of(struct board *board)
{
	return board ? *board_model(board) : nvml.options.model;
}

/* The board of a device, or NULL when nobody uses it. */
static struct board *look_at(nvmlDevice_t device)
{
	struct board *board;

	return board_peek(&board, device->index) ? NULL : board;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major,
							    int *minor)
{
	nvmlReturn_t result = check_device(device);
	struct board *board;
	struct board_model model;

	if (result)
		return result;
	if (!major || !minor)
		return NVML_ERROR_INVALID_ARGUMENT;
	board = look_at(device);
	model = model_of(board);
	board_close(board);
	*major = (int)(model.sm / 10);
	*minor = (int)(model.sm % 10);
	return NVML_SUCCESS;
}

/* NVML_DEVICE_ARCH_* of nvml.h. */
static unsigned architecture_of(unsigned sm)
{
	static const struct {
		unsigned sm, architecture;
	} first[] = { { 130, UINT_MAX }, { 100, 10 }, { 90, 9 }, { 89, 8 }, { 80, 7 } };

	for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++)
		if (sm >= first[i].sm)
			return first[i].architecture;
	return 6;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture)
{
	nvmlReturn_t result = check_device(device);
	struct board *board;

	if (result)
		return result;
	if (!architecture)
		return NVML_ERROR_INVALID_ARGUMENT;
	board = look_at(device);
	*architecture = architecture_of(model_of(board).sm);
	board_close(board);
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	nvmlReturn_t result = check_device(device);
	struct board *board;
	uint64_t total, used;

	if (result)
		return result;
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	board = look_at(device);
	total = model_of(board).memory_bytes;
	used = board ? board_memory_used(board) : 0;
	board_close(board);
	*memory = (nvmlMemory_t){ total, used < total ? total - used : 0, used };
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	nvmlMemory_t plain;
	nvmlReturn_t result;

	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (memory->version != NVML_MEMORY_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	result = nvmlDeviceGetMemoryInfo(device, &plain);
	if (result)
		return result;
	*memory = (nvmlMemory_v2_t){ NVML_MEMORY_V2, plain.total, 0, plain.free, plain.used };
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device,
						       nvmlUtilization_t *rates)
{
	nvmlReturn_t result = check_device(device);
	struct board *board;

	if (result)
		return result;
	if (!rates)
		return NVML_ERROR_INVALID_ARGUMENT;
	board = look_at(device);
	/* Kernels are not told apart by what they do, so memory is not measured. */
	*rates = (nvmlUtilization_t){ .gpu = board ? board_utilization(board) : 0 };
	board_close(board);
	return NVML_SUCCESS;
}

/* NVML's protocol for lists: *count is the room and becomes the length; too
 * little room is an error that says how much there must be. */
static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned *count,
				   struct board_process list[BOARD_USER_MAX], bool has_room)
{
	nvmlReturn_t result = check_device(device);
	unsigned room;
	struct board *board;

	if (result)
		return result;
	if (!count || (*count && !has_room))
		return NVML_ERROR_INVALID_ARGUMENT;
	room = *count;
	board = look_at(device);
	*count = board ? (unsigned)board_processes(board, list, BOARD_USER_MAX) : 0;
	board_close(board);
	return *count <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
								 unsigned int *count,
								 nvmlProcessInfo_t *infos)
{
	struct board_process list[BOARD_USER_MAX];
	nvmlReturn_t result = list_processes(device, count, list, infos != NULL);

	for (unsigned i = 0; !result && i < *count; i++)
		infos[i] = (nvmlProcessInfo_t){ (unsigned)list[i].pid, list[i].used_bytes, ~0u, ~0u };
	return result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device,
								 unsigned int *count,
								 nvmlProcessInfo_t *infos)
{
	return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device,
							      unsigned int *count,
							      nvmlProcessInfo_v1_t *infos)
{
	struct board_process list[BOARD_USER_MAX];
	nvmlReturn_t result = list_processes(device, count, list, infos != NULL);

	for (unsigned i = 0; !result && i < *count; i++)
		infos[i] = (nvmlProcessInfo_v1_t){ (unsigned)list[i].pid, list[i].used_bytes };
	return result;
}

/* A software GPU draws no pictures. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device,
								  unsigned int *count,
								  nvmlProcessInfo_t *infos)
{
	nvmlReturn_t result = check_device(device);

	(void)infos;
	if (result)
		return result;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device,
								  unsigned int *count,
								  nvmlProcessInfo_t *infos)
{
	return nvmlDeviceGetGraphicsRunningProcesses_v3(device, count, infos);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode)
{
	nvmlReturn_t result = check_device(device);

	if (result)
		return result;
	if (!mode)
		return NVML_ERROR_INVALID_ARGUMENT;
	*mode = COMPUTE_MODE_DEFAULT;
	return NVML_SUCCESS;
}

/* Kernels reach every other device of the process by its memory, and there are no links. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second,
						unsigned int capability, unsigned int *status)
{
	nvmlReturn_t result = check_device(first);

	if (!result)
		result = check_device(second);
	if (result)
		return result;
	if (!status || capability >= NVML_P2P_CAPS_INDEX_UNKNOWN)
		return NVML_ERROR_INVALID_ARGUMENT;
	*status = capability == NVML_P2P_CAPS_INDEX_NVLINK ? NVML_P2P_STATUS_NOT_SUPPORTED :
							      NVML_P2P_STATUS_OK;
	return NVML_SUCCESS;
}
