/* Contexts, streams, events, memory: the handlers that are more than one call. */
#include "server_ops.h"
#include "token.h"

#include <errno.h>
#include <stdlib.h>

/* ---- handles ---- */

CUresult server_context_enter(struct server_thread *thread, struct server_context *context)
{
	struct server *server = thread->server;
	uint64_t epoch = atomic_load(&server->context_epoch);
	CUresult result;

	if (thread->current == context && thread->epoch == epoch)
		return CUDA_SUCCESS;
	result = server->driver.cuCtxSetCurrent(context->real);
	if (result == CUDA_SUCCESS) {
		thread->current = context;
		thread->epoch = epoch;
	}
	return result;
}

CUresult server_resolve_context(struct server_call *call, uint64_t handle, CUcontext *context)
{
	struct server_context *found = server_find(call, HANDLE_CONTEXT, handle);

	if (!found)
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = found->real;
	return CUDA_SUCCESS;
}

/* ---- streams that the legacy one waits for ----
 *
 * NVIDIA's driver, asked whether a context's legacy stream has come to its end, says nothing of the others for which it
 * would wait: so it seems by what hung there (decision 28). */

void server_blocking_add(struct server_context *context, CUstream stream)
{
	context = context->base;
	pthread_mutex_lock(&context->lock);
	if (context->blocking_count < SERVER_BLOCKING)
		context->blocking[context->blocking_count++] = stream;
	else
		context->blocking_many = true;
	pthread_mutex_unlock(&context->lock);
}

void server_blocking_remove(struct server_context *context, CUstream stream)
{
	unsigned at = 0;

	context = context->base;
	pthread_mutex_lock(&context->lock);
	while (at < context->blocking_count && context->blocking[at] != stream)
		at++;
	if (at < context->blocking_count)
		context->blocking[at] = context->blocking[--context->blocking_count];
	pthread_mutex_unlock(&context->lock);
}

static struct server_lane_stream *lane_find(const struct server_context *context, uint16_t lane)
{
	struct server_lane_stream *found = context->lanes;

	while (found && found->lane != lane)
		found = found->next;
	return found;
}

/* The stream that stands for CUDA's per-thread default stream of a lane: a
 * blocking stream, which is what that stream is. */
static CUresult lane_stream(struct server_call *call, CUstream *stream)
{
	struct server_lane_stream *found, *made = NULL;
	struct server_context *context = call->context;
	CUresult result = CUDA_SUCCESS;

	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	for (;;) {
		pthread_mutex_lock(&context->lock);
		found = lane_find(context, call->header.lane);
		if (!found && made) {
			made->lane = call->header.lane;
			made->next = context->lanes;
			context->lanes = found = made;
			made = NULL;
		}
		if (found && call->passed)
			result = server_hold(call, found->stream);
		if (found && result == CUDA_SUCCESS)
			*stream = found->stream;
		pthread_mutex_unlock(&context->lock);
		if (found)
			break;
		made = calloc(1, sizeof(*made));
		result = made ? call->driver->cuStreamCreate(&made->stream, CU_STREAM_DEFAULT)
			      : CUDA_ERROR_OUT_OF_MEMORY;
		if (result != CUDA_SUCCESS) {
			free(made);
			return result;
		}
		server_blocking_add(context, made->stream);
	}
	/* Threads that share a lane may both have made one. */
	if (made) {
		server_blocking_remove(context, made->stream);
		call->driver->cuStreamDestroy_v2(made->stream);
		free(made);
	}
	return result;
}

CUresult server_resolve_stream(struct server_call *call, uint64_t handle, CUstream *stream)
{
	if (handle == (uint64_t)(uintptr_t)CU_STREAM_LEGACY) {
		*stream = NULL;
		return CUDA_SUCCESS;
	}
	if (handle == (uint64_t)(uintptr_t)CU_STREAM_PER_THREAD)
		return lane_stream(call, stream);
	return server_find_placed(call, HANDLE_STREAM, handle, (void **)stream);
}

CUresult server_resolve_event(struct server_call *call, uint64_t handle, CUevent *event)
{
	return server_find_placed(call, HANDLE_EVENT, handle, (void **)event);
}

/* A bit that no address has tells a library's kernel from a module's function: NVIDIA's driver looks into
 * what it is given, and does not look which of the two it is. */
#define KERNEL_MARK (1ull << 63)

void *server_kernel_marked(CUkernel kernel)
{
	return (void *)((uintptr_t)kernel | KERNEL_MARK);
}

