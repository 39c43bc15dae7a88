/* Executable graphs whose launches are posted.
 *
 * The first launch of an executable is a call, whose answer says whether the graph repeats: the driver takes any further
 * launch as it took this one.  So they are posted, until a call names the executable (an update, its end), or a library
 * or context has gone. */
#include "graphs.h"

#include <pthread.h>
#include <stdlib.h>

#define REPEATED_BUCKETS 1024u

/* An executable whose launches are posted in streams of that context. */
struct repeated {
	struct repeated *next;
	CUgraphExec executable;
	const struct client_context *context;
};

static struct {
	pthread_mutex_t lock;
	struct repeated *buckets[REPEATED_BUCKETS];
	uint64_t changes;		/* how often something was taken out, or would have been */
} repeated = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* With the lock: where it is, or would be.  Names of servers count from bit 4 on. */
static struct repeated **repeated_find(CUgraphExec executable)
{
	struct repeated **link = &repeated.buckets[((uintptr_t)executable >> 4) % REPEATED_BUCKETS];

	while (*link && (*link)->executable != executable)
		link = &(*link)->next;
	return link;
}

static void repeated_drop(struct repeated **link)
{
	struct repeated *dropped = *link;

	if (dropped) {
		*link = dropped->next;
		free(dropped);
	}
}

void client_graph_changed(CUgraphExec executable)
{
	pthread_mutex_lock(&repeated.lock);
	repeated.changes++;
	repeated_drop(repeated_find(executable));
	pthread_mutex_unlock(&repeated.lock);
}

void client_graphs_changed(void)
{
	pthread_mutex_lock(&repeated.lock);
	repeated.changes++;
	for (unsigned i = 0; i < REPEATED_BUCKETS; i++)
		while (repeated.buckets[i])
			repeated_drop(&repeated.buckets[i]);
	pthread_mutex_unlock(&repeated.lock);
}

bool client_graph_repeats(CUgraphExec executable, const struct client_context *context, uint64_t *changes)
{
	const struct repeated *found;
	bool repeats;

	pthread_mutex_lock(&repeated.lock);
	found = *repeated_find(executable);
	repeats = found && found->context == context;
	*changes = repeated.changes;
	pthread_mutex_unlock(&repeated.lock);
	return repeats;
}

/* What was asked before the last change is not kept: it may have been about what that changed. */
void client_graph_keep(CUgraphExec executable, const struct client_context *context, uint64_t changes)
{
	struct repeated **link, *made = NULL;

	pthread_mutex_lock(&repeated.lock);
	link = repeated_find(executable);
	if (changes == repeated.changes) {
		if (!*link)
			made = calloc(1, sizeof(*made));
		if (made) {
			made->executable = executable;
			*link = made;
		}
		if (*link)
			(*link)->context = context;
	}
	pthread_mutex_unlock(&repeated.lock);
}
