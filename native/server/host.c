/* What a stream asks of the client: host functions and pinned bytes.  The stream
 * waits, inside a callback, until the client has answered. */
#include "server_ops.h"

#include <errno.h>
#include <stdlib.h>

struct host_token {
	struct server *server;
	struct server_context *context;
	uint64_t handle;
	uint16_t lane;
	uint16_t event;			/* what to send: WIRE_EVENT_HOST_CALL or _PULL */
	pthread_mutex_t lock;
	pthread_cond_t answered;
	bool done;
	size_t missing;			/* bytes of a pull */
	size_t total;
	struct server_pinned *pinned;	/* where they are gathered */
};

static struct host_token *token_make(struct server_call *call, uint64_t handle, uint16_t event)
{
	struct host_token *token = calloc(1, sizeof(*token));

	if (!token)
		return NULL;
	token->server = call->server;
	token->context = call->context;
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

/* Buffers are rounded up to this many bytes, so that they fit more than one copy. */
#define PINNED_GRAIN (64ull << 10)
/* Idle bytes that a context keeps when server_pinned_trim has its chance. */
#define PINNED_KEPT_BYTES (256ull << 20)

/* In a stream's callback, too: nothing here may call the driver. */
static void pinned_give(struct server_context *context, struct server_pinned *pinned)
{
	pthread_mutex_lock(&context->lock);
	pinned->next = context->pinned_idle;
	context->pinned_idle = pinned;
	context->pinned_idle_bytes += pinned->bytes;
	pthread_mutex_unlock(&context->lock);
}

/* Take the smallest idle buffer of at least `bytes`, or the largest of all (bytes 0). */
static struct server_pinned *pinned_pick(struct server_context *context, size_t bytes)
{
	struct server_pinned **best = NULL, *pinned = NULL;

	pthread_mutex_lock(&context->lock);
	for (struct server_pinned **link = &context->pinned_idle; *link; link = &(*link)->next) {
		if ((*link)->bytes < bytes)
			continue;
		if (!best || (bytes ? (*link)->bytes < (*best)->bytes
				    : (*link)->bytes > (*best)->bytes))
			best = link;
	}
	if (best) {
		pinned = *best;
		*best = pinned->next;
		context->pinned_idle_bytes -= pinned->bytes;
	}
	pthread_mutex_unlock(&context->lock);
	return pinned;
}

/* Memory that the driver reads in stream order, which it promises for its own pinned
 * memory only: pageable memory it may read before the stream has asked for the bytes. */
static CUresult pinned_take(struct server_call *call, size_t bytes, struct server_pinned **out)
{
	const struct server_driver *driver = call->driver;
	struct server_pinned *pinned = pinned_pick(call->context, bytes);
	CUresult result;

	if (!pinned) {
		void *memory;

		if (!driver->cuMemHostAlloc || !driver->cuMemFreeHost)
			return CUDA_ERROR_NOT_SUPPORTED;
		pinned = malloc(sizeof(*pinned));
		if (!pinned)
			return CUDA_ERROR_OUT_OF_MEMORY;
		pinned->bytes = (bytes + PINNED_GRAIN - 1) & ~(PINNED_GRAIN - 1);
		result = driver->cuMemHostAlloc(&memory, pinned->bytes, 0);
		if (result != CUDA_SUCCESS) {
			free(pinned);
			return result;
		}
		pinned->memory = memory;
	}
	*out = pinned;
	return CUDA_SUCCESS;
}

/* A driver may wait for all that the context still has to do. */
void server_pinned_trim(struct server_call *call)
{
	struct server_context *context = call->context;

	for (;;) {
		struct server_pinned *pinned = NULL;
		bool excess;

		pthread_mutex_lock(&context->lock);
		excess = context->pinned_idle_bytes > PINNED_KEPT_BYTES;
		pthread_mutex_unlock(&context->lock);
		if (excess)
			pinned = pinned_pick(context, 0);
		if (!pinned)
			return;
		call->driver->cuMemFreeHost(pinned->memory);
		free(pinned);
	}
}

static void token_release(void *opaque)
{
	struct host_token *token = opaque;

	pinned_give(token->context, token->pinned);
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
	result = pinned_take(call, token->total, &token->pinned);
	if (result != CUDA_SUCCESS) {
		free(token);
		return result;
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
		.srcHost = token->pinned->memory,
		.srcPitch = request->width,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = request->device,
		.dstPitch = request->height > 1 ? request->pitch : request->width,
		.WidthInBytes = request->width,
		.Height = request->height,
	};
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
	result = server_take(call, token->pinned->memory + request->offset, bytes);
	if (result != CUDA_SUCCESS)
		return result;
	token->missing -= bytes;
	if (!token->missing)
		token_done(token);
	return CUDA_SUCCESS;
}
