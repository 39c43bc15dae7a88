/* How many sockets this process has. */
#include <dirent.h>
#include <string.h>
#include <unistd.h>

static int sockets(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	int count = 0;

	while ((entry = readdir(folder))) {
		char target[64];
		ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof target);

		count += length > 7 && memcmp(target, "socket:", 7) == 0;
	}
	closedir(folder);
	return count;
}
