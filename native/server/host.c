/* What a stream asks of the client: host functions and pinned bytes.  The stream
 * waits, inside a callback, until the client has answered. */
#include "server_ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
	token->references = 1;
	pthread_mutex_init(&token->lock, NULL);
	pthread_mutex_init(&token->asking, NULL);
	pthread_cond_init(&token->answered, NULL);
	return token;
}

static void pinned_give(struct server_context *context, struct server_pinned *pinned);

/* Its stream will wait for an answer, or does so no more. */
static void token_count(struct host_token *token, bool waits)
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

/* The client answers when it likes, and what the driver runs may just then be done with the token: an
 * answer holds it.  NULL: there is none of that name. */
static struct host_token *token_find(struct server_call *call, uint64_t handle)
{
	struct host_token *token;

	pthread_mutex_lock(&call->server->holds_lock);
	token = handle_get(&call->server->objects, HANDLE_TOKEN, handle);
	if (token)
		token->references++;
	pthread_mutex_unlock(&call->server->holds_lock);
	return token;
}

/* In the driver's threads, too: nothing here may call it. */
static void token_put(struct host_token *token)
{
	struct server *server = token->server;
	bool last;

	pthread_mutex_lock(&server->holds_lock);
	last = --token->references == 0;
	pthread_mutex_unlock(&server->holds_lock);
	if (!last)
		return;
	token_count(token, false);
	if (token->pinned)
		pinned_give(token->context, token->pinned);
	free(token);
}

/* Nobody finds it any more, but who has found it already. */
static void token_unname(struct host_token *token)
{
	pthread_mutex_lock(&token->server->holds_lock);
	handle_close(&token->server->objects, HANDLE_TOKEN, token->handle);
	pthread_mutex_unlock(&token->server->holds_lock);
}

/* The client has answered.  The name goes first: it answers once. */
static void token_done(struct host_token *token)
{
	if (!token->kept)
		token_unname(token);
	token_count(token, false);
	if (token->gated)
		server_gate_open(token->context, token->gate);
	if (token->alone) {
		token_put(token);
		return;
	}
	pthread_mutex_lock(&token->lock);
	token->done = true;
	pthread_cond_signal(&token->answered);
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
		token_count(token, true);
	}
	(void)server_send(token->server, token->event, token->lane, 0, 0,
			  is_call ? (const void *)&call : (const void *)&pull,
			  is_call ? sizeof(call) : sizeof(pull), NULL, 0);
	pthread_mutex_lock(&token->lock);
	while (!token->done)
		pthread_cond_wait(&token->answered, &token->lock);
	pthread_mutex_unlock(&token->lock);
	if (token->kept)
		pthread_mutex_unlock(&token->asking);
	else if (is_call)
		token_put(token);
}

static void token_ask(void *token)
{
	token_ask_status(token, CUDA_SUCCESS);
}

/* A callback is asked for after an error, too, and told of it. */
static void token_ask_callback(CUstream stream, CUresult status, void *token)
{
	(void)stream;
	token_ask_status(token, status);
}

/* ---- what graphs ask ---- */

void server_token_ask(void *token)
{
	token_ask(token);
}

struct host_token *server_token_keep(struct server_call *call, uint64_t handle,
				     const uint64_t named[3])
{
	struct host_token *token = token_make(call, handle, WIRE_EVENT_HOST_CALL);

	if (!token)
		return NULL;
	token->kept = true;
	memcpy(token->named, named, sizeof(token->named));
	if (handle_bind(&call->server->objects, HANDLE_TOKEN, handle, token)) {
		free(token);
		return NULL;
	}
	return token;
}

void server_token_show(CUhostFn function, void *argument, uint64_t named[3])
{
	if (function == token_ask || function == server_token_ask)
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

	token_unname(token);
	(void)server_send(token->server, WIRE_EVENT_HOST_CALL, token->lane, 0, 0, &forget,
			  sizeof(forget), NULL, 0);
	token_put(token);
}

/* Let `forget` be called when the graph and all that was made of it are gone.  A driver
 * without user objects keeps the token for the session. */
