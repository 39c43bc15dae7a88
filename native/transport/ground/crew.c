#include "crew.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../transport.h"
#include "futex.h"
#include "processors.h"

/* One thread carries 4 to 6 GB/s through a socket, and copies 10, whatever the machine could.  With so many processors others are idle
 * enough to help; with fewer each side's thread and the device's would have to give way to them. */
#define CREW_PROCESSORS 8u
/* A wake-up takes longer than a part of the work.  Of a copy of many parts the next comes sooner than that; a crew whose copy is
 * over keeps its processors no longer. */
#define CREW_SPIN_NS 200000u
/* Whose thread was taken off its processor for another's has kept that one waiting for milliseconds.  So many joins nothing is
 * given then, and twice as many each time, until what was given was done without (as in inbox.h). */
#define CREW_RESTS_LEAST 16u
#define CREW_RESTS_MOST 1024u
/* Enough for OpenSSL's ciphers. */
#define CREW_STACK_BYTES (256u << 10)

/* Of a hand: it has nothing to do; was given something, which whoever makes it BUSY does; does it; is to end. */
enum { FREE, GIVEN, BUSY, ENDS };

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
	pid_t process;			/* whose threads they are; 0: there are none */
	unsigned count;
	unsigned given;			/* hands that have work, or have done it; a bit each */
	_Atomic uint32_t joins;		/* who gave sleeps until a hand is free */
	_Atomic bool wanted;		/* one of them was taken off its processor, since the last join */
	unsigned rests;			/* joins to come before which nothing is given */
	unsigned rests_again;
	struct hand hands[CREW_THREADS];
};

static _Atomic unsigned least_processors = CREW_PROCESSORS;

bool crew_has_processors(void)
{
	return transport_processors() >= atomic_load(&least_processors);
}

void crew_set_processors(unsigned least)
{
	atomic_store(&least_processors, least);
}

/* Spin, then sleep, until there is something to do. */
static uint32_t hand_await(struct hand *hand)
{
	uint64_t start = transport_now_ns();
	uint32_t state;

	/* BUSY: who gave it does it. */
	while ((state = atomic_load(&hand->state)) == FREE || state == BUSY) {
		transport_relax();
		if (transport_now_ns() - start < CREW_SPIN_NS)
			continue;
		atomic_store(&hand->asleep, 1);
		/* Who gives looks for a sleeper behind changing the state. */
		if (atomic_load(&hand->state) == state)
			futex_wait(&hand->state, state);
		atomic_store(&hand->asleep, 0);
	}
	return state;
}

/* Is it this thread that does it? */
static bool hand_begin(struct hand *hand)
{
	uint32_t given = GIVEN;

	return atomic_compare_exchange_strong(&hand->state, &given, BUSY);
}

static void hand_do(struct hand *hand)
{
	hand->result = hand->work(hand->opaque);
	atomic_store(&hand->state, FREE);
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

	while (hand_await(hand) != ENDS) {
		if (!hand_begin(hand))
			continue;
		hand_do(hand);
		if (atomic_exchange(&hand->crew->joins, 0))
			futex_wake(&hand->crew->joins);
		hand_look(hand);
	}
	return NULL;
}

static void hand_tell(struct hand *hand, uint32_t state)
{
	atomic_store(&hand->state, state);
	if (atomic_load(&hand->asleep))
		futex_wake(&hand->state);
}

struct crew *crew_make(void)
{
	struct crew *crew = crew_has_processors() ? calloc(1, sizeof(*crew)) : NULL;

	if (crew)
		crew->rests_again = CREW_RESTS_LEAST;
	return crew;
}

/* As many as can be had. */
static void crew_start(struct crew *crew)
{
	pthread_attr_t small;
	sigset_t others, before;

	crew->process = getpid();
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, CREW_STACK_BYTES);
	sigfillset(&others);
	/* A program may serve faults of memory that is copied here. */
	sigdelset(&others, SIGSEGV);
	sigdelset(&others, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &others, &before);
	while (crew->count < CREW_THREADS) {
		struct hand *hand = &crew->hands[crew->count];

		hand->crew = crew;
		if (pthread_create(&hand->thread, &small, hand_run, hand))
			break;
		crew->count++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&small);
}

void crew_drop(struct crew *crew)
{
	if (!crew)
		return;
	/* The child of a fork has none. */
	if (crew->process != getpid())
		crew->count = 0;
	for (unsigned i = 0; i < crew->count; i++)
		hand_tell(&crew->hands[i], ENDS);
	for (unsigned i = 0; i < crew->count; i++)
		pthread_join(crew->hands[i].thread, NULL);
	free(crew);
}

bool crew_give(struct crew *crew, int (*work)(void *opaque), void *opaque)
{
	if (!crew || crew->rests)
		return false;
	if (!crew->process)
		crew_start(crew);
	for (unsigned i = 0; i < crew->count; i++) {
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

/* Have it done. */
static void hand_join(struct hand *hand)
{
	struct crew *crew = hand->crew;
	uint64_t start = transport_now_ns();

	if (hand_begin(hand)) {
		hand_do(hand);
		return;
	}
	while (atomic_load(&hand->state) != FREE) {
		transport_relax();
		if (transport_now_ns() - start < CREW_SPIN_NS)
			continue;
		atomic_store(&crew->joins, 1);
		if (atomic_load(&hand->state) != FREE)
			futex_wait(&crew->joins, 1);
	}
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

int crew_join(struct crew *crew)
{
	int rc = 0;

	if (!crew)
		return 0;
	for (unsigned i = 0; i < crew->count; i++) {
		if (!(crew->given & 1u << i))
			continue;
		hand_join(&crew->hands[i]);
		rc = crew->hands[i].result ? crew->hands[i].result : rc;
	}
	crew_rest(crew);
	crew->given = 0;
	return rc;
}
