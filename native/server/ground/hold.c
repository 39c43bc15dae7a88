/* What calls of a session use while others destroy it.
 *
 * Frames are read by one thread at a time, which leads.  It serves what does not wait before it
 * reads on, so that such a call and what it has found are out of everybody's way when the
 * next frame is read.  A call that may wait lets go of the lead, and others go on beside it.  Hence two rules:
 *
 *  - Names are taken away by the thread that leads, before it lets go of the lead; an object
 *    named here (named.c) is also taken out of the table under the table's lock.
 *  - Who does not lead holds what it has found, from the look-up to the end of its call.  Objects
 *    that may be destroyed by a call which waits are held by all who find them.
 *
 * Who destroys waits, when nobody can find the object any more, for those who hold it; if it
 * leads, it lets go of the lead first, since they may wait for frames that only a leader reads.
 * It holds nothing that another one might destroy, so that no two wait for each other (server_await_users, lead.c). */
#include "hold.h"

#include <errno.h>
#include <stdlib.h>

static const void **hold_at(struct server_holds *holds, unsigned index)
{
	const unsigned few = sizeof(holds->few) / sizeof(holds->few[0]);

	return index < few ? &holds->few[index] : &holds->more[index - few];
}

/* With the lock: note that the call uses it. */
static CUresult hold_note(struct server_call *call, const void *object)
{
	struct server *server = call->server;
	struct server_holds *holds = &call->holds;
	const unsigned few = sizeof(holds->few) / sizeof(holds->few[0]);

	if (holds->count >= few && holds->count - few == holds->room) {
		unsigned room = 2 * holds->room + few;
		const void **grown = realloc(holds->more, room * sizeof(*grown));

		if (!grown)
			return CUDA_ERROR_OUT_OF_MEMORY;
		holds->more = grown;
		holds->room = room;
	}
	if (!holds->count) {
		holds->next = server->holds;
		server->holds = holds;
	}
	*hold_at(holds, holds->count++) = object;
	return CUDA_SUCCESS;
}

CUresult server_hold(struct server_call *call, const void *object)
{
	CUresult result;

	pthread_mutex_lock(&call->server->holds_lock);
	result = hold_note(call, object);
	pthread_mutex_unlock(&call->server->holds_lock);
	return result;
}

CUresult server_hold_context(struct server_call *call, const struct server_context *context)
{
	CUresult result = CUDA_ERROR_CONTEXT_IS_DESTROYED;

	pthread_mutex_lock(&call->server->holds_lock);
	if (!context->gone)
		result = hold_note(call, context);
	pthread_mutex_unlock(&call->server->holds_lock);
	return result;
}

bool server_context_is_gone(struct server *server, const struct server_context *context)
{
	bool gone;

	pthread_mutex_lock(&server->holds_lock);
	gone = context->gone;
	pthread_mutex_unlock(&server->holds_lock);
	return gone;
}

void *server_find(struct server_call *call, enum handle_kind kind, uint64_t handle)
{
	const struct handle_table *table = &call->server->objects;
	void *object;

	/* Nobody takes names away but the leader, which is this thread. */
	if (!call->passed)
		return handle_get(table, kind, handle);
	pthread_mutex_lock(&call->server->holds_lock);
	object = handle_get(table, kind, handle);
	if (object && hold_note(call, object) != CUDA_SUCCESS)
		object = NULL;
	pthread_mutex_unlock(&call->server->holds_lock);
	return object;
}

CUresult server_find_placed(struct server_call *call, enum handle_kind kind, uint64_t handle, void **real)
{
	const struct server_placed *placed;
	CUresult result = CUDA_SUCCESS;

	/* Who leads has no lock to take: launches come this way. */
	if (call->passed)
		pthread_mutex_lock(&call->server->holds_lock);
	placed = handle_get(&call->server->objects, kind, handle);
	if (!placed)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (placed->context->gone)
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (result == CUDA_SUCCESS && call->passed)
		result = hold_note(call, placed->real);
	if (result == CUDA_SUCCESS && call->passed)
		result = hold_note(call, placed->context);
	if (result == CUDA_SUCCESS)
		*real = placed->real;
	if (call->passed)
		pthread_mutex_unlock(&call->server->holds_lock);
	return result;
}

CUresult server_bind(struct server_call *call, enum handle_kind kind, uint64_t handle, void *object)
{
	int rc = handle_bind(&call->server->objects, kind, handle, object);

	if (!rc)
		return CUDA_SUCCESS;
	/* It is not free, or no name at all: no client of ours does that. */
	return rc == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : SERVER_MALFORMED;
}

CUresult server_place(struct server_call *call, enum handle_kind kind, uint64_t handle, void *real)
{
	struct server_placed *placed = malloc(sizeof(*placed));
	CUresult result;

	if (!placed)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*placed = (struct server_placed){ .real = real, .context = call->context };
	result = server_bind(call, kind, handle, placed);
	if (result != CUDA_SUCCESS)
		free(placed);
	return result;
}

CUresult server_unplace(struct server_call *call, enum handle_kind kind, uint64_t handle, void **real)
{
	struct server_placed *placed;
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&call->server->holds_lock);
	placed = handle_close(&call->server->objects, kind, handle);
	if (!placed)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (placed->context->base->gone)
		/* What is in a green context stays when that alone has ended. */
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	else
		*real = placed->real;
	free(placed);
	pthread_mutex_unlock(&call->server->holds_lock);
	return result;
}

struct displacing {
	struct server *server;
	const struct server_context *context;
};

static void displace(void *opaque, uint64_t handle, void *object)
{
	const struct displacing *displacing = opaque;
	struct server_placed *placed = object;

	if (handle_kind_of(handle) == HANDLE_STREAM && placed->context->base == displacing->context)
		free(handle_close(&displacing->server->objects, HANDLE_STREAM, handle));
}

void server_displace(struct server *server, const struct server_context *context)
{
	struct displacing displacing = { .server = server, .context = context };

	pthread_mutex_lock(&server->holds_lock);
	handle_visit(&server->objects, displace, &displacing);
	pthread_mutex_unlock(&server->holds_lock);
}

void server_let_go(struct server_call *call)
{
	struct server *server = call->server;
	struct server_holds *holds = &call->holds, **link;

	if (holds->count) {
		pthread_mutex_lock(&server->holds_lock);
		for (link = &server->holds; *link != holds; link = &(*link)->next)
			;
		*link = holds->next;
		holds->count = 0;
		pthread_cond_broadcast(&server->let_go);
		pthread_mutex_unlock(&server->holds_lock);
	}
	free(holds->more);
	holds->more = NULL;
	holds->room = 0;
}

/* With the lock. */
static bool held_by_others(const struct server_call *call, const void *object)
{
	struct server_holds *holds;

	for (holds = call->server->holds; holds; holds = holds->next)
		for (unsigned i = 0; holds != &call->holds && i < holds->count; i++)
			if (*hold_at(holds, i) == object)
				return true;
	return false;
}

bool server_others_hold(struct server_call *call, const void *object)
{
	bool held;

	pthread_mutex_lock(&call->server->holds_lock);
	held = held_by_others(call, object);
	pthread_mutex_unlock(&call->server->holds_lock);
	return held;
}

void server_await_others(struct server_call *call, const void *object)
{
	struct server *server = call->server;

	pthread_mutex_lock(&server->holds_lock);
	while (held_by_others(call, object))
		pthread_cond_wait(&server->let_go, &server->holds_lock);
	pthread_mutex_unlock(&server->holds_lock);
}
