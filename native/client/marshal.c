/* Calls that travel as their arguments: the client's half of marshal.h.
 *
 * Objects that the server names (graphs, pools, arrays, ...) look to the program as
 * they travel: their names are never pointers.  Contexts, streams, events and kernels
 * are this side's own, and travel as client.h says. */
#include "marshal.h"

#include <stdlib.h>

struct side {
	struct wire_call fixed;
	uint8_t *tail;
};

CUresult client_marshal_begin(struct marshal *m, unsigned number)
{
	CUresult result = client_enter();
	struct side *side;

	marshal_writer(m);
	/* Whether it needs a context, the driver knows. */
	if (result == CUDA_ERROR_INVALID_CONTEXT)
		result = CUDA_SUCCESS;
	if (result != CUDA_SUCCESS)
		return result;
	side = calloc(1, sizeof(*side));
	if (!side)
		return CUDA_ERROR_OUT_OF_MEMORY;
	side->fixed.function = number;
	m->side = side;
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

	if (m->result != CUDA_SUCCESS)
		return m->result;
	if (m->failed || m->used > MARSHAL_REQUEST_BYTES)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = client_call_wide(&request, &wait);
	side->tail = wait.tail;
	if (result != CUDA_SUCCESS)
		return result;
	marshal_reader(m, wait.tail, wait.tail_bytes);
	m->reply = true;
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
	free(side->tail);
	free(side);
	marshal_free(m);
	return result;
}

/* ---- handles ---- */

#define NAMED(type)							\
	void marshal_##type(struct marshal *m, type *handle)		\
	{								\
		marshal_plain(m, handle, sizeof(*handle));		\
	}

NAMED(CUarray)
NAMED(CUdevResourceDesc)
NAMED(CUgraph)
NAMED(CUgraphExec)
NAMED(CUgraphNode)
NAMED(CUgreenCtx)
NAMED(CUlinkState)
NAMED(CUmemGenericAllocationHandle)
NAMED(CUmemoryPool)
NAMED(CUmipmappedArray)
NAMED(CUsurfObject)
NAMED(CUsurfref)
NAMED(CUtexObject)
NAMED(CUtexref)
NAMED(CUuserObject)

static void wire_walk(struct marshal *m, uint64_t *wire, CUresult result)
{
	if (result != CUDA_SUCCESS)
		marshal_fail(m, result);
	marshal_plain(m, wire, sizeof(*wire));
}

void marshal_CUcontext(struct marshal *m, CUcontext *handle)
{
	uint64_t wire = (uint64_t)(uintptr_t)*handle;

	wire_walk(m, &wire,
		  m->get || !wire || client_context_get(*handle) ? CUDA_SUCCESS
								 : CUDA_ERROR_INVALID_CONTEXT);
	*handle = (CUcontext)(uintptr_t)wire;
}

void marshal_CUmodule(struct marshal *m, CUmodule *handle)
{
	uint64_t wire = 0;

	wire_walk(m, &wire, m->get ? CUDA_SUCCESS : client_module_wire(*handle, &wire));
}

void marshal_CUstream(struct marshal *m, CUstream *handle)
{
	uint64_t wire = 0;

	wire_walk(m, &wire, m->get ? CUDA_SUCCESS : client_stream_wire(*handle, &wire));
	if (m->get)
		*handle = (CUstream)(uintptr_t)wire;
}

void marshal_CUevent(struct marshal *m, CUevent *handle)
{
	uint64_t wire = 0;

	wire_walk(m, &wire,
		  m->get || !*handle ? CUDA_SUCCESS : client_event_wire(*handle, &wire));
	if (m->get)
		*handle = (CUevent)(uintptr_t)wire;
}

struct search {
	uint64_t wire;
	CUfunction found;
};

static void function_compare(void *opaque, uint64_t handle, void *object)
{
	struct search *search = opaque;
	const struct client_function *function = object;

	if (handle_kind_of(handle) == HANDLE_FUNCTION && function->wire == search->wire)
		search->found = function->handle;
}

void marshal_CUfunction(struct marshal *m, CUfunction *handle)
{
	struct search search = { 0 };

	wire_walk(m, &search.wire,
		  m->get || !*handle ? CUDA_SUCCESS : client_function_wire(*handle, &search.wire));
	if (m->get && search.wire)
		handle_visit(&farbus_client.handles, function_compare, &search);
	if (m->get)
		*handle = search.found;
}

/* Devices are numbered as CUDA_VISIBLE_DEVICES has it here, and as they are there. */
void marshal_CUdevice(struct marshal *m, CUdevice *device)
{
	const struct client *client = &farbus_client;
	int32_t ordinal = *device;

	if (!m->get && ordinal >= 0) {
		if (ordinal >= client->device_count)
			marshal_fail(m, CUDA_ERROR_INVALID_DEVICE);
		else
			ordinal = (int32_t)client->devices[ordinal].server_ordinal;
	}
	marshal_plain(m, &ordinal, sizeof(ordinal));
	if (!m->get)
		return;
	*device = ordinal;
	for (int i = 0; i < client->device_count; i++)
		if (ordinal >= 0 && client->devices[i].server_ordinal == (uint32_t)ordinal)
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
