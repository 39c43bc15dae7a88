#define _GNU_SOURCE

#include "queue.h"

#include "green.h"
#include "handle.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define HELPER_STACK_MIN ((size_t)512 << 10)	/* bytes: what a kernel's thread needs, and to spare */

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_idle = PTHREAD_COND_INITIALIZER;
static unsigned running;		/* operations */

/* ---- life ---- */

struct CUstream_st *driver_stream_make(struct CUctx_st *context, unsigned flags)
{
	static uint64_t last_id;
	struct CUstream_st *stream = calloc(1, sizeof *stream);
	pthread_condattr_t clock;

	if (!stream)
		return NULL;
	stream->context = context;
	stream->flags = flags;
	stream->references = 1;
	stream->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
	pthread_cond_init(&stream->work, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&stream->done, &clock);
	pthread_condattr_destroy(&clock);
	driver_context_hold(context);
	return stream;
}

/* With the lock. */
static void stream_drop(struct CUstream_st *stream)
{
	if (--stream->references)
		return;
	pthread_cond_destroy(&stream->work);
	pthread_cond_destroy(&stream->done);
	driver_context_drop(stream->context);
	driver_green_drop(stream->green);
	free(stream);
}

/* With the lock: no longer a stream of its context, if it was one. */
static void stream_leave(struct CUstream_st *stream)
{
	struct CUstream_st **link = &stream->context->streams;

	while (*link && *link != stream)
		link = &(*link)->next;
	if (!*link)
		return;
	*link = stream->next;
	stream_drop(stream);
}

/* With the lock: nobody names it any more.  Its operations still run, and until then it is
 * its context's, for who waits for that; then its worker ends. */
static void stream_end(struct CUstream_st *stream)
{
	stream->ended = true;
	pthread_cond_signal(&stream->work);
	if (stream->completed == stream->submitted)
		stream_leave(stream);
}

void driver_stream_link(struct CUstream_st *stream)
{
	pthread_mutex_lock(&queue_lock);
	stream->next = stream->context->streams;
	stream->context->streams = stream;
	pthread_mutex_unlock(&queue_lock);
}

void driver_stream_end(struct CUstream_st *stream)
{
	pthread_mutex_lock(&queue_lock);
	if (!stream->ended)
		stream_end(stream);
	pthread_mutex_unlock(&queue_lock);
}

struct CUstream_st **driver_stream_list(struct CUctx_st *context, size_t *count)
{
	struct CUstream_st **streams, *stream;

	*count = 0;
	pthread_mutex_lock(&queue_lock);
	for (stream = context->streams; stream; stream = stream->next)
		++*count;
	streams = malloc((*count + 1) * sizeof *streams);
	*count = 0;
	for (stream = context->streams; streams && stream; stream = stream->next) {
		stream->references++;
		streams[(*count)++] = stream;
	}
	pthread_mutex_unlock(&queue_lock);
	return streams;
}

bool driver_stream_has_ended(struct CUstream_st *stream)
{
	bool ended;

	pthread_mutex_lock(&queue_lock);
	ended = stream->ended;
	pthread_mutex_unlock(&queue_lock);
	return ended;
}

void driver_stream_hold(struct CUstream_st *stream)
{
	pthread_mutex_lock(&queue_lock);
	stream->references++;
	pthread_mutex_unlock(&queue_lock);
}

void driver_stream_drop(struct CUstream_st *stream)
{
	pthread_mutex_lock(&queue_lock);
	stream_drop(stream);
	pthread_mutex_unlock(&queue_lock);
}

CUresult driver_stream_make_legacy(struct CUctx_st *context)
{
	struct CUstream_st *stream = driver_stream_make(context, 0);

	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream->legacy = true;
	context->legacy = stream;
	driver_stream_link(stream);
	return CUDA_SUCCESS;
}

void driver_stream_end_context(struct CUctx_st *context)
{
	pthread_mutex_lock(&queue_lock);
	context->legacy = NULL;
	while (context->streams) {
		driver_handle_remove(context->streams, DRIVER_KIND_STREAM);
		context->streams->ended = true;
		pthread_cond_signal(&context->streams->work);
		stream_leave(context->streams);
	}
	pthread_mutex_unlock(&queue_lock);
}

