/* Kernels of libraries and modules: what servers say of them.
 *
 * A server describes kernels (name, parameter layout, attributes) when a library is loaded there, when one
 * is asked for by its name, and on another of its devices when the first is used there.  CUkernel and CUfunction
 * are one kind of object: CUDA accepts either where it takes a function.
 */
#include "../exchange/exchange.h"
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "kernels.h"
#include "library.h"

#include <stdlib.h>
#include <string.h>

#include "../../wire/kernel.h"

int client_session_device(const struct client_session *session)
{
	/* Only servers of devices are asked for anything (session_home). */
	for (int i = 0; i < farbus_client.device_count; i++)
		if (farbus_client.devices[i].session == session)
			return i;
	return 0;
}

static void function_free(struct client_function *function)
{
	handle_close(&farbus_client.handles, HANDLE_FUNCTION,
		     (uint64_t)(uintptr_t)function->handle);
	free(function->pieces);
	free(function->occupancy);
	free(function->fits);
	free(function->parameters);
	free(function->name);
	free(function);
}

static void kernel_describe(struct client_kernel *on, uint32_t known, const int32_t *attributes)
{
	for (int i = 0; i < CLIENT_FUNCTION_ATTRIBUTES; i++)
		on->attributes[i] = known >> i & 1 ? attributes[i] : -1;
	on->attributes_known = known;
	atomic_store_explicit(&on->described, true, memory_order_release);
}

/* What a server says of a kernel: its name there, and what is so on one of its devices. */
static void kernel_fill(struct client_function *function, int device, const struct wire_kernel *kernel)
{
	const struct client *client = &farbus_client;

	for (int i = 0; i < client->device_count; i++)
		if (client->devices[i].session == client->devices[device].session)
			atomic_store_explicit(&function->on[i].wire, kernel->handle,
					      memory_order_release);
	kernel_describe(&function->on[device], kernel->attributes_known, kernel->attributes);
}

static struct client_function *function_make(struct client_library *library, int device,
					     const struct wire_kernel *kernel,
					     const struct wire_parameter *parameters,
					     const char *name)
{
	struct client_function *function =
		calloc(1, sizeof(*function) + (size_t)farbus_client.device_count * sizeof(function->on[0]));
	uint64_t handle;

	if (!function)
		return NULL;
	function->library = library;
	function->name = strndup(name, kernel->name_bytes);
	function->parameters = calloc(kernel->parameter_count ? kernel->parameter_count : 1,
				      sizeof(*function->parameters));
	if (!function->name || !function->parameters ||
	    handle_open(&farbus_client.handles, HANDLE_FUNCTION, function, &handle)) {
		free(function->parameters);
		free(function->name);
		free(function);
		return NULL;
	}
	function->handle = (CUfunction)(uintptr_t)handle;
	function->parameter_count = kernel->parameters_known ? kernel->parameter_count : UINT32_MAX;
	for (uint32_t i = 0; i < kernel->parameter_count; i++) {
		function->parameters[i].offset = parameters[i].offset;
		function->parameters[i].bytes = parameters[i].bytes;
		if (parameters[i].offset + parameters[i].bytes > function->parameter_bytes)
			function->parameter_bytes = parameters[i].offset + parameters[i].bytes;
	}
	kernel_fill(function, device, kernel);
	return function;
}

static bool parameters_sane(const struct wire_kernel *kernel, const struct wire_parameter *parameters)
{
	for (uint32_t i = 0; i < kernel->parameter_count; i++)
		if (parameters[i].offset > WIRE_KERNEL_PARAMETERS ||
		    parameters[i].bytes > WIRE_KERNEL_PARAMETERS - parameters[i].offset)
			return false;
	return true;
}

/* A kernel that another server has described; `hint` is where it probably is. */
static struct client_function *function_same(const struct client_library *library, const char *name,
					     size_t bytes, uint32_t hint)
{
	for (uint32_t i = 0; i < library->function_count; i++) {
		struct client_function *function =
			library->functions[(hint + i) % library->function_count];

		if (strncmp(function->name, name, bytes) == 0 && !function->name[bytes])
			return function;
	}
	return NULL;
}

