/* NVML on behalf of the client: what its libnvidia-ml.so.1 can't answer by itself.
 *
 * A query names one of the functions in NVML_QUERIES by its number; it is passed to the
 * function of that name in the driver's NVML, for a device of the lease alone.  Where there
 * is no NVML, memory is what the driver says.  Processes are those of the lease: the pids
 * that NVML tells are its servers', and what the client is told are the pids of their clients.
 */
#include "../server.h"
#include "../server_ops.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../generated/nvml_functions.h"
#include "../../nvml/nvml_abi.h"

#define NVML_LIBRARY "libnvidia-ml.so.1"
/* Most processes of a device that are looked at. */
#define PROCESSES_MAX 1024u
#define NVML_UNKNOWN_BYTES (~0ull)

struct server_management {
	pthread_mutex_t lock;			/* over starting NVML */
	bool started;
	nvmlReturn_t status;			/* of starting it */
	void *library;
	nvmlDevice_t devices[WIRE_DEVICES];	/* NULL: NVML does not know it */
};

/* What a query asks and is answered. */
struct management_query {
	struct server *server;
	const struct server_management *management;
	nvmlDevice_t device;
	CUdevice ordinal;
	void *function;
	unsigned structure_bytes;
	const uint32_t *arguments;
	uint64_t *values;
	uint8_t *tail;				/* in and out, NVML_TAIL_BYTES */
	size_t tail_bytes;			/* in: what came; out: what goes */
};

enum query_shape {
	NUMBER, NUMBER_A, NUMBER_AB, NUMBERS_2, NUMBERS_4, WIDE, WIDE_AB, WIDE_ABC, TEXT, TEXT_A,
	BYTES, BYTES_A, VERSIONED, LIST, LIST_A, PEER, PEER_A, OWN,
};

static const struct query_entry {
	enum nvml_query number;
	const char *function;
	enum query_shape shape;
	unsigned bytes;
} query_entries[] = {
#define ROW(name, shape, bytes) { QUERY_##name, #name, shape, bytes },
	NVML_QUERIES(ROW)
#undef ROW
};

/* ---- NVML ---- */

static void *management_function(const struct server_management *management, const char *name)
{
	return management->library ? dlsym(management->library, name) : NULL;
}

