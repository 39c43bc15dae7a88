/* crew.h - a few threads that do parts of one caller's work beside it, and are waited for.
 *
 * For parts of some microseconds: a thread that has just done one spins for the next, and sleeps when none comes; what
 * none has begun when the caller is done with the rest, the caller does.  Where others want the processors, nothing is given
 * to them for a while.  One caller at a time gives and joins.
 */
#ifndef FARBUS_TRANSPORT_CREW_H
#define FARBUS_TRANSPORT_CREW_H

#include <stdbool.h>

#define CREW_THREADS 3u

struct crew;

/* Are there processors for crews?  And with how many: for tests. */
bool crew_has_processors(void);
void crew_set_processors(unsigned least);

/* CREW_THREADS threads, which get no signals but those of their own faults, and start when something is given to them.  NULL: there
 * are no processors for them, or no memory. */
struct crew *crew_make(void);
/* End them.  All that was given is joined. */
void crew_drop(struct crew *crew);

/* Have a thread do work(opaque), which returns 0 or -errno and lasts until the next crew_join.  false: all have something to
 * do, or have none to do it with, or there is no crew (NULL). */
bool crew_give(struct crew *crew, int (*work)(void *opaque), void *opaque);

/* Have all that was given done.  0, or the error of one of them. */
int crew_join(struct crew *crew);

#endif
