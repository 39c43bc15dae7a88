/* Where a request goes: which server, and in which context.
 *
 * With one server, and no context but one, that is the current context of the calling thread.  Else the
 * handles that a request names claim it (wire_op_infos tells where in it they stand).
 */
#include "../ground/thread.h"
#include "events.h"
#include "route.h"
#include "streams.h"

#include <string.h>

/* The server of the first device whose server is there; of the first device where none is.  A
 * server whose devices the program does not see (CUDA_VISIBLE_DEVICES) is nobody's home. */
static struct client_session *session_home(void)
{
	struct client *client = &farbus_client;

	for (int i = 0; i < client->device_count; i++)
		if (!atomic_load(&client->devices[i].session->dead))
			return client->devices[i].session;
	return client->device_count ? client->devices[0].session : &client->sessions[0];
}

struct client_route client_route_current(void)
{
	struct client_route route = { .session = farbus_client.sessions, .context = context_wire() };
	const struct client_context *context;

	if (client_alone())
		return route;
	context = client_context_current();
	route.session = context ? context->session : session_home();
	return route;
}

uint64_t client_named_wire(const void *name, struct client_session **session)
{
	uint64_t wire = (uint64_t)(uintptr_t)name;

	if (!wire || (wire & 15) >= farbus_client.session_count) {
		*session = client_route_current().session;
		return wire;
	}
	*session = &farbus_client.sessions[wire & 15];
	return wire & ~15ull;
}

bool client_context_elsewhere(const struct client_context *context)
{
	/* A green one is current as the primary one that it is made of; one that has ended is nowhere. */
	return context && context != client_context_current() && context->active &&
	       client_context_get(context->handle) == context;
}

struct client_route client_route_context(const struct client_context *context)
{
	struct client_route route = client_route_current();

	if (context && (context->session != route.session || !route.context)) {
		route.session = context->session;
		route.context = (uint64_t)(uintptr_t)context->handle;
	}
	return route;
}

struct client_route client_route_stream(uint64_t stream)
{
	const struct client_context *context = client_stream_context(stream);

	if (!context)
		return client_route_current();
	return (struct client_route){
		.session = context->session,
		.context = (uint64_t)(uintptr_t)context->handle,
	};
}

struct client_context *client_session_context(const struct client_session *session)
{
	for (int i = 0; i < farbus_client.device_count; i++) {
		const struct client_device *device = &farbus_client.devices[i];

		if (device->session == session && device->primary->active)
			return device->primary;
	}
	return NULL;
}

struct client_route client_route_session(struct client_session *session)
{
	struct client_route route = client_route_current();
	const struct client_context *context;

	if (route.session == session)
		return route;
	/* What belongs to a device but to no context is reached through any. */
	context = client_session_context(session);
	route.session = session;
	route.context = context ? (uint64_t)(uintptr_t)context->handle : 0;
	return route;
}

/* The context of a handle that a request may name; NULL: none has it. */
static const struct client_context *handle_context(uint64_t handle)
{
	switch (handle_kind_of(handle)) {
	case HANDLE_CONTEXT:
		return client_context_get((CUcontext)(uintptr_t)handle);
	case HANDLE_EVENT:
		return client_event_context(handle);
	default:
		return client_stream_context(handle);
	}
}

/* The context that an operation is of, if that is not the current one: its stream's, or else its
 * event's, as its error is.  A launch is of the current one, as its function is, if there is one. */
const struct client_context *client_context_claimed(enum wire_op op, const void *fixed)
{
	const struct wire_op_info *info = &wire_op_infos[op];
	const struct client_context *claimed = NULL;
	bool found = (op == WIRE_OP_LAUNCH || op == WIRE_OP_LAUNCH_CHECKED) && context_wire();

	for (unsigned i = 0; i < sizeof(info->routes) && info->routes[i] && !found; i++) {
		enum handle_kind kind;
		uint64_t handle;

		memcpy(&handle, (const uint8_t *)fixed + 8 * (info->routes[i] - 1u), sizeof(handle));
		kind = handle_kind_of(handle);
		found = kind != HANDLE_CONTEXT && kind != HANDLE_EVENT;
		if (kind != HANDLE_CONTEXT)
			claimed = handle_context(handle);
	}
	return client_context_elsewhere(claimed) ? claimed : NULL;
}

/* Where a request goes whose fixed part is `fixed`. */
CUresult client_route_claimed(enum wire_op op, const void *fixed, struct client_route *route)
{
	const struct wire_op_info *info = &wire_op_infos[op];
	const struct client_context *claimed = NULL;

	*route = client_route_current();
	for (unsigned i = 0; i < sizeof(info->routes) && info->routes[i]; i++) {
		const struct client_context *context;
		uint64_t handle;

		memcpy(&handle, (const uint8_t *)fixed + 8 * (info->routes[i] - 1u), sizeof(handle));
		context = handle_context(handle);
		if (claimed && context && context->session != claimed->session)
			return CUDA_ERROR_INVALID_HANDLE;
		if (context)
			claimed = context;
	}
	if (claimed)
		*route = client_route_context(claimed);
	claimed = client_context_claimed(op, fixed);
	if (claimed && claimed->session == route->session)
		route->context = (uint64_t)(uintptr_t)claimed->handle;
	return CUDA_SUCCESS;
}

struct client_session *client_stream_session(uint64_t stream)
{
	const struct client_context *context;

	if (client_alone())
		return farbus_client.sessions;
	context = client_stream_context(stream);
	return context ? context->session : session_home();
}
