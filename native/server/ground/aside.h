/* aside.h - frames that one thread reads while another one serves, and that are served in their order.
 *
 * NVIDIA's driver lets memory be allocated or pinned, code be loaded and full queues be filled only when what runs on the
 * device is over.  A stream that waits for an answer of the client never is, until the answer is read.  So where a
 * stream waits, another thread reads while a frame is served: answers are served there and then, all else is kept here.
 *
 * Serving is lent to one thread at a time: to the one that read the first frame that was kept, and from that, when it is about to
 * wait, to another one, of those that are parked here for it or a new one.  When nothing is kept it ends, and who reads serves again.
 */
#ifndef FARBUS_SERVER_ASIDE_H
#define FARBUS_SERVER_ASIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "../../wire/frame.h"

/* Beyond it nobody reads until some of it has been served; clients stop before (CLIENT_BEHIND_PIECES). */
#define ASIDE_BYTES_LIMIT ((size_t)1 << 30)
/* Then the answer that would let it be served is among what is not read: the session ends. */
#define ASIDE_PATIENCE_NS 30000000000u

struct aside_frame {
	struct aside_frame *next;
	struct wire_header header;
	int descriptor;			/* as a call's */
	uint8_t payload[] __attribute__((aligned(8)));
};

struct aside {
	const _Atomic unsigned *host_waits;	/* streams that wait for the client, or will */
	_Atomic int *threads;		/* of the server: those that are parked here are none of them */
	pthread_mutex_t lock;		/* over what follows */
	_Atomic bool lent;		/* who serves frames does not read them meanwhile */
	struct aside_frame *first, **last;
	size_t bytes;			/* that keeping them takes */
	pthread_cond_t less;		/* some of it has been served, or all */
	unsigned parked, woken;		/* threads that wait to serve, and those of them that are to */
	pthread_cond_t wake;
};

void aside_init(struct aside *aside, const _Atomic unsigned *host_waits, _Atomic int *threads);

/* For who reads: keep a frame for who serves.  Where nobody does: ASIDE_LENT: that is the caller now, who lets another thread read
 * and serves what is kept; ASIDE_NOT: it is not kept, since no stream waits.  ASIDE_FULL: nothing has been served for long. */
enum aside_kept { ASIDE_KEPT, ASIDE_LENT, ASIDE_NOT, ASIDE_FULL };
enum aside_kept aside_keep(struct aside *aside, struct aside_frame *frame);

/* For who serves: the next of what was kept, the caller's; NULL: there is nothing, and who reads serves again. */
struct aside_frame *aside_next(struct aside *aside);

/* Who serves is about to wait: what is kept is another thread's to serve, and if there is nothing, who reads serves again.
 * false: there is no such thread, and one is to be made, or it is still the caller's. */
bool aside_pass(struct aside *aside);

/* Wait to be needed again.  false: enough others do. */
bool aside_park(struct aside *aside);

#endif
