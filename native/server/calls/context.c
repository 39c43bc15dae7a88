/* Contexts, from the client's first word of them until the driver has ended them. */
#include "../ground/hold.h"
#include "../ground/lead.h"
#include "../ground/named.h"
#include "../ground/primary.h"
#include "../jobs/token.h"
#include "../libraries/library.h"
#include "../memory/pinned.h"
#include "../memory/staging.h"
#include "../streams/capture.h"
#include "context.h"

#include <stdlib.h>

CUresult server_context_bind(struct server_call *call, uint64_t handle, CUcontext real,
			     CUdevice device, struct server_context *base,
			     struct server_context **out)
{
	struct server_context *context = calloc(1, sizeof(*context));
	CUresult result;

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
	result = server_bind(call, HANDLE_CONTEXT, handle, context);
	if (result == CUDA_SUCCESS)
		*out = context;
	else
		free(context);
	return result;
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
	if (server_primary_any(server, request->device))
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
	server_primary_set(server, request->device, context);
	server_primary_let_go(call, request->device);
	return CUDA_SUCCESS;
}

/* Take it from everybody, and then from the driver. */
static CUresult primary_end(struct server_call *call, uint32_t ordinal, bool reset)
{
	struct server_context *context = server_primary(call->server, ordinal);
	CUresult result = CUDA_SUCCESS, released;

	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	server_context_end(call, context);
	server_pinned_forget(call, context);
	if (reset)
		result = call->driver->cuDevicePrimaryCtxReset_v2(context->device);
	/* The reference of primary_retain outlives a reset. */
	released = call->driver->cuDevicePrimaryCtxRelease_v2(context->device);
	server_primary_set(call->server, ordinal, NULL);
	server_libraries_free(context);
	server_host_forget(context);
	return reset ? result : released;
}

CUresult serve_primary_release(struct server_call *call)
{
	const struct wire_primary_release *request = call->request;

	return primary_end(call, request->device, false);
}

CUresult serve_primary_reset(struct server_call *call)
{
	const struct wire_primary_reset *request = call->request;

	return primary_end(call, request->device, true);
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
