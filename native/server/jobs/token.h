/* token.h - what a stream asks of the client: a host function, or bytes of its memory.
 *
 * The client names the question, with a token, before the stream comes to it, and answers by that name.  The stream waits inside a
 * callback until it has (server_token_ask), or at a gate (gate.c), or it does not wait at all (`alone`).  A token that a
 * graph keeps is asked as often as the graph runs, until the client is told that nothing will ask any more.
 *
 * The driver's threads ask, and let go of tokens: nothing there may call the driver.
 */
#ifndef FARBUS_SERVER_TOKEN_H
#define FARBUS_SERVER_TOKEN_H

#include "../server_ops.h"

struct host_token {
	struct server *server;
	struct server_context *context;
	uint64_t handle;
	uint16_t lane;
	uint16_t event;			/* what to send: WIRE_EVENT_HOST_CALL or _PULL */
	pthread_mutex_t lock;
	pthread_cond_t answered;
	bool done;
	bool kept;			/* a graph's: asked as often as the graph runs */
	bool counted;			/* in server.host_waits; under the server's holds_lock */
	bool alone;			/* no thread of the driver's waits for the answer */
	bool asked;			/* of one that is alone; under the server's holds_lock, as is: */
	unsigned references;		/* the driver's, of a call that answers, and of one that tells */
	bool gated;			/* its stream waits for `gate` */
	unsigned gate;
	pthread_mutex_t asking;		/* of a kept one: graphs may run side by side */
	uint64_t named[3];		/* a graph's host function, as the client named it */
	size_t missing;			/* bytes of a pull */
	size_t total;
	struct server_gathered *gathered;	/* where they are gathered */
};

/* One reference is the caller's, or the driver's. */
struct host_token *server_token_make(struct server_call *call, uint64_t handle, uint16_t event);
/* The client's answer finds it by its name.  CUDA_SUCCESS, or SERVER_MALFORMED, and it is freed. */
CUresult server_token_bind(struct server_call *call, struct host_token *token);
/* Nobody finds it any more, but who has found it already. */
void server_token_unname(struct host_token *token);
/* The client answers when it likes, and what the driver runs may just then be done with the token: an
 * answer holds it.  NULL: there is none of that name. */
struct host_token *server_token_find(struct server_call *call, uint64_t handle);
void server_token_put(struct host_token *token);
/* Behind the driver's answer, which is returned: where it refused, nothing asks. */
CUresult server_token_undo_refused(struct host_token *token, CUresult result);

/* Its stream will wait for an answer, or does so no more. */
void server_token_count(struct host_token *token, bool waits);
/* In the stream: ask, and wait; a callback is asked for after an error, too, and told of it. */
void server_token_ask(void *token);
void server_token_ask_callback(CUstream stream, CUresult status, void *token);
/* Wait for an answer that is not asked for. */
void server_token_await(struct host_token *token);
/* Say that one which is alone has been come to.  From here on the answer may come, and with it the token's end. */
void server_token_tell(struct host_token *token);
/* The client has answered.  The name goes first: it answers once. */
void server_token_done(struct host_token *token);

/* The driver has ended the context, and calls nothing in its streams any more. */
void server_host_forget(struct server_context *context);

/* Host functions that graphs call as often as they run.  `named` is the program's function, its argument and the token. */
struct host_token *server_token_keep(struct server_call *call, uint64_t handle, const uint64_t named[3]);
/* The call that named it is over: it lasts as long as the graph, or ends now. */
void server_token_settle(struct server_call *call, struct host_token *token, CUgraph graph, bool used);
void server_token_show(CUhostFn function, void *argument, uint64_t named[3]);
/* Let `forget` be called when the graph and all that was made of it are gone.  A driver without user objects never does. */
void server_graph_keep(struct server_call *call, CUgraph graph, CUhostFn forget, void *opaque);

#endif
