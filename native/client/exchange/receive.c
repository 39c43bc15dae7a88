/* What comes: who reads it, and to whom it goes.
 *
 * Whoever waits for a reply reads the inbox (the leader) until it has come, and
 * finishes other threads' replies on the way: a round trip then costs no switch
 * between threads of this process.  While nobody waits, a receiver thread reads,
 * so that what the server sends by itself (data of asynchronous copies, host
 * functions, errors, printed text) arrives without further calls.  Where pages of
 * managed memory come when they are touched, it alone reads: a handler of a signal
 * may touch one in the midst of any call, and would wait for a reply that its own
 * thread has to read.
 */
#include "../ground/log.h"
#include "../ground/message.h"
#include "../ground/thread.h"
#include "failure.h"
#include "jobs.h"
#include "receive.h"
#include "waits.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../transport/ground/thread.h"

/* After the last call, or piece of a large copy, the receiver thread leaves the inbox to
 * callers for this long: a caller that finds it reading has to wait for two thread switches. */
#define RECEIVER_PAUSE_NS 1000000u
/* How long it sleeps at a time where nothing is expected but answers, which callers read
 * themselves: each look takes a processor from the program or the server for a moment. */
#define RECEIVER_DOZE_NS 10000000u
/* Rounds of that spent behind a leader before it waits to be woken. */
#define RECEIVER_ROUNDS 4
/* For what a software GPU says a program's stderr is waited for so long. */
#define SAID_PATIENCE_MS 1000

static struct client_wait *wait_take(struct client_session *session, uint64_t sequence)
{
	struct client_wait **link = &session->waits, *wait;

	while (*link && (*link)->sequence != sequence)
		link = &(*link)->next;
	wait = *link;
	if (wait)
		*link = wait->next;
	return wait;
}

/* ---- reading; the caller is the leader ---- */