/* The NVML that belongs to the driver: the one beside it, else the system's. */
static void *nvml_open(const char *libcuda)
{
	const char *slash = strrchr(libcuda, '/');
	char path[4096];
	void *library = NULL;

	if (slash && (size_t)(slash - libcuda) < sizeof(path) - sizeof("/" NVML_LIBRARY)) {
		snprintf(path, sizeof(path), "%.*s/" NVML_LIBRARY, (int)(slash - libcuda), libcuda);
		library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	}
	return library ? library : dlopen(NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

static void uuid_format(const uint8_t uuid[16], char text[48])
{
	int at = snprintf(text, 48, "GPU-");

	for (int i = 0; i < 16; i++)
		at += snprintf(text + at, (size_t)(48 - at), i == 4 || i == 6 || i == 8 || i == 10
			       ? "-%02x" : "%02x", uuid[i]);
}

/* NVML's indices are not CUDA's, and it takes no notice of CUDA_VISIBLE_DEVICES: a device
 * is found by its UUID, one that has another name there (a part of a GPU) not at all. */
static void nvml_find_devices(struct server_management *management, const struct server *server)
{
	nvmlReturn_t (*find)(const char *uuid, nvmlDevice_t *device) =
		(nvmlReturn_t (*)(const char *, nvmlDevice_t *))management_function(
			management, "nvmlDeviceGetHandleByUUID");

	for (int i = 0; find && server->driver.cuDeviceGetUuid && i < server->device_count; i++) {
		uint8_t uuid[16];
		char text[48];

		if (server->driver.cuDeviceGetUuid((CUuuid *)uuid, server->devices[i]))
			continue;
		uuid_format(uuid, text);
		if (find(text, &management->devices[i]))
			management->devices[i] = NULL;
	}
}

static nvmlReturn_t nvml_start(struct server_management *management, const struct server *server)
{
	nvmlReturn_t (*init)(void);
	nvmlReturn_t result;

	management->library = nvml_open(server->libcuda);
	init = (nvmlReturn_t (*)(void))management_function(management, "nvmlInit_v2");
	if (!init)
		return NVML_ERROR_LIBRARY_NOT_FOUND;
	result = init();
	if (!result)
		nvml_find_devices(management, server);
	return result;
}

/* NULL: out of memory. */
static struct server_management *management_get(struct server *server)
{
	struct server_management *management;

	pthread_mutex_lock(&server->lock);
	if (!server->management) {
		server->management = calloc(1, sizeof(*server->management));
		if (server->management)
			pthread_mutex_init(&server->management->lock, NULL);
	}
	management = server->management;
	pthread_mutex_unlock(&server->lock);
	if (!management)
		return NULL;
	/* Starting it takes seconds on some machines: not under the server's lock. */
	pthread_mutex_lock(&management->lock);
	if (!management->started) {
		management->status = nvml_start(management, server);
		management->started = true;
	}
	pthread_mutex_unlock(&management->lock);
	return management;
}

/* ---- processes of the lease ---- */

/* The pid of the client whose server has that pid, or 0. */
static uint32_t lease_client(const struct server *server, uint32_t server_pid)
{
	const uint8_t *slots = server->sessions;

	for (uint32_t i = 0; i < server->session_count; i++) {
		struct server_status slot;

		/* Others write there meanwhile; whatever is read, it is two numbers. */
		memcpy(&slot, slots + (size_t)i * SERVER_STATUS_STRIDE, sizeof(slot));
		if (slot.server_pid == server_pid && server_pid)
			return slot.client_pid;
	}
	return 0;
}

/* The processes on the device that are the lease's, with their clients' pids; the caller
 * frees *list.  *count: how many. */
static nvmlReturn_t lease_processes(const struct management_query *query, nvmlProcessInfo_t **list,
				    unsigned *count)
{
	nvmlReturn_t (*get)(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos);
	nvmlProcessInfo_t *all;
	unsigned there = PROCESSES_MAX, kept = 0;
	nvmlReturn_t result;

	*(void **)&get = management_function(query->management,
					     "nvmlDeviceGetComputeRunningProcesses_v3");
	if (!get)
		*(void **)&get = management_function(query->management,
						     "nvmlDeviceGetComputeRunningProcesses_v2");
	if (!get || !query->device)
		return NVML_ERROR_NOT_SUPPORTED;
	all = calloc(PROCESSES_MAX, sizeof(*all));
	if (!all)
		return NVML_ERROR_MEMORY;
	result = get(query->device, &there, all);
	if (result || there > PROCESSES_MAX) {
		free(all);
		return result ? result : NVML_ERROR_UNKNOWN;
	}
	for (unsigned i = 0; i < there; i++) {
		uint32_t client = lease_client(query->server, all[i].pid);

		if (!client)
			continue;
		all[kept] = all[i];
		all[kept++].pid = client;
	}
	*list = all;
	*count = kept;
	return NVML_SUCCESS;
}

static nvmlReturn_t query_processes(struct management_query *query)
{
	nvmlProcessInfo_t *list;
	unsigned count, room = NVML_TAIL_BYTES / sizeof(*list);
	nvmlReturn_t result;

	/* A node without NVML shows none, as one that can't see pids: with an error PyTorch, which asks when
	 * memory has run out, would not say that it has. */
	if (!query->device) {
		query->tail_bytes = 0;
		return NVML_SUCCESS;
	}
	result = lease_processes(query, &list, &count);
	if (result)
		return result;
	if (count > room)
		count = room;
	memcpy(query->tail, list, count * sizeof(*list));
	query->tail_bytes = count * sizeof(*list);
	free(list);
	return NVML_SUCCESS;
}

/* ---- memory ---- */

struct memory_view {
	uint64_t total, free, used;
};

/* The driver's word, for which it needs a context for a moment. */
static nvmlReturn_t driver_memory(const struct management_query *query, struct memory_view *view)
{
	const struct server_driver *driver = &query->server->driver;
	size_t free = 0, total = 0;
	CUcontext context, popped;
	CUresult result;

	if (!driver->cuMemGetInfo_v2 || !driver->cuCtxPushCurrent_v2 || !driver->cuCtxPopCurrent_v2 ||
	    !driver->cuDevicePrimaryCtxRelease_v2)
		return NVML_ERROR_NOT_SUPPORTED;
	if (driver->cuDevicePrimaryCtxRetain(&context, query->ordinal))
		return NVML_ERROR_UNKNOWN;
	result = driver->cuCtxPushCurrent_v2(context);
	if (result == CUDA_SUCCESS) {
		result = driver->cuMemGetInfo_v2(&free, &total);
		driver->cuCtxPopCurrent_v2(&popped);
	}
	driver->cuDevicePrimaryCtxRelease_v2(query->ordinal);
	if (result != CUDA_SUCCESS)
		return NVML_ERROR_UNKNOWN;
	*view = (struct memory_view){ total, free, total > free ? total - free : 0 };
	return NVML_SUCCESS;
}

static nvmlReturn_t nvml_memory(const struct management_query *query, struct memory_view *view)
{
	nvmlReturn_t (*get)(nvmlDevice_t device, nvmlMemory_t *memory);
	nvmlMemory_t memory;
	nvmlReturn_t result;

	*(void **)&get = management_function(query->management, "nvmlDeviceGetMemoryInfo");
	if (!get || !query->device)
		return NVML_ERROR_NOT_SUPPORTED;
	result = get(query->device, &memory);
	if (!result)
		*view = (struct memory_view){ memory.total, memory.free, memory.used };
	return result;
}

/* values: total, free and used bytes.  Used is what the lease's processes use where NVML
 * tells that of each, else what is used on the device. */
static nvmlReturn_t query_memory(struct management_query *query)
{
	struct memory_view view;
	nvmlReturn_t result = nvml_memory(query, &view);
	nvmlProcessInfo_t *list;
	uint64_t used = 0;
	unsigned count;

	if (result)
		result = driver_memory(query, &view);
	else if (!lease_processes(query, &list, &count)) {
		for (unsigned i = 0; i < count && used != NVML_UNKNOWN_BYTES; i++)
			used = list[i].usedGpuMemory == NVML_UNKNOWN_BYTES
				       ? NVML_UNKNOWN_BYTES : used + list[i].usedGpuMemory;
		if (used != NVML_UNKNOWN_BYTES)
			view.used = used;
		free(list);
	}
	if (result)
		return result;
	query->values[0] = view.total;
	query->values[1] = view.free;
	query->values[2] = view.used;
	return NVML_SUCCESS;
}

/* ---- the rest of what has a form of its own ---- */

static nvmlReturn_t query_system_text(struct management_query *query)
{
	nvmlReturn_t (*get)(char *text, unsigned length);
	nvmlReturn_t result;

	*(void **)&get = query->function;
	if (!get)
		return NVML_ERROR_NOT_SUPPORTED;
	memset(query->tail, 0, NVML_TAIL_BYTES);
	result = get((char *)query->tail, 256);
	query->tail_bytes = result ? 0 : strnlen((char *)query->tail, 255);
	return result;
}

/* values: the numbers that say what kind of device it is. */
static nvmlReturn_t query_pci(struct management_query *query)
{
	nvmlReturn_t (*get)(nvmlDevice_t device, nvmlPciInfo_t *info);
	nvmlPciInfo_t info;
	nvmlReturn_t result;

	*(void **)&get = query->function;
	if (!get)
		return NVML_ERROR_NOT_SUPPORTED;
	result = get(query->device, &info);
	if (result)
		return result;
	query->values[0] = info.pciDeviceId;
	query->values[1] = info.pciSubSystemId;
	return NVML_SUCCESS;
}

/* arguments: field and scope; values: time, latency, type, value. */
static nvmlReturn_t query_field(struct management_query *query)
{
	nvmlReturn_t (*get)(nvmlDevice_t device, int count, nvmlFieldValue_t *values);
	nvmlFieldValue_t field = {
		.fieldId = query->arguments[0],
		.scopeId = query->arguments[1],
	};
	nvmlReturn_t result;

	*(void **)&get = query->function;
	if (!get)
		return NVML_ERROR_NOT_SUPPORTED;
	result = get(query->device, 1, &field);
	if (result || field.nvmlReturn)
		return result ? result : (nvmlReturn_t)field.nvmlReturn;
	query->values[0] = (uint64_t)field.timestamp;
	query->values[1] = (uint64_t)field.latencyUsec;
	query->values[2] = field.valueType;
	query->values[3] = field.value;
	return NVML_SUCCESS;
}

static nvmlReturn_t query_own(const struct query_entry *entry, struct management_query *query)
{
	switch ((unsigned)entry->number) {
	case QUERY_nvmlSystemGetDriverVersion:
	case QUERY_nvmlSystemGetNVMLVersion:
		return query_system_text(query);
	case QUERY_nvmlDeviceGetMemoryInfo_v2:
		return query_memory(query);
	case QUERY_nvmlDeviceGetComputeRunningProcesses_v3:
		return query_processes(query);
	default:
		if (!query->device)
			return NVML_ERROR_NOT_SUPPORTED;
		return entry->number == QUERY_nvmlDeviceGetPciInfo_v3 ? query_pci(query)
								      : query_field(query);
	}
}

/* ---- what has only a shape ---- */

/* A function's type: what follows the device. */
typedef nvmlReturn_t (*call_0)(nvmlDevice_t, void *);
typedef nvmlReturn_t (*call_a)(nvmlDevice_t, unsigned, void *);
typedef nvmlReturn_t (*call_ab)(nvmlDevice_t, unsigned, unsigned, void *);
typedef nvmlReturn_t (*call_abc)(nvmlDevice_t, unsigned, unsigned, unsigned, void *);
typedef nvmlReturn_t (*call_2)(nvmlDevice_t, unsigned *, unsigned *);
typedef nvmlReturn_t (*call_4)(nvmlDevice_t, unsigned *, unsigned *, unsigned *, unsigned *);
typedef nvmlReturn_t (*call_text)(nvmlDevice_t, char *, unsigned);
typedef nvmlReturn_t (*call_text_a)(nvmlDevice_t, unsigned, char *, unsigned);
typedef nvmlReturn_t (*call_list)(nvmlDevice_t, unsigned *, void *);
typedef nvmlReturn_t (*call_list_a)(nvmlDevice_t, unsigned, unsigned *, void *);
typedef nvmlReturn_t (*call_peer)(nvmlDevice_t, nvmlDevice_t, void *);
typedef nvmlReturn_t (*call_peer_a)(nvmlDevice_t, nvmlDevice_t, unsigned, void *);

/* The versioned structure is as long as its version says: NVML knows no longer ones, and
 * has room here for any that it might come to know. */
static nvmlReturn_t query_versioned(struct management_query *query)
{
	unsigned version;
	nvmlReturn_t result;

	if (query->tail_bytes < sizeof(version))
		return NVML_ERROR_INVALID_ARGUMENT;
	memcpy(&version, query->tail, sizeof(version));
	if (NVML_VERSION_BYTES(version) != query->tail_bytes)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	result = ((call_0)query->function)(query->device, query->tail);
	if (result)
		query->tail_bytes = 0;
	return result;
}

static nvmlReturn_t query_peer(struct management_query *query, enum query_shape shape, unsigned *number)
{
	uint32_t other = query->arguments[0];

	if (other >= (uint32_t)query->server->device_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!query->management->devices[other])
		return NVML_ERROR_NOT_SUPPORTED;
	if (shape == PEER_A)
		return ((call_peer_a)query->function)(query->device, query->management->devices[other],
						      query->arguments[1], number);
	return ((call_peer)query->function)(query->device, query->management->devices[other],
					    number);
}

static nvmlReturn_t query_shaped(enum query_shape shape, struct management_query *query)
{
	const uint32_t *a = query->arguments;
	unsigned number[4] = { 0 }, room = NVML_TAIL_BYTES / sizeof(unsigned);
	unsigned long long wide = 0;
	void *function = query->function;
	nvmlDevice_t device = query->device;
	nvmlReturn_t result;

	if (shape == VERSIONED)
		return query_versioned(query);
	/* What a function leaves unwritten is no secret of the last query. */
	memset(query->tail, 0, NVML_TAIL_BYTES);
	query->tail_bytes = 0;
	switch (shape) {
	case NUMBER:
		result = ((call_0)function)(device, number);
		break;
	case NUMBER_A:
		result = ((call_a)function)(device, a[0], number);
		break;
	case NUMBER_AB:
		result = ((call_ab)function)(device, a[0], a[1], number);
		break;
	case NUMBERS_2:
		result = ((call_2)function)(device, &number[0], &number[1]);
		break;
	case NUMBERS_4:
		result = ((call_4)function)(device, &number[0], &number[1], &number[2], &number[3]);
		break;
	case WIDE:
		result = ((call_0)function)(device, &wide);
		break;
	case WIDE_AB:
		result = ((call_ab)function)(device, a[0], a[1], &wide);
		break;
	case WIDE_ABC:
		result = ((call_abc)function)(device, a[0], a[1], a[2], &wide);
		break;
	case TEXT:
		result = ((call_text)function)(device, (char *)query->tail, 256);
		query->tail_bytes = strnlen((char *)query->tail, 255);
		break;
	case TEXT_A:
		result = ((call_text_a)function)(device, a[0], (char *)query->tail, 256);
		query->tail_bytes = strnlen((char *)query->tail, 255);
		break;
	case BYTES:
		result = ((call_0)function)(device, query->tail);
		query->tail_bytes = query->structure_bytes;
		break;
	case BYTES_A:
		result = ((call_a)function)(device, a[0], query->tail);
		query->tail_bytes = query->structure_bytes;
		break;
	case LIST:
		result = ((call_list)function)(device, &room, query->tail);
		query->tail_bytes = room * sizeof(unsigned);
		break;
	case LIST_A:
		result = ((call_list_a)function)(device, a[0], &room, query->tail);
		query->tail_bytes = room * sizeof(unsigned);
		break;
	case PEER:
	case PEER_A:
		result = query_peer(query, shape, number);
		break;
	default:
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	}
	if (result || query->tail_bytes > NVML_TAIL_BYTES)
		query->tail_bytes = 0;
	for (int i = 0; i < 4; i++)
		query->values[i] = number[i];
	if (shape == WIDE || shape == WIDE_AB || shape == WIDE_ABC)
		query->values[0] = wide;
	return result;
}

static const struct query_entry *query_find(uint32_t number)
{
	for (size_t i = 0; i < sizeof(query_entries) / sizeof(query_entries[0]); i++)
		if (query_entries[i].number == number)
			return &query_entries[i];
	return NULL;
}

static nvmlReturn_t query_answer(const struct query_entry *entry, struct management_query *query,
				 uint32_t device)
{
	const struct server_management *management = query->management;

	if (device >= (uint32_t)query->server->device_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	/* Without NVML there still is what the driver says of memory, and that no process is shown. */
	if (management->status && entry->number != QUERY_nvmlDeviceGetMemoryInfo_v2 &&
	    entry->number != QUERY_nvmlDeviceGetComputeRunningProcesses_v3)
		return NVML_ERROR_NOT_SUPPORTED;
	query->device = management->status ? NULL : management->devices[device];
	query->ordinal = query->server->devices[device];
	query->function = management_function(management, entry->function);
	query->structure_bytes = entry->bytes;
	if (entry->shape == OWN)
		return query_own(entry, query);
	/* An NVML that is older than the query is as one whose GPU can't answer it. */
	if (!query->device || !query->function)
		return NVML_ERROR_NOT_SUPPORTED;
	return query_shaped(entry->shape, query);
}

CUresult serve_management(struct server_call *call)
{
	const struct wire_management *request = call->request;
	struct wire_management_reply *reply = call->reply;
	const struct query_entry *entry = query_find(request->query);
	uint8_t *tail = calloc(1, NVML_TAIL_BYTES);
	struct management_query query = {
		.server = call->server,
		.management = management_get(call->server),
		.arguments = request->arguments,
		.values = reply->values,
		.tail = tail,
		.tail_bytes = call->tail_bytes,
	};

	if (!tail || !query.management) {
		free(tail);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memcpy(tail, call->tail, call->tail_bytes);
	if (entry)
		reply->status = (int32_t)query_answer(entry, &query, request->device);
	else
		reply->status = NVML_ERROR_FUNCTION_NOT_FOUND;
	call->reply_tail = tail;
	call->reply_tail_bytes = reply->status ? 0 : query.tail_bytes;
	return CUDA_SUCCESS;
}
