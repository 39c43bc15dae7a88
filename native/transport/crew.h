/* crew.h - a few threads that do parts of one caller's work beside it, and are waited for.
 *
 * For work of some tens of microseconds a part: a thread that has just done one spins for the next, and sleeps when none
 * comes.  Where others want the processors, they do nothing for a while.  One caller at a time gives and joins.
 */
#ifndef FARBUS_TRANSPORT_CREW_H
#define FARBUS_TRANSPORT_CREW_H

#include <stdbool.h>

struct crew;

/* Start so many threads, which get no signals.  NULL: they can't be had. */
struct crew *crew_make(unsigned threads);
/* End them.  What was given is joined. */
void crew_drop(struct crew *crew);

/* Have a thread do work(opaque), which returns 0 or -errno and lasts until the next crew_join.  false: all have something to
 * do, or have none to do it with, or there is no crew (NULL). */
bool crew_give(struct crew *crew, int (*work)(void *opaque), void *opaque);

/* Wait until all that was given is done, at most timeout_ms (-1: as long as it takes).  0, the error of one of them, or
 * -ETIMEDOUT, after which it is to be called again. */
int crew_join(struct crew *crew, int timeout_ms);

#endif
