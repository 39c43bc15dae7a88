/* Objects that are named here: graphs, their nodes, pools, arrays, ...
 *
 * The client learns a name with the reply that first shows an object, and gets the
 * same name whenever the driver shows that object again.  What lies in something else
 * (a node in its graph, a level in its mipmapped array) goes with it. */
#include "hold.h"
#include "lead.h"
#include "named.h"

#include <errno.h>
#include <stdlib.h>

#define BUCKETS 4096u
/* Most objects of a session that are named here. */
#define NAMED_LIMIT (1u << 19)

struct named {
	struct named *next;		/* of its bucket, or of what has ended with a context */
	struct named *sibling;		/* of its owner's parts */
	struct named *parts;
	struct named *owner;
	const struct server_context *context; /* with which it ends, or NULL */
	enum server_type type;
	unsigned references;
	bool hidden;			/* the driver is just destroying it; in no bucket */
	bool repeats;			/* an executable graph: see serve_graph_launch */
	uint64_t real;
	uint64_t wire;
	const void *image;		/* what a link made */
	size_t image_bytes;
	struct server_link *link;	/* of a link, or NULL */
};

struct server_names {
	pthread_mutex_t lock;
	unsigned count;
	struct named *buckets[BUCKETS];
};

struct server_names *server_names_make(void)
{
	struct server_names *names = calloc(1, sizeof(*names));

	if (names)
		pthread_mutex_init(&names->lock, NULL);
	return names;
}

/* Texture and surface objects, and handles of conditions, are numbers that kernels are given: they travel as
 * they are. */
static bool named_as_is(enum server_type type)
{
	return type == SERVER_CUtexObject || type == SERVER_CUsurfObject ||
	       type == SERVER_CUgraphConditionalHandle;
}

/* What the driver destroys with the context that it was made in (cuCtxDestroy's documentation lists
 * them); what lies in one of these goes with that. */
static bool named_ends_with_context(enum server_type type)
{
	switch (type) {
	case SERVER_CUarray:
	case SERVER_CUmipmappedArray:
	case SERVER_CUtexObject:
	case SERVER_CUsurfObject:
	case SERVER_CUtexref:
	case SERVER_CUsurfref:
	case SERVER_CUlinkState:
		return true;
	default:
		return false;
	}
}

static struct named **named_find(struct server_names *names, enum server_type type, uint64_t real)
{
	uint64_t mixed = (real >> 4 ^ real << 7) * 0x9e3779b97f4a7c15ull + (uint64_t)type;
	struct named **link = &names->buckets[mixed >> 40 & (BUCKETS - 1)];

	while (*link && ((*link)->real != real || (*link)->type != type))
		link = &(*link)->next;
	return link;
}

CUresult server_name(struct server_call *call, enum server_type type, uint64_t real, uint64_t owner,
		     bool again, uint64_t *wire)
{
	struct server *server = call->server;
	struct server_names *names = server->names;
	struct named **link, *named;
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&names->lock);
	link = named_find(names, type, real);
	named = *link;
	if (named) {
		named->references += again;
	} else if (names->count >= NAMED_LIMIT || !(named = calloc(1, sizeof(*named)))) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		named->type = type;
		named->real = real;
		named->references = 1;
		named->wire = real;
		if (!named_as_is(type) &&
		    handle_open(&server->functions, HANDLE_NAMED, named, &named->wire)) {
			free(named);
			named = NULL;
			result = CUDA_ERROR_OUT_OF_MEMORY;
		} else {
			*link = named;
			names->count++;
			if (owner)
				named->owner = handle_get(&server->functions, HANDLE_NAMED, owner);
			if (named->owner) {
				named->sibling = named->owner->parts;
				named->owner->parts = named;
			} else if (call->context && named_ends_with_context(type)) {
				named->context = call->context->base;
			}
		}
	}
	if (named)
		*wire = named->wire;
	pthread_mutex_unlock(&names->lock);
	return result;
}

