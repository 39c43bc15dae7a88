/* Requests, replies, and who reads them.
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
#include "managed.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../transport/thread.h"

/* After the last call, or piece of a large copy, the receiver thread leaves the inbox to
 * callers for this long: a caller that finds it reading has to wait for two thread switches. */
#define RECEIVER_PAUSE_NS 1000000u
/* How long it sleeps at a time where nothing is expected but answers, which callers read
 * themselves: each look takes a processor from the program or the server for a moment. */
#define RECEIVER_DOZE_NS 10000000u
/* Rounds of that spent behind a leader before it waits to be woken. */
#define RECEIVER_ROUNDS 4
/* How long a handler of a signal waits for a thread that is held up by its host functions. */
#define PACE_ROUND_NS 10000000
/* Longer than a supervisor is waited for that is asked how a session has ended. */
#define FAIL_PATIENCE_S 5

static bool paging(void)
{
	return atomic_load_explicit(&farbus_client.paging, memory_order_relaxed);
}

static void wait_lock(struct client_session *session)
{
	client_guard_begin();
	pthread_mutex_lock(&session->wait_lock);
}

static void wait_unlock(struct client_session *session)
{
	pthread_mutex_unlock(&session->wait_lock);
	client_guard_end();
}

static void wait_set(struct client_session *session, struct client_wait *wait, uint32_t state)
{
	/* The leader does not sleep on its own wait; and once it is done it may
	 * be gone, so look before. */
	bool asleep = wait != session->leader_wait;

	atomic_store(&wait->state, state);
	if (asleep)
		syscall(SYS_futex, &wait->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void session_used(struct client_session *session, uint64_t when_ns)
{
	atomic_store_explicit(&session->used_ns, when_ns, memory_order_relaxed);
}

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

bool client_result_is_sticky(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_CONTAINED:
	case CUDA_ERROR_TENSOR_MEMORY_LEAK:
		return true;
	default:
		return false;
	}
}

/* Remember what ends a context, and report what a posted operation left. */
static CUresult context_note(CUcontext handle, CUresult result)
{
	struct client_context *context = client_context_get(handle);

	if (!context)
		return result;
	if (result == CUDA_ERROR_ILLEGAL_ADDRESS)
		client_pinned_after_illegal_address();
	if (client_result_is_sticky(result))
		atomic_store(&context->sticky, result);
	else if (result == CUDA_SUCCESS && atomic_load(&context->late))
		result = atomic_exchange(&context->late, CUDA_SUCCESS);
	return result;
}

/* Give up what is waited for; wait_lock is held.  Only the leader may, or anybody where
 * there is none: who reads may be writing to a waiter's memory, which is the waiter's
 * stack and is gone once it is told. */
static void session_abandon(struct client_session *session)
{
	struct client_target *target;
	struct client_wait *wait;

	while ((wait = session->waits)) {
		session->waits = wait->next;
		wait->result = CUDA_ERROR_DEVICE_UNAVAILABLE;
		wait_set(session, wait, WAIT_DONE);
	}
	while ((target = session->targets)) {
		session->targets = target->next;
		if (target->owned)
			free(target);
	}
}

/* The message comes before the first error, since a program may end with that; but who can't have it said by now, as
 * a thread that is interrupted by its own signal handler, or one whose stderr nobody reads, keeps no other from its errors. */
static void session_fail_say(struct client_session *session, int error)
{
	const bool gone = error == -EPIPE || error == -ECONNRESET;
	struct client_line line = { .length = 0 };
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += FAIL_PATIENCE_S;
	if (atomic_load(&session->dead) || pthread_mutex_timedlock(&session->fail_lock, &until))
		return;
	if (!atomic_load(&session->dead)) {
		if (gone && !*session->ending)
			client_session_ask_end(session);
		client_line_write(&line,
				  "the connection to the GPU at %s is lost (%s); every CUDA call %snow "
				  "fails with CUDA_ERROR_DEVICE_UNAVAILABLE%s",
				  session->peer, gone ? *session->ending ? session->ending
									 : "the server or its lease has ended"
				  : error == -ETIMEDOUT ? "it was cut and did not come back in time"
							 : strerror(-error),
				  farbus_client.session_count > 1 ? "that needs it " : "",
				  farbus_client.session_count > 1 ? "" : "; start the program again");
		atomic_store(&session->dead, true);
		atomic_fetch_add(&farbus_client.lost, 1);
	}
	pthread_mutex_unlock(&session->fail_lock);
	/* A program's callback may call CUDA. */
	if (line.length)
		client_line_log(&line);
}

void client_session_fail(struct client_session *session, int error)
{
	client_guard_begin();
	session_fail_say(session, error);
	/* A leader reads to the end of the stream, and abandons what waits by itself. */
	session->transport.ops->shutdown(&session->transport);
	wait_lock(session);
	if (!session->leader)
		session_abandon(session);
	pthread_cond_broadcast(&session->settled);
	pthread_cond_signal(&session->receiver_wake);
	wait_unlock(session);
	client_guard_end();
	if (farbus_client.session_count > 1)
		client_across_lost(session);
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

bool client_target_owed(struct client_session *session, const uint8_t *at, size_t bytes)
{
	const struct client_target *target;

	wait_lock(session);
	for (target = session->targets; target; target = target->next)
		if (target->host >= at && target->host < at + bytes)
			break;
	wait_unlock(session);
	return target;
}

/* Free what is finished; by a thread that posts. */
static void targets_free(struct client_session *session)
{
	struct client_target *target;

	wait_lock(session);
	target = session->finished;
	session->finished = NULL;
	wait_unlock(session);
	while (target) {
		struct client_target *next = target->next;

		free(target);
		target = next;
	}
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

/* What a software GPU says on its own stderr: lines, as ours are. */
static void text_said(const char *text, size_t length)
{
	(void)!write(STDERR_FILENO, text, length);
	while (length) {
		const char *end = memchr(text, '\n', length);
		size_t line = end ? (size_t)(end - text) + 1 : length;

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
	if (client_result_is_sticky((CUresult)failure.status)) {
		context_note((CUcontext)(uintptr_t)failure.context, (CUresult)failure.status);
		return 0;
	}
	if (failure.opcode < WIRE_OP_LIMIT && wire_op_infos[failure.opcode].name)
		name = wire_op_infos[failure.opcode].name;
	context = client_context_get((CUcontext)(uintptr_t)failure.context);
	if (context)
		atomic_store(&context->late, (CUresult)failure.status);
	/* Once per operation: a loop of launches would say it thousands of times. */
	if (failure.opcode >= WIRE_OP_LIMIT || !atomic_exchange(&session->failures_said[failure.opcode], 1))
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
			client_host_call(session, host_call.token, (CUresult)host_call.status);
		return rc;
	case WIRE_EVENT_PULL:
		if (header.length != sizeof(pull))
			return -EPROTO;
		rc = inbox_take(&session->inbox, &pull, sizeof(pull));
		if (!rc)
			client_host_pull(session, pull.token);
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
		session_abandon(session);
	session->inbox.patience_ns = 0;
	session->leader = false;
	session->leader_wait = NULL;
	if (session->waits && !paging()) {
		/* No request may leave before somebody reads: the receiver thread is to look after that. */
		if (!lead_pass(session) && (session->receiver_parked || session->receiver_dozes)) {
			session->receiver_dozes = false;
			pthread_cond_signal(&session->receiver_wake);
		}
	} else if (session->receiver_parked || session->targets || session->outstanding ||
		   session->awaited || paging()) {
		pthread_cond_signal(&session->receiver_wake);
	}
	wait_unlock(session);
}

static void wait_for(struct client_session *session, struct client_wait *wait)
{
	for (;;) {
		bool lead;
		int rc = 0;

		wait_lock(session);
		if (atomic_load(&wait->state) == WAIT_DONE) {
			/* Woken to lead, but served meanwhile: pass it on. */
			wait_unlock(session);
			return;
		}
		lead = !session->leader && !paging();
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
				syscall(SYS_futex, &wait->state, FUTEX_WAIT_PRIVATE, WAIT_PENDING,
					NULL, NULL, 0);
			continue;
		}
		while (!rc && atomic_load(&wait->state) != WAIT_DONE && !paging())
			rc = read_frame(session, -1);
		if (rc)
			client_session_fail(session, rc);
		leader_step_down(session);
	}
}

/* Sleep until somebody calls, at most this long; with the wait lock. */
static void receiver_sleep(struct client_session *session, uint32_t limit_ns)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += limit_ns;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	pthread_cond_timedwait(&session->receiver_wake, &session->wait_lock, &until);
}

static bool receiver_expects(const struct client_session *session)
{
	return session->targets || session->outstanding || session->awaited;
}

void client_receiver_expects(struct client_session *session)
{
	if (!session->receiver_dozes)
		return;
	session->receiver_dozes = false;
	pthread_cond_signal(&session->receiver_wake);
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
		if (session->leader || (!paging() && ((session->waits && !unled) ||
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
			session_abandon(session);
		session->leader = false;
		unled = session->waits && !paging() && !lead_pass(session) && unled;
	}
	pthread_mutex_unlock(&session->wait_lock);
	return NULL;
}

int client_session_start(struct client_session *session)
{
	pthread_condattr_t attributes;
	int rc;

	pthread_mutex_init(&session->wait_lock, NULL);
	pthread_cond_init(&session->settled, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&session->receiver_wake, &attributes);
	pthread_condattr_destroy(&attributes);
	rc = outbox_start(&session->outbox);
	if (rc)
		return rc;
	return transport_thread_start(NULL, receiver_thread, session);
}

/* ---- asking ---- */

static uint64_t context_wire(void)
{
	const struct client_thread *thread = client_thread();

	return thread->depth ? (uint64_t)(uintptr_t)thread->contexts[thread->depth - 1] : 0;
}

/* The server of the first device whose server is there; of the first device where none is.  A
 * server whose devices the program does not see (CUDA_VISIBLE_DEVICES) is nobody's home. */
static struct client_session *session_home(void)
{
	struct client *client = &farbus_client;

	for (int i = 0; i < client->device_count; i++)
		if (!atomic_load(&client->devices[i].session->dead))
			return client->devices[i].session;
	return client->device_count ? client->devices[0].session : &client->sessions[0];
}

struct client_route client_route_current(void)
{
	struct client_route route = { .session = farbus_client.sessions, .context = context_wire() };
	const struct client_context *context;

	if (client_alone())
		return route;
	context = client_context_current();
	route.session = context ? context->session : session_home();
	return route;
}

uint64_t client_named_wire(const void *name, struct client_session **session)
{
	uint64_t wire = (uint64_t)(uintptr_t)name;

	if (!wire || (wire & 15) >= farbus_client.session_count) {
		*session = client_route_current().session;
		return wire;
	}
	*session = &farbus_client.sessions[wire & 15];
	return wire & ~15ull;
}

bool client_context_elsewhere(const struct client_context *context)
{
	/* A green one is current as the primary one that it is made of; one that has ended is nowhere. */
	return context && context != client_context_current() && context->active &&
	       client_context_get(context->handle) == context;
}

struct client_route client_route_context(const struct client_context *context)
{
	struct client_route route = client_route_current();

	if (context && (context->session != route.session || !route.context)) {
		route.session = context->session;
		route.context = (uint64_t)(uintptr_t)context->handle;
	}
	return route;
}

struct client_route client_route_stream(uint64_t stream)
{
	const struct client_context *context = client_stream_context(stream);

	if (!context)
		return client_route_current();
	return (struct client_route){
		.session = context->session,
		.context = (uint64_t)(uintptr_t)context->handle,
	};
}

struct client_context *client_session_context(const struct client_session *session)
{
	for (int i = 0; i < farbus_client.device_count; i++) {
		const struct client_device *device = &farbus_client.devices[i];

		if (device->session == session && device->primary->active)
			return device->primary;
	}
	return NULL;
}

struct client_route client_route_session(struct client_session *session)
{
	struct client_route route = client_route_current();
	const struct client_context *context;

	if (route.session == session)
		return route;
	/* What belongs to a device but to no context is reached through any. */
	context = client_session_context(session);
	route.session = session;
	route.context = context ? (uint64_t)(uintptr_t)context->handle : 0;
	return route;
}

/* The context of a handle that a request may name; NULL: none has it. */
static const struct client_context *handle_context(uint64_t handle)
{
	switch (handle_kind_of(handle)) {
	case HANDLE_CONTEXT:
		return client_context_get((CUcontext)(uintptr_t)handle);
	case HANDLE_EVENT:
		return client_event_context(handle);
	default:
		return client_stream_context(handle);
	}
}

/* The context that an operation is of, if that is not the current one: its stream's, or else its
 * event's, as its error is.  A launch is of the current one, as its function is, if there is one. */
static const struct client_context *context_claimed(enum wire_op op, const void *fixed)
{
	const struct wire_op_info *info = &wire_op_infos[op];
	const struct client_context *claimed = NULL;
	bool found = (op == WIRE_OP_LAUNCH || op == WIRE_OP_LAUNCH_CHECKED) && context_wire();

	for (unsigned i = 0; i < sizeof(info->routes) && info->routes[i] && !found; i++) {
		enum handle_kind kind;
		uint64_t handle;

		memcpy(&handle, (const uint8_t *)fixed + 8 * (info->routes[i] - 1u), sizeof(handle));
		kind = handle_kind_of(handle);
		found = kind != HANDLE_CONTEXT && kind != HANDLE_EVENT;
		if (kind != HANDLE_CONTEXT)
			claimed = handle_context(handle);
	}
	return client_context_elsewhere(claimed) ? claimed : NULL;
}

/* Where a request goes whose fixed part is `fixed`. */
static CUresult route_claimed(enum wire_op op, const void *fixed, struct client_route *route)
{
	const struct wire_op_info *info = &wire_op_infos[op];
	const struct client_context *claimed = NULL;

	*route = client_route_current();
	for (unsigned i = 0; i < sizeof(info->routes) && info->routes[i]; i++) {
		const struct client_context *context;
		uint64_t handle;

		memcpy(&handle, (const uint8_t *)fixed + 8 * (info->routes[i] - 1u), sizeof(handle));
		context = handle_context(handle);
		if (claimed && context && context->session != claimed->session)
			return CUDA_ERROR_INVALID_HANDLE;
		if (context)
			claimed = context;
	}
	if (claimed)
		*route = client_route_context(claimed);
	claimed = context_claimed(op, fixed);
	if (claimed && claimed->session == route->session)
		route->context = (uint64_t)(uintptr_t)claimed->handle;
	return CUDA_SUCCESS;
}

static inline CUresult route_find(enum wire_op op, const void *fixed, struct client_route *route)
{
	if (!client_alone())
		return route_claimed(op, fixed, route);
	route->session = farbus_client.sessions;
	route->context = context_wire();
	route->own = false;
	if (!route->context || atomic_load_explicit(&farbus_client.several, memory_order_relaxed)) {
		const struct client_context *claimed = context_claimed(op, fixed);

		if (claimed)
			route->context = (uint64_t)(uintptr_t)claimed->handle;
	}
	return CUDA_SUCCESS;
}

static inline void header_fill(struct wire_header *header, enum wire_op op, const struct client_route *route)
{
	header->opcode = (uint16_t)op;
	header->lane = route->own && route->session->own_lane ? WIRE_LANE_OWN : client_thread()->lane;
	header->argument = route->context;
}

/* Has the session's server the operation?  An older one may not; the hello says. */
static CUresult session_offers(struct client_session *session, enum wire_op op)
{
	if (client_session_has(session, op))
		return CUDA_SUCCESS;
	if (!atomic_exchange(&session->missing_said[op], 1))
		client_message("the server at %s does not have %s: it speaks remoting protocol %u.%u, this "
			       "shim %u.%u; install the same version of farbus on both nodes",
			       session->peer, wire_op_infos[op].name, session->major, session->minor,
			       WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR);
	return CUDA_ERROR_NOT_SUPPORTED;
}

static int append(struct client_session *session, struct wire_header *header, const void *fixed,
		  size_t fixed_bytes, const void *tail, size_t tail_bytes, outbox_register on_sequence,
		  void *opaque)
{
	int rc;

	client_trace_note(CLIENT_TRACE_POSTED);
	client_guard_begin();
	rc = outbox_append(&session->outbox, header, fixed, fixed_bytes, tail, tail_bytes, on_sequence,
			   opaque);
	client_guard_end();
	return rc;
}

int client_flush(struct client_session *session)
{
	int rc;

	client_guard_begin();
	rc = outbox_flush(&session->outbox);
	client_guard_end();
	return rc;
}

static inline CUresult post(const struct client_route *route, enum wire_op op, const void *fixed,
			    size_t fixed_bytes, const void *tail, size_t tail_bytes)
{
	struct wire_header header;
	CUresult result = session_offers(route->session, op);
	int rc;

	if (result != CUDA_SUCCESS)
		return result;
	header_fill(&header, op, route);
	rc = append(route->session, &header, fixed, fixed_bytes, tail, tail_bytes, NULL, NULL);
	if (rc) {
		client_session_fail(route->session, rc);
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	}
	return CUDA_SUCCESS;
}

CUresult client_post_on(const struct client_route *route, enum wire_op op, const void *fixed,
			size_t fixed_bytes, const void *tail, size_t tail_bytes)
{
	return post(route, op, fixed, fixed_bytes, tail, tail_bytes);
}

CUresult client_post_to(const struct client_route *route, const struct client_request *request)
{
	return post(route, request->op, request->fixed, request->fixed_bytes, request->tail,
		    request->tail_bytes);
}

CUresult client_post_lent(enum wire_op op, const void *fixed, size_t fixed_bytes, const void *tail,
			  size_t tail_bytes)
{
	struct wire_header header;
	struct client_route route;
	CUresult result = route_find(op, fixed, &route);
	int rc;

	if (result == CUDA_SUCCESS)
		result = session_offers(route.session, op);
	if (result != CUDA_SUCCESS)
		return result;
	header_fill(&header, op, &route);
	if (tail_bytes >= OUTBOX_COPY_BYTES)
		session_used(route.session, transport_now_ns());
	client_trace_note(CLIENT_TRACE_POSTED);
	client_guard_begin();
	rc = outbox_lend(&route.session->outbox, &header, fixed, fixed_bytes, tail, tail_bytes);
	client_guard_end();
	if (rc) {
		client_session_fail(route.session, rc);
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	}
	return CUDA_SUCCESS;
}

void client_settle(const void *at, size_t bytes)
{
	client_guard_begin();
	for (unsigned i = 0; i < farbus_client.session_count; i++)
		outbox_settle(&farbus_client.sessions[i].outbox, at, bytes);
	client_guard_end();
}

CUresult client_post(enum wire_op op, const void *fixed, size_t fixed_bytes, const void *tail,
		     size_t tail_bytes)
{
	struct client_route route;
	CUresult result = route_find(op, fixed, &route);

	return result == CUDA_SUCCESS ? post(&route, op, fixed, fixed_bytes, tail, tail_bytes) : result;
}

static void register_wait(void *opaque, uint64_t sequence)
{
	struct client_wait *wait = opaque;
	struct client_session *session = wait->session;

	wait->sequence = sequence;
	if (wait->target)
		wait->target->sequence = sequence;
	pthread_mutex_lock(&session->wait_lock);
	wait->next = session->waits;
	session->waits = wait;
	pthread_mutex_unlock(&session->wait_lock);
}

/* Once it is registered, a target is gone when its bytes have come or the session ends: whoever
 * posts it does not look at it any more. */
struct registration {
	struct client_target *target;
	bool done;
};

static void register_target(void *opaque, uint64_t sequence)
{
	struct registration *registration = opaque;
	struct client_target *target = registration->target;
	struct client_session *session = target->session;

	registration->done = true;
	target->sequence = sequence;
	pthread_mutex_lock(&session->wait_lock);
	target->next = session->targets;
	session->targets = target;
	client_receiver_expects(session);
	pthread_mutex_unlock(&session->wait_lock);
}

CUresult client_call_to(const struct client_route *route, const struct client_request *request,
			struct client_wait *wait)
{
	struct client_session *session = route->session;
	CUresult result = session_offers(session, request->op);
	struct client_waited waited;
	struct wire_header header;
	uint64_t posted;
	int rc;

	if (result != CUDA_SUCCESS)
		return result;
	client_trace_note(CLIENT_TRACE_CALLED);
	waited = client_events_before(route, request);
	posted = client_managed_any() ? client_active_now() : 0;
	atomic_store(&wait->state, WAIT_PENDING);
	wait->asleep = false;
	wait->session = session;
	wait->sequence = 0;
	wait->spins = session->patient &&
		      client_wait_spins((CUcontext)(uintptr_t)route->context, request->op, request->fixed);
	header_fill(&header, request->op, route);
	rc = append(session, &header, request->fixed, request->fixed_bytes, request->tail,
		    request->tail_bytes, register_wait, wait);
	if (rc && !wait->sequence) {
		client_session_fail(session, rc);
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	}
	/* Once it is registered, it must not be left before it is told. */
	if (!rc)
		rc = client_flush(session);
	if (rc || atomic_load(&session->dead))
		client_session_fail(session, rc ? rc : -EPIPE);
	wait_for(session, wait);
	result = context_note((CUcontext)(uintptr_t)route->context, wait->result);
	if (waited.number && wait->result == CUDA_SUCCESS)
		client_events_over(&waited);
	if (client_managed_any() && wait->result == CUDA_SUCCESS)
		client_managed_called(route, request, posted);
	return result;
}

CUresult client_call_own(const struct client_route *route, const struct client_request *request,
			 struct client_wait *wait)
{
	CUresult told = client_call_to(route, request, wait);
	struct client_context *context = client_context_get((CUcontext)(uintptr_t)route->context);
	CUresult none = CUDA_SUCCESS;

	if (wait->result == CUDA_SUCCESS && told != CUDA_SUCCESS && context)
		atomic_compare_exchange_strong(&context->late, &none, told);
	return wait->result;
}

void client_session_unlead(struct client_session *session)
{
	const struct client_route route = { .session = session, .context = client_route_current().context };
	const struct wire_stream_query fixed = { .stream = (uint64_t)(uintptr_t)CU_STREAM_LEGACY };
	const struct client_request request = {
		.op = WIRE_OP_STREAM_QUERY,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	bool led = true;

	/* Whoever leads steps down behind the next frame, which this is answered with. */
	while (led && !atomic_load(&session->dead)) {
		struct client_wait wait = { .result = CUDA_ERROR_DEVICE_UNAVAILABLE };

		client_call_own(&route, &request, &wait);
		wait_lock(session);
		led = session->leader_wait;
		wait_unlock(session);
	}
}

CUresult client_call_wide(const struct client_request *request, struct client_wait *wait)
{
	struct client_route route;
	CUresult result = route_find(request->op, request->fixed, &route);

	return result == CUDA_SUCCESS ? client_call_to(&route, request, wait) : result;
}

CUresult client_call_own_wide(const struct client_request *request, struct client_wait *wait)
{
	struct client_route route;
	CUresult result = route_find(request->op, request->fixed, &route);

	return result == CUDA_SUCCESS ? client_call_own(&route, request, wait) : result;
}

CUresult client_call(enum wire_op op, const void *fixed, size_t fixed_bytes, void *reply,
		     size_t reply_bytes)
{
	const struct client_request request = {
		.op = op,
		.fixed = fixed,
		.fixed_bytes = fixed_bytes,
	};
	struct client_wait wait = { .reply = reply, .reply_bytes = reply_bytes };

	return client_call_wide(&request, &wait);
}

/* It was never registered: nobody else knows it. */
static CUresult target_refused(struct client_target *target, CUresult result)
{
	if (target->owned)
		free(target);
	return result;
}

CUresult client_post_target(const struct client_request *request, struct client_target *target)
{
	struct client_route route;
	CUresult result = route_find(request->op, request->fixed, &route);

	return result == CUDA_SUCCESS ? client_post_target_to(&route, request, target)
				      : target_refused(target, result);
}

CUresult client_post_target_to(const struct client_route *route, const struct client_request *request,
			       struct client_target *target)
{
	CUresult result = session_offers(route->session, request->op);
	struct registration registration = { .target = target };
	struct wire_header header;
	int rc;

	if (result != CUDA_SUCCESS)
		return target_refused(target, result);
	target->session = route->session;
	header_fill(&header, request->op, route);
	targets_free(route->session);
	rc = append(route->session, &header, request->fixed, request->fixed_bytes, request->tail,
		    request->tail_bytes, register_target, &registration);
	if (!rc)
		rc = client_flush(route->session);
	/* Whoever gave up what waits may have done so before this was registered. */
	if (rc || atomic_load(&route->session->dead)) {
		client_session_fail(route->session, rc ? rc : -EPIPE);
		return registration.done ? CUDA_ERROR_DEVICE_UNAVAILABLE
					 : target_refused(target, CUDA_ERROR_DEVICE_UNAVAILABLE);
	}
	return CUDA_SUCCESS;
}

void client_outstanding(struct client_session *session, int change)
{
	wait_lock(session);
	session->outstanding = (unsigned)((int)session->outstanding + change);
	if (!session->outstanding) {
		memset(session->behind, 0, sizeof(session->behind));
		session->behind_pieces = 0;
		pthread_cond_broadcast(&session->settled);
	} else {
		client_receiver_expects(session);
	}
	wait_unlock(session);
}

struct client_session *client_stream_session(uint64_t stream)
{
	const struct client_context *context;

	if (client_alone())
		return farbus_client.sessions;
	context = client_stream_context(stream);
	return context ? context->session : session_home();
}

/* With the wait lock.  That may take long, and signals must not be kept out for it. */
static void settle_wait(struct client_session *session)
{
	struct timespec until;

	if (!paging()) {
		pthread_cond_wait(&session->settled, &session->wait_lock);
		return;
	}
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += PACE_ROUND_NS;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_cond_timedwait(&session->settled, &session->wait_lock, &until);
	wait_unlock(session);
	wait_lock(session);
}

void client_stream_pace(uint64_t stream, unsigned weight, size_t pieces)
{
	struct client_session *session = client_alone() ? farbus_client.sessions
							 : client_stream_session(stream);
	unsigned *behind = &session->behind[(stream ^ stream >> 4) % CLIENT_BEHIND_SLOTS];
	int cancel;

	if (!atomic_load_explicit(&session->outstanding, memory_order_relaxed))
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	wait_lock(session);
	*behind += weight;
	session->behind_pieces += pieces;
	if (session->outstanding && (*behind > CLIENT_BEHIND_LIMIT ||
				     session->behind_pieces > CLIENT_BEHIND_PIECES)) {
		/* What was posted so far must get there, or nothing ever settles. */
		wait_unlock(session);
		client_flush(session);
		wait_lock(session);
		while (session->outstanding && !atomic_load(&session->dead))
			settle_wait(session);
	}
	wait_unlock(session);
	pthread_setcancelstate(cancel, &cancel);
}
