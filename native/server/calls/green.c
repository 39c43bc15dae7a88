/* Green contexts: resources by name, and contexts that stand for them. */
#include "../ground/lead.h"
#include "../ground/named.h"
#include "../ground/primary.h"
#include "context.h"
#include "green.h"

#include <stdlib.h>
#include <string.h>

/* Most different resources of a session: programs ask for a few, again and again. */
#define RESOURCES_LIMIT 4096u

struct server_resource {
	struct server_resource *next;
	uint64_t name;
	CUdevResource real;
};

/* The same bytes have the same name, so asking again takes nothing. */
CUresult server_resource_name(struct server *server, const CUdevResource *resource,
			      struct wire_resource *wire)
{
	struct server_resource *known;
	CUresult result = CUDA_SUCCESS;

	if (resource->type == CU_DEV_RESOURCE_TYPE_INVALID)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&server->lock);
	known = server->resources;
	while (known && memcmp(&known->real, resource, sizeof(*resource)))
		known = known->next;
	if (!known && server->resource_count < RESOURCES_LIMIT)
		known = calloc(1, sizeof(*known));
	if (!known) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	} else if (!known->name) {
		known->real = *resource;
		known->name = ++server->resource_count;
		known->next = server->resources;
		server->resources = known;
	}
	if (known) {
		wire->type = resource->type;
		wire->name = known->name;
		memcpy(wire->told, &resource->sm, sizeof(wire->told));
	}
	pthread_mutex_unlock(&server->lock);
	return result;
}

CUresult server_resource_find(struct server *server, const struct wire_resource *wire,
			      CUdevResource *resource)
{
	const struct server_resource *known;

	memset(resource, 0, sizeof(*resource));
	if (wire->type == CU_DEV_RESOURCE_TYPE_INVALID)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&server->lock);
	known = server->resources;
	while (known && known->name != wire->name)
		known = known->next;
	if (known)
		*resource = known->real;
	pthread_mutex_unlock(&server->lock);
	if (!known)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	return wire->type == resource->type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_TYPE;
}

CUresult serve_green_enter(struct server_call *call)
{
	const struct wire_green_enter *request = call->request;
	CUgreenCtx green = server_object(call, SERVER_CUgreenCtx, request->green);
	struct server_context *base, *context;
	CUcontext real;
	CUresult result;

	if (!call->driver->cuCtxFromGreenCtx)
		return CUDA_ERROR_NOT_SUPPORTED;
	base = server_primary(call->server, request->device);
	if (!base || !green)
		return CUDA_ERROR_INVALID_CONTEXT;
	result = call->driver->cuCtxFromGreenCtx(&real, green);
	if (result == CUDA_SUCCESS)
		result = server_context_bind(call, request->context, real, base->device, base, &context);
	return result;
}

struct context_search {
	CUcontext real;
	struct server_context *found;
};

static void context_compare(void *opaque, uint64_t handle, void *object)
{
	struct context_search *search = opaque;

	if (handle_kind_of(handle) == HANDLE_CONTEXT && ((struct server_context *)object)->real == search->real)
		search->found = object;
}

/* What stands for a green context, if it has been entered: whatever the client says of that. */
static struct server_context *green_context(struct server_call *call, CUgreenCtx green)
{
	struct context_search search = { 0 };

	if (call->driver->cuCtxFromGreenCtx &&
	    call->driver->cuCtxFromGreenCtx(&search.real, green) == CUDA_SUCCESS)
		handle_visit(&call->server->objects, context_compare, &search);
	return search.found;
}

CUresult serve_green_destroy(struct server_call *call)
{
	const struct wire_green_destroy *request = call->request;
	struct server *server = call->server;
	CUgreenCtx green = server_object(call, SERVER_CUgreenCtx, request->green);
	struct server_context *context;

	if (!call->driver->cuGreenCtxDestroy)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!green)
		return CUDA_ERROR_INVALID_CONTEXT;
	context = green_context(call, green);
	if (request->context && (!context || context->handle != request->context))
		return CUDA_ERROR_INVALID_CONTEXT;
	server_name_drop(server, SERVER_CUgreenCtx, (uint64_t)(uintptr_t)green);
	if (context)
		server_context_end(call, context);
	else
		server_pass(call);
	/* Not of a thread to which what ends is current. */
	call->driver->cuCtxSetCurrent(NULL);
	call->thread->current = NULL;
	return call->driver->cuGreenCtxDestroy(green);
}