static int read_reply(struct client_session *session, const struct wire_header *header)
{
	struct inbox *inbox = &session->inbox;
	size_t left = header->length;
	struct client_wait *wait;
	int rc = 0;

	pthread_mutex_lock(&session->wait_lock);
	wait = wait_take(session, header->sequence);
	/* Also where the receiver thread reads it: it must leave the next one to the caller,
	 * or a program that has paused would wait for two thread switches call after call. */
	session_used(session, inbox->waited_ns ? inbox->waited_ns : transport_now_ns());
	pthread_mutex_unlock(&session->wait_lock);
	if (!wait)
		return -EPROTO;
	wait->result = (CUresult)header->argument;
	if (wait->result == CUDA_SUCCESS) {
		if (left < wait->reply_bytes) {
			rc = -EPROTO;
		} else {
			rc = inbox_take(inbox, wait->reply, wait->reply_bytes);
			left -= wait->reply_bytes;
		}
		/* All bytes of a copy come before its reply, or the caller would take what was
		 * in their place for them. */
		if (wait->target && wait->target->missing && !wait->target->kept)
			rc = -EPROTO;
	}
	if (!rc && left && wait->want_tail) {
		wait->tail = malloc(left);
		if (wait->tail) {
			rc = inbox_take(inbox, wait->tail, left);
			wait->tail_bytes = left;
			left = 0;
		} else {
			wait->result = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	if (!rc)
		rc = inbox_skip(inbox, left);
	if (rc)
		wait->result = CUDA_ERROR_DEVICE_UNAVAILABLE;
	wait_set(session, wait, WAIT_DONE);
	return rc;
}

/* The target of a copy, asynchronous or waited for. */
static struct client_target *target_find(struct client_session *session, uint64_t sequence)
{
	struct client_target *target;
	struct client_wait *wait;

	for (target = session->targets; target; target = target->next)
		if (target->sequence == sequence)
			return target;
	for (wait = session->waits; wait; wait = wait->next)
		if (wait->sequence == sequence)
			return wait->target;
	return NULL;
}

/* Nothing more comes for the asynchronous copy of that number, if it is one. */
static void target_done(struct client_session *session, uint64_t sequence)
{
	struct client_target **link, *target;

	pthread_mutex_lock(&session->wait_lock);
	for (link = &session->targets; *link && (*link)->sequence != sequence;
	     link = &(*link)->next)
		;
	target = *link;
	if (target)
		*link = target->next;
	/* Freeing may wait for a thread of the program's that is inside malloc. */
	if (target && target->owned) {
		target->next = session->finished;
		session->finished = target;
	}
	pthread_mutex_unlock(&session->wait_lock);
}

/* Is this the thread that reads where no caller does? */
static __thread bool receives;

/* It writes to the program's memory, whose faults the program may serve, as on a caller's thread: a signal for a fault that is
 * blocked ends the process.  Not where managed memory has faults of its own, which would wait for this thread. */
static bool faults_allow(sigset_t *before)
{
	sigset_t faults;

	if (!receives || client_managed_any())
		return false;
	sigemptyset(&faults);
	sigaddset(&faults, SIGSEGV);
	sigaddset(&faults, SIGBUS);
	pthread_sigmask(SIG_UNBLOCK, &faults, before);
	return true;
}

static int read_data(struct client_session *session, const struct wire_header *header)
{
	struct client_target *target;
	struct wire_data data;
	size_t bytes, at;
	sigset_t before;
	bool allowed;
	int rc;

	if (header->length < sizeof(data))
		return -EPROTO;
	rc = inbox_take(&session->inbox, &data, sizeof(data));
	if (rc)
		return rc;
	bytes = header->length - sizeof(data);
	pthread_mutex_lock(&session->wait_lock);
	target = target_find(session, data.sequence);
	pthread_mutex_unlock(&session->wait_lock);
	/* A copy that failed further on has no target; its first pieces come none the less. */
	if (!target)
		return inbox_skip(&session->inbox, bytes);
	if (bytes > target->missing ||
	    data.offset > target->width * target->height ||
	    bytes > target->width * target->height - data.offset)
		return -EPROTO;
	target->missing -= bytes;
	at = data.offset;
	allowed = faults_allow(&before);
	while (bytes && !rc) {
		size_t column = at % target->width;
		size_t now = target->pitch == target->width ? bytes : target->width - column;

		if (now > bytes)
			now = bytes;
		rc = inbox_take(&session->inbox,
				target->host + at / target->width * target->pitch + column, now);
		at += now;
		bytes -= now;
	}
	if (allowed)
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!rc && target->missing == 0 && target->kept)
		target->missing = target->width * target->height;
	else if (!rc && target->missing == 0 && target->owned)
		target_done(session, data.sequence);
	return rc;
}

/* This thread reads for all, who are not to wait for a stderr that nobody reads any more: once that has been so
 * for long, what does not fit is in the log alone. */
static void said_write(const char *line, size_t length)
{
	static _Atomic bool unread;
	struct pollfd waited = { .fd = STDERR_FILENO, .events = POLLOUT };

	while (length) {
		/* So much goes into a pipe at once, where there is room at all. */
		size_t now = length < PIPE_BUF ? length : PIPE_BUF;
		int ready = poll(&waited, 1, atomic_load(&unread) ? 0 : SAID_PATIENCE_MS);

		if (ready < 0 && errno == EINTR)
			continue;
		atomic_store(&unread, !ready);
		if (ready <= 0 || write(STDERR_FILENO, line, now) <= 0)
			return;
		line += now;
		length -= now;
	}
}

/* What a software GPU says on its own stderr: lines, as ours are. */
static void text_said(const char *text, size_t length)
{
	while (length) {
		const char *end = memchr(text, '\n', length);
		size_t line = end ? (size_t)(end - text) + 1 : length;

		said_write(text, line);
		client_log(text, line);
		text += line;
		length -= line;
	}
}

static int read_text(struct client_session *session, const struct wire_header *header)
{
	struct wire_text text;
	char *bytes;
	size_t length;
	int rc, cancel;

	if (header->length < sizeof(text))
		return -EPROTO;
	rc = inbox_take(&session->inbox, &text, sizeof(text));
	if (rc)
		return rc;
	length = header->length - sizeof(text);
	bytes = malloc(length ? length : 1);
	if (!bytes)
		return inbox_skip(&session->inbox, length);
	rc = inbox_take(&session->inbox, bytes, length);
	/* Not a place to be cancelled in: this thread reads for all. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	/* What kernels print goes through stdio, like the driver's own printf: it keeps its place
	 * among what the program prints. */
	if (!rc && text.descriptor == STDERR_FILENO)
		text_said(bytes, length);
	else if (!rc)
		fwrite(bytes, 1, length, stdout);
	pthread_setcancelstate(cancel, &cancel);
	free(bytes);
	return rc;
}

static int read_failure(struct client_session *session, const struct wire_header *header)
{
	struct client_context *context;
	struct wire_failure failure;
	const char *name = "?";
	int rc;

	if (header->length != sizeof(failure))
		return -EPROTO;
	rc = inbox_take(&session->inbox, &failure, sizeof(failure));
	if (rc)
		return rc;
	if (failure.opcode == WIRE_OP_COPY_TO_HOST_ASYNC ||
	    failure.opcode == WIRE_OP_CAPTURE_COPY_TO_HOST)
		target_done(session, failure.sequence);
	/* Not of a pulled copy: its bytes may have been asked for before it was refused. */
	if (failure.opcode == WIRE_OP_STREAM_CALLBACK || failure.opcode == WIRE_OP_STREAM_HOST_FUNCTION)
		client_job_refused(session, failure.sequence, (CUresult)failure.status);
	if (client_result_is_sticky((CUresult)failure.status)) {
		client_context_note((CUcontext)(uintptr_t)failure.context, (CUresult)failure.status);
		return 0;
	}
	if (failure.opcode < WIRE_OP_LIMIT && wire_op_infos[failure.opcode].name)
		name = wire_op_infos[failure.opcode].name;
	context = client_context_get((CUcontext)(uintptr_t)failure.context);
	if (context)
		atomic_store(&context->late, (CUresult)failure.status);
	/* Once per operation: a loop of launches would say it thousands of times.  While something is captured the call
	 * itself tells it (client_post_work). */
	if (!client_captures() && (failure.opcode >= WIRE_OP_LIMIT ||
				   !atomic_exchange(&session->failures_said[failure.opcode], 1)))
		client_message("the GPU's driver refused a posted %s (CUDA error %d)", name,
			       failure.status);
	return 0;
}

static int read_frame(struct client_session *session, int timeout_ms)
{
	struct wire_header header;
	struct wire_host_call host_call;
	struct wire_pull pull;
	int rc = inbox_header(&session->inbox, &header, timeout_ms);

	if (rc)
		return rc;
	if (header.opcode & WIRE_REPLY)
		return read_reply(session, &header);
	switch (header.opcode) {
	case WIRE_EVENT_DATA:
		return read_data(session, &header);
	case WIRE_EVENT_TEXT:
		return read_text(session, &header);
	case WIRE_EVENT_FAILURE:
		return read_failure(session, &header);
	case WIRE_EVENT_HOST_CALL:
		if (header.length != sizeof(host_call))
			return -EPROTO;
		rc = inbox_take(&session->inbox, &host_call, sizeof(host_call));
		if (!rc)
			client_job_ready(session, host_call.token, (CUresult)host_call.status);
		return rc;
	case WIRE_EVENT_PULL:
		if (header.length != sizeof(pull))
			return -EPROTO;
		rc = inbox_take(&session->inbox, &pull, sizeof(pull));
		if (!rc)
			client_job_ready(session, pull.token, CUDA_SUCCESS);
		return rc;
	default:
		return -EPROTO;
	}
}

/* ---- leading ---- */

/* Let one lead who sleeps until his answer comes, if there is one; with the wait lock.  Whose request
 * has not left yet may wait for others to be read before it can, and leads by himself once it has. */
static bool lead_pass(struct client_session *session)
{
	struct client_wait *wait = session->waits;

	while (wait && !wait->asleep)
		wait = wait->next;
	if (wait)
		wait_set(session, wait, WAIT_LEAD);
	return wait;
}

/* Stop reading: somebody who waits takes over, or the receiver thread. */
static void leader_step_down(struct client_session *session)
{
	wait_lock(session);
	if (atomic_load(&session->dead))
		client_session_abandon(session);
	session->inbox.patience_ns = 0;
	session->leader = false;
	session->leader_wait = NULL;
	if (session->waits && !client_paging()) {
		/* No request may leave before somebody reads: the receiver thread is to look after that. */
		if (!lead_pass(session) && (session->receiver_parked || session->receiver_dozes)) {
			session->receiver_dozes = false;
			pthread_cond_signal(&session->receiver_wake);
		}
	} else if (session->receiver_parked || session->targets || session->outstanding ||
		   session->awaited || client_paging()) {
		pthread_cond_signal(&session->receiver_wake);
	}
	wait_unlock(session);
}

void client_wait_for(struct client_session *session, struct client_wait *wait)
{
	for (;;) {
		bool lead;
		int rc = 0;

		wait_lock(session);
		if (atomic_load(&wait->state) == WAIT_DONE) {
			/* Woken to lead, but served meanwhile: pass it on. */
			wait_unlock(session);
			if (wait->result == CUDA_ERROR_DEVICE_UNAVAILABLE)
				client_end_await();
			return;
		}
		lead = !session->leader && !client_paging();
		if (lead) {
			session->leader = true;
			session->led = true;
			session->leader_wait = wait;
			session->inbox.patience_ns = wait->spins ? INBOX_PATIENCE_DEVICE_NS : 0;
		} else {
			uint32_t nudged = WAIT_LEAD;

			/* Too late to lead; but it may be done just now. */
			atomic_compare_exchange_strong(&wait->state, &nudged, WAIT_PENDING);
			wait->asleep = true;
		}
		wait_unlock(session);
		if (!lead) {
			while (atomic_load(&wait->state) == WAIT_PENDING)
				futex_wait(&wait->state, WAIT_PENDING);
			continue;
		}
		client_log_lead();
		while (!rc && atomic_load(&wait->state) != WAIT_DONE && !client_paging())
			rc = read_frame(session, -1);
		if (rc)
			client_session_fail(session, rc);
		leader_step_down(session);
		client_log_led();
	}
}

/* Sleep until somebody calls, at most this long; with the wait lock. */
static void receiver_sleep(struct client_session *session, uint32_t limit_ns)
{
	(void)transport_cond_wait_until(&session->receiver_wake, &session->wait_lock, transport_now_ns() + limit_ns);
}

static bool receiver_expects(const struct client_session *session)
{
	return session->targets || session->outstanding || session->awaited;
}

static void *receiver_thread(void *opaque)
{
	struct client_session *session = opaque;
	bool unled = false;		/* callers wait, and none of them can lead */
	bool look = false;		/* read what is there, without waiting for more */
	int rounds = 0;

	receives = true;
	pthread_mutex_lock(&session->wait_lock);
	while (!atomic_load(&session->dead)) {
		/* Who steps down from the lead and leaves waits that nobody can lead for rouses this thread. */
		bool expected = receiver_expects(session);
		bool dozes = !expected && (!session->waits || session->leader);
		bool recent = transport_now_ns() - atomic_load(&session->used_ns) < RECEIVER_PAUSE_NS;
		int rc;

		/* A caller that waits leads as soon as its request has left.  Where that takes
		 * long, the server may be unable to read before it is read from. */
		if (session->leader || (!client_paging() && ((session->waits && !unled) ||
						      (recent && !expected && !session->waits && !look)))) {
			if (session->leader && ++rounds > RECEIVER_ROUNDS) {
				session->receiver_parked = true;
				pthread_cond_wait(&session->receiver_wake, &session->wait_lock);
				session->receiver_parked = false;
				unled = false;
				rounds = 0;
				continue;
			}
			unled = session->waits && !session->leader;
			session->receiver_dozes = dozes;
			session->led = false;
			receiver_sleep(session, dozes ? RECEIVER_DOZE_NS : RECEIVER_PAUSE_NS);
			/* Roused by what may be waited for at once: the caller is to have the inbox
			 * first, as it has where this thread is not asleep. */
			if (dozes && !session->receiver_dozes && !atomic_load(&session->dead))
				receiver_sleep(session, RECEIVER_PAUSE_NS);
			session->receiver_dozes = false;
			unled = unled && session->waits && !session->leader;
			/* Large copies keep the session in use, and their poster reads nothing: neither an
			 * error nor a host function would ever come to a program that only posts such. */
			look = dozes && !session->led;
			continue;
		}
		rounds = 0;
		session->leader = true;
		pthread_mutex_unlock(&session->wait_lock);
		rc = 0;
		if (!inbox_buffered(&session->inbox))
			rc = session->transport.ops->wait(&session->transport, look ? 0 : -1);
		look = look && !rc;
		if (!rc)
			rc = read_frame(session, -1);
		else if (rc == -ETIMEDOUT)
			rc = 0;		/* there is nothing */
		if (rc)
			client_session_fail(session, rc);
		pthread_mutex_lock(&session->wait_lock);
		if (atomic_load(&session->dead))
			client_session_abandon(session);
		session->leader = false;
		unled = session->waits && !client_paging() && !lead_pass(session) && unled;
	}
	pthread_mutex_unlock(&session->wait_lock);
	return NULL;
}

int client_session_start(struct client_session *session)
{
	int rc;

	pthread_mutex_init(&session->wait_lock, NULL);
	transport_cond_init(&session->settled);
	transport_cond_init(&session->receiver_wake);
	rc = outbox_start(&session->outbox);
	if (rc)
		return rc;
	return transport_thread_start(NULL, receiver_thread, session);
}
