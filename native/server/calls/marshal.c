/* Calls that travel as their arguments: the server's half of marshal.h. */
#include "../ground/named.h"
#include "../ground/resolve.h"
#include "../jobs/token.h"
#include "../libraries/kernel.h"
#include "../libraries/library.h"
#include "../streams/graph.h"
#include "green.h"
#include "marshal.h"

#include <stdlib.h>
#include <string.h>

#include "../../wire/kernel.h"

/* Most host functions that one call may name. */
#define TOKENS_LIMIT 4u

struct side {
	struct server_call *call;
	uint64_t subject;		/* name of the last graph, node or array that was walked */
	enum server_type subject_type;
	CUgraph graph;			/* the first graph that was read: the one it is about */
	uint64_t graph_name;
	uint64_t module_name;		/* of the module that was read */
	bool again;			/* an object that is shown once more has one more holder */
	enum server_type dropping;
	uint64_t dropped;
	struct named *hidden;		/* that, unless somebody else has it as well */
	struct host_token *tokens[TOKENS_LIMIT];
	unsigned token_count;
};

static struct server_call *call_of(const struct marshal *m)
{
	return ((struct side *)m->side)->call;
}

static CUresult serve_marshalled(struct server_call *call, uint32_t function, bool waiting,
				 int32_t *told)
{
	struct side side = { .call = call };
	struct marshal m;
	CUresult result;

	/* A newer client's: it hears that, and goes on. */
	if (function >= SERVER_MARSHALLED || !server_marshalled[function].serve)
		return (CUresult)WIRE_RESULT_UNKNOWN;
	if (server_marshalled[function].wait != waiting)
		return SERVER_MALFORMED;
	/* Without a context of the client's, the driver must not find one of another call. */
	if (!call->context) {
		call->driver->cuCtxSetCurrent(NULL);
		call->thread->current = NULL;
	}
	marshal_writer(&m);
	m.side = &side;
	marshal_reader(&m, call->tail, call->tail_bytes);
	side.again = true;
	result = server_marshalled[function].serve(call, &m);
	/* What the driver said, where it says more than that. */
	*told = (int32_t)m.result;
	for (unsigned i = 0; i < side.token_count; i++)
		server_token_settle(call, side.tokens[i], side.graph,
				    result == CUDA_SUCCESS && m.result == CUDA_SUCCESS);
	if (result == CUDA_SUCCESS && (m.failed || m.used > WIRE_BULK_BYTES))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS) {
		call->reply_tail = m.data;
		call->reply_tail_bytes = m.used;
		m.data = NULL;
	}
	marshal_free(&m);
	return result;
}

CUresult serve_call(struct server_call *call)
{
	const struct wire_call *request = call->request;
	struct wire_call_reply *reply = call->reply;

	return serve_marshalled(call, request->function, false, &reply->result);
}

CUresult serve_call_waiting(struct server_call *call)
{
	const struct wire_call_waiting *request = call->request;
	struct wire_call_waiting_reply *reply = call->reply;

	return serve_marshalled(call, request->function, true, &reply->result);
}

CUresult server_marshal_taken(struct marshal *m)
{
	if (m->failed || m->reader.failed || m->reader.left)
		return SERVER_MALFORMED;
	return m->result;
}

void server_marshal_dropping(struct marshal *m, enum server_type type, uint64_t real)
{
	struct side *side = m->side;

	side->dropping = type;
	side->dropped = real;
	/* Before another object has its address. */
	side->hidden = real ? server_name_hide(side->call, type, real) : NULL;
}

bool server_marshal_answer(struct marshal *m, CUresult result, bool errors)
{
	struct side *side = m->side;

	if (side->hidden)
		server_name_settle(call_of(m)->server, side->hidden, result == CUDA_SUCCESS);
	else if (result == CUDA_SUCCESS && side->dropped)
		server_name_drop(call_of(m)->server, side->dropping, side->dropped);
	m->get = false;
	m->reply = true;
	m->result = result;
	return result == CUDA_SUCCESS || errors;
}

/* ---- objects that are named here ---- */

static bool is_subject(enum server_type type)
{
	return type == SERVER_CUgraph || type == SERVER_CUgraphNode ||
	       type == SERVER_CUmipmappedArray || type == SERVER_CUarray;
}

/* Where a new object lies: nodes and handles of conditions in the graph that the call is about or in that of its
 * node, a graph in a node, a level or plane in its array, a reference in its module. */