CUresult server_resolve_function(struct server_call *call, uint64_t handle, CUfunction *function)
{
	void *found = handle_get(&call->server->functions, HANDLE_FUNCTION, handle);

	*function = (CUfunction)((uintptr_t)found & ~KERNEL_MARK);
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

bool server_is_kernel(struct server_call *call, uint64_t handle)
{
	void *found = handle_get(&call->server->functions, HANDLE_FUNCTION, handle);

	return (uintptr_t)found & KERNEL_MARK;
}

CUresult server_resolve_function_here(struct server_call *call, uint64_t handle, CUfunction *function)
{
	CUresult result = server_resolve_function(call, handle, function);

	if (result == CUDA_SUCCESS && server_is_kernel(call, handle) && call->driver->cuKernelGetFunction)
		result = call->driver->cuKernelGetFunction(function, (CUkernel)*function);
	return result;
}

/* The name that the client chose is not free, or not a name at all: no client of
 * ours does that. */
static CUresult bind_result(int rc)
{
	return rc == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : SERVER_MALFORMED;
}

/* ---- primary contexts; for who leads ---- */

/* What a device has as its primary context until the driver has ended it; NULL: nothing. */
static struct server_context *primary_of(struct server *server, uint32_t ordinal)
{
	struct server_context *context;

	pthread_mutex_lock(&server->lock);
	context = server->primaries[ordinal];
	pthread_mutex_unlock(&server->lock);
	return context;
}

static void primary_set(struct server *server, uint32_t ordinal, struct server_context *context)
{
	pthread_mutex_lock(&server->lock);
	server->primaries[ordinal] = context;
	pthread_mutex_unlock(&server->lock);
}

struct server_context *server_primary(struct server *server, uint32_t ordinal)
{
	struct server_context *context =
		ordinal < (uint32_t)server->device_count ? primary_of(server, ordinal) : NULL;

	return context && !context->gone ? context : NULL;
}

/* Hold the device's primary context, which the client has not asked for. */
static CUresult primary_hold(struct server_call *call, uint32_t ordinal, CUcontext *real)
{
	struct server *server = call->server;
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&server->held_lock);
	if (!server->held[ordinal])
		result = call->driver->cuDevicePrimaryCtxRetain(&server->held[ordinal],
								server->devices[ordinal]);
	*real = server->held[ordinal];
	pthread_mutex_unlock(&server->held_lock);
	return result;
}

/* The client's own reference keeps it now. */
static void primary_let_go(struct server_call *call, uint32_t ordinal)
{
	struct server *server = call->server;

	pthread_mutex_lock(&server->held_lock);
	if (server->held[ordinal])
		call->driver->cuDevicePrimaryCtxRelease_v2(server->devices[ordinal]);
	server->held[ordinal] = NULL;
	pthread_mutex_unlock(&server->held_lock);
}

CUresult server_enter_any(struct server_call *call, CUdevice device)
{
	struct server *server = call->server;
	struct server_context *context;
	uint32_t ordinal = 0;
	CUcontext real;
	CUresult result;

	if (call->context)
		return CUDA_SUCCESS;
	while (ordinal < (uint32_t)server->device_count - 1 && server->devices[ordinal] != device)
		ordinal++;
	context = server_primary(server, ordinal);
	if (context && server_hold_context(call, context) == CUDA_SUCCESS)
		return server_context_enter(call->thread, context);
	result = primary_hold(call, ordinal, &real);
	call->thread->current = NULL;
	return result == CUDA_SUCCESS ? call->driver->cuCtxSetCurrent(real) : result;
}

/* ---- threads of the client ---- */

CUresult serve_lane_end(struct server_call *call)
{
	struct server *server = call->server;
	struct server_lane_stream *ended = NULL, *lane;

	/* All of them before the first is waited for: another thread may lead then. */
	server->capture_modes[call->header.lane] = CU_STREAM_CAPTURE_MODE_GLOBAL;
	for (int i = 0; i < server->device_count; i++) {
		struct server_context *context = server_primary(server, (uint32_t)i);
		struct server_lane_stream **link;

		if (!context)
			continue;
		pthread_mutex_lock(&context->lock);
		for (link = &context->lanes; *link; link = &(*link)->next) {
			if ((*link)->lane == call->header.lane) {
				lane = *link;
				*link = lane->next;
				lane->next = ended;
				lane->context = context;
				ended = lane;
				break;
			}
		}
		pthread_mutex_unlock(&context->lock);
	}
	while ((lane = ended)) {
		ended = lane->next;
		server_capture_end(server, lane->stream);
		call->context = lane->context;
		server_await_users(call, lane->stream);
		/* With its context it is gone by itself. */
		server_blocking_remove(lane->context, lane->stream);
		if (server_hold_context(call, lane->context) == CUDA_SUCCESS &&
		    server_context_enter(call->thread, lane->context) == CUDA_SUCCESS)
			call->driver->cuStreamDestroy_v2(lane->stream);
		free(lane);
	}
	return CUDA_SUCCESS;
}