/* Objects that calls which wait destroy, or are given. */
static bool named_is_held(enum server_type type)
{
	return type == SERVER_CUarray || type == SERVER_CUmipmappedArray || type == SERVER_CUmemoryPool ||
	       type == SERVER_CUgraphExec || type == SERVER_CUlinkState;
}

/* With what it lies in; the lock is held. */
static bool named_hold(struct server_call *call, const struct named *named)
{
	for (; named; named = named->owner)
		if (named->hidden || (named_is_held(named->type) &&
				      server_hold(call, (void *)(uintptr_t)named->real) != CUDA_SUCCESS))
			return false;
	return true;
}

bool server_named(struct server_call *call, enum server_type type, uint64_t wire, uint64_t *real,
		  uint64_t *owner)
{
	struct server *server = call->server;
	struct server_names *names = server->names;
	struct named *named;
	bool found = false;

	pthread_mutex_lock(&names->lock);
	if (named_as_is(type))
		named = *named_find(names, type, wire);
	else
		named = handle_get(&server->functions, HANDLE_NAMED, wire);
	if (named && named->type == type && named_hold(call, named)) {
		*real = named->real;
		if (owner)
			*owner = named->owner ? named->owner->wire : 0;
		found = true;
	}
	pthread_mutex_unlock(&names->lock);
	return found;
}

void *server_object(struct server_call *call, enum server_type type, uint64_t wire)
{
	uint64_t real;

	return server_named(call, type, wire, &real, NULL) ? (void *)(uintptr_t)real : NULL;
}

void server_named_set_repeats(struct server *server, uint64_t executable)
{
	struct server_names *names = server->names;
	struct named *named;

	pthread_mutex_lock(&names->lock);
	named = handle_get(&server->functions, HANDLE_NAMED, executable);
	if (named)
		named->repeats = true;
	pthread_mutex_unlock(&names->lock);
}

bool server_named_repeats(struct server *server, uint64_t executable)
{
	struct server_names *names = server->names;
	const struct named *named;
	bool repeats;

	pthread_mutex_lock(&names->lock);
	named = handle_get(&server->functions, HANDLE_NAMED, executable);
	repeats = named && named->repeats;
	pthread_mutex_unlock(&names->lock);
	return repeats;
}

static void link_put(struct server_link *link)
{
	if (!link || --link->references)
		return;
	free(link->info);
	free(link->error);
	free(link);
}

int server_named_link_set(struct server *server, uint64_t wire, struct server_link *link)
{
	struct server_names *names = server->names;
	struct named *named;

	pthread_mutex_lock(&names->lock);
	named = handle_get(&server->functions, HANDLE_NAMED, wire);
	if (named && named->type == SERVER_CUlinkState && !named->link) {
		named->link = link;
		link->references++;
	} else {
		named = NULL;
	}
	pthread_mutex_unlock(&names->lock);
	return named ? 0 : -ENOENT;
}

struct server_link *server_named_link_take(struct server *server, uint64_t wire)
{
	struct server_names *names = server->names;
	struct server_link *link;
	struct named *named;

	pthread_mutex_lock(&names->lock);
	named = handle_get(&server->functions, HANDLE_NAMED, wire);
	link = named && named->type == SERVER_CUlinkState ? named->link : NULL;
	if (link)
		link->references++;
	pthread_mutex_unlock(&names->lock);
	return link;
}

void server_named_link_put(struct server *server, struct server_link *link)
{
	pthread_mutex_lock(&server->names->lock);
	link_put(link);
	pthread_mutex_unlock(&server->names->lock);
}

/* With all its parts, the innermost first: without recursion, since graphs may lie in
 * graphs as deep as a client likes. */
