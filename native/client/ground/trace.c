/* The trace of a program's calls: see trace.h. */
#include "../client.h"
#include "guest.h"
#include "message.h"
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

#include "../../transport/ground/clock.h"

/* The longest name of a function has 52 characters, that of a result 50; with all else there are 350 beside a kernel's. */
#define LINE_BYTES 1024
/* Names made of templates have thousands: more of one than so many has its middle left out. */
#define KERNEL_BYTES 640
_Static_assert(KERNEL_BYTES + 350 <= LINE_BYTES, "a line is one write");
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
/* The copies that it is made of, of which it has told. */
static __thread struct client_trace_call parts;

static uint64_t wall_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void trace_refuse(const char *why)
{
	client_message("FARBUS_TRACE is \"%s\": %s; set it to a file that this program may write", trace.path,
		       why);
	trace.trouble = CUDA_ERROR_INVALID_VALUE;
}

/* Whether a text begins with time, process, thread, function and how it was answered: see trace.h. */
static bool is_call(const char *text)
{
	static const char *const hows[] = { "local ", "posted ", "called " };

	for (int field = 0; field < 4; field++) {
		size_t bytes = field < 3 ? strspn(text, field ? "0123456789" : "0123456789.") : strcspn(text, " \n");

		if (!bytes || text[bytes] != ' ' || (field == 3 && strncmp(text, "cu", 2) != 0))
			return false;
		text += bytes + 1;
	}
	for (size_t i = 0; i < sizeof(hows) / sizeof(*hows); i++)
		if (strncmp(text, hows[i], strlen(hows[i])) == 0)
			return true;
	return false;
}

/* Whether a file that is not empty has a trace in it: lines of calls would be the ruin of anything else. */
static bool trace_is_there(void)
{
	int descriptor = open(trace.path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	char text[LINE_BYTES + 1];
	ssize_t bytes;

	if (descriptor < 0)
		return false;
	do {
		bytes = pread(descriptor, text, LINE_BYTES, 0);
	} while (bytes < 0 && errno == EINTR);
	close(descriptor);
	text[bytes > 0 ? bytes : 0] = 0;
	return is_call(text);
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
	if (S_ISREG(status.st_mode) && status.st_size > 0 && !trace_is_there()) {
		trace_refuse("there is something else than a trace in it");
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

/* Why not all of a line was written.  The program may have set the limit since the trace was opened. */
static int trace_short(void)
{
	struct rlimit limit = { .rlim_cur = RLIM_INFINITY };
	struct stat status;

	getrlimit(RLIMIT_FSIZE, &limit);
	return limit.rlim_cur != RLIM_INFINITY && fstat(trace.descriptor, &status) == 0 &&
	       (rlim_t)status.st_size >= limit.rlim_cur ? EFBIG : ENOSPC;
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
	error = written < 0 ? errno : 0;
	if (error == EFBIG && !sigismember(&pending, SIGXFSZ))
		(void)sigtimedwait(&too_large, NULL, &none);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (written >= 0 && written != (ssize_t)bytes)
		error = trace_short();
	if (error)
		trace_stop(error == EFBIG ? TOO_LARGE : strerror(error));
}

void client_trace_begin(struct client_trace_call *call, const char *name)
{
	pthread_once(&trace.once, trace_decide);
	*call = (struct client_trace_call){ .name = name, .how = answered };
	answered = CLIENT_TRACE_LOCAL;
	parts = (struct client_trace_call){ .sized = true };
	call->began_ns = transport_now_ns();
}

struct client_trace_call *client_trace_told(void)
{
	return &parts;
}

void client_trace_answered(enum client_trace_how how)
{
	if (how > answered)
		answered = how;
}

void client_trace_returned(struct client_trace_call *call, CUresult result)
{
	enum client_trace_how around = call->how;

	call->took_ns = transport_now_ns() - call->began_ns;
	call->result = result;
	call->how = answered;
	answered = around;
}

/* ---- its line ---- */

/* Add a name in at most KERNEL_BYTES, without blanks and what else ends a word; its length.  Names that differ in what
 * is left out of them differ in a number there. */
static size_t kernel_write(char *out, const char *name)
{
	size_t bytes = strlen(name), end = (KERNEL_BYTES - 16) / 2;
	uint32_t hash = 2166136261u;	/* FNV-1a */

	if (bytes <= KERNEL_BYTES) {
		memcpy(out, name, bytes);
	} else {
		for (size_t i = 0; i < bytes; i++)
			hash = (hash ^ (uint8_t)name[i]) * 16777619u;
		bytes = (size_t)sprintf(out, "%.*s...%08x...%s", (int)end, name, hash, name + bytes - end);
	}
	for (size_t i = 0; i < bytes; i++)
		if (out[i] <= ' ' || out[i] > '~')
			out[i] = '?';
	return bytes;
}

static size_t line_write(char line[LINE_BYTES], const struct client_trace_call *call)
{
	static const char *const hows[] = { "local", "posted", "called" };
	uint64_t began_us = (wall_ns() - (transport_now_ns() - call->began_ns)) / 1000u;
	char number[16];
	const char *text;
	char *at = line;

	if (cuGetErrorName(call->result, &text) != CUDA_SUCCESS) {
		snprintf(number, sizeof(number), "%d", (int)call->result);
		text = number;
	}
	at += sprintf(at, "%llu.%06llu %d %ld %s %s %llu.%03llu %s", (unsigned long long)(began_us / 1000000u),
		      (unsigned long long)(began_us % 1000000u), (int)getpid(), syscall(SYS_gettid), call->name,
		      hows[call->how], (unsigned long long)(call->took_ns / 1000u),
		      (unsigned long long)(call->took_ns % 1000u), text);
	if (call->sized)
		at += sprintf(at, " bytes=%llu", (unsigned long long)call->bytes);
	if (call->from)
		at += sprintf(at, " from=%s to=%s", call->from, call->to);
	if (call->kernel && *call->kernel) {
		at += sprintf(at, " kernel=");
		at += kernel_write(at, call->kernel);
	}
	if (call->shaped)
		at += sprintf(at, " grid=%ux%ux%u block=%ux%ux%u", call->grid[0], call->grid[1], call->grid[2],
			      call->block[0], call->block[1], call->block[2]);
	*at++ = '\n';
	return (size_t)(at - line);
}

CUresult client_trace_end(const struct client_trace_call *call)
{
	char line[LINE_BYTES];
	int error = errno, cancel;

	if (client_trace_is_off())
		return call->result;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	trace_write(line, line_write(line, call));
	pthread_setcancelstate(cancel, &cancel);
	errno = error;
	return call->result;
}