/* Two servers' drivers must see the same parameters, for they are sent to either. */
static CUresult function_agree(const struct client_function *function, const struct wire_kernel *kernel,
			       const struct wire_parameter *parameters)
{
	bool agree = true;

	if (!kernel->parameters_known || function->parameter_count == UINT32_MAX)
		return CUDA_SUCCESS;
	agree = function->parameter_count == kernel->parameter_count;
	for (uint32_t i = 0; agree && i < kernel->parameter_count; i++)
		agree = function->parameters[i].offset == parameters[i].offset &&
			function->parameters[i].bytes == parameters[i].bytes;
	if (agree)
		return CUDA_SUCCESS;
	client_message("two servers' drivers describe the parameters of %s differently",
		       function->name);
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* Add one kernel that a server describes as it is on a device, the `index`th of this answer;
 * the library's lock is held or it is not yet public. */
static CUresult library_add(struct client_library *library, int device, struct wire_reader *reader,
			    uint32_t index)
{
	const struct wire_parameter *parameters;
	struct client_function *function;
	struct wire_kernel kernel;
	const void *head = wire_read_bytes(reader, sizeof(kernel));
	const char *name;

	if (!head)
		return CUDA_ERROR_UNKNOWN;
	memcpy(&kernel, head, sizeof(kernel));
	if (kernel.parameter_count > WIRE_KERNEL_PARAMETERS ||
	    kernel.name_bytes > WIRE_KERNEL_NAME_BYTES)
		return CUDA_ERROR_UNKNOWN;
	parameters = wire_read_bytes(reader, kernel.parameter_count * sizeof(*parameters));
	name = wire_read_bytes(reader, (kernel.name_bytes + 7u) & ~7u);
	if (reader->failed || !parameters_sane(&kernel, parameters))
		return CUDA_ERROR_UNKNOWN;
	function = function_same(library, name, strnlen(name, kernel.name_bytes), index);
	if (function) {
		CUresult result = function_agree(function, &kernel, parameters);

		if (result == CUDA_SUCCESS)
			kernel_fill(function, device, &kernel);
		return result;
	}
	if (library->function_count == library->function_room) {
		uint32_t room = library->function_room ? 2 * library->function_room : 16;
		void *functions = realloc(library->functions, room * sizeof(*library->functions));

		if (!functions)
			return CUDA_ERROR_OUT_OF_MEMORY;
		library->functions = functions;
		library->function_room = room;
	}
	function = function_make(library, device, &kernel, parameters, name);
	if (!function)
		return CUDA_ERROR_OUT_OF_MEMORY;
	library->functions[library->function_count++] = function;
	return CUDA_SUCCESS;
}

/* `count` kernels were described before, and are more then. */
static CUresult library_add_all(struct client_library *library, int device, const void *described,
				size_t bytes, uint32_t *count)
{
	struct wire_reader reader = { .at = described, .left = bytes };
	CUresult result = CUDA_SUCCESS;

	while (reader.left && result == CUDA_SUCCESS)
		result = library_add(library, device, &reader, (*count)++);
	if (result == CUDA_ERROR_UNKNOWN)
		client_message("the server's description of a kernel is malformed");
	return result;
}

void client_kernels_free(struct client_library *library)
{
	for (uint32_t i = 0; i < library->function_count; i++)
		function_free(library->functions[i]);
	free(library->functions);
}

int client_route_device(const struct client_route *route)
{
	const struct client *client = &farbus_client;
	const struct client_context *context =
		client_context_get((CUcontext)(uintptr_t)route->context);
	int device = client_session_device(route->session);

	if (context && context->session == route->session)
		return context->device;
	for (int i = 0; i < client->device_count; i++)
		if (client->devices[i].session == route->session &&
		    client->devices[i].server_ordinal < client->devices[device].server_ordinal)
			device = i;
	return device;
}

/* The kernels that one reply could not hold. */
static CUresult library_rest(struct client_library *library, struct client_session *session,
			     uint32_t count, uint32_t total)
{
	const struct client_route route = client_route_session(session);
	CUresult result = CUDA_SUCCESS;

	while (count < total && result == CUDA_SUCCESS) {
		const struct wire_library_kernels fixed = {
			.library = (uint64_t)(uintptr_t)library->handle,
			.first = count,
		};
		const struct client_request request = {
			.op = WIRE_OP_LIBRARY_KERNELS,
			.fixed = &fixed,
			.fixed_bytes = sizeof(fixed),
		};
		struct wire_library_kernels_reply reply;
		struct client_wait wait = {
			.reply = &reply,
			.reply_bytes = sizeof(reply),
			.want_tail = true,
		};
		uint32_t before = count;

		result = client_call_to(&route, &request, &wait);
		if (result == CUDA_SUCCESS)
			result = library_add_all(library, client_route_device(&route), wait.tail,
						 wait.tail_bytes, &count);
		free(wait.tail);
		if (result == CUDA_SUCCESS && count == before)
			result = CUDA_ERROR_UNKNOWN;
	}
	return result;
}

CUresult client_kernels_take(struct client_library *library, struct client_session *session, int device,
			     const void *described, size_t bytes, uint32_t total)
{
	uint32_t count = 0;
	CUresult result = library_add_all(library, device, described, bytes, &count);

	return result == CUDA_SUCCESS ? library_rest(library, session, count, total) : result;
}

CUresult client_kernel_ask(struct client_library *library, struct client_session *session,
			     const char *name)
{
	const struct wire_library_function fixed = {
		.library = (uint64_t)(uintptr_t)library->handle,
	};
	const struct client_request request = {
		.op = WIRE_OP_LIBRARY_FUNCTION,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
		.tail = name,
		.tail_bytes = strlen(name) + 1,
	};
	struct wire_library_function_reply reply;
	struct client_wait wait = {
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.want_tail = true,
	};
	const struct client_route route = client_route_session(session);
	uint32_t count = 0;
	CUresult result;

	if (request.tail_bytes > 4096)
		return CUDA_ERROR_NOT_FOUND;
	result = client_call_to(&route, &request, &wait);
	if (result == CUDA_SUCCESS)
		result = library_add_all(library, client_route_device(&route), wait.tail, wait.tail_bytes,
					 &count);
	free(wait.tail);
	return result;
}

/* The kernel of that name at the device's server, found where it probably is. */
static struct client_function *function_named(const struct client_library *library, int device,
					      uint64_t wire, uint32_t hint)
{
	for (uint32_t i = 0; i < library->function_count; i++) {
		struct client_function *function =
			library->functions[(hint + i) % library->function_count];

		if (function->on[device].wire == wire)
			return function;
	}
	return NULL;
}

CUresult client_kernels_describe(struct client_library *library, int device, uint32_t first,
				      uint32_t *count)
{
	const struct client_route route = client_route_session(farbus_client.devices[device].session);
	const struct wire_library_attributes fixed = {
		.library = (uint64_t)(uintptr_t)library->handle,
		.device = farbus_client.devices[device].server_ordinal,
		.first = first,
	};
	const struct client_request request = {
		.op = WIRE_OP_LIBRARY_ATTRIBUTES,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct wire_library_attributes_reply reply;
	struct client_wait wait = {
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.want_tail = true,
	};
	CUresult result = client_call_to(&route, &request, &wait);
	struct wire_kernel_attributes one;

	*count = 0;
	for (size_t at = 0; result == CUDA_SUCCESS && wait.tail_bytes - at >= sizeof(one);
	     at += sizeof(one)) {
		struct client_function *function;

		memcpy(&one, (const uint8_t *)wait.tail + at, sizeof(one));
		function = function_named(library, device, one.handle, first + (*count)++);
		if (function && !function->on[device].described)
			kernel_describe(&function->on[device], one.known, one.attributes);
	}
	free(wait.tail);
	return result;
}

void client_kernel_describe_alike(struct client_function *function, int device)
{
	const struct client *client = &farbus_client;
	const struct client_kernel *other;
	int32_t attributes[CLIENT_FUNCTION_ATTRIBUTES];

	for (int i = 0; i < client->device_count; i++) {
		other = &function->on[i];
		if (client->devices[i].session != client->devices[device].session || !other->described)
			continue;
		for (int k = 0; k < CLIENT_FUNCTION_ATTRIBUTES; k++)
			attributes[k] = other->attributes[k];
		kernel_describe(&function->on[device], other->attributes_known, attributes);
		return;
	}
}