static void graph_keep(struct server_call *call, CUgraph graph, CUhostFn forget, void *opaque)
{
	const struct server_driver *driver = call->driver;
	CUuserObject object;

	if (!graph || !driver->cuUserObjectCreate || !driver->cuGraphRetainUserObject)
		return;
	if (driver->cuUserObjectCreate(&object, opaque, forget, 1,
				       CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) == CUDA_SUCCESS)
		driver->cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
}

void server_token_settle(struct server_call *call, struct host_token *token, CUgraph graph,
			 bool used)
{
	if (used)
		graph_keep(call, graph, token_forget, token);
	else
		token_forget(token);
}

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
	result = call->driver->cuLaunchHostFunc(stream, token_ask, token);
	server_token_settle(call, token, server_capture_graph(call->driver, stream), result == CUDA_SUCCESS);
	return result;
}

/* Say that a token which is alone has been come to.  From here on the answer may come, and with it the token's end. */
static void token_tell(struct host_token *token)
{
	const struct wire_host_call call = { .token = token->handle };
	struct server *server = token->server;
	uint16_t lane = token->lane;

	pthread_mutex_lock(&server->holds_lock);
	token->asked = true;
	pthread_mutex_unlock(&server->holds_lock);
	(void)server_send(server, WIRE_EVENT_HOST_CALL, lane, 0, 0, &call, sizeof(call), NULL, 0);
}

/* The program's own user object: its end is a host function that nothing waits for. */
static void token_end(void *token)
{
	token_tell(token);
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
	token = token_make(call, request->token, WIRE_EVENT_HOST_CALL);
	if (!token)
		return CUDA_ERROR_OUT_OF_MEMORY;
	token->alone = true;
	if (handle_bind(&call->server->objects, HANDLE_TOKEN, request->token, token)) {
		free(token);
		return SERVER_MALFORMED;
	}
	result = call->driver->cuUserObjectCreate(&object, token, token_end, request->count,
						  request->flags);
	/* From then on the token is the driver's. */
	if (result == CUDA_SUCCESS)
		return server_name(call, SERVER_CUuserObject,
				   (uint64_t)(uintptr_t)object, 0, false, &reply->object);
	token_unname(token);
	token_put(token);
	return result;
}

/* A token under the client's name, for a function of the client's that is called once. */
static CUresult call_open(struct server_call *call, uint64_t name, struct host_token **out)
{
	struct host_token *token = token_make(call, name, WIRE_EVENT_HOST_CALL);

	if (!token)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (call->context)
		server_staging_reserve(call);
	if (handle_bind(&call->server->objects, HANDLE_TOKEN, name, token)) {
		free(token);
		return SERVER_MALFORMED;
	}
	token_count(token, true);
	*out = token;
	return CUDA_SUCCESS;
}

static CUresult call_result(struct host_token *token, CUresult result)
{
	if (result != CUDA_SUCCESS) {
		token_unname(token);
		token_put(token);
	}
	return result;
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
	return call_result(token, call->driver->cuLaunchHostFunc(stream, token_ask, token));
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
	return call_result(token,
			   call->driver->cuStreamAddCallback(stream, token_ask_callback, token, 0));
}

/* Where a stream can't wait for memory: it waits in a function, which says nothing. */
static void gate_hold(void *opaque)
{
	struct host_token *token = opaque;

	pthread_mutex_lock(&token->lock);
	while (!token->done)
		pthread_cond_wait(&token->answered, &token->lock);
	pthread_mutex_unlock(&token->lock);
	token_put(token);
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
	token = token_make(call, request->token, WIRE_EVENT_HOST_CALL);
	if (token && handle_bind(&call->server->objects, HANDLE_TOKEN, request->token, token)) {
		free(token);
		return SERVER_MALFORMED;
	}
	result = token ? call->driver->cuEventRecord(mark->event, stream) : CUDA_ERROR_OUT_OF_MEMORY;
	if (token)
		token->alone = true;
	if (result == CUDA_SUCCESS && request->waits) {
		token_count(token, true);
		token->gated = token->alone = server_gate_close(call, stream, &token->gate);
		if (!token->gated)
			result = call->driver->cuLaunchHostFunc(stream, gate_hold, token);
	}
	if (result != CUDA_SUCCESS) {
		server_mark_give(call->context, mark);
		if (token) {
			token_unname(token);
			token_put(token);
		}
		return result;
	}
	token->references++;
	server_pass(call);
	/* Also where something went wrong: then there is nothing to wait for. */
	(void)call->driver->cuEventSynchronize(mark->event);
	server_mark_give(call->context, mark);
	token_tell(token);
	token_put(token);
	return CUDA_SUCCESS;
}

