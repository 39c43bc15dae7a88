/* How many processors control groups give time for, as cgroups(7) and the kernel's documentation have it. */
#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../transport/ground/processors.h"

#undef NDEBUG

static char root[] = "/tmp/processors_test.XXXXXX";

/* Write a file below the root, whose folders are made. */
static void put(const char *path, const char *text)
{
	char whole[PATH_MAX];
	FILE *file;

	snprintf(whole, sizeof(whole), "%s%s", root, path);
	for (char *at = whole + strlen(root) + 1; (at = strchr(at, '/')); at++) {
		*at = 0;
		mkdir(whole, 0700);
		*at = '/';
	}
	file = fopen(whole, "w");
	assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* Ask, and begin anew. */
static unsigned asked(void)
{
	unsigned count = transport_processors_of_groups(root);
	char command[64];

	snprintf(command, sizeof(command), "rm -rf %s/*", root);
	assert(system(command) == 0);
	return count;
}

static void test_nothing_is_known_of_groups(void)
{
	assert(asked() == UINT_MAX);
	put("/proc/self/cgroup", "");
	assert(asked() == UINT_MAX);
	put("/proc/self/cgroup", "no line of one\n0:\n:\n");
	assert(asked() == UINT_MAX);
	put("/proc/self/cgroup", "0::/\n");
	assert(asked() == UINT_MAX);
}

static void test_the_least_limit_on_the_way_counts(void)
{
	put("/proc/self/cgroup", "0::/a.slice/b.service\n");
	put("/sys/fs/cgroup/a.slice/cpu.max", "450000 100000\n");
	put("/sys/fs/cgroup/a.slice/b.service/cpu.max", "max 100000\n");
	assert(asked() == 4);
	put("/proc/self/cgroup", "0::/a.slice/b.service\n");
	put("/sys/fs/cgroup/a.slice/cpu.max", "450000 100000\n");
	put("/sys/fs/cgroup/a.slice/b.service/cpu.max", "20000 50000\n");
	assert(asked() == 1);
	/* Of another group. */
	put("/proc/self/cgroup", "0::/a.slice/b.service\n");
	put("/sys/fs/cgroup/a.slice/c.service/cpu.max", "100000 100000\n");
	assert(asked() == UINT_MAX);
	put("/proc/self/cgroup", "0::/a.slice\n");
	put("/sys/fs/cgroup/a.slice/cpu.max", "what?\n");
	assert(asked() == UINT_MAX);
}

static void test_a_container_sees_its_own_group_at_the_top(void)
{
	put("/proc/self/cgroup", "0::/\n");
	put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
	assert(asked() == 2);
	put("/proc/self/cgroup", "4:memory:/machine/one\n3:cpu,cpuacct:/machine/one\n");
	put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "800000\n");
	put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
	assert(asked() == 8);
}

static void test_version_1_counts_where_the_controller_is(void)
{
	put("/proc/self/cgroup", "3:cpuset:/a\n2:cpuacct,cpu:/a\n1:name=systemd:/a\n0::/a\n");
	put("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "300000\n");
	put("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
	put("/sys/fs/cgroup/unified/a/cpu.max", "max 100000\n");
	assert(asked() == 3);
	put("/proc/self/cgroup", "2:cpu:/a\n");
	put("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
	put("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
	assert(asked() == UINT_MAX);
	put("/proc/self/cgroup", "2:cpuset:/a\n3:cpuacct:/a\n");
	put("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "100000\n");
	put("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
	assert(asked() == UINT_MAX);
}

int main(void)
{
	assert(mkdtemp(root));
	test_nothing_is_known_of_groups();
	test_the_least_limit_on_the_way_counts();
	test_a_container_sees_its_own_group_at_the_top();
	test_version_1_counts_where_the_controller_is();
	assert(remove(root) == 0);
	assert(transport_processors() >= 1);
	puts("ok");
	return 0;
}
