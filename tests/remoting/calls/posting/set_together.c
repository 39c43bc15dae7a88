/* Two threads set an attribute of a kernel to different values at one time, and the one whose value the driver took first
 * hears of it last: what the kernel is then said to have, it has.
 *
 * The driver (gated_driver.c) waits in the first call until SET_GATE has been opened and closed. */
#include "../calls.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LESS = 52000, MORE = 60000 };

static sem_t begun, waited_for, interrupted, goes_on;
static _Atomic pid_t first_thread;
static CUcontext context;
static CUfunction kernel;
static CUstream stream;

static void hold(void *unused)
{
	(void)unused;
	sem_post(&begun);
	sem_wait(&waited_for);
}

static void interrupt(int signal)
{
	(void)signal;
	sem_post(&interrupted);
	sem_wait(&goes_on);
}

/* So that somebody waits, and reads answers, who is never interrupted. */
static void *waits(void *unused)
{
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuStreamSynchronize(stream));
	return unused;
}

static void *sets(void *value)
{
	CHECK(cuCtxSetCurrent(context));
	if ((uintptr_t)value == MORE)
		first_thread = (pid_t)syscall(SYS_gettid);
	CHECK(cuFuncSetAttribute(kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)(uintptr_t)value));
	return NULL;
}

static pthread_t start(void *(*run)(void *), int value)
{
	pthread_t thread;

	REQUIRE(pthread_create(&thread, NULL, run, (void *)(uintptr_t)value) == 0);
	return thread;
}

/* A thread that sleeps in a call holds nothing. */
static void until_asleep(pid_t thread)
{
	char path[64], state = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)thread);
	while (state != 'S') {
		FILE *file = fopen(path, "r");

		REQUIRE(file);
		REQUIRE(fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
		fclose(file);
		sched_yield();
	}
}

static bool is_polling(const char *thread)
{
	char path[64];
	long call = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%.16s/syscall", thread);
	file = fopen(path, "r");
	if (!file)
		return false;
	if (fscanf(file, "%ld", &call) != 1)
		call = -1;
	fclose(file);
#ifdef SYS_poll
	if (call == SYS_poll)
		return true;
#endif
	return call == SYS_ppoll;
}

/* Who sleeps until the connection has something reads it, until something comes: others that call then wait for him. */
static void until_somebody_reads(void)
{
	for (bool found = false; !found; sched_yield()) {
		DIR *threads = opendir("/proc/self/task");
		struct dirent *each;

		REQUIRE(threads);
		while (!found && (each = readdir(threads)))
			found = is_polling(each->d_name);
		closedir(threads);
	}
}

int main(void)
{
	const struct sigaction action = { .sa_handler = interrupt };
	pthread_t waiter, first, second;
	unsigned one = 1;
	CUdeviceptr word;
	void *parameters[] = { &word, &one };
	int value, gate;

	context = begin();
	kernel = store_kernel();
	CHECK(cuMemAlloc_v2(&word, 4));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	REQUIRE(!sem_init(&begun, 0, 0) && !sem_init(&waited_for, 0, 0));
	REQUIRE(!sem_init(&interrupted, 0, 0) && !sem_init(&goes_on, 0, 0));
	REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(cuLaunchHostFunc(stream, hold, NULL));
	/* That it has begun is the last to come before the answers. */
	sem_wait(&begun);
	waiter = start(waits, 0);
	until_somebody_reads();

	first = start(sets, MORE);
	gate = open(getenv("SET_GATE"), O_WRONLY);
	REQUIRE(gate >= 0);
	until_asleep(first_thread);
	REQUIRE(pthread_kill(first, SIGUSR1) == 0);
	sem_wait(&interrupted);
	second = start(sets, LESS);
	close(gate);
	pthread_join(second, NULL);
	sem_post(&goes_on);
	pthread_join(first, NULL);
	sem_post(&waited_for);
	pthread_join(waiter, NULL);

	CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel));
	CHECK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, (unsigned)value, NULL, parameters, NULL));
	CHECK(cuCtxSynchronize());
	CHECK(cuFuncSetAttribute(kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, MORE));
	CHECK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, MORE, NULL, parameters, NULL));
	CHECK(cuCtxSynchronize());
	return 0;
}
