/* Completion queues and the channels that tell of them. */
#define _GNU_SOURCE
#include "fake_verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct event {
	struct event *next;
	struct queue *queue;
};

struct channel {
	struct ibv_comp_channel channel;
	pthread_mutex_t lock;
	struct event *first, **last;
	unsigned users;
};

struct queue {
	struct ibv_cq cq;
	pthread_mutex_t lock;
	pthread_cond_t acked;
	struct completion *entries;
	uint64_t pushed, polled;
	bool armed, armed_for_solicited;
	unsigned events_got, events_acked;
	unsigned users;
};

static struct queue *queue_of(struct ibv_cq *cq)
{
	return FAKE_OUTER(cq, struct queue, cq);
}

static struct channel *channel_of(struct ibv_comp_channel *channel)
{
	return FAKE_OUTER(channel, struct channel, channel);
}

FAKE_EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct channel *channel = calloc(1, sizeof(*channel));

	if (!channel)
		return NULL;
	channel->channel.context = context;
	/* As many can be read as there are events.  It blocks until the program says otherwise. */
	channel->channel.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	if (channel->channel.fd < 0) {
		free(channel);
		return NULL;
	}
	pthread_mutex_init(&channel->lock, NULL);
	channel->last = &channel->first;
	users_add(&context_of(context)->users, 1);
	return &channel->channel;
}

FAKE_EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *outer)
{
	struct channel *channel = channel_of(outer);

	if (!users_none(&channel->users))
		return EBUSY;
	users_add(&context_of(outer->context)->users, -1);
	close(outer->fd);
	pthread_mutex_destroy(&channel->lock);
	free(channel);
	return 0;
}

static void channel_tell(struct channel *channel, struct queue *queue)
{
	struct event *event = calloc(1, sizeof(*event));
	const uint64_t one = 1;

	if (!event)
		abort();
	event->queue = queue;
	pthread_mutex_lock(&channel->lock);
	*channel->last = event;
	channel->last = &event->next;
	if (write(channel->channel.fd, &one, sizeof(one)) != sizeof(one))
		abort();
	pthread_mutex_unlock(&channel->lock);
}

/* The queue of the first event, or NULL; the lock is held. */
static struct queue *channel_take(struct channel *channel)
{
	struct event *event = channel->first;
	struct queue *queue;

	if (!event)
		return NULL;
	queue = event->queue;
	channel->first = event->next;
	if (!channel->first)
		channel->last = &channel->first;
	free(event);
	return queue;
}

/* Those of a queue that ends.  Whoever reads the descriptor once more than there are events goes on reading. */
static void channel_forget(struct channel *channel, const struct queue *queue)
{
	struct event **place = &channel->first, *event;

	while ((event = *place)) {
		if (event->queue == queue) {
			*place = event->next;
			free(event);
		} else {
			place = &event->next;
		}
	}
	channel->last = place;
}

FAKE_EXPORT int ibv_get_cq_event(struct ibv_comp_channel *outer, struct ibv_cq **cq, void **cq_context)
{
	struct channel *channel = channel_of(outer);
	struct queue *queue;
	uint64_t one;

	do {
		if (read(outer->fd, &one, sizeof(one)) != sizeof(one))
			return -1;
		pthread_mutex_lock(&channel->lock);
		queue = channel_take(channel);
		if (queue)
			__atomic_add_fetch(&queue->events_got, 1, __ATOMIC_SEQ_CST);
		pthread_mutex_unlock(&channel->lock);
	} while (!queue);
	*cq = &queue->cq;
	*cq_context = queue->cq.cq_context;
	return 0;
}

FAKE_EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count)
{
	struct queue *queue = queue_of(cq);

	pthread_mutex_lock(&queue->lock);
	queue->events_acked += count;
	pthread_cond_signal(&queue->acked);
	pthread_mutex_unlock(&queue->lock);
}

FAKE_EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
					 struct ibv_comp_channel *channel, int vector)
{
	struct queue *queue;

