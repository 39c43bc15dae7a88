#include "processors.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Lines of /proc/self/cgroup: a dozen, with paths of some hundred bytes. */
#define GROUPS_BYTES 16384

/* The whole of a small file as a string; false: it can't be read. */
static bool file_read(const char *path, char *text, size_t bytes)
{
	int descriptor = open(path, O_RDONLY | O_CLOEXEC);
	size_t at = 0;
	ssize_t got;

	if (descriptor < 0)
		return false;
	while (at < bytes - 1 && (got = read(descriptor, text + at, bytes - 1 - at)) > 0)
		at += (size_t)got;
	close(descriptor);
	text[at] = 0;
	return at > 0;
}

static unsigned whole_processors(long long quota, long long period)
{
	if (quota <= 0 || period <= 0)
		return UINT_MAX;
	return quota < period ? 1 : quota / period > UINT_MAX ? UINT_MAX : (unsigned)(quota / period);
}

/* The limit of one group, whose folder that is. */
static unsigned group_processors(const char *folder, bool unified)
{
	char path[PATH_MAX + 32], text[64];
	long long quota, period;

	snprintf(path, sizeof(path), "%s/%s", folder, unified ? "cpu.max" : "cpu.cfs_quota_us");
	if (!file_read(path, text, sizeof(text)))
		return UINT_MAX;
	if (unified)
		/* "max 100000" is none. */
		return sscanf(text, "%lld %lld", &quota, &period) == 2 ? whole_processors(quota, period) : UINT_MAX;
	quota = strtoll(text, NULL, 10);
	snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", folder);
	return file_read(path, text, sizeof(text)) ? whole_processors(quota, strtoll(text, NULL, 10)) : UINT_MAX;
}

/* The least limit of a group and all above it.  In a container the path may be one of the machine, of which only what is
 * mounted can be seen: then that is the container's. */
static unsigned groups_processors(const char *mount, const char *group, bool unified)
{
	char folder[PATH_MAX];
	unsigned least = UINT_MAX;
	size_t top = strlen(mount);

	if ((size_t)snprintf(folder, sizeof(folder), "%s%s", mount, group) >= sizeof(folder))
		return UINT_MAX;
	for (;;) {
		unsigned one = group_processors(folder, unified);

		least = one < least ? one : least;
		if (strlen(folder) <= top)
			return least;
		*strrchr(folder, '/') = 0;
	}
}

/* Is it "cpu", or a list in which that is? */
static bool names_cpu(const char *controllers)
{
	const char *at = strstr(controllers, "cpu");

	for (; at; at = strstr(at + 1, "cpu"))
		if ((at == controllers || at[-1] == ',') && (!at[3] || at[3] == ','))
			return true;
	return false;
}

unsigned transport_processors_of_groups(const char *root)
{
	static const char *const unified[] = { "/sys/fs/cgroup", "/sys/fs/cgroup/unified" };
	char path[PATH_MAX], text[GROUPS_BYTES], *lines = NULL;
	unsigned least = UINT_MAX;

	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	if (!file_read(path, text, sizeof(text)))
		return UINT_MAX;
	/* number:controllers:path, cgroups(7); without controllers it is version 2. */
	for (char *line = strtok_r(text, "\n", &lines); line; line = strtok_r(NULL, "\n", &lines)) {
		char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;

		if (!group)
			continue;
		*group++ = 0;
		controllers++;
		for (int i = 0; i < 2; i++) {
			unsigned one;

			if (*controllers && (i || !names_cpu(controllers)))
				continue;
			snprintf(path, sizeof(path), "%s%s", root, *controllers ? "/sys/fs/cgroup/cpu" : unified[i]);
			one = groups_processors(path, group, !*controllers);
			least = one < least ? one : least;
		}
	}
	return least;
}

unsigned transport_processors(void)
{
	static _Atomic unsigned known;
	unsigned count = atomic_load(&known), groups;
	cpu_set_t allowed;

	if (count)
		return count;
	/* Fails on machines with more processors than the set has. */
	count = sched_getaffinity(0, sizeof(allowed), &allowed) ? CPU_SETSIZE : (unsigned)CPU_COUNT(&allowed);
	groups = transport_processors_of_groups("");
	count = groups < count ? groups : count;
	atomic_store(&known, count);
	return count;
}
