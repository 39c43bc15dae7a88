/* A connection that is cut comes again within the grace time, or the stream is over. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "../transport/resumed/carrier.h"

#undef NDEBUG

#define PATIENCE_MS 60000

static _Atomic unsigned shutdowns;

static void shut_down(struct transport *transport)
{
	(void)transport;
	shutdowns++;
}

static const struct transport_ops ops = { .shutdown = shut_down };
static struct transport connection = { .ops = &ops };

struct dialled {
	struct carrier carrier;
	unsigned refusals;		/* attempts that fail before one succeeds */
	int rc;				/* of the last of them */
	unsigned attempts;
};

static int dial(void *opaque, int left_ms)
{
	struct dialled *dialled = opaque;

	assert(left_ms > 0 && left_ms <= PATIENCE_MS);
	dialled->attempts++;
	if (dialled->refusals) {
		dialled->refusals--;
		return dialled->refusals ? -EAGAIN : dialled->rc;
	}
	pthread_mutex_lock(&dialled->carrier.lock);
	carrier_up_locked(&dialled->carrier);
	pthread_mutex_unlock(&dialled->carrier.lock);
	return 0;
}

static void begin(struct dialled *dialled, bool dials, uint32_t grace_ms)
{
	shutdowns = 0;
	*dialled = (struct dialled){ .rc = -EAGAIN };
	dialled->carrier = (struct carrier){
		.connection = &connection,
		.grace_ms = grace_ms,
		.closed_grace_ms = grace_ms,
		.dial = dials ? dial : NULL,
		.opaque = dialled,
	};
	carrier_init(&dialled->carrier);
	assert(carrier_is_up(&dialled->carrier));
}

static void test_who_dials_is_back_behind_some_attempts(void)
{
	static struct dialled dialled;		/* the thread that dials may still be at it */

	begin(&dialled, true, PATIENCE_MS);
	dialled.refusals = 3;
	carrier_cut(&dialled.carrier, 0, -EPIPE);
	assert(shutdowns == 1);
	assert(carrier_await(&dialled.carrier, -1) == 0);
	assert(carrier_is_up(&dialled.carrier) && dialled.carrier.generation == 1);
	assert(dialled.attempts == 4);
}

static void test_what_dialling_says_for_good_is_the_end(void)
{
	static struct dialled dialled;

	begin(&dialled, true, PATIENCE_MS);
	dialled.refusals = 2;
	dialled.rc = -EACCES;
	carrier_cut(&dialled.carrier, 0, -EPIPE);
	assert(carrier_await(&dialled.carrier, -1) == -EACCES);
	assert(carrier_is_over(&dialled.carrier) && dialled.attempts == 2);
}

static void test_an_error_of_the_connection_before_cuts_nothing(void)
{
	struct dialled given;

	begin(&given, false, PATIENCE_MS);
	carrier_cut(&given.carrier, 0, -EPIPE);
	pthread_mutex_lock(&given.carrier.lock);
	carrier_up_locked(&given.carrier);
	pthread_mutex_unlock(&given.carrier.lock);
	carrier_cut(&given.carrier, 0, -EPIPE);
	assert(carrier_is_up(&given.carrier) && shutdowns == 1);
}

static void test_nobody_waits_longer_than_he_said_or_than_the_grace_time(void)
{
	struct dialled given;

	begin(&given, false, PATIENCE_MS);
	carrier_cut(&given.carrier, 0, -ETIMEDOUT);
	assert(carrier_await(&given.carrier, 0) == -ETIMEDOUT);
	assert(!carrier_is_over(&given.carrier));
	begin(&given, false, 1);
	carrier_cut(&given.carrier, 0, -ETIMEDOUT);
	assert(carrier_await(&given.carrier, -1) == -ETIMEDOUT);
	assert(carrier_is_over(&given.carrier));
}

static void test_behind_an_end_that_is_said_a_cut_is_the_end(void)
{
	struct dialled dialled;

	begin(&dialled, true, PATIENCE_MS);
	carrier_end_begin(&dialled.carrier);
	carrier_cut(&dialled.carrier, 0, -ECONNRESET);
	assert(carrier_await(&dialled.carrier, -1) == -EPIPE);
	assert(!dialled.attempts && carrier_is_over(&dialled.carrier));
	/* The first error stays. */
	carrier_over(&dialled.carrier, -EPROTO);
	assert(carrier_await(&dialled.carrier, -1) == -EPIPE);
}

static void *sleep_once(void *opaque)
{
	struct carrier *carrier = opaque;

	carrier_sleep_end(carrier);
	return NULL;
}

static void test_who_sleeps_is_waited_for(void)
{
	struct dialled given;
	pthread_t sleeper;

	begin(&given, false, PATIENCE_MS);
	carrier_sleep_begin(&given.carrier);
	carrier_cut(&given.carrier, 0, -EPIPE);
	pthread_mutex_lock(&given.carrier.lock);
	assert(pthread_create(&sleeper, NULL, sleep_once, &given.carrier) == 0);
	/* Each time not for long. */
	while (atomic_load(&given.carrier.sleepers))
		carrier_sleepers_await(&given.carrier);
	pthread_mutex_unlock(&given.carrier.lock);
	pthread_join(sleeper, NULL);
}

int main(void)
{
	test_who_dials_is_back_behind_some_attempts();
	test_what_dialling_says_for_good_is_the_end();
	test_an_error_of_the_connection_before_cuts_nothing();
	test_nobody_waits_longer_than_he_said_or_than_the_grace_time();
	test_behind_an_end_that_is_said_a_cut_is_the_end();
	test_who_sleeps_is_waited_for();
	puts("ok");
	return 0;
}
