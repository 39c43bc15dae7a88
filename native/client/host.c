/* What the server asks this process to do when a stream gets there: host
 * functions, and the bytes of pinned memory that could not be taken earlier.
 * A thread of its own does both: a host function may take long, and what it
 * does must not keep the inbox from being read. */
#include "capture.h"
#include "exchange.h"
#include "host.h"
#include "pages.h"

#include <stdlib.h>
#include <string.h>

#include "../transport/thread.h"

struct host_job {
	struct host_job *next;
	struct client_session *session;	/* of its stream; a graph's is known when it runs */
	const struct client_context *context;	/* the same; NULL: nothing of a stream */
	uint64_t token;
	/* of what a stream calls once, under job_lock */
	struct host_job *older, *newer;	/* others that were posted and to which no stream has come */
	uint64_t sequence;		/* of its request */
	bool posted;			/* it is among them */
	bool counted;			/* in session.outstanding */
	bool refused;			/* the driver did not take it: nobody waits for an answer */
	CUresult status;		/* what a stream callback is told */
	bool kept;			/* a graph's: until the server says otherwise */
	bool quiet;			/* no stream waits for it */
	bool asked;			/* under job_lock: its stream has come to it; of a kept one, and nobody has begun with it */
	/* a host function */
	CUhostFn function;
	CUstreamCallback callback;
	CUstream stream;
	uint64_t wire;			/* its stream's client_managed_key; 0: a graph's */
	void *argument;
	/* or a gate */
	void (*reached)(struct host_job *gate, void *opaque);
	/* or a pulled copy */
	const uint8_t *host;
	size_t pitch;
	size_t width;
	size_t height;
};

/* A job is found by its token, with this lock, and ends with that: so what a server says too late finds nothing, and what it
 * says twice one that is asked for.  Until the server has been answered, no other job has the token's place there. */
static pthread_mutex_t job_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t job_there = PTHREAD_COND_INITIALIZER;
static struct host_job *job_first;
static struct host_job **job_last = &job_first;
/* Threads that run jobs, and those of them that wait for one.  A host function may wait for
 * another stream's, as with CUDA's own streams, so each gets a thread while there are few. */
#define JOB_THREADS 64u
static unsigned job_threads;
static unsigned job_threads_idle;
static unsigned jobs_queued;
/* Jobs of graphs, which may run and touch this process's memory at any time. */
static _Atomic unsigned kept_jobs;
/* What streams are to come to once, and the callbacks of it; callbacks that were refused and have not returned. */
static struct host_job *posted_newest;
static unsigned posted_callbacks;
static unsigned refused_callbacks;
static pthread_cond_t refused_told = PTHREAD_COND_INITIALIZER;

/* The request's sequence: it is posted from now on. */
static void job_posted(void *opaque, uint64_t sequence)
{
	struct host_job *job = opaque;

	pthread_mutex_lock(&job_lock);
	job->sequence = sequence;
	job->posted = true;
	job->older = posted_newest;
	if (job->older)
		job->older->newer = job;
	posted_newest = job;
	posted_callbacks += !!job->callback;
	pthread_mutex_unlock(&job_lock);
}

/* With job_lock. */
static void job_unlist(struct host_job *job)
{
	if (!job->posted)
		return;
	job->posted = false;
	posted_callbacks -= !!job->callback;
	if (job->older)
		job->older->newer = job->newer;
	if (job->newer)
		job->newer->older = job->older;
	else
		posted_newest = job->older;
}

void client_host_uncount(const struct client_context *context, bool ended)
{
	struct client_session *session = context->session;
	int count = 0;

	client_guard_begin();
	pthread_mutex_lock(&job_lock);
	for (struct host_job *job = posted_newest; job; job = job->older) {
		if (job->context != context || !job->counted || (job->callback && !ended))
			continue;
		job->counted = false;
		count++;
	}
	pthread_mutex_unlock(&job_lock);
	client_guard_end();
	if (count)
		client_outstanding(session, -count);
}

