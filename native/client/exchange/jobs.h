/* jobs.h - what the server asks this process to do when a stream or a graph gets there (jobs.c), and what of it may be
 * still to come. */
#ifndef FARBUS_CLIENT_JOBS_H
#define FARBUS_CLIENT_JOBS_H

#include "../client.h"

struct host_job {
	struct host_job *next;
	/* Do it, on a thread of this library's.  `again`: this is a copy of it, which may be asked for anew meanwhile; else
	 * it ends with that. */
	void (*run)(struct host_job *job, bool again);
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

/* Name a job and count it, before its request is posted; the request's sequence: it is posted from now on. */
CUresult client_job_open(const struct host_job *template, struct host_job **job);
void client_job_posted(void *job, uint64_t sequence);
/* It was not posted, or not taken.  false: it was asked for all the same, and ends by itself. */
bool client_job_cancel(uint64_t token);
/* It is done; one that was refused; one of graphs that is to be forgotten. */
void client_job_end(struct host_job *job);
void client_job_end_refused(struct host_job *job);
void client_job_end_kept(struct host_job *job);

/* The server says that a stream has come to a token. */
void client_job_ready(struct client_session *session, uint64_t token, CUresult status);
/* The driver refused the request of that sequence, if it is one of these: a callback is called with the error that ended
 * its context, as if it had come before that; a host function is over. */
void client_job_refused(struct client_session *session, uint64_t sequence, CUresult status);
/* The context has failed, or ended: host functions and copies of its streams will not come, and after its end no
 * callbacks either, so nothing waits for them any more. */
void client_jobs_uncount(const struct client_context *context, bool ended);
/* Some of a session's contexts that something is waited for in; how many. */
unsigned client_jobs_contexts(const struct client_session *session, CUcontext *contexts, unsigned room);
/* Is there a callback that a stream is to come to, or that was refused and has not returned? */
bool client_jobs_have_callbacks(void);
/* Until those that were refused have returned. */
void client_jobs_await_refused(void);

/* May any graph call host functions or read memory of this process? */
bool client_host_kept(void);
/* May anything that is still to run write to this process's memory? */
bool client_host_busy(void);
/* Is there a host function that has not returned, of a graph or not? */
bool client_host_functions(void);

#endif
