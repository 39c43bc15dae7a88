/* sleeper.h - a thread that sleeps in poll(2), and another one of the process that wakes it.
 *
 * The sleeper says that it sleeps (`asleep`) before it looks for the last time whether it has to, and polls `wake` beside what
 * it waits for; whoever has something for it wakes it when that is there to be seen.
 */
#ifndef FARBUS_TRANSPORT_SLEEPER_H
#define FARBUS_TRANSPORT_SLEEPER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

struct sleeper {
	int wake;			/* an eventfd: look again; -1: none */
	ino_t inode;			/* all of them have one */
	_Atomic bool asleep;
};

/* Its descriptor has a number above `beside`, away from the low ones that programs close and reuse.  false: there is none. */
bool sleeper_make(struct sleeper *sleeper, int beside);
void sleeper_drop(struct sleeper *sleeper);

void sleeper_wake(struct sleeper *sleeper);
/* It sleeps no more; `revents` is what poll(2) has said of `wake`. */
void sleeper_awake(struct sleeper *sleeper, short revents);

#endif