CUresult serve_host_done(struct server_call *call)
{
	const struct wire_host_done *request = call->request;
	struct host_token *token = token_find(call, request->token);
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
		token_done(token);
	token_put(token);
	return result;
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

static void token_release(void *token)
{
	token_put(token);
}

/* A token under the client's name, for so many bytes of the client's memory: `kept` for every
 * run of a graph, or to come once. */
static CUresult pull_open(struct server_call *call, uint64_t name, uint64_t bytes, bool kept,
			  struct host_token **out)
{
	struct host_token *token = token_make(call, name, WIRE_EVENT_PULL);
	CUresult result;

	if (!token)
		return CUDA_ERROR_OUT_OF_MEMORY;
	token->kept = kept;
	token->total = bytes;
	token->missing = kept ? 0 : bytes;
	result = pinned_take(call, bytes, &token->pinned);
	if (result != CUDA_SUCCESS) {
		free(token);
		return result;
	}
	if (handle_bind(&call->server->objects, HANDLE_TOKEN, name, token)) {
		token_release(token);
		return SERVER_MALFORMED;
	}
	if (!kept)
		token_count(token, true);
	*out = token;
	return CUDA_SUCCESS;
}

/* Between rows of the device and pinned memory, where they lie packed. */
static CUDA_MEMCPY2D packed_rows(bool to_device, const struct server_pinned *pinned,
				 CUdeviceptr device, uint64_t pitch, uint64_t width, uint64_t height)
{
	CUDA_MEMCPY2D rows = { .WidthInBytes = width, .Height = height };

	if (height <= 1)
		pitch = width;
	if (to_device) {
		rows.srcMemoryType = CU_MEMORYTYPE_HOST;
		rows.srcHost = pinned->memory;
		rows.srcPitch = width;
		rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
		rows.dstDevice = device;
		rows.dstPitch = pitch;
	} else {
		rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
		rows.srcDevice = device;
		rows.srcPitch = pitch;
		rows.dstMemoryType = CU_MEMORYTYPE_HOST;
		rows.dstHost = pinned->memory;
		rows.dstPitch = width;
	}
	return rows;
}

CUresult serve_copy_pinned_to_device(struct server_call *call)
{
	const struct wire_copy_pinned_to_device *request = call->request;
	const struct server_driver *driver = call->driver;
	struct host_token *token;
	CUDA_MEMCPY2D rows;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!request->width || !request->height ||
	    request->width > (1ull << 40) / request->height)
		return SERVER_MALFORMED;
	result = pull_open(call, request->token, request->width * request->height, false, &token);
	if (result != CUDA_SUCCESS)
		return result;
	result = driver->cuLaunchHostFunc(stream, token_ask, token);
	if (result != CUDA_SUCCESS) {
		token_unname(token);
		token_release(token);
		return result;
	}
	rows = packed_rows(true, token->pinned, request->device, request->pitch, request->width,
			   request->height);
	result = driver->cuMemcpy2DAsync_v2(&rows, stream);
	driver->cuLaunchHostFunc(stream, token_release, token);
	return result;
}

/* The same for every run of a graph that is being captured. */
CUresult serve_capture_copy_to_device(struct server_call *call)
{
	const struct wire_capture_copy_to_device *request = call->request;
	const struct server_driver *driver = call->driver;
	struct host_token *token;
	CUDA_MEMCPY2D rows;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!server_plane_sane(request->pitch, request->width, request->height))
		return SERVER_MALFORMED;
	result = pull_open(call, request->token, request->width * request->height, true, &token);
	if (result != CUDA_SUCCESS)
		return result;
	result = driver->cuLaunchHostFunc(stream, token_ask, token);
	rows = packed_rows(true, token->pinned, request->device, request->pitch, request->width,
			   request->height);
	if (result == CUDA_SUCCESS)
		result = driver->cuMemcpy2DAsync_v2(&rows, stream);
	server_token_settle(call, token, server_capture_graph(call->driver, stream), result == CUDA_SUCCESS);
	return result;
}

