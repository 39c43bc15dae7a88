/* Calls that travel as their arguments: the client's half of marshal.h.
 *
 * Objects that the server names (graphs, pools, arrays, ...) look to the program as
 * they travel, but that the number of their session is put where names have zeros: their
 * names are never pointers.  Contexts, streams, events and kernels are this side's own,
 * and travel as client.h says.
 *
 * A call goes to the server whose objects it names; to the current context's, if it names
 * none. */
#include "../addresses/ranges.h"
#include "../exchange/exchange.h"
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../handles/events.h"
#include "../handles/graphs.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "../libraries/kernel.h"
#include "../libraries/kernels.h"
#include "../libraries/launch.h"
#include "../libraries/library.h"
#include "../streams/host.h"
#include "lookup.h"
#include "marshal.h"

#include <stdlib.h>

#include "../../wire/resource.h"

/* Most kernels that one call may name. */
#define KERNELS_LIMIT 8u

struct side {
	struct wire_call fixed;
	uint8_t *tail;
	struct client_route route;
	bool claimed;			/* something that was named decides the route */
	bool context;			/* a context did */
	bool graph;			/* a graph, a node or an executable is named */
	bool ended;			/* the current context has */
	CUgraphExec executable;		/* that is named, or NULL */
	/* Where kernels' names go, once it is known to which server. */
	struct {
		size_t at;
		struct client_function *function;
	} kernels[KERNELS_LIMIT];
	unsigned kernel_count;
};

/* What is named next is that session's; the context, if there is one. */
static void claim(struct marshal *m, struct client_session *session,
		  const struct client_context *context, CUresult mixed)
{
	struct side *side = m->side;

	if (side->claimed && side->route.session != session && side->graph) {
		client_message("a graph whose work is on the devices of two servers is not supported "
			       "over remoting: it is at %s and names something at %s",
			       side->route.session->peer, session->peer);
		marshal_fail(m, CUDA_ERROR_NOT_SUPPORTED);
	} else if (side->claimed && side->route.session != session) {
		marshal_fail(m, mixed);
	} else if (!side->claimed) {
		side->claimed = true;
		if (side->route.session != session)
			side->route = context ? client_route_context(context)
					      : client_route_session(session);
	}
}

void client_marshal_address(struct marshal *m, CUdeviceptr address)
{
	struct client_range range;

	if ((client_memory_find_reserved(address, &range) || client_memory_find(address, &range)) &&
	    range.session)
		claim(m, range.session, range.context, CUDA_ERROR_INVALID_VALUE);
}

CUresult client_marshal_begin(struct marshal *m, unsigned number)
{
	CUresult result = client_enter();
	bool ended = result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
	struct side *side;

	marshal_writer(m);
	/* Whether it needs a context, the driver knows. */
	if (result == CUDA_ERROR_INVALID_CONTEXT || ended)
		result = CUDA_SUCCESS;
	if (result != CUDA_SUCCESS)
		return result;
	side = calloc(1, sizeof(*side));
	if (!side)
		return CUDA_ERROR_OUT_OF_MEMORY;
	side->fixed.function = number;
	side->route = client_route_current();
	side->ended = ended;
	if (ended)
		side->route.context = 0;
	m->side = side;
	return CUDA_SUCCESS;
}

/* Put the kernels' names in, as the server that is called has them. */
static CUresult kernels_name(struct marshal *m)
{
	struct side *side = m->side;

	for (unsigned i = 0; i < side->kernel_count; i++) {
		uint64_t wire;
		CUresult result = client_function_name(side->kernels[i].function,
						       side->route.session, &wire);

		if (result != CUDA_SUCCESS)
			return result;
		memcpy(m->data + side->kernels[i].at, &wire, sizeof(wire));
	}
	return CUDA_SUCCESS;
}

CUresult client_marshal_call(struct marshal *m, bool waiting)
{
	struct side *side = m->side;
	const struct client_request request = {
		.op = waiting ? WIRE_OP_CALL_WAITING : WIRE_OP_CALL,
		.fixed = &side->fixed,
		.fixed_bytes = sizeof(side->fixed),
		.tail = m->data,
		.tail_bytes = m->used,
	};
	struct wire_call_reply reply = { 0 };
	struct client_wait wait = {
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.want_tail = true,
	};
	CUresult result;

	/* A kernel node without a context gets the current one. */
	if (side->graph && side->kernel_count && !side->context && client_context_current())
		claim(m, client_context_current()->session, NULL, CUDA_ERROR_INVALID_HANDLE);
	if (m->result != CUDA_SUCCESS)
		return m->result;
	if (m->failed || m->used > MARSHAL_REQUEST_BYTES)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = kernels_name(m);
	if (result != CUDA_SUCCESS)
		return result;
	result = client_call_to(&side->route, &request, &wait);
	side->tail = wait.tail;
	if (result == (CUresult)WIRE_RESULT_UNKNOWN)
		result = client_missing(side->route.session, (int)side->fixed.function);
	if (result != CUDA_SUCCESS)
		return result;
	marshal_reader(m, wait.tail, wait.tail_bytes);
	m->reply = true;
	if (side->ended && (CUresult)reply.result == CUDA_ERROR_INVALID_CONTEXT)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return (CUresult)reply.result;
}