/* ---- points ---- */

/* With the lock. */
static bool point_is_reached(const struct driver_point *point)
{
	return point->stream->completed >= point->sequence;
}

static bool stream_help(struct CUstream_st *stream);

/* With the lock, which is let go while waiting; without a deadline (CLOCK_MONOTONIC)
 * for as long as it takes.  False when the deadline came first. */
static bool point_await_until(const struct driver_point *point, const struct timespec *deadline)
{
	int error = 0;

	while (!point_is_reached(point)) {
		if (error)
			return false;
		if (!deadline && stream_help(point->stream))
			continue;
		point->stream->waiters++;
		if (deadline)
			error = pthread_cond_timedwait(&point->stream->done, &queue_lock, deadline);
		else
			pthread_cond_wait(&point->stream->done, &queue_lock);
		point->stream->waiters--;
	}
	return true;
}

static void point_await(const struct driver_point *point)
{
	point_await_until(point, NULL);
}

bool driver_point_reached(const struct driver_point *point)
{
	bool reached;

	pthread_mutex_lock(&queue_lock);
	reached = point_is_reached(point);
	pthread_mutex_unlock(&queue_lock);
	return reached;
}

void driver_point_wait(const struct driver_point *point)
{
	pthread_mutex_lock(&queue_lock);
	point_await(point);
	pthread_mutex_unlock(&queue_lock);
}

void driver_stream_point(struct CUstream_st *stream, struct driver_point *point)
{
	pthread_mutex_lock(&queue_lock);
	stream->references++;
	*point = (struct driver_point){ stream, stream->submitted };
	pthread_mutex_unlock(&queue_lock);
}

/* The legacy stream is complete when what an operation in it would wait for is
 * complete too: synchronising with it means all blocking streams. */
bool driver_stream_is_quiet(struct CUstream_st *stream)
{
	struct CUstream_st *other;
	bool quiet;

	pthread_mutex_lock(&queue_lock);
	quiet = stream->completed == stream->submitted;
	if (stream->legacy) {
		for (other = stream->context->streams; other && quiet; other = other->next)
			quiet = other->flags & CU_STREAM_NON_BLOCKING ||
				other->completed == other->submitted;
	}
	pthread_mutex_unlock(&queue_lock);
	return quiet;
}

void driver_point_drop(struct driver_point *point)
{
	if (!point->stream)
		return;
	pthread_mutex_lock(&queue_lock);
	stream_drop(point->stream);
	pthread_mutex_unlock(&queue_lock);
	point->stream = NULL;
}

/* With the lock. */
static int operation_add_point(struct driver_operation *operation, struct CUstream_st *stream,
			       uint64_t sequence)
{
	size_t inline_room = sizeof operation->point_room / sizeof *operation->point_room;
	unsigned count = operation->point_count;

	if (count < inline_room) {
		operation->points = operation->point_room;
	} else if (!(count & (count - 1))) {	/* room grows at powers of two */
		struct driver_point *grown = malloc(2 * count * sizeof *grown);

		if (!grown)
			return -ENOMEM;
		for (unsigned i = 0; i < count; i++)
			grown[i] = operation->points[i];
		if (operation->points != operation->point_room)
			free(operation->points);
		operation->points = grown;
	}
	stream->references++;
	operation->points[count] = (struct driver_point){ stream, sequence };
	operation->point_count++;
	return 0;
}

int driver_operation_after(struct driver_operation *operation, const struct driver_point *point)
{
	int error = 0;

	pthread_mutex_lock(&queue_lock);
	if (!point_is_reached(point))
		error = operation_add_point(operation, point->stream, point->sequence);
	pthread_mutex_unlock(&queue_lock);
	return error;
}

/* ---- empty operations ---- */

static CUresult run_nothing(struct driver_operation *operation, CUresult state)
{
	(void)operation, (void)state;
	return CUDA_SUCCESS;
}

static void release_plain(struct driver_operation *operation)
{
	free(operation);
}

struct driver_operation *driver_operation_make_empty(void)
{
	struct driver_operation *operation = calloc(1, sizeof *operation);

	if (operation) {
		operation->run = run_nothing;
		operation->release = release_plain;
	}
	return operation;
}

