#define _GNU_SOURCE
#include "virtual_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMORY_NAME "farbus-softgpu-"
#define HOST_NAME "host"
#define MEMORY_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

int driver_virtual_file(const struct board_identity *identity, size_t size)
{
	char uuid[41] = "GPU-" HOST_NAME;

	if (identity)
		board_uuid_format(identity->uuid, uuid);
	return driver_virtual_file_of(uuid + 4, size);
}

int driver_virtual_file_of(const char *owner, size_t size)
{
	char name[64];
	int fd;

	snprintf(name, sizeof name, MEMORY_NAME "%s", owner);
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd >= 0 && (ftruncate(fd, (off_t)size) || fcntl(fd, F_ADD_SEALS, MEMORY_SEALS))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* What a file of ours is called behind MEMORY_NAME; false for any other file. */
static bool memory_name_of(int fd, char owner[96])
{
	static const char before[] = "/memfd:" MEMORY_NAME, behind[] = " (deleted)";
	char path[40], name[96];
	ssize_t length;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || (seals & MEMORY_SEALS) != MEMORY_SEALS)
		return false;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	length = readlink(path, name, sizeof name - 1) - (ssize_t)strlen(behind);
	if (length < (ssize_t)strlen(before) || strncmp(name, before, strlen(before)) ||
	    strncmp(name + length, behind, strlen(behind)))
		return false;
	name[length] = '\0';
	strcpy(owner, name + strlen(before));
	return true;
}

static struct driver_device *device_named(const char *owner)
{
	char uuid[41];

	for (int i = 0; i < driver_device_count(); i++) {
		board_uuid_format(driver_device_at(i)->identity->uuid, uuid);
		if (!strcmp(owner, uuid + 4))
			return driver_device_at(i);
	}
	return NULL;
}

bool driver_virtual_is_team(int fd)
{
	char owner[96];

	return memory_name_of(fd, owner) && !strcmp(owner, DRIVER_VIRTUAL_TEAM);
}

bool driver_virtual_is_memory(int fd)
{
	char owner[96];

	return memory_name_of(fd, owner) && strcmp(owner, DRIVER_VIRTUAL_TEAM) != 0;
}

struct driver_device *driver_virtual_device_of(int fd)
{
	char owner[96];

	return memory_name_of(fd, owner) ? device_named(owner) : NULL;
}

bool driver_virtual_owner_of(int fd, struct driver_device **device, CUmemLocation *location)
{
	char owner[96];

	if (!memory_name_of(fd, owner))
		return false;
	*device = device_named(owner);
	*location = (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_HOST_NUMA };
	if (*device)
		*location = (CUmemLocation){ CU_MEM_LOCATION_TYPE_DEVICE, (*device)->ordinal };
	return *device || !strcmp(owner, HOST_NAME);
}
