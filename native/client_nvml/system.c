/* What NVML tells of itself and of the node. */
#include "nvml.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

nvmlReturn_t nvml_give_text(char *out, unsigned room, const char *text, size_t bytes)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (bytes >= room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, text, bytes);
	out[bytes] = 0;
	return NVML_SUCCESS;
}

static nvmlReturn_t give_version(char *out, unsigned room, const char *version)
{
	char text[NVML_VERSION_TEXT_BYTES] = "";
	nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;

	pthread_mutex_lock(&nvml.lock);
	if (nvml.users) {
		memcpy(text, version, sizeof(text));
		result = NVML_SUCCESS;
	}
	pthread_mutex_unlock(&nvml.lock);
	if (result)
		return result;
	/* A server without NVML. */
	if (!text[0])
		return NVML_ERROR_NOT_SUPPORTED;
	return nvml_give_text(out, room, text, strlen(text));
}

NVML_EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
	return nvml_return_text(result);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	return give_version(version, length, nvml.driver_version);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	return give_version(version, length, nvml.library_version);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;

	pthread_mutex_lock(&nvml.lock);
	if (nvml.users && !version)
		result = NVML_ERROR_INVALID_ARGUMENT;
	if (nvml.users && version) {
		*version = nvml.cuda_version;
		result = NVML_SUCCESS;
	}
	pthread_mutex_unlock(&nvml.lock);
	return result;
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* The processes of the lease are the program's own and its like: of this machine. */
NVML_EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	nvmlReturn_t result = nvml_up();
	char path[40];
	ssize_t got;
	int descriptor;

	if (result)
		return result;
	if (!name || !length)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	descriptor = open(path, O_RDONLY | O_CLOEXEC);
	if (descriptor < 0)
		return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_NOT_FOUND;
	/* Up to the first NUL, which ends the program's own name. */
	got = read(descriptor, name, length - 1);
	close(descriptor);
	if (got < 0)
		return NVML_ERROR_UNKNOWN;
	name[got] = 0;
	return NVML_SUCCESS;
}

static nvmlReturn_t give_none(unsigned *count)
{
	nvmlReturn_t result = nvml_up();

	if (result)
		return result;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned int *count)
{
	return give_none(count);
}

NVML_EXPORT nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int *count)
{
	return give_none(count);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetHicVersion(unsigned int *count, void *entries)
{
	(void)entries;
	return give_none(count);
}
