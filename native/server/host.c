/* What a stream asks of the client: host functions and pinned bytes.  The stream
 * waits, inside a callback, until the client has answered. */
#include "server_ops.h"

#include <errno.h>
#include <stdlib.h>

struct host_token {
	struct server *server;
	uint64_t handle;
	uint16_t lane;
	uint16_t event;			/* what to send: WIRE_EVENT_HOST_CALL or _PULL */
	pthread_mutex_t lock;
	pthread_cond_t answered;
	bool done;
	size_t missing;			/* bytes of a pull */
	size_t total;
	uint8_t *memory;
};

static struct host_token *token_make(struct server_call *call, uint64_t handle, uint16_t event)
{
	struct host_token *token = calloc(1, sizeof(*token));

	if (!token)
		return NULL;
	token->server = call->server;
	token->handle = handle;
	token->lane = call->header.lane;
	token->event = event;
	pthread_mutex_init(&token->lock, NULL);
	pthread_cond_init(&token->answered, NULL);
	return token;
}

/* The client has answered.  The name goes first, so that nobody finds a token which
 * the stream frees once it goes on. */
static void token_done(struct host_token *token)
{
	handle_close(&token->server->objects, HANDLE_TOKEN, token->handle);
	pthread_mutex_lock(&token->lock);
	token->done = true;
	pthread_cond_signal(&token->answered);
	pthread_mutex_unlock(&token->lock);
}

/* In the stream: ask, and wait.  When the session ends the process does, so a
 * failure to send needs no way out of here: the token may still be in use. */
static void token_ask(void *opaque)
{
	struct host_token *token = opaque;
	const struct wire_host_call call = { .token = token->handle };
	const struct wire_pull pull = { .token = token->handle };
	bool is_call = token->event == WIRE_EVENT_HOST_CALL;

	(void)server_send(token->server, token->event, token->lane, 0, 0,
			  is_call ? (const void *)&call : (const void *)&pull,
			  is_call ? sizeof(call) : sizeof(pull), NULL, 0);
	pthread_mutex_lock(&token->lock);
	while (!token->done)
		pthread_cond_wait(&token->answered, &token->lock);
	pthread_mutex_unlock(&token->lock);
	if (is_call)
		free(token);
}

CUresult serve_stream_host_function(struct server_call *call)
{
	const struct wire_stream_host_function *request = call->request;
	struct host_token *token;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	token = token_make(call, request->token, WIRE_EVENT_HOST_CALL);
	if (!token)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (handle_bind(&call->server->objects, HANDLE_TOKEN, request->token, token)) {
		free(token);
		return SERVER_MALFORMED;
	}
	result = call->driver->cuLaunchHostFunc(stream, token_ask, token);
	if (result != CUDA_SUCCESS) {
		handle_close(&call->server->objects, HANDLE_TOKEN, request->token);
		free(token);
	}
	return result;
}

CUresult serve_host_done(struct server_call *call)
{
	const struct wire_host_done *request = call->request;
	struct host_token *token = handle_get(&call->server->objects, HANDLE_TOKEN, request->token);

	/* A pull ends with its last byte, not before: its memory is not yet written. */
	if (!token || token->event != WIRE_EVENT_HOST_CALL)
		return SERVER_MALFORMED;
	token_done(token);
	return CUDA_SUCCESS;
}

/* ---- pinned memory, read when the stream gets there ---- */

static void token_release(void *opaque)
{
	struct host_token *token = opaque;

	free(token->memory);
	free(token);
}

CUresult serve_copy_pinned_to_device(struct server_call *call)
{
	const struct wire_copy_pinned_to_device *request = call->request;
	const struct server_driver *driver = call->driver;
	struct host_token *token;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!request->width || !request->height ||
	    request->width > (1ull << 40) / request->height)
		return SERVER_MALFORMED;
	token = token_make(call, request->token, WIRE_EVENT_PULL);
	if (!token)
		return CUDA_ERROR_OUT_OF_MEMORY;
	token->total = request->width * request->height;
	token->missing = token->total;
	token->memory = malloc(token->total);
	if (!token->memory) {
		free(token);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (handle_bind(&call->server->objects, HANDLE_TOKEN, request->token, token)) {
		token_release(token);
		return SERVER_MALFORMED;
	}
	result = driver->cuLaunchHostFunc(stream, token_ask, token);
	if (result != CUDA_SUCCESS) {
		handle_close(&call->server->objects, HANDLE_TOKEN, request->token);
		token_release(token);
		return result;
	}
	const CUDA_MEMCPY2D rows = {
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = token->memory,
		.srcPitch = request->width,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = request->device,
		.dstPitch = request->height > 1 ? request->pitch : request->width,
		.WidthInBytes = request->width,
		.Height = request->height,
	};
	/* Pageable to the driver: it may read now, before the stream has asked.
	 * Pin it, so that it is read in stream order. */
	if (driver->cuMemHostRegister_v2)
		driver->cuMemHostRegister_v2(token->memory, token->total, 0);
	result = driver->cuMemcpy2DAsync_v2(&rows, stream);
	driver->cuLaunchHostFunc(stream, token_release, token);
	return result;
}

CUresult serve_pull_data(struct server_call *call)
{
	const struct wire_pull_data *request = call->request;
	struct host_token *token = handle_get(&call->server->objects, HANDLE_TOKEN, request->token);
	size_t bytes = call->tail_bytes;
	CUresult result;

	if (!token || token->event != WIRE_EVENT_PULL || request->offset > token->total ||
	    bytes > token->total - request->offset || bytes > token->missing)
		return SERVER_MALFORMED;
	result = server_take(call, token->memory + request->offset, bytes);
	if (result != CUDA_SUCCESS)
		return result;
	token->missing -= bytes;
	if (!token->missing)
		token_done(token);
	return CUDA_SUCCESS;
}
