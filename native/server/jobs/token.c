/* See token.h. */
#include "../ground/frames.h"
#include "../streams/gate.h"
#include "gather.h"
#include "token.h"

#include <stdlib.h>
#include <string.h>

struct host_token *server_token_make(struct server_call *call, uint64_t handle, uint16_t event)
{
	struct host_token *token = calloc(1, sizeof(*token));

	if (!token)
		return NULL;
	token->server = call->server;
	token->context = call->context;
	token->handle = handle;
	token->lane = call->header.lane;
	token->event = event;
	token->references = 1;
	pthread_mutex_init(&token->lock, NULL);
	pthread_mutex_init(&token->asking, NULL);
	pthread_cond_init(&token->answered, NULL);
	return token;
}

CUresult server_token_bind(struct server_call *call, struct host_token *token)
{
	if (!handle_bind(&call->server->objects, HANDLE_TOKEN, token->handle, token))
		return CUDA_SUCCESS;
	server_token_put(token);
	return SERVER_MALFORMED;
}

void server_token_count(struct host_token *token, bool waits)
{
	struct server_context *context = token->context ? token->context->base : NULL;
	struct server *server = token->server;

	pthread_mutex_lock(&server->holds_lock);
	if (waits != token->counted && !(context && context->over)) {
		int change = waits ? 1 : -1;

		atomic_fetch_add(&server->host_waits, (unsigned)change);
		if (context)
			context->host_waits += (unsigned)change;
	}
	token->counted = waits;
	pthread_mutex_unlock(&server->holds_lock);
}

void server_host_forget(struct server_context *context)
{
	struct server *server = context->server;

	pthread_mutex_lock(&server->holds_lock);
	atomic_fetch_sub(&server->host_waits, context->host_waits);
	context->host_waits = 0;
	context->over = true;
	pthread_mutex_unlock(&server->holds_lock);
}

struct host_token *server_token_find(struct server_call *call, uint64_t handle)
{
	struct host_token *token;

	pthread_mutex_lock(&call->server->holds_lock);
	token = handle_get(&call->server->objects, HANDLE_TOKEN, handle);
	if (token)
		token->references++;
	pthread_mutex_unlock(&call->server->holds_lock);
	return token;
}

void server_token_put(struct host_token *token)
{
	struct server *server = token->server;
	bool last;

	pthread_mutex_lock(&server->holds_lock);
	last = --token->references == 0;
	pthread_mutex_unlock(&server->holds_lock);
	if (!last)
		return;
	server_token_count(token, false);
	if (token->gathered)
		server_gather_give(token->context, token->gathered);
	free(token);
}

void server_token_unname(struct host_token *token)
{
	pthread_mutex_lock(&token->server->holds_lock);
	handle_close(&token->server->objects, HANDLE_TOKEN, token->handle);
	pthread_mutex_unlock(&token->server->holds_lock);
}

CUresult server_token_undo_refused(struct host_token *token, CUresult result)
{
	if (result != CUDA_SUCCESS) {
		server_token_unname(token);
		server_token_put(token);
	}
	return result;
}

void server_token_done(struct host_token *token)
{
	if (!token->kept)
		server_token_unname(token);
	server_token_count(token, false);
	if (token->gated)
		server_gate_open(token->context, token->gate);
	if (token->alone) {
		server_token_put(token);
		return;
	}
	pthread_mutex_lock(&token->lock);
	token->done = true;
	pthread_cond_signal(&token->answered);
	pthread_mutex_unlock(&token->lock);
}

void server_token_await(struct host_token *token)
{
	pthread_mutex_lock(&token->lock);
	while (!token->done)
		pthread_cond_wait(&token->answered, &token->lock);
	pthread_mutex_unlock(&token->lock);
}

/* In the stream: ask, and wait.  When the session ends the process does, so a
 * failure to send needs no way out of here: the token may still be in use. */