bool client_host_busy(void)
{
	bool busy = atomic_load(&kept_jobs);

	for (unsigned i = 0; i < farbus_client.session_count && !busy; i++) {
		struct client_session *session = &farbus_client.sessions[i];

		client_guard_begin();
		pthread_mutex_lock(&session->wait_lock);
		busy = session->outstanding || session->targets;
		pthread_mutex_unlock(&session->wait_lock);
		client_guard_end();
	}
	return busy;
}

bool client_host_functions(void)
{
	bool any = atomic_load(&kept_jobs);

	for (unsigned i = 0; i < farbus_client.session_count && !any; i++)
		any = atomic_load(&farbus_client.sessions[i].outstanding);
	return any;
}

/* Send the rows of a pulled copy, packed. */
static void job_send(const struct host_job *job)
{
	const struct client_route route = { .session = job->session };
	size_t total = job->width * job->height, at = 0;
	uint8_t *packed = malloc(WIRE_BULK_BYTES);

	if (!packed) {
		client_message("out of memory while reading pinned memory for the GPU");
		client_session_fail(job->session, -12);
		return;
	}
	while (at < total) {
		const struct wire_pull_data fixed = { .token = job->token, .offset = at };
		struct client_request request = {
			.op = WIRE_OP_PULL_DATA,
			.fixed = &fixed,
			.fixed_bytes = sizeof(fixed),
			.tail = packed,
		};
		size_t bytes = 0;

		while (bytes < WIRE_BULK_BYTES && at + bytes < total) {
			size_t row = (at + bytes) / job->width, column = (at + bytes) % job->width;
			size_t now = job->width - column;

			if (now > WIRE_BULK_BYTES - bytes)
				now = WIRE_BULK_BYTES - bytes;
			memcpy(packed + bytes, job->host + row * job->pitch + column, now);
			bytes += now;
		}
		request.tail_bytes = bytes;
		if (client_post_to(&route, &request) != CUDA_SUCCESS)
			break;
		at += bytes;
	}
	free(packed);
}

/* Let the stream that waits for the token go on. */
static void job_tell(const struct host_job *job)
{
	const struct client_route route = { .session = job->session };
	const struct wire_host_done fixed = { .token = job->token };
	const struct client_request request = {
		.op = WIRE_OP_HOST_DONE,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};

	client_post_to(&route, &request);
}

static void job_end(struct host_job *job)
{
	bool counted;

	client_guard_begin();
	pthread_mutex_lock(&job_lock);
	handle_close(&farbus_client.handles, HANDLE_TOKEN, job->token);
	job_unlist(job);
	counted = job->counted;
	pthread_mutex_unlock(&job_lock);
	client_guard_end();
	if (counted)
		client_outstanding(job->session, -1);
	free(job);
}

static void job_refused(struct host_job *job)
{
	pthread_mutex_lock(&job_lock);
	refused_callbacks -= !!job->callback;
	pthread_cond_broadcast(&refused_told);
	pthread_mutex_unlock(&job_lock);
	job_end(job);
}

/* The program's function has returned, or has ended its thread: the stream goes on. */
static void job_called(void *opaque)
{
	struct host_job *job = opaque;

	client_thread()->host_function = false;
	if (job->refused) {
		job_refused(job);
		return;
	}
	if (client_managed_any())
		client_managed_host_end(job->wire);
	job_tell(job);
	client_flush(job->session);
	if (!job->kept)
		job_end(job);
}

/* No CUDA call is allowed meanwhile. */
static void job_call(struct host_job *job)
{
	pthread_cleanup_push(job_called, job);
	client_thread()->host_function = true;
	if (job->callback)
		job->callback(job->stream, job->status, job->argument);
	else
		job->function(job->argument);
	pthread_cleanup_pop(1);
}

/* Call the program's function, or send what is in its memory, and let the stream go on. */
static void job_do(struct host_job *job)
{
	if (!job->host) {
		if (client_managed_any())
			client_managed_host_begin(job->wire);
		job_call(job);
		return;
	}
	job_send(job);
	client_flush(job->session);
	if (!job->kept)
		job_end(job);
}

