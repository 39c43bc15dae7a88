/* The log of what this library had to say: each line that went to stderr.  The driver's own stays where the driver is. */
#include "log.h"
#include "thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../transport/ground/thread.h"

/* "the driver keeps the last 100 messages" */
#define LOG_LINES 100u
#define LOG_LINE_BYTES 512u
/* Most that cuLogsDumpToMemory gives. */
#define LOG_DUMP_BYTES 25600u
/* Lines that wait for whoever tells callbacks later; of more, callbacks hear nothing. */
#define LOG_PENDING 16u

struct CUlogsCallbackEntry_st {
	struct CUlogsCallbackEntry_st *next;
	CUlogsCallback function;
	void *opaque;
};

static struct {
	pthread_mutex_t lock;
	unsigned count;			/* of all lines ever */
	char lines[LOG_LINES][LOG_LINE_BYTES];
	pid_t teller;			/* the process whose thread tells callbacks, or 0 */
	pthread_cond_t wake;
	unsigned pending, told;		/* counts of lines for it */
	char later[LOG_PENDING][LOG_LINE_BYTES];
} messages = { .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER };

static void messages_lock(void)
{
	client_guard_begin();
	pthread_mutex_lock(&messages.lock);
}

static void messages_unlock(void)
{
	pthread_mutex_unlock(&messages.lock);
	client_guard_end();
}

/* Held while callbacks run: one that has been unregistered runs no more. */
static pthread_mutex_t callbacks_lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUlogsCallbackEntry_st *callbacks;
static __thread bool in_callback;
/* This thread reads for all: a callback may call CUDA, whose reply it would have to read.  So lines wait for it. */
static __thread bool leads, held;

static void callbacks_left(void *unused)
{
	(void)unused;
	in_callback = false;
	pthread_mutex_unlock(&callbacks_lock);
}

/* One may end the thread that it is called on (pthread_exit). */
static void callbacks_tell(char *line)
{
	pthread_mutex_lock(&callbacks_lock);
	in_callback = true;
	pthread_cleanup_push(callbacks_left, NULL);
	for (struct CUlogsCallbackEntry_st *entry = callbacks; entry; entry = entry->next)
		entry->function(entry->opaque, CU_LOG_LEVEL_ERROR, line, strlen(line));
	pthread_cleanup_pop(1);
}

/* The next line that waits; false: there is none, unless that is waited for. */
static bool later_take(char line[LOG_LINE_BYTES], bool wait)
{
	bool found;

	messages_lock();
	while (wait && messages.told == messages.pending)
		pthread_cond_wait(&messages.wake, &messages.lock);
	found = messages.told != messages.pending;
	if (found)
		memcpy(line, messages.later[messages.told++ % LOG_PENDING], LOG_LINE_BYTES);
	messages_unlock();
	return found;
}

static void *teller_thread(void *opaque);

/* A callback has ended the thread: another one takes its place. */
static void teller_left(void *opaque)
{
	(void)opaque;
	messages_lock();
	if (transport_thread_start(NULL, teller_thread, NULL))
		messages.teller = 0;
	messages_unlock();
}

static void *teller_thread(void *opaque)
{
	char line[LOG_LINE_BYTES];

	pthread_cleanup_push(teller_left, NULL);
	while (later_take(line, true))
		callbacks_tell(line);
	pthread_cleanup_pop(0);
	return opaque;
}

/* Start it in this process, if it is not there. */
static int teller_start(void)
{
	int rc = 0;

	messages_lock();
	if (messages.teller != getpid()) {
		rc = transport_thread_start(NULL, teller_thread, NULL);
		messages.teller = rc ? 0 : getpid();
		messages.told = messages.pending;
	}
	messages_unlock();
	return rc;
}

/* A callback may touch managed memory, for which other threads of this library's may need what
 * this one holds, or this one itself.  Both is so only where signals are blocked: see
 * client_guard_begin. */
static bool callback_would_hang(void)
{
	sigset_t blocked;

	pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	return sigismember(&blocked, SIGSEGV);
}

