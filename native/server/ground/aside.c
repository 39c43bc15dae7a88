/* See aside.h. */
#include "aside.h"

#include "../../transport/ground/thread.h"
#include "../../transport/transport.h"

/* Threads that stay for the next call that waits. */
#define PARKED_MOST 16u
/* What malloc itself takes for a frame. */
#define MALLOC_BYTES 32u

void aside_init(struct aside *aside, const _Atomic unsigned *host_waits, _Atomic int *threads)
{
	aside->host_waits = host_waits;
	aside->threads = threads;
	aside->last = &aside->first;
	pthread_mutex_init(&aside->lock, NULL);
	transport_cond_init(&aside->less);
	pthread_cond_init(&aside->wake, NULL);
}

static size_t cost(const struct aside_frame *frame)
{
	return sizeof(*frame) + frame->header.length + MALLOC_BYTES;
}

struct aside_frame *aside_next(struct aside *aside)
{
	struct aside_frame *frame;

	pthread_mutex_lock(&aside->lock);
	frame = aside->first;
	if (frame) {
		aside->first = frame->next;
		aside->bytes -= cost(frame);
		if (!aside->first)
			aside->last = &aside->first;
	} else {
		aside->lent = false;
	}
	pthread_cond_broadcast(&aside->less);
	pthread_mutex_unlock(&aside->lock);
	return frame;
}

enum aside_kept aside_keep(struct aside *aside, struct aside_frame *frame)
{
	uint64_t until_ns = transport_now_ns() + ASIDE_PATIENCE_NS;
	enum aside_kept kept = ASIDE_KEPT;
	int rc = 0;

	pthread_mutex_lock(&aside->lock);
	while (!rc && aside->lent && aside->bytes > ASIDE_BYTES_LIMIT)
		rc = transport_cond_wait_until(&aside->less, &aside->lock, until_ns);
	if (aside->lent && aside->bytes > ASIDE_BYTES_LIMIT)
		kept = ASIDE_FULL;
	else if (!aside->lent)
		kept = atomic_load(aside->host_waits) ? ASIDE_LENT : ASIDE_NOT;
	if (kept == ASIDE_KEPT || kept == ASIDE_LENT) {
		aside->lent = true;
		frame->next = NULL;
		*aside->last = frame;
		aside->last = &frame->next;
		aside->bytes += cost(frame);
	}
	pthread_mutex_unlock(&aside->lock);
	return kept;
}

bool aside_pass(struct aside *aside)
{
	bool passed;

	pthread_mutex_lock(&aside->lock);
	passed = !aside->first;
	if (passed) {
		aside->lent = false;
	} else if (aside->parked) {
		passed = true;
		aside->parked--;
		aside->woken++;
		atomic_fetch_add(aside->threads, 1);
		pthread_cond_signal(&aside->wake);
	}
	pthread_mutex_unlock(&aside->lock);
	return passed;
}

bool aside_park(struct aside *aside)
{
	bool parks;

	atomic_fetch_sub(aside->threads, 1);
	pthread_mutex_lock(&aside->lock);
	parks = aside->parked < PARKED_MOST;
	if (parks) {
		aside->parked++;
		while (!aside->woken)
			pthread_cond_wait(&aside->wake, &aside->lock);
		aside->woken--;
	}
	pthread_mutex_unlock(&aside->lock);
	return parks;
}