static void token_ask_status(struct host_token *token, CUresult status)
{
	const struct wire_host_call call = { .token = token->handle, .status = (int32_t)status };
	const struct wire_pull pull = { .token = token->handle };
	bool is_call = token->event == WIRE_EVENT_HOST_CALL;

	if (token->kept) {
		pthread_mutex_lock(&token->asking);
		pthread_mutex_lock(&token->lock);
		token->done = false;
		token->missing = token->total;
		pthread_mutex_unlock(&token->lock);
		server_token_count(token, true);
	}
	(void)server_send(token->server, token->event, token->lane, 0, 0,
			  is_call ? (const void *)&call : (const void *)&pull,
			  is_call ? sizeof(call) : sizeof(pull), NULL, 0);
	server_token_await(token);
	if (token->kept)
		pthread_mutex_unlock(&token->asking);
	else if (is_call)
		server_token_put(token);
}

void server_token_ask(void *token)
{
	token_ask_status(token, CUDA_SUCCESS);
}

void server_token_ask_callback(CUstream stream, CUresult status, void *token)
{
	(void)stream;
	token_ask_status(token, status);
}

void server_token_tell(struct host_token *token)
{
	const struct wire_host_call call = { .token = token->handle };
	struct server *server = token->server;
	uint16_t lane = token->lane;

	pthread_mutex_lock(&server->holds_lock);
	token->asked = true;
	pthread_mutex_unlock(&server->holds_lock);
	(void)server_send(server, WIRE_EVENT_HOST_CALL, lane, 0, 0, &call, sizeof(call), NULL, 0);
}

/* ---- what graphs keep ---- */

struct host_token *server_token_keep(struct server_call *call, uint64_t handle,
				     const uint64_t named[3])
{
	struct host_token *token = server_token_make(call, handle, WIRE_EVENT_HOST_CALL);

	if (!token)
		return NULL;
	token->kept = true;
	memcpy(token->named, named, sizeof(token->named));
	return server_token_bind(call, token) == CUDA_SUCCESS ? token : NULL;
}

void server_token_show(CUhostFn function, void *argument, uint64_t named[3])
{
	if (function == server_token_ask)
		memcpy(named, ((struct host_token *)argument)->named, 3 * sizeof(named[0]));
}

/* Nothing runs any more that would ask: the client may forget it.  In the driver's own
 * threads, too: nothing here may call it. */
static void token_forget(void *opaque)
{
	struct host_token *token = opaque;
	const struct wire_host_call forget = {
		.token = token->handle,
		.status = WIRE_TOKEN_FORGOTTEN,
	};

	server_token_unname(token);
	(void)server_send(token->server, WIRE_EVENT_HOST_CALL, token->lane, 0, 0, &forget,
			  sizeof(forget), NULL, 0);
	server_token_put(token);
}

struct graph_keeps {
	CUhostFn forget;
	void *opaque;
	bool kept;
};

/* The graph has gone, with all that was made of it. */
static void graph_keeps_end(void *opaque)
{
	struct graph_keeps *keeps = opaque;

	if (keeps->kept)
		keeps->forget(keeps->opaque);
	free(keeps);
}

void server_graph_keep(struct server_call *call, CUgraph graph, CUhostFn forget, void *opaque)
{
	const struct server_driver *driver = call->driver;
	struct graph_keeps *keeps;
	CUuserObject object;

	if (!graph || !driver->cuUserObjectCreate || !driver->cuGraphRetainUserObject || !driver->cuUserObjectRelease)
		return;
	keeps = malloc(sizeof(*keeps));
	if (!keeps)
		return;
	*keeps = (struct graph_keeps){ .forget = forget, .opaque = opaque, .kept = true };
	if (driver->cuUserObjectCreate(&object, keeps, graph_keeps_end, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) !=
	    CUDA_SUCCESS) {
		free(keeps);
		return;
	}
	if (driver->cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) == CUDA_SUCCESS)
		return;
	/* The graph may run all the same, and nothing tells of its end: what it uses stays as long as the session. */
	keeps->kept = false;
	(void)driver->cuUserObjectRelease(object, 1);
}

void server_token_settle(struct server_call *call, struct host_token *token, CUgraph graph,
			 bool used)
{
	if (used)
		server_graph_keep(call, graph, token_forget, token);
	else
		token_forget(token);
}