void client_log(const char *line, size_t length)
{
	const bool hangs = callback_would_hang();
	char copy[LOG_LINE_BYTES];

	if (length >= LOG_LINE_BYTES)
		length = LOG_LINE_BYTES - 1;
	memcpy(copy, line, length);
	/* The beginning of a longer one is a line, too. */
	if (length == LOG_LINE_BYTES - 1)
		copy[length - 1] = '\n';
	copy[length] = '\0';
	messages_lock();
	memcpy(messages.lines[messages.count++ % LOG_LINES], copy, length + 1);
	messages_unlock();
	if (in_callback)
		return;
	if (!hangs && !leads) {
		callbacks_tell(copy);
		return;
	}
	messages_lock();
	if (messages.teller && messages.pending - messages.told < LOG_PENDING) {
		memcpy(messages.later[messages.pending++ % LOG_PENDING], copy, length + 1);
		if (hangs)
			pthread_cond_signal(&messages.wake);
		else
			held = true;
	}
	messages_unlock();
}

void client_log_lead(void)
{
	leads = true;
}

void client_log_led(void)
{
	char line[LOG_LINE_BYTES];
	int cancel;

	leads = false;
	if (!held)
		return;
	held = false;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	while (later_take(line, false))
		callbacks_tell(line);
	pthread_setcancelstate(cancel, &cancel);
}

CUresult cuLogsRegisterCallback(CUlogsCallback callbackFunc, void *userData,
				CUlogsCallbackHandle *callback_out)
{
	struct CUlogsCallbackEntry_st *entry;

	if (!callbackFunc || in_callback)
		return in_callback ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_VALUE;
	entry = malloc(sizeof(*entry));
	if (!entry || teller_start()) {
		free(entry);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	entry->function = callbackFunc;
	entry->opaque = userData;
	pthread_mutex_lock(&callbacks_lock);
	entry->next = callbacks;
	callbacks = entry;
	pthread_mutex_unlock(&callbacks_lock);
	if (callback_out)
		*callback_out = entry;
	return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle callback)
{
	struct CUlogsCallbackEntry_st **link = &callbacks, *found;

	if (in_callback)
		return CUDA_ERROR_NOT_PERMITTED;
	pthread_mutex_lock(&callbacks_lock);
	while (*link && *link != callback)
		link = &(*link)->next;
	found = *link;
	if (found)
		*link = found->next;
	pthread_mutex_unlock(&callbacks_lock);
	free(found);
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogsCurrent(CUlogIterator *iterator_out, unsigned int flags)
{
	if (!iterator_out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	messages_lock();
	*iterator_out = messages.count;
	messages_unlock();
	return CUDA_SUCCESS;
}

/* The lines behind the iterator that are still there, at most `room` bytes of the newest
 * whole ones; the iterator goes to the end. */
static char *log_text(CUlogIterator *iterator, size_t room, size_t *bytes)
{
	char *text = malloc(LOG_LINES * LOG_LINE_BYTES);
	unsigned first, begin;
	size_t length = 0;

	if (!text)
		return NULL;
	messages_lock();
	first = iterator ? *iterator : 0;
	if (messages.count - first > LOG_LINES)
		first = messages.count < LOG_LINES ? 0 : messages.count - LOG_LINES;
	for (begin = messages.count; begin != first; begin--) {
		size_t line = strlen(messages.lines[(begin - 1) % LOG_LINES]);

		if (line > room - length)
			break;
		length += line;
	}
	*bytes = 0;
	for (; begin != messages.count; begin++) {
		const char *line = messages.lines[begin % LOG_LINES];

		memcpy(text + *bytes, line, strlen(line));
		*bytes += strlen(line);
	}
	if (iterator)
		*iterator = messages.count;
	messages_unlock();
	return text;
}

CUresult cuLogsDumpToFile(CUlogIterator *iterator, const char *pathToFile, unsigned int flags)
{
	size_t bytes;
	bool written;
	char *text;
	FILE *file;

	if (!pathToFile || flags)
		return CUDA_ERROR_INVALID_VALUE;
	file = fopen(pathToFile, "we");
	if (!file)
		return CUDA_ERROR_INVALID_VALUE;
	text = log_text(iterator, LOG_LINES * LOG_LINE_BYTES, &bytes);
	written = text && fwrite(text, 1, bytes, file) == bytes;
	written = !fclose(file) && written;
	free(text);
	return written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuLogsDumpToMemory(CUlogIterator *iterator, char *buffer, size_t *size, unsigned int flags)
{
	size_t bytes;
	char *text;

	if (!buffer || !size || !*size || *size > LOG_DUMP_BYTES || flags)
		return CUDA_ERROR_INVALID_VALUE;
	text = log_text(iterator, *size - 1, &bytes);
	if (!text)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(buffer, text, bytes);
	buffer[bytes] = '\0';
	*size = bytes;
	free(text);
	return CUDA_SUCCESS;
}
