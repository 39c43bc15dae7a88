/* The trace of a program's calls: see trace.h. */
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client.h"

/* The longest name of a function has 50 characters, that of a result 50. */
#define LINE_BYTES 256
#define TOO_LARGE "no file of this program may be larger (ulimit -f)"

_Atomic int client_trace_state;

static struct {
	pthread_once_t once;
	const char *path;		/* for messages */
	int descriptor;
	dev_t device;
	ino_t inode;
	rlim_t limit;			/* of the file's size: beyond it the kernel would end the program */
	CUresult trouble;
} trace = { .once = PTHREAD_ONCE_INIT, .descriptor = -1 };

/* What this thread's innermost call has done so far. */
static __thread enum client_trace_how answered;

/* begin's result: when, with `answered` of the call around this one (a callback may call, too) in
 * the lowest bits. */
#define HOW_BITS 2

static uint64_t now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void trace_refuse(const char *why)
{
	client_message("FARBUS_TRACE is \"%s\": %s; set it to a file that this program may write", trace.path,
		       why);
	trace.trouble = CUDA_ERROR_INVALID_VALUE;
}

/* Several processes may have one trace: each adds to what is there. */
static void trace_open(void)
{
	int descriptor = open(trace.path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
			      0666);
	struct rlimit limit = { .rlim_cur = RLIM_INFINITY };
	struct stat status;

	/* What has no reader yet, or loses it, would stop the program or end it. */
	if (descriptor < 0 && errno != ENXIO) {
		trace_refuse(strerror(errno));
		return;
	}
	if (descriptor < 0 || fstat(descriptor, &status) < 0 ||
	    (!S_ISREG(status.st_mode) && !S_ISCHR(status.st_mode))) {
		trace_refuse("it is neither a file nor a terminal");
		if (descriptor >= 0)
			close(descriptor);
		return;
	}
	fcntl(descriptor, F_SETFL, O_APPEND);
	getrlimit(RLIMIT_FSIZE, &limit);
	trace.limit = S_ISREG(status.st_mode) ? limit.rlim_cur : RLIM_INFINITY;
	trace.device = status.st_dev;
	trace.inode = status.st_ino;
	trace.descriptor = client_raise_descriptor(descriptor);
	atomic_store(&client_trace_state, CLIENT_TRACE_ON);
}

static void trace_decide(void)
{
	int error = errno, cancel;

	/* A program that runs as somebody else than its user writes nothing where he says. */
	trace.path = secure_getenv("FARBUS_TRACE");
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	if (trace.path && *trace.path) {
		trace.path = strdup(trace.path);
		if (trace.path)
			trace_open();
	}
	if (atomic_load(&client_trace_state) == CLIENT_TRACE_UNKNOWN)
		atomic_store(&client_trace_state, CLIENT_TRACE_OFF);
	pthread_setcancelstate(cancel, &cancel);
	errno = error;
}

CUresult client_trace_trouble(void)
{
	return trace.trouble;
}

/* No line follows: one that is half there would be told as none. */
static void trace_stop(const char *why)
{
	if (atomic_exchange(&client_trace_state, CLIENT_TRACE_OFF) == CLIENT_TRACE_ON)
		client_message("the trace in %s ends here: %s", trace.path, why);
}

static void trace_write(const char *line, size_t bytes)
{
	static const struct timespec none;
	sigset_t too_large, before, pending;
	struct stat status;
	ssize_t written;
	int error;

	/* The program may have closed all descriptors, and have the number for a file of its own. */
	if (fstat(trace.descriptor, &status) < 0 || status.st_dev != trace.device ||
	    status.st_ino != trace.inode) {
		trace_stop("the program has closed its descriptor");
		return;
	}
	if (trace.limit != RLIM_INFINITY && (rlim_t)status.st_size + bytes > trace.limit) {
		trace_stop(TOO_LARGE);
		return;
	}
	/* What other threads write meanwhile counts, too: the kernel would end the program. */
	sigemptyset(&too_large);
	sigaddset(&too_large, SIGXFSZ);
	pthread_sigmask(SIG_BLOCK, &too_large, &before);
	sigpending(&pending);
	do {
		written = write(trace.descriptor, line, bytes);
	} while (written < 0 && errno == EINTR);
	error = written < 0 ? errno : ENOSPC;
	if (error == EFBIG && !sigismember(&pending, SIGXFSZ))
		(void)sigtimedwait(&too_large, NULL, &none);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (written != (ssize_t)bytes)
		trace_stop(error == EFBIG ? TOO_LARGE : strerror(error));
}

uint64_t client_trace_begin(void)
{
	enum client_trace_how around = answered;

	pthread_once(&trace.once, trace_decide);
	answered = CLIENT_TRACE_LOCAL;
	return now_ns(CLOCK_MONOTONIC) << HOW_BITS | around;
}

void client_trace_answered(enum client_trace_how how)
{
	if (how > answered)
		answered = how;
}

CUresult client_trace_end(uint64_t began, const char *name, CUresult result)
{
	static const char *const hows[] = { "local", "posted", "called" };
	const enum client_trace_how how = answered;
	uint64_t took_ns = now_ns(CLOCK_MONOTONIC) - (began >> HOW_BITS);
	uint64_t began_us = (now_ns(CLOCK_REALTIME) - took_ns) / 1000u;
	const char *text;
	char line[LINE_BYTES], number[16];
	int length, error = errno, cancel;

	answered = (enum client_trace_how)(began & ((1u << HOW_BITS) - 1));
	if (client_trace_is_off())
		return result;
	if (cuGetErrorName(result, &text) != CUDA_SUCCESS) {
		snprintf(number, sizeof(number), "%d", (int)result);
		text = number;
	}
	length = snprintf(line, sizeof(line), "%llu.%06llu %d %ld %s %s %llu.%03llu %s\n",
			  (unsigned long long)(began_us / 1000000u),
			  (unsigned long long)(began_us % 1000000u), (int)getpid(), syscall(SYS_gettid),
			  name, hows[how], (unsigned long long)(took_ns / 1000u),
			  (unsigned long long)(took_ns % 1000u), text);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	trace_write(line, (size_t)length);
	pthread_setcancelstate(cancel, &cancel);
	errno = error;
	return result;
}
