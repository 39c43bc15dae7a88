/* The primary contexts of the devices. */
#include "hold.h"
#include "primary.h"
#include "resolve.h"

struct server_context *server_primary_any(struct server *server, uint32_t ordinal)
{
	struct server_context *context;

	pthread_mutex_lock(&server->lock);
	context = server->primaries[ordinal];
	pthread_mutex_unlock(&server->lock);
	return context;
}

void server_primary_set(struct server *server, uint32_t ordinal, struct server_context *context)
{
	pthread_mutex_lock(&server->lock);
	server->primaries[ordinal] = context;
	pthread_mutex_unlock(&server->lock);
}

struct server_context *server_primary(struct server *server, uint32_t ordinal)
{
	struct server_context *context =
		ordinal < (uint32_t)server->device_count ? server_primary_any(server, ordinal) : NULL;

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

void server_primary_let_go(struct server_call *call, uint32_t ordinal)
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
