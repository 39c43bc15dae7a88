/* Which file a program's memory is, where it is one in memory that others may have, too (shm_open, memfd_create): what
 * it registers of that, the server can have as well. */
#include "shared_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "../../transport/rings/memory.h"

struct mapping {
	uint64_t low;
	uint64_t high;
	uint64_t offset;	/* of its first byte in the file */
	dev_t device;
	ino_t inode;
	char path[512];		/* as proc_pid_maps(5) has it */
};

/* The mapping that holds all of it, and is shared, readable and writable. */
static bool mapping_find(uint64_t low, uint64_t high, struct mapping *mapping)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[1024], rights[8];
	unsigned major, minor;
	bool found = false;
	int path;

	while (maps && !found && fgets(line, sizeof(line), maps)) {
		unsigned long inode;

		if (sscanf(line, "%lx-%lx %7s %lx %x:%x %lu %n", &mapping->low, &mapping->high, rights, &mapping->offset,
			   &major, &minor, &inode, &path) < 7)
			continue;
		if (mapping->low > low)
			break;
		if (mapping->high < high)
			continue;
		if (strncmp(rights, "rw", 2) || rights[3] != 's' || !inode)
			break;
		mapping->device = makedev(major, minor);
		mapping->inode = inode;
		line[strcspn(line, "\n")] = 0;
		snprintf(mapping->path, sizeof(mapping->path), "%s", line + path);
		found = true;
	}
	if (maps)
		fclose(maps);
	return found;
}

/* A description of its own of what is at a path, if that is the mapping's file; or -1. */
static int file_open(const char *path, const struct mapping *mapping)
{
	int descriptor = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat status;

	if (descriptor >= 0 && fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
	    status.st_dev == mapping->device && status.st_ino == mapping->inode)
		return descriptor;
	if (descriptor >= 0)
		close(descriptor);
	return -1;
}

/* By its name; by a descriptor of this process's, where it has none any more; by the mapping itself, which is for the
 * privileged (proc_pid_map_files(5)). */
static int mapping_open(const struct mapping *mapping)
{
	char path[300];
	int descriptor = -1;
	struct dirent *entry;
	struct stat status;
	DIR *own;

	if (mapping->path[0] == '/')
		descriptor = file_open(mapping->path, mapping);
	own = descriptor < 0 ? opendir("/proc/self/fd") : NULL;
	while (own && descriptor < 0 && (entry = readdir(own))) {
		int number = atoi(entry->d_name);

		/* Most are something else, which opening might disturb. */
		if (entry->d_name[0] == '.' || fstat(number, &status) < 0 || !S_ISREG(status.st_mode) ||
		    status.st_dev != mapping->device || status.st_ino != mapping->inode)
			continue;
		snprintf(path, sizeof(path), "/proc/self/fd/%d", number);
		descriptor = file_open(path, mapping);
	}
	if (own)
		closedir(own);
	if (descriptor < 0) {
		snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", mapping->low, mapping->high);
		descriptor = file_open(path, mapping);
	}
	return descriptor;
}

/* Of a part of a file, without what would make it longer. */
static size_t bytes_there(const struct stat *status, uint64_t offset, size_t bytes)
{
	uint64_t left = (uint64_t)status->st_size - offset;

	return left < bytes ? (size_t)left : bytes;
}

int client_shared_file(uint64_t low, uint64_t high, uint64_t *offset)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct mapping mapping;
	struct statfs system;
	struct stat status;
	int descriptor;

	if (!mapping_find(low, high, &mapping))
		return -1;
	*offset = mapping.offset + (low - mapping.low);
	descriptor = mapping_open(&mapping);
	if (descriptor < 0)
		return -1;
	/* What is behind its last page, which may be whole or not, can't be touched, and to touch what its file system has
	 * no room for would end this process. */
	if (fstatfs(descriptor, &system) < 0 || system.f_type != TMPFS_MAGIC || fstat(descriptor, &status) < 0 ||
	    ((uint64_t)status.st_size + page - 1) / page * page < *offset + (high - low) ||
	    transport_memory_populate(descriptor, (off_t)*offset, bytes_there(&status, *offset, high - low))) {
		close(descriptor);
		return -1;
	}
	/* Its pages are this process's to pay for, and holes until one is touched (SEEK_HOLE). */
	for (uint64_t at = low; at < high; at += page)
		(void)*(volatile const uint8_t *)(uintptr_t)at;
	return descriptor;
}