CUresult client_marshal_end(struct marshal *m, CUresult result)
{
	struct side *side = m->side;

	if (m->get && m->failed) {
		client_message("the server's answer to function %u is not understood",
			       side->fixed.function);
		result = CUDA_ERROR_UNKNOWN;
	}
	if (m->get && m->result != CUDA_SUCCESS && result == CUDA_SUCCESS)
		result = m->result;
	/* Now that the server has done it: a launch that was answered since is of what it is now. */
	if (side->executable)
		client_graph_changed(side->executable);
	free(side->tail);
	free(side);
	marshal_free(m);
	return result;
}

/* ---- handles ---- */

/* The session's number goes where the server's names have four zeros.  What no server can
 * have named travels as it is: the server says what CUDA says of it. */
static void named_walk(struct marshal *m, uint64_t *handle, bool graph)
{
	struct side *side = m->side;
	unsigned index = *handle & 15;
	uint64_t wire = *handle;

	if (!m->get && wire && index < farbus_client.session_count) {
		wire -= index;
		side->graph = side->graph || graph;
		claim(m, &farbus_client.sessions[index], NULL, CUDA_ERROR_INVALID_HANDLE);
	}
	marshal_plain(m, &wire, sizeof(wire));
	if (m->get)
		*handle = client_named_take(side->route.session, wire);
}

#define NAMED_AND(type, graph, also)					\
	void marshal_##type(struct marshal *m, type *handle)		\
	{								\
		uint64_t wire = (uint64_t)(uintptr_t)*handle;		\
									\
		also;							\
		named_walk(m, &wire, graph);				\
		*handle = (type)(uintptr_t)wire;			\
	}

#define NAMED(type, graph) NAMED_AND(type, graph, (void)0)

/* Numbers that kernels read, of the current context. */
#define NUMBERED(type)							\
	void marshal_##type(struct marshal *m, type *handle)		\
	{								\
		marshal_plain(m, handle, sizeof(*handle));		\
	}

NAMED(CUarray, false)
NAMED(CUdevResourceDesc, false)
NAMED(CUgraph, true)
NAMED(CUgraphNode, true)
NAMED(CUgreenCtx, false)
NAMED(CUlinkState, false)
NAMED(CUmemGenericAllocationHandle, false)
NAMED(CUmemoryPool, false)
NAMED(CUmipmappedArray, false)
NUMBERED(CUsurfObject)
NAMED(CUsurfref, false)
NUMBERED(CUtexObject)
NAMED(CUtexref, false)
NAMED(CUuserObject, false)

/* A number that kernels read.  Where a server has given none, there is none to choose by: so an older one, which does
 * not know conditional nodes, is sent none.  What was walked before it says which server. */
void marshal_CUgraphConditionalHandle(struct marshal *m, CUgraphConditionalHandle *handle)
{
	struct client_session *session = ((struct side *)m->side)->route.session;

	if (m->get)
		atomic_store(&session->has_conditions, true);
	else if (!atomic_load(&session->has_conditions))
		marshal_fail(m, CUDA_ERROR_INVALID_VALUE);
	marshal_plain(m, handle, sizeof(*handle));
}

void marshal_body(struct marshal *m, CUgraph *body)
{
	marshal_CUgraph(m, body);
}

static void executable_note(struct marshal *m, CUgraphExec executable)
{
	struct side *side = m->side;

	if (!m->get)
		side->executable = executable;
}

NAMED_AND(CUgraphExec, true, executable_note(m, *handle))

static void wire_walk(struct marshal *m, uint64_t *wire, CUresult result)
{
	if (result != CUDA_SUCCESS)
		marshal_fail(m, result);
	marshal_plain(m, wire, sizeof(*wire));
}