CUresult driver_stream_follow(struct CUstream_st *stream, const struct driver_point *point)
{
	struct driver_operation *wait;

	if (point->stream == stream || driver_point_reached(point))
		return CUDA_SUCCESS;
	wait = driver_operation_make_empty();
	if (!wait)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (driver_operation_after(wait, point)) {
		free(wait);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return driver_stream_submit(stream, wait, DRIVER_SUBMIT_SHORT, NULL);
}

/* ---- order between streams ---- */

/* With the lock.  The legacy stream waits for all blocking streams of its
 * context and they for it (CUDA driver API, "Stream synchronization
 * behavior"). */
static int operation_add_implicit(struct CUstream_st *stream, struct driver_operation *operation)
{
	struct CUctx_st *context = stream->context;
	struct CUstream_st *other;

	if (stream->flags & CU_STREAM_NON_BLOCKING)
		return 0;
	if (!stream->legacy) {
		other = context->legacy;
		if (other && other->completed < other->submitted)
			return operation_add_point(operation, other, other->submitted);
		return 0;
	}
	for (other = context->streams; other; other = other->next) {
		if (other == stream || other->flags & CU_STREAM_NON_BLOCKING ||
		    other->completed == other->submitted)
			continue;
		if (operation_add_point(operation, other, other->submitted))
			return -ENOMEM;
	}
	return 0;
}

/* With the lock. */
static void operation_drop_points(struct driver_operation *operation)
{
	for (unsigned i = 0; i < operation->point_count; i++)
		stream_drop(operation->points[i].stream);
	if (operation->points != operation->point_room)
		free(operation->points);
	operation->points = NULL;
	operation->point_count = 0;
}

/* With the lock. */
static bool operation_is_due(const struct driver_operation *operation)
{
	for (unsigned i = 0; i < operation->point_count; i++) {
		if (!point_is_reached(&operation->points[i]))
			return false;
	}
	return true;
}

/* ---- running ---- */

/* Without the lock, which is taken: the operation has run, and is gone. */
static void stream_ran(struct CUstream_st *stream, struct driver_operation *operation)
{
	uint64_t sequence = operation->sequence;
	bool counts = !operation->is_idle;

	operation->release(operation);
	pthread_mutex_lock(&queue_lock);
	running -= counts;
	if (!running)
		pthread_cond_broadcast(&queue_idle);
	stream->busy = false;
	stream->completed = sequence;
	if (stream->waiters)
		pthread_cond_broadcast(&stream->done);
	if (stream->ended && sequence == stream->submitted)
		stream_leave(stream);
}

/* With the lock, which is let go while the operation runs.  Its points are
 * reached and the stream is not busy. */
static void stream_run(struct CUstream_st *stream, struct driver_operation *operation)
{
	struct CUctx_st *context = stream->context;
	CUresult state;

	operation_drop_points(operation);
	stream->busy = true;
	running += !operation->is_idle;
	pthread_mutex_unlock(&queue_lock);
	state = __atomic_load_n(&context->error, __ATOMIC_ACQUIRE);
	if (!state || operation->run_when_failed) {
		unsigned depth = driver_call_set_aside();
		CUresult result;

		driver_green_running = stream->green;
		result = operation->run(operation, state);
		driver_green_running = NULL;
		driver_call_take_up(depth);

		if (result)
			driver_context_fail(context, result);
	}
	stream_ran(stream, operation);
}

/* With the lock.  The operation may be gone afterwards: a thread that waits for it may
 * have run it. */
static void await_one_point(const struct driver_operation *operation)
{
	for (unsigned i = 0; i < operation->point_count; i++) {
		struct driver_point point = operation->points[i];

		if (point_is_reached(&point))
			continue;
		point.stream->references++;
		point_await(&point);
		stream_drop(point.stream);
		return;
	}
}

static struct driver_operation *take_head(struct CUstream_st *stream)
{
	struct driver_operation *operation = stream->head;

	stream->head = operation->next;
	if (!stream->head)
		stream->tail = NULL;
	stream->queued--;
	return operation;
}

/* Signals that an instruction of a kernel raises; one that is blocked ends the process. */
static void fault_signals(sigset_t *faults)
{
	static const int own[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP };

	sigemptyset(faults);
	for (size_t i = 0; i < sizeof own / sizeof *own; i++)
		sigaddset(faults, own[i]);
}

/* A thread with a small stack leaves kernels to the worker. */
static bool thread_has_room(void)
{
	static _Thread_local signed char has_room;	/* 0: not asked yet */
	pthread_attr_t attributes;
	size_t size = 0;
	void *base;

	if (!has_room && !pthread_getattr_np(pthread_self(), &attributes)) {
		pthread_attr_getstack(&attributes, &base, &size);
		pthread_attr_destroy(&attributes);
		has_room = size >= HELPER_STACK_MIN ? 1 : -1;
	}
	return has_room > 0;
}

/* With the lock.  Run what is next in the place of the worker, which would have to
 * wake up and then wake the caller; false when it can't be run here and now. */
static bool stream_help(struct CUstream_st *stream)
{
	sigset_t faults, before;
	int cancel_state;

	if (stream->busy || !stream->head || !stream->head->run_by_waiter ||
	    !operation_is_due(stream->head) || !thread_has_room())
		return false;
	/* A kernel that is left in the middle would take its memory with it. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
	fault_signals(&faults);
	pthread_sigmask(SIG_UNBLOCK, &faults, &before);
	stream_run(stream, take_head(stream));
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_setcancelstate(cancel_state, NULL);
	/* The worker went back to sleep when it saw the stream busy. */
	if (stream->head || stream->ended)
		pthread_cond_signal(&stream->work);
	return true;
}

/* With the lock, until the stream has ended. */
static void stream_serve(struct CUstream_st *stream)
{
	for (;;) {
		struct driver_operation *operation = stream->head;

		if (stream->busy || !operation) {
			if (!operation && stream->ended && !stream->busy)
				break;
			pthread_cond_wait(&stream->work, &queue_lock);
			continue;
		}
		if (operation_is_due(operation)) {
			stream->at_work = take_head(stream);
			stream_run(stream, stream->at_work);
		} else {
			await_one_point(operation);
		}
	}
}

static int stream_start_worker(struct CUstream_st *stream);

/* A function of the program's has ended the worker that it was called on (pthread_exit): its place
 * takes another one, or without resources the rest of this one. */
static void worker_left(void *argument)
{
	struct CUstream_st *stream = argument;
	struct driver_operation *operation = stream->at_work;

	driver_in_host_function = false;
	driver_green_running = NULL;
	if (operation->run_again) {
		pthread_mutex_lock(&queue_lock);
		operation->next = stream->head;
		stream->head = operation;
		if (!stream->tail)
			stream->tail = operation;
		stream->queued++;
		running -= !operation->is_idle;
		if (!running)
			pthread_cond_broadcast(&queue_idle);
		stream->busy = false;
	} else {
		stream_ran(stream, operation);
	}
	if (stream_start_worker(stream))
		stream_serve(stream);
	stream_drop(stream);
	pthread_mutex_unlock(&queue_lock);
}

static void *stream_work(void *argument)
{
	struct CUstream_st *stream = argument;

	/* Nothing but an exit of the program's function ends it early. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cleanup_push(worker_left, stream);
	pthread_mutex_lock(&queue_lock);
	stream_serve(stream);
	stream_drop(stream);
	pthread_mutex_unlock(&queue_lock);
	pthread_cleanup_pop(0);
	return NULL;
}

/* With the lock.  The worker takes no signals of the program's, but those that
 * its own instructions raise must reach the engine's fault handler. */
static int stream_start_worker(struct CUstream_st *stream)
{
	sigset_t faults, block, before;
	pthread_attr_t attributes;
	pthread_t thread;
	int error;

	sigfillset(&block);
	fault_signals(&faults);
	for (int signal = 1; signal < NSIG; signal++)
		if (sigismember(&faults, signal) == 1)
			sigdelset(&block, signal);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &block, &before);
	stream->references++;
	error = pthread_create(&thread, &attributes, stream_work, stream);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	if (error) {
		stream->references--;
		return -error;
	}
	pthread_setname_np(thread, "softgpu-stream");
	stream->has_worker = true;
	return 0;
}

/* With the lock.  Room in the queue and everything that has to be waited for. */
static int stream_admit(struct CUstream_st *stream, struct driver_operation *operation)
{
	while (stream->queued >= DRIVER_QUEUE_MAX) {
		struct driver_point some = { stream, stream->submitted - DRIVER_QUEUE_MAX / 2 };

		point_await(&some);
	}
	return operation_add_implicit(stream, operation);
}

CUresult driver_stream_submit(struct CUstream_st *stream, struct driver_operation *operation,
			      unsigned flags, struct driver_point *point)
{
	struct CUctx_st *context = stream->context;
	struct driver_point own;
	bool idle;

	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	pthread_mutex_lock(&queue_lock);
	stream->references++;	/* it may be destroyed while we wait for room */
	if (stream_admit(stream, operation))
		goto out_refuse;
	/* Who ends the context waits for what its streams have been given before. */
	if (driver_users_are_refused(&context->users)) {
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
		goto out_refuse;
	}
	idle = !stream->busy && !stream->head && operation_is_due(operation);
	if (!(idle && flags) && !stream->has_worker && stream_start_worker(stream))
		goto out_refuse;
	operation->next = NULL;
	operation->sequence = ++stream->submitted;
	own = (struct driver_point){ stream, operation->sequence };
	if (point) {
		*point = own;
		stream->references++;
	}
	if (idle && flags) {
		stream_run(stream, operation);
		/* Another thread may have queued something behind it. */
		if (stream->head || stream->ended)
			pthread_cond_signal(&stream->work);
	} else {
		if (stream->tail)
			stream->tail->next = operation;
		else
			stream->head = operation;
		stream->tail = operation;
		stream->queued++;
		pthread_cond_signal(&stream->work);
		if (flags & DRIVER_SUBMIT_WAIT)
			point_await(&own);
	}
	stream_drop(stream);
	pthread_mutex_unlock(&queue_lock);
	if (!(flags & DRIVER_SUBMIT_WAIT))
		return CUDA_SUCCESS;
	return __atomic_load_n(&context->error, __ATOMIC_ACQUIRE);

out_refuse:
	operation_drop_points(operation);
	stream_drop(stream);
	pthread_mutex_unlock(&queue_lock);
	operation->release(operation);
	return result;
}

void driver_stream_between(void (*act)(void *opaque), void *opaque)
{
	pthread_mutex_lock(&queue_lock);
	while (running)
		pthread_cond_wait(&queue_idle, &queue_lock);
	act(opaque);
	pthread_mutex_unlock(&queue_lock);
}

static bool drain(struct CUctx_st *context, const struct timespec *deadline)
{
	bool reached = true;
	struct driver_point *points = NULL;
	size_t count = 0, room = 0;
	struct CUstream_st *stream;

	/* A stream may end while we wait for another; so hold them all first.
	 * Without memory for that, wait for one at a time and look again. */
	pthread_mutex_lock(&queue_lock);
again:
	for (stream = context->streams; stream; stream = stream->next) {
		struct driver_point point = { stream, stream->submitted };

		if (point_is_reached(&point))
			continue;
		if (count == room) {
			size_t more = room ? 2 * room : 16;
			struct driver_point *grown = realloc(points, more * sizeof *grown);

			if (!grown) {
				stream->references++;
				reached = point_await_until(&point, deadline);
				stream_drop(stream);
				if (reached)
					goto again;
				break;
			}
			points = grown;
			room = more;
		}
		stream->references++;
		points[count++] = point;
	}
	for (size_t i = 0; i < count; i++) {
		reached = point_await_until(&points[i], deadline) && reached;
		stream_drop(points[i].stream);
	}
	pthread_mutex_unlock(&queue_lock);
	free(points);
	return reached;
}

void driver_stream_drain(struct CUctx_st *context)
{
	drain(context, NULL);
}

bool driver_stream_drain_for(struct CUctx_st *context, uint64_t ns)
{
	struct timespec deadline;

	clock_gettime(CLOCK_MONOTONIC, &deadline);
	ns += (uint64_t)deadline.tv_nsec;
	deadline.tv_sec += (time_t)(ns / 1000000000u);
	deadline.tv_nsec = (long)(ns % 1000000000u);
	return drain(context, &deadline);
}