static uint64_t owner_of(struct marshal *m, enum server_type type)
{
	const struct side *side = m->side;
	uint64_t real, owner = 0;

	if ((type == SERVER_CUgraphNode || type == SERVER_CUgraphConditionalHandle) && side->graph_name)
		return side->graph_name;
	if (type == SERVER_CUgraphNode && side->subject_type == SERVER_CUgraphNode) {
		server_named(side->call, SERVER_CUgraphNode, side->subject, &real, &owner);
		return owner;
	}
	if (type == SERVER_CUgraph && !side->graph && side->subject_type == SERVER_CUgraphNode)
		return side->subject;
	if (type == SERVER_CUtexref || type == SERVER_CUsurfref)
		return side->module_name;
	if (type == SERVER_CUarray &&
	    (side->subject_type == SERVER_CUmipmappedArray || side->subject_type == SERVER_CUarray))
		return side->subject;
	return 0;
}

static void walk(struct marshal *m, enum server_type type, uint64_t *real, CUresult unknown)
{
	struct side *side = m->side;
	uint64_t wire = 0, owner;

	if (m->get) {
		marshal_plain(m, &wire, sizeof(wire));
		*real = 0;
		if (!wire)
			return;
		if (!server_named(side->call, type, wire, real, &owner)) {
			marshal_fail(m, unknown);
			return;
		}
		if (type == SERVER_CUgraph && !side->graph) {
			side->graph = (CUgraph)(uintptr_t)*real;
			side->graph_name = wire;
		}
	} else {
		if (*real && server_name(side->call, type, *real, owner_of(m, type),
					 type == SERVER_CUmemGenericAllocationHandle, &wire) !=
				     CUDA_SUCCESS)
			m->failed = true;
		if (wire && type == SERVER_CUgraphExec && side->graph)
			server_graph_instantiated(side->call, side->graph,
						  (CUgraphExec)(uintptr_t)*real, wire);
		marshal_plain(m, &wire, sizeof(wire));
	}
	if (wire && is_subject(type)) {
		side->subject = wire;
		side->subject_type = type;
	}
}