void marshal_CUcontext(struct marshal *m, CUcontext *handle)
{
	uint64_t wire = (uint64_t)(uintptr_t)*handle;
	const struct client_context *context = m->get ? NULL : client_context_get(*handle);
	struct side *side = m->side;

	if (context) {
		claim(m, context->session, context, CUDA_ERROR_INVALID_CONTEXT);
		side->context = true;
	}
	wire_walk(m, &wire, m->get || !wire || context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
	*handle = (CUcontext)(uintptr_t)wire;
}

void marshal_CUmodule(struct marshal *m, CUmodule *handle)
{
	uint64_t wire = (uint64_t)(uintptr_t)*handle;
	const struct client_library *module;
	CUresult result = m->get ? CUDA_SUCCESS : client_module_find(*handle, &module);

	if (!m->get && result == CUDA_SUCCESS)
		claim(m, module->session, module->context, CUDA_ERROR_INVALID_HANDLE);
	wire_walk(m, &wire, result);
}

/* The name, and whose it is, are kept where the API has room for what only the driver reads. */
void marshal_CUdevResource(struct marshal *m, CUdevResource *resource)
{
	struct wire_resource wire = { .type = resource->type };
	struct side *side = m->side;
	uint32_t index;

	memcpy(&index, resource->_internal_padding + sizeof(wire.name), sizeof(index));
	if (!m->get && resource->type != CU_DEV_RESOURCE_TYPE_INVALID &&
	    index < farbus_client.session_count) {
		memcpy(&wire.name, resource->_internal_padding, sizeof(wire.name));
		claim(m, &farbus_client.sessions[index], NULL,
		      CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
	}
	marshal_plain(m, &wire, sizeof(wire));
	if (!m->get)
		return;
	index = side->route.session->index;
	memset(resource, 0, sizeof(*resource));
	resource->type = wire.type;
	memcpy(resource->_internal_padding, &wire.name, sizeof(wire.name));
	memcpy(resource->_internal_padding + sizeof(wire.name), &index, sizeof(index));
	memcpy(resource->_oversize, wire.told, sizeof(wire.told));
}

void marshal_CUstream(struct marshal *m, CUstream *handle)
{
	struct side *side = m->side;
	const struct client_context *context;
	uint64_t wire = 0;

	wire_walk(m, &wire, m->get ? CUDA_SUCCESS : client_stream_wire(*handle, &wire));
	if (m->get) {
		*handle = (CUstream)(uintptr_t)wire;
		return;
	}
	context = m->result == CUDA_SUCCESS ? client_stream_context(wire) : NULL;
	if (context)
		claim(m, context->session, context, CUDA_ERROR_INVALID_HANDLE);
	/* What is done in a stream is its context's, as its error is. */
	if (client_context_elsewhere(context) && context->session == side->route.session)
		side->route.context = (uint64_t)(uintptr_t)context->handle;
}

void marshal_CUevent(struct marshal *m, CUevent *handle)
{
	const struct client_context *context;
	uint64_t wire = 0;

	wire_walk(m, &wire,
		  m->get || !*handle ? CUDA_SUCCESS : client_event_wire(*handle, &wire));
	if (m->get) {
		*handle = (CUevent)(uintptr_t)wire;
		return;
	}
	context = wire ? client_event_context(wire) : NULL;
	if (context)
		claim(m, context->session, context, CUDA_ERROR_INVALID_HANDLE);
	/* A graph that records it, or what a context has. */
	client_event_recorded_elsewhere(wire);
}

struct search {
	int device;			/* of the server that names it */
	uint64_t wire;
	CUfunction found;
};

static void function_compare(void *opaque, uint64_t handle, void *object)
{
	struct search *search = opaque;
	const struct client_function *function = object;

	if (handle_kind_of(handle) == HANDLE_FUNCTION &&
	    function->on[search->device].wire == search->wire)
		search->found = function->handle;
}

void marshal_CUkernel(struct marshal *m, CUkernel *handle)
{
	marshal_CUfunction(m, (CUfunction *)handle);
}

void marshal_CUfunction(struct marshal *m, CUfunction *handle)
{
	struct side *side = m->side;
	struct search search = { .device = client_session_device(side->route.session) };
	struct client_function *function;
	CUresult result = CUDA_SUCCESS;

	if (!m->get && *handle) {
		result = client_function_get(*handle, &function);
		if (result == CUDA_SUCCESS && side->kernel_count == KERNELS_LIMIT)
			result = CUDA_ERROR_NOT_SUPPORTED;
		if (result == CUDA_SUCCESS) {
			side->kernels[side->kernel_count].at = m->used;
			side->kernels[side->kernel_count++].function = function;
		}
	}
	wire_walk(m, &search.wire, result);
	if (m->get && search.wire)
		handle_visit(&farbus_client.handles, function_compare, &search);
	if (m->get)
		*handle = search.found;
}

/* Devices are numbered over all servers here, as CUDA_VISIBLE_DEVICES has it, and there as
 * they are there. */
void marshal_CUdevice(struct marshal *m, CUdevice *device)
{
	const struct client *client = &farbus_client;
	const struct side *side = m->side;
	int32_t ordinal = *device;

	if (!m->get && ordinal >= 0) {
		if (ordinal >= client->device_count) {
			marshal_fail(m, CUDA_ERROR_INVALID_DEVICE);
		} else {
			const struct client_device *named = &client->devices[ordinal];

			claim(m, named->session, NULL, CUDA_ERROR_INVALID_DEVICE);
			ordinal = (int32_t)named->server_ordinal;
		}
	}
	marshal_plain(m, &ordinal, sizeof(ordinal));
	if (!m->get)
		return;
	*device = ordinal;
	for (int i = 0; i < client->device_count; i++)
		if (ordinal >= 0 && client->devices[i].session == side->route.session &&
		    client->devices[i].server_ordinal == (uint32_t)ordinal)
			*device = i;
}

/* ---- what nodes are given ---- */

/* What the driver keeps of a node's parameters, a program reads until it asks again or
 * the node is gone; so the last ones of each thread are kept here. */
static __thread void *last_parameters[64];
static __thread unsigned last_parameters_next;

/* Room for the last of them; NULL without memory. */
static void *last_parameters_make(size_t bytes)
{
	void **slot = &last_parameters[last_parameters_next++ % 64];

	free(*slot);
	*slot = malloc(bytes + 1);
	return *slot;
}

void *marshal_lasting(struct marshal *m, void *memory, size_t bytes)
{
	void *kept;

	if (!m->get || !m->reply || !memory)
		return memory;
	kept = last_parameters_make(bytes);
	if (kept)
		memcpy(kept, memory, bytes);
	return kept;
}

static void parameters_keep(const struct client_function *function, const uint8_t *buffer,
			    uint32_t bytes, void ***parameters)
{
	size_t pointers = (size_t)function->parameter_count * sizeof(void *);
	uint8_t *kept = last_parameters_make(pointers + bytes);

	*parameters = NULL;
	if (!kept)
		return;
	memcpy(kept + pointers, buffer, bytes);
	for (uint32_t i = 0; i < function->parameter_count; i++)
		((void **)(void *)kept)[i] = kept + pointers + function->parameters[i].offset;
	*parameters = (void **)(void *)kept;
}

void marshal_parameters(struct marshal *m, CUfunction handle, void ***parameters, void ***extra)
{
	struct client_function *function = NULL;
	uint8_t buffer[WIRE_KERNEL_PARAMETERS];
	uint32_t bytes = 0;
	CUresult result = CUDA_SUCCESS;

	if (handle)
		result = client_function_get(handle, &function);
	if (m->get) {
		const void *from;

		marshal_plain(m, &bytes, sizeof(bytes));
		from = bytes <= sizeof(buffer) ? wire_read_bytes(&m->reader, bytes) : NULL;
		*extra = NULL;
		*parameters = NULL;
		if (from && function && function->parameter_count != UINT32_MAX &&
		    bytes >= function->parameter_bytes)
			parameters_keep(function, from, bytes, parameters);
		return;
	}
	if (result == CUDA_SUCCESS && function)
		result = client_parameters_gather(function, *parameters, *extra, buffer, &bytes);
	if (result != CUDA_SUCCESS)
		marshal_fail(m, result);
	marshal_plain(m, &bytes, sizeof(bytes));
	marshal_plain(m, buffer, bytes);
}

/* ---- what a graph does in this process ---- */

void marshal_host_function(struct marshal *m, CUhostFn *function, void **argument)
{
	uint64_t named[3] = { 0 };

	if (!m->get && *function) {
		named[0] = (uint64_t)(uintptr_t)*function;
		named[1] = (uint64_t)(uintptr_t)*argument;
		if (client_host_keep(*function, *argument, &named[2]) != CUDA_SUCCESS)
			marshal_fail(m, CUDA_ERROR_OUT_OF_MEMORY);
	}
	marshal_plain(m, named, sizeof(named));
	if (m->get) {
		*function = (CUhostFn)(uintptr_t)named[0];
		*argument = (void *)(uintptr_t)named[1];
	}
}

void marshal_host_memory(struct marshal *m, void **memory)
{
	uint64_t address = (uint64_t)(uintptr_t)*memory;

	if (!m->get) {
		client_message("a graph's copy node names memory of this process: capture the copy "
			       "instead");
		marshal_fail(m, CUDA_ERROR_NOT_SUPPORTED);
	}
	marshal_plain(m, &address, sizeof(address));
	*memory = (void *)(uintptr_t)address;
}