/* Run one that is called once, or that is to be forgotten.  Of what the driver refused callbacks alone are called, with
 * the error that their context has. */
static void job_run(struct host_job *job)
{
	if (job->refused && job->callback && client_result_is_sticky(job->status)) {
		job_call(job);
	} else if (job->refused) {
		job_refused(job);
	} else if (job->kept) {
		atomic_fetch_sub(&kept_jobs, 1);
		job_end(job);
	} else if (job->reached) {
		job->reached(job, job->argument);
	} else {
		job_do(job);
	}
}

static bool job_runs_again(const struct host_job *job)
{
	return job->kept && (int32_t)job->status != WIRE_TOKEN_FORGOTTEN;
}

static int job_thread_start(void);

/* A function of the program's has ended the thread that it was called on (pthread_exit). */
static void job_thread_left(void *opaque)
{
	(void)opaque;
	pthread_mutex_lock(&job_lock);
	job_threads--;
	pthread_mutex_unlock(&job_lock);
	(void)job_thread_start();
}

static void *job_thread(void *opaque)
{
	(void)opaque;
	pthread_cleanup_push(job_thread_left, NULL);
	for (;;) {
		struct host_job *job, now;
		bool again;

		pthread_mutex_lock(&job_lock);
		job_threads_idle++;
		while (!job_first)
			pthread_cond_wait(&job_there, &job_lock);
		job_threads_idle--;
		jobs_queued--;
		job = job_first;
		job_first = job->next;
		if (!job_first)
			job_last = &job_first;
		/* It may be asked for anew, and then forgotten, before this thread is done with it. */
		again = job_runs_again(job);
		job->asked = !again;
		now = *job;
		pthread_mutex_unlock(&job_lock);
		if (again)
			job_do(&now);
		else
			job_run(job);
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static int job_thread_start(void)
{
	int rc = 0;

	client_guard_begin();
	pthread_mutex_lock(&job_lock);
	if (job_threads < JOB_THREADS && job_threads_idle <= jobs_queued) {
		rc = transport_thread_start(NULL, job_thread, NULL);
		job_threads += rc == 0;
		/* With one at least, jobs are run. */
		if (job_threads)
			rc = 0;
	}
	pthread_mutex_unlock(&job_lock);
	client_guard_end();
	return rc;
}

/* With job_lock. */
static void job_queue(struct host_job *job, CUresult status)
{
	job->status = status;
	job->asked = true;
	jobs_queued++;
	job->next = NULL;
	*job_last = job;
	job_last = &job->next;
	pthread_cond_signal(&job_there);
}

/* Could a server of ours ask for it now?  With job_lock. */
static bool job_may_be_asked(const struct host_job *job, const struct client_session *session)
{
	if (job->asked || (job->session && job->session != session))
		return false;
	/* The end of an object may come with the answer to the call that makes it. */
	return job->kept || job->posted || (job->quiet && !job->reached);
}

/* The server says that a stream has come to a token. */
static void job_ready(struct client_session *session, uint64_t token, CUresult status)
{
	struct host_job *job;

	(void)job_thread_start();
	pthread_mutex_lock(&job_lock);
	job = handle_get(&farbus_client.handles, HANDLE_TOKEN, token);
	if (job && job_may_be_asked(job, session)) {
		job->session = session;
		job_unlist(job);
		job_queue(job, status);
	}
	pthread_mutex_unlock(&job_lock);
}

void client_host_refused(struct client_session *session, uint64_t sequence, CUresult status)
{
	struct host_job *job;

	(void)job_thread_start();
	pthread_mutex_lock(&job_lock);
	for (job = posted_newest; job && (job->session != session || job->sequence != sequence); job = job->older)
		;
	/* Freed by the thread that runs jobs: this one may not wait for malloc's lock (target_done). */
	if (job && !job->reached) {
		job_unlist(job);
		job->refused = true;
		refused_callbacks += !!job->callback;
		job_queue(job, status);
	}
	pthread_mutex_unlock(&job_lock);
}

/* How many contexts are asked at a time. */
#define ASKED_CONTEXTS 8u

void client_host_ask(struct client_session *session)
{
	CUcontext contexts[ASKED_CONTEXTS];
	unsigned count = 0;

	/* A capture forbids it. */
	if (client_captures())
		return;
	client_guard_begin();
	pthread_mutex_lock(&job_lock);
	for (const struct host_job *job = posted_newest; job && count < ASKED_CONTEXTS; job = job->older) {
		unsigned i = 0;

		if (job->session != session || !job->counted || !job->context)
			continue;
		while (i < count && contexts[i] != job->context->handle)
			i++;
		if (i == count)
			contexts[count++] = job->context->handle;
	}
	pthread_mutex_unlock(&job_lock);
	client_guard_end();
	for (unsigned i = 0; i < count; i++) {
		const struct client_route route = { .session = session, .context = (uint64_t)(uintptr_t)contexts[i] };

		client_query_legacy(&route);
	}
}

void client_host_settle(void)
{
	const struct client_context *context = client_context_current();
	const struct client_request request = { .op = WIRE_OP_CONTEXT_SYNCHRONIZE };
	struct client_wait wait = { 0 };
	struct client_route route;
	bool any;

	client_guard_begin();
	pthread_mutex_lock(&job_lock);
	any = posted_callbacks || refused_callbacks;
	pthread_mutex_unlock(&job_lock);
	client_guard_end();
	if (!any || !context || client_thread()->host_function)
		return;
	/* With its answer all that was posted before is known to be accepted or refused. */
	route = (struct client_route){ .session = context->session, .context = (uint64_t)(uintptr_t)context->handle };
	client_call_own(&route, &request, &wait);
	pthread_mutex_lock(&job_lock);
	while (refused_callbacks)
		pthread_cond_wait(&refused_told, &job_lock);
	pthread_mutex_unlock(&job_lock);
}

void client_host_call(struct client_session *session, uint64_t token, CUresult status)
{
	job_ready(session, token, status);
}

void client_host_pull(struct client_session *session, uint64_t token)
{
	job_ready(session, token, CUDA_SUCCESS);
}

/* Name a job and count it, before its request is posted. */
static CUresult job_open(const struct host_job *template, struct host_job **job)
{
	*job = malloc(sizeof(**job));
	if (!*job)
		return CUDA_ERROR_OUT_OF_MEMORY;
	**job = *template;
	if (job_thread_start() ||
	    handle_open(&farbus_client.handles, HANDLE_TOKEN, *job, &(*job)->token)) {
		free(*job);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (template->kept)
		atomic_fetch_add(&kept_jobs, 1);
	(*job)->counted = !template->kept && !template->quiet;
	if ((*job)->counted)
		client_outstanding(template->session, 1);
	return CUDA_SUCCESS;
}

/* It was not posted, or not taken.  false: it was asked for all the same, and ends by itself. */
static bool job_cancel(uint64_t token)
{
	struct host_job *job;

	client_guard_begin();
	pthread_mutex_lock(&job_lock);
	job = handle_get(&farbus_client.handles, HANDLE_TOKEN, token);
	if (job && !job->asked)
		job->asked = true;
	else
		job = NULL;
	pthread_mutex_unlock(&job_lock);
	client_guard_end();
	if (!job)
		return false;
	if (job->kept)
		atomic_fetch_sub(&kept_jobs, 1);
	job_end(job);
	return true;
}

/* Where it goes, the request's first field says. */
static CUresult job_post(struct host_job *job, enum wire_op op, const void *fixed, size_t fixed_bytes,
			 struct client_route *route)
{
	const struct client_request request = { .op = op, .fixed = fixed, .fixed_bytes = fixed_bytes };
	CUresult result = client_route_find(op, fixed, route);

	return result == CUDA_SUCCESS ? client_post_registered(route, &request, job_posted, job) : result;
}

/* Have it leave; of one that a capture forbids, which ends by itself, say so.  One that could not be posted is gone. */
static CUresult job_posting(const struct client_route *route, uint64_t token, CUresult result)
{
	if (result != CUDA_SUCCESS) {
		(void)job_cancel(token);
		return result;
	}
	client_flush(route->session);
	return client_confirm(route);
}

bool client_host_kept(void)
{
	return atomic_load(&kept_jobs);
}

static CUresult job_open_token(const struct host_job *template, uint64_t *token)
{
	struct host_job *job;
	CUresult result = job_open(template, &job);

	if (result == CUDA_SUCCESS)
		*token = job->token;
	return result;
}

CUresult client_host_keep(CUhostFn function, void *argument, uint64_t *token)
{
	const struct host_job template = {
		.function = function,
		.argument = argument,
		.kept = true,
	};

	return job_open_token(&template, token);
}

CUresult client_host_once(CUhostFn function, void *argument, uint64_t *token)
{
	const struct host_job template = {
		.function = function,
		.argument = argument,
		.quiet = true,
	};

	return job_open_token(&template, token);
}

void client_host_drop(uint64_t token)
{
	(void)job_cancel(token);
}

/* ---- gates ---- */

static void awaited_change(struct client_session *session, int change)
{
	client_guard_begin();
	pthread_mutex_lock(&session->wait_lock);
	session->awaited = (unsigned)((int)session->awaited + change);
	if (session->awaited)
		client_receiver_expects(session);
	pthread_mutex_unlock(&session->wait_lock);
	client_guard_end();
}

CUresult client_gate_close(uint64_t stream, bool waits,
			   void (*reached)(struct host_job *gate, void *opaque), void *opaque,
			   struct host_job **gate)
{
	const struct client_route route = client_route_stream(stream);
	const struct host_job template = {
		.session = route.session,
		.context = client_stream_context(stream),
		.quiet = !waits,
		.argument = opaque,
		.reached = reached,
	};
	struct wire_stream_host_function function = { .stream = stream };
	struct wire_stream_gate fixed = { .stream = stream, .waits = waits };
	struct client_request request = {
		.op = WIRE_OP_STREAM_GATE,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct host_job *job;
	CUresult result;

	/* Before 2.4 a gate is a host function. */
	if (!client_session_has(route.session, WIRE_OP_STREAM_GATE))
		request = (struct client_request){
			.op = WIRE_OP_STREAM_HOST_FUNCTION,
			.fixed = &function,
			.fixed_bytes = sizeof(function),
		};
	if (waits)
		client_stream_pace(stream, CLIENT_WEIGHT_HOST_FUNCTION, 0);
	else
		awaited_change(route.session, 1);
	result = job_open(&template, &job);
	if (result == CUDA_SUCCESS) {
		fixed.token = function.token = job->token;
		if (gate)
			*gate = job;
		result = client_post_registered(&route, &request, job_posted, job);
		/* Reached by a server that did not wait for all of it: what it leads to is still to be done. */
		if (result != CUDA_SUCCESS && !job_cancel(fixed.token))
			result = CUDA_SUCCESS;
	}
	if (result == CUDA_SUCCESS)
		client_flush(route.session);
	else if (!waits)
		awaited_change(route.session, -1);
	return result;
}

void client_gate_open(struct host_job *gate)
{
	struct client_session *session = gate->session;

	job_tell(gate);
	client_flush(session);
	if (gate->quiet)
		awaited_change(session, -1);
	job_end(gate);
}

/* A copy in a captured stream: each run of the graph reads the bytes anew. */
CUresult client_host_copy_captured(uint64_t device, size_t device_pitch, const void *host,
				   size_t host_pitch, size_t width, size_t height,
				   uint64_t stream_wire)
{
	const struct host_job template = {
		.host = host,
		.pitch = host_pitch,
		.width = width,
		.height = height,
		.kept = true,
	};
	struct wire_capture_copy_to_device request = {
		.device = device,
		.pitch = device_pitch,
		.width = width,
		.height = height,
		.stream = stream_wire,
	};
	struct host_job *job;
	CUresult result = job_open(&template, &job);

	if (result != CUDA_SUCCESS)
		return result;
	request.token = job->token;
	/* On failure the server forgets the token by itself, if it ever had it. */
	return client_call(WIRE_OP_CAPTURE_COPY_TO_DEVICE, &request, sizeof(request), NULL, 0);
}

CUresult client_host_copy(uint64_t device, size_t device_pitch, const void *host, size_t host_pitch,
			  size_t width, size_t height, uint64_t stream_wire)
{
	const struct host_job template = {
		.session = client_stream_session(stream_wire),
		.context = client_stream_context(stream_wire),
		.host = host,
		.pitch = host_pitch,
		.width = width,
		.height = height,
	};
	struct wire_copy_pinned_to_device request = {
		.device = device,
		.pitch = device_pitch,
		.width = width,
		.height = height,
		.stream = stream_wire,
	};
	struct client_route route;
	struct host_job *job;
	CUresult result;

	client_stream_pace(stream_wire, CLIENT_WEIGHT_WORK, 0);
	result = job_open(&template, &job);
	if (result != CUDA_SUCCESS)
		return result;
	request.token = job->token;
	result = job_post(job, WIRE_OP_COPY_PINNED_TO_DEVICE, &request, sizeof(request), &route);
	return job_posting(&route, request.token, result);
}

static CUresult host_function_captured(const struct host_job *template, uint64_t stream_wire)
{
	struct wire_capture_host_function request = {
		.stream = stream_wire,
		.function = (uint64_t)(uintptr_t)template->function,
		.argument = (uint64_t)(uintptr_t)template->argument,
	};
	struct host_job kept = *template, *job;
	CUresult result;

	/* CUDA has no callbacks in graphs, only host functions: the capture is lost, as by
	 * asking the stream whether it is done. */
	if (template->callback) {
		const struct wire_stream_query query = { .stream = stream_wire };

		return client_call(WIRE_OP_STREAM_QUERY, &query, sizeof(query), NULL, 0);
	}
	kept.kept = true;
	result = job_open(&kept, &job);
	if (result != CUDA_SUCCESS)
		return result;
	request.token = job->token;
	return client_call(WIRE_OP_CAPTURE_HOST_FUNCTION, &request, sizeof(request), NULL, 0);
}

static CUresult host_function(CUstream stream, const struct host_job *template)
{
	struct wire_stream_host_function request;
	struct host_job pending = *template, *job;
	CUresult result = client_stream_enter(stream, &request.stream);
	struct client_route route;
	bool managed;

	if (result != CUDA_SUCCESS)
		return result;
	if (client_stream_captured(request.stream))
		return host_function_captured(template, request.stream);
	client_stream_pace(request.stream, CLIENT_WEIGHT_HOST_FUNCTION, 0);
	pending.session = client_stream_session(request.stream);
	pending.context = client_stream_context(request.stream);
	pending.wire = client_managed_key(request.stream);
	result = job_open(&pending, &job);
	if (result != CUDA_SUCCESS)
		return result;
	request.token = job->token;
	_Static_assert(sizeof(struct wire_stream_callback) == sizeof(request), "the same fields");
	/* Not while another thread brings pages back by what would come behind it (client_pages_bring). */
	managed = client_managed_any();
	if (managed)
		client_pages_lock();
	result = job_post(job, template->callback ? WIRE_OP_STREAM_CALLBACK : WIRE_OP_STREAM_HOST_FUNCTION, &request,
			  sizeof(request), &route);
	if (managed)
		client_pages_unlock();
	return job_posting(&route, request.token, result);
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
	const struct host_job template = { .function = fn, .argument = userData };

	if (!fn)
		return CUDA_ERROR_INVALID_VALUE;
	return host_function(hStream, &template);
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
			     unsigned int flags)
{
	const struct host_job template = {
		.callback = callback,
		.stream = hStream,
		.argument = userData,
	};

	if (!callback || flags)
		return CUDA_ERROR_INVALID_VALUE;
	return host_function(hStream, &template);
}

CUresult cuLaunchHostFunc_v2(CUstream hStream, CUhostFn fn, void *userData, unsigned int syncMode)
{
	(void)syncMode;
	return cuLaunchHostFunc(hStream, fn, userData);
}
