#include "crew.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "transport.h"

/* A wake-up costs as much as a part of the work.  Of a copy of many parts the next comes sooner than that; a crew whose copy is
 * over keeps its processors no longer. */
#define CREW_SPIN_NS 200000u
/* Whose thread was taken off its processor for another's has kept that one waiting for milliseconds.  So many joins nothing is
 * given then, and twice as many each time, until what was given was done without (as in inbox.h). */
#define CREW_RESTS_LEAST 16u
#define CREW_RESTS_MOST 1024u
/* Enough for OpenSSL's ciphers. */
#define CREW_STACK_BYTES (256u << 10)

enum { FREE, GIVEN, ENDS };

struct hand {
	pthread_t thread;
	_Atomic uint32_t state;
	_Atomic uint32_t asleep;	/* it waits for the state to change */
	int (*work)(void *opaque);
	void *opaque;
	int result;
	long switches;			/* how often it was taken off its processor */
	struct crew *crew;
};

struct crew {
	unsigned count;
	unsigned given;			/* hands that have work, or have done it; a bit each */
	_Atomic bool wanted;		/* one of them was, since the last join */
	unsigned rests;			/* joins to come before which nothing is given */
	unsigned rests_again;
	_Atomic uint32_t joins;		/* who gave sleeps until a hand is free */
	struct hand hands[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value, const struct timespec *timeout)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Spin, then sleep, until there is something to do. */
static uint32_t hand_await(struct hand *hand)
{
	uint64_t start = transport_now_ns();
	uint32_t state;

	while ((state = atomic_load(&hand->state)) == FREE) {
		transport_relax();
		if (transport_now_ns() - start < CREW_SPIN_NS)
			continue;
		atomic_store(&hand->asleep, 1);
		/* Who gives looks for a sleeper behind changing the state. */
		if (atomic_load(&hand->state) == FREE)
			futex_wait(&hand->state, FREE, NULL);
		atomic_store(&hand->asleep, 0);
	}
	return state;
}

static void hand_look(struct hand *hand)
{
	struct rusage usage;

	if (getrusage(RUSAGE_THREAD, &usage) || usage.ru_nivcsw == hand->switches)
		return;
	hand->switches = usage.ru_nivcsw;
	atomic_store(&hand->crew->wanted, true);
}

static void *hand_run(void *opaque)
{
	struct hand *hand = opaque;

	while (hand_await(hand) == GIVEN) {
		hand->result = hand->work(hand->opaque);
		hand_look(hand);
		atomic_store(&hand->state, FREE);
		if (atomic_exchange(&hand->crew->joins, 0))
			futex_wake(&hand->crew->joins);
	}
	return NULL;
}

static void hand_tell(struct hand *hand, uint32_t state)
{
	atomic_store(&hand->state, state);
	if (atomic_load(&hand->asleep))
		futex_wake(&hand->state);
}

struct crew *crew_make(unsigned threads)
{
	struct crew *crew = calloc(1, sizeof(*crew) + threads * sizeof(crew->hands[0]));
	pthread_attr_t small;
	sigset_t all, before;

	if (!crew)
		return NULL;
	crew->rests_again = CREW_RESTS_LEAST;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, CREW_STACK_BYTES);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (crew->count < threads) {
		struct hand *hand = &crew->hands[crew->count];

		hand->crew = crew;
		if (pthread_create(&hand->thread, &small, hand_run, hand))
			break;
		crew->count++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&small);
	if (crew->count == threads)
		return crew;
	crew_drop(crew);
	return NULL;
}

void crew_drop(struct crew *crew)
{
	if (!crew)
		return;
	for (unsigned i = 0; i < crew->count; i++)
		hand_tell(&crew->hands[i], ENDS);
	for (unsigned i = 0; i < crew->count; i++)
		pthread_join(crew->hands[i].thread, NULL);
	free(crew);
}

bool crew_give(struct crew *crew, int (*work)(void *opaque), void *opaque)
{
	for (unsigned i = 0; crew && !crew->rests && i < crew->count; i++) {
		struct hand *hand = &crew->hands[i];

		/* What one has done is told by the next join. */
		if (crew->given & 1u << i)
			continue;
		hand->work = work;
		hand->opaque = opaque;
		crew->given |= 1u << i;
		hand_tell(hand, GIVEN);
		return true;
	}
	return false;
}

/* Wait until it is free.  Is it? */
static bool hand_join(struct hand *hand, uint64_t end_ns)
{
	struct crew *crew = hand->crew;
	uint64_t start = transport_now_ns(), now = start;

	while (atomic_load(&hand->state) != FREE) {
		struct timespec left;

		transport_relax();
		now = transport_now_ns();
		if (now >= end_ns)
			return false;
		if (now - start < CREW_SPIN_NS)
			continue;
		left.tv_sec = (time_t)((end_ns - now) / 1000000000u);
		left.tv_nsec = (long)((end_ns - now) % 1000000000u);
		atomic_store(&crew->joins, 1);
		if (atomic_load(&hand->state) != FREE)
			futex_wait(&crew->joins, 1, end_ns == UINT64_MAX ? NULL : &left);
	}
	return true;
}

/* All is done: how often nothing is to be given now. */
static void crew_rest(struct crew *crew)
{
	if (!crew->given) {
		crew->rests -= crew->rests > 0;
	} else if (!atomic_exchange(&crew->wanted, false)) {
		crew->rests_again = CREW_RESTS_LEAST;
	} else {
		crew->rests = crew->rests_again;
		if (crew->rests_again < CREW_RESTS_MOST)
			crew->rests_again *= 2;
	}
}

int crew_join(struct crew *crew, int timeout_ms)
{
	uint64_t end_ns = timeout_ms < 0 ? UINT64_MAX : transport_now_ns() + (uint64_t)timeout_ms * 1000000u;
	int rc = 0;

	for (unsigned i = 0; crew && i < crew->count; i++)
		if (crew->given & 1u << i && !hand_join(&crew->hands[i], end_ns))
			return -ETIMEDOUT;
	for (unsigned i = 0; crew && i < crew->count; i++)
		if (crew->given & 1u << i && crew->hands[i].result)
			rc = crew->hands[i].result;
	if (crew) {
		crew_rest(crew);
		crew->given = 0;
	}
	return rc;
}
