/* Jobs that servers have this process do: who finds them, and the threads that do them.
 *
 * What a job does comes with it (host.c).  Threads of their own do them: a host function may take long, and what it
 * does must not keep the inbox from being read. */
#include "../ground/thread.h"
#include "jobs.h"
#include "outstanding.h"
#include "waits.h"

#include <stdlib.h>

#include "../../transport/ground/thread.h"

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
static _Atomic uint32_t refused_callbacks;

void client_job_posted(void *opaque, uint64_t sequence)
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

void client_jobs_uncount(const struct client_context *context, bool ended)
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

		wait_lock(session);
		busy = session->outstanding || session->targets;
		wait_unlock(session);
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

void client_job_end(struct host_job *job)
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

void client_job_end_refused(struct host_job *job)
{
	if (job->callback) {
		atomic_fetch_sub(&refused_callbacks, 1);
		futex_wake(&refused_callbacks);
	}
	client_job_end(job);
}

void client_job_end_kept(struct host_job *job)
{
	atomic_fetch_sub(&kept_jobs, 1);
	client_job_end(job);
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
		now.run(again ? &now : job, again);
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

void client_job_ready(struct client_session *session, uint64_t token, CUresult status)
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

void client_job_refused(struct client_session *session, uint64_t sequence, CUresult status)
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
		atomic_fetch_add(&refused_callbacks, !!job->callback);
		job_queue(job, status);
	}
	pthread_mutex_unlock(&job_lock);
}

unsigned client_jobs_contexts(const struct client_session *session, CUcontext *contexts, unsigned room)
{
	unsigned count = 0;

	client_guard_begin();
	pthread_mutex_lock(&job_lock);
	for (const struct host_job *job = posted_newest; job && count < room; job = job->older) {
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
	return count;
}

bool client_jobs_have_callbacks(void)
{
	bool any;

	client_guard_begin();
	pthread_mutex_lock(&job_lock);
	any = posted_callbacks || atomic_load(&refused_callbacks);
	pthread_mutex_unlock(&job_lock);
	client_guard_end();
	return any;
}

/* Without the lock: a handler of the program's may run meanwhile, and touch a page that comes by a job. */
void client_jobs_await_refused(void)
{
	uint32_t count;

	while ((count = atomic_load(&refused_callbacks)))
		futex_wait(&refused_callbacks, count);
	/* The next one who waits: each end of a callback wakes one. */
	futex_wake(&refused_callbacks);
}

CUresult client_job_open(const struct host_job *template, struct host_job **job)
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

bool client_job_cancel(uint64_t token)
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
		client_job_end_kept(job);
	else
		client_job_end(job);
	return true;
}

bool client_host_kept(void)
{
	return atomic_load(&kept_jobs);
}
