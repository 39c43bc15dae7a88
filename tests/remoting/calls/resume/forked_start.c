/* Forks, in another thread and in this one, wherever the shim has just made what a child is not to have: prints for each
 * child what it has of that.  With the name of NVML's library, where that has.  It stands before the C library for both,
 * whose calls come through here. */
#include "../calls.h"
#include "sockets.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define THE_LIBRARY_S(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Of the shim's memory, as the kernel calls it. */
static int mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int count = 0;

	while (fgets(line, sizeof(line), maps))
		count += strstr(line, "memfd:farbus-remoting") != NULL;
	fclose(maps);
	return count;
}

static int files(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	char target[64] = "";
	int count = 0;

	while ((entry = readdir(folder))) {
		ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1);

		target[length < 0 ? 0 : length] = 0;
		count += strstr(target, "memfd:farbus-remoting") != NULL;
	}
	closedir(folder);
	return count;
}

static const char *phase;	/* NULL: what comes is the program's own */

static void fork_now(const char *where)
{
	pid_t child;
	int status;

	fflush(stdout);
	child = fork();
	if (!child) {
		printf("%s %s %d %d %d\n", phase, where, sockets(), files(), mappings());
		fflush(stdout);
		_exit(0);
	}
	REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

struct forking {
	const char *where;
	_Atomic pid_t thread;
	_Atomic bool over;
	pthread_t started;
};

static void *fork_run(void *opaque)
{
	struct forking *forking = opaque;

	atomic_store(&forking->thread, (pid_t)syscall(SYS_gettid));
	fork_now(forking->where);
	atomic_store(&forking->over, true);
	return NULL;
}

static bool sleeps(pid_t thread)
{
	char path[64], state = 0;
	FILE *stat;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)thread);
	stat = fopen(path, "r");
	REQUIRE(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
	fclose(stat);
	return state == 'S';
}

/* Until the other thread has forked, or waits. */
static void fork_beside(struct forking *forking)
{
	REQUIRE(pthread_create(&forking->started, NULL, fork_run, forking) == 0);
	while (!atomic_load(&forking->thread) ||
	       !(atomic_load(&forking->over) || sleeps(atomic_load(&forking->thread))))
		sched_yield();
}

static struct forking after_socket = { .where = "socket" }, after_file = { .where = "file" },
		      after_mapping = { .where = "mapping" };

int socket(int domain, int type, int protocol)
{
	int made = THE_LIBRARY_S(socket)(domain, type, protocol);

	if (phase && !after_socket.started)
		fork_beside(&after_socket);
	return made;
}

int connect(int descriptor, const struct sockaddr *address, socklen_t length)
{
	if (phase)
		fork_now("connect");
	return THE_LIBRARY_S(connect)(descriptor, address, length);
}

int memfd_create(const char *name, unsigned int flags)
{
	int made = THE_LIBRARY_S(memfd_create)(name, flags);

	if (phase && !after_file.started)
		fork_beside(&after_file);
	return made;
}

int fallocate(int descriptor, int mode, off_t offset, off_t bytes)
{
	if (phase)
		fork_now("fallocate");
	return THE_LIBRARY_S(fallocate)(descriptor, mode, offset, bytes);
}

int madvise(void *memory, size_t bytes, int advice)
{
	if (phase && advice == MADV_DONTFORK && mappings() && !after_mapping.started)
		fork_beside(&after_mapping);
	return THE_LIBRARY_S(madvise)(memory, bytes, advice);
}

ssize_t sendmsg(int descriptor, const struct msghdr *message, int flags)
{
	if (phase && message->msg_controllen)
		fork_now("sendmsg");
	return THE_LIBRARY_S(sendmsg)(descriptor, message, flags);
}

/* Those that waited have forked. */
static void phase_end(void)
{
	struct forking *const beside[] = { &after_socket, &after_file, &after_mapping };

	for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
		if (beside[i]->started)
			REQUIRE(pthread_join(beside[i]->started, NULL) == 0);
		*beside[i] = (struct forking){ .where = beside[i]->where };
	}
	fork_now("end");
	phase = NULL;
}

static void nvml_init(const char *name)
{
	void *library = dlopen(name, RTLD_NOW);

	REQUIRE(library);
	phase = "nvml";
	REQUIRE(((int (*)(void))dlsym(library, "nvmlInit_v2"))() == 0);
	phase_end();
}

int main(int argc, char **argv)
{
	void *pinned;

	REQUIRE(sockets() == 0);
	if (argc > 1) {
		nvml_init(argv[1]);
		return 0;
	}
	phase = "start";
	CHECK(cuInit(0));
	phase_end();
	begin();
	phase = "pinned";
	CHECK(cuMemHostAlloc(&pinned, 1 << 20, 0));
	phase_end();
	fflush(stdout);
	_exit(0);
}
