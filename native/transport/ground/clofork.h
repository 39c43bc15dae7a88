/* clofork.h - what the child of a fork is not to have.
 *
 * Its copy of a session's socket would keep the server from seeing that the parent has ended.  Linux has no FD_CLOFORK
 * (POSIX.1-2024), so the child closes what is noted here; and mappings are left out by a call of their own
 * (MADV_DONTFORK).  In between, no thread forks.  vfork(2), posix_spawn(3) and _Fork(3) ask nobody: what they start
 * has the descriptors until it executes a program, as they are close-on-exec. */
#ifndef FARBUS_TRANSPORT_CLOFORK_H
#define FARBUS_TRANSPORT_CLOFORK_H

#include <signal.h>

/* How many are noted at a time: of more, the child has copies.  16 sessions of 8 connections, as many that are dialled,
 * and memory that threads are just sharing. */
#define CLOFORK_MOST 512

/* For the handlers of pthread_atfork(3). */
void clofork_prepare(void);
void clofork_parent(void);
void clofork_child(void);	/* closes what is noted */

struct clofork_section {
	sigset_t signals;
	int cancel;
};

/* Between these two no thread forks, and this one is neither cancelled nor interrupted by a handler, which might fork.
 * For a few system calls that do not wait. */
void clofork_begin(struct clofork_section *section);
void clofork_end(const struct clofork_section *section);

/* In a section: the child of a fork closes its copy of this one, which is new.  A negative one is none. */
void clofork_note(int descriptor);

/* Move to a number from `lowest` on, noted if it was; where none is free, it stays.  Its number now. */
int clofork_raise(int descriptor, int lowest);
/* dup3(2) with O_CLOEXEC, noted if the first one is.  0 or -errno. */
int clofork_copy(int descriptor, int over);
/* Close one, noted or not. */
void clofork_close(int descriptor);
/* Somebody else is about to close it. */
void clofork_forget(int descriptor);

#endif
