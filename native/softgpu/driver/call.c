/* Calls of the API: what one works with stays until it returns. */
#include "call.h"

#include <pthread.h>
#include <stddef.h>

#define USED_MAX 64		/* by one call: a graph may have kernels of many contexts */
#define REFUSED 1u
#define USER 2u

static _Thread_local struct {
	unsigned depth;			/* functions of the API that are under way, one in another */
	unsigned count;
	struct driver_users *used[USED_MAX];
	int cancel_state;
	void (*then)(void);
} call;

static pthread_mutex_t leaving_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t somebody_left = PTHREAD_COND_INITIALIZER;

int driver_call_enter(void)
{
	/* A thread that is cancelled while it waits would keep the locks of who waits. */
	if (!call.depth++)
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &call.cancel_state);
	return 0;
}

/* What is used may be gone from here on. */
static void leave(struct driver_users *users)
{
	if (!(__atomic_sub_fetch(&users->word, USER, __ATOMIC_SEQ_CST) & REFUSED))
		return;
	pthread_mutex_lock(&leaving_lock);
	pthread_cond_broadcast(&somebody_left);
	pthread_mutex_unlock(&leaving_lock);
}

void driver_call_leave(int *entered)
{
	void (*then)(void) = call.then;

	(void)entered;
	if (--call.depth)
		return;
	while (call.count)
		leave(call.used[--call.count]);
	pthread_setcancelstate(call.cancel_state, NULL);
	call.then = NULL;
	if (then)
		then();
}

bool driver_call_then(void (*act)(void))
{
	if (!call.depth)
		return false;
	call.then = act;
	return true;
}

unsigned driver_call_set_aside(void)
{
	unsigned depth = call.depth;

	call.depth = 0;
	return depth;
}

void driver_call_take_up(unsigned depth)
{
	call.depth = depth;
}

static bool uses(const struct driver_users *users)
{
	for (unsigned i = 0; i < call.count; i++)
		if (call.used[i] == users)
			return true;
	return false;
}

bool driver_call_use(struct driver_users *users)
{
	if (!call.depth || uses(users))
		return true;
	if (call.count == USED_MAX || driver_users_are_refused(users))
		return false;
	if (__atomic_fetch_add(&users->word, USER, __ATOMIC_SEQ_CST) & REFUSED) {
		leave(users);
		return false;
	}
	call.used[call.count++] = users;
	return true;
}

void driver_users_close(struct driver_users *users)
{
	__atomic_or_fetch(&users->word, REFUSED, __ATOMIC_SEQ_CST);
}

bool driver_users_are_refused(const struct driver_users *users)
{
	return __atomic_load_n(&users->word, __ATOMIC_SEQ_CST) & REFUSED;
}

void driver_users_await(struct driver_users *users)
{
	for (unsigned i = 0; i < call.count; i++) {
		if (call.used[i] == users) {
			call.used[i] = call.used[--call.count];
			leave(users);
			break;
		}
	}
	pthread_mutex_lock(&leaving_lock);
	while (__atomic_load_n(&users->word, __ATOMIC_SEQ_CST) & ~REFUSED)
		pthread_cond_wait(&somebody_left, &leaving_lock);
	pthread_mutex_unlock(&leaving_lock);
}

void driver_users_open(struct driver_users *users)
{
	__atomic_and_fetch(&users->word, ~REFUSED, __ATOMIC_SEQ_CST);
}