/* What every run of a graph sends: where to, and the bytes that the device left. */
struct replayed_data {
	struct server_context *context;
	struct server_pinned *pinned;
	uint16_t lane;
	uint64_t sequence;
	size_t bytes;
};

static void replayed_data_send(void *opaque)
{
	const struct replayed_data *data = opaque;

	for (size_t at = 0; at < data->bytes; at += WIRE_BULK_BYTES) {
		const struct wire_data head = { .sequence = data->sequence, .offset = at };
		size_t now = data->bytes - at < WIRE_BULK_BYTES ? data->bytes - at : WIRE_BULK_BYTES;

		(void)server_send(data->context->server, WIRE_EVENT_DATA, data->lane,
				  data->sequence, 0, &head, sizeof(head), data->pinned->memory + at,
				  now);
	}
}

static void replayed_data_free(void *opaque)
{
	struct replayed_data *data = opaque;

	pinned_give(data->context, data->pinned);
	free(data);
}

CUresult serve_capture_copy_to_host(struct server_call *call)
{
	const struct wire_capture_copy_to_host *request = call->request;
	struct replayed_data *data;
	CUDA_MEMCPY2D rows;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!server_plane_sane(request->pitch, request->width, request->height))
		return SERVER_MALFORMED;
	data = calloc(1, sizeof(*data));
	if (!data)
		return CUDA_ERROR_OUT_OF_MEMORY;
	data->context = call->context;
	data->lane = call->header.lane;
	data->sequence = call->header.sequence;
	data->bytes = request->width * request->height;
	result = pinned_take(call, data->bytes, &data->pinned);
	if (result != CUDA_SUCCESS) {
		free(data);
		return result;
	}
	rows = packed_rows(false, data->pinned, request->device, request->pitch, request->width,
			   request->height);
	result = call->driver->cuMemcpy2DAsync_v2(&rows, stream);
	if (result == CUDA_SUCCESS)
		result = call->driver->cuLaunchHostFunc(stream, replayed_data_send, data);
	if (result == CUDA_SUCCESS)
		graph_keep(call, server_capture_graph(call->driver, stream), replayed_data_free, data);
	else
		replayed_data_free(data);
	return result;
}

/* The bytes that a pull waits for, after so many came.  A graph's replay asks anew, and nothing
 * but the client's manners keeps its bytes from coming at that very moment. */
static size_t pull_missing(struct host_token *token, size_t came)
{
	size_t missing;

	pthread_mutex_lock(&token->lock);
	token->missing -= came;
	missing = token->missing;
	pthread_mutex_unlock(&token->lock);
	return missing;
}

static CUresult pull_take(struct server_call *call, struct host_token *token)
{
	const struct wire_pull_data *request = call->request;
	size_t bytes = call->tail_bytes;
	CUresult result;

	if (token->event != WIRE_EVENT_PULL || request->offset > token->total ||
	    bytes > token->total - request->offset || bytes > pull_missing(token, 0))
		return SERVER_MALFORMED;
	/* The memory ends with its context. */
	if (server_hold_context(call, token->context) == CUDA_SUCCESS) {
		result = server_take(call, token->pinned->memory + request->offset, bytes);
		if (result != CUDA_SUCCESS)
			return result;
	}
	if (!pull_missing(token, bytes))
		token_done(token);
	return CUDA_SUCCESS;
}

CUresult serve_pull_data(struct server_call *call)
{
	const struct wire_pull_data *request = call->request;
	struct host_token *token = token_find(call, request->token);
	CUresult result;

	if (!token)
		return SERVER_MALFORMED;
	result = pull_take(call, token);
	token_put(token);
	return result;
}