#define NAMED(type, unknown)							\
	void marshal_##type(struct marshal *m, type *handle)			\
	{									\
		uint64_t real = (uint64_t)*handle;				\
										\
		walk(m, SERVER_##type, &real, unknown);				\
		*handle = (type)real;						\
	}

NAMED(CUarray, CUDA_ERROR_INVALID_HANDLE)
NAMED(CUdevResourceDesc, CUDA_ERROR_INVALID_VALUE)
NAMED(CUgraph, CUDA_ERROR_INVALID_VALUE)
NAMED(CUgraphConditionalHandle, CUDA_ERROR_INVALID_VALUE)
NAMED(CUgraphExec, CUDA_ERROR_INVALID_VALUE)
NAMED(CUgraphNode, CUDA_ERROR_INVALID_VALUE)
NAMED(CUgreenCtx, CUDA_ERROR_INVALID_CONTEXT)
NAMED(CUlinkState, CUDA_ERROR_INVALID_HANDLE)
NAMED(CUmemGenericAllocationHandle, CUDA_ERROR_INVALID_VALUE)
NAMED(CUmemoryPool, CUDA_ERROR_INVALID_VALUE)
NAMED(CUmipmappedArray, CUDA_ERROR_INVALID_HANDLE)
NAMED(CUsurfObject, CUDA_ERROR_INVALID_VALUE)
NAMED(CUsurfref, CUDA_ERROR_INVALID_HANDLE)
NAMED(CUtexObject, CUDA_ERROR_INVALID_VALUE)
NAMED(CUtexref, CUDA_ERROR_INVALID_HANDLE)
NAMED(CUuserObject, CUDA_ERROR_INVALID_VALUE)

/* It lies in the node, and the next one does. */
void marshal_body(struct marshal *m, CUgraph *body)
{
	const struct side *side = m->side;
	uint64_t wire = 0;

	if (*body && server_name(side->call, SERVER_CUgraph, (uint64_t)(uintptr_t)*body, side->subject, false,
				 &wire) != CUDA_SUCCESS)
		m->failed = true;
	marshal_plain(m, &wire, sizeof(wire));
}

/* ---- objects that the client has named ---- */

struct search {
	enum handle_kind kind;
	const void *object;
	uint64_t handle;
};

static void search_compare(void *opaque, uint64_t handle, void *object)
{
	struct search *search = opaque;

	if (handle_kind_of(handle) != search->kind)
		return;
	if (search->kind == HANDLE_CONTEXT) {
		if (((struct server_context *)object)->real == search->object)
			search->handle = handle;
	} else if (((struct server_placed *)object)->real == search->object &&
		   !((struct server_placed *)object)->context->gone) {
		search->handle = handle;
	}
}

/* The client's name of what the driver shows; 0 for what it has no name for. */
static uint64_t name_of(const struct marshal *m, enum handle_kind kind, const void *object)
{
	struct server *server = call_of(m)->server;
	struct search search = { .kind = kind, .object = object };

	if (object)
		handle_visit(&server->objects, search_compare, &search);
	return search.handle;
}

#define RESOLVED(type, kind, resolve)								\
	void marshal_##type(struct marshal *m, type *handle)					\
	{											\
		uint64_t wire = m->get ? 0 : name_of(m, kind, *handle);				\
		CUresult result;								\
												\
		marshal_plain(m, &wire, sizeof(wire));						\
		if (!m->get)									\
			return;									\
		*handle = NULL;									\
		result = wire ? resolve(call_of(m), wire, handle) : CUDA_SUCCESS;		\
		if (result != CUDA_SUCCESS)							\
			marshal_fail(m, result);						\
	}

RESOLVED(CUcontext, HANDLE_CONTEXT, server_resolve_context)
RESOLVED(CUstream, HANDLE_STREAM, server_resolve_stream)
RESOLVED(CUevent, HANDLE_EVENT, server_resolve_event)

static void marshal_code(struct marshal *m, CUfunction *handle,
			 CUresult (*resolve)(struct server_call *call, uint64_t wire, CUfunction *function))
{
	uint64_t wire = m->get ? 0 : server_function_name(call_of(m), *handle);
	CUresult result = CUDA_SUCCESS;

	marshal_plain(m, &wire, sizeof(wire));
	if (!m->get)
		return;
	*handle = NULL;
	if (wire)
		result = resolve(call_of(m), wire, handle);
	if (result != CUDA_SUCCESS)
		marshal_fail(m, result);
}

void marshal_CUfunction(struct marshal *m, CUfunction *handle)
{
	marshal_code(m, handle, server_resolve_function_here);
}

void marshal_CUkernel(struct marshal *m, CUkernel *handle)
{
	marshal_code(m, (CUfunction *)handle, server_resolve_function);
}

void marshal_CUmodule(struct marshal *m, CUmodule *module)
{
	struct side *side = m->side;
	uint64_t wire = 0;
	CUresult result = CUDA_SUCCESS;

	marshal_plain(m, &wire, sizeof(wire));
	if (!m->get)
		return;
	*module = NULL;
	if (!m->failed)
		result = server_resolve_module(side->call, wire, module, &side->module_name);
	if (result != CUDA_SUCCESS)
		marshal_fail(m, result);
}

void marshal_CUdevice(struct marshal *m, CUdevice *device)
{
	const struct server *server = call_of(m)->server;
	int32_t ordinal = *device;

	for (int i = 0; !m->get && i < server->device_count; i++)
		if (server->devices[i] == *device)
			ordinal = i;
	marshal_plain(m, &ordinal, sizeof(ordinal));
	if (!m->get)
		return;
	*device = ordinal;
	if (ordinal >= 0 && ordinal < server->device_count)
		*device = server->devices[ordinal];
	else if (ordinal >= 0)
		marshal_fail(m, CUDA_ERROR_INVALID_DEVICE);
}

void marshal_CUdevResource(struct marshal *m, CUdevResource *resource)
{
	struct wire_resource wire = { 0 };
	CUresult result = CUDA_SUCCESS;

	if (!m->get)
		result = server_resource_name(call_of(m)->server, resource, &wire);
	marshal_plain(m, &wire, sizeof(wire));
	if (m->get && !m->failed)
		result = server_resource_find(call_of(m)->server, &wire, resource);
	if (result != CUDA_SUCCESS && m->get)
		marshal_fail(m, result);
	else if (result != CUDA_SUCCESS)
		m->failed = true;
}

void *marshal_lasting(struct marshal *m, void *memory, size_t bytes)
{
	(void)m;
	(void)bytes;
	return memory;
}

/* ---- what kernels are given ---- */

static uint32_t parameter_bytes(struct server_call *call, CUfunction function)
{
	const struct server_driver *driver = call->driver;
	size_t offset, bytes;
	uint32_t total = 0;

	for (size_t i = 0; i < WIRE_KERNEL_PARAMETERS && driver->cuFuncGetParamInfo &&
			   driver->cuFuncGetParamInfo(function, i, &offset, &bytes) == CUDA_SUCCESS;
	     i++)
		if (offset + bytes > total && offset + bytes <= WIRE_KERNEL_PARAMETERS)
			total = (uint32_t)(offset + bytes);
	return total;
}

/* The buffer that a node was given in place of single parameters; NULL: none. */
static const uint8_t *buffer_given(void *const *extra, uint32_t *bytes)
{
	const uint8_t *buffer = NULL;
	size_t given = 0;

	for (void *const *item = extra; item && *item != CU_LAUNCH_PARAM_END; item += 2) {
		if (*item == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buffer = item[1];
		else if (*item == CU_LAUNCH_PARAM_BUFFER_SIZE)
			given = *(const size_t *)item[1];
	}
	*bytes = buffer && given <= WIRE_KERNEL_PARAMETERS ? (uint32_t)given : 0;
	return buffer;
}

static void parameters_put(struct marshal *m, CUfunction function, void *const *parameters,
			   void *const *extra)
{
	struct server_call *call = call_of(m);
	uint32_t bytes = function && parameters ? parameter_bytes(call, function) : 0;
	uint8_t *buffer = bytes ? marshal_memory(m, bytes, 1) : NULL;
	const uint8_t *given = NULL;
	size_t offset, size;

	for (size_t i = 0; buffer && call->driver->cuFuncGetParamInfo(function, i, &offset, &size) ==
					     CUDA_SUCCESS; i++)
		if (offset + size <= bytes && parameters[i])
			memcpy(buffer + offset, parameters[i], size);
	if (!parameters)
		given = buffer_given(extra, &bytes);
	marshal_plain(m, &bytes, sizeof(bytes));
	/* Only read. */
	marshal_plain(m, given ? (void *)(uintptr_t)given : buffer, bytes);
}

/* One pointer for each parameter in `buffer`, as programs give them: nodes that have a buffer are refused some changes
 * (launch_wants_list in code.c).  NULL: the driver does not tell where they are. */
static void **parameters_list(struct marshal *m, CUfunction function, uint8_t *buffer, uint32_t bytes)
{
	const struct server_driver *driver = call_of(m)->driver;
	size_t count = 0, offset, size;
	void **list;

	if (!driver->cuFuncGetParamInfo || parameter_bytes(call_of(m), function) != bytes)
		return NULL;
	while (driver->cuFuncGetParamInfo(function, count, &offset, &size) == CUDA_SUCCESS)
		count++;
	list = marshal_memory(m, count + 1, sizeof(*list));
	for (size_t i = 0; list && i < count; i++) {
		if (driver->cuFuncGetParamInfo(function, i, &offset, &size) != CUDA_SUCCESS)
			return NULL;
		list[i] = buffer + offset;
	}
	return list;
}

void marshal_parameters(struct marshal *m, CUfunction function, void ***parameters, void ***extra)
{
	uint32_t bytes = 0;
	uint8_t *buffer;
	size_t *size;
	void **list;

	if (!m->get) {
		parameters_put(m, function, *parameters, *extra);
		return;
	}
	marshal_plain(m, &bytes, sizeof(bytes));
	if (bytes > WIRE_KERNEL_PARAMETERS)
		m->failed = true;
	*parameters = NULL;
	*extra = NULL;
	buffer = marshal_memory(m, bytes + 1, 1);
	size = marshal_memory(m, 1, sizeof(*size));
	list = marshal_memory(m, 5, sizeof(*list));
	if (!buffer || !size || !list)
		return;
	marshal_plain(m, buffer, bytes);
	if (function && !m->failed)
		*parameters = parameters_list(m, function, buffer, bytes);
	if (*parameters)
		return;
	*size = bytes;
	list[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
	list[1] = buffer;
	list[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
	list[3] = size;
	list[4] = CU_LAUNCH_PARAM_END;
	*extra = list;
}

/* ---- what a graph does in the client's process ---- */

void marshal_host_function(struct marshal *m, CUhostFn *function, void **argument)
{
	struct side *side = m->side;
	uint64_t named[3] = { 0 };

	if (!m->get) {
		server_token_show(*function, *argument, named);
		marshal_plain(m, named, sizeof(named));
		return;
	}
	marshal_plain(m, named, sizeof(named));
	*function = NULL;
	*argument = NULL;
	if (!named[0] || m->failed)
		return;
	if (side->token_count == TOKENS_LIMIT) {
		m->failed = true;
		return;
	}
	*argument = server_token_keep(side->call, named[2], named);
	if (!*argument) {
		m->failed = true;
		return;
	}
	*function = server_token_ask;
	side->tokens[side->token_count++] = *argument;
}

void marshal_host_memory(struct marshal *m, void **memory)
{
	uint64_t address = 0;

	marshal_plain(m, &address, sizeof(address));
	/* No address of the client's may be used here. */
	if (m->get) {
		*memory = NULL;
		marshal_fail(m, CUDA_ERROR_NOT_SUPPORTED);
	}
}
