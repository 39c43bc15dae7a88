/* Functions of the program's that streams, graphs and the ends of objects call (token.h). */
#include "../ground/lead.h"
#include "../ground/named.h"
#include "../ground/resolve.h"
#include "../memory/staging.h"
#include "../streams/capture.h"
#include "../streams/gate.h"
#include "token.h"

/* ---- once ---- */

/* A token under the client's name, for a function of the client's that is called once. */
static CUresult call_open(struct server_call *call, uint64_t name, struct host_token **out)
{
	struct host_token *token = server_token_make(call, name, WIRE_EVENT_HOST_CALL);
	CUresult result;

	if (!token)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (call->context)
		server_staging_reserve(call);
	result = server_token_bind(call, token);
	if (result != CUDA_SUCCESS)
		return result;
	server_token_count(token, true);
	*out = token;
	return CUDA_SUCCESS;
}

CUresult serve_stream_host_function(struct server_call *call)
{
	const struct wire_stream_host_function *request = call->request;
	struct host_token *token;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (result == CUDA_SUCCESS)
		result = call_open(call, request->token, &token);
	if (result != CUDA_SUCCESS)
		return result;
	return server_token_undo_refused(token, call->driver->cuLaunchHostFunc(stream, server_token_ask, token));
}

CUresult serve_stream_callback(struct server_call *call)
{
	const struct wire_stream_callback *request = call->request;
	struct host_token *token;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (!call->driver->cuStreamAddCallback)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (result == CUDA_SUCCESS)
		result = call_open(call, request->token, &token);
	if (result != CUDA_SUCCESS)
		return result;
	result = call->driver->cuStreamAddCallback(stream, server_token_ask_callback, token, 0);
	return server_token_undo_refused(token, result);
}

/* Where a stream can't wait for memory: it waits in a function, which says nothing. */
static void gate_hold(void *opaque)
{
	struct host_token *token = opaque;

	server_token_await(token);
	server_token_put(token);
}

CUresult serve_stream_gate(struct server_call *call)
{
	const struct wire_stream_gate *request = call->request;
	struct host_token *token;
	struct server_mark *mark;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (result == CUDA_SUCCESS)
		result = server_mark_take(call, &mark);
	if (result != CUDA_SUCCESS)
		return result;
	server_staging_reserve(call);
	token = server_token_make(call, request->token, WIRE_EVENT_HOST_CALL);
	if (token)
		token->alone = true;
	if (token && server_token_bind(call, token) != CUDA_SUCCESS)
		return SERVER_MALFORMED;
	result = token ? call->driver->cuEventRecord(mark->event, stream) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS && request->waits) {
		server_token_count(token, true);
		token->gated = token->alone = server_gate_close(call, stream, &token->gate);
		if (!token->gated)
			result = call->driver->cuLaunchHostFunc(stream, gate_hold, token);
	}
	if (result != CUDA_SUCCESS) {
		server_mark_give(call->context, mark);
		return token ? server_token_undo_refused(token, result) : result;
	}
	token->references++;
	server_pass(call);
	/* Also where something went wrong: then there is nothing to wait for. */
	(void)call->driver->cuEventSynchronize(mark->event);
	server_mark_give(call->context, mark);
	server_token_tell(token);
	server_token_put(token);
	return CUDA_SUCCESS;
}

CUresult serve_host_done(struct server_call *call)
{
	const struct wire_host_done *request = call->request;
	struct host_token *token = server_token_find(call, request->token);
	CUresult result = CUDA_SUCCESS;
	bool early;

	if (!token)
		return SERVER_MALFORMED;
	pthread_mutex_lock(&call->server->holds_lock);
	early = token->alone && !token->asked;
	pthread_mutex_unlock(&call->server->holds_lock);
	/* A pull ends with its last byte, not before: its memory is not yet written. */
	if (token->event != WIRE_EVENT_HOST_CALL || early)
		result = SERVER_MALFORMED;
	else
		server_token_done(token);
	server_token_put(token);
	return result;
}

/* ---- as often as a graph runs ---- */

CUresult serve_capture_host_function(struct server_call *call)
{
	const struct wire_capture_host_function *request = call->request;
	const uint64_t named[3] = { request->function, request->argument, request->token };
	struct host_token *token;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	token = server_token_keep(call, request->token, named);
	if (!token)
		return SERVER_MALFORMED;
	result = call->driver->cuLaunchHostFunc(stream, server_token_ask, token);
	server_token_settle(call, token, server_capture_graph(call->driver, stream), result == CUDA_SUCCESS);
	return result;
}

/* ---- at the end of an object ---- */

/* The program's own user object: its end is a host function that nothing waits for. */
static void token_end(void *token)
{
	server_token_tell(token);
}

CUresult serve_user_object_create(struct server_call *call)
{
	const struct wire_user_object_create *request = call->request;
	struct wire_user_object_create_reply *reply = call->reply;
	struct host_token *token;
	CUuserObject object;
	CUresult result;

	if (!call->driver->cuUserObjectCreate)
		return CUDA_ERROR_NOT_SUPPORTED;
	token = server_token_make(call, request->token, WIRE_EVENT_HOST_CALL);
	if (!token)
		return CUDA_ERROR_OUT_OF_MEMORY;
	token->alone = true;
	result = server_token_bind(call, token);
	if (result != CUDA_SUCCESS)
		return result;
	result = call->driver->cuUserObjectCreate(&object, token, token_end, request->count,
						  request->flags);
	/* From then on the token is the driver's. */
	if (result == CUDA_SUCCESS)
		return server_name(call, SERVER_CUuserObject,
				   (uint64_t)(uintptr_t)object, 0, false, &reply->object);
	return server_token_undo_refused(token, result);
}