/* ---- contexts ---- */

CUresult server_context_bind(struct server_call *call, uint64_t handle, CUcontext real,
			     CUdevice device, struct server_context *base,
			     struct server_context **out)
{
	struct server_context *context = calloc(1, sizeof(*context));
	int rc;

	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->server = call->server;
	context->base = base ? base : context;
	context->handle = handle;
	context->real = real;
	context->device = device;
	pthread_mutex_init(&context->making, NULL);
	pthread_mutex_init(&context->lock, NULL);
	server_staging_init(context);
	rc = handle_bind(&call->server->objects, HANDLE_CONTEXT, handle, context);
	if (rc) {
		free(context);
		return bind_result(rc);
	}
	*out = context;
	return CUDA_SUCCESS;
}

/* The object stays: streams' callbacks may still name it; the number is bounded by how often a
 * client makes contexts. */
void server_context_end(struct server_call *call, struct server_context *context)
{
	struct server *server = call->server;
	struct named *hidden;

	handle_close(&server->objects, HANDLE_CONTEXT, context->handle);
	pthread_mutex_lock(&server->holds_lock);
	context->gone = true;
	pthread_mutex_unlock(&server->holds_lock);
	if (context->base == context)
		server_displace(server, context);
	server_libraries_forget(context);
	server_captures_forget(server, context->real);
	hidden = server_names_hide(server, context);
	/* Two calls that end each other's contexts must not hold them. */
	call->context = NULL;
	server_pass(call);
	server_await_users(call, context);
	server_names_end(call, hidden);
	atomic_fetch_add(&server->context_epoch, 1);
}

static CUresult device_of(const struct server *server, uint32_t ordinal, CUdevice *device)
{
	if (ordinal >= (uint32_t)server->device_count)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = server->devices[ordinal];
	return CUDA_SUCCESS;
}

CUresult serve_primary_retain(struct server_call *call)
{
	const struct wire_primary_retain *request = call->request;
	struct server *server = call->server;
	struct server_context *context;
	CUcontext real;
	CUdevice device;
	CUresult result = device_of(server, request->device, &device);

	if (result != CUDA_SUCCESS)
		return result;
	/* Also one that is just ending: the driver would end it once more.  Clients wait for that. */
	if (primary_of(server, request->device))
		return CUDA_ERROR_INVALID_VALUE;
	result = call->driver->cuDevicePrimaryCtxRetain(&real, device);
	if (result != CUDA_SUCCESS)
		return result;
	result = server_context_bind(call, request->context, real, device, NULL, &context);
	if (result != CUDA_SUCCESS) {
		call->driver->cuDevicePrimaryCtxRelease_v2(device);
		return result;
	}
	context->primary = true;
	primary_set(server, request->device, context);
	primary_let_go(call, request->device);
	return CUDA_SUCCESS;
}

/* Take it from everybody, before the driver does. */
static CUresult primary_end(struct server_call *call, uint32_t ordinal, struct server_context **context)
{
	*context = server_primary(call->server, ordinal);
	if (!*context)
		return CUDA_ERROR_INVALID_CONTEXT;
	server_context_end(call, *context);
	server_pinned_forget(call, *context);
	return CUDA_SUCCESS;
}

CUresult serve_primary_release(struct server_call *call)
{
	const struct wire_primary_release *request = call->request;
	struct server_context *context;
	CUresult result = primary_end(call, request->device, &context);

	if (result != CUDA_SUCCESS)
		return result;
	result = call->driver->cuDevicePrimaryCtxRelease_v2(context->device);
	primary_set(call->server, request->device, NULL);
	server_libraries_free(context);
	server_host_forget(context);
	return result;
}

CUresult serve_primary_reset(struct server_call *call)
{
	const struct wire_primary_reset *request = call->request;
	struct server_context *context;
	CUresult result = primary_end(call, request->device, &context);

	if (result != CUDA_SUCCESS)
		return result;
	result = call->driver->cuDevicePrimaryCtxReset_v2(context->device);
	/* The reference of primary_retain outlives a reset. */
	call->driver->cuDevicePrimaryCtxRelease_v2(context->device);
	primary_set(call->server, request->device, NULL);
	server_libraries_free(context);
	server_host_forget(context);
	return result;
}