	if (cqe < 1 || cqe > MOST_COMPLETIONS || vector) {
		errno = EINVAL;
		return NULL;
	}
	queue = calloc(1, sizeof(*queue));
	if (queue)
		queue->entries = calloc(cqe, sizeof(*queue->entries));
	if (!queue || !queue->entries) {
		free(queue);
		return NULL;
	}
	queue->cq = (struct ibv_cq){.context = context, .channel = channel, .cq_context = cq_context, .cqe = cqe};
	pthread_mutex_init(&queue->lock, NULL);
	pthread_cond_init(&queue->acked, NULL);
	users_add(&context_of(context)->users, 1);
	if (channel)
		users_add(&channel_of(channel)->users, 1);
	return &queue->cq;
}

FAKE_EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct queue *queue = queue_of(cq);

	if (!users_none(&queue->users))
		return EBUSY;
	if (cq->channel) {
		struct channel *channel = channel_of(cq->channel);

		pthread_mutex_lock(&channel->lock);
		channel_forget(channel, queue);
		pthread_mutex_unlock(&channel->lock);
		users_add(&channel->users, -1);
	}
	pthread_mutex_lock(&queue->lock);
	while (queue->events_acked != __atomic_load_n(&queue->events_got, __ATOMIC_SEQ_CST))
		pthread_cond_wait(&queue->acked, &queue->lock);
	pthread_mutex_unlock(&queue->lock);
	users_add(&context_of(cq->context)->users, -1);
	pthread_cond_destroy(&queue->acked);
	pthread_mutex_destroy(&queue->lock);
	free(queue->entries);
	free(queue);
	return 0;
}

void queue_users(struct ibv_cq *cq, int change)
{
	users_add(&queue_of(cq)->users, change);
}

void queue_push(struct ibv_cq *cq, const struct completion *completion, bool solicited)
{
	struct queue *queue = queue_of(cq);
	bool tell;

	pthread_mutex_lock(&queue->lock);
	if (queue->pushed - queue->polled == (uint64_t)cq->cqe) {
		/* A device would stop here for good, and its driver write a line to the kernel's log. */
		fprintf(stderr, "fake verbs: a completion queue of %d entries is overrun\n", cq->cqe);
		abort();
	}
	queue->entries[queue->pushed++ % cq->cqe] = *completion;
	tell = queue->armed && (!queue->armed_for_solicited || solicited || completion->wc.status);
	if (tell)
		queue->armed = false;
	if (tell && cq->channel)
		channel_tell(channel_of(cq->channel), queue);
	pthread_mutex_unlock(&queue->lock);
}

void queue_forget(struct ibv_cq *cq, const struct pair *pair)
{
	struct queue *queue = queue_of(cq);
	uint64_t kept;

	pthread_mutex_lock(&queue->lock);
	kept = queue->polled;
	for (uint64_t index = queue->polled; index < queue->pushed; index++) {
		struct completion entry = queue->entries[index % cq->cqe];

		if (entry.pair != pair)
			queue->entries[kept++ % cq->cqe] = entry;
	}
	queue->pushed = kept;
	pthread_mutex_unlock(&queue->lock);
}

int queue_poll(struct ibv_cq *cq, int most, struct ibv_wc *out)
{
	struct queue *queue = queue_of(cq);
	int count = 0;

	pthread_mutex_lock(&queue->lock);
	while (count < most && queue->polled < queue->pushed) {
		const struct completion *entry = &queue->entries[queue->polled++ % cq->cqe];

		out[count++] = entry->wc;
		if (entry->frees)
			entry->pair->freed = entry->frees;
	}
	pthread_mutex_unlock(&queue->lock);
	return count;
}

int queue_arm(struct ibv_cq *cq, int solicited_only)
{
	struct queue *queue = queue_of(cq);

	pthread_mutex_lock(&queue->lock);
	/* Armed for all it stays so when it is armed for some. */
	queue->armed_for_solicited = solicited_only && (!queue->armed || queue->armed_for_solicited);
	queue->armed = true;
	pthread_mutex_unlock(&queue->lock);
	return 0;
}
