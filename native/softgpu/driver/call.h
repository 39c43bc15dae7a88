/* call.h - calls of the API: what one works with stays until it returns.
 *
 * Another thread may end a context while a call works in it.  Every function of the API begins with
 * DRIVER_CALL; the context that it then works in, and that of each handle that it looks up, have the
 * call as a user until it returns.  Who ends a context refuses new users and waits for those that
 * there are, so that nothing of it goes under a call.  The driver's own threads are no calls: what they
 * run is waited for as work.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_CALL_H
#define FARBUS_SOFTGPU_DRIVER_CALL_H

#include <stdbool.h>

/* Calls that use something: twice their number, and one when new ones are refused. */
struct driver_users {
	unsigned word;			/* atomic */
};

/* The first line of a function of the API.  One may call another: they are one call. */
#define DRIVER_CALL \
	int driver_call __attribute__((cleanup(driver_call_leave), unused)) = driver_call_enter()

int driver_call_enter(void);
void driver_call_leave(int *entered);
/* Do this when the thread's call has let go of all and returns.  False: it is in none. */
bool driver_call_then(void (*act)(void));

/* Around work that a thread does in the place of a driver's own: it is none of its call's. */
unsigned driver_call_set_aside(void);
void driver_call_take_up(unsigned depth);

/* The thread's call uses it until it returns; nothing happens where it does already, or is in none.
 * False: it is refused. */
bool driver_call_use(struct driver_users *users);

/* New users are refused, until users_open. */
void driver_users_close(struct driver_users *users);
bool driver_users_are_refused(const struct driver_users *users);
/* Wait until there are none; the caller's own call is one no more. */
void driver_users_await(struct driver_users *users);
void driver_users_open(struct driver_users *users);

#endif
