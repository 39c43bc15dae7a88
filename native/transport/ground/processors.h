/* processors.h - how many processors this process may keep busy. */
#ifndef FARBUS_TRANSPORT_PROCESSORS_H
#define FARBUS_TRANSPORT_PROCESSORS_H

/* At least one: those that it may run on (sched_getaffinity(2)), and no more than its control groups give it time for
 * (cpu.max of cgroup v2, cpu.cfs_quota_us of v1: Documentation/admin-guide/cgroup-v2.rst, scheduler/sched-bwc.rst), rounded down.
 * Looked at when a process asks for the first time. */
unsigned transport_processors(void);

/* What control groups give time for, where /proc and /sys lie below `root`; UINT_MAX: as much as there is. */
unsigned transport_processors_of_groups(const char *root);

#endif
