/* The client's pinned memory, which is read when the stream gets there, and written by each run of a graph (token.h). */
#include "../ground/frames.h"
#include "../ground/hold.h"
#include "../ground/resolve.h"
#include "../memory/copies.h"
#include "../streams/capture.h"
#include "gather.h"
#include "token.h"

#include <stdlib.h>

/* ---- to the device ---- */

static void token_release(void *token)
{
	server_token_put(token);
}

/* A token under the client's name, for so many bytes of the client's memory: `kept` for every
 * run of a graph, or to come once. */
static CUresult pull_open(struct server_call *call, uint64_t name, uint64_t bytes, bool kept,
			  struct host_token **out)
{
	struct host_token *token = server_token_make(call, name, WIRE_EVENT_PULL);
	CUresult result;

	if (!token)
		return CUDA_ERROR_OUT_OF_MEMORY;
	token->kept = kept;
	token->total = bytes;
	token->missing = kept ? 0 : bytes;
	result = server_gather_take(call, bytes, &token->gathered);
	if (result != CUDA_SUCCESS) {
		free(token);
		return result;
	}
	result = server_token_bind(call, token);
	if (result != CUDA_SUCCESS)
		return result;
	if (!kept)
		server_token_count(token, true);
	*out = token;
	return CUDA_SUCCESS;
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
	result = server_token_undo_refused(token, driver->cuLaunchHostFunc(stream, server_token_ask, token));
	if (result != CUDA_SUCCESS)
		return result;
	rows = server_rows(true, token->gathered->memory, request->width, request->device, request->pitch, request->width,
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
	result = driver->cuLaunchHostFunc(stream, server_token_ask, token);
	rows = server_rows(true, token->gathered->memory, request->width, request->device, request->pitch, request->width,
			   request->height);
	if (result == CUDA_SUCCESS)
		result = driver->cuMemcpy2DAsync_v2(&rows, stream);
	server_token_settle(call, token, server_capture_graph(call->driver, stream), result == CUDA_SUCCESS);
	return result;
}

/* ---- what comes ---- */

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
		result = server_take(call, token->gathered->memory + request->offset, bytes);
		if (result != CUDA_SUCCESS)
			return result;
	}
	if (!pull_missing(token, bytes))
		server_token_done(token);
	return CUDA_SUCCESS;
}

CUresult serve_pull_data(struct server_call *call)
{
	const struct wire_pull_data *request = call->request;
	struct host_token *token = server_token_find(call, request->token);
	CUresult result;

	if (!token)
		return SERVER_MALFORMED;
	result = pull_take(call, token);
	server_token_put(token);
	return result;
}

/* ---- to the host, by each run of a graph ---- */

/* What every run sends: where to, and the bytes that the device left. */
struct replayed_data {
	struct server_context *context;
	struct server_gathered *gathered;
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
				  data->sequence, 0, &head, sizeof(head), data->gathered->memory + at,
				  now);
	}
}

static void replayed_data_free(void *opaque)
{
	struct replayed_data *data = opaque;

	server_gather_give(data->context, data->gathered);
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
	result = server_gather_take(call, data->bytes, &data->gathered);
	if (result != CUDA_SUCCESS) {
		free(data);
		return result;
	}
	rows = server_rows(false, data->gathered->memory, request->width, request->device, request->pitch, request->width,
			   request->height);
	result = call->driver->cuMemcpy2DAsync_v2(&rows, stream);
	if (result == CUDA_SUCCESS)
		result = call->driver->cuLaunchHostFunc(stream, replayed_data_send, data);
	if (result == CUDA_SUCCESS)
		server_graph_keep(call, server_capture_graph(call->driver, stream), replayed_data_free, data);
	else
		replayed_data_free(data);
	return result;
}