static void named_free(struct server *server, struct named *top)
{
	struct server_names *names = server->names;
	struct named *named = top;

	for (;;) {
		struct named *owner;
		struct named **link;

		while (named->parts)
			named = named->parts;
		owner = named->owner;
		if (owner) {
			link = &owner->parts;
			while (*link != named)
				link = &(*link)->sibling;
			*link = named->sibling;
		}
		link = named_find(names, named->type, named->real);
		/* Another may have got the address of one that is hidden. */
		if (!named->hidden)
			*link = named->next;
		if (!named_as_is(named->type))
			handle_close(&server->functions, HANDLE_NAMED, named->wire);
		names->count--;
		link_put(named->link);
		if (named == top)
			owner = NULL;
		free(named);
		if (!owner)
			return;
		named = owner;
	}
}

void server_name_drop(struct server *server, enum server_type type, uint64_t real)
{
	struct server_names *names = server->names;
	struct named *named;

	pthread_mutex_lock(&names->lock);
	named = *named_find(names, type, real);
	if (named && --named->references == 0)
		named_free(server, named);
	pthread_mutex_unlock(&names->lock);
}

/* The next of what lies in `top`, itself first. */
static struct named *named_next(struct named *named, const struct named *top)
{
	if (named->parts)
		return named->parts;
	while (named != top && !named->sibling)
		named = named->owner;
	return named == top ? NULL : named->sibling;
}

/* With all its parts, so that nothing new that the driver places there is taken for one of them. */
static void named_show(struct server_names *names, struct named *top, bool shown)
{
	struct named *named, **link;

	for (named = top; named; named = named_next(named, top)) {
		link = named_find(names, named->type, named->real);
		if (named->hidden == !shown)
			continue;
		if (shown) {
			named->next = *link;
			*link = named;
		} else {
			*link = named->next;
		}
		named->hidden = !shown;
	}
}

struct named *server_name_hide(struct server_call *call, enum server_type type, uint64_t real)
{
	struct server_names *names = call->server->names;
	struct named *named;

	pthread_mutex_lock(&names->lock);
	named = *named_find(names, type, real);
	if (named && named->references > 1)
		named = NULL;
	if (named)
		named_show(names, named, false);
	pthread_mutex_unlock(&names->lock);
	if (named && named_is_held(type))
		server_await_users(call, (void *)(uintptr_t)real);
	return named;
}

void server_name_settle(struct server *server, struct named *hidden, bool gone)
{
	struct server_names *names = server->names;

	pthread_mutex_lock(&names->lock);
	if (gone || (hidden->context && server_context_is_gone(server, hidden->context)))
		named_free(server, hidden);
	else
		named_show(names, hidden, true);
	pthread_mutex_unlock(&names->lock);
}

struct named *server_names_hide(struct server *server, const struct server_context *context)
{
	struct server_names *names = server->names;
	struct named *hidden = NULL, *named;

	pthread_mutex_lock(&names->lock);
	for (unsigned i = 0; i < BUCKETS; i++) {
		named = names->buckets[i];
		while (named) {
			if (named->context != context) {
				named = named->next;
				continue;
			}
			named_show(names, named, false);
			named->next = hidden;
			hidden = named;
			/* Its parts are gone too, of which some may have been here. */
			named = names->buckets[i];
		}
	}
	pthread_mutex_unlock(&names->lock);
	return hidden;
}

void server_names_end(struct server_call *call, struct named *hidden)
{
	struct server *server = call->server;

	while (hidden) {
		struct named *named = hidden;

		hidden = named->next;
		if (named_is_held(named->type))
			server_await_users(call, (void *)(uintptr_t)named->real);
		server_name_settle(server, named, true);
	}
}

const void *server_named_image(struct server *server, uint64_t wire, const void *image, size_t *bytes)
{
	struct server_names *names = server->names;
	struct named *named;
	const void *kept = NULL;

	pthread_mutex_lock(&names->lock);
	named = handle_get(&server->functions, HANDLE_NAMED, wire);
	if (named && named->type == SERVER_CUlinkState) {
		if (image) {
			named->image = image;
			named->image_bytes = *bytes;
		}
		kept = named->image;
		*bytes = named->image_bytes;
	}
	pthread_mutex_unlock(&names->lock);
	return kept;
}
