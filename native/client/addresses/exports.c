/* Descriptors for memory that this process has given out, and when their last copies are closed (descriptor.c). */
#include "../exchange/exchange.h"
#include "../handles/route.h"
#include "exports.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../transport/ground/clofork.h"

/* Ends that are looked at by one call of the kernel. */
#define LOOK_AT_ONCE 64u

/* Looked at and changed in sections of clofork.h alone: so a child finds it whole. */
static struct client_export *exports;
/* Of which nobody has the program's end any more, and which a supervisor that is stopped could not be told of yet. */
static struct client_export *untold;
static _Atomic unsigned export_count;	/* of both */

static bool watch_is_ours(const struct client_export *export)
{
	struct stat status;

	return fstat(export->watch, &status) == 0 && status.st_dev == export->device && status.st_ino == export->inode;
}

/* In a section: mark those of the first exports, at most LOOK_AT_ONCE, of which nobody has the program's end any more,
 * and return what comes behind them. */
static struct client_export *closed_mark(struct client_export *first, struct client_export **closed, unsigned *count)
{
	struct pollfd waited[LOOK_AT_ONCE];
	struct client_export *looked[LOOK_AT_ONCE];
	unsigned used = 0;

	for (; first && used < LOOK_AT_ONCE; first = first->next) {
		waited[used] = (struct pollfd){ .fd = first->watch };
		looked[used++] = first;
	}
	*count = 0;
	if (poll(waited, used, 0) <= 0)
		return first;
	for (unsigned i = 0; i < used; i++) {
		if (!waited[i].revents)
			continue;
		/* A program that closes all descriptors may own the number now: then nobody tells. */
		if (waited[i].revents & POLLHUP && watch_is_ours(looked[i]))
			closed[(*count)++] = looked[i];
		else if (!watch_is_ours(looked[i]))
			looked[i]->watch = -1;
	}
	return first;
}

void client_export_add(struct client_export *export)
{
	struct clofork_section section;

	clofork_begin(&section);
	export->next = exports;
	exports = export;
	atomic_fetch_add(&export_count, 1);
	clofork_end(&section);
	/* From here on the child of a fork finds it among the exports. */
	clofork_forget(export->watch);
}

static void unlink_export(struct client_export *export)
{
	struct client_export **link = &exports;

	while (*link != export)
		link = &(*link)->next;
	*link = export->next;
}

bool client_export_drop(struct client_session *session, const uint64_t token[4])
{
	struct wire_descriptor_drop fixed;
	const struct client_request request = { WIRE_OP_DESCRIPTOR_DROP, &fixed, sizeof(fixed), NULL, 0 };
	const struct client_route route = client_route_session(session);
	struct client_wait wait = { 0 };

	memcpy(fixed.token, token, sizeof(fixed.token));
	/* Where the session is lost, the server has dropped it. */
	return client_call_own(&route, &request, &wait) != CUDA_ERROR_TIMEOUT;
}

/* Tell the servers, and return what could not be told. */
static struct client_export *exports_drop(struct client_export *dropped)
{
	const struct client_session *silent = NULL;
	struct client_export *later = NULL, *export;

	while (dropped) {
		export = dropped;
		dropped = export->next;
		if (export->session != silent && client_export_drop(export->session, export->token)) {
			free(export);
			atomic_fetch_sub(&export_count, 1);
			continue;
		}
		/* Nor can it be told of the others now. */
		silent = export->session;
		export->next = later;
		later = export;
	}
	return later;
}

void client_descriptors_look(void)
{
	struct clofork_section section;
	struct client_export *dropped, *behind, *export;

	if (!atomic_load_explicit(&export_count, memory_order_relaxed))
		return;
	clofork_begin(&section);
	dropped = untold;
	untold = NULL;
	for (behind = exports; behind;) {
		struct client_export *closed[LOOK_AT_ONCE];
		unsigned count;

		behind = closed_mark(behind, closed, &count);
		while (count) {
			export = closed[--count];
			unlink_export(export);
			close(export->watch);
			export->next = dropped;
			dropped = export;
		}
	}
	clofork_end(&section);
	dropped = exports_drop(dropped);
	if (!dropped)
		return;
	clofork_begin(&section);
	for (export = dropped; export->next; export = export->next)
		;
	export->next = untold;
	untold = dropped;
	clofork_end(&section);
}

void client_descriptors_child(void)
{
	for (; exports; exports = exports->next)
		if (exports->watch >= 0 && watch_is_ours(exports))
			close(exports->watch);
	untold = NULL;
	atomic_store(&export_count, 0);
}