CUresult serve_context_create(struct server_call *call)
{
	const struct wire_context_create *request = call->request;
	struct server_context *context;
	CUcontext real, popped;
	CUdevice device;
	CUresult result = device_of(call->server, request->device, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!call->driver->cuCtxCreate_v2)
		return CUDA_ERROR_NOT_SUPPORTED;
	result = call->driver->cuCtxCreate_v2(&real, request->flags, device);
	if (result != CUDA_SUCCESS)
		return result;
	call->driver->cuCtxPopCurrent_v2(&popped);
	call->thread->current = NULL;
	result = server_context_bind(call, request->context, real, device, NULL, &context);
	if (result != CUDA_SUCCESS)
		call->driver->cuCtxDestroy_v2(real);
	return result;
}

CUresult serve_context_destroy(struct server_call *call)
{
	const struct wire_context_destroy *request = call->request;
	struct server_context *context =
		handle_get(&call->server->objects, HANDLE_CONTEXT, request->context);
	CUresult result;

	if (!context || context->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	server_context_end(call, context);
	server_pinned_forget(call, context);
	call->thread->current = NULL;
	result = call->driver->cuCtxDestroy_v2(context->real);
	server_libraries_free(context);
	server_host_forget(context);
	return result;
}

/* ---- streams ---- */

CUresult serve_stream_create(struct server_call *call)
{
	const struct wire_stream_create *request = call->request;
	CUstream stream;
	CUresult result;
	int rc;

	if (request->priority && call->driver->cuStreamCreateWithPriority)
		result = call->driver->cuStreamCreateWithPriority(&stream, request->flags,
								  request->priority);
	else
		result = call->driver->cuStreamCreate(&stream, request->flags);
	if (result != CUDA_SUCCESS)
		return result;
	rc = server_place(call, HANDLE_STREAM, request->stream, stream);
	if (rc) {
		call->driver->cuStreamDestroy_v2(stream);
		return bind_result(rc);
	}
	if (!(request->flags & CU_STREAM_NON_BLOCKING))
		server_blocking_add(call->context, stream);
	return CUDA_SUCCESS;
}

CUresult serve_stream_destroy(struct server_call *call)
{
	const struct wire_stream_destroy *request = call->request;
	const struct server_placed *placed = handle_get(&call->server->objects, HANDLE_STREAM, request->stream);
	struct server_context *context = placed ? placed->context : NULL;
	CUstream stream;
	CUresult result = server_unplace(call, HANDLE_STREAM, request->stream, (void **)&stream);

	if (result != CUDA_SUCCESS)
		return result;
	server_blocking_remove(context, stream);
	server_capture_end(call->server, stream);
	server_await_users(call, stream);
	return call->driver->cuStreamDestroy_v2(stream);
}

/* ---- events ---- */

CUresult serve_event_create(struct server_call *call)
{
	const struct wire_event_create *request = call->request;
	CUevent event;
	CUresult result = call->driver->cuEventCreate(&event, request->flags);
	int rc;

	if (result != CUDA_SUCCESS)
		return result;
	rc = server_place(call, HANDLE_EVENT, request->event, event);
	if (rc) {
		call->driver->cuEventDestroy_v2(event);
		return bind_result(rc);
	}
	return CUDA_SUCCESS;
}

CUresult serve_event_destroy(struct server_call *call)
{
	const struct wire_event_destroy *request = call->request;
	CUevent event;
	CUresult result = server_unplace(call, HANDLE_EVENT, request->event, (void **)&event);

	/* With its context the driver has destroyed it. */
	if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return CUDA_SUCCESS;
	if (result != CUDA_SUCCESS)
		return result;
	server_await_users(call, event);
	return call->driver->cuEventDestroy_v2(event);
}

CUresult serve_event_record(struct server_call *call)
{
	const struct wire_event_record *request = call->request;
	CUstream stream;
	CUevent event;
	CUresult result = server_resolve_event(call, request->event, &event);

	if (result == CUDA_SUCCESS)
		result = server_resolve_stream(call, request->stream, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (!request->flags)
		return call->driver->cuEventRecord(event, stream);
	if (!call->driver->cuEventRecordWithFlags)
		return CUDA_ERROR_NOT_SUPPORTED;
	return call->driver->cuEventRecordWithFlags(event, stream, request->flags);
}
